"""Predict rates of training on machines that are not here, from rates that others published.

`layers.py` reads what a network does, `rates.py` the calibration table, `model.py` has the law and
its fit, `calibration.py` the errors of rows left out and intervals, `prediction.py` the answer.
docs/concepts/prediction.md explains the method and its proof. JAX is needed for `layers.py` only.
"""
