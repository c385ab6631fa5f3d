"""Links in a run directory are not written through, and nothing waits for a pipe."""

import json
import os
import pathlib

import numpy as np
import pytest

from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.checkpointer import Checkpoints, Policy
from jaxbench.checkpoints.resume import CHECKPOINTS, find_resume
from jaxbench.errors import BadInput
from jaxbench.files import open_own, open_regular
from jaxbench.records.run_dir import close_abandoned, create_run_dir
from jaxbench.records.writers.files import JsonlWriter
from jaxbench.reports.sections.telemetry import read_readings
from jaxbench.sweeps.sweep_dir import SweepDir
from tests.conftest import run_document, run_json

NAME = "step-000000001.epoch-00001"
pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture
def victim(tmp_path):
    """A file that a link in a run directory leads to; no test may change it."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def ended_run(folder):
    """A run directory that could be resumed."""
    with_config = run_document(config={"seed": 0})
    run_dir = create_run_dir(str(folder), "some", with_config)
    (folder / "metrics.jsonl").touch()
    run_dir.end("preempted", None)
    run_dir.close()
    return folder


def test_only_regular_files_are_opened(tmp_path, victim):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(victim)
    for mode in ("r", "r+", "w", "a"):
        for path, told in (("pipe", "."), ("link", "is a link"), ("", ".")):
            with pytest.raises(OSError, match=told):
                open_own(tmp_path / path, mode)
    for path in ("pipe", "", "/dev/zero"):
        with pytest.raises(OSError, match="is no regular file"):
            open_regular(tmp_path / path, most_bytes=9)
    with open_regular(tmp_path / "link", most_bytes=9) as file:
        assert file.read() == "precious"
    with open_own(tmp_path / "new", "w") as file:
        file.write("text")
    assert (tmp_path / "new").read_text() == "text"


def test_run_json_is_not_written_through_a_link(tmp_path, victim):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json.partial").symlink_to(victim)
    with_link = create_run_dir(str(folder), "some", run_document())
    (folder / "run.json.partial").symlink_to(victim)
    with_link.update(status="running")
    with_link.close()
    assert run_json(folder)["status"] == "running"


def test_records_are_not_written_through_a_link(tmp_path, victim):
    (tmp_path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="is a link"):
        JsonlWriter(tmp_path)


def test_a_sweeps_tables_are_not_written_through_a_link(tmp_path, victim):
    (tmp_path / "table.csv.partial").symlink_to(victim)
    SweepDir(tmp_path).write_table("table.csv", [{"a": 1}])
    assert (tmp_path / "table.csv").read_text().split() == ["a", "1"]


def test_a_pipe_as_run_json_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    close_abandoned(tmp_path, "failed", "killed with its sweep")
    assert (tmp_path / "run.json").is_fifo()


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "telemetry.csv", "epochs.csv"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_with_a_pipe_is_not_resumed(tmp_path, name, elsewhere):
    folder = ended_run(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    workdir = str(tmp_path / "new") if elsewhere else None
    with pytest.raises(BadInput, match="is no regular file|it has no run.json"):
        find_resume(workdir, str(folder), "some")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "name", ["run.json.partial", "telemetry.csv", "epochs.csv", "run.lock", "tensorboard"]
)
def test_a_folder_in_a_files_place_is_told(tmp_path, name):
    folder = ended_run(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    if name == "tensorboard":
        (folder / name).touch()
    else:
        (folder / name / "below").mkdir(parents=True)
    with pytest.raises(BadInput, match=f"{name}: is (a|no) folder"):
        find_resume(str(folder), "auto", "some")


def test_a_run_whose_checkpoints_are_a_link_is_not_resumed_in_place(tmp_path):
    folder = ended_run(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (folder / CHECKPOINTS).symlink_to(tmp_path / "other")
    with pytest.raises(BadInput, match="checkpoints: is a link, .* give a new --workdir"):
        find_resume(None, str(folder), "some")
    # It may be read from.
    assert find_resume(str(tmp_path / "new"), str(folder), "some") is not None


def test_nothing_is_removed_where_a_link_leads(tmp_path):
    other = tmp_path / "other" / f"{NAME}.part"
    other.mkdir(parents=True)
    (tmp_path / "link").symlink_to(other.parent)
    told: list[str] = []
    checkpoints = Checkpoints(pathlib.Path(tmp_path / "link"), Policy(epochs=1), told.append)
    checkpoints.save({"a": np.zeros(3)}, {"step": 1, "epochs_done": 1}, None)
    assert other.is_dir() and "link: is a link" in told[0]


def test_only_a_checkpoints_leftovers_are_removed(tmp_path):
    for name in ("download.part", f"{NAME}.part", f"{NAME}.dead", "x.dead", NAME):
        (tmp_path / name).mkdir()
    checkpoint.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"download.part", "x.dead", NAME}


def test_a_checkpoint_with_a_pipe_is_corrupt(tmp_path):
    state = {"a": np.arange(3, dtype=np.float32)}
    orbax = checkpoint.create_orbax()
    checkpoint.write_checkpoint(orbax, tmp_path, NAME, state, {"step": 1}, None)
    assert checkpoint.read_checkpoint(tmp_path, NAME, state).point == {"step": 1}
    files = [path for path in (tmp_path / NAME).rglob("*") if path.is_file()]
    for path in [*files, tmp_path / NAME / "arrays" / "d" / "unlisted"]:
        content = path.read_bytes() if path in files else None
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(checkpoint.CorruptCheckpointError, match="is no regular file"):
            checkpoint.read_checkpoint(tmp_path, NAME, state)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    assert checkpoint.read_checkpoint(tmp_path, NAME, state).point == {"step": 1}


@pytest.mark.parametrize(
    "change",
    [{"arrays": {"a": ["float32"]}}, {"arrays": []}, {"files": 1}, {"point": []}, {"score": "x"}],
)
def test_a_sealed_manifest_of_another_form_is_corrupt(tmp_path, change):
    body = {"arrays": {}, "files": {}, "point": {}, "score": None} | change
    (tmp_path / NAME).mkdir()
    sealed = {"body": body, "seal": checkpoint._seal(body)}
    (tmp_path / NAME / "manifest.json").write_text(json.dumps(sealed))
    with pytest.raises(checkpoint.CorruptCheckpointError, match="manifest.json: "):
        checkpoint.read_checkpoint(tmp_path, NAME, {"a": np.zeros(3, np.float32)})


def test_a_report_does_not_wait_for_telemetry(tmp_path):
    os.mkfifo(tmp_path / "telemetry.csv")
    assert read_readings(tmp_path / "telemetry.csv")[0] == {}
