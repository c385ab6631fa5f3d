"""Import JAX, and what uses it, quickly."""

import contextlib
import gc
import importlib.metadata
import pathlib
import sys
from collections.abc import Iterator

from jaxbench.parallel.signals import defer_signals


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import JAX inside the `with`: no signal breaks it off, and no garbage collector slows it.

    The collector would take a fifth of the imports' time, and a tenth of tracing later.
    """
    num_modules = len(sys.modules)
    with defer_signals():
        gc.disable()
        try:
            _import_jax()
            yield
        finally:
            if len(sys.modules) > num_modules:
                gc.freeze()
            gc.enable()


def _import_jax() -> None:
    """Import JAX without its search for ROCm's plugin, where none is installed.

    It parses the metadata of every installed package to learn the package's name.
    """
    # In array_constructors.py, with names of the form jax-rocm7-plugin.
    is_there = any(any(pathlib.Path(folder).glob("jax?rocm*")) for folder in sys.path)
    search = importlib.metadata.distributions
    if "jax" not in sys.modules and not is_there:
        importlib.metadata.distributions = lambda: ()
    try:
        importlib.import_module("jax")
    finally:
        importlib.metadata.distributions = search
