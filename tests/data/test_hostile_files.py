"""Data sets made to run code, to crash the process or to fill its memory: one line each."""

import json
import os
import pickle
import zipfile

import numpy as np
import pytest

from jaxbench.config import DataConfig
from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.sources import cifar10, npz, tfds
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import BadInput
from tests.conftest import refusal
from tests.data.cifar10_files import OFFICIAL_NAMES, npz_arrays
from tests.data.encoded_images import config_of
from tests.tfds_files import image_feature, label_feature, write_tfds

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
    "in the old form's text": {
        "type": f"{_IN}features_dict.FeaturesDict",
        "proto_cls": "tensorflow_datasets.FeaturesDict",
        "content": json.dumps({"features": {"a": {"pythonClassName": _EVIL, "text": {}}}}),
    },
}


def tfds_folder(root, feature):
    image = np.zeros((8, 8, 3), np.uint8)
    features = {"image": image_feature(3), "label": feature}
    write_tfds(root, "evil", features, {"train": [{"image": image, "label": 0}], "test": []})
    return root / "evil" / "1.0.0"


def tfds_error(root):
    return refusal(tfds.load, DataConfig(name="evil", path=str(root)))


@pytest.mark.parametrize("where", [*_FEATURES, "at the top"])
def test_a_tfds_folder_imports_nothing(tmp_path, monkeypatch, where):
    (tmp_path / "hostile_feature.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tfds_folder(tmp_path, _FEATURES.get(where, image_feature(3)))
    if where == "at the top":
        (folder / "features.json").write_text(json.dumps({"type": _EVIL, "content": {}}))
    assert "names the class" in tfds_error(tmp_path)
    # Nor does preparing another version, for which TFDS looks into this one.
    monkeypatch.setenv("JAXBENCH_DOWNLOAD", "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("subprocess.run", None)
    with pytest.raises(BadInput, match="names the class"):
        tfds._prepare(DataConfig(name="evil"), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_tfds_split_of_terabytes_is_refused(tmp_path):
    folder = tfds_folder(tmp_path, label_feature(2))
    info = folder / "dataset_info.json"
    many = f'"shardLengths": ["{2**40}"]'
    info.write_text(info.read_text().replace('"shardLengths": ["1"]', many))
    error = tfds_error(tmp_path)
    assert "free memory" in error or "cannot be read" in error


@pytest.mark.parametrize("template", ["../x/{SPLIT}", "/etc/passwd", "{DATASET}/{SPLIT}"])
def test_a_tfds_split_lies_in_its_folder(tmp_path, template):
    info = tfds_folder(tmp_path, label_feature(2)) / "dataset_info.json"
    info.write_text(info.read_text().replace("{DATASET}-{SPLIT}.{FILEFORMAT}-", f"{template}-"))
    assert "which is not in it" in tfds_error(tmp_path)


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_what_describes_a_tfds_folder_is_no_pipe_and_not_endless(tmp_path, name, no_waiting):
    file = tfds_folder(tmp_path, label_feature(2)) / name
    os.truncate(file, 2**35)
    assert "has more than" in tfds_error(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert "is no regular file" in tfds_error(tmp_path) or name == "dataset_info.json"


def test_a_tfds_splits_name_steers_no_terminal(tmp_path):
    info = tfds_folder(tmp_path, label_feature(2)) / "dataset_info.json"
    info.write_text(info.read_text().replace('"train"', '"tra\\u001b[2J\\nin"'))
    error = tfds_error(tmp_path)
    assert "it has tra?[2J?in" in error and error.isprintable()


class Attack:
    """Pickles as a call of Python's own."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return (exec, (self.code,))


def test_a_pickle_other_than_the_official_one_is_not_run(tmp_path):
    attack = pickle.dumps({b"data": Attack(f"open({str(tmp_path / 'ran')!r}, 'w')")}, protocol=2)
    for name in OFFICIAL_NAMES:
        (tmp_path / name).write_bytes(attack)
    line = refusal(cifar10.load, DataConfig(path=str(tmp_path)), told="it is not the official file")
    assert "data_batch_1.bin" in line and "data.source=npz" in line
    assert line.isprintable() and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_a_pipe_and_a_file_with_holes_are_no_images(writable, feed, no_waiting):
    """One would be waited for, the other fill the memory."""
    file = writable / "train" / "ape" / "000.jpg"
    config = config_of(writable, feed=feed, random_resized_crop=False, flip=False)
    holes = lambda path: path.touch() or os.truncate(path, 2**43)  # noqa: E731
    for make, reason in ((os.mkfifo, "no regular file"), (holes, "more than 1,073,741,824 bytes")):
        file.unlink()
        make(file)
        with pytest.raises((BadInput, CorruptImageError), match=reason):
            train = load_dataset(config).train
            out = np.empty((*train.image_shape[:2], 3), np.uint8)
            train.decode(0, None, out, random_crop=False, flip=False)


def save_npz(file, **members):
    """An npz whose members are arrays, or a header and whatever bytes follow it."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in (npz_arrays() | members).items():
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
        ({"x_train": ((2**40, 32, 32, 3), "|u1", b"")}, "cannot be read as .npz"),
        ({"y_train": ((10**15,), "<i8", b"")}, "cannot be read as .npz"),
        ({"y_train": ((10**30,), "<i8", b"")}, "cannot be read as .npz"),
        ({"y_train": ((-1,), "<i8", b"")}, "cannot be read as .npz"),
        ({"y_train": ((1,) * 99, "<i8", b"12345678")}, "cannot be read as .npz"),
        # Elements of no bytes: any number of them fits.
        ({"x_train": ((50, 2**40), "|V0", b"")}, "expected (N, height, width, channels)"),
        ({"x_train": ((50, 2**31, 2**31), "|S0", b"")}, "cannot be read as .npz"),
        ({"y_train": ((2**29,), "<i8", b"12345678")}, "cannot be read as .npz"),
        ({"x_train": ((-1, -3072), "|u1", bytes(3072))}, "cannot be read as .npz"),
        ({"y_test": ((20,), "|O", pickle.dumps([1] * 20))}, "Object arrays cannot be loaded"),
        ({"y_test": ((20,), [("a", "<i8")], bytes(160))}, "expected whole numbers"),
    ],
)
def test_an_npz_of_other_arrays_than_its_headers_is_refused(tmp_path, members, told):
    refusal(npz.load, DataConfig(path=save_npz(tmp_path / "set.npz", **members)), told=told)


def test_an_npz_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    """Its zeros take a thousandth of it in the file."""
    images, labels = np.zeros((2**14, 32, 32, 3), np.uint8), np.zeros(2**14, np.int64)
    file = save_npz(tmp_path / "set.npz", x_train=images, y_train=labels)
    monkeypatch.setattr(
        "psutil.virtual_memory", lambda: type("M", (), {"available": 2**26, "total": 2**26})
    )
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(BadInput, match="of free memory"):
        npz.load(DataConfig(path=file))
