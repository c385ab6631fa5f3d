"""A data set: two splits of images or sequences and their labels, held in memory or on disk."""

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxbench.data.images.encoded import EncodedSplit, sample_indices
from jaxbench.errors import BadInput, RunFailed
from jaxbench.hardware.system import host_memory_bytes
from jaxbench.terminal import printable

# Of the training images, on the scale 0 to 255; the usual numbers.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
# Examples that are compared to tell data sets of one size apart.
_SAMPLE_EXAMPLES = 1000
# With fewer different examples, one more right answer moves the accuracy by 2 points.
_FEWEST_EVAL = 50


@dataclasses.dataclass(frozen=True)
class Split:
    """A split held in memory."""

    inputs_Nx: np.ndarray  # images_NxHxWxC in uint8, or tokens_NxT in uint8 or int32
    # int32 of shape (N,), or uint8 masks of shape (N, H, W), or the token after each of tokens_NxT,
    # in the same type.
    labels_Nx: np.ndarray

    def __len__(self) -> int:
        return len(self.labels_Nx)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels), or (tokens,) of sequences."""
        return self.inputs_Nx.shape[1:]

    def checksum(self) -> int:
        """Return the CRC-32 of some examples, evenly spaced, and of the labels of all images."""
        rows = sample_indices(len(self), _SAMPLE_EXAMPLES)
        labels = self.labels_Nx if self.labels_Nx.ndim == 1 else self.labels_Nx[:0]
        checksum = 0
        for array in (self.inputs_Nx[rows], self.labels_Nx[rows], labels):
            checksum = zlib.crc32(np.ascontiguousarray(array), checksum)  # type: ignore[arg-type]
        return checksum

    def first(self, num_examples: int) -> "Split":
        """Return a split of the first `num_examples`, of all for 0."""
        stop = num_examples or None
        return Split(self.inputs_Nx[:stop], self.labels_Nx[:stop])


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The splits that training and evaluation read; both in memory or both encoded."""

    description: str  # its source, for the record
    train: Any  # a Split or an EncodedSplit
    eval: Any
    num_classes: int  # K; labels are 0 to K-1, pixels of masks 0 or 1; the vocabulary of sequences
    # Whose mean and deviation normalise the pixels, `ImageNet's` (for folders) or `the training
    # split's`; None for tokens.
    statistics: str | None = "the training split's"
    cache: dict[str, Any] | None = None  # describes the copies that it reads, if it reads copies
    warnings: Sequence[str] = ()  # what is doubtful about what was read, or was left out

    @property
    def noun(self) -> str:
        """What examples are called in texts for people."""
        return "sequences" if self.statistics is None else "images"

    @property
    def encoded(self) -> bool:
        """Whether its images are decoded on the fly."""
        return isinstance(self.train, EncodedSplit)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels), or (tokens,) of sequences."""
        return self.train.image_shape

    def fingerprint(self) -> dict[str, int]:
        """Return counts and checksums, equal on two hosts that hold the same set in one order."""
        return {
            "train examples": len(self.train),
            "test examples": len(self.eval),
            "the training split's checksum": self.train.checksum(),
            "the test split's checksum": self.eval.checksum(),
        }

    def eval_split_warnings(self) -> list[str]:
        """Return why accuracies on the evaluation split are doubtful."""
        count = different = len(self.eval)
        if not self.encoded:
            different = len({zlib.crc32(row.tobytes()) for row in self.eval.inputs_Nx})
        if different >= _FEWEST_EVAL:
            return []
        return [
            f"the evaluation split has {count:,} {self.noun}"
            + ("" if different == count else f", {different} different")
            + f": an accuracy on fewer than {_FEWEST_EVAL} means little"
        ]

    def normalization(self, dtype: np.typing.DTypeLike) -> dict[str, np.ndarray]:
        """Return `mean` and `std` by channel, for the step's arguments; nothing for tokens."""
        if self.statistics is None:
            return {}
        mean_C, std_C = self.channel_statistics
        return {"mean": mean_C.astype(dtype), "std": std_C.astype(dtype)}

    @functools.cached_property
    def channel_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """mean_C and std_C of `statistics`, float64, on the scale 0 to 255.

        The split's are exact: sums over a histogram of the 256 values, not over the pixels.
        """
        if self.statistics == "ImageNet's":
            return np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
        values = np.arange(256, dtype=np.float64)
        means, stds = [], []
        for channel in range(self.image_shape[-1]):
            pixels = self.train.inputs_Nx[..., channel].reshape(-1)
            fraction = np.bincount(pixels, minlength=256) / pixels.size
            means.append(mean := float(fraction @ values))
            stds.append(float(np.sqrt(fraction @ (values - mean) ** 2)))
        # A channel that never varies (all black) divides by 1, not by 0.
        return np.array(means), np.array([std or 1.0 for std in stds])


@contextlib.contextmanager
def as_bad_input(subject: Any, problem: str = "cannot be read") -> Iterator[None]:
    """Raise BadInput for anything that libraries raise of a damaged or missing `subject`."""
    try:
        yield
    except (BadInput, RunFailed):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or repr(error)
        if isinstance(error, KeyError):  # its text is the key alone
            reason = f"it has no {reason}"
        if (file := getattr(error, "filename", None)) and str(file) not in str(subject):
            reason += f": {file}"
        raise BadInput(f"{subject}: {problem}: {printable(reason)[:300]}") from error


def check_fits_in_memory(subject: str, needed_bytes: int) -> None:
    """Raise BadInput if `subject` takes more than half of the free memory."""
    _, free_bytes = host_memory_bytes()
    if needed_bytes > free_bytes // 2:
        raise BadInput(
            f"{subject}: {needed_bytes / 2**30:.1f} GiB, more than half of the "
            f"{free_bytes / 2**30:.1f} GiB of free memory"
        )
