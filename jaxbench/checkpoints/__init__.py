"""Checkpoints, and resuming a run from one."""
