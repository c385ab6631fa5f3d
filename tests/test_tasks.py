"""What is counted for each kind of training."""

import io

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.data.sources.load import load_dataset
from jaxbench.modes.train import run_training
from jaxbench.records.reader import load_run
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.describe import describe_record
from jaxbench.tasks import get_task, pack_sums, sums_by_name
from tests.conftest import config_of, records, refusal, run_json
from tests.micro import MasksConfig, config_for

TASK = get_task("segmentation")


def masks_and_logits():
    """Twelve images: ordinary ones, and all four cases of nothing there or nothing found."""
    generator = np.random.default_rng(0)
    masks = generator.random((12, 16, 8)) < 0.3
    logits = generator.normal(size=(12, 16, 8))
    masks[0], logits[0] = False, -1.0
    masks[1], logits[1] = False, 1.0
    masks[2], logits[2] = True, -1.0
    masks[3], logits[3] = True, 1.0
    return masks.astype(np.uint8), logits.astype(np.float32)


def count(masks, logits, mask_B, smoothing=0.0):
    losses = TASK.losses(jnp.asarray(logits), jnp.asarray(masks), smoothing)
    arrays = jnp.asarray(logits), jnp.asarray(masks), jnp.asarray(mask_B)
    sums = TASK.metric_sums(losses, *arrays)
    return np.asarray(pack_sums(TASK.train_sums, sums), np.float64)


def test_dice_iou_and_accuracy_are_those_of_the_pixels():
    masks, logits = masks_and_logits()
    # In two parts, the second padded with garbage.
    garbage = np.full((2, 16, 8), np.nan, np.float32)
    sums = count(masks[:7], logits[:7], np.ones(7, bool))
    sums += count(
        np.concatenate([masks[7:], masks[:2]]),
        np.concatenate([logits[7:], garbage]),
        np.arange(7) < 5,
    )
    sums = sums_by_name(TASK.train_sums, sums)
    figures = TASK.compute(sums)
    predicted, true = logits > 0, masks > 0
    both = (predicted & true).sum()
    assert sums["count"] == 12
    assert figures["dice"] == pytest.approx(2 * both / (predicted.sum() + true.sum()), rel=1e-6)
    assert figures["iou"] == pytest.approx(both / (predicted | true).sum(), rel=1e-6)
    assert figures["pixel_accuracy"] == pytest.approx((predicted == true).mean(), rel=1e-6)
    own = [
        2 * (p & t).sum() / (p.sum() + t.sum()) if p.any() or t.any() else 1.0
        for p, t in zip(predicted, true, strict=True)
    ]
    assert own[:4] == [1, 0, 0, 1]
    assert figures["dice_per_image"] == pytest.approx(np.mean(own), rel=1e-6)
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    by_hand = -np.where(true, np.log(probability), np.log(1 - probability)).mean()
    assert figures["loss"] == pytest.approx(by_hand, rel=1e-5)


def test_smoothed_masks_are_pulled_to_one_half():
    masks, logits = masks_and_logits()
    sums = sums_by_name(TASK.train_sums, count(masks, logits, np.ones(12, bool), smoothing=0.2))
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    target = 0.8 * masks + 0.1
    by_hand = -(target * np.log(probability) + (1 - target) * np.log(1 - probability)).mean()
    assert sums["loss"] / 12 == pytest.approx(by_hand, rel=1e-5)


def test_a_split_without_foreground_is_found_whole():
    zeros = np.zeros((3, 4, 4), np.uint8)
    sums = count(zeros, zeros - np.float32(1), np.ones(3, bool))
    figures = TASK.compute(sums_by_name(TASK.train_sums, sums))
    assert figures["dice"] == figures["iou"] == figures["dice_per_image"] == 1


def test_a_segmentation_run_is_judged_by_dice(train):
    result = train("unet256:tiny", model=MasksConfig(), num_devices=2)
    first, last = records(result.run_dir.path, "epoch")
    assert last["eval_dice"] > 0.6 and last["eval_pixel_accuracy"] > 0.7
    assert last["eval_iou"] == pytest.approx(last["eval_dice"] / (2 - last["eval_dice"]), rel=1e-6)
    assert "eval_top1" not in last and "dice" in records(result.run_dir.path, "step")[0]
    assert result.summary["best_eval_dice"] == max(first["eval_dice"], last["eval_dice"])
    assert run_json(result.run_dir.path)["task"] == "segmentation"


LANGUAGE = get_task("language_model")


def test_next_tokens_loss_bits_and_accuracy_are_those_of_numpy():
    """Seven sequences in two batches, the second padded with garbage."""
    random = np.random.default_rng(0)
    logits, tokens = random.normal(size=(7, 5, 9)), random.integers(0, 9, (7, 5), np.uint8)
    padding = np.full((1, 5, 9), np.nan)
    total = 0
    for batch, labels, mask in (
        (logits[:4], tokens[:4], np.ones(4, bool)),
        (np.concatenate([logits[4:], padding]), tokens[[4, 5, 6, 0]], np.arange(4) < 3),
    ):
        arrays = jnp.asarray(batch, jnp.float32), jnp.asarray(labels)
        losses_B = LANGUAGE.losses(*arrays, 0.0)
        sums = LANGUAGE.metric_sums(losses_B, *arrays, jnp.asarray(mask))
        total = total + np.asarray(pack_sums(LANGUAGE.train_sums, sums), np.float64)
    sums = sums_by_name(LANGUAGE.train_sums, total)
    figures = LANGUAGE.compute(sums)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    own = np.take_along_axis(probabilities, tokens[..., None], -1)
    assert sums["count"] == 7
    assert figures["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-6)
    assert figures["bits_per_byte"] == pytest.approx(-np.log2(own).mean(), rel=1e-6)
    assert figures["top1"] == pytest.approx((logits.argmax(-1) == tokens).mean(), rel=1e-6)
    others = get_task("language_model", byte_tokens=False)
    assert "bits_per_byte" not in others.compute(sums)
    smoothed = LANGUAGE.losses(jnp.asarray(logits), jnp.asarray(tokens), 0.2)
    by_hand = -(0.8 * np.log(own)[..., 0] + 0.2 * np.log(probabilities).mean(-1)).mean(-1)
    np.testing.assert_allclose(smoothed, by_hand, rtol=1e-5)


class Pairs(nn.Module):
    """Logits by the token before alone."""

    num_classes: int

    @nn.compact
    def __call__(self, tokens_BxT):
        return nn.Embed(self.num_classes, self.num_classes)(tokens_BxT)


PAIRS = config_for(lambda num_classes, **_: Pairs(num_classes))


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_a_language_models_run_counts_every_token_once(tmp_path, feed):
    """People read of sequences, and records are of images."""
    fields = {"num_devices": 2, "data__feed": feed, "eval_batch_size": 48}
    config, out = config_of("gpt_bytes:tiny", model=PAIRS, **fields), io.StringIO()
    result = run_training(config, str(tmp_path / "run"), Console(out))
    for words in ("of 100 test sequences", "bits per byte", "tokens/s", "sequences/s"):
        assert words in out.getvalue()
    assert "images/s" not in out.getvalue()
    last = records(result.run_dir.path, "epoch")[-1]
    assert (last["images"], last["eval_count"]) == (256, 100)
    assert last["tokens_per_s"] == pytest.approx(64 * last["images_per_s"])
    assert last["eval_bits_per_byte"] == pytest.approx(last["eval_loss"] / np.log(2))
    table_KxK = np.asarray(result.state.params["Embed_0"]["embedding"], np.float64)
    held_out = load_dataset(config).eval
    logits = table_KxK[held_out.inputs_Nx]
    own = np.take_along_axis(logits, held_out.labels_Nx[..., None].astype(int), -1)[..., 0]
    losses = np.log(np.exp(logits).sum(-1)) - own
    assert losses.size == 6400
    assert last["eval_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert last["eval_top1"] == pytest.approx((logits.argmax(-1) == held_out.labels_Nx).mean())
    summary = result.summary
    assert summary["tokens_per_s"] == pytest.approx(64 * summary["images_per_s"])


@pytest.mark.parametrize("name", ["classification", "language_model"])
def test_only_what_is_ranked_first_is_a_hit(name):
    """Of equal logits the first class is ahead, as argmax has it, and nan is never a hit."""
    task, labels = get_task(name), np.arange(8) % 7
    logits = np.zeros((8, 7), np.float32)
    logits[7] = np.nan
    shapes = (8, 7) if name == "classification" else (8, 1, 7)
    labels = labels.reshape(shapes[:-1])
    sums = task.metric_sums(
        jnp.zeros(8), jnp.asarray(logits.reshape(shapes)), jnp.asarray(labels), jnp.ones(8, bool)
    )
    # Of rows 0 to 6 the labels are 0 to 6; row 7's is 0.
    assert float(sums["top1"]) == 1
    assert name == "language_model" or float(sums["top5"]) == 5


def test_of_fewer_than_five_classes_nan_is_no_hit():
    logits = jnp.array([[jnp.nan, 0.0, 1.0], [jnp.nan, 0.0, 1.0], [0.0, 0.0, 1.0]])
    arrays = jnp.zeros(3), logits, jnp.array([0, 2, 1]), jnp.ones(3, bool)
    sums = get_task("classification").metric_sums(*arrays)
    # nan is ahead of the second row's label; the third row's is the last of three.
    assert (float(sums["top1"]), float(sums["top5"])) == (0, 2)
    pixels = jnp.full((1, 2, 2), jnp.nan)
    arrays = jnp.zeros(1), pixels, jnp.zeros((1, 2, 2), jnp.int32), jnp.ones(1, bool)
    assert float(TASK.metric_sums(*arrays)["right"]) == 0


def test_a_denoising_run_is_judged_by_its_loss_alone(train):
    """The best epoch is that of the least loss; the last line says that there is no top-1."""
    result = train("dit:tiny", epochs=3, optimizer__learning_rate=0.02)
    epochs, summary = records(result.run_dir.path, "epoch"), result.summary
    losses = [epoch["eval_loss"] for epoch in epochs]
    assert summary["best_epoch"] == 1 + int(np.argmin(losses))
    assert summary["best_eval_loss"] == min(losses)
    assert "eval_top1" not in epochs[-1] and run_json(result.run_dir.path)["task"] == "denoising"
    line = describe_record(load_run(str(result.run_dir.path)).records[-1])[0]
    assert f"loss {losses[-1]:.4g} (the task has no top-1) of 100 test images" in line
    refusal(
        lambda: train("dit:tiny", target_accuracy=0.5),
        told="--target_accuracy=0.5: task='denoising' has a loss alone",
    )
