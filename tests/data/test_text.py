"""Text as sequences of bytes: where it is cut, what is held out, what is refused."""

import hashlib
import os

import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.sources import synthetic, text
from jaxbench.data.sources.load import load_dataset
from tests.conftest import config_of, refusal


def text_config(path, length, **data):
    config = registry.load("gpt_bytes:tiny")
    config.batch_size = 2
    config.data = DataConfig(
        source="text", path=str(path), sequence_length=length, num_classes=256, **data
    )
    return config


def test_every_token_but_the_first_is_a_label_once(tmp_path):
    """In both parts, save for the rest that fills no window."""
    content = np.random.default_rng(0).integers(0, 256, 1003, np.uint8).tobytes()
    (tmp_path / "any.bin").write_bytes(content)
    dataset = load_dataset(text_config(tmp_path / "any.bin", 16))
    train, held_out = content[:903], content[903:]
    for split, tokens in ((dataset.train, train), (dataset.eval, held_out)):
        count = (len(tokens) - 1) // 16
        assert split.inputs_Nx.shape == split.labels_Nx.shape == (count, 16)
        assert split.inputs_Nx.tobytes() == tokens[: 16 * count]
        assert split.labels_Nx.tobytes() == tokens[1 : 16 * count + 1]
    assert hashlib.sha256(content).hexdigest()[:12] in dataset.description
    assert "1,003 bytes" in dataset.description and dataset.num_classes == 256


def test_the_standard_librarys_text_is_the_same_each_time():
    dataset, again = (text.load(DataConfig(sequence_length=256)) for _ in range(2))
    assert dataset.description == again.description
    assert dataset.fingerprint() == again.fingerprint()
    assert len(dataset.train) > 1000 and len(dataset.eval) > 100
    assert b"Python" in dataset.train.inputs_Nx.tobytes()


def test_a_file_that_is_no_text_to_train_on_is_refused(tmp_path):
    (tmp_path / "short").write_bytes(bytes(169))
    os.mkfifo(tmp_path / "pipe")
    for name, told in (
        ("short", "needs 170 for one sequence"),
        ("absent", "No such file"),
        ("pipe", "is no regular file"),
        (".", "is no regular file"),
    ):
        refusal(load_dataset, text_config(tmp_path / name, 16), told=told)
    (tmp_path / "short").write_bytes(bytes(190))
    assert len(load_dataset(text_config(tmp_path / "short", 16)).eval) == 1


ONLY = "only task=language_model takes data.sequence_length"


@pytest.mark.parametrize(
    ("experiment", "fields", "told"),
    [
        (
            "gpt_bytes",
            {"data__source": "digits", "data__path": ""},
            "data.source=text or synthetic",
        ),
        ("gpt_bytes", {"data__sequence_length": 0}, "needs data.sequence_length"),
        ("gpt_bytes", {"task": "classification"}, ONLY),
        ("quickstart", {"task": "language_model"}, ONLY),
    ],
)
def test_images_are_no_sequences_and_sequences_no_images(experiment, fields, told):
    config = config_of(experiment, **fields)
    refusal(config.validate, told=told)


@pytest.mark.parametrize(("vocabulary", "dtype"), [(256, np.uint8), (257, np.int32)])
def test_synthetic_sequences_can_be_learned(vocabulary, dtype):
    data = DataConfig(source="synthetic", sequence_length=50, num_classes=vocabulary)
    dataset, again = synthetic.load(data), synthetic.load(data)
    assert dataset.fingerprint() == again.fingerprint()
    tokens, labels = dataset.train.inputs_Nx, dataset.train.labels_Nx
    assert tokens.dtype == labels.dtype == dtype and tokens.max() == vocabulary - 1
    assert (tokens[:, 1:] == labels[:, :-1]).all()
    follows = (tokens.astype(int) + 1) % 64 == labels
    assert 0.7 < follows.mean() < 0.85  # (7/8)^2, and a few by chance
