"""The persistent compilation cache: what one process leaves for the next."""

import pytest

from tests.conftest import records, run_json

Q = "--experiment=quickstart:tiny"
ONE = ("--experiment.num_devices=1", "--experiment.max_steps=1")


def outcomes(folder):
    return {record["function"]: record["compile_cache"] for record in records(folder, "compile")}


def test_the_second_run_finds_what_the_first_compiled(run_main, tmp_path):
    # As users have it: nothing set but where the home is.
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "JAX_COMPILATION_CACHE_DIR": ""}
    for run, outcome in (("one", "miss"), ("two", "hit")):
        done = run_main(Q, *ONE, f"--workdir={run}", env=env)
        assert done.returncode == 0, done.stderr
        assert set(outcomes(tmp_path / run).values()) == {outcome}
        folder = run_json(tmp_path / run)["environment"]["compile_cache"]
        assert folder == str(tmp_path / ".cache" / "jaxbench" / "xla")
    first, second = (records(tmp_path / run, "compile")[0] for run in ("one", "two"))
    assert second["compile_s"] < 0.5 * first["compile_s"]
    # What the compiler planned is told by a program out of the cache, too.
    assert second["memory"] == first["memory"]


@pytest.mark.slow
def test_a_profile_does_not_show_the_names_of_older_code(run_main, tmp_path):
    """Its programs are kept apart: one that lacks today's names would do for any other run."""
    one = (Q, "--compile_cache=kept", "--experiment.epochs=1")
    for run, flags in (("plain", ()), ("profiled", ("--profile=2:3",))):
        done = run_main(*one, f"--workdir={run}", *flags)
        assert done.returncode == 0, done.stderr
        assert outcomes(tmp_path / run)["train_step"] == "miss"
