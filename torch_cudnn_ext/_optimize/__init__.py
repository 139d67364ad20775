"""Whole networks for inference: traced, folded, fused, tuned, and put into CUDA graphs."""
