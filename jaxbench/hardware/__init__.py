"""What the hardware is, what it can do at most, what it is doing."""
