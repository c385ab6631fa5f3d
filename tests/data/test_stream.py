"""The streamed feed: the same batches as the resident one, prepared on the host."""

import contextlib
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.clock import Stopwatch, wait_until
from jaxbench.data.augment import augment_batch, example_keys
from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.feeds.feed import UNPACK_BATCH, create_feed
from jaxbench.data.feeds.stream import StreamFeed
from jaxbench.data.sources.load import load_dataset
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.parallel.signals import raise_on_signals
from jaxbench.precision import get_precision
from tests.conftest import MICRO, prepared, records, step_losses
from tests.in_process import fresh_process_state
from tests.micro import MasksConfig


def small(dropout=0.0, **fields):
    """Fields for vgg_cifar10:tiny that have it train a dense layer for an epoch, quickly."""
    micro = registry.load(MICRO)
    micro.model.dropout, devices = dropout, {"num_devices": micro.num_devices}
    fields = devices | {"model": micro.model, "optimizer__name": "sgd", "epochs": 1} | fields
    return {"log_every_steps": 1} | fields


NOT_DISTORTED = {"data__brightness": 0, "data__contrast": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("experiment", "fields"),
    [
        # Masks are cut and mirrored with their images; batch norm and odd sizes.
        (
            "unet256:tiny",
            {
                **{"model": MasksConfig(), "optimizer__schedule": "constant"},
                **{"data__crop_padding": 5, "data__padding_mode": "black"},
                **{"data__eval_examples": 13, "eval_batch_size": 5, "data__train_examples": 70},
            },
        ),
        # Every model has its own windows.
        ("vgg_cifar10:tiny", {"replicas": "independent"} | NOT_DISTORTED),
        # Flips, brightness, contrast and whitening; dropout.
        ("vgg_cifar10:tiny", {"data__flip_order": "alternating", "dropout": 0.5}),
    ],
)
@pytest.mark.device
@pytest.mark.usefixtures("fp32_products")
def test_both_feeds_train_the_same(train, experiment, fields):
    fields = small(**fields)
    stream = train(experiment, data__feed="stream", data__num_threads=3, **fields)
    resident = train(experiment, **fields)
    assert step_losses(stream) == pytest.approx(step_losses(resident), rel=1e-5)
    first, second = (records(result.run_dir.path, "epoch")[-1] for result in (resident, stream))
    assert first["eval_count"] == second["eval_count"]
    for name in ("eval_loss", "train_loss"):
        assert second[name] == pytest.approx(first[name], rel=1e-5)


def test_the_record_tells_the_feeds_apart():
    def described(feed):
        with prepared("vgg_cifar10:tiny", num_devices=2, data__feed=feed) as job:
            return job.document()["data"]

    resident, stream = described("resident"), described("stream")
    assert (resident["feed"], stream["feed"]) == ("resident", "stream")
    # All 356 images, or only mean and deviation.
    assert resident["resident_bytes_per_device"] > 356 * 32 * 32 * 3
    assert stream["resident_bytes_per_device"] == 2 * 3 * 4
    # 64 images, each with a label of 4 bytes and an index of 4; or the index alone.
    assert stream["sent_bytes_per_step"] == 64 * (32 * 32 * 3 + 8)
    assert resident["sent_bytes_per_step"] == 64 * 4


@pytest.mark.device
def test_waiting_for_slow_data_is_counted_as_such(train, slow_feed):
    """A host that takes its time for each batch: that is data wait, not training."""
    fields = {"data__feed": "stream", "data__num_threads": 1, "batch_size": 32, "num_devices": 1}
    slow_feed(0.05)
    result = train(MICRO, data__train_examples=256, data__eval_examples=32, **fields)
    for record in records(result.run_dir.path, "epoch"):
        # Eight batches, one after the other; about four were made ready while the step was
        # compiled, or during the evaluation before.
        assert 0.1 < record["data_wait_s"] <= record["train_time_s"]


def test_the_next_epoch_is_prepared_during_the_evaluation(monkeypatch):
    """And no batch is prepared twice, nor one that comes after the run."""
    feed, prepared = feed_of(monkeypatch, num_threads=1)
    feed._num_steps = 32
    assert len(list(feed.train_batches(0, 16))) == 16
    first = next(feed.train_batches(1, 1))
    assert int(first["epoch"][0]) == 1
    assert len(list(feed.train_batches(1, 15, first_step=1))) == 15
    assert len(prepared) == len(set(prepared)) == 32
    assert [epoch for _, epoch, _ in prepared] == [0] * 16 + [1] * 16


def test_threads_end_with_the_epoch_that_is_cut_short(train):
    """A thread of Grain's ends a little later: of two runs one may be left."""
    before = threading.active_count()
    for _ in range(2):
        train(MICRO, data__feed="stream", max_steps=1)
    assert threading.active_count() <= before + 1


@pytest.mark.device
def test_masks_move_with_their_images():
    """Masks that are a copy of a channel must be one after cropping and mirroring."""
    config = registry.load("unet256:tiny")
    config.data.crop_padding, config.num_devices = 5, 1
    images = np.random.default_rng(0).integers(0, 2, (32, 32, 32, 3), dtype=np.uint8)
    split = Split(images, images[..., 0].copy())
    dataset = Dataset(description="", train=split, eval=split, num_classes=2)
    feed = create_feed(config, dataset, *create_training_mesh(config))
    batch = jax.tree.map(lambda leaf: leaf[0], next(feed.train_batches(0, 1)))
    examples = UNPACK_BATCH[feed.name](feed.train_data, batch, jnp.int32(0))
    keys = example_keys(examples.seed, examples.epoch, examples.indices_B)
    examples, _ = augment_batch(examples, keys, config.data, get_precision("fp32"))
    shown = np.asarray(examples.inputs_Bx)
    assert np.array_equal(np.asarray(examples.labels_Bx), shown[..., 0])
    moved = shown != images[np.asarray(examples.indices_B)]
    assert moved.any((1, 2, 3)).all()


def feed_of(monkeypatch, **fields):
    """A feed of 16 small batches, and the thread, epoch and order of each that is prepared."""
    prepared = []
    genuine = StreamFeed.assemble

    def note(self, split, order_DxB, epoch):
        watch = Stopwatch()
        wait_until(lambda: watch.elapsed_s() > 0.01)
        prepared.append((threading.get_ident(), epoch, order_DxB.tobytes()))
        return genuine(self, split, order_DxB, epoch)

    monkeypatch.setattr(StreamFeed, "assemble", note)
    config = registry.load("vgg_cifar10:tiny")
    config.data.feed, config.num_devices, config.batch_size = "stream", 1, 16
    config.epochs = 1
    for name, value in fields.items():
        setattr(config.data, name, value)
    feed = create_feed(config, load_dataset(config), *create_training_mesh(config))
    return feed, prepared


@pytest.mark.parametrize("split", ["train", "eval"])
def test_ctrl_c_while_the_sending_thread_starts_ends_it(monkeypatch, split):
    """Grain's iterator has the thread before it runs, and `close` joins it."""
    feed, _ = feed_of(monkeypatch, num_threads=1)
    genuine = threading.Thread.start

    def start(thread):
        if thread.name.startswith("grain-thread-prefetch"):
            sending.append(thread)
            signal.raise_signal(signal.SIGINT)
        genuine(thread)

    sending = []
    monkeypatch.setattr(threading.Thread, "start", start)
    with fresh_process_state():
        raise_on_signals()
        with contextlib.closing(feed), pytest.raises(KeyboardInterrupt):
            next(feed.train_batches(0, 2) if split == "train" else feed.eval_batches())
    assert len(sending) == 1 and not sending[0].is_alive()


@pytest.mark.parametrize("num_threads", [1, 4])
def test_as_many_threads_prepare_as_asked_for(monkeypatch, num_threads):
    feed, prepared = feed_of(monkeypatch, num_threads=num_threads)
    assemble, meeting = StreamFeed.assemble, threading.Barrier(num_threads)

    def meet(self, *args):  # so each thread prepares, however busy the machine is
        meeting.wait(30)
        return assemble(self, *args)

    monkeypatch.setattr(StreamFeed, "assemble", meet)
    assert len(list(feed.train_batches(0, 16))) == len(prepared) == 16
    assert len({thread for thread, _, _ in prepared}) == num_threads


def test_as_many_batches_are_kept_ready_as_asked_for(monkeypatch):
    ahead = {}
    for depth in (1, 8):
        feed, prepared = feed_of(monkeypatch, num_threads=1, prefetch_batches=depth)
        next(feed.train_batches(0, 16))
        watch = Stopwatch()
        wait_until(lambda watch=watch: watch.elapsed_s() > 1)
        ahead[depth] = len(prepared)
        feed.close()
    assert 2 <= ahead[1] <= 6 and ahead[8] == ahead[1] + 7
