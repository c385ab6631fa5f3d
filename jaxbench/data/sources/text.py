"""Text as sequences of bytes: any file, or text that ships with Python.

A token is a byte, so no tokenizer is needed. The last tenth of the bytes is held out. Each part is
cut into consecutive windows of `data.sequence_length` tokens; an incomplete last window is dropped.
The label of a token is the next one.
"""

import hashlib
import math
import os
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, as_bad_input, check_fits_in_memory
from jaxbench.errors import BadInput
from jaxbench.files import open_regular
from jaxbench.paths import user_path

# One byte in this many, at the end of the text, is held out.
_HELD_OUT = 10


def load(data: DataConfig, **unused: Any) -> Dataset:
    """Read the text and cut it into sequences.

    Without a path the text is the documentation of Python's language, `pydoc_data.topics` of the
    standard library: the same for one version of Python.

    Raises:
      BadInput: no such file, or too short for a sequence in each split.
    """
    if data.path:
        file, subject = user_path(data.path), f"data.path={data.path!r}"
        with as_bad_input(subject), open_regular(file, "rb", most_bytes=math.inf) as stream:
            check_fits_in_memory(str(file), os.fstat(stream.fileno()).st_size)
            text, name = stream.read(), file.name
    else:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
        name = "Python's pydoc_data.topics"
    length = data.sequence_length
    held_out = len(text) // _HELD_OUT
    if held_out <= length:
        raise BadInput(
            f"data.sequence_length={length}: {name} has {len(text):,} bytes, and a tenth of them "
            f"is held out, so that it needs {_HELD_OUT * (length + 1):,} for one sequence there"
        )
    tokens = np.frombuffer(text, np.uint8)
    return Dataset(
        description=f"{name}, {len(text):,} bytes, sha256 {hashlib.sha256(text).hexdigest()[:12]}, "
        f"the last {held_out:,} held out",
        train=_cut(tokens[: len(text) - held_out], length),
        eval=_cut(tokens[len(text) - held_out :], length),
        num_classes=256,
        statistics=None,
    )


def _cut(tokens: np.ndarray, length: int) -> Split:
    """Return the sequences of a part of the text; both arrays are views of it."""
    count = (len(tokens) - 1) // length
    inputs, labels = tokens[: count * length], tokens[1 : count * length + 1]
    return Split(inputs.reshape(count, length), labels.reshape(count, length))
