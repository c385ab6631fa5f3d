"""python -m jaxbench.compare: ratios with intervals, and no more said than they allow."""

import functools
import json

import pytest

from jaxbench.compare import compare
from jaxbench.errors import BadInput
from jaxbench.records.reader import load_run


def write_run(folder, rate, *, spread=0.02, status="done", feed="synthetic", epochs=(), **config):
    folder.mkdir()
    document = {
        "status": status,
        "reason": None if status == "done" else "out of luck",
        "experiment": "cnn10",
        "config": {"precision": "fp32", "batch_size": 128} | config,
        "data": {"feed": feed},
        "environment": {"versions": {"jax": "0.10.2"}, "device_kind": "cpu"},
    }
    (folder / "run.json").write_text(json.dumps(document))
    records = [
        {
            "kind": "throughput",
            "stage": "train_step",
            "images_per_s": rate,
            "images_per_s_low": rate * (1 - spread),
            "images_per_s_high": rate * (1 + spread),
        }
    ]
    records += [
        {"kind": "epoch", "epoch": number, "complete": True, "images_per_s": value}
        for number, value in enumerate(epochs, 1)
    ]
    lines = [json.dumps(record) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.mark.parametrize(
    ("rate", "spread", "verdict"),
    [
        (110.0, 0.02, "faster"),
        (90.0, 0.02, "slower"),
        (103.0, 0.02, "no significant difference"),
        (150.0, 0.4, "no significant difference"),
    ],
)
def test_faster_is_said_only_where_the_intervals_do_not_overlap(tmp_path, rate, spread, verdict):
    first = load_run(write_run(tmp_path / "a", 100.0))
    second = load_run(write_run(tmp_path / "b", rate, spread=spread))
    found = compare(first, second)["stages"]["train_step"]
    assert found["verdict"] == verdict
    assert found["ratio"] == pytest.approx(rate / 100)
    assert found["ratio_low"] == pytest.approx(rate * (1 - spread) / 102)
    assert found["ratio_high"] == pytest.approx(rate * (1 + spread) / 98)


def test_epochs_but_the_first_are_a_training_runs_rate(tmp_path):
    runs = [
        load_run(write_run(tmp_path / name, 100.0, epochs=epochs))
        for name, epochs in (("a", (1.0, 50, 51, 52)), ("b", (900.0, 25, 25, 26)))
    ]
    assert compare(*runs)["stages"]["training"]["ratio"] == pytest.approx(25 / 51)


def test_what_differs_is_told(tmp_path):
    first = load_run(write_run(tmp_path / "a", 100.0))
    second = load_run(write_run(tmp_path / "b", 100.0, precision="bf16", remat="norms"))
    assert compare(first, second)["differences"] == {
        "precision": ["fp32", "bf16"],
        "remat": [None, "norms"],
    }


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"status": "oom"}, "its status is oom (out of luck)"),
        ({"status": "running"}, "its status is running"),
        ({"feed": "stream"}, "two different figures"),
    ],
)
def test_figures_that_are_no_pair_are_refused(tmp_path, how, told):
    first = load_run(write_run(tmp_path / "a", 100.0))
    second = load_run(write_run(tmp_path / "b", 100.0, **how))
    with pytest.raises(BadInput) as error:
        compare(first, second)
    assert told in str(error.value)


def test_damaged_run_directories_are_told(tmp_path):
    with pytest.raises(BadInput, match="no run directory, it has no run.json"):
        load_run(str(tmp_path))
    path = write_run(tmp_path / "a", 100.0)
    (tmp_path / "a" / "run.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        load_run(path)
    path = write_run(tmp_path / "b", 100.0)
    with open(tmp_path / "b" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "ep')  # cut off by a crash
    assert len(load_run(path).records) == 1


@pytest.fixture
def run_compare(run_cli):
    return functools.partial(run_cli, module="jaxbench.compare")


def test_the_command(run_compare, tmp_path):
    a, b = write_run(tmp_path / "a", 100.0), write_run(tmp_path / "b", 90.0)
    done = run_compare(a, b)
    assert done.returncode == 0 and "slower" in done.stdout, done.stderr
    done = run_compare(a, b, "--baseline")
    assert done.returncode == 1 and "slower than the baseline by more than 2%" in done.stdout
    assert run_compare(a, b, "--baseline", "--tolerance=0.2").returncode == 0
    assert run_compare(b, a, "--baseline").returncode == 0
    assert json.loads(run_compare(a, b, "--json").stdout)["stages"]["train_step"]["ratio"] == 0.9
    for args, told in (
        ((a,), "give two run directories"),
        ((a, str(tmp_path)), "no run directory"),
        ((a, b, "--tolerance=0.1"), "needs --baseline"),
        ((a, b, "--baseline", "--tolerance=nan"), "--tolerance=nan: must be a share"),
        ((a, b, "--basline"), "basline"),
    ):
        done = run_compare(*args)
        [line] = done.stderr.strip().splitlines()
        assert done.returncode == 2 and line.startswith("jaxbench: ") and told in line


def test_different_work_gets_no_verdict(run_compare, tmp_path):
    a = write_run(tmp_path / "a", 100.0)
    bf16 = write_run(tmp_path / "b", 200.0, precision="bf16")
    fp16 = write_run(tmp_path / "d", 400.0, precision="fp16")
    for first, second in ((a, bf16), (bf16, fp16)):
        [found] = compare(load_run(first), load_run(second))["stages"].values()
        assert found["ratio"] == 2 and found["verdict"] == "no verdict, they differ in precision"
    larger = write_run(tmp_path / "c", 200.0, batch_size=256)
    [found] = compare(load_run(a), load_run(larger))["stages"].values()
    assert found["verdict"] == "faster"
    for other, field in ((bf16, "precision"), (larger, "batch_size")):
        done = run_compare(a, other, "--baseline")
        assert done.returncode == 2 and f"the runs differ in {field}" in done.stderr
