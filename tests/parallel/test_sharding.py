"""parallelism=fsdp: which arrays are split, and the numbers of pmap."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

from jaxbench.checkpoints.checkpoint import Checkpoints
from jaxbench.models.gpt import GptConfig
from jaxbench.models.vit import ViTConfig
from jaxbench.parallel.mesh import unequal_copies
from jaxbench.parallel.sharding import Shard, split_axis
from jaxbench.xla.jaxpr import inner_jaxprs
from tests.checkpoints.runs import assert_same_run, interrupted, trained
from tests.conftest import MICRO, assert_same_state, program_of, refusal, step_args, step_losses

GPT_MODEL = GptConfig(width=32, depth=1, heads=2)
GPT = "gpt124m_synthetic", {"model": GPT_MODEL, "data__num_classes": 64, "data__sequence_length": 8}
VIT = MICRO, {"model": ViTConfig(patch=4, width=32, depth=1, heads=2)}


@pytest.mark.parametrize(
    ("shape", "num_devices", "axis"),
    [
        ((768, 3072), 8, 0),
        ((50257, 768), 8, 1),
        ((3, 3, 64, 128), 8, 2),
        ((3, 3, 64, 128), 3, 0),
        ((50257, 767), 8, None),
        ((768,), 8, None),
        ((), 8, None),
    ],
)
def test_the_first_axis_that_the_devices_divide_is_split(shape, num_devices, axis):
    assert split_axis(shape, num_devices) == axis


fsdp_program = functools.partial(program_of, parallelism="fsdp")


def test_each_device_has_its_part_of_parameters_and_moments():
    program = fsdp_program(MICRO, num_devices=4, optimizer__name="adamw", model__hidden=(8,))
    state = program.place_train_state()
    shapes = program.abstract_placed_state()
    split, whole = 0, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        own = {shard.data.shape for shard in leaf.addressable_shards}
        assert len(leaf.addressable_shards) == 4 and len(own) == 1
        if leaf.ndim == 2:
            split += leaf.size
            assert path[0].name in ("params", "opt_state")
            assert 4 * np.prod(own.pop()) == leaf.size
        else:
            whole += leaf.size
            assert own == {leaf.shape}
    kernels = sum(leaf.size for leaf in jax.tree.leaves(state.params) if leaf.ndim == 2)
    assert split == 3 * kernels
    assert program.state_bytes_per_device() == 4 * (split // 4 + whole)
    for leaf, expected in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)
    # Drawn in parts, they are what one device draws.
    expected = fsdp_program(MICRO, num_devices=1, optimizer__name="adamw", model__hidden=(8,))
    drawn = expected.initial_state()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(drawn))


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer__max_gradient_norm": 0.01, "gradient_accumulation_steps": 2},
        {"batch_norm": "sync", "model__dropout": 0.5},
        {"optimizer__name": "muon", "remat": "save_dots"},
    ],
)
def test_the_numbers_are_those_of_pmap(train, fields):
    """With clipped norms and Muon, which look at whole arrays."""
    fields |= {"num_devices": 8, "precision": "fp64", "log_every_steps": 1, "max_steps": 3}
    pmap = train(MICRO, **fields)
    fsdp = train(MICRO, parallelism="fsdp", **fields)
    losses = step_losses(pmap)
    assert len(set(losses)) == 3
    np.testing.assert_allclose(step_losses(fsdp), losses, rtol=1e-12)
    assert fsdp.summary["eval_loss"] == pytest.approx(pmap.summary["eval_loss"], rel=1e-12)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        *(jax.device_get(done.state) for done in (fsdp, pmap)),
    )
    assert unequal_copies(fsdp.state) == []
    parts = [
        len({str(shard.index) for shard in leaf.addressable_shards})
        for leaf in jax.tree.leaves(fsdp.state.params)
    ]
    assert 8 in parts and 1 in parts


@pytest.mark.parametrize(
    ("network", "remat"),
    [(GPT, "none"), (GPT, "blocks"), (VIT, "none"), (VIT, "blocks"), ((MICRO, {}), "none")],
)
def test_no_gathered_parameter_is_kept_for_the_backward_pass(network, remat):
    """Whatever the backward pass needs it gathers itself."""
    name, fields = network
    program = fsdp_program(name, num_devices=8, remat=remat, batch_size=8, **fields)
    program.network.config.validate()
    state = program.abstract_placed_state()
    jaxpr = program.train_step.trace(state, *step_args(program)).jaxpr.jaxpr
    gathered, kept = set(), []
    for equation in per_device_jaxpr(jaxpr).eqns:
        inputs = {value for value in equation.invars if not isinstance(value, Literal)}
        if "transpose(" in str(equation.source_info.name_stack):
            kept += [value.aval.str_short() for value in inputs & gathered]
        elif equation.primitive.name == "all_gather" or inputs and inputs <= gathered:
            gathered |= set(equation.outvars)
    assert gathered and not kept


def per_device_jaxpr(jaxpr):
    """The body of the first shard_map in a jaxpr."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            return equation.params["jaxpr"]
        for inner in inner_jaxprs(equation):
            if body := per_device_jaxpr(inner):
                return body
    return None


@pytest.mark.parametrize(("first", "then"), [("fsdp", "fsdp"), ("pmap", "fsdp")])
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(tmp_path, monkeypatch, first, then):
    """Also where it began with the other parallelism: two devices sum in one order."""
    fields = {"epochs": 2, "num_devices": 2}
    whole = trained(tmp_path / "whole", parallelism=then, **fields)
    run = tmp_path / "run"
    monkeypatch.setattr(Checkpoints, "due", lambda *_, **__: True)
    interrupted(monkeypatch, run, 9, parallelism=first, **fields)
    resumed = trained(run, resume="auto", parallelism=then, **fields)
    if first == then:  # else what was compiled first is another step
        assert_same_run(whole.run_dir.path, run)
    assert_same_state(whole.state, resumed.state)


def test_what_fsdp_cannot_split_is_refused(refused):
    fsdp = "--experiment.parallelism=fsdp"
    independent = "--experiment.replicas=independent"
    refused(f"--experiment={MICRO}", independent, fsdp, told="nothing to split")
    refused("--experiment=conv2d:tiny", fsdp, told="a convolution has no state to split")
    program = fsdp_program(MICRO, num_devices=7, batch_size=7, model__hidden=(12,))
    refusal(program.check, told="7 devices divide no axis of a parameter")
    boxed = {"params": {"kernel": Shard(jnp.zeros((3, 4, 4)), axis=1)}}
    refusal(nn.meta.remove_axis, boxed, 0, {}, told="nn.scan or nn.vmap stacks parameters")
