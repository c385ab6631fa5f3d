"""One process at a time in a run directory, whatever it knows of the others."""

import pytest

from jaxbench.checkpoints.resume import find_resume
from jaxbench.records.run_lock import is_running
from tests.conftest import run_json
from tests.integration.conftest import run_program
from tests.integration.test_signals import start_long_run

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
