"""CIFAR-10's batches as its authors distribute them, and an npz's arrays; few images each."""

import struct

import numpy as np

OFFICIAL_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def batches(count=10):
    """{name: records_NxR}: a label, then all reds, greens and blues."""
    generator = np.random.default_rng(1)
    made = {}
    for name in OFFICIAL_NAMES:
        made[name] = generator.integers(0, 256, (count, 3073), dtype=np.uint8)
        made[name][:, 0] = np.arange(count) % 10
    return made


def write_batches(folder):
    """The binary version."""
    folder.mkdir()
    for name, records_NxR in batches().items():
        (folder / f"{name}.bin").write_bytes(records_NxR.tobytes())
    return folder


def pickled(records_NxR):
    """A file of the Python version, as Python 2 wrote it: protocol 2, all text in bytes."""
    pixels, count = np.ascontiguousarray(records_NxR[:, 1:]), struct.pack("<i", len(records_NxR))
    return b"".join(
        [
            b"\x80\x02}q\x01(U\x04dataq\x02",
            *(b"cnumpy.core.multiarray\n_reconstruct\nq\x03", b"cnumpy\nndarray\nq\x04"),
            *(b"K\x00\x85q\x05U\x01b\x87q\x06Rq\x07(K\x01J", count, b"M\x00\x0c\x86q\x08"),
            b"cnumpy\ndtype\nq\x09U\x02u1K\x00K\x01\x87q\x0aRq\x0b(K\x03U\x01|NNN",
            *(b"J\xff\xff\xff\xff" * 2, b"K\x00tb\x89T", struct.pack("<i", pixels.size)),
            *(pixels.tobytes(), b"tbU\x06labels]q\x0c("),
            *(b"K" + label.tobytes() for label in records_NxR[:, 0]),
            b"eu.",
        ]
    )


def npz_arrays(**changes):
    """{name: array} of a classification set, with changes; None leaves an array out."""
    generator = np.random.default_rng(0)
    made = {
        "x_train": generator.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8),
        "y_train": np.arange(50, dtype=np.int64) % 10,
        "x_test": generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8),
        "y_test": np.arange(20, dtype=np.int64) % 10,
    }
    return {name: value for name, value in (made | changes).items() if value is not None}
