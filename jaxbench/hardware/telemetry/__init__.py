"""Telemetry: readings of devices and host, taken during a run."""
