"""--target: what a compiler says of a step, asked here of the one for CPUs."""

import json

import jax
import pytest

from jaxbench.cli import entry_point
from jaxbench.distributed.child import ProcessResult
from jaxbench.hardware.targets import topology
from jaxbench.hardware.targets.target import parse_target
from jaxbench.jobs import describe_targets, target_step
from jaxbench.records.schema import record_from_json
from tests.conftest import MICRO, needs_devices

DESCRIBE = (f"--experiment={MICRO}", "--mode=describe")


@pytest.fixture
def cpus(monkeypatch):
    """CPU devices in place of a target's; a child of this process runs in it."""

    def devices(target, bytes_per_s):
        needs_devices(target.num_devices)
        return tuple(jax.devices()[: target.num_devices])

    monkeypatch.setattr(target_step, "create_devices", devices)
    for module in (describe_targets, target_step):
        monkeypatch.setattr(module, "compiler_version", lambda target: "some 1.0")


def test_a_step_is_described_for_a_target(cpus):
    config = entry_point.load_experiment(MICRO, ["--experiment.batch_size=64"])
    found = target_step.compile_for_target(config, parse_target("gpu:rtx2080ti:2"))
    record = record_from_json({"kind": "target", **json.loads(json.dumps(found))})
    assert (record.target, record.origin, record.num_devices) == ("gpu:rtx2080ti:2", "compiled", 2)
    assert record.fits and record.refusal is None and record.state_donated
    assert record.batch_per_device == 32 and record.collectives["all-reduce"]["count"] >= 1
    ceiling = record.ceiling
    assert ceiling["origin"] == "predicted" and ceiling["peak"]["kind"] == "GeForce RTX 2080 Ti"
    least_s = record.flops_per_image * 32 / 13.4e12
    assert ceiling["least_s"]["compute"] == pytest.approx(least_s)
    assert ceiling["images_per_s"] == pytest.approx(64 / max(ceiling["least_s"].values()))


def test_a_step_that_the_compiler_refuses_does_not_fit(cpus, monkeypatch):
    def refuse(*args):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: (11.13G) exceeds\navailable HBM")

    monkeypatch.setattr(target_step, "compile_with_text", refuse)
    config = entry_point.load_experiment(MICRO)
    found = target_step.compile_for_target(config, parse_target("tpu:v5e:2x2"))
    record = record_from_json({"kind": "target", **found})
    assert not record.fits and record.memory is None
    assert record.refusal == "RESOURCE_EXHAUSTED: (11.13G) exceeds available HBM"


def test_a_step_larger_than_what_jax_takes_of_a_gpu_does_not_fit(cpus, monkeypatch):
    monkeypatch.setattr(target_step, "_GPU_MEMORY_SHARE", 1e-6)
    config = entry_point.load_experiment(MICRO)
    found = target_step.compile_for_target(config, parse_target("gpu:h100"))
    assert not found["fits"] and found["memory"]["total_bytes"] > found["device_memory_bytes"]


@pytest.fixture
def children(cpus, monkeypatch):
    """What a child finds is found in this process; that for an L4 crashes."""

    def run_child(command, log, variables):
        assert variables["JAX_PLATFORMS"] == "cpu"
        [name] = [arg.removeprefix("--target=") for arg in command if "--target=" in arg]
        if name == "gpu:l4":
            return ProcessResult("exited", "killed by SIGSEGV", 139, 1.0)
        _, spec, overrides = entry_point.take_experiment(command[2:-3])
        config = entry_point.load_experiment(spec, overrides)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAXBENCH_TARGET_RESULT", variables["JAXBENCH_TARGET_RESULT"])
            assert describe_targets.describe_targets(config, name, (), as_json=False) == 0
        return ProcessResult("exited", None, 0, 1.0)

    monkeypatch.setattr(describe_targets, "run_child", run_child)


def test_a_table_over_targets(children, run_cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run_cli(*DESCRIBE, "--target=gpu:titanx,gpu:h100:2,gpu:l4")
    assert done.returncode == 1, done.stderr
    [titan] = [line for line in done.stdout.splitlines() if line.startswith(" gpu:titanx")]
    assert titan.split()[1:3] == ["128", "yes"] and "gpu:l4: killed by SIGSEGV" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = run_cli(*DESCRIBE, "--target=gpu:h100:2", "--json")
    [record] = json.loads(done.stdout)
    assert record["num_devices"] == 2 and done.returncode == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--target=gpu:h100,gpu:h100",), "names gpu:h100 twice"),
        (("--target=gpu:h10",), "did you mean 'h100'?"),
        (("--target=gpu:h100:3", "--experiment.batch_size=64"), "does not divide over 3 devices"),
    ],
)
def test_what_cannot_be_asked(children, run_cli, args, words):
    done = run_cli(*DESCRIBE, *args)
    assert done.returncode == 2 and done.stdout == ""
    assert words in done.stderr.splitlines()[-1]


def test_a_target_is_for_describing_a_network(run_cli):
    done = run_cli("--experiment=conv2d:tiny", "--mode=describe", "--target=gpu:h100")
    assert done.returncode == 2 and "conv2d:tiny trains no network" in done.stderr
    done = run_cli(f"--experiment={MICRO}", "--target=gpu:h100")
    assert done.returncode == 2 and "--mode=describe" in done.stderr
    assert "tpu:v5e:2x2" in run_cli(f"--experiment={MICRO}", "--target=list").stdout.splitlines()


def test_the_variables_of_a_process_that_compiles_for_tpus():
    variables = topology.environment(parse_target("tpu:v5e:2x4"))
    assert variables["TPU_ACCELERATOR_TYPE"] == "v5litepod-4"
