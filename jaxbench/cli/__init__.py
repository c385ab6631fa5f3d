"""Flags, errors as lines and exit codes, the experiments by name."""
