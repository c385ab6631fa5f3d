"""Where data sets are read from."""
