"""Qualify a machine: measure in some minutes what its accelerators can do and do, on one card."""
