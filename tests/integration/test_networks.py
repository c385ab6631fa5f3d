"""Real networks, whole recipes: what the fast half asks of the smallest network, asked of these."""

import jax
import numpy as np
import pytest

from tests.conftest import records, run_json, step_losses

AUGMENTED = {
    "data__crop_padding": 1,
    "data__flip": True,
    "batch_norm": "sync",
    "log_every_steps": 1,
}


def relative_difference(losses, reference):
    assert len(losses) == len(reference) > 0
    return np.max(np.abs(np.array(losses) / np.array(reference) - 1))


def test_any_number_of_devices_gives_the_same_whole_run_in_fp64(train):
    results = {
        devices: train(
            num_devices=devices,
            epochs=4,
            precision="fp64",
            batch_size=64,
            data__train_examples=320,
            data__eval_examples=90,
            **AUGMENTED,
        )
        for devices in (1, 8)
    }
    reference = step_losses(results[1])
    # The run learns something, so that agreement is not that of standing still.
    assert reference[-1] < 0.7 * reference[0]
    assert relative_difference(step_losses(results[8]), reference) < 1e-8
    for key in ("eval_loss", "eval_top1"):
        assert results[8].summary[key] == pytest.approx(results[1].summary[key], rel=1e-8)


def test_a_transformer_trains_alike_on_any_number_of_devices_and_with_remat(train):
    """In fp64, with mixup and RandAugment; with `remat=blocks` on eight devices."""
    fields = {"precision": "fp64", "log_every_steps": 1, "data__crop_padding": 4, "epochs": 3}
    fields |= {"data__mixup": 0.2, "data__rand_augment": (2, 10), "optimizer__learning_rate": 0.01}
    one = train("vit_cifar10:tiny", num_devices=1, **fields)
    eight = train("vit_cifar10:tiny", num_devices=8, remat="blocks", **fields)
    reference = step_losses(one)
    # It trains: the first step's logits are all 0, whatever the images.
    assert reference[0] == pytest.approx(np.log(10)) and np.std(reference) > 1e-3
    assert relative_difference(step_losses(eight), reference) < 1e-8
    assert eight.summary["eval_loss"] == pytest.approx(one.summary["eval_loss"], rel=1e-8)


@pytest.mark.parametrize(
    ("experiment", "fields"),
    [
        ("gpt_bytes:tiny", {}),
        pytest.param(
            *("vit_cifar10:tiny", {"remat": "blocks", "gradient_accumulation_steps": 2}),
            marks=pytest.mark.slow,
        ),
        ("quickstart:tiny", {"batch_norm": "sync"}),
    ],
)
def test_a_split_state_trains_as_a_whole_one_does(train, experiment, fields):
    fields = {"num_devices": 8, "precision": "fp64", "log_every_steps": 1, "epochs": 1} | fields
    whole = train(experiment, **fields)
    split = train(experiment, parallelism="fsdp", **fields)
    losses = step_losses(whole)
    assert np.std(losses) > 1e-3
    assert relative_difference(step_losses(split), losses) < 1e-9
    assert split.summary["eval_loss"] == pytest.approx(whole.summary["eval_loss"], rel=1e-9)
    for path, leaf in jax.tree_util.tree_leaves_with_path(split.state.params):
        is_split = leaf.addressable_shards[0].data.size < leaf.size
        assert is_split == (leaf.ndim > 1 and any(size % 8 == 0 for size in leaf.shape)), path


def test_both_feeds_train_the_same_with_every_variation(train):
    """Crop, alternating flips, brightness, contrast, whitening and dropout, over two epochs."""
    fields = {"num_devices": 4, "data__flip_order": "alternating", "log_every_steps": 1}
    resident = train("vgg_cifar10:tiny", **fields)
    stream = train("vgg_cifar10:tiny", data__feed="stream", data__num_threads=3, **fields)
    assert step_losses(stream) == pytest.approx(step_losses(resident), rel=1e-5)
    first, second = (records(result.run_dir.path, "epoch")[-1] for result in (resident, stream))
    for name in ("eval_count", "eval_loss", "train_loss"):
        assert second[name] == pytest.approx(first[name], rel=1e-5)


def test_resnet50_trains_from_real_folders_through_the_stream(train, test_data):
    result = train(
        "resnet50:tiny",
        num_devices=8,
        data__source="folder",
        data__feed="stream",
        data__random_resized_crop=True,
        data__eval_split="val",
        data__path=str(test_data / "imagenet_sample" / "imagenette_tiny"),
        data__train_examples=0,
        data__eval_examples=0,
        epochs=4,
        optimizer__learning_rate=0.05,
    )
    epochs = records(result.run_dir.path, "epoch")
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    assert epochs[-1]["eval_count"] == 60 and epochs[-1]["images"] == 192
    document = run_json(result.run_dir.path)
    assert document["data"]["feed"] == "stream" and document["data"]["num_threads"] >= 1


@pytest.mark.parametrize("positions", ["rotary", pytest.param("learned", marks=pytest.mark.slow)])
def test_a_language_model_trains_the_same_on_any_number_of_devices(train, positions):
    """The whole run in fp64, and blocks that are computed again change nothing."""
    fields = {
        "model__positions": positions,
        "precision": "fp64",
        "log_every_steps": 1,
        "optimizer__warmup_epochs": 0,
        "data__eval_examples": 21,
    }
    one = train("gpt_bytes:tiny", num_devices=1, **fields)
    eight = train(
        "gpt_bytes:tiny", num_devices=8, parallelism="shard_map", remat="blocks", **fields
    )
    reference = step_losses(one)
    assert reference[-1] < 0.8 * reference[0]
    assert relative_difference(step_losses(eight), reference) < 1e-8
    for key in ("eval_bits_per_byte", "eval_top1"):
        assert eight.summary[key] == pytest.approx(one.summary[key], rel=1e-8)
    assert eight.summary["eval_count"] == 21


def test_a_language_model_learns_the_same_from_either_feed(train):
    fields = {"num_devices": 4, "log_every_steps": 1, "gradient_accumulation_steps": 2}
    resident = train("gpt124m_synthetic:tiny", **fields)
    stream = train("gpt124m_synthetic:tiny", data__feed="stream", **fields)
    losses = step_losses(resident)
    assert losses[-1] < losses[0]
    assert step_losses(stream) == pytest.approx(losses, rel=1e-5)
