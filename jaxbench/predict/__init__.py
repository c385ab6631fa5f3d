"""Predict rates of training on machines that are not here, from rates that others published.

`layers.py` has what a network does, `tracing.py` reads it, `rates.py` reads published rates,
`model.py` has the law and its fit, `calibration.py` the errors of rows left out and intervals,
`prediction.py` the answer. docs/concepts/prediction.md explains the method and its proof. JAX is
needed for `tracing.py` only.
"""
