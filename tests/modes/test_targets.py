"""--target: what a compiler says of a step, asked here of the one for CPUs."""

import contextlib
import json
from unittest import mock

import jax
import pytest

from jaxbench.cli import entry_point
from jaxbench.errors import RunFailed
from jaxbench.hardware.targets import target
from jaxbench.hardware.targets.target import parse_target
from jaxbench.launchers import local
from jaxbench.modes import targets
from jaxbench.modes.targets import needed_bytes, read_refusal
from jaxbench.parallel.child import ProcessResult
from jaxbench.records.reader import load_run
from jaxbench.schema import TargetRecord
from tests.conftest import MICRO, table
from tests.launchers.fakes import fake_child

DESCRIBE = (f"--experiment={MICRO}", "--mode=describe")
MEMORY = (f"--experiment={MICRO}", "--mode=memory")


@pytest.fixture
def cpus(monkeypatch):
    """CPU devices in place of a target's."""

    def devices(target):
        return tuple(jax.devices()[: target.num_devices])

    monkeypatch.setattr(targets, "create_devices", devices)
    for module in (targets, target):
        monkeypatch.setattr(module, "compiler_version", lambda target: "some 1.0")


@pytest.fixture
def children(cpus, monkeypatch):
    """What children do is done here; an L4's compiler crashes, a T4's does not know the machine."""

    def compile(command, log, variables):
        _, spec, overrides = entry_point.take_experiment(command[2:])
        [name] = [arg.removeprefix("--target=") for arg in command if "--target=" in arg]
        if name.startswith("gpu:l4"):
            return ProcessResult("exited", "killed by SIGSEGV", 139, 1.0)
        if name == "gpu:t4":
            return ProcessResult("exited", "--target=gpu:t4: not known", 2, 1.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAXBENCH_TARGET_RESULT", variables["JAXBENCH_TARGET_RESULT"])
            config = entry_point.load_experiment(spec, overrides)
            targets.write_answer(config, name)
        return ProcessResult("exited", None, 0, 1.0)

    def run_trial(command, log, **limits):
        rest, spec, overrides = entry_point.take_experiment(command[2:])
        [name] = [arg.removeprefix("--target=") for arg in rest if "--target=" in arg]
        [run] = [arg.removeprefix("--workdir=") for arg in rest if "--workdir=" in arg]
        arguments = [f"--experiment={spec}", *overrides]
        config = entry_point.load_experiment(spec, overrides)
        try:
            with open(log, "w") as output, contextlib.redirect_stdout(output):
                targets.compile_for(name, config, run, arguments)
        except RunFailed as error:
            return ProcessResult("exited", str(error), 1, 1.0)
        return ProcessResult("exited", None, 0, 1.0)

    monkeypatch.setattr(targets, "run_child", compile)
    monkeypatch.setattr(local, "Child", fake_child(run_trial))


@pytest.fixture
def refusing(monkeypatch):
    """A compiler that refuses more than 96 images."""
    build_program, begin_compile = targets.build_program, targets.begin_compile
    words = "RESOURCE_EXHAUSTED: too large.\nUsed (11.13G) exceeds available HBM (7.48G)"
    refuse = mock.Mock(side_effect=jax.errors.JaxRuntimeError(words))

    def build(config, *args, **kwargs):
        how = refuse if config.batch_size > 96 else begin_compile
        monkeypatch.setattr(targets, "begin_compile", how)
        return build_program(config, *args, **kwargs)

    monkeypatch.setattr(targets, "build_program", build)


def test_a_step_that_the_compiler_refuses_does_not_fit(cpus, refusing):
    config = entry_point.load_experiment(MICRO, ["--experiment.batch_size=128"])
    record, network = targets.compile_for_target(config, parse_target("tpu:v5e:2x2"))
    assert network["parameters"] > 0
    assert not record.fits and record.memory is None
    assert record.needed_bytes == int(11.13 * 2**30)
    assert record.refusal.startswith("RESOURCE_EXHAUSTED: too large. Used (11.13G)")


def test_a_step_larger_than_what_jax_takes_of_a_gpu_does_not_fit(
    children, run_cli, monkeypatch, tmp_path
):
    monkeypatch.setattr("jaxbench.hardware.targets.target.GPU_MEMORY_FRACTION", 1e-6)
    done = run_cli(*MEMORY, "--target=gpu:h100", "--workdir=run")
    assert done.returncode == 1 and "GiB on each device and may use 0.00" in done.stderr
    assert any(line.split()[2:3] == ["no"] for line in done.stdout.splitlines())
    run = load_run(str(tmp_path / "run"))
    [record] = run.of_kind(TargetRecord)
    assert not record.fits and record.needed_bytes > record.device_memory_bytes
    assert run.document.status == "oom" and "may use" in run.document.reason


def test_a_run_directory_of_a_target(children, run_cli, tmp_path):
    done = run_cli(*MEMORY, "--target=gpu:h100:2", "--workdir=run")
    assert done.returncode == 0, done.stderr
    assert "Compiled, not measured" in done.stdout
    run = load_run(str(tmp_path / "run"))
    assert (run.document.mode, run.document.target) == ("compile", "gpu:h100:2")
    summary, [record] = run.document.summary, run.of_kind(TargetRecord)
    assert (record.target, record.origin, record.num_devices) == ("gpu:h100:2", "compiled", 2)
    assert record.fits and record.refusal is None and record.state_donated
    assert record.batch_per_device == 64 and record.collectives["all-reduce"]["count"] >= 1
    assert record.needed_bytes == record.memory["total_bytes"]
    assert summary["planned_bytes_per_device"] == record.needed_bytes
    assert "images_per_s" not in summary and summary["compile_s"] > 0
    assert summary["phases_s"]["compile"] > 0 and run.document.parameters > 0
    environment = run.document.environment
    assert (environment["device_kind"], environment["num_devices"]) == (record.device_kind, 2)


def test_a_crash_of_a_compiler_is_the_run_s_end_and_its_reason(children, run_cli, tmp_path):
    done = run_cli(*MEMORY, "--target=gpu:l4", "--workdir=run")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "jaxbench: gpu:l4: killed by SIGSEGV"
    document = load_run(str(tmp_path / "run")).document
    assert (document.status, document.target) == ("failed", "gpu:l4")


def test_an_error_of_a_compiler_is_one_line(cpus, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXBENCH_TARGET_RESULT", str(tmp_path / "result.json"))
    error = OverflowError("Python int 8589934592 too large\nat batch_norm.py")
    monkeypatch.setattr(targets, "begin_compile", mock.Mock(side_effect=error))
    config = entry_point.load_experiment(MICRO)
    targets.write_answer(config, "gpu:h100")
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["failed"] == "OverflowError: Python int 8589934592 too large"


def test_a_step_that_the_compiler_does_not_support_is_not_one_that_does_not_fit(
    children, run_cli, monkeypatch, tmp_path
):
    error = jax.errors.JaxRuntimeError(UNSUPPORTED)
    monkeypatch.setattr(targets, "begin_compile", mock.Mock(side_effect=error))
    words = UNSUPPORTED.partition("\n")[0]
    done = run_cli(*DESCRIBE, "--target=gpu:h100", "--json")
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["not_predicted"] == "the compiler does not support it"
    assert record.get("fits") is None and record["refusal"] == words
    done = run_cli(*MEMORY, "--target=gpu:h100", "--workdir=run")
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"jaxbench: gpu:h100: {words}"
    assert "unsupported" in done.stdout and "fit:" not in done.stdout
    run = load_run(str(tmp_path / "run"))
    [record] = run.of_kind(TargetRecord)
    assert record.fits is None and run.document.status == "failed"
    search = ("--find_max_batch", "--target=gpu:h100", "--sweepdir=sweep")
    assert run_cli(f"--experiment={MICRO}", *search, module="jaxbench.sweep").returncode == 1
    [row] = table(tmp_path / "sweep" / "max_batch.csv")
    assert row["status"] == "failed" and words in row["reason"]


def test_other_errors_of_a_compiler_are_lines(children, run_cli, monkeypatch):
    error = NotImplementedError("Unsupported sequence length Q 63, KV 63.")
    monkeypatch.setattr(targets, "begin_compile", mock.Mock(side_effect=error))
    done = run_cli(*DESCRIBE, "--target=gpu:h100")
    told = "gpu:h100: failed: NotImplementedError: Unsupported sequence length Q 63, KV 63."
    assert done.returncode == 1 and told in " ".join(done.stdout.split())


def test_a_target_has_the_attention_of_its_devices(children, run_cli, refused, tmp_path):
    tiny = ("--experiment=gpt_bytes:tiny", "--mode=memory", "--experiment.precision=bf16")
    even, odd = ((), ("--experiment.data.sequence_length=63",))
    cudnn = ("--experiment.model.attention=cudnn",)
    told = "model.attention='cudnn': it is for an even number of tokens, not 63"
    refused(*tiny, *odd, *cudnn, "--target=gpu:h100", told=told)
    why = "cudnn is for an even number of tokens, not 63"
    # This compiler crashes.
    for name, more, expected in (
        ("even", even, ("cudnn", "chosen without timing")),
        ("odd", odd, ("xla", why)),
    ):
        run_cli(*tiny, *more, "--target=gpu:l4", f"--workdir={name}")
        document = load_run(str(tmp_path / name)).document
        assert (document.attention, document.attention_reason) == expected
    run_cli(*tiny, *cudnn, "--target=gpu:l4", "--workdir=asked")
    assert load_run(str(tmp_path / "asked")).document.attention == "cudnn"


def test_ever_more_devices_of_a_target(children, run_cli, tmp_path):
    args = ("--mode=scaling", "--target=gpu:h100:2x2", "--experiment.batch_size=64")
    done = run_cli(f"--experiment={MICRO}", *args, "--workdir=run")
    assert done.returncode == 0, done.stderr
    records = load_run(str(tmp_path / "run")).of_kind(TargetRecord)
    found = [(r.scaling, r.target, r.batch_size) for r in records]
    assert found == [
        *(("weak", f"gpu:h100:1x{n}", 16 * n) for n in (1, 2)),
        ("weak", "gpu:h100:2x2", 64),
        *(("strong", f"gpu:h100:{size}", 64) for size in ("1x1", "1x2", "2x2")),
    ]
    for record in records:
        if record.num_devices > 1:
            assert record.collectives["all-reduce"]["bytes"] > 0
    # Weak and strong scaling end in the same step: it is compiled once.
    assert done.stdout.count("compiling for gpu:h100:2x2, batch 64 ...") == 1


def test_a_table_over_targets(children, run_cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run_cli(*DESCRIBE, "--target=gpu:titanx,gpu:h100:2,gpu:l4")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    predicted, titan = [line for line in lines if line.lstrip().startswith("gpu:titanx ")]
    assert "yes" in titan.split() and predicted.split()[1] == "128"
    assert "gpu:l4: failed: killed by SIGSEGV" in lines
    assert max(map(len, lines)) <= 80
    # The layers and totals of the network, and what its step does on each target.
    assert any(line.split()[:2] == ["layer", "kind"] for line in lines)
    facts = lines[lines.index("gpu:h100:2: the step on each device") :]
    assert facts[1].startswith("  collectives: ") and "all-reduce (0.0" in facts[1]
    assert facts[3] == "  state: donated whole"
    done = run_cli(*DESCRIBE, "--target=gpu:h100:2", "--json")
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["num_devices"] == 2 and done.returncode == 0
    assert record["origin"] == "compiled" and "predicted" in record


def test_a_sweep_over_targets(children, run_cli, tmp_path):
    grid = ("--grid=batch_size=64,128", "--sweepdir=sweep")
    args = (f"--experiment={MICRO}", "--target=gpu:h100:2,gpu:l4", *grid)
    done = run_cli(*args, module="jaxbench.sweep")
    assert done.returncode == 1, done.stderr  # the L4's compiler crashed
    rows = table(tmp_path / "sweep" / "sweep.csv")
    assert [(r["batch_size"], r["target"], r["status"]) for r in rows] == [
        ("64", "gpu:h100:2", "done"),
        ("64", "gpu:l4", "failed"),
        ("128", "gpu:h100:2", "done"),
        ("128", "gpu:l4", "failed"),
    ]
    assert rows[0]["images_per_s"] == ""
    assert rows[0]["device_kind"] == "NVIDIA H100 80GB HBM3"
    assert int(rows[0]["needed_bytes_per_device"]) > 0
    assert "needed [GiB]" in done.stdout


def test_a_machine_that_only_its_compiler_does_not_know(children, run_cli, tmp_path):
    """Alone it is bad input; beside others, whose compiling took minutes, a line."""
    for args in (DESCRIBE, (*MEMORY, "--workdir=other")):
        done = run_cli(*args, "--target=gpu:t4")
        assert done.returncode == 2 and not (tmp_path / "other").exists()
        assert done.stderr.splitlines()[-1] == "jaxbench: --target=gpu:t4: not known"
    done = run_cli(*DESCRIBE, "--target=gpu:t4,gpu:h100:2", "--json")
    failed, record = json.loads(done.stdout.splitlines()[-1])
    assert failed["target"] == "gpu:t4" and failed["failed"] == "--target=gpu:t4: not known"
    assert done.returncode == 1 and record["fits"]


def test_the_largest_batch_on_a_target(children, refusing, run_cli, tmp_path):
    search = ("--find_max_batch", "--batch_multiple=32", "--experiment.batch_size=64")
    args = (f"--experiment={MICRO}", "--target=tpu:v5e:2x2", *search, "--sweepdir=sweep")
    done = run_cli(*args, module="jaxbench.sweep")
    assert done.returncode == 0, done.stderr
    [row] = table(tmp_path / "sweep" / "max_batch.csv")
    assert (row["max_batch"], row["smallest_too_large"]) == ("96", "128")
    assert "(11.13G) exceeds available HBM" in row["reason"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--target=gpu:h100,gpu:h100",), "names gpu:h100 twice"),
        (("--target=gpu:h10",), "did you mean 'h100'?"),
        (("--target=gpu:h100:3", "--experiment.batch_size=64"), "does not divide over 3 devices"),
        (("--target=gpu:h100", "--mode=memory", "--feed=resident"), "--feed with --target"),
        (("--target=gpu:h100", "--mode=train"), "--mode=describe or memory or scaling"),
        (("--target=gpu:h100,gpu:v100", "--mode=memory"), "must be one machine"),
        (("--target=gpu:h100", "--experiment.batch_size=-8"), "must be within [1, 2147483647]"),
        (("--target=gpu:h100:8", "--mode=memory", "--experiment.num_devices=4"), "num_devices=4"),
        (("--target=",), "--target=: must name"),
        (("--target=gpu:h100,",), "must name machines"),
    ],
)
def test_a_target_that_cannot_be_asked_is_refused(children, refused, args, told):
    refused(*DESCRIBE, *args, told=told)
    if not any(arg.startswith("--mode") for arg in args):
        refused(f"--experiment={MICRO}", *args, module="jaxbench.sweep", told=told)


def test_a_target_is_for_a_network_and_its_grid_for_its_fields(children, refused):
    describe = ("--experiment=conv2d:tiny", "--mode=describe")
    refused(*describe, "--target=gpu:h100", told="trains no network")
    refused(f"--experiment={MICRO}", "--target=gpu:h100", told="--mode=describe")
    sweep = (f"--experiment={MICRO}", "--target=gpu:h100", "--sweepdir=sweep")
    for axis, told in (
        ("num_devices=1,2", "num_devices=... with"),
        ("target=a,b", "give --target"),
    ):
        refused(*sweep, f"--grid={axis}", module="jaxbench.sweep", told=told)


def test_a_training_has_the_price_of_just_its_machine(run_cli, refused, tmp_path):
    (tmp_path / "prices.csv").write_text(
        "offer,hardware,devices,usd_per_hour,date,source\n"
        "a,NVIDIA H200,1,3.6,2026,web\nb,NVIDIA A100-SXM4-80GB,8,36,2026,web\n"
    )
    args = ("--experiment=resnet50_synthetic", "--experiment.epochs=2", "--mode=describe")
    targets = ("--target=gpu:a100:8,gpu:h200,gpu:a100", "--prices=prices.csv")
    done = run_cli(*args, *targets, "--json")
    assert done.returncode == 0, done.stderr
    eight, h200, one = (answer["predicted"] for answer in json.loads(done.stdout))
    assert h200["training_usd"] == pytest.approx(h200["training_s"] / 1000)
    assert h200["training_usd_low"] < h200["training_usd"] < h200["training_usd_high"]
    assert eight["training_usd"] == pytest.approx(eight["training_s"] / 100)
    assert "training_usd" not in one
    refused(*args, "--target=gpu:h100", "--prices=prices.csv", told="no offer of just gpu:h100")
    refused(*args, *targets, "--usd_per_hour=1", told="--usd_per_hour and --prices: give one")


def test_without_a_compiler_the_rate_is_predicted(run_cli, refused, monkeypatch, tmp_path):
    package = tmp_path / "packages" / "jax_cuda12_plugin-0.1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: jax-cuda12-plugin\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(package.parent)
    told = "jax-cuda12-plugin 0.1.0 does not go with jaxlib"
    resnet50 = "--experiment=resnet50:synthetic"
    args = (resnet50, "--mode=scaling", "--scaling=weak", "--target=gpu:h100:2", "--workdir=run")
    done = run_cli(*args, "--usd_per_hour=3.6")
    assert done.returncode == 0 and f"not compiled: {told}" in " ".join(done.stdout.split())
    run = load_run(str(tmp_path / "run"))
    one, two = run.of_kind(TargetRecord)
    assert (one.num_devices, two.num_devices, two.origin) == (1, 2, "predicted")
    assert (
        one.fits is None and one.compiler is None and "usd_per_million_images" not in one.predicted
    )
    predicted = two.predicted
    assert predicted["usd_per_million_images"] == pytest.approx(1e3 / predicted["images_per_s"])
    ratio = predicted["images_per_s"] / one.predicted["images_per_s"]
    assert one.predicted["efficiency"] == 1 and predicted["efficiency"] == pytest.approx(ratio / 2)
    assert run.document.parameters > 25e6 and run.document.price is None
    low = run.document.summary["predicted_images_per_s_low"]
    assert low == predicted["images_per_s_low"] < predicted["images_per_s"]
    # What cannot fit is a result too.
    large = (resnet50, "--experiment.batch_size=8192", "--target=gpu:rtx3090")
    done = run_cli(*large, "--mode=memory", "--workdir=large")
    assert done.returncode == 1 and "it runs out of memory" in done.stderr
    assert load_run(str(tmp_path / "large")).document.status == "oom"
    search = ("--find_max_batch", "--target=gpu:h100", "--sweepdir=sweep")
    refused(resnet50, *search, module="jaxbench.sweep", told=told)


def test_the_list_of_targets_needs_no_experiment(run_cli):
    alone = run_cli("--target=list")
    assert alone.returncode == 0, alone.stderr
    assert "tpu:v5e:2x2[ or another size up to 256 chips]" in alone.stdout.splitlines()
    for args in (("--target", "list"), ("--target=list", f"--experiment={MICRO}")):
        assert run_cli(*args).stdout == alone.stdout
    assert run_cli("--target=gpu:h100").returncode == 2


# The CUDA plugin of JAX 0.12.0: a product of bf16 by name, for a T4.
UNSUPPORTED = """UNIMPLEMENTED: Unsupported algorithm on the device(s): ALG_DOT_BF16_BF16_F32
\t

Suspected Python Code Location:
  models/transformer_block.py:169:15 [attend]
  <frozen runpy>:198:11 [_run_module_as_main]

[xla::PythonStackTrace='']"""
HBM = "Ran out of memory on HBM, the total memory required for HLO temporaries"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # libtpu of JAX 0.10.2: cnn10's batch of 131,072 on v2:2x2, and functions made to exceed.
        (f"{HBM} (11.13G) exceeds available HBM (7.48G).", 11.13 * 2**30),
        (f"{HBM} (12.25T) exceeds available HBM (15.75G).", 12.25 * 2**40),
        ("Allocation (size=268435456) would exceed memory (size=134217728), space=vmem", None),
        # As users of libtpu report it, 2024 to 2026.
        ("Ran out of memory in memory space hbm. Used 21.90G of 7.48G hbm.", 21.9 * 2**30),
        ("Out of memory", None),
    ],
)
def test_a_compilers_refusal_states_the_memory_that_a_step_needs(text, expected):
    text = f"RESOURCE_EXHAUSTED: {text}"
    assert read_refusal(text) == (text, False)
    assert needed_bytes(text) == (expected and int(expected))


def test_a_compilers_other_refusals_and_what_is_none():
    # The CUDA plugin of JAX 0.10.2: unet256's batch of 1,000,000,000 on gpu:h100:2.
    blocks = (
        "INTERNAL: RET_CHECK failure (xla/backends/gpu/codegen/fusion_emitter.cc:121) (limit.x == 0"
        " || block_count.x <= limit.x) Kernel 'input_scatter_fusion_1' launch needs more blocks "
        "(2048000000850, 1) than allowed by hardware (2147483647, 65535)."
    )
    assert read_refusal(blocks) == (blocks, False) and needed_bytes(blocks) is None
    assert read_refusal(UNSUPPORTED) == (UNSUPPORTED.partition("\n")[0], None)
    assert read_refusal("INTERNAL: Mosaic failed to compile TPU kernel") is None
