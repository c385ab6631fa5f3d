"""Flags, errors as lines and exit codes, the experiments by name."""

# The module of a command is jaxbench/NAME.py.
COMMANDS = {
    "main": "Run one experiment: train it, or measure how fast the devices are.",
    "sweep": "Run an experiment over a grid of settings.",
    "qualify": "Measure what a machine can do in ten minutes: one card, a verdict.",
    "compare": "Compare the rates of runs, or cards, with intervals.",
    "report": "Make a report of runs, sweeps and cards, one HTML page.",
    "cost": "Show what runs cost: time, money, electricity.",
    "offers": "Write tasks that rent machines for a run, by SkyPilot.",
    "calibrate": "Fit the model of predicted rates again, with your own rates too.",
    "forecast": "Predict a card before it is measured, and score the prediction.",
    "kernels": "Find which operations have a fast kernel on a machine.",
    "new": "Write a template for a custom network, optimizer, data or task.",
    "doctor": "Check this machine: versions, devices, driver, disk, host.",
}
