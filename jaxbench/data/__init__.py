"""Data sets, the order they are read in, and how they reach the devices."""
