"""A grid of runs, each in a process of its own."""
