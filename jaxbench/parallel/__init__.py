"""Devices as a mesh, processes that work together, signals."""
