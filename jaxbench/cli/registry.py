"""Find experiments: the shipped ones by name, others by path."""

import ast
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
from typing import Any

from jaxbench.config import Experiment
from jaxbench.config.custom import EXPERIMENT_MODULE, user_line
from jaxbench.errors import BadInput, first_line, jax_variable_problem, one_of
from jaxbench.files import DOCUMENT_BYTES, open_regular
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


def _files() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped experiments; hidden files are editors' and systems'."""
    return {path.stem: path for path in sorted(experiments_dir().glob("[!_.]*.py"))}


def docstrings() -> dict[str, str]:
    """Return {name: text} of the shipped experiments and variants; none of them is imported.

    The text of a file that cannot be read, such as a half-done one, is the reason.
    """
    return {name: text for path in _files().values() for name, text in _docstrings(path).items()}


def _docstrings(path: pathlib.Path) -> dict[str, str]:
    try:
        with open_regular(path, "rb", most_bytes=DOCUMENT_BYTES) as file:
            module = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "msg", first_line(error))
        lineno = getattr(error, "lineno", None)
        line = f"line {lineno}: " if lineno else ""
        return {path.stem: f"cannot be read: {line}{reason}"}
    texts = {path.stem: ast.get_docstring(module) or ""}
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(_VARIANT):
            name = f"{path.stem}_{node.name.removeprefix(_VARIANT)}"
            texts[name] = ast.get_docstring(node) or ""
    return texts


def available() -> dict[str, str]:
    """Return {name: purpose} of the shipped experiments, by name."""
    return {name: text.partition("\n")[0] for name, text in docstrings().items()}


def load(spec: str) -> Any:
    """Load an experiment.

    Args:
      spec: `NAME` of a shipped experiment or `path/to/file.py`. After it `:VARIANT` applies the
        file's `variant_VARIANT(config)`; `NAME_VARIANT` is the same. `:tiny` at the end applies
        `tiny(config)`, which runs in a minute on two CPU cores.

    Returns:
      What `get_config()` of that file returned, changed by these functions. Its `name` is the
      file's stem, with `_VARIANT` and `:tiny`.

    Raises:
      BadInput: no such experiment or variant, or its file fails.
    """

    def refuse(problem: str):
        raise BadInput(f"--experiment={spec}: {problem}")

    file, colon, variants = spec.partition(":")
    if file.endswith(".py") or os.sep in file:
        path = user_path(file)
        if path.suffix != ".py" or not os.path.isfile(path):
            refuse(f"no such .py file: {file}")
    else:
        files = _files()
        # Other files are not parsed: one that is half done concerns nobody who names another.
        owners = [s for s in files if file.startswith(f"{s}_") and file in _docstrings(files[s])]
        if owners and file not in files:
            # Of two files that have it, `available` shows the later one's.
            file, variants = owners[-1], file.removeprefix(f"{owners[-1]}_") + colon + variants
        if file not in files:
            refuse(
                f"no experiment {file!r}; {one_of(file, available())} (--experiment=list shows "
                "all; or give the path of a .py file)"
            )
        path = files[file]
        if not os.path.isfile(path):
            refuse(f"{path} is no file that can be read")
    module = _import_file(path)
    if not callable(getattr(module, "get_config", None)):
        refuse(f"{path} has no function get_config()")
    changes = {n.removeprefix(_VARIANT): n for n in vars(module) if n.startswith(_VARIANT)}
    if callable(getattr(module, "tiny", None)):
        changes.pop("tiny", None)
    names = {"": path.stem} | {variant: f"{path.stem}_{variant}" for variant in changes}
    if callable(getattr(module, "tiny", None)):
        names |= {f"{v}:tiny".lstrip(":"): f"{name}:tiny" for v, name in names.items()}
    if variants not in names or (colon and not variants):
        others = sorted(f":{variant}" for variant in names if variant)
        hint = one_of(f":{variants}", others) if others else "it has none"
        refuse(f"no variant {variants!r} of {path.stem}; {hint}")
    config = _call(path, module.get_config)
    for variant in filter(None, variants.split(":")):
        config = _call(path, getattr(module, changes.get(variant, variant)), config)
    if not isinstance(config, Experiment):
        refuse(
            f"{path} returned {type(config).__name__}, expected a jaxbench.config.Config (or "
            "another jaxbench.config.Experiment)"
        )
    config.name = names[variants]
    return config


def _import_file(path: pathlib.Path):
    name = EXPERIMENT_MODULE + path.stem
    loader = importlib.machinery.SourceFileLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # that of a file
    # Dataclasses look their own module up, to read annotations kept as text.
    sys.modules[name] = module
    _call(path, loader.exec_module, module)
    return module


def _call(path, function, *args):
    """Call a function of an experiment file; an error in it names that file and line."""
    try:
        return function(*args)
    except (Exception, SystemExit) as error:
        if problem := jax_variable_problem(error):
            raise BadInput(problem) from error
        # A file that cannot be parsed has no frame.
        line = getattr(error, "lineno", None)
        place = user_line(error) or (f"{path}:{line}" if line else str(path))
        message = str(error)
        if not isinstance(error, BadInput):
            message = message.partition("\n")[0]
            message = f"the experiment file fails with {type(error).__name__}: {message}"
        raise BadInput(f"{place}: {message}") from error
