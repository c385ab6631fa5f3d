"""Links in a run directory are not written through, and nothing waits for a pipe."""

import json
import os
import pathlib
import types

import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.checkpoint import Checkpoints, Policy
from jaxbench.checkpoints.resume import CHECKPOINTS, copy_records, find_resume, read_epochs
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
    with_config = run_document(config={"seed": 0}, data={})
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


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_with_a_pipe_is_not_waited_for(tmp_path, elsewhere):
    folder = ended_run(tmp_path / "run")
    workdir = str(tmp_path / "new") if elsewhere else None
    for name in ("metrics.jsonl", "telemetry.csv", "epochs.csv"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    find_resume(workdir, str(folder), "some").close()
    with pytest.raises(BadInput, match="metrics.jsonl: its first 4 bytes are not"):
        read_epochs(folder, {"records": {"metrics.jsonl": [4, ""]}})
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    with pytest.raises(BadInput, match="it has no run.json"):
        find_resume(workdir, str(folder), "some")
    assert not (tmp_path / "new").exists()


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
    checkpoints.wait()
    assert other.is_dir() and "link is a link" in told[0]


def test_only_a_checkpoints_leftovers_are_removed(tmp_path):
    """With the next checkpoint."""
    for name in ("download.part", f"{NAME}.part", f"{NAME}.dead", "x.dead"):
        (tmp_path / name).mkdir()
    written(tmp_path, {"a": np.zeros(3)})
    assert {path.name for path in tmp_path.iterdir()} == {"download.part", "x.dead", NAME}


def test_a_checkpoint_with_a_pipe_is_corrupt(tmp_path):
    state = {"a": np.arange(3, dtype=np.float32)}
    orbax = checkpoint.create_orbax()
    checkpoint.write_checkpoint(orbax, tmp_path, NAME, state, {"step": 1}, None)
    assert checkpoint.read_checkpoint(tmp_path, NAME, state).metadata == {"step": 1}
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
    assert checkpoint.read_checkpoint(tmp_path, NAME, state).metadata == {"step": 1}


def written(folder, state):
    """The folder of a checkpoint of this state."""
    checkpoint.write_checkpoint(checkpoint.create_orbax(), folder, NAME, state, {"step": 1}, None)
    return folder / NAME


def forge(path, change):
    """Changes a manifest's body, and seals it."""
    body = json.loads((path / "manifest.json").read_text())["body"]
    change(body)
    sealed = {"body": body, "seal": checkpoint._seal(body)}
    (path / "manifest.json").write_text(json.dumps(sealed))


def test_only_a_manifests_files_are_copied(tmp_path):
    """Whatever else is in a checkpoint's folder, and wherever its links and names lead."""
    path = written(tmp_path / "from", {"a": np.arange(3)})
    (path / "extra").write_text("x" * 99)
    (tmp_path / "to").mkdir()
    checkpoint.copy_checkpoint(path.parent, tmp_path / "to", NAME)
    copied = {file.relative_to(tmp_path / "to") for file in (tmp_path / "to").rglob("*")}
    original = {file.relative_to(path.parent) for file in path.parent.rglob("*")}
    assert copied == original - {pathlib.Path(NAME, "extra")}
    checkpoint.read_checkpoint(tmp_path / "to", NAME, {"a": np.arange(3)})
    # A link to a large folder, a listed file that is a link, and a name outside the checkpoint.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_text("x" * 9999)
    digest = checkpoint.digest(elsewhere / "large")
    (path / "link").symlink_to(elsewhere)
    with pytest.raises(checkpoint.CorruptCheckpointError, match="link is no regular file"):
        checkpoint.copy_checkpoint(path.parent, tmp_path / "two", NAME)
    with pytest.raises(checkpoint.CorruptCheckpointError, match="link is no regular file"):
        checkpoint.read_checkpoint(path.parent, NAME, {"a": np.arange(3)})
    (path / "link").unlink()
    for name in ("../../elsewhere/large", str(elsewhere / "large")):
        forge(path, lambda body, name=name: body["files"].update({name: digest}))
        with pytest.raises(checkpoint.CorruptCheckpointError, match="is not as it was written"):
            checkpoint.copy_checkpoint(path.parent, tmp_path / "two", NAME)
    assert not (tmp_path / "two").exists()


def test_records_are_copied_up_to_the_checkpoint_only(tmp_path):
    """The rest of a file may be of any size: here 1 TB of holes."""
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    (tmp_path / "from" / "metrics.jsonl").write_text("{}\n")
    for name in ("metrics.jsonl", "telemetry.csv"):
        with open(tmp_path / "from" / name, "ab") as file:
            file.truncate(2**40)
    copy_records(tmp_path / "from", tmp_path / "to", {"metrics.jsonl": [3, ""]})
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "to" / "metrics.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(("shape", "chunk"), [((2**50,), (4,)), ((4,), (2**50,))])
def test_arrays_that_claim_more_than_they_hold_are_not_read(tmp_path, monkeypatch, shape, chunk):
    """tensorstore would allocate what they claim, and abort the process."""
    state = {"a": np.zeros(4)}
    written(tmp_path, state)
    storage = types.SimpleNamespace(chunk_shape=chunk)
    array = types.SimpleNamespace(shape=shape, dtype=np.dtype("float64"), storage=storage)
    forged = types.SimpleNamespace(item_metadata=types.SimpleNamespace(tree={"a": array}))
    monkeypatch.setattr(ocp.Checkpointer, "metadata", lambda *_: forged)
    monkeypatch.setattr(ocp.Checkpointer, "restore", None)
    with pytest.raises(checkpoint.CorruptCheckpointError, match="MemoryError|chunks of shape"):
        checkpoint.read_checkpoint(tmp_path, NAME, None)
    with pytest.raises(BadInput, match="another model's state|chunks of shape"):
        checkpoint.read_checkpoint(tmp_path, NAME, state)


def test_a_report_does_not_wait_for_telemetry(tmp_path):
    os.mkfifo(tmp_path / "telemetry.csv")
    assert read_readings(tmp_path / "telemetry.csv")[0] == {}
