"""The promises of SECURITY.md: each names its tests; here are those that belong to no room."""

import re
import shutil

import pytest

from jaxbench.reports.collect import collect
from tests.checkpoints.runs import interrupted, trained
from tests.conftest import ROOT, refusal
from tests.recorded import recorded_run, write_results


def test_each_promise_names_tests_that_exist():
    promises = re.findall(r"^\|.*\|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)[2:]
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", promise)
        assert named, promise
        for file, test in named:
            assert f"def {test}" in (ROOT / file).read_text(), (file, test)


@pytest.mark.parametrize("name", ["../outside", "/etc", "a" * 5000, "a\0b", "trials/../../x", ""])
def test_a_sweeps_results_lead_to_no_other_folder(tmp_path, name):
    recorded_run(tmp_path / "outside")
    write_results(tmp_path / "sweep", {"run": name, "log": name, "place": {"batch_size": "1"}})
    assert collect([str(tmp_path / "sweep")]).runs == []


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "epochs.csv", "telemetry.csv", "tensorboard", "run.lock"]
)
def test_a_run_that_is_resumed_writes_through_no_link(stopped, tmp_path, name):
    run = shutil.copytree(stopped, tmp_path / "run")
    (run / name).rename(tmp_path / "precious")
    (run / name).symlink_to(tmp_path / "precious")
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    for workdir, resume in ((run, "auto"), (None, str(run)), (tmp_path / "new", str(run))):
        if workdir != tmp_path / "new" or name != "run.lock":
            refusal(trained, workdir, resume=resume, num_devices=1, told="link")
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    run = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, run, 17, num_devices=1, telemetry_s=0.05)
    return run
