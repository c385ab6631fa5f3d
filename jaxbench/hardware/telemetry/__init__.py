"""What the hardware did meanwhile: readings of devices and host, taken beside the run."""
