"""jaxbench: how fast, how accurate and how expensive is training on this accelerator?

    import jaxbench
    run = jaxbench.train("cnn10", batch_size=512)

Importing the package loads neither JAX nor the names below; each is loaded when it is first used.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from jaxbench.modes import MODES

__version__ = "0.2.0.dev0"
__all__ = [
    "BadInput",
    "Run",
    "__version__",
    "compare",
    "describe",
    "experiments",
    "load_runs",
    "report",
    "sweep",
    *MODES,
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("jaxbench.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keep the functions `jaxbench.train`, `sweep` ... when modules of these names are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
