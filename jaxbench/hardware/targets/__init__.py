"""Machines that are not here: their facts as tables, and devices to compile for."""
