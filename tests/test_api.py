"""The Python API: what the commands do, by function calls."""

import dataclasses
import pathlib
import signal
import sys
import threading

import jax
import numpy as np
import pytest
from jax._src import xla_bridge

import jaxbench
from jaxbench.cli import registry
from jaxbench.data.sources.load import load_dataset
from jaxbench.hardware import backend_flags
from jaxbench.launchers import local
from jaxbench.parallel.child import ProcessResult
from jaxbench.results.answers import SweepResult
from jaxbench.sweeps.grid import make_trials
from tests.conftest import LOOP, MICRO, refusal
from tests.in_process import run_command
from tests.launchers.fakes import fake_child
from tests.recorded import write_repeats, write_run

TINY = {"telemetry_s": 0, "quiet": True}
SHORT = {**TINY, "rounds": 6, "window_s": 0.001}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_name_is_there_and_documented():
    for name in {*jaxbench.__all__} - {"__version__"}:
        assert name in dir(jaxbench) and getattr(jaxbench, name).__doc__
        assert callable(getattr(jaxbench, name))
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        jaxbench.trian  # noqa: B018


def test_a_run_is_recorded_as_by_the_command(capsys):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run = jaxbench.train(MICRO, **TINY, epochs=2, batch_size=64)
    assert capsys.readouterr() == ("", "")
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run.path.parent == pathlib.Path("runs/micro")
    assert (run.status, run.mode, run.experiment) == ("done", "train", "micro")
    assert run.config["batch_size"] == 64 and run.summary["epochs_done"] == 2
    assert 0 <= run.top1 <= 1 and run.top1 == run.summary["eval_top1"]
    assert [*run.epochs["epoch"]] == [1, 2]
    assert repr(run).startswith(f"<Run {run.path}: micro train, done, 2 x cpu, batch 64, fp32, ")
    assert f"top-1 {run.top1:.2%}" in repr(run)
    # The command of the same name is no attribute of the package, whatever has run.
    from jaxbench import compare, report, sweep

    assert all(callable(one) for one in (compare, report, sweep))
    again = jaxbench.Run(str(run.path))
    assert again.records == run.records and repr(again) == repr(run)


def test_a_runs_state_is_restored_and_computes_what_was_evaluated():
    """As in a notebook: the network is applied to the test images, and counts the same."""
    config = registry.load(MICRO)
    run = jaxbench.train(config, **TINY)
    state = jaxbench.Run(run.path).restore_state()
    assert state["step"] == run.summary["steps"] == 22
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(state))
    digits = load_dataset(config)
    mean_C, std_C = digits.channel_statistics
    network = config.model.create(
        num_classes=10, dtype=np.float32, param_dtype=np.float32, norm_axis=None
    )
    variables = {name: state[name] for name in ("params", "batch_stats")}
    images = (digits.eval.inputs_Nx - mean_C) / std_C
    logits = network.apply(variables, images.astype(np.float32), train=False)
    assert np.mean(np.argmax(logits, -1) == digits.eval.labels_Nx) == pytest.approx(run.top1)
    best = run.restore_state(best=True)  # there is only one
    assert np.array_equal(best["params"]["head"]["kernel"], state["params"]["head"]["kernel"])
    without = jaxbench.train(MICRO, **TINY, epochs=1, checkpoint_minutes=0)
    refusal(without.restore_state, told="has no checkpoint")


@pytest.mark.parametrize("has_devices", [False, True])
@pytest.mark.parametrize("start", ["api", "command"])
def test_a_profile_names_operations(monkeypatch, capsys, start, has_devices):
    """On a GPU, however the run is started, and unless JAX has its devices already."""
    given = []
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: has_devices)
    monkeypatch.setattr(backend_flags, "usable_plugins", lambda: ["xla_cuda13"])
    monkeypatch.setattr(backend_flags, "add_xla_flags", lambda text: given.append(text) or [])
    monkeypatch.setattr(backend_flags, "prepare_backend", lambda *_: None)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", None)
    try:
        if start == "api":
            jaxbench.train(MICRO, telemetry_s=0, profile="2:3")
            said = capsys.readouterr().out
        else:
            flags = (f"--experiment={MICRO}", "--telemetry_s=0", "--profile=2:3", "--deterministic")
            said = run_command(pathlib.Path(), *flags).stdout
    finally:
        jax.config.update("jax_platforms", before)
    if start == "command":
        assert "--xla_gpu_deterministic_ops=true" in given.pop(0)
    assert given == ["--xla_gpu_enable_command_buffer="] * (not has_devices)
    told = "set XLA_FLAGS=" if has_devices else "command buffers are off"
    assert told in " ".join(said.split())


def test_progress_is_shown(capsys):
    run = jaxbench.train(MICRO, telemetry_s=0, epochs=1, workdir=pathlib.Path("mine"))
    shown = capsys.readouterr().out
    assert "\n  1/1  " in shown and "records in mine" in shown
    assert str(run.path) == "mine"
    refusal(jaxbench.train, MICRO, workdir="mine", **TINY, told="--workdir=mine: is not empty")


def test_fields_have_three_spellings():
    config = registry.load(MICRO)
    fields = {"optimizer": {"learning_rate": 0.5, "decay_at": [0.5, 0.8], "schedule": "step"}}
    described = jaxbench.describe(
        config, batch_size=np.int64(32), **fields, **{"data.flip": True, "model.hidden": [4]}
    )
    given = described["config"]
    assert given["batch_size"] == 32 and type(given["batch_size"]) is int
    assert given["optimizer"]["learning_rate"] == 0.5
    assert given["optimizer"]["decay_at"] == (0.5, 0.8)
    assert given["data"]["flip"] and given["model"]["hidden"] == (4,)
    # The caller's config is as it was.
    assert dataclasses.asdict(config) == dataclasses.asdict(registry.load(MICRO))
    whole = jaxbench.describe("cnn10:tiny", model=config.model, **{"data.image_shape": (8, 8, 1)})
    assert whole["config"]["model"] == given["model"] | {"hidden": ()}


def sweep(grid=None, **more):
    return jaxbench.sweep("cnn10", grid or {"seed": [1]}, **more)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: jaxbench.train("quikstart"), "did you mean 'quickstart'"),
        (lambda: jaxbench.train(3), "is a name, a path"),
        (lambda: jaxbench.train(learning_rate=1), "did you mean 'optimizer.learning_rate'"),
        (lambda: jaxbench.train(batch_size="many"), "batch_size='many': must be a whole number"),
        (lambda: jaxbench.train(optimizer="adam"), "optimizer is a str"),
        (lambda: jaxbench.train(workdir=3), "--workdir=3: must be a path"),
        (lambda: jaxbench.train(profile=["1:2"]), "must be text"),
        (lambda: jaxbench.train(checkpoint_minutes=True), "must be a number"),
        (lambda: jaxbench.scaling(device_counts=[1.5]), "must be whole numbers"),
        (lambda: jaxbench.scaling(device_counts=np.array([1, 2])), "must be whole numbers"),
        (lambda: jaxbench.throughput(feed="fast"), "must be one of synthetic, resident, stream"),
        (lambda: jaxbench.sweep("quickstart"), "give a grid"),
        (lambda: sweep({"seed": 1}), "seed=1 in the grid: must be a list"),
        (lambda: sweep({"batchsize": [1]}), "did you mean 'batch_size'"),
        (lambda: sweep({"batch_size": []}), "batch_size=[] in the grid"),
        (lambda: sweep(retry=["ooom"]), "did you mean 'oom'"),
        (lambda: sweep(options={"target_acuracy": 0.9}), "did you mean 'target_accuracy'"),
        (lambda: sweep(model=object()), "in the experiment's file"),
        (lambda: jaxbench.sweep(registry.load(MICRO), {"seed": [1]}), "are processes"),
        (lambda: jaxbench.Run("nowhere"), "no run directory"),
        (lambda: jaxbench.load_runs(), "runs: no such folder"),
        (lambda: jaxbench.compare([], "here"), "list of runs is empty"),
        (lambda: jaxbench.report([]), "list of runs is empty"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(call, told, tmp_path):
    refusal(call, told=told)
    assert not any(tmp_path.iterdir())


def test_ctrl_c_is_recorded_and_the_process_lives_on(monkeypatch):
    write = LOOP.write_epoch_record
    monkeypatch.setattr(
        LOOP, "write_epoch_record", lambda *given: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        jaxbench.train(MICRO, workdir="run", **TINY)
    assert jaxbench.Run("run").status == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not signal.getitimer(0)[0]
    monkeypatch.setattr(LOOP, "write_epoch_record", write)
    run = jaxbench.train(MICRO, workdir="run", resume="auto", **TINY)
    assert run.status == "done" and len(run.document["attempts"]) == 2


def test_a_thread_may_train():
    found = []
    thread = threading.Thread(target=lambda: found.append(jaxbench.train(MICRO, epochs=1, **TINY)))
    thread.start()
    thread.join()
    assert found[0].status == "done"


def test_throughput():
    run = jaxbench.throughput(MICRO, **SHORT)
    assert run.mode == "throughput" and run.top1 is None
    assert run.images_per_s_low <= run.images_per_s <= run.images_per_s_high
    assert [*run.table("throughput")["stage"]] == ["train_step", "forward"]
    [row] = jaxbench.load_runs().to_dict("records")
    assert (row["mode"], row["images_per_s"]) == ("throughput", run.images_per_s)


def test_scaling():
    scaled = jaxbench.scaling(MICRO, scaling="weak", device_counts=[1, 2], **SHORT)
    assert [*scaled.table("scaling")["num_devices"]] == [1, 2]
    assert "weak, 2 device(s) efficiency" in repr(scaled)


def test_a_description_prints_and_has_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook does
    monkeypatch.setenv("TERM", "xterm-256color")
    described = jaxbench.describe(MICRO)
    assert "\x1b" not in repr(described)
    assert described.table == described.rows
    assert "forward MACs" in repr(described)
    assert jaxbench.describe("conv2d:tiny").rows[0]["kernel"] == 3


def test_comparisons(tmp_path):
    base = write_repeats(tmp_path / "base", 100, 101, 99)
    other = write_repeats(tmp_path / "other", 200, 202, 198)
    found = jaxbench.compare(base, other)
    assert found.low < found.ratio < found.high and found.ratio == pytest.approx(2, rel=0.01)
    assert found.verdict == "faster" and f"{found.ratio:.3f}" in repr(found)
    # Repeats may also be listed, as paths or as runs.
    runs = [jaxbench.Run(path) for path in sorted((tmp_path / "other").iterdir())]
    assert jaxbench.compare(base, runs).ratio == found.ratio
    single = jaxbench.compare(runs[0], runs[1])
    assert single.verdict == "inconclusive" and "one run" in single.reasons[0]
    assert single.rows[0]["stage"] == "train_step"
    assert "one run each" in repr(single)


def test_tables_with_pandas_and_without(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "a", 100.0)
    write_run(tmp_path / "runs" / "b", 100.0, status="oom")
    frame = jaxbench.load_runs("runs")
    assert frame.status.tolist() == ["done", "oom"] and frame.batch_size.tolist() == [128, 128]
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = jaxbench.load_runs(tmp_path / "runs")
    assert [row["status"] for row in rows] == ["done", "oom"]
    assert list(rows[0]) == list(frame.columns)
    [stage] = jaxbench.Run("runs/a").table("throughput")
    assert (stage["stage"], stage["images_per_s"]) == ("train_step", 100.0)
    assert not {"kind", "windows_s", "peak"} & stage.keys()


def test_a_report_is_written(tmp_path):
    write_run(tmp_path / "one", 100.0)
    out = jaxbench.report([jaxbench.Run("one")], "mine.html", title="Ours")
    assert out == pathlib.Path("mine.html") and "<title>Ours" in out.read_text()
    assert jaxbench.report("one", "mine.csv").read_text().startswith("experiment,mode,")
    refusal(jaxbench.report, "one", "mine.pdf", told="ends in none of")


def test_rows_of_a_sweep_have_the_types_of_their_fields(tmp_path):
    axes = {"batch_size": ["64"], "model.hidden": ["(2,)"], "optimizer.learning_rate": ["1"]}
    [trial] = make_trials(None, [], {"experiment": [MICRO], **axes, "precision": ["bf16"]})
    assert [*trial.values.values()] == [MICRO, 64, (2,), 1.0, "bf16"]
    # What else is in a row has its type already: text stays text.
    texts = {"hostname": "1234", "reason": "1234567890e12345", "device_kind": "None"}
    [row] = SweepResult(tmp_path, [{**texts, **trial.values, "run": None}], []).rows
    assert row == texts | trial.values | {"run": None}


def test_a_sweep_is_the_commands(monkeypatch, tmp_path):
    launched = []

    def launch(command, log, **limits):
        launched.append(command)
        done = run_command(tmp_path, *command[3:])
        log.write_text(done.stderr)
        return ProcessResult("exited", None, done.returncode, 1.0)

    monkeypatch.setattr(local, "Child", fake_child(launch))
    grid = {"batch_size": [64], "model.hidden": [[], [2]]}
    given = {"options": {"telemetry_s": 0}, "sweepdir": "sweep", "quiet": True, "epochs": 1}
    found = jaxbench.sweep(MICRO, grid, **given)
    assert [run.config["model"]["hidden"] for run in found] == [[], [2]]
    assert found.table["model.hidden"].tolist() == [(), (2,)]
    assert "images/s" in repr(found) and "model.hidden" in repr(found)
    assert launched[1][2:5] == ["jaxbench.main", f"--experiment={MICRO}", "--experiment.epochs=1"]
    assert launched[1][5:7] == ["--experiment.batch_size=64", "--experiment.model.hidden=(2,)"]
    # What has a result is not run again.
    assert len(jaxbench.sweep(MICRO, grid, **given)) == len(launched) == 2
    assert len(jaxbench.load_runs(found)) == 2
