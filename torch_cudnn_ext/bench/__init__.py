"""Comparisons with PyTorch: layers, modules, whole networks, and the overhead of a call."""
