"""Copies of encoded images: made once, whole or not at all, made again when they are stale."""

import os
import pathlib
import shutil

import numpy as np
import pytest

from jaxbench.data.images.decode import Image, _resize_to_cover
from jaxbench.data.images.encoded import Files
from jaxbench.errors import BadInput
from tests.data.encoded_images import (
    TRAIN,
    config_of,
    feed_of,
    global_batches,
    load,
    psnr_db,
    resized,
    write_imagenet2012,
)


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
    plain = global_batches(
        feed_of(config_of(folder, random_resized_crop=False, flip=False)).train_batches(0, 2)
    )
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


def test_what_is_copied_stays_good(test_data, tmp_path):
    """At the default of 256 pixels and quality 95, on real images."""
    root = tmp_path / "images"
    originals = sorted((test_data / "imagenet_sample" / "originals").rglob("*.JPEG"))
    for split, files in (("train", originals[:80]), ("val", originals[80:])):
        for place, file in enumerate(files):
            target = root / split / str(place % 2) / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file)
    config = resized(root, tmp_path, image_shape=(224, 224, 3), cache_side=256)
    dataset, _ = load(config)
    about = dataset.cache["train"]
    assert about["bytes"] < 0.6 * about["original_bytes"]
    psnrs_db = []
    for index in range(0, 80, 2):
        read, _ = dataset.train.source.read(index)
        pixels = Image(dataset.train.source._original.read(index)[0]).whole()
        smaller = _resize_to_cover(pixels, 256, 256) if min(pixels.shape[:2]) > 256 else pixels
        psnrs_db.append(psnr_db(Image(read).whole(), smaller))
    assert np.median(psnrs_db) > 36 and min(psnrs_db) > 28


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
    feed = feed_of(resized(writable, tmp_path, max_corrupt=1, batch_size=TRAIN - 1))
    list(feed.train_batches(0, 1))
    list(feed.train_batches(1, 1))
    assert list(feed.corrupt) == [str(bad)] and "JPEG" in feed.corrupt[str(bad)]
    # The copy itself is corrupt: its checksums tell.
    config = resized(writable, tmp_path, max_corrupt=1, batch_size=22)
    dataset, _ = load(config)
    [name] = dataset.train.files()
    path = pathlib.Path(name)
    whole = path.read_bytes()
    at = whole.index(dataset.train.source.read(7)[0]) + 200
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    # The original replaces it.
    feed = feed_of(config)
    list(feed.train_batches(0, 1))
    assert list(feed.corrupt) == [str(bad)]
    path.write_bytes(whole[:100] + bytes(len(whole) - 100))
    again, _ = load(config)
    assert again.cache["train"]["made"] == "now"


def test_a_missing_file_is_a_corrupt_image_and_any_name_will_do(writable, tmp_path):
    missing = writable / "train" / "ape" / "gone.jpg"
    missing.symlink_to(writable / "nowhere")
    odd = writable / "train" / "ape" / os.fsdecode(b"caf\xe9.jpg")
    shutil.copy(writable / "train" / "ape" / "000.jpg", odd)
    feed = feed_of(resized(writable, tmp_path, max_corrupt=1, batch_size=TRAIN + 1, epochs=4))
    for epoch in range(4):
        list(feed.train_batches(epoch, 1))
    assert list(feed.corrupt) == [str(missing)]


def test_a_full_disk_is_told_and_leaves_nothing_half_made(writable, tmp_path, monkeypatch):
    from array_record.python import array_record_module

    class Full:
        def __init__(self, path, options):
            pathlib.Path(path).write_bytes(b"half")

        def write(self, record):
            raise RuntimeError("write() failed: No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(array_record_module, "ArrayRecordWriter", Full)
    with pytest.raises(BadInput, match="cannot hold copies: .*No space left"):
        load(resized(writable, tmp_path))
    assert not list((tmp_path / "cache").glob("*.building"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cache": "resized", "cache_side": 16}, "must be larger than images, 24x16"),
        ({"cache": "resized", "cache_dir": "/proc/none"}, "cannot hold copies"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(folder, fields, reason):
    with pytest.raises(BadInput) as error:
        load(config_of(folder, **fields))
    assert reason in str(error.value)
