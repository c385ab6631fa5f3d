"""--mode=memory, and the memory that XLA estimates: the state is donated, remat keeps less."""

import re
from collections import Counter

import jax
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.modes import runner
from jaxbench.modes.memory import measure_memory
from jaxbench.records.writers.console import Console
from tests import conftest
from tests.conftest import MICRO, equations, records, run_json, step_args
from tests.micro import SmallConfig
from tests.training.test_network_analysis import net


def program_of(name, **fields):
    """The program of an experiment and what its training step takes beside the state."""
    fields = {"data__feed": "resident", "data__random_resized_crop": False} | fields
    program = conftest.program_of(name, **fields)
    return program, step_args(program)


@pytest.mark.device
def test_a_batch_that_fits_is_compiled_and_run(tmp_path):
    result = measure_memory(registry.load(MICRO), str(tmp_path / "run"), Console())
    document, compiled = run_json(tmp_path / "run"), records(tmp_path / "run", "compile")
    assert (document["mode"], document["status"]) == ("memory", "done")
    assert document["training_flops_per_image"] > 0
    assert compiled == [record.to_json() for record in result.records]
    assert [record["function"] for record in compiled] == ["train_step", "eval_step"]
    summary = document["summary"]
    largest = max(record["memory"]["total_bytes"] for record in compiled)
    assert summary["planned_bytes_per_device"] == largest
    assert summary["compile_s"] == sum(r["lower_s"] + r["compile_s"] for r in compiled)
    assert summary["private_memory_before_bytes"] > 2**20 and summary["phases_s"]["run"] > 0


def test_a_run_warns_before_it_compiles_what_hardly_fits(run_cli, tmp_path, monkeypatch):
    """The batch that it names fits by the same estimate, and the next larger one does not."""
    run = ("--mode=memory", f"--experiment={MICRO}", "--experiment.num_devices=2")
    monkeypatch.setattr(runner, "memory_bytes", lambda device: 100_000)
    first = run_cli(*run, "--experiment.batch_size=4096", f"--workdir={tmp_path / 'first'}")
    assert first.returncode == 0, first.stderr
    largest = int(re.search(r"largest batch\s+that\s+fits\s+is\s+about (\d+)", first.stdout)[1])
    assert first.stdout.index("largest batch") < first.stdout.index("compiling")
    assert 0 < largest < 4096 and largest % 2 == 0
    (warning,) = (w for w in run_json(tmp_path / "first")["summary"]["warnings"] if "GiB" in w)
    assert "batch_size=4096" in warning
    for size in (largest, largest + 2):
        done = run_cli(*run, f"--experiment.batch_size={size}", f"--workdir={tmp_path / str(size)}")
        assert ("largest batch" in done.stdout) == (size > largest)


@pytest.mark.device
def test_a_run_whose_parameters_do_not_fit_compiles_nothing(run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "memory_bytes", lambda device: 1000)
    done = run_cli(f"--experiment={MICRO}", f"--workdir={tmp_path / 'run'}")
    document = run_json(tmp_path / "run")
    assert (done.returncode, document["status"]) == (1, "oom")
    assert "parameters" in document["reason"] and not records(tmp_path / "run", "compile")


@pytest.mark.parametrize("remat", ["none", "save_dots"])
def test_of_activations_only_what_convolutions_made_is_kept(remat):
    """What the part of the step that makes the rest again takes in, as JAX traced it."""
    program, args = program_of("quickstart:tiny", remat=remat, num_devices=1)
    state = program.abstract_placed_state()
    traced = equations(jax.make_jaxpr(program.train_step)(state, *args).jaxpr)
    made_again = [equation for equation in traced if equation.params.get("differentiated")]
    if remat == "none":
        assert not made_again
        return
    [backward] = made_again
    forward = traced[: traced.index(backward)]
    # The platform decides which form a 1x1 convolution has.
    convolutions = ("conv_general_dilated", "cond")
    made = [
        equation.outvars[0].aval.shape
        for equation in forward
        if equation.primitive.name in convolutions
    ]
    batch_size = program.network.config.batch_size
    assert len(made) == 9 and all(shape[0] == batch_size for shape in made)
    taken = [value.aval.shape for value in backward.invars]
    of_the_batch = [shape for shape in taken if len(shape) == 4 and shape[0] == batch_size]
    images = (batch_size, *program.network.config.data.image_shape)
    assert sorted(of_the_batch) == sorted([*made, images])


@pytest.mark.parametrize("model", [SmallConfig(), net()], ids=["ours", "flaxs"])
def test_statistics_are_not_made_again(model):
    """Gradients alone would have batch norm read what it normalises again, and exchange again."""
    counts = []
    for remat in ("none", "save_dots"):
        fields = {"model": model, "batch_norm": "sync", "remat": remat, "num_devices": 2}
        program, args = program_of("quickstart:tiny", **fields)
        traced = equations(
            jax.make_jaxpr(program.train_step)(program.abstract_placed_state(), *args).jaxpr
        )
        counts.append(Counter(equation.primitive.name for equation in traced))
    plain, remat = counts
    for name in ("conv_general_dilated", "dot_general", "reduce_sum", "psum"):
        assert plain[name] == remat[name] > 0, name
    assert remat["mul"] > plain["mul"]


@pytest.mark.device
def test_gradients_do_not_depend_on_what_is_made_again(train):
    """A network with batch norm and dropout, in fp64."""
    fields = {"model": SmallConfig(dropout=0.5), "precision": "fp64", "num_devices": 1, "epochs": 1}
    kept, made_again = (
        jax.tree.leaves(train(MICRO, remat=remat, optimizer__name="sgd", **fields).state)
        for remat in ("none", "save_dots")
    )
    # Biases in front of batch norm have no gradient but rounding.
    for a, b in zip(kept, made_again, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-8)
