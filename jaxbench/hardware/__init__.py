"""The hardware: what it is, its peak rates, its telemetry."""
