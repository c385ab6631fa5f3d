"""Offers: the same run on rented machines, as tasks for SkyPilot."""
