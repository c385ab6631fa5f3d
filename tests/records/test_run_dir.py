"""The run directory: one process at a time, and a run.json that a full disk does not destroy."""

import concurrent.futures
import errno
import fcntl
import json
import os
import threading

import pytest

from jaxbench.errors import BadInput
from jaxbench.records import run_dir as run_dir_module
from jaxbench.records import run_lock
from jaxbench.records.run_dir import RunDir, close_abandoned, create_run_dir
from jaxbench.records.run_lock import is_running, lock_run
from tests.conftest import refusal, run_document, run_json


def test_run_dir_is_claimed_by_one(tmp_path, monkeypatch):
    """Also where a process was killed there before it began."""
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0)
    start = threading.Barrier(4)

    def claim(folder, number):
        start.wait()
        try:
            return create_run_dir(str(folder), "some", run_document(pid=number))
        except BadInput as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for trial in range(100):
            folder = tmp_path / str(trial)
            if trial % 2:
                folder.mkdir()
                (folder / "run.json.partial").write_text("{")
                (folder / "run.lock").touch()
            claims = list(pool.map(claim, [folder] * 4, range(4)))
            [winner] = [claim for claim in claims if isinstance(claim, RunDir)]
            lost = [claim for claim in claims if claim is not winner]
            assert all("is still running" in line or "is not empty" in line for line in lost)
            assert run_json(folder)["pid"] == claims.index(winner) and is_running(folder)
            winner.close()
            assert not is_running(folder)


def test_run_dir_of_another_is_not_overwritten(tmp_path, monkeypatch):
    """It looks into the folder once more when it has the lock."""
    genuine = run_lock.fcntl.flock

    def slow(descriptor, how):
        (tmp_path / "run" / "run.json").write_text("another's")
        genuine(descriptor, how)

    monkeypatch.setattr(run_lock.fcntl, "flock", slow)
    told = "is not empty; nothing is overwritten"
    refusal(create_run_dir, str(tmp_path / "run"), "some", run_document(), told=told)
    monkeypatch.undo()
    assert (tmp_path / "run" / "run.json").read_text() == "another's"
    assert is_running(tmp_path / "run") is False


def test_two_threads_write_in_turn(tmp_path, monkeypatch):
    """Another process's end is recorded by a thread, while the main thread may write too."""
    run_dir = create_run_dir(str(tmp_path / "run"), "some", run_document())
    other = threading.Thread(target=run_dir.update, kwargs={"reason": "the other thread's"})
    replace = os.replace

    def meanwhile(source, target):
        monkeypatch.setattr(os, "replace", replace)
        other.start()
        other.join(0.1)
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    # Else it takes the other's file for a full disk, and this for the way out.
    monkeypatch.setattr(run_dir_module, "_write_in_place", lambda *_: pytest.fail("no room"))
    run_dir.update(reason="this thread's")
    other.join()
    assert run_json(tmp_path / "run")["reason"] == "the other thread's"
    run_dir.close()


def test_a_readers_moment_refuses_no_run(tmp_path):
    (tmp_path / "run.lock").touch()
    with open(tmp_path / "run.lock") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (reader, fcntl.LOCK_UN)).start()
        lock = lock_run(tmp_path)
    # A child process would hold it when this one is gone.
    assert not os.get_inheritable(lock)
    os.close(lock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, capfd, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_lock.fcntl, "flock", refuse)
    create_run_dir(str(tmp_path / "run"), "some", run_document()).close()
    [line] = capfd.readouterr().err.splitlines()
    assert f"cannot be locked ({os.strerror(number)})" in line
    assert run_json(tmp_path / "run")["status"] == "running"
    assert is_running(tmp_path / "run") is None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file(tmp_path, kind):
    """No link is followed, and nothing waits for a pipe."""
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "run.lock"
    makers = {"link": lambda: path.symlink_to("new"), "folder": path.mkdir}
    makers.get(kind, lambda: os.mkfifo(path))()
    is_running(tmp_path / "run")
    if kind == "pipe":
        create_run_dir(str(tmp_path / "run"), "some", run_document()).close()
    else:
        refusal(create_run_dir, str(tmp_path / "run"), "some", run_document(), told="--workdir=")
    assert not (tmp_path / "run" / "new").exists()


def test_a_run_that_is_running_is_not_closed_as_abandoned(tmp_path):
    run_dir = create_run_dir(str(tmp_path / "run"), "some", run_document())
    close_abandoned(run_dir.path, "failed", "killed with its sweep")
    assert run_json(run_dir.path)["status"] == "running"
    run_dir.close()
    close_abandoned(run_dir.path, "failed", "killed with its sweep")
    assert run_json(run_dir.path)["status"] == "failed"


@pytest.mark.parametrize("length", [0, 3000, 50_000])
def test_a_full_disk_leaves_run_json_whole(tmp_path, monkeypatch, length):
    """The status fits into the blocks that it has: the summary goes, then the reason's end."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    variables = {"padding": "x" * 4000}  # so that the first text fills its block
    document = run_document(environment=variables)
    run_dir = create_run_dir(str(tmp_path / "run"), "some", document)
    path = run_dir.path / "run.json"
    size = path.stat().st_size
    assert size % 4096 == 0 and size - len(path.read_text().rstrip()) >= 4096
    monkeypatch.setattr(os, "fsync", full)
    reason = "y\n" * (length // 2)
    run_dir.end("failed", reason, summary={"kind": "summary", "steps": [1] * 5000})
    assert path.stat().st_size == size and not (run_dir.path / "run.json.partial").exists()
    found = run_json(run_dir.path)
    assert found["status"] == "failed" and reason.startswith(found["reason"])
    assert len(found["reason"]) >= min(length, 1000) and found["environment"] == variables
    # A file without room, as older versions wrote it, stays as it was.
    path.write_bytes(before := json.dumps(found).encode())
    with pytest.raises(OSError, match="No space left"):
        run_dir.update(environment={"more": "x" * 9000})
    assert path.read_bytes() == before
    run_dir.close()
