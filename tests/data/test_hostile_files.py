"""Data sets made to run code, to crash the process or to fill its memory: one line each."""

import json
import os
import pickle
import struct
import time
import zipfile

import numpy as np
import pytest

from jaxbench.config import DataConfig
from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.sources import cifar10_batches, feature_classes, npz, tfds
from jaxbench.data.sources.load import load_dataset
from jaxbench.data.sources.pickled_arrays import as_array, as_labels, read_pickle
from jaxbench.errors import BadInput
from tests.data.encoded_images import config_of
from tests.data.test_sources import arrays, write_batches
from tests.tfds_files import image_feature, write_tfds

# A class of a module that notes its import, under each name and in each place that TFDS reads.
_EVIL = "hostile_feature.Feature"
_IN = "tensorflow_datasets.core.features."
_FEATURES = {
    "by JSON's name": {"pythonClassName": _EVIL, "text": {}},
    "by protobuf's name": {"python_class_name": _EVIL, "text": {}},
    "in a sequence": {
        "pythonClassName": f"{_IN}sequence_feature.Sequence",
        "sequence": {"feature": {"pythonClassName": _EVIL, "text": {}}, "length": "-1"},
    },
    "in a text of JSON": {
        "pythonClassName": f"{_IN}sequence_feature.Sequence",
        "jsonFeature": {"json": json.dumps({"feature": {"type": _EVIL, "content": {}}})},
    },
    "beside TFDS's own": {"pythonClassName": f"{_IN}hostile_feature.Feature", "text": {}},
}


def tfds_folder(root, feature):
    image = np.zeros((8, 8, 3), np.uint8)
    features = {"image": image_feature(3), "label": feature}
    write_tfds(root, "evil", features, {"train": [{"image": image, "label": 0}], "test": []})
    return root / "evil" / "1.0.0"


def tfds_error(root):
    with pytest.raises(BadInput) as error:
        tfds.load(DataConfig(name="evil", path=str(root)))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("where", _FEATURES)
def test_a_tfds_folder_imports_nothing(tmp_path, monkeypatch, where):
    (tmp_path / "hostile_feature.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    tfds_folder(tmp_path, _FEATURES[where])
    assert "names the class" in tfds_error(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_tfds_folder_of_the_old_form_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "hostile_feature.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tfds_folder(tmp_path, image_feature(3))
    (folder / "features.json").write_text(json.dumps({"type": _EVIL, "content": {}}))
    assert "names the class" in tfds_error(tmp_path)
    # Where TFDS would look for a version to prepare.
    with pytest.raises(BadInput, match="names the class"):
        feature_classes.check_folders_below(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_classes_that_are_read_are_all_of_tfds_own():
    from tensorflow_datasets.core.features.feature import FeatureConnector

    own = {name for name in FeatureConnector._registered_features if name.startswith(_IN)}
    assert own == {_IN + name for name in feature_classes._CLASSES}


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json", "evil-train.extra"])
def test_a_pipe_in_a_tfds_folder_does_not_block(tmp_path, name):
    folder = tfds_folder(tmp_path, _FEATURES["by JSON's name"])
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "regular file" in tfds_error(tmp_path)


def test_a_tfds_split_of_terabytes_is_refused(tmp_path):
    label = {"classLabel": {"numClasses": "2"}}
    label["pythonClassName"] = f"{_IN}class_label_feature.ClassLabel"
    folder = tfds_folder(tmp_path, label)
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace('"shardLengths": ["1"]', '"shardLengths": ["9" ]'))
    text = info.read_text().replace('["9" ]', f'["{2**40}"]')
    info.write_text(text)
    error = tfds_error(tmp_path)
    assert "free memory" in error or "corrupt or unreadable" in error


def test_a_tfds_splits_name_steers_no_terminal(tmp_path):
    label = {"classLabel": {"numClasses": "2"}}
    label["pythonClassName"] = f"{_IN}class_label_feature.ClassLabel"
    info = tfds_folder(tmp_path, label) / "dataset_info.json"
    info.write_text(info.read_text().replace('"train"', '"tra\\u001b[2J\\nin"'))
    error = tfds_error(tmp_path)
    assert "it has tra?[2J?in" in error and error.isprintable()


# Pickles -------------------------------------------------------------------------------------


def content(keys, labels=10):
    data = np.random.default_rng(0).integers(0, 256, (10, 3072), dtype=np.uint8)
    return {keys("data"): data, keys("labels"): [3] * labels, keys("filenames"): [keys("a.png")]}


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("keys", [str, str.encode], ids=["text", "bytes"])
@pytest.mark.parametrize("order", "CF")
def test_pickles_of_all_protocols_are_read(protocol, keys, order):
    made = content(keys)
    made[keys("data")] = np.array(made[keys("data")], order=order)
    found = read_pickle(pickle.dumps(made, protocol=protocol))
    assert set(found) == {"data", "labels", "filenames"}
    assert np.array_equal(as_array(found["data"]), made[keys("data")])
    assert as_labels(found["labels"]).tolist() == [3] * 10


def short_text(text):
    return b"U" + bytes([len(text)]) + text


def python2_batch(pixels):
    """A batch as Python 2 wrote those that are handed out: protocol 2, all text in bytes."""
    return b"".join(
        [
            *(b"\x80\x02}q\x01(", short_text(b"data"), b"q\x02"),
            *(b"cnumpy.core.multiarray\n_reconstruct\nq\x03", b"cnumpy\nndarray\nq\x04"),
            *(b"K\x00\x85q\x05", short_text(b"b"), b"\x87q\x06Rq\x07"),
            *(b"(K\x01", b"J" + struct.pack("<i", len(pixels)), b"M\x00\x0c\x86q\x08"),
            *(b"cnumpy\ndtype\nq\x09", short_text(b"u1"), b"K\x00K\x01\x87q\x0aRq\x0b"),
            *(b"(K\x03", short_text(b"|"), b"NNN", b"J\xff\xff\xff\xff" * 2, b"K\x00tb\x89"),
            *(b"T" + struct.pack("<i", pixels.size), pixels.tobytes(), b"tb"),
            *(short_text(b"labels"), b"]q\x0c(", b"K\x06" * len(pixels), b"eu."),
        ]
    )


def test_a_batch_of_python_2_is_read(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 256, (7, 3072), dtype=np.uint8)
    written = python2_batch(pixels)
    own = pickle.loads(written, encoding="bytes")  # it is one
    assert np.array_equal(own[b"data"], pixels)
    folder = write_batches(tmp_path / "batches")
    (folder / "test_batch").write_bytes(written)
    split = cifar10_batches.load(DataConfig(path=str(folder))).eval
    assert split.labels_Nx.tolist() == [6] * 7
    assert np.array_equal(split.images_NxHxWxC.transpose(0, 3, 1, 2).reshape(7, 3072), pixels)


class Reduced:
    """Pickles as the calls that are given."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def pointers():
    """An array of objects whose pointers are bytes of the file, with a type that hides it."""
    kind = Reduced(np.dtype, ("O8", False, True), (3, "|", None, None, None, 8, 8, 0))
    state = (1, (4,), kind, False, b"A" * 32)
    return Reduced(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state)


HUGE = struct.pack("<Q", 2**40)
NESTED = b"\x80\x02})" + b"\x85" * 200_000
ATTACKS = {
    "pointers": pickle.dumps({b"data": np.zeros((4, 3072), "u1"), b"labels": pointers()}, 2),
    "deep keys": NESTED + b"K\x01s.",
    "doubling keys": b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.",
    "a far memo": b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".",
    "a far memo in text": b"\x80\x02}p" + b"9" * 30 + b"\n.",
    "long bytes": b"\x80\x05\x96" + HUGE + b"x.",
    "long text": b"\x80\x05\x8d" + HUGE + b"x.",
    "a codec": pickle.dumps(Reduced(__import__("_codecs").encode, ("x", "evil")), protocol=2),
    "a class": b"\x80\x02cnumpy\nndarray\n}b.",
    "no end": b"\x80\x02}",
    "nothing": b"",
    "an empty stack": b"\x80\x020.",
    "a mark too many": b"\x80\x02(}.",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_pickle_is_one_line(tmp_path, attack):
    folder = write_batches(tmp_path / "batches")
    (folder / "data_batch_1").write_bytes(ATTACKS[attack])
    with pytest.raises(BadInput, match="data_batch_1: corrupt or not a CIFAR-10 batch") as error:
        cifar10_batches.load(DataConfig(path=str(folder)))
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({b"data": np.zeros((10, 3072), np.int8)}, "expected uint8"),
        ({b"data": [[0] * 3072]}, "where an array is expected"),
        ({b"labels": [0.5] * 10}, "not allowed"),
        ({b"labels": [2**31] * 10}, "no list of whole numbers"),
        ({b"labels": [[0]] * 10}, "no list of whole numbers"),
    ],
)
def test_other_arrays_and_labels_are_told(tmp_path, changes, told):
    folder = write_batches(tmp_path / "batches", **{"x": 1})
    (folder / "test_batch").write_bytes(pickle.dumps(content(str.encode) | changes, protocol=2))
    with pytest.raises(BadInput, match=told):
        cifar10_batches.load(DataConfig(path=str(folder)))


def test_an_array_has_as_many_bytes_as_its_shape_says():
    written = python2_batch(np.zeros((7, 3072), np.uint8))
    claimed = written.replace(b"J" + struct.pack("<i", 7), b"J" + struct.pack("<i", 2**30))
    with pytest.raises(ValueError, match="not as many as its shape says"):
        as_array(read_pickle(claimed)["data"])


def test_a_pipe_among_the_batches_does_not_block(tmp_path):
    folder = write_batches(tmp_path / "batches")
    (folder / "data_batch_2").unlink()
    os.mkfifo(folder / "data_batch_2")
    with pytest.raises(BadInput, match="is no regular file"):
        cifar10_batches.load(DataConfig(path=str(folder)))


# Image files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_a_pipe_and_a_file_with_holes_are_no_images(own, feed, no_waiting):
    """One would be waited for, the other fill the memory."""
    file = own / "train" / "ape" / "000.jpg"
    config = config_of(own, feed=feed, random_resized_crop=False, flip=False)
    for make, told in (
        (os.mkfifo, "not an ordinary file"),
        (lambda path: path.touch() or os.truncate(path, 2**43), "bytes, the limit is"),
    ):
        file.unlink()
        make(file)
        with pytest.raises((BadInput, CorruptImageError), match=told):
            train = load_dataset(config).train
            out = np.empty((*train.image_shape[:2], 3), np.uint8)
            train.decode(0, None, out, random_crop=False, flip=False)


# npz -----------------------------------------------------------------------------------------


def save_npz(file, method=zipfile.ZIP_DEFLATED, **members):
    """An npz whose members are arrays, or a header and whatever bytes follow it."""
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, value in (arrays() | members).items():
            with archive.open(f"{name}.npy", "w") as stream:
                if isinstance(value, np.ndarray):
                    np.lib.format.write_array(stream, value)
                else:
                    shape, descr, rest = value
                    header = {"shape": shape, "descr": descr, "fortran_order": False}
                    np.lib.format.write_array_header_1_0(stream, header)
                    stream.write(rest)
    return str(file)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        # A header that claims more than follows it.
        ({"x_train": ((2**40, 32, 32, 3), "|u1", b"")}, "not as many bytes as its shape says"),
        ({"y_train": ((2**40,), "<i8", b"12345678")}, "not as many bytes as its shape says"),
        ({"x_train": ((-1, -3072), "|u1", bytes(3072))}, "no array of numbers"),
        ({"y_test": ((20,), "|O", pickle.dumps([1] * 20))}, "no array of numbers"),
        ({"y_test": ((20,), [("a", "<i8")], bytes(160))}, "no array of numbers"),
        # One that is true, of images that the experiment is not made for.
        ({"x_train": ((1, 8000, 8000, 1), "|u1", bytes(8000**2))}, "the experiment is made for"),
        ({"x_test": ((1, 8000, 8000, 1), "|u1", bytes(8000**2))}, "in training (32, 32, 3)"),
        # Many more images than labels.
        (
            {"x_train": ((9999, 32, 32, 3), "|u1", bytes(9999 * 3072))},
            "9999 images but labels",
        ),
    ],
)
def test_an_npz_is_judged_by_its_headers(tmp_path, monkeypatch, members, told):
    file = save_npz(tmp_path / "set.npz", **members)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(BadInput) as error:
        npz.load(DataConfig(path=file))
    assert told in str(error.value)


def test_an_npz_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    images, labels = np.zeros((2**14, 32, 32, 3), np.uint8), np.zeros(2**14, np.int64)
    file = save_npz(tmp_path / "set.npz", x_train=images, y_train=labels)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("M", (), {"available": 2**26}))
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(BadInput, match="of free memory$"):  # no field limits it
        npz.load(DataConfig(path=file))


def test_an_npz_is_not_compressed_as_numpy_never_does(tmp_path):
    file = save_npz(tmp_path / "set.npz", zipfile.ZIP_LZMA)
    with pytest.raises(BadInput, match="compressed as NumPy never does"):
        npz.load(DataConfig(path=file))


def test_a_shape_of_long_numbers_takes_no_time():
    number = pickle.dumps(2**2000 - 1, protocol=2)[2:-1]
    shape = b"(" + number + b"q\x05" + b"h\x05" * 10_000 + b"t"
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + shape
    array += b"cnumpy\ndtype\n(X\x02\0\0\0u1tR\x89C\x00tb"
    begin = time.process_time()
    with pytest.raises(ValueError, match="shape"):
        as_array(read_pickle(b"\x80\x02}X\x04\0\0\0data" + array + b"s.")["data"])
    assert time.process_time() - begin < 2


def test_a_pickle_of_too_many_instructions_is_refused():
    """Each empty list takes 70 bytes for one of the file: 18 GB in all."""
    with pytest.raises(ValueError, match="more than 1,048,576 instructions"):
        read_pickle(b"\x80\x02" + b"]" * (2**20 + 2) + b".")


def test_keys_are_short():
    key = b"c_codecs\nencode\n(X" + struct.pack("<I", 2000) + b"a" * 2000 + b"X\6\0\0\0latin1tR"
    for long in (key, b"X" + struct.pack("<I", 2000) + b"a" * 2000):
        for pickled in (b"\x80\2}(" + long + b"K\1u.", b"\x80\2}" + long + b"K\1s."):
            with pytest.raises(ValueError, match="too long"):
                read_pickle(pickled)
