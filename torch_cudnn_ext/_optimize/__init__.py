"""Whole networks: for inference traced, folded, fused and captured; for training tuned."""
