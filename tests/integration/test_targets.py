"""--target with real compilers, on a machine without such a device."""

import json
import os

import pytest

from jaxbench.hardware.targets.target import environment, list_targets, parse_target
from jaxbench.modes.kernels import read_rows
from jaxbench.modes.targets import needed_bytes
from tests.integration.conftest import run_program

# By platform, a Python that has jaxbench[tpu], or jaxbench[cuda12] or [cuda13].
PYTHONS = {"tpu": os.environ.get("JAXBENCH_TEST_TPU"), "gpu": os.environ.get("JAXBENCH_TEST_GPU")}
LISTED = [name.split("[")[0] for name in list_targets()]
# CUDA 13 compiles for none of the older ones.
GPUS = {True: [], False: []}
for gpu in (name for name in LISTED if name.startswith("gpu:")):
    GPUS[float(parse_target(gpu).specs["compute_capability"]) >= 7.5].append(gpu)
# Each TPU needs a start of its compiler: these with each change, the others once a week.
NOW = ("tpu:v5e:2x2", "tpu:tpu7x:2x2x1")
# Compiles a convolution for targets, and prints the devices of each; for TPUs a program that is too
# large as well, and prints the bytes that the refusal says are available.
CONVOLUTION = """
import re
import sys
import jax
from jax.sharding import SingleDeviceSharding
from jaxbench.hardware.targets.target import compiler_version, parse_target
from jaxbench.modes.targets import create_devices

for name in sys.argv[1:]:
    target = parse_target(name)
    compiler_version(target)
    device, *others = create_devices(target)
    shapes = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=SingleDeviceSharding(device))
        for shape in ((16, 16, 16, 64), (64, 64, 3, 3))
    ]
    layout = ("NHWC", "OIHW", "NHWC")
    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)
    jax.jit(convolve).lower(*shapes).compile()
    usable_bytes = target.usable_bytes
    if target.platform == "tpu":
        large = jax.ShapeDtypeStruct((usable_bytes // 3,), "float32", sharding=shapes[0].sharding)
        try:
            jax.jit(lambda x: jax.numpy.sin(x[::-1])).lower(large).compile()
        except jax.errors.JaxRuntimeError as error:
            size = re.search(r"exceeds available HBM \\(([0-9.]+)G|of ([0-9.]+)G hbm", str(error))
            usable_bytes = int(float(size[1] or size[2]) * 2**30)
    print(target.name, 1 + len(others), device.device_kind, usable_bytes, sep=",")
"""


def python_for(target):
    platform = target.split(":")[0]
    if not PYTHONS[platform]:
        pytest.skip(f"JAXBENCH_TEST_{platform.upper()} names no Python that has its compiler")
    return PYTHONS[platform]


def run(python, *args, variables=None, cwd=None):
    return run_program([python, *args], cwd=cwd, env=variables)


def describe(target, *args):
    args = ("-m", "jaxbench.main", "--mode=describe", "--json", f"--target={target}", *args)
    done = run(python_for(target), *args)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "names",
    [
        *(
            pytest.param([name], marks=[] if name in NOW else [pytest.mark.slow])
            for name in LISTED
            if name.startswith("tpu:")
        ),
        GPUS[True],
        GPUS[False],
    ],
    ids=lambda names: {GPUS[True][0]: "gpus", GPUS[False][0]: "gpus before Turing"}.get(
        names[0], names[0]
    ),
)
def test_every_listed_machine_is_one_that_its_compiler_knows(names):
    targets = [parse_target(name) for name in names]
    variables = environment(targets[0])
    done = run(python_for(names[0]), "-c", CONVOLUTION, *names, variables=variables)
    if "jax-cuda13-plugin compiles for no GPU of" in done.stderr:
        assert names == GPUS[False]
        pytest.skip("JAXBENCH_TEST_GPU names a Python with jaxbench[cuda13]")
    assert done.returncode == 0, done.stderr[-2000:]
    for line, target in zip(done.stdout.splitlines(), targets, strict=True):
        *described, usable_bytes = line.split(",")
        assert described == [target.name, str(target.num_devices), target.kind]
        # Releases of libtpu differ by some megabytes.
        assert int(usable_bytes) == pytest.approx(target.usable_bytes, rel=1e-3)


@pytest.mark.parametrize("target", ["tpu:v2:2x2", "gpu:h100:2"])
def test_what_compilers_and_plugins_say_is_not_on_the_console(target, tmp_path):
    args = ("--experiment=quickstart:tiny", "--mode=memory", f"--target={target}")
    done = run(python_for(target), "-m", "jaxbench.main", *args, "--workdir=run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("compiling for ") and lines[-1].startswith("report: "), lines


def test_the_compiler_refuses_a_batch_that_does_not_fit():
    args = ("--experiment=cnn10", "--experiment.batch_size=131072", "--experiment.precision=bf16")
    record = describe("tpu:v2:2x2", *args)
    assert record["num_devices"] == 8 and record["compiler"].startswith("libtpu ")
    assert not record["fits"] and record["needed_bytes"] == needed_bytes(record["refusal"])
    assert record["needed_bytes"] > record["device_memory_bytes"] > 7 * 2**30


@pytest.mark.parametrize("gpu", ["gpu:h100", "gpu:t4"])
def test_transformers_in_bf16_compile_for_gpus(gpu):
    """With an odd number of tokens too, and for GPUs that multiply no bf16."""
    tiny = ("--experiment=gpt_bytes:tiny", "--experiment.precision=bf16")
    for tokens, has_cudnn in ((64, gpu == "gpu:h100"), (63, False)):
        record = describe(gpu, *tiny, f"--experiment.data.sequence_length={tokens}")
        assert record["fits"] and ("__cudnn$fmhaSoftmax" in record["custom_calls"]) == has_cudnn


def test_fp8_products_are_products_of_fp8():
    """If XLA knows CUDA's version; it would write them in bf16."""
    program = """
import jax
from jax.sharding import SingleDeviceSharding
from jaxbench.hardware.targets.target import parse_target
from jaxbench.modes.targets import create_devices

[device] = create_devices(parse_target("gpu:h100"))
sharding = SingleDeviceSharding(device)
x = jax.ShapeDtypeStruct((512, 512), "float8_e4m3fn", sharding=sharding)
def product(x):
    return jax.numpy.dot(x, x.T, preferred_element_type="bfloat16")
print(jax.jit(product).lower(x).compile().as_text())
"""
    variables = environment(parse_target("gpu:h100"))
    # Without a device to try kernels on, XLA takes Triton's.
    variables["XLA_FLAGS"] = "--xla_gpu_enable_triton_gemm=false"
    done = run(python_for("gpu:h100"), "-c", program, variables=variables)
    assert "__cublas$lt$matmul$f8" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("target", "operations", "expected"),
    [
        (
            "tpu:v5e:1x1",
            "product_bf16,fused_attention,ragged_product",
            ["fused product", "library", "library"],
        ),
        (
            "gpu:h100",
            "product_fp8,product_mxfp8,fused_attention,ragged_product,conv_transposed,top_k",
            ["fused product", "naive loop", "library", "dense detour", "dense detour", "library"],
        ),
    ],
)
def test_kernels_of_a_machine_that_is_not_here(tmp_path, target, operations, expected):
    flags = [f"--target={target}", f"--operation={operations}", "--out=kernels.csv"]
    command = [python_for(target), "-m", "jaxbench.kernels", *flags]
    done = run_program(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path / "kernels.csv")
    assert [row.operation for row in rows] == operations.split(",")
    assert [row.found for row in rows] == expected
    if target.startswith("gpu"):
        assert "$f8" in rows[0].calls_without_triton and rows[3].factor == 8
    else:
        assert rows[0].estimated_fraction == 1
