"""The fast half's own rules, and the means it has for asking commands in this process."""

import subprocess
import sys

import pytest
from absl import flags
from conftest import MICRO, is_fast, run_json, takes_too_long


def test_a_command_runs_with_flags_of_its_own(run_cli, tmp_path):
    before = dict(flags.FLAGS.flag_values_dict())
    trained = run_cli(f"--experiment={MICRO}", "--experiment.epochs=1", "--workdir=run")
    assert trained.returncode == 0, trained.stderr
    assert "images/s" in trained.stdout
    assert run_json(tmp_path / "run")["config"]["epochs"] == 1
    # Nothing of one call is left for the next, nor of one command for another.
    described = run_cli(f"--experiment={MICRO}", "--mode=describe")
    assert described.returncode == 0 and "epochs" in described.stdout
    helped = run_cli("--help", module="jaxbench.compare")
    assert helped.returncode == 0 and "--tolerance" in helped.stdout
    assert flags.FLAGS.flag_values_dict() == before


def test_a_bad_flag_is_one_line_and_exit_code_2(run_cli):
    for module in ("main", "sweep", "compare", "cost", "report"):
        done = run_cli(f"--experiment={MICRO}", "--jsn", module=f"jaxbench.{module}")
        assert done.returncode == 2 and done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the rule that this shows")
def test_no_fast_test_starts_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_this_file_is_of_the_fast_half(request):
    assert is_fast(request.node)


@pytest.mark.parametrize(
    ("clock_s", "cpu_s", "too_long"),
    [(4.9, 9.0, False), (5.1, 5.1, True), (14.0, 4.0, False), (15.1, 0.1, True)],
)
def test_which_tests_fail_the_run(clock_s, cpu_s, too_long):
    """Processor time, or the clock with a margin for machines that do other work as well."""
    assert takes_too_long(clock_s, cpu_s) == too_long
