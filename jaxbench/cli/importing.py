"""Import JAX, and what uses it, quickly."""

import contextlib
import gc
import sys
from collections.abc import Iterator

from jaxbench.parallel.signals import defer_signals


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import modules inside the `with`: no signal breaks it off, no garbage collector slows it.

    The collector would take a tenth of the time of `--mode=describe`, tracing included.
    """
    num_modules = len(sys.modules)
    with defer_signals():
        gc.disable()
        try:
            yield
        finally:
            if len(sys.modules) > num_modules:
                gc.freeze()
            gc.enable()
