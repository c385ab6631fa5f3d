"""The networks: one file each, its configuration beside it."""
