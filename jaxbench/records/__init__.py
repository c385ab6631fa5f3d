"""The run directory: what is written into it, how it is read, which figures fail a sanity check."""
