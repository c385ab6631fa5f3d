"""Folders streamed: the same batches whoever decodes them, every example once."""

import errno
import os
import pathlib
import re
import shutil
import types

import numpy as np
import pytest

from jaxbench.batch_layout import BatchLayout
from jaxbench.data.feeds.feed import create_feed
from jaxbench.data.images.decode import CropBox
from jaxbench.data.images.encoded import ExampleDraws, Files
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import RunFailed
from jaxbench.modes.train import run_training
from jaxbench.parallel.mesh import create_mesh, create_training_mesh
from tests.conftest import refusal, run_json
from tests.data.encoded_images import (
    EVAL,
    TRAIN,
    check_same,
    check_tfds_images,
    config_of,
    feed_of,
    global_batches,
    load,
    resized,
    spoil,
    write_imagenet2012,
)
from tests.data.test_decode import WARNED

RESIDENT = {"feed": "resident", "random_resized_crop": False}


def test_no_example_is_cropped_by_the_numbers_that_order_the_epoch():
    order = np.random.Generator(np.random.Philox(key=[3, 2])).random(1000)
    crops = np.array([ExampleDraws(3, 2).of(index) for index in range(50)])
    assert not np.isin(crops, order).any() and len(np.unique(crops)) == crops.size


def batches(folder, epoch, steps, first_step=0, **fields):
    """The first global batches of an epoch."""
    return global_batches(
        feed_of(config_of(folder, **fields)).train_batches(epoch, steps, first_step=first_step)
    )


def test_threads_and_devices_change_no_pixel(folder):
    reference = batches(folder, 1, 2)
    for fields in ({"num_threads": 1}, {"num_threads": 8}, {"num_devices": 4, "num_threads": 3}):
        check_same(reference, batches(folder, 1, 2, **fields))
    for fields in ({"seed": 4}, {"random_resized_crop": False, "flip": False}):
        other = batches(folder, 1, 2, **fields)
        assert not np.array_equal(reference[0]["images"], other[0]["images"])
    assert not np.array_equal(reference[0]["indices"], batches(folder, 0, 2)[0]["indices"])


def test_an_epoch_taken_up_in_the_middle_goes_on_the_same_and_reads_nothing_else(
    folder, monkeypatch
):
    whole = batches(folder, 2, 5, batch_size=4)
    read = []
    genuine = Files.read
    monkeypatch.setattr(Files, "read", lambda self, i: read.append(i) or genuine(self, i))
    rest = batches(folder, 2, 2, first_step=3, batch_size=4)
    check_same(whole[3:], rest)
    assert sorted(read) == sorted(np.concatenate([batch["indices"] for batch in rest]))


def test_tfds_images_of_any_size_are_decoded_on_the_fly(tmp_path):
    check_tfds_images(tmp_path, num_workers=0)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("train/bee/005.jpg", {"replicas": "independent", "num_devices": 2}),
        ("val/ape/002.jpg", {}),
    ],
)
def test_a_corrupt_image_ends_the_run_in_one_line_that_names_it(folder, tmp_path, name, fields):
    root = spoil(folder, tmp_path / "corrupt", [name])
    config = config_of(root, batch_size=TRAIN, standardization="dataset", **fields)
    with pytest.raises(RunFailed) as error:
        run_training(config, str(tmp_path / "run"))
    line = str(error.value)
    assert line.startswith(f"{root / name}: ") and "JPEG" in line and "\n" not in line
    document = run_json(tmp_path / "run")
    assert document["reason"] == line and document["data"]["statistics"] == "ImageNet's"
    assert document["data"]["mean"] == [123.675, 116.28, 103.53]


@pytest.mark.parametrize("fields", [{}, RESIDENT, {"cache": "resized", "cache_side": 25}])
def test_images_of_which_libjpeg_warns_are_counted_once_a_run(folder, tmp_path, fields):
    """Whoever decodes them, in each epoch, and from smaller copies, too."""
    root = spoil(folder, tmp_path / "warned", [])
    odd = [root / name for name in ("train/ape/000.jpg", "train/bee/003.jpg", "val/ape/002.jpg")]
    for file in odd:
        file.write_bytes(WARNED["an odd scan"](file.read_bytes()))
    config = config_of(root, epochs=3, **fields | {"cache_dir": str(tmp_path / "cache")})
    config.optimizer.base_batch_size = 8
    run_training(config, str(tmp_path / "run"))
    warnings = [w for w in run_json(tmp_path / "run")["summary"]["warnings"] if "although" in w]
    counts = [int(warning.split()[0]) for warning in warnings]
    assert sum(counts) == 3 and len(counts) == 1 + (fields == RESIDENT)
    named = [str(file) for file in odd if any(str(file) in warning for warning in warnings)]
    assert len(named) == len(counts) and "Invalid SOS parameters" in warnings[0]


def test_in_sixteen_epochs_all_damage_is_told_wherever_the_crops_are(folder, tmp_path, monkeypatch):
    def above_the_end(_, height, width):
        return CropBox(0, 0, height // 2, width)

    monkeypatch.setattr("jaxbench.data.images.encoded.draw_crop_box", above_the_end)
    root = spoil(folder, tmp_path / "damaged", [])
    files = sorted(str(file) for file in (root / "train").glob("*/*.jpg"))
    for file in map(pathlib.Path, files):
        content = file.read_bytes()
        file.write_bytes(content[:-2] + bytes(20) + content[-2:])  # only leaves bytes over
    feed = feed_of(config_of(root, batch_size=TRAIN))
    told = [set(feed.image_warnings) for _ in feed.host_batches(0, 16)]
    assert told[0] < told[-1] == set(files)


def limits(monkeypatch, shared=2**30, files=1024):
    """A container with so many bytes of shared memory, 8 MiB of them taken, and open files."""
    blocks = {"f_frsize": 4096, "f_blocks": shared // 4096, "f_bavail": shared // 4096 - 2**11}
    monkeypatch.setattr("os.statvfs", lambda path: types.SimpleNamespace(**blocks))
    monkeypatch.setattr("resource.getrlimit", lambda name: (files, files))


def test_workers_without_shared_memory_or_files_are_refused_and_told_what_helps(
    folder, monkeypatch
):
    """The advised sizes are enough, and so is no worker."""
    config = config_of(folder, num_workers=4, image_shape=(224, 224, 3))
    limits(monkeypatch, shared=2**24)
    line = refusal(feed_of, config, told="in /dev/shm, and may need")
    assert "8 of 16 MiB free" in line
    limits(monkeypatch, shared=int(re.search(r"--shm-size=(\d+)m", line)[1]) * 2**20)
    feed_of(config)
    limits(monkeypatch, files=32)
    assert "`ulimit -n` allows 32" in (line := refusal(feed_of, config, told="files will be open"))
    limits(monkeypatch, files=int(re.search(r"\(ulimit -n (\d+)\)", line)[1]))
    feed_of(config)
    limits(monkeypatch, shared=2**16, files=32)
    assert "--experiment.data.num_workers=0" in line
    config.data.num_workers = 0
    feed_of(config)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "/dev/shm, in which"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "`ulimit -u`"),
        (RuntimeError("can't start new thread"), "`ulimit -u`"),
        (OSError(errno.EMFILE, "Too many open files", "/psm_1"), "`ulimit -n` allows"),
        (RuntimeError("open() failed: Too many open files"), "`ulimit -n` allows"),
        (RuntimeError("Worker process was terminated unexpectedly"), "room in /dev/shm"),
    ],
)
@pytest.mark.parametrize("when", ["started", "read"])
def test_what_limits_make_of_workers_is_explained(folder, monkeypatch, error, told, when):
    class Ahead:
        def start_prefetch(self):
            if when == "started":
                raise error

        def __next__(self):
            raise error

        def close(self):
            raise OSError(errno.EMFILE, "Too many open files")

    feed = feed_of(config_of(folder, num_workers=1))
    monkeypatch.setattr(feed, "_sent_ahead", lambda *args, **options: Ahead())
    with pytest.raises(RunFailed, match=re.escape(told)) as raised:
        list(feed.train_batches(0, 1))
    assert "--experiment.data.num_workers=0" in str(raised.value)
    feed.close()


@pytest.mark.parametrize("fields", [{}, RESIDENT])
def test_no_image_is_corrupt_because_too_many_files_are_open(folder, monkeypatch, fields):
    def no_more(path, *args, **options):
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr("jaxbench.data.images.encoded.open_regular", no_more)
    with pytest.raises(RunFailed, match="too many open files: `ulimit -n` allows"):
        list(feed_of(config_of(folder, **fields)).train_batches(0, 1))


def test_an_empty_file_and_a_label_of_no_class_are_corrupt(folder, tmp_path):
    root = spoil(folder, tmp_path / "corrupt", [])
    file = root / "train/ape/000.jpg"
    file.write_bytes(b"")
    config = config_of(root, batch_size=TRAIN)
    dataset = load_dataset(config)
    feed = create_feed(config, dataset, *create_training_mesh(config))
    with pytest.raises(RunFailed, match=re.escape(f"{file}: an empty file")):
        list(feed.train_batches(0, 1))
    dataset.eval.source.labels_N[0] = 2
    with pytest.raises(RunFailed, match="jpg: label 2 is not within 0 to 1"):
        list(feed.eval_batches())


@pytest.mark.parametrize(("replicas", "models"), [("data_parallel", 1), ("independent", 4)])
def test_each_process_reads_its_share_and_together_they_read_all(
    folder, monkeypatch, replicas, models
):
    """2 processes of 2 devices each show what 1 process of 4 shows."""
    read, genuine = [], Files.read
    monkeypatch.setattr(Files, "read", lambda self, i: read.append(i) or genuine(self, i))

    def shown(process):
        read.clear()
        config = config_of(folder, replicas=replicas, eval_batch_size=5, epochs=1)
        config.num_devices = 4 // process[1]
        mesh, layout = create_mesh(config), BatchLayout.create(config, 4, process)
        feed = create_feed(config, load_dataset(config), mesh, layout)
        steps = [*global_batches(feed.train_batches(0, 2)), *global_batches(feed.eval_batches())]
        feed.close()
        return steps, list(read)

    (whole, read_whole), *parts = (shown(process) for process in ((0, 1), (0, 2), (1, 2)))
    together = [
        {name: np.concatenate([one[name], other[name]]) for name in one}
        for one, other in zip(*(steps for steps, _ in parts), strict=True)
    ]
    check_same(whole, together)
    read_by_each = [batches for _, batches in parts]
    assert len(read_whole) == models * (16 + EVAL) and min(map(len, read_by_each)) > 0
    assert sorted(sum(read_by_each, [])) == sorted(read_whole)


def test_a_set_is_known_by_its_images_names_and_order(folder, tmp_path):
    """Wherever it lies; a host that has another one is found out."""
    shutil.copytree(folder, tmp_path / "copy")
    here, elsewhere = (load_dataset(config_of(at)) for at in (folder, tmp_path / "copy"))
    assert here.fingerprint() == elsewhere.fingerprint()
    (tmp_path / "copy/train/ape/000.jpg").rename(tmp_path / "copy/train/bee/000.jpg")
    other = load_dataset(config_of(tmp_path / "copy"))
    assert other.fingerprint() != here.fingerprint()
    # Another image of the same name.
    shutil.copytree(folder, tmp_path / "changed")
    shutil.copyfile(folder / "train/ape/002.jpg", tmp_path / "changed/train/ape/000.jpg")
    changed = load_dataset(config_of(tmp_path / "changed"))
    assert changed.fingerprint() != here.fingerprint()


def test_copies_are_made_once_and_show_nearly_the_same(folder, tmp_path, monkeypatch):
    config = resized(folder, tmp_path, random_resized_crop=False, flip=False)
    dataset, lines = load(config)
    assert [dataset.cache[name]["made"] for name in ("train", "eval")] == ["now"] * 2
    assert dataset.cache["train"]["examples"] == TRAIN and dataset.cache["kind"] == "resized"
    about = dataset.cache["train"]
    assert about["build_s"] > 0 and about["bytes"] > 0
    assert any("making smaller copies" in line for line in lines)
    # Once more: nothing is made, and no original is opened.
    monkeypatch.setattr(Files, "read", None)
    again, lines = load(config)
    assert [again.cache[name]["made"] for name in ("train", "eval")] == ["before"] * 2
    assert again.cache["train"]["build_s"] == about["build_s"]
    copied = global_batches(feed_of(config).train_batches(0, 2))
    monkeypatch.undo()
    plain = batches(folder, 0, 2, random_resized_crop=False, flip=False)
    for one, other in zip(copied, plain, strict=True):
        assert np.array_equal(one["labels"], other["labels"])
        assert np.array_equal(one["indices"], other["indices"])
        assert np.abs(one["images"].astype(int) - other["images"]).mean() < 8


def test_copies_belong_to_the_folder_that_is_read(tmp_path, monkeypatch):
    """Found by a default or a variable, from any working directory; those of another are others."""
    for name in ("one", "other"):
        write_imagenet2012(tmp_path / name)
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)

    def made(folder, path=""):
        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / folder))
        config = resized(path, tmp_path, source="tfds", eval_split="validation")
        config.data.name = "imagenet2012"
        return load(config)[0].cache["train"]["made"]

    assert made("one") == "now"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert made("one") == made("to-one") == made("other", tmp_path / "one") == "before"
    assert made("other") == "now"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda copy, writable: os.utime(writable / "train" / "ape" / "000.jpg", (1, 1)),
        lambda copy, writable: (writable / "train" / "ape" / "000.jpg").unlink(),
        lambda copy, writable: (copy / "about.json").write_text("{"),
        lambda copy, writable: os.truncate(copy / "images.array_record", 1000),
        lambda copy, writable: copy.rename(f"{copy}.building"),
    ],
)
def test_stale_and_half_written_copies_are_made_again(writable, tmp_path, spoil):
    config = resized(writable, tmp_path)
    dataset, _ = load(config)
    spoil(tmp_path / "cache" / os.path.basename(dataset.cache["train"]["folder"]), writable)
    again, lines = load(config)
    assert again.cache["train"]["made"] == "now"
    assert any("making smaller copies" in line for line in lines)
    feed = feed_of(config)
    assert len(global_batches(feed.train_batches(0, 2))) == 2
    assert not list((tmp_path / "cache").glob("*.building"))


def test_a_corrupt_image_is_told_by_its_originals_name(writable, tmp_path):
    bad = writable / "train" / "bee" / "005.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    config = resized(writable, tmp_path, batch_size=TRAIN)
    named = f"{re.escape(str(bad))}: .*JPEG"
    with pytest.raises(RunFailed, match=named):
        list(feed_of(config).train_batches(0, 1))
    # The copy itself is corrupt: its checksums tell, and the original replaces it.
    dataset, _ = load(config)
    [name] = dataset.train.files()
    path = pathlib.Path(name)
    whole = path.read_bytes()
    at = whole.index(dataset.train.source.read(7)[0]) + 200
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(RunFailed, match=named):
        list(feed_of(config).train_batches(0, 1))
    path.write_bytes(whole[:100] + bytes(len(whole) - 100))
    again, _ = load(config)
    assert again.cache["train"]["made"] == "now"


def test_a_missing_file_is_a_corrupt_image_and_any_name_will_do(writable, tmp_path):
    missing = writable / "train" / "ape" / "gone.jpg"
    missing.symlink_to(writable / "nowhere")
    odd = writable / "train" / "ape" / os.fsdecode(b"caf\xe9.jpg")
    shutil.copy(writable / "train" / "ape" / "000.jpg", odd)
    config = resized(writable, tmp_path, batch_size=TRAIN + 2)
    with pytest.raises(RunFailed, match=f"{re.escape(str(missing))}: No such file"):
        list(feed_of(config).train_batches(0, 1))
    missing.unlink()
    config.batch_size = TRAIN + 1
    assert len(list(feed_of(config).train_batches(0, 1))) == 1


def test_a_full_disk_is_told_and_leaves_no_half_made_copy(writable, tmp_path, monkeypatch):
    from array_record.python import array_record_module

    class Full:
        def __init__(self, path, options):
            pathlib.Path(path).write_bytes(b"half")

        def write(self, record):
            raise RuntimeError("write() failed: No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(array_record_module, "ArrayRecordWriter", Full)
    assert "No space left" in refusal(load, resized(writable, tmp_path), told="cannot hold copies")
    assert not list((tmp_path / "cache").glob("*.building"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image_shape": (24, 16, 1)}, "on the fly have 3 channels"),
        ({"cache": "resized", "cache_side": 16}, "must be larger than images, 24x16"),
        ({"cache": "resized", "cache_dir": "/proc/none"}, "cannot hold copies"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(folder, fields, told):
    refusal(feed_of, config_of(folder, **fields), told=told)
