"""Find experiments: the shipped ones by name, a user's own by path."""

import ast
import importlib.util
import os
import pathlib
import sys
import traceback

from jaxbench.config import Experiment
from jaxbench.errors import BadInput, nearest
from jaxbench.paths import user_path

# A function of this name makes a variant of an experiment.
_VARIANT = "variant_"
_PACKAGE = pathlib.Path(__file__).resolve().parent.parent


def experiments_dir() -> pathlib.Path:
    """Return the shipped experiments' folder: in a wheel's package, beside a checkout's."""
    for folder in (_PACKAGE / "experiments", _PACKAGE.parent / "experiments"):
        if folder.is_dir():
            return folder
    raise BadInput(f"the shipped experiments are missing: no folder {_PACKAGE / 'experiments'}")


def docstrings() -> dict[str, str]:
    """Return {name: text} of the shipped experiments and variants; none of them is imported."""
    texts = {}
    for path in sorted(experiments_dir().glob("[!_]*.py")):
        module = ast.parse(path.read_text())
        texts[path.stem] = ast.get_docstring(module) or ""
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith(_VARIANT):
                name = f"{path.stem}_{node.name.removeprefix(_VARIANT)}"
                texts[name] = ast.get_docstring(node) or ""
    return texts


def available() -> dict[str, str]:
    """Return {name: purpose} of the shipped experiments, by name."""
    return {name: text.partition("\n")[0] for name, text in docstrings().items()}


def load(spec: str) -> Experiment:
    """Load an experiment.

    Args:
      spec: `NAME` of a shipped experiment or `path/to/file.py`. `:VARIANT` behind it applies the
        file's `variant_VARIANT(config)`; `NAME_VARIANT` is the same. `:tiny` at the end applies
        `tiny(config)`, which runs in a minute on two CPU cores.

    Returns:
      What `get_config()` of that file returned, changed by these functions. Its `name` is the
      file's stem, with `_VARIANT` and `:tiny`.

    Raises:
      BadInput: no such experiment or variant, or its file fails.
    """
    where, _, variants = spec.partition(":")
    if where.endswith(".py") or os.sep in where:
        path = user_path(where)
        if path.suffix != ".py":
            raise BadInput(f"--experiment={spec}: an experiment of your own is a .py file")
        if not path.is_file():
            raise BadInput(f"--experiment={spec}: no such file {where}")
    else:
        names = available()
        if where not in names:
            raise BadInput(
                f"--experiment={spec}: no experiment {where!r}; there are {', '.join(names)}, "
                f"or a path to your own .py file{nearest(where, names)}"
            )
        path = experiments_dir() / f"{where}.py"
        if not path.is_file():
            stem, _, variant = where.rpartition("_")
            path = path.with_name(f"{stem}.py")
            variants = f"{variant}:{variants}".rstrip(":")
    module = _import_file(path)
    if not callable(getattr(module, "get_config", None)):
        raise BadInput(f"--experiment={spec}: {path} has no function get_config()")
    names = {"": path.stem}
    for name in vars(module):
        if name.startswith(_VARIANT):
            variant = name.removeprefix(_VARIANT)
            names[variant] = f"{path.stem}_{variant}"
    if callable(getattr(module, "tiny", None)):
        names |= {f"{v}:tiny".lstrip(":"): f"{name}:tiny" for v, name in names.items()}
    if variants not in names:
        others = ", ".join(f"{path.stem}:{v}" for v in names if v)
        others = f"there are {others}" if others else "there is none"
        raise BadInput(f"--experiment={spec}: no variant {variants!r}; {others}")
    config = _call(path, module.get_config)
    for variant in filter(None, variants.split(":")):
        change = "tiny" if variant == "tiny" else _VARIANT + variant
        config = _call(path, getattr(module, change), config)
    if not isinstance(config, Experiment):
        raise BadInput(
            f"--experiment={spec}: {path} returned {type(config).__name__}, "
            "expected a jaxbench.config.Config (or another jaxbench.config.Experiment)"
        )
    config.name = names[variants]
    return config


def _import_file(path: pathlib.Path):
    name = f"jaxbench_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up, to read annotations kept as text.
    sys.modules[name] = module
    _call(path, spec.loader.exec_module, module)
    return module


def _call(path, function, *args):
    """Run code of an experiment file; whatever goes wrong in it names that file and line."""
    try:
        return function(*args)
    except (Exception, SystemExit) as error:
        line = getattr(error, "lineno", None)
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(path.resolve()):
                line = frame.lineno
        where = f"{path}:{line}" if line else str(path)
        if isinstance(error, BadInput):
            raise BadInput(f"{where}: {error}") from error
        message = str(error).split("\n", 1)[0]
        raise BadInput(
            f"{where}: the experiment file fails with {type(error).__name__}: {message}"
        ) from error
