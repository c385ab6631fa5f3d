"""Which field was meant, by whole paths."""

import pytest

from jaxbench.cli.hints import meant_fields

FIELDS = (
    *("batch_size", "epochs", "model.depth", "model.width", "data.name", "data.source"),
    *("data.path", "optimizer.name", "optimizer.learning_rate", "optimizer.bias_learning_rate"),
)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("learning_rate", ["optimizer.learning_rate"]),
        ("optimizer", ["optimizer.name"]),
        ("optimiser", ["optimizer.name"]),
        ("data", ["data.name", "data.source"]),
        ("lr", ["optimizer.learning_rate"]),
        ("optimizer.lr", ["optimizer.learning_rate"]),
        ("bs", ["batch_size"]),
        ("model.epochs", ["epochs"]),
        ("num_epochs", ["epochs"]),
        ("model.depht", ["model.depth"]),
        ("depht", ["model.depth"]),
        ("optimizer.learning_rat", ["optimizer.learning_rate"]),
        ("model", []),
        ("xyzzy", []),
    ],
)
def test_a_field_that_was_meant(given, meant):
    assert meant_fields(given, FIELDS) == meant
