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
from tests.integration.conftest import run_program

ONE = "--experiment.num_devices=1"


def script(name, *args, **env):
    """Runs a script in a process of its own."""
    command = [sys.executable, ROOT / "benchmarks" / name, *args]
    return run_program(command, env=env, timeout_s=3600)


def test_the_training_loop_keeps_up_with_the_bare_step():
    """Far below the ratio in results/measurements/cpu.csv: this only catches a loop that blocks."""
    flags = ("--experiment=quickstart", "--rounds=9", "--min_ratio=0.8")
    done = script("loop_overhead.py", *flags, **OPTIMIZED)
    assert done.returncode == 0, done.stdout + done.stderr
    ratio = re.search(r"loop / bare +(\d\.\d+)", done.stdout)
    assert ratio and 0.8 < float(ratio[1]) < 1.2


def test_simulated_verdicts_and_intervals_are_rarely_wrong():
    done = script("verdicts.py", "--comparisons=1000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 + 3 interleaved, drift 3 %" in done.stdout and "50, AR(1) 0.8" in done.stdout
    assert "5 + 5 + 5, drift 3 %" in done.stdout
    assert done.stdout.endswith("wrong too often, or blind: none\n")


def test_the_start_up_is_split_into_parts_that_add_up():
    against = f"--against={ROOT}"
    done = script("startup.py", "--experiment=quickstart:tiny", ONE, "--rounds=1", against)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.findall(r"^([a-z ]+?) +(\d+\.\d+) ", done.stdout, re.MULTILINE))
    assert {"interpreter", "imports", "lower", "compile", "first step"} <= set(rows)
    # What is left out is the end of the process.
    assert 0.7 < float(rows["sum"]) / float(rows["whole process"]) < 1.02
    ratio = re.search(r"^warm / cold.*: (\d\.\d+) ", done.stdout, re.MULTILINE)
    assert 0.05 < float(ratio[1]) < 1
    assert len(re.findall(r"(cold|warm), .*: here / there: \d\.\d+ ", done.stdout)) == 4


def test_goodput_and_badput_add_up_over_a_kill():
    flags = ("--experiment=quickstart:tiny", ONE, "--inject_kills=1", "--max_error=0.2")
    done = script("goodput.py", *flags)
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


def test_what_a_start_refuses_is_told_in_its_one_line():
    wrong = ("--experiment=quickstart", "--experiment.batch_size=100000")
    done = script("startup.py", "--rounds=1", *wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"jaxbench: .*batch_size=100000.*\n", done.stderr)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at what runs, on Linux")
def test_a_start_ends_with_the_script(tmp_path):
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
        starting.kill()
    assert starting.wait(30) == -signal.SIGKILL
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_the_input_pipeline_is_measured_beside_plain_decoding(test_data):
    folder = test_data / "imagenet_sample" / "originals"
    done = script(
        "input_pipeline.py",
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
        "step_variants.py",
        "--experiment=cnn10:tiny",
        "--experiment.model.channels=(4,)",
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


def test_pytorch_trains_the_same_steps(pytorch_python, tmp_path):
    done = versus_pytorch(
        f"--json={tmp_path / 'records.json'}", f"--pytorch_python={pytorch_python}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "best PyTorch variant" in done.stdout
    document = json.loads((tmp_path / "records.json").read_text())
    ours, *theirs = document["contestants"]
    named = [record["contestant"] for record in theirs]
    assert named == ["pytorch eager", "pytorch channels_last"]
    assert document["problems"] == []
    for record in theirs:
        ratio, low, high = record["ratio"]
        assert 0 < low <= ratio <= high and len(record["windows_s"]) == 6
        assert record["losses"] == pytest.approx(ours["losses"], rel=1e-3)


def goals(*args):
    return script("acceptance.py", *args, **UNOPTIMIZED)


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
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "versus_pytorch"))
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
