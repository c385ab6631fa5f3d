"""The scripts in benchmarks/ run; what they print is a ratio of one interleaved run."""

import contextlib
import functools
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import types

import psutil
import pytest
from absl import flags
from conftest import OPTIMIZED, ROOT, UNOPTIMIZED

from jaxbench.config import OptimizerConfig
from jaxbench.errors import BadInput


def test_the_training_loop_keeps_up_with_the_bare_step():
    """Far below what is measured (BUILD_NOTES.md): this only catches a loop that blocks."""
    script = ROOT / "benchmarks" / "loop_overhead.py"
    done = subprocess.run(
        [sys.executable, str(script), "--experiment=quickstart", "--rounds=9", "--min_ratio=0.8"],
        capture_output=True,
        text=True,
        env=os.environ | OPTIMIZED,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ratio = re.search(r"loop / bare +(\d\.\d+)", done.stdout)
    assert ratio and 0.5 < float(ratio[1]) < 1.5


def test_the_start_up_is_split_into_parts_that_add_up():
    script = ROOT / "benchmarks" / "startup.py"
    done = subprocess.run(
        [sys.executable, str(script), "--experiment=quickstart:tiny", "--rounds=1"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled 2, eval_step traced 1, train_step traced 1" in done.stdout
    assert done.stdout.endswith("--max_ratio=1: within\n")
    rows = dict(re.findall(r"^([a-z ]+?) +(\d+\.\d+) ", done.stdout, re.MULTILINE))
    assert {"interpreter", "imports", "lower", "compile", "first step"} <= set(rows)
    # What is left out is the end of the process.
    assert 0.7 < float(rows["sum"]) / float(rows["whole process"]) < 1.02
    ratio = re.search(r"^warm / cold.*: (\d\.\d+) ", done.stdout, re.MULTILINE)
    assert 0.05 < float(ratio[1]) < 1


@pytest.fixture
def load_script(monkeypatch):
    """Imports a script. Its flags are set aside: other programs in this process have the same."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    own, loaded = flags.FlagValues(), []
    for name in dir(flags):
        if name.startswith("DEFINE_"):
            define = functools.partial(getattr(flags, name), flag_values=own)
            monkeypatch.setattr(flags, name, define)

    def load(name):
        module = importlib.import_module(name)
        loaded.append(name)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


def test_a_ratio_is_judged_by_its_whole_interval(load_script):
    judge = load_script("startup").judge
    assert judge(0.35, 0.4, 0.4) == "within"
    assert judge(0.35, 0.41, 0.4) == judge(0.4, 0.41, 0.4) == "cannot be told"
    assert judge(0.41, 0.42, 0.4) == "above"


def startup(*args):
    return [sys.executable, str(ROOT / "benchmarks" / "startup.py"), "--rounds=1", *args]


def test_what_a_start_refuses_is_told_in_its_one_line():
    wrong = ("--experiment=quickstart", "--experiment.batch_size=100000")
    done = subprocess.run(startup(*wrong), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"jaxbench: .*batch_size=100000.*\n", done.stderr)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at what runs, on Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_ends_with_the_script(tmp_path, number):
    script = subprocess.Popen(
        startup("--experiment=quickstart"),
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        started, until = [], time.monotonic() + 60
        while not started and time.monotonic() < until:
            started = psutil.Process(script.pid).children(recursive=True)
            time.sleep(0.01)
        assert started
    finally:
        script.send_signal(number)
    assert script.wait(30) == (143 if number == signal.SIGTERM else -number)
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_the_telemetry_takes_next_to_nothing():
    """Far above what is measured (BUILD_NOTES.md): this catches readings that have become slow."""
    script = ROOT / "benchmarks" / "telemetry_overhead.py"
    flags = ["--experiment=quickstart", "--rounds=9", "--window_s=0.3", "--max_cost=0.02"]
    done = subprocess.run(
        [sys.executable, str(script), *flags],
        capture_output=True,
        text=True,
        env=os.environ | OPTIMIZED,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"host: (\d+\.\d+) ms .* mean of (\d+)", done.stdout)
    assert float(counted[1]) > 0 and int(counted[2]) > 20


def test_the_networks_agree_with_pytorch_where_it_is_installed():
    """Without PyTorch the script says so; with it, it compares the small ResNet."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "forward_vs_pytorch.py"),
            "--experiment=resnet50:tiny",
            "--image_size=64",
        ],
        capture_output=True,
        text=True,
    )
    if importlib.util.find_spec("torch") is None:
        assert done.returncode == 2
        assert done.stderr == "jaxbench: this check needs PyTorch: pip install torch\n"
        pytest.skip("PyTorch is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worst relative difference in fp64" in done.stdout


def test_the_input_pipeline_is_measured_beside_plain_decoding(test_data):
    folder = test_data / "imagenet_sample" / "originals"
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "input_pipeline.py"),
            f"--folder={folder}",
            "--rounds=3",
            "--images=128",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^jaxbench +\d+ images/s", done.stdout, re.MULTILINE)
    assert re.search(r"^decode +.*jaxbench / decode \d\.\d\d", done.stdout, re.MULTILINE)
    assert "tf.data is left out" in done.stdout and "pytorch is left out" in done.stdout


def close_to(record, key):
    """What a record says, a little rounding aside."""
    return pytest.approx(record[key], rel=1e-9)


def test_the_step_is_compiled_and_timed_in_several_forms():
    """A data set of that size fits into no memory."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "step_variants.py"),
            "--experiment=cnn10:tiny",
            "--experiment.precision=bf16",
            "--experiment.batch_size=8",
            "--experiment.num_devices=1",
            "--variant=unknown xla_no_such_option=1",
            "--variant=wrong xla_gpu_autotune_level=abc",
            "--variant=big batch_size=1000000000000000",
            "--variant=other remat=norms feed=resident data.crop_padding=4 "
            "xla_gpu_enable_latency_hiding_scheduler=true",
            "--rounds=6",
            "--window_s=0.01",
            "--json",
        ],
        capture_output=True,
        text=True,
        env=os.environ | UNOPTIMIZED,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    unknown, wrong, failed = done.stderr.splitlines()
    assert unknown.startswith("unknown is left out: ") and "no_such_option" in unknown
    assert wrong.startswith("wrong is left out: ") and "'abc'" in wrong
    assert failed == "failed: big"
    base, big, other = json.loads(done.stdout)["forms"]
    assert (base["variant"], other["variant"]) == ("base", "other")
    assert big["variant"] == "big" and big["failed"].startswith("out of memory: MemoryError")
    assert (base["feed"], other["feed"]) == ("synthetic", "resident")
    for record in (base, other):
        rates, base_rates = (
            [one["images_per_window"] / window_s for window_s in one["windows_s"]]
            for one in (record, base)
        )
        pairs = zip(rates, base_rates, strict=True)
        assert statistics.median(own / first for own, first in pairs) == close_to(record, "ratio")
        assert statistics.median(rates) == close_to(record, "images_per_s")
    assert base["donated"] and base["ratio"] == 1 and base["while_loops"] == 0
    # Nine outputs of convolutions, at least.
    assert sum(count["count"] for count in base["written"].values()) >= 9
    assert other["ratio_interval"][0] <= other["ratio"] <= other["ratio_interval"][1]


def form_of(seconds_per_call, images_per_call=8, fails_at=None):
    """A form whose every call takes so long, and that runs out of memory at one of its windows."""

    class Form:
        def __init__(self):
            self.images_per_call, self.windows, self.is_closed = images_per_call, 0, False
            self.record = {"failed": None}

        def run(self, calls):
            self.windows += 1
            if self.windows == fails_at:
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9")
            return calls * seconds_per_call

        def close(self):
            self.is_closed = True

    return Form()


def test_a_form_that_is_twice_as_fast_has_ratio_two(load_script):
    script = load_script("step_variants")
    # The third takes as long as the base for twice the images.
    forms = [form_of(0.5), form_of(0.25), form_of(0.5, images_per_call=16)]
    script.measure(forms, window_s=1.0, rounds=6)
    base, twice, large = (form.record for form in forms)
    assert script.times_the_base(twice, base) == {"ratio": 2, "ratio_interval": [2, 2]}
    assert script.times_the_base(large, base)["ratio"] == 2
    assert twice["images_per_s"] == large["images_per_s"] == 2 * base["images_per_s"] == 32


@pytest.mark.parametrize("fails_at", [1, 8])
def test_a_form_that_runs_out_of_memory_fails_alone(load_script, fails_at):
    """In the warm-up, which takes four windows at least, and among the windows that count."""
    script = load_script("step_variants")
    forms = [form_of(0.5), form_of(0.5, fails_at=fails_at)]
    script.measure(forms, window_s=1.0, rounds=6)
    base, failed = (form.record for form in forms)
    assert failed["failed"].startswith("out of memory: RuntimeError: RESOURCE_EXHAUSTED")
    assert forms[1].is_closed and forms[1].windows == fails_at and not forms[0].is_closed
    assert len(base["windows_s"]) == 6 and base["failed"] is None
    assert script.times_the_base(failed, base) == script.times_the_base(base, failed) == {}


def test_a_form_is_printed_with_what_is_known_of_it(load_script, capsys):
    from jaxbench.hlo import count_work

    script = load_script("step_variants")
    failed = {"variant": "big", "failed": "out of memory: it said so"}
    script.print_record(failed)
    assert capsys.readouterr().out == "big\n  failed: out of memory: it said so\n"
    sizes = ("compile_s", "temporary_bytes", "donated_bytes", "state_bytes", "xla_flops")
    compiled = dict.fromkeys(sizes, 0) | count_work("", ()) | {"collectives": {}}
    rate = {"images_per_s": 32.0, "images_per_s_low": 31.0, "images_per_s_high": 33.0}
    alone = {"variant": "calls", "failed": None, "steps_per_call": 4, **compiled, **rate}
    script.print_record(alone)
    said = capsys.readouterr().out
    assert "its loop of 4 steps counts once" in said
    assert said.endswith("  32.0 images/s (31.0 to 33.0)\n")
    script.print_record(alone | {"steps_per_call": 1, "ratio": 2.0, "ratio_interval": [1.9, 2.1]})
    said = capsys.readouterr().out
    assert "counts once" not in said
    assert said.endswith("; times the base's 2.000 (95 % interval 1.900 to 2.100)\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be a name"),
        ("layers=flax", "must be a name"),
        ("a remat", "FIELD=VALUE"),
        ("a layers=own", "one of jaxbench, flax_norm, flax_pool, flax"),
        ("a feed=stream", "one of synthetic, resident"),
        ("a steps_per_call=0", "whole number"),
    ],
)
def test_variants_that_say_nothing_are_refused(load_script, text, told):
    script = load_script("step_variants")
    with pytest.raises(BadInput, match=told):
        script.parse_variant(text)


@pytest.mark.parametrize(
    ("whose", "norm", "pool"),
    [
        ("jaxbench", False, False),
        ("flax_norm", True, False),
        ("flax_pool", False, True),
        ("flax", True, True),
    ],
)
def test_each_of_flaxs_layers_is_swapped_alone(load_script, whose, norm, pool):
    from jaxbench.models import layers, resnet

    ours = layers.BatchNorm, resnet.max_pool
    with load_script("step_variants").layers_of(whose):
        assert (layers.BatchNorm is not ours[0], resnet.max_pool is not ours[1]) == (norm, pool)
    assert (layers.BatchNorm, resnet.max_pool) == ours


def test_a_share_is_the_inputs_time_beside_the_steps(load_script):
    describe_form = load_script("resident_input").describe_form
    record = describe_form([1.0, 2.0, 3.0, 2.0, 2.0, 2.0], [10.0, 10.0, 10.0, 20.0, 5.0, 10.0])
    assert record["time_s"] == 2 and record["time_interval_s"] == [1, 3]
    assert record["share"] == 0.2 and record["share_interval"] == [0.1, 0.4]


def test_forms_of_the_resident_input_make_the_hosts_pixels():
    """How much of a step they take is asked where the step is real (BUILD_NOTES.md)."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "resident_input.py"),
            "--experiment=cnn10:tiny",
            "--experiment.batch_size=8",
            "--experiment.data.crop_padding=4",
            "--experiment.data.flip=true",
            "--rounds=6",
            "--window_s=0.01",
            "--max_share=10",
            "--json",
        ],
        capture_output=True,
        text=True,
        env=os.environ | UNOPTIMIZED,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    forms, step_times_s = document["forms"], document["step_times_s"]
    assert [form["form"] for form in forms] == ["gather", "slice", "two_step", "one_hot"]
    assert all(form["same_pixels"] for form in forms)
    for form in forms:
        pairs = zip(form["times_s"], step_times_s, strict=True)
        assert statistics.median(own_s / step_s for own_s, step_s in pairs) == close_to(
            form, "share"
        )


def versus_pytorch(*args, **env):
    """Runs the comparison on a small network, in as few rounds as it takes."""
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "versus_pytorch.py"),
            "--experiment=cnn10:tiny",
            "--batch_size=16",
            "--rounds=6",
            "--window_s=0.02",
            *args,
        ],
        capture_output=True,
        text=True,
        env=os.environ | UNOPTIMIZED | env,
    )


@pytest.fixture
def without_pytorch(tmp_path):
    """Variables under which `import torch` fails, whatever is installed."""
    (tmp_path / "torch.py").write_text("raise ImportError('not in this test')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path}


def test_without_pytorch_our_own_step_is_measured(without_pytorch, tmp_path):
    done = versus_pytorch(f"--json={tmp_path / 'records.json'}", **without_pytorch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^PyTorch is left out: .* not in this test", done.stdout, re.MULTILINE)
    document = json.loads((tmp_path / "records.json").read_text())
    (ours,) = document["contestants"]
    assert len(ours["windows_s"]) == 6 and ours["images_per_s"] > 0 and ours["compile_s"] > 0
    assert ours["last_loss"] < ours["losses"][0] and ours["environment"]["versions"]["jax"]
    assert re.search(r"^jaxbench +[\d,.]+ \([\d,.]+ to [\d,.]+\)", done.stdout, re.MULTILINE)


def test_a_pytorch_that_was_asked_for_must_be_there(without_pytorch, tmp_path):
    done = versus_pytorch("--variants=eager", f"--json={tmp_path / 'x.json'}", **without_pytorch)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"jaxbench: PyTorch is left out: .* not in this test.*\n", done.stderr)
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_pytorch_trains_the_same_steps_where_it_is_installed(tmp_path, precision):
    python = os.environ.get("JAXBENCH_TEST_PYTORCH")
    if not python and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, nor named by JAXBENCH_TEST_PYTORCH")
    done = versus_pytorch(
        f"--precision={precision}",
        f"--json={tmp_path / 'records.json'}",
        *([f"--pytorch_python={python}"] if python else []),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "best PyTorch variant" in done.stdout
    document = json.loads((tmp_path / "records.json").read_text())
    ours, *theirs = document["contestants"]
    assert [record["contestant"] for record in theirs] == ["pytorch eager", "pytorch channels_last"]
    assert document["problems"] == []
    for record in theirs:
        ratio, low, high = record["ratio"]
        assert 0 < low <= ratio <= high and len(record["windows_s"]) == 6
        assert record["losses"] == pytest.approx(ours["losses"], rel=1e-3)


def conv_on_cpu(*args):
    script = ROOT / "benchmarks" / "conv_on_cpu.py"
    return subprocess.run(
        [sys.executable, str(script), "--batch_size=2", "--rounds=6", *args],
        capture_output=True,
        text=True,
        env=os.environ | UNOPTIMIZED,
    )


def test_a_step_on_a_cpu_is_measured_with_and_without_ynnpack():
    done = conv_on_cpu("--experiment=cnn10:tiny", "--only=step")
    assert done.returncode == 0, done.stderr
    assert "gradient" not in done.stdout
    step = re.search(r"^cnn10:tiny, training step.*$", done.stdout, re.MULTILINE)
    assert re.search(r" YNNPACK +[\d.]+ s; Eigen +[\d.]+ s, .*; without YNNPACK +[\d.]+ s", step[0])


def test_what_cannot_be_measured_on_a_cpu_is_told_first(load_script, monkeypatch):
    done = conv_on_cpu("--experiment=nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nope" in done.stderr and done.stderr.count("\n") == 1
    flag = "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution"
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} {flag}")
    with pytest.raises(BadInput, match=f"^XLA_FLAGS has {flag}: .*; take it out of XLA_FLAGS$"):
        load_script("conv_on_cpu").main([])


@pytest.mark.slow
def test_the_parts_of_a_step_on_a_cpu_are_told_apart():
    done = conv_on_cpu("--experiment=cnn10:tiny")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"gradient .*; Eigen .* times as fast \(", done.stdout)) == 10
    step = re.search(r"^cnn10:tiny, training step.*$", done.stdout, re.MULTILINE)
    assert re.search(r"; Eigen +[\d.]+ s, .*; without YNNPACK +[\d.]+ s, ", step[0])


@pytest.fixture
def versus(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("versus_pytorch")


OURS = """
from jaxbench import catalog

def get_config():
    config = catalog.load("cnn10:tiny")
    for name, value in {optimizer}.items():
        setattr(config.optimizer, name, value)
    return config
"""


def test_a_ratio_is_of_equal_steps_and_mfu_of_the_peak(versus):
    environment = {"device_kind": "NVIDIA H200", "matmul_precision": None}
    ours = types.SimpleNamespace(
        name="jaxbench",
        failed=None,
        calls=10,
        last_loss=1.0,
        windows_s=[1.0, 1.1, 1.0, 0.9, 1.0, 1.0],
        facts={"environment": environment, "flops_per_image": 1e10, "first_step_s": 5.0},
    )
    theirs = types.SimpleNamespace(
        name="pytorch compile",
        failed=None,
        calls=5,
        last_loss=1.0,
        windows_s=[1.0, 1.1, 1.0, 0.9, 1.0, 1.0],
        facts={"first_step_s": 9.0},
    )
    config = types.SimpleNamespace(batch_size=512, precision="bf16")
    own, other = (versus.describe(one, config, ours) for one in (ours, theirs))
    # Half the steps in the same time.
    assert own["ratio"] is None and other["ratio"] == pytest.approx((2, 2, 2))
    assert (own["images_per_s"], other["images_per_s"]) == pytest.approx((5120, 2560))
    # 989.4 TFLOP/s, dense.
    assert own["mfu"] == pytest.approx(5120 * 1e10 / 989.4e12, rel=1e-3)
    assert other["mfu"] == pytest.approx(own["mfu"] / 2)
    assert other["compile_s"] == pytest.approx(9.0 - 0.2) and "compile_s" not in own


def test_a_contestant_that_dies_in_its_sleep_is_told(versus, tmp_path, monkeypatch):
    """As when the system kills it for want of memory."""
    script = tmp_path / "asleep.py"
    answers = "import sys\nprint('{}', flush=True)\nsys.stdin.read()\n"
    script.write_text(answers)
    monkeypatch.setattr(versus, "__file__", str(script))
    with versus.contestants() as field:
        for name in ("one", "other"):
            field.append(versus.Contestant(name, sys.executable, {}, tmp_path))
        os.killpg(field[0]._process.pid, signal.SIGKILL)
        field[0]._process.wait()
        assert field[0].turn(3) is None and field[0].turn(3) is None
        assert "killed by SIGKILL" in field[0].failed and field[1].failed is None
    assert field[1]._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--json=.",), "--json=.: cannot be written"),
        (("--json=/no/such/file",), "no such folder"),
        (("--variants=eager,eager",), "eager is named 2 times"),
        (("--pytorch_python=/bin/true",), "/bin/true: is no Python"),
        (("--variants=", "--min_ratio=1.2"), "--min_ratio=1.2: of no variant"),
        (("--compile_mode=foo",), "compile_mode"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_first(args, told):
    done = versus_pytorch(*args)
    assert done.returncode == 2 and done.stdout == "" and told in done.stderr
    assert done.stderr.count("\n") == 1


def test_only_what_pytorch_has_too_is_compared(versus, tmp_path):
    with pytest.raises(BadInput, match="no counterpart"):
        versus.load_config("vgg_cifar10:tiny", 0, "")
    with pytest.raises(BadInput, match="--precision=fp64"):
        versus.load_config("cnn10:tiny", 0, "fp64")
    cycle = {"schedule": "one_cycle", "rise": 0.2}
    ours = tmp_path / "ours.py"
    for optimizer, told in (
        ({"bias_learning_rate": 0.2}, "bias_learning_rate=0.2; compared is 0 alone"),
        ({"weight_decay_as": "share"}, "weight_decay_as='share'"),
        (cycle, None),
    ):
        ours.write_text(OURS.format(optimizer=optimizer))
        with pytest.raises(BadInput, match=told) if told else contextlib.nullcontext():
            config = versus.load_config(str(ours), 8, "fp16")
    assert config.optimizer.rise == OptimizerConfig().rise
    config.optimizer.validate(config.epochs)
    config = versus.load_config("resnet50", 8, "fp32")
    assert (config.batch_size, config.precision, config.num_devices) == (8, "fp32", 1)
    assert config.optimizer.schedule == "constant" and config.label_smoothing == 0.1


def test_a_comparison_of_unequal_work_fails(versus, capsys):
    def record(name, losses, ratio=None):
        return {
            "contestant": name,
            "failed": None,
            "images_per_s": 1.0,
            "images_per_s_low": 0.9,
            "images_per_s_high": 1.1,
            "mfu": None,
            "peak_memory_bytes": 2**30,
            "first_step_s": 1.0,
            "losses": losses,
            "last_loss": 1.0,
            "ratio": ratio,
            "distances": {"conv.weight": 0.5, "norm.weight": 0.01, "norm.bias": 0.001},
        }

    falling = [2.0, 1.9, 1.8, 1.7, 1.6]
    ours, same = record("jaxbench", falling), record("same", falling, (1.1, 1.05, 1.15))
    assert versus.print_results([ours, same], "fp32", 1.05) == []
    # The rates' intervals overlap.
    assert "jaxbench / it 1.100" in (said := capsys.readouterr().out) and "not told apart" in said
    ours |= {"images_per_s": 1.3, "images_per_s_low": 1.2, "images_per_s_high": 1.4}
    assert versus.print_results([ours, same], "fp32", 0) == []
    assert ": faster" in capsys.readouterr().out
    for wanted, how in ((1.2, "is"), (1.12, "may be")):
        assert versus.print_results([ours, same], "fp32", wanted) == [
            f"jaxbench {how} below {wanted:g} times the best PyTorch variant"
        ]
    assert len(versus.print_results([ours | {"mfu": 1.01}, same], "fp32", 0)) == 1
    assert "cannot be that fast" in capsys.readouterr().out
    other = record("other", [2.0, 1.9, 1.85, 1.7, 1.6], (1.1, 1.05, 1.15))
    assert len(versus.print_results([ours, other], "fp32", 0)) == 1
    said = capsys.readouterr().out
    assert "other does other work" in said and "no comparison" in said and "faster" not in said
    for precision, distances, told in (
        # One that is left out; none has momentum; a parameter is another.
        ("bf16", same["distances"] | {"norm.bias": 0.0}, "norm.bias is 0 from its start"),
        ("bf16", {k: 0.54 * v for k, v in same["distances"].items()}, r"46\.0% \(median\)"),
        ("fp32", same["distances"] | {"extra": 1.0}, "are others: extra"),
    ):
        [problem] = versus.print_results([ours, same | {"distances": distances}], precision, 0)
        assert re.search(told, problem)
    lost = {"contestant": "lost", "failed": "exit code 1: out of memory"}
    assert len(versus.print_results([ours, lost], "fp32", 0)) == 1
    assert "lost      failed: exit code 1: out of memory" in capsys.readouterr().out
    stuck = record("jaxbench", [1.0] * 5)
    assert len(versus.print_results([stuck], "fp32", 0)) == 1
    assert "did not fall" in capsys.readouterr().out


def goals(*args):
    script = ROOT / "benchmarks" / "goals.py"
    return subprocess.run(
        [sys.executable, str(script), *args],
        capture_output=True,
        text=True,
        env=os.environ | UNOPTIMIZED,
    )


def test_a_goal_is_measured_once(tmp_path):
    wanted = ("--tiny", "--only=cnn10_epoch", f"--out={tmp_path}")
    first, again = goals(*wanted), goals(*wanted)
    assert first.returncode == again.returncode == 0, first.stdout + first.stderr
    row = r"^\| cnn10_epoch \| cnn10, 256 images, at most 1 s \| [\d.]+ s \(.*\| not judged \|$"
    assert re.search(row, first.stdout, re.MULTILINE)[0] in again.stdout
    assert "cnn10_epoch: python -m jaxbench.main" in first.stdout
    assert "python -m" not in again.stdout


@pytest.mark.parametrize(
    ("rate", "ratio", "problems", "reached", "code"),
    [
        (13_000.0, (1.3, 1.25, 1.4), [], ["yes", "yes"], 0),
        (12_000.0, (1.1, 1.0, 1.19), [], ["no", "no"], 1),
        (12_600.0, (1.21, 1.19, 1.3), [], ["cannot be said"] * 2, 1),
        (13_000.0, (1.3, 1.25, 1.4), ["it does other work"], ["yes", "cannot be said"], 1),
        (13_000.0, (1.3, 1.25, 1.4), ["jaxbench cannot be that fast"], ["cannot be said"] * 2, 1),
    ],
)
def test_a_goal_is_judged_by_the_whole_interval(tmp_path, rate, ratio, problems, reached, code):
    environment = {"device_kind": "a GPU", "driver": None, "versions": {"jax": "1"}, "git": None}
    ours = {
        "failed": None,
        "images_per_s": rate,
        "images_per_s_low": rate - 100,
        "images_per_s_high": rate + 100,
        "mfu": 0.41,
        "environment": environment,
    }
    theirs = {"contestant": "pytorch eager", "failed": None, "images_per_s": 1.0, "ratio": ratio}
    document = {
        "config": {"batch_size": 512},
        "contestants": [ours, theirs],
        "pytorch_absent": None,
        "problems": problems,
    }
    (tmp_path / "wrn_rate_512.json").write_text(json.dumps(document))
    done = goals("--only=wrn_rate", f"--out={tmp_path}")
    assert done.returncode == code, done.stderr
    assert re.findall(r"^\| wrn_rate .*\| ([a-z ]+) \|$", done.stdout, re.MULTILINE) == reached
    assert all(problem in done.stdout for problem in problems)


def test_a_run_that_was_broken_off_is_no_result(load_script, tmp_path):
    finished_run = load_script("goals").finished_run
    assert finished_run(tmp_path) is None
    for status, metrics in (("running", ""), ("done", None), ("done", '{"kind": "epoch"}\n')):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        (tmp_path / "run.json").write_text(json.dumps({"status": status}))
        if metrics is not None:
            (tmp_path / "metrics.jsonl").write_text(metrics)
        run = finished_run(tmp_path)
        assert (run is not None) == (status == "done" and metrics is not None)
    (tmp_path / "run.json").write_text('{"status"')
    assert finished_run(tmp_path) is None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--only=wrn_rat",), "did you mean 'wrn_rate'"),
        (("--only=speed_run",), "needs CIFAR-10"),
        (("--tiny", "--data_dir=x"), "made-up"),
    ],
)
def test_goals_that_cannot_be_measured_are_told(tmp_path, args, told):
    done = goals(*args, f"--out={tmp_path / 'out'}")
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_all_goals_can_be_measured(tmp_path):
    done = goals("--tiny", f"--out={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    named = set(re.findall(r"^\| (\w+) .*\| not judged \|$", done.stdout, re.MULTILINE))
    assert named == {"wrn_rate", "resnet_rate", "cnn10_epoch", "speed_run", "wrn_accuracy"}
