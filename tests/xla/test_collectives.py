"""Collectives counted in XLA's text: compiled here, and as GPUs and TPUs have it."""

import functools

import jax
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.parallel.mesh import AXIS, DataMesh, create_training_mesh
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_step
from jaxbench.xla.collectives import count_collectives
from tests.conftest import MICRO, needs_devices, set_fields


@functools.cache
def compiled_step(**fields):
    """The training step of a network with 3 norms on 2 devices.

    Returns its compile record, the bytes of its gradient and of its running averages.
    """
    config = registry.load(MICRO)
    set_fields(config, model__hidden=(8, 8), **fields)
    program = build_program(config, *create_training_mesh(config), steps_per_epoch=1)
    args = abstract_args(config, program.layout, (), program.precision.param_dtype)
    state = program.abstract_placed_state()
    record = compile_step("train_step", program.train_step, state, *args)
    averages = sum(leaf.size for leaf in jax.tree.leaves(state.batch_stats))
    return record, 4 * program.num_parameters(), 4 * averages


@pytest.mark.parametrize("parallelism", ["pmap", "shard_map"])
def test_the_gradient_is_reduced_in_few_collectives(parallelism):
    needs_devices(2)
    record, gradient_bytes, averages_bytes = compiled_step(parallelism=parallelism)
    assert set(record.collectives) == {"all-reduce"}
    found = record.collectives["all-reduce"]
    assert 1 <= found["count"] <= 3
    # Beside it the running averages (two for each of 3 norms) and four metrics.
    assert found["bytes"] == gradient_bytes + averages_bytes + 4 * 4
    assert found["bytes"] / found["count"] <= found["largest_bytes"] <= found["bytes"]


def test_synchronised_batch_norm_reduces_in_every_layer():
    needs_devices(2)
    local = compiled_step(parallelism="pmap")[0].collectives["all-reduce"]
    sync, gradient_bytes, _ = compiled_step(parallelism="pmap", batch_norm="sync")
    # 3 norms, forwards and backwards; XLA may join the last with the gradient.
    assert sync.collectives["all-reduce"]["count"] >= local["count"] + 4
    assert sync.collectives["all-reduce"]["bytes"] > gradient_bytes


def test_models_that_exchange_nothing_have_none():
    needs_devices(2)
    assert compiled_step(replicas="independent")[0].collectives == {}


@pytest.mark.parametrize("parallelism", ["pmap", "shard_map"])
def test_each_kind_is_counted_with_its_operands(parallelism):
    """Operands, not results: gathering makes four times as much of them, scattering a quarter."""
    needs_devices(4)

    def exchange(x_8x3):
        ring = [(place, (place + 1) % 4) for place in range(4)]
        return (
            jax.lax.all_gather(x_8x3, AXIS),
            jax.lax.psum_scatter(x_8x3, AXIS, tiled=True),
            jax.lax.ppermute(x_8x3, AXIS, ring),
            jax.lax.all_to_all(x_8x3, AXIS, 0, 0, tiled=True),
        )

    mesh = DataMesh(tuple(jax.local_devices()[:4]), parallelism)
    step = mesh.pmap(exchange, sharded=(True,), sharded_output=True)
    text = step.lower(np.ones((4, 8, 3), np.float32)).compile().as_text()
    found = count_collectives(text)
    assert set(found) == {"all-gather", "reduce-scatter", "collective-permute", "all-to-all"}
    for name, count in found.items():
        assert count["bytes"] == 8 * 3 * 4, name


# As on GPUs: asynchronous pairs, tuples, an operation wrapped in a computation of its own.
GPU = """
HloModule jit_step, is_scheduled=true

%wrapped (param_0.1: f32[8,4]) -> f32[2,4] {
  %param_0.1 = f32[8,4]{1,0} parameter(0)
  ROOT %reduce-scatter.1 = f32[2,4]{1,0} reduce-scatter(%param_0.1), replica_groups={{0,1,2,3}}
}

ENTRY %main (p0: f32[100], p1: bf16[7], p2: f32[8,4]) -> f32[100] {
  %p0 = f32[100]{0} parameter(0), metadata={op_name="state.params['all-reduce(x)']"}
  %p1 = bf16[7]{0} parameter(1)
  %p2 = f32[8,4]{1,0} parameter(2)
  %all-reduce-start = (f32[100]{0}, bf16[7]{0}) all-reduce-start(%p0, /*index=1*/%p1), channel_id=1
  %all-reduce-done = (f32[100]{0}, bf16[7]{0}) all-reduce-done(%all-reduce-start)
  %get-tuple-element = f32[100]{0} get-tuple-element(%all-reduce-done), index=0
  %all-reduce-start.1 = f32[100]{0} all-reduce-start(%get-tuple-element), channel_id=2
  %all-reduce-done.1 = f32[100]{0} all-reduce-done(%all-reduce-start.1)
  %ag-start = (bf16[7]{0}, bf16[28]{0}) all-gather-start(%p1), dimensions={0}
  %ag-done = bf16[28]{0} all-gather-done(%ag-start)
  %cp = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[], u32[]) collective-permute-start(f32[8,4]{1,0} %p2)
  %cp-done = f32[8,4]{1,0} collective-permute-done(%cp)
  %rs-start = ((f32[8,4]{1,0}), f32[2,4]{1,0}) async-start(%p2), calls=%wrapped
  %rs-done = f32[2,4]{1,0} async-done(%rs-start)
  ROOT %copy = f32[100]{0} copy(%all-reduce-done.1)
}
"""
# As on TPUs: layouts with tiles and memory spaces, a tuple taken in whole, packed types, a
# collective spread over two fusions.
TPU = """
%fused.1 {
  %q.1 = bf16[2,4]{1,0} parameter(0)
  ROOT %ag.1 = bf16[8,4]{1,0} all-gather(%q.1), channel_id=1, frontend_attributes={chain_id="22"}
}

%fused.2 {
  %q.2 = bf16[2,4]{1,0} parameter(0)
  ROOT %ag.2 = bf16[8,4]{1,0} all-gather(%q.2), channel_id=1, frontend_attributes={chain_id="22"}
}

ENTRY %main {
  %p0 = pred[3]{0:T(256)(32,128)(4,1)S(1)} parameter(0)
  %p1 = f8e4m3fn[4,4]{1,0:T(8,128)(4,1)} parameter(1)
  %pair = (f32[<=2,3]{1,0:T(8,128)}, s4[5]{0:T(256)}) tuple(%a, %b)
  %all-to-all.7 = (f32[2,3]{1,0:T(8,128)}, s4[5]{0:T(256)}) all-to-all(%pair), dimensions={0}
  ROOT %ar = (pred[3]{0}, f8e4m3fn[4,4]{1,0:T(8,128)(4,1)}) all-reduce(%p0, %p1), to_apply=%sum
}
"""


def test_texts_of_accelerators():
    assert count_collectives(GPU) == {
        "all-reduce": {"count": 2, "bytes": 414 + 400, "largest_bytes": 414},
        "all-gather": {"count": 1, "bytes": 14, "largest_bytes": 14},
        "collective-permute": {"count": 1, "bytes": 128, "largest_bytes": 128},
        "reduce-scatter": {"count": 1, "bytes": 128, "largest_bytes": 128},
    }
    assert count_collectives(TPU) == {
        "all-gather": {"count": 1, "bytes": 16, "largest_bytes": 16},
        "all-to-all": {"count": 1, "bytes": 24 + 3, "largest_bytes": 27},
        "all-reduce": {"count": 1, "bytes": 3 + 16, "largest_bytes": 19},
    }
    assert count_collectives("") == {} and count_collectives(None) is None
