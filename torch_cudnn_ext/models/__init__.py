"""Whole models: run with our operators, converted, or with algorithms pinned by layer name."""
