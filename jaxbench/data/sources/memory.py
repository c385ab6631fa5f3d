"""Whether a split fits in the host's memory."""

import psutil

from jaxbench.errors import BadInput


def check_fits_in_memory(what: str, needed_bytes: int) -> None:
    """Raise BadInput where `what` takes more than half of the free memory."""
    free_bytes = psutil.virtual_memory().available
    if needed_bytes > free_bytes // 2:
        raise BadInput(
            f"{what}: {needed_bytes / 2**30:.1f} GiB, more than half of the "
            f"{free_bytes / 2**30:.1f} GiB of free memory; data.train_examples and "
            "data.eval_examples limit them"
        )
