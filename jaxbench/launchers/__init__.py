"""Where the trials of a sweep run: on this machine, or on others."""
