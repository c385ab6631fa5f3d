"""Compilers' refusals, in their own words."""

import pytest

from jaxbench.modes.targets import is_refusal, needed_bytes

G, T = 2**30, 2**40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # libtpu of JAX 0.10.2: cnn10's batch of 131,072 on v2:2x2, and functions made to exceed.
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (11.13G) exceeds available HBM (7.48G).",
            int(11.13 * G),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (12.25T) exceeds available HBM (15.75G).",
            int(12.25 * T),
        ),
        (
            "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) "
            ":: #allocation2 [shape = 'u8[268435456]{0}', space=vmem, size = 0x10000000, scoped, "
            "tag = 'input window allocation for operator input 0.'] :: _lambda_.1",
            None,
        ),
        (
            "UNIMPLEMENTED: Stable sorting of more than 2^31-1 elements is not implemented",
            None,
        ),
        # The CUDA plugin of JAX 0.10.2: unet256's batch of 1,000,000,000 on gpu:h100:2.
        (
            "INTERNAL: RET_CHECK failure (xla/backends/gpu/codegen/fusion_emitter.cc:121) (limit.x "
            "== 0 || block_count.x <= limit.x) Kernel 'input_scatter_fusion_1' launch needs more "
            "blocks (2048000000850, 1) than allowed by hardware (2147483647, 65535).",
            None,
        ),
        # As users of libtpu report them, 2024 to 2026.
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 21.90G of 7.48G hbm. Exceeded hbm capacity by 14.42G.",
            int(21.9 * G),
        ),
        # Without figures.
        ("RESOURCE_EXHAUSTED: Out of memory", None),
    ],
)
def test_a_refusal_states_the_memory_that_a_step_needs(text, expected):
    assert is_refusal(text) and needed_bytes(text) == expected


def test_another_error_is_no_refusal():
    assert not is_refusal("INTERNAL: Mosaic failed to compile TPU kernel")
