"""One process at a time in a run directory, whatever it knows of the others."""

import os
import signal
import subprocess
import sys

import pytest

from jaxbench.checkpoints.resume import find_resume
from jaxbench.records.run_lock import is_running
from tests.conftest import run_json
from tests.integration.conftest import run_program
from tests.integration.test_train import start_long_run

# Holds the lock, starts processes that outlive it, and waits.
_HOLDER = """
import multiprocessing, pathlib, subprocess, sys, time
from jaxbench.records.run_lock import lock_run
if __name__ == "__main__":
    lock_run(pathlib.Path("."))
    child = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    worker.start()
    print(child.pid, worker.pid, flush=True)
    time.sleep(60)
"""

# Four processes; prints the number of a folder whenever one of them wins it.
_CLAIMERS = """
import dataclasses, multiprocessing, os
from jaxbench.errors import BadInput
from jaxbench.records import run_lock
from jaxbench.records.run_dir import create_run_dir
from jaxbench.records.schema import RunDocument

def claim_all(start):
    given = {f.name: None for f in dataclasses.fields(RunDocument) if f.init}
    given |= {"mode": "train", "status": "running"}
    for number in range(100):
        start.wait()
        try:
            create_run_dir(f"run{number}", "some", RunDocument(**given))
            os.write(1, f"{number}\\n".encode())
        except BadInput:
            pass

run_lock._PATIENCE_S = 0
context = multiprocessing.get_context("fork")
start = context.Barrier(4)
claimers = [context.Process(target=claim_all, args=(start,)) for _ in range(4)]
for claimer in claimers:
    claimer.start()
for claimer in claimers:
    claimer.join()
"""


# Another host name; another namespace of process ids.
_ELSEWHERE = (
    ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$0" "$@"'],
    ["unshare", "--pid", "--fork", "--mount-proc"],
)


def test_a_second_process_is_refused_wherever_it_runs(tmp_path):
    if any(run_program([*elsewhere, "true"]).returncode for elsewhere in _ELSEWHERE):
        pytest.skip("a namespace cannot be made here (only root can)")
    first = start_long_run(tmp_path)
    before = run_json(tmp_path / "run")
    for elsewhere in _ELSEWHERE:
        second = run_program([*elsewhere, *first.args, "--resume=auto"], cwd=tmp_path)
        assert second.returncode == 2, second.stderr
        assert second.stderr == "jaxbench: run: is still running in another process\n"
    assert first.poll() is None and run_json(tmp_path / "run") == before
    first.kill()
    first.communicate()
    assert run_json(tmp_path / "run")["status"] == "running"
    # It has no checkpoint: the lock is all that counts here.
    assert not is_running(tmp_path / "run")
    find_resume(str(tmp_path / "run"), "auto", "").close()


def test_children_that_outlive_a_run_do_not_hold_its_lock(tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(_HOLDER)
    holder = subprocess.Popen([sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE)
    children = [int(pid) for pid in holder.stdout.readline().split()]
    try:
        assert is_running(tmp_path)
        holder.kill()
        holder.wait()
        assert not is_running(tmp_path)
        for pid in children:
            os.kill(pid, 0)  # they are there
    finally:
        holder.stdout.close()
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_of_processes_that_begin_together_one_wins(tmp_path):
    """Each claims the same folders in turn; all begin a folder at the same moment."""
    (tmp_path / "claimers.py").write_text(_CLAIMERS)
    script = [sys.executable, "claimers.py"]
    done = run_program(script, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(int, done.stdout.split())) == list(range(100))
