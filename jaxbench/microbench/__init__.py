"""Micro-benchmarks: what a machine's devices, memories and links can do."""
