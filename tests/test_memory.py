"""Memory that XLA plans: the whole state is donated, and what is made again is not kept."""

import jax
import numpy as np
import pytest
from conftest import equations, needs_devices

from jaxbench import catalog
from jaxbench.config import Config
from jaxbench.data.feed import abstract_args
from jaxbench.devices import create_training_mesh
from jaxbench.program import build_program, compile_step

NETWORKS = [name for name in catalog.available() if isinstance(catalog.load(name), Config)]


def program_of(name, **fields):
    """The program of an experiment and what its training step takes beside the state."""
    config = catalog.load(name)
    for field, value in fields.items():
        setattr(config, field, value)
    config.data.feed = "resident"
    config.data.random_resized_crop = False
    program = build_program(config, create_training_mesh(config), steps_per_epoch=1)
    labels = program.task.label_shape(config.data.image_shape)
    args = abstract_args(config, config.num_devices, labels, program.precision.param_dtype)
    return program, args


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [("quickstart:tiny", "pmap"), ("quickstart:tiny", "shard_map")]
    + [pytest.param(f"{name}:tiny", "pmap", marks=pytest.mark.slow) for name in NETWORKS],
)
def test_every_byte_of_the_state_is_donated(name, parallelism):
    needs_devices(2)
    program, args = program_of(name, parallelism=parallelism, num_devices=2)
    record = compile_step("train_step", program.train_step, program.abstract_placed_state(), *args)
    state_bytes = sum(
        leaf.size * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(program.abstract_train_state())
    )
    assert record["memory"]["alias_bytes"] == state_bytes


@pytest.mark.parametrize("remat", ["none", "norms"])
def test_of_activations_only_what_convolutions_made_is_kept(remat):
    """What the part of the step that makes the rest again takes in, as JAX traced it."""
    program, args = program_of("quickstart:tiny", remat=remat, num_devices=1)
    state = program.abstract_placed_state()
    found = equations(jax.make_jaxpr(program.train_step)(state, *args).jaxpr)
    made_again = [equation for equation in found if equation.params.get("differentiated")]
    if remat == "none":
        assert not made_again
        return
    [backward] = made_again
    forward = found[: found.index(backward)]
    made = [
        equation.outvars[0].aval.shape
        for equation in forward
        if equation.primitive.name == "conv_general_dilated"
    ]
    batch_size = program.config.batch_size
    assert len(made) == 9 and all(shape[0] == batch_size for shape in made)
    taken = [value.aval.shape for value in backward.invars]
    of_the_batch = [shape for shape in taken if len(shape) == 4 and shape[0] == batch_size]
    images = (batch_size, *program.config.data.image_shape)
    assert sorted(of_the_batch) == sorted([*made, images])
    # Both sums of each batch norm; gradients alone would have it read what it normalises again.
    norms = len(jax.tree.leaves(state.batch_stats)) // 2
    assert norms == 7 == sum(len(shape) == 2 and shape[0] == 2 for shape in taken)


def test_gradients_do_not_depend_on_what_is_made_again(train):
    """A network with batch norm and dropout, in fp64."""
    fields = {
        "model__norm": "batch",
        "model__stages": (1,),
        "epochs": 1,
        "precision": "fp64",
        "log_every_steps": 1,
        "num_devices": 1,
        "data__train_examples": 128,
        "data__eval_examples": 32,
        "batch_size": 32,
    }
    kept, made_again = (
        train("vgg_cifar10:tiny", remat=remat, **fields).state for remat in ("none", "norms")
    )
    # Biases in front of batch norm have no gradient but rounding.
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(made_again), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-8)
