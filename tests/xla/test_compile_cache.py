"""The persistent compilation cache: on by default, moved, off, and told in every record."""

import warnings

from jaxbench.xla import compile_cache
from tests.conftest import MICRO, records, run_json

M = f"--experiment={MICRO}"


def outcomes(folder):
    return {record["function"]: record["compile_cache"] for record in records(folder, "compile")}


def test_the_second_run_finds_what_the_first_compiled(run_cli, tmp_path):
    # As users have it: nothing set but where the home is.
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "JAX_COMPILATION_CACHE_DIR": ""}
    for run, outcome in (("one", "miss"), ("two", "hit")):
        done = run_cli(M, "--experiment.epochs=1", f"--workdir={run}", env=env)
        assert done.returncode == 0, done.stderr
        assert outcomes(tmp_path / run) == {"train_step": outcome, "eval_step": outcome}
        folder = run_json(tmp_path / run)["environment"]["compile_cache"]
        assert folder == str(tmp_path / ".cache" / "jaxbench" / "xla")
    first, second = (records(tmp_path / run, "compile")[0] for run in ("one", "two"))
    # What the compiler planned is told by a program out of the cache, too.
    assert second["memory"] == first["memory"]
    # Both steps are compiled at the same time; each has its own outcome.
    changed = "--experiment.eval_batch_size=60"
    done = run_cli(M, "--experiment.epochs=1", "--workdir=three", changed, env=env)
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path / "three") == {"train_step": "hit", "eval_step": "miss"}


def test_a_profiled_run_takes_no_other_runs_program(run_cli, tmp_path):
    """It may lack today's names: the code's names are no part of any other run's key."""
    for run, flags in (("plain", ()), ("profiled", ("--profile=2:3",))):
        flags = (*flags, "--compile_cache=kept", f"--workdir={run}", "--experiment.epochs=1")
        assert run_cli(M, *flags).returncode == 0
        assert outcomes(tmp_path / run)["train_step"] == "miss"


def test_the_compile_cache_can_be_elsewhere(run_cli, refused, tmp_path):
    throughput = ("--mode=throughput", "--rounds=6", "--window_s=0.02")
    done = run_cli(M, "--workdir=here", "--compile_cache=kept", *throughput)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "kept").iterdir())
    for record in records(tmp_path / "here", "compile"):
        assert record["compile_cache"] == "miss"
        assert 0 < record["warm_compile_s"] < record["cold_compile_s"] == record["compile_s"]
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    for folder in ("/dev/null/x", "loop", "loop/x", "file", "/proc/x", "x" * 5000):
        line = refused(
            M, f"--compile_cache={folder}", "--workdir=run", told="; --compile_cache must"
        )
        assert line.stderr.startswith(f"jaxbench: --compile_cache={folder[:200]}: ")


def test_a_bucket_in_jax_s_variable_is_left_to_jax(run_cli, tmp_path):
    """It cannot read there, which is said once; --compile_cache would refuse an address."""
    bucket = "gs://no-such-bucket-of-jaxbench/cache"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run_cli(
            M, "--workdir=run", "--experiment.epochs=1", env={"JAX_COMPILATION_CACHE_DIR": bucket}
        )
    assert done.returncode == 0 and done.stderr.count(f"jaxbench: {bucket}: ") == 1, done.stderr
    assert run_json(tmp_path / "run")["environment"]["compile_cache"] == bucket
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_cannot_be_kept_or_read_is_said_once_and_removed(tmp_path, monkeypatch, capsys):
    """JAX itself would warn of each program in each run, and never replace a file that is cut."""
    monkeypatch.setattr(warnings, "showwarning", lambda *_: print("others"))
    compile_cache._say_failure_once(tmp_path)
    for name in ("jit_f-1a-cache", "jit_g-2b-cache", "jit_h-3c-cache"):
        (tmp_path / name).write_text("cut")
    for verb, name in (("writing", "jit_f"), ("reading", "jit_g")):
        text = f"Error {verb} persistent compilation cache entry for '{name}': OSError: too large"
        warnings.showwarning(UserWarning(text), UserWarning, "compiler.py", 1)
    warnings.showwarning(UserWarning("another"), UserWarning, "x.py", 1)
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and "OSError: too large" in output.err
    assert output.out == "others\n"
    assert [path.name for path in tmp_path.iterdir()] == ["jit_h-3c-cache"]
