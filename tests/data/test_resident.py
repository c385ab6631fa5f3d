"""The resident feed and the evaluation step: every example counts once, padding for nothing."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.data.feeds.feed import UNPACK_BATCH, create_feed
from jaxbench.data.sources.load import load_dataset
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.tasks import get_task
from jaxbench.train import build_program
from tests.conftest import MICRO

pytestmark = pytest.mark.device

D = 8


@pytest.fixture(scope="module")
def setting():
    config = registry.load(MICRO)
    config.data.eval_examples, config.batch_size = 45, D
    config.label_smoothing = 0.1  # is for training: `expected` knows nothing of it
    dataset = load_dataset(config)
    config.num_devices = min(D, jax.device_count())
    mesh, layout = create_training_mesh(config)
    program = build_program(config, mesh, layout, steps_per_epoch=1)
    state = mesh.replicate(program.initial_state())
    return dataset, mesh, program, state


def evaluate(setting, eval_batch_size):
    dataset, mesh, program, state = setting
    config = copy.deepcopy(program.network.config)
    config.eval_batch_size = eval_batch_size
    feed = create_feed(config, dataset, *create_training_mesh(config))
    batches = list(feed.eval_batches())
    assert len(batches) == feed.eval_steps
    packed = (program.eval_step(state, feed.eval_data, batch) for batch in batches)
    total = sum(np.asarray(metrics, np.float64) for metrics in packed)
    return program.network.unpack_eval_sums(total)


@pytest.fixture(scope="module")
def expected(setting):
    """The same sums over the whole split at once, without devices or batches."""
    dataset, _, program, state = setting
    mean, std = dataset.channel_statistics
    images = (dataset.eval.inputs_Nx - mean) / std
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    apply = jax.jit(program.network.module.apply, static_argnames="train")
    logits, _ = apply(jax.device_get(variables), images.astype(np.float32), train=False)
    labels = jnp.asarray(dataset.eval.labels_Nx)
    return (
        float(get_task("classification").losses(logits, labels, 0.0).sum()),
        int((logits.argmax(-1) == labels).sum()),
        len(dataset.eval),
    )


@pytest.mark.parametrize("eval_batch_size", [1, D - 1, D, D + 1, 44, 45, 46, 1000])
def test_every_example_counts_once_at_any_batch_size(setting, expected, eval_batch_size):
    sums = evaluate(setting, eval_batch_size)
    assert sums["count"] == expected[2] == 45
    assert sums["top1"] == expected[1]
    assert sums["loss"] == pytest.approx(expected[0], rel=1e-5)


def test_garbage_in_padded_rows_changes_nothing(setting, expected, monkeypatch):
    """Padded rows are given images full of garbage, impossible labels and nan statistics."""
    genuine = UNPACK_BATCH["resident"]

    def with_garbage(data, batch, step):
        examples = genuine(data, batch, step)
        images = jnp.where(examples.mask_B[:, None, None, None], examples.inputs_Bx, 255)
        # In float, so that the garbage can be nan on its way through the network.
        images = jnp.where(
            examples.mask_B[:, None, None, None], images.astype(jnp.float32), jnp.nan
        )
        labels = jnp.where(examples.mask_B, examples.labels_Bx, 10**6)
        return examples._replace(inputs_Bx=images, labels_Bx=labels)

    monkeypatch.setitem(UNPACK_BATCH, "resident", with_garbage)
    dataset, mesh, program, state = setting
    # Traced anew, so that the steps see the patched `unpack_batch`.
    again = build_program(program.network.config, mesh, program.layout, steps_per_epoch=1)
    sums = evaluate((dataset, mesh, again, state), D + 1)
    assert sums["count"] == expected[2]
    assert sums["top1"] == expected[1]
    assert sums["loss"] == pytest.approx(expected[0], rel=1e-5)
