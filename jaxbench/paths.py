"""Paths as users give them."""

import os
import pathlib

from jaxbench.errors import BadInput


def user_path(path: str | pathlib.Path, instead: str = "") -> pathlib.Path:
    """Return a path with its `~` replaced by the user's home folder.

    Args:
      path: what was given.
      instead: what to do, for the error line.

    Raises:
      BadInput: nobody has such a home folder, as in a container with an unknown user id.
    """
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"{path}: there is no such home folder{instead and f'; {instead}'}"
        ) from error


def check_can_be_made(path: pathlib.Path, flag: str) -> None:
    """Raise BadInput where a folder that is there or to be made cannot be written in."""
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BadInput(f"--{flag}={path}: cannot write in {parent}")
