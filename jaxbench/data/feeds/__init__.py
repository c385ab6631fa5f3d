"""How data reaches the devices: resident, stream or synthetic."""
