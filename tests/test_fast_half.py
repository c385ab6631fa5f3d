"""The fast half's own rules, and the means it has for asking commands in this process."""

import multiprocessing
import subprocess
import sys

import pytest
from absl import flags

from tests.conftest import MICRO, ROOT, run_json
from tests.fast_half import LARGEST_SHARE, LONGEST_S, is_fast, limit_s


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


def _spawn():
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the rule that this shows")
@pytest.mark.parametrize("start", [lambda: subprocess.run(["true"], check=True), _spawn])
def test_no_fast_test_starts_a_process(start):
    start()


def test_this_file_is_of_the_fast_half(request):
    assert is_fast(request.node)


def test_a_slow_machine_may_take_longer():
    assert limit_s(whole_s=0.0) == limit_s(whole_s=100.0) == LONGEST_S
    assert limit_s(whole_s=800.0) == LARGEST_SHARE * 800.0 > LONGEST_S


@pytest.mark.skipif("coverage" in sys.modules, reason="under coverage no test takes too long")
def test_a_test_that_takes_long_fails_the_run(pytester):
    """The rules of this suite, in one of two tests; set-up counts."""
    settings = "markers = ['integration', 'slow']\ntestpaths = ['.']"
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\n{settings}")
    rules = (ROOT / "tests" / "fast_half.py").read_text()
    limits = "LONGEST_S, LARGEST_SHARE = "
    assert f"{limits}5.0, 0.03" in rules
    pytester.makeconftest(rules.replace(f"{limits}5.0, 0.03", f"{limits}0.2, 0.1"))
    pytester.makepyfile(
        """
        import time, pytest
        @pytest.fixture
        def slow(): time.sleep(0.15)
        def test_quick(): pass
        def test_long(slow): time.sleep(0.15)
        @pytest.mark.slow
        def test_allowed(): time.sleep(0.3)
        """
    )
    ended = pytester.runpytest_inprocess("-p", "no:randomly")
    ended.assert_outcomes(passed=3)
    ended.stdout.fnmatch_lines(["*fast tests that take too long*", "*::test_long: *"])
    ended.stdout.no_fnmatch_line("*::test_allowed: *")
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
