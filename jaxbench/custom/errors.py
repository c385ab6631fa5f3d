"""Tell an error in the user's own code by its file and line."""

import os
import pathlib
import sysconfig
import traceback

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}
)


def user_line(error: BaseException) -> str | None:
    """Return FILE:LINE of the user's code that jaxbench called and that failed; None for none.

    It is the innermost frame that is neither jaxbench's nor a library's.
    """
    found, called = None, False
    for frame in traceback.extract_tb(error.__traceback__):
        path = os.path.abspath(frame.filename)
        if path.startswith(os.path.join(_PACKAGE, "")):
            called = True
        elif called and not frame.filename.startswith("<") and not path.startswith(_LIBRARIES):
            found = f"{_short(path)}:{frame.lineno}"
    return found


def describe_error(what: str, error: BaseException) -> str:
    """Return a line: the user's file and line if there is one, what failed, the error's text."""
    # JAX goes on with lines of jaxbench, which called the code.
    text = " ".join(str(error).split()).partition(" The error occurred while tracing")[0]
    text = text if len(text) <= 300 else f"{text[:300]} ..."
    told = f"{what}: {type(error).__name__}" + (f": {text}" if text else "")
    line = user_line(error)
    return f"{line}: {told}" if line else told


def _short(path: str) -> str:
    if os.path.basename(os.path.dirname(path)).startswith("ipykernel_"):
        return "the notebook's cell"
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
