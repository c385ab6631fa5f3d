"""What is read in a compiled program's text: real ones, and texts as GPUs and TPUs have them."""

import jax
import pytest

from jaxbench.training.compilation import compile_step
from jaxbench.xla.hlo import Calls, count_calls, count_collectives
from tests.compiled_work import Work, count_work
from tests.conftest import MICRO, program_of, step_args


@pytest.mark.parametrize("parallelism", ["pmap", "shard_map"])
def test_the_gradient_is_reduced_in_few_collectives(parallelism):
    program = program_of(MICRO, num_devices=2, model__hidden=(8, 8), parallelism=parallelism)
    state = program.abstract_placed_state()
    record = compile_step("train_step", program.train_step, state, *step_args(program))
    assert set(record.collectives) == {"all-reduce"}
    reduced = record.collectives["all-reduce"]
    assert 1 <= reduced["count"] <= 3
    # Beside it the running averages (two for each of 3 norms) and four metrics.
    averages = sum(leaf.size for leaf in jax.tree.leaves(state.batch_stats))
    assert reduced["bytes"] == 4 * (program.network.analysis.num_parameters + averages + 4)
    mean_bytes = reduced["bytes"] / reduced["count"]
    assert mean_bytes <= reduced["largest_bytes"] <= reduced["bytes"]


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


# Activations have 512 values here: one is written in another order, one as another type.
WORK = """
HloModule jit_step, is_scheduled=true

%fused_relu (p: bf16[4,8,16]) -> bf16[4,8,16] {
  %p = bf16[4,8,16]{2,1,0} parameter(0)
  %c = f32[4,8,16]{2,1,0} convert(%p)
  %m = f32[4,8,16]{2,1,0} maximum(%c, %c)
  ROOT %r = bf16[4,8,16]{2,1,0} convert(%m)
}

%fused_convert (p: bf16[4,8,16]) -> f32[4,8,16] {
  %p.1 = bf16[4,8,16]{2,1,0} parameter(0)
  ROOT %r.1 = f32[4,8,16]{2,1,0} convert(%p.1)
}

%body (s: (bf16[4,8,16])) -> (bf16[4,8,16]) {
  %s = (bf16[4,8,16]{2,1,0}) parameter(0)
  %g = bf16[4,8,16]{2,1,0} get-tuple-element(%s), index=0
  %turned = bf16[4,8,16]{0,1,2} copy(%g)
  ROOT %t = (bf16[4,8,16]{2,1,0}) tuple(%turned)
}

%never_called (p: bf16[4,8,16]) -> bf16[4,8,16] {
  %p.2 = bf16[4,8,16]{2,1,0} parameter(0)
  ROOT %k = bf16[4,8,16]{0,1,2} copy(%p.2)
}

ENTRY %main (x: bf16[4,8,16], w: bf16[9]) -> f32[4,8,16] {
  %x = bf16[4,8,16]{2,1,0} parameter(0), metadata={op_name="copy(transpose)"}
  %w = bf16[9]{0} parameter(1)
  %conv = (bf16[4,8,16]{2,1,0}, u8[0]{0}) custom-call(%x, %w), custom_call_target="__cudnn$conv"
  %gte = bf16[4,8,16]{2,1,0} get-tuple-element(%conv), index=0
  %relu = bf16[4,8,16]{2,1,0} fusion(%gte), kind=kLoop, calls=%fused_relu
  %pair = (bf16[4,8,16]{2,1,0}) tuple(%relu)
  %loop = (bf16[4,8,16]{2,1,0}) while(%pair), condition=%cond, body=%body
  %gte.1 = bf16[4,8,16]{2,1,0} get-tuple-element(%loop), index=0
  %w2 = bf16[9]{0} copy(%w)
  ROOT %wide = f32[4,8,16]{2,1,0} fusion(%gte.1), kind=kLoop, calls=%fused_convert
}
"""


def test_work_is_counted_where_it_reaches_memory():
    assert count_calls(WORK) == Calls({"__cudnn$conv": 1}, 0)
    # conv, relu, copy, copy of the kernel, convert.
    moved_bytes = (1024 + 18 + 1024) + 2048 + 2048 + 36 + 3072
    assert count_work(WORK, {512}) == Work(transposes=1, converts=1, moved_bytes=moved_bytes)
    assert count_work(WORK, {9}) == Work(transposes=1, converts=0, moved_bytes=moved_bytes)


def test_a_loop_counts_as_often_as_it_runs():
    estimate = ', backend_config={"estimated_cycles":"7"}'
    outside = WORK.replace("calls=%fused_relu", f"calls=%fused_relu{estimate}")
    known = 'body=%body, backend_config={"known_trip_count":{"n":"4"}}'
    both = outside.replace("copy(%g)", f"copy(%g){estimate}").replace("body=%body", known)
    cycles = [count_calls(text).estimated_cycles for text in (WORK, outside, both)]
    assert cycles == [0, 7, 7 + 4 * 7]
    once, looped = (count_work(text, {512}) for text in (WORK, both))
    assert looped == once._replace(moved_bytes=once.moved_bytes + 3 * 2048)


@pytest.mark.parametrize(
    "bound, root, runs",
    [
        ("s32[] constant(4)", "bitcast(%less)", 4),
        ("s32[] constant(4)", "and(%less, %go)", 1),
        ("pred[] constant(true)", "bitcast(%less)", 1),
    ],
)
def test_a_loop_that_does_not_tell_how_often_it_runs_is_asked_for_its_end(bound, root, runs):
    """As of a TPU: the condition has the constant that a counter stays below."""
    condition = f"""
%cond (s: (bf16[4,8,16])) -> pred[] {{
  %end = {bound}
  %i = s32[] parameter(0)
  %less = pred[] compare(%i, %end), direction=LT
  ROOT %on = pred[] {root}
}}
"""
    estimated = WORK.replace("copy(%g)", 'copy(%g), backend_config={"estimated_cycles":"7"}')
    assert count_calls(condition + estimated).estimated_cycles == 7 * runs


def test_a_branch_that_need_not_run_moves_nothing():
    text = """
%branch (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  ROOT %n = f32[256]{0} negate(%p)
}

ENTRY %main {
  %a = f32[256]{0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %c = f32[256]{0} conditional(%i, %a, %a), branch_computations={%branch, %branch}
}
"""
    assert count_work(text, ()).moved_bytes == 0
