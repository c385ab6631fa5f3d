"""Code of the user's own in an experiment: what it may be, how it is named, where it fails."""
