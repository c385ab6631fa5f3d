"""The scripts in benchmarks/ run; what they print is a ratio of one interleaved run."""

import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import OPTIMIZED, ROOT, UNOPTIMIZED

ONE = "--experiment.num_devices=1"


def script(name, *args, **env):
    """Runs a script in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *args],
        capture_output=True,
        text=True,
        env=os.environ | env,
    )


def test_the_training_loop_keeps_up_with_the_bare_step():
    """Far below what docs/decisions/measuring.md says: this only catches a loop that blocks."""
    flags = ("--experiment=quickstart", "--rounds=9", "--min_ratio=0.8")
    done = script("loop_overhead", *flags, **OPTIMIZED)
    assert done.returncode == 0, done.stdout + done.stderr
    ratio = re.search(r"loop / bare +(\d\.\d+)", done.stdout)
    assert ratio and 0.8 < float(ratio[1]) < 1.2


def test_simulated_verdicts_and_intervals_are_rarely_wrong():
    done = script("verdicts", "--comparisons=1000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 + 3 interleaved, drift 3 %" in done.stdout and "50, AR(1) 0.8" in done.stdout
    assert done.stdout.endswith("wrong too often, or blind: none\n")


def test_the_start_up_is_split_into_parts_that_add_up():
    against = f"--against={ROOT}"
    done = script("startup", "--experiment=quickstart:tiny", ONE, "--rounds=1", against)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled 2, eval_step traced 1, train_step traced 1" in done.stdout
    assert done.stdout.endswith("--max_ratio=1: within\n")
    rows = dict(re.findall(r"^([a-z ]+?) +(\d+\.\d+) ", done.stdout, re.MULTILINE))
    assert {"interpreter", "imports", "lower", "compile", "first step"} <= set(rows)
    # What is left out is the end of the process.
    assert 0.7 < float(rows["sum"]) / float(rows["whole process"]) < 1.02
    ratio = re.search(r"^warm / cold.*: (\d\.\d+) ", done.stdout, re.MULTILINE)
    assert 0.05 < float(ratio[1]) < 1
    assert len(re.findall(r"(cold|warm), .*: here / there: \d\.\d+ ", done.stdout)) == 4


def test_goodput_and_badput_add_up_over_a_kill():
    flags = ("--experiment=quickstart:tiny", ONE, "--inject_kills=1", "--max_error=0.2")
    done = script("goodput", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^([a-z_ ]+?) +(\d+\.\d+) +\S+% +(\d+\.\d+) ", done.stdout, re.MULTILINE)
    undisturbed, killed = ({row[0]: float(row[at]) for row in rows} for at in (1, 2))
    assert {"goodput", "startup", "compile", "lost_work", "down"} < set(killed)
    for own in (undisturbed, killed):
        total_s = own.pop("total wall")
        assert sum(own.values()) == pytest.approx(total_s, abs=0.01 * len(own))
    assert undisturbed["down"] == undisturbed["lost_work"] == 0 < killed["down"]
    assert killed["startup"] > undisturbed["startup"] / 2
    assert "process 1 of 2: killed" in done.stdout and done.stdout.endswith("within\n")


def microbench(*args):
    small = ("--rounds=6", "--window_s=0.01", "--search_s=1", "--largest=256", "--array_mib=4")
    return script("microbench", *small, *args, **UNOPTIMIZED)


def test_every_ceiling_is_printed():
    done = microbench()
    assert done.returncode == 0, done.stdout + done.stderr
    # A tall shape, 1024x256x256, may be faster than the square one.
    fastest = r"matmul fp32 \d+x256x"
    for name in (fastest, "triad 4 MiB, 8 device", "dispatch, queued", "all_reduce 1"):
        line = rf"^{name}.* +\d[\d,.]* \S+ +\(\S+ to \S+\)$"
        assert re.search(line, done.stdout, re.MULTILINE), name


def test_ceilings_are_compared_with_themselves_and_with_others():
    done = microbench("--repeat=3")
    overlaps = re.findall(r": (\d) of 3 pairs of intervals overlap$", done.stdout, re.MULTILINE)
    assert len(overlaps) == 2 and done.returncode == int(overlaps != ["3", "3"])
    done = microbench("--against_numpy")
    assert done.returncode == 0, done.stdout + done.stderr
    ratios = re.findall(r"JAX / (\w+) (\S+) \(95 % interval (\S+) to (\S+)\)", done.stdout)
    assert [other for other, *_ in ratios] in (["NumPy", "C"], ["NumPy"])
    assert all(float(low) <= float(ratio) <= float(high) for _, ratio, low, high in ratios)


def test_what_a_start_refuses_is_told_in_its_one_line():
    wrong = ("--experiment=quickstart", "--experiment.batch_size=100000")
    done = script("startup", "--rounds=1", *wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"jaxbench: .*batch_size=100000.*\n", done.stderr)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at what runs, on Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_ends_with_the_script(tmp_path, number):
    starting = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "startup.py"), "--experiment=quickstart"],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        started, until = [], time.monotonic() + 60
        while not started and time.monotonic() < until:
            started = psutil.Process(starting.pid).children(recursive=True)
            time.sleep(0.01)
        assert started
    finally:
        starting.send_signal(number)
    assert starting.wait(30) == (143 if number == signal.SIGTERM else -number)
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_the_telemetry_takes_next_to_nothing():
    """Far above what is measured (docs/decisions/telemetry.md): this catches slow readings."""
    flags = ("--experiment=quickstart", "--rounds=9", "--window_s=0.3", "--max_cost=0.02")
    done = script("telemetry_overhead", *flags, **OPTIMIZED)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"host: (\d+\.\d+) ms .* mean of (\d+)", done.stdout)
    assert float(counted[1]) > 0 and int(counted[2]) > 20


@pytest.fixture(scope="module")
def pytorch_python():
    """A Python that has PyTorch."""
    python = os.environ.get("JAXBENCH_TEST_PYTORCH")
    if not python and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, nor named by JAXBENCH_TEST_PYTORCH")
    return python or sys.executable


def test_the_networks_agree_with_pytorch_where_it_is_installed(pytorch_python):
    """In one process, which takes PyTorch from the other Python's packages."""
    code = "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])"
    packages = subprocess.run([pytorch_python, "-c", code], capture_output=True, text=True)
    paths = [str(ROOT), packages.stdout.strip()]
    names = "resnet50:tiny,vit_cifar10:tiny,gpt_bytes:tiny,gpt124m_synthetic:tiny"
    env = UNOPTIMIZED | {"PYTHONPATH": os.pathsep.join(paths)}
    done = script("forward_vs_pytorch", f"--experiment={names}", "--image_size=64", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worst relative difference in fp64" in done.stdout
    for network in ("ResNet", "ViT", "Gpt"):
        assert f"fp64 against pytorch_networks.{network}" in done.stdout


def test_the_input_pipeline_is_measured_beside_plain_decoding(test_data):
    folder = test_data / "imagenet_sample" / "originals"
    done = script(
        "input_pipeline",
        f"--folder={folder}",
        "--rounds=3",
        "--images=128",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^jaxbench +[\d,]+ images/s", done.stdout, re.MULTILINE)
    assert re.search(r"^decode +.*jaxbench / decode \d\.\d\d", done.stdout, re.MULTILINE)
    assert "tf.data is left out" in done.stdout and "pytorch is left out" in done.stdout


def close_to(record, key):
    """What a record says, a little rounding aside."""
    return pytest.approx(record[key], rel=1e-9)


def test_the_step_is_compiled_and_timed_in_several_forms():
    """A data set of that size fits into no memory."""
    done = script(
        "step_variants",
        "--experiment=cnn10:tiny",
        "--experiment.precision=bf16",
        "--experiment.batch_size=8",
        "--experiment.num_devices=1",
        "--variant=unknown xla_no_such_option=1",
        "--variant=wrong xla_gpu_autotune_level=abc",
        "--variant=big batch_size=2147483647",
        "--variant=other remat=save_dots feed=resident data.crop_padding=4 "
        "xla_gpu_enable_latency_hiding_scheduler=true",
        "--rounds=6",
        "--window_s=0.01",
        "--json",
        **UNOPTIMIZED,
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
    assert base["donated"] and base["ratio"] == 1
    assert other["ratio_interval"][0] <= other["ratio"] <= other["ratio_interval"][1]


def test_forms_of_the_resident_input_make_the_hosts_pixels():
    """How much of a step they take is asked where the step is real (docs/decisions/step.md)."""
    done = script(
        "resident_input",
        "--experiment=cnn10:tiny",
        "--experiment.batch_size=8",
        "--experiment.data.crop_padding=4",
        "--experiment.data.flip=true",
        "--rounds=6",
        "--window_s=0.01",
        "--max_share=10",
        "--json",
        **UNOPTIMIZED,
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
    small = ("--experiment=cnn10:tiny", "--batch_size=16", "--rounds=6", "--window_s=0.02")
    return script("versus_pytorch", *small, *args, **UNOPTIMIZED | env)


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


@pytest.mark.parametrize(
    ("experiment", "precision"),
    [
        ("cnn10:tiny", "fp32"),
        ("vit_s16_synthetic:tiny", "fp32"),
        ("gpt_bytes:tiny", "bf16"),
        pytest.param("cnn10:tiny", "fp16", marks=pytest.mark.slow),
    ],
)
def test_pytorch_trains_the_same_steps(pytorch_python, tmp_path, experiment, precision):
    done = versus_pytorch(
        f"--experiment={experiment}",
        f"--precision={precision}",
        f"--json={tmp_path / 'records.json'}",
        f"--pytorch_python={pytorch_python}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "best PyTorch variant" in done.stdout
    document = json.loads((tmp_path / "records.json").read_text())
    ours, *theirs = document["contestants"]
    variants = ["eager"] if "gpt" in experiment else ["eager", "channels_last"]
    assert [record["contestant"] for record in theirs] == [f"pytorch {one}" for one in variants]
    assert document["problems"] == []
    for record in theirs:
        ratio, low, high = record["ratio"]
        assert 0 < low <= ratio <= high and len(record["windows_s"]) == 6
        assert record["losses"] == pytest.approx(ours["losses"], rel=1e-3)


def conv_on_cpu(*args):
    # Without the flag that the script measures both ways.
    flags = [flag for flag in UNOPTIMIZED["XLA_FLAGS"].split() if "_ynn_" not in flag]
    more = {"XLA_FLAGS": " ".join(flags)}
    return script("conv_on_cpu", "--batch_size=2", "--rounds=6", *args, **more)


def test_a_step_on_a_cpu_is_measured_with_and_without_ynnpack():
    done = conv_on_cpu("--experiment=cnn10:tiny", "--only=step")
    assert done.returncode == 0, done.stderr
    assert "gradient" not in done.stdout
    step = re.search(r"^cnn10:tiny, training step.*$", done.stdout, re.MULTILINE)
    assert re.search(r" YNNPACK +[\d.]+ s; Eigen +[\d.]+ s, .*; without YNNPACK +[\d.]+ s", step[0])


def test_a_steps_time_on_a_cpu_goes_to_its_operations():
    done = script("cpu_profile", "--experiment=cnn10:tiny", "--batch_size=2", "--steps=1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^cnn10:tiny: [\d.]+ s in a step's operations$", done.stdout, re.MULTILINE)
    kinds = re.findall(r"%\)?.* x 3x3 convolution, (.*): .* GFLOP/s \(\d+%\)", done.stdout)
    assert sorted(kinds) == ["forward", "input gradient", "kernel gradient"]
    assert "element by element" in done.stdout


@pytest.mark.slow
def test_the_parts_of_a_step_on_a_cpu_are_told_apart():
    done = conv_on_cpu("--experiment=cnn10:tiny")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"gradient .*; Eigen .* times as fast \(", done.stdout)) == 10
    step = re.search(r"^cnn10:tiny, training step.*$", done.stdout, re.MULTILINE)
    assert re.search(r"; Eigen +[\d.]+ s, .*; without YNNPACK +[\d.]+ s, ", step[0])


def goals(*args):
    return script("goals", *args, **UNOPTIMIZED)


def test_a_goal_is_measured_once(tmp_path):
    wanted = ("--tiny", "--only=cnn10_epoch", f"--out={tmp_path}")
    first, again = goals(*wanted), goals(*wanted)
    assert first.returncode == again.returncode == 0, first.stdout + first.stderr
    row = r"^\| cnn10_epoch \| cnn10, 256 images, at most 1 s \| [\d.]+ s \(.*\| not judged \|$"
    assert re.search(row, first.stdout, re.MULTILINE)[0] in again.stdout
    assert "cnn10_epoch: python -m jaxbench.main" in first.stdout
    assert "python -m" not in again.stdout


@pytest.mark.slow
def test_all_goals_can_be_measured(tmp_path):
    done = goals("--tiny", f"--out={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    named = set(re.findall(r"^\| (\w+) .*\| not judged \|$", done.stdout, re.MULTILINE))
    expected = {"wrn_rate", "resnet_rate", "cnn10_epoch", "wrn_accuracy", "card"}
    expected |= {"speed_run", "speed_run_2025"}
    assert named == expected
    done = goals("--tiny", "--machine=v5e-8", f"--out={tmp_path / 'tpu'}")
    assert done.returncode == 0, done.stdout + done.stderr
    named = set(re.findall(r"^\| (\w+) .*\| not judged \|$", done.stdout, re.MULTILINE))
    assert named == {"wrn_rate", "resnet_rate", "card"}


def test_what_is_no_python_is_refused():
    done = versus_pytorch("--pytorch_python=/bin/true")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "/bin/true: is no Python" in done.stderr


@pytest.fixture
def contestant(monkeypatch):
    """The processes of the script."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("contestant")


def test_a_contestant_that_dies_in_its_sleep_is_told(contestant, tmp_path, monkeypatch):
    """As when the system kills it for want of memory."""
    script = tmp_path / "asleep.py"
    answers = "import sys\nprint('{}', flush=True)\nsys.stdin.read()\n"
    script.write_text(answers)
    monkeypatch.setattr(contestant, "_SERVER", str(script))
    with contestant.contestants() as field:
        for name in ("one", "other"):
            field.append(contestant.Contestant(name, sys.executable, {}, tmp_path))
        os.killpg(field[0]._process.pid, signal.SIGKILL)
        field[0]._process.wait()
        assert field[0].turn(3) is None and field[0].turn(3) is None
        assert "killed by SIGKILL" in field[0].failed and field[1].failed is None
    assert field[1]._process.returncode == -signal.SIGKILL
