"""The scripts in benchmarks/ run; what they print is a ratio of one interleaved run."""

import importlib.util
import json
import os
import re
import signal
import sys

import pytest

from tests.conftest import OPTIMIZED, ROOT, UNOPTIMIZED
from tests.integration.conftest import run_program


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


@pytest.mark.parametrize(
    ("work", "lines"),
    [
        ("crops", [r"jaxbench +[\d,]+ images/s", r"decode +.*jaxbench / decode \d\.\d\d"]),
        ("evaluation", [r"jaxbench +[\d,]+ images/s", "pytorch is left out"]),
        ("cifar10", [r"jaxbench +[\d,]+ images/s", "tf.data is left out"]),
        (
            "growth",
            [r"2 processes +.*times one", r"the rest: \d+ us", "if threads hold Python's lock"],
        ),
    ],
)
def test_the_input_pipeline_is_measured(test_data, work, lines):
    flags = [f"--work={work}", "--rounds=6", "--images=1024", "--threads=2"]
    if work != "cifar10":
        flags.append(f"--folder={test_data / 'imagenet_sample' / 'originals'}")
    done = script("input_pipeline.py", *flags)
    assert done.returncode == 0, done.stderr
    for line in lines:
        assert re.search(f"^{line}", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(("seconds", "code"), [(0.01, 1), (1000, 0)])
def test_a_rate_below_the_floor_fails(test_data, tmp_path, seconds, code):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho ready\nwhile read images; do echo {seconds} 1; done\n")
    python.chmod(0o700)
    folder = f"--folder={test_data / 'imagenet_sample' / 'originals'}"
    small = ("--rounds=6", "--images=1024", "--floor=0.9", f"--tensorflow_python={python}")
    done = script("input_pipeline.py", folder, *small)
    assert done.returncode == code, done.stderr
    assert f", at least 0.9: {'no' if code else 'yes'}" in done.stdout


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--folder=nowhere", "--folder=nowhere: no JPEG files in it"),
        ("--before=nowhere", "--before=nowhere: no checkout of jaxbench"),
        ("--floor=0.9", "--floor: is for tf.data; give --tensorflow_python"),
        ("--tensorflow_python=nowhere", "tf.data: nowhere: No such file or directory"),
        ("--tensorflow_python=/bin/cat", "tf.data: it did not start in /bin/cat (see above)"),
        ("--work=growth --floor=0.9", "--floor: --work=growth does not use it"),
        ("--rounds=5", "flag --rounds=5: 5 is not integer >= 6"),
    ],
)
def test_the_input_pipeline_refuses_what_it_cannot_measure(test_data, flag, line):
    folder = f"--folder={test_data / 'imagenet_sample' / 'originals'}"
    done = script("input_pipeline.py", folder, *flag.split())
    assert done.returncode == 2 and f"jaxbench: {line}" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


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
