"""Paths as users give them."""

import contextlib
import errno
import fcntl
import os
import pathlib
import re
from collections.abc import Callable, Iterator

from jaxbench.errors import BadInput
from jaxbench.files import open_own
from jaxbench.terminal import printable

# An absolute path inside a text; the `/` of images/s, of URLs and of relative paths begins none.
_PATH = r"(?:~\w*)?(?:/[^\s/:;,'\"()\[\]{}<>|=]+)+/?"
# Bytes, on the file systems of Linux and macOS.
_LONGEST_NAME = 255
# What to do with an address, by its scheme.
_INSTEAD_OF_ADDRESS = {
    "gs": "`gcloud storage cp -r FROM TO` copies from and to a bucket",
    "s3": "`aws s3 cp --recursive FROM TO` copies from and to a bucket",
    "file": "leave out file://",
} | dict.fromkeys(("http", "https"), "download it first")


def user_path(path: str | os.PathLike, instead: str = "") -> pathlib.Path:
    """Return a path with its `~` replaced by the user's home folder; `instead` is advice.

    Raises:
      BadInput: it is no path of this machine but an address, or one that the shell should have
        changed; or nobody has such a home folder, as in a container with an unknown user id.
    """
    text = os.fspath(path)
    if problem := _problem(text):
        raise BadInput(f"{printable(text)[:200]}: {problem}{instead and f'; {instead}'}")
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"{path}: there is no such home folder{instead and f'; {instead}'}"
        ) from error


def new_csv(path: str) -> pathlib.Path:
    """Return the path of --out; raise BadInput if it exists or is no .csv file in a folder."""
    out = user_path(path)
    if out.suffix != ".csv" or os.path.lexists(out) or not out.parent.is_dir():
        raise BadInput(f"--out={path}: must be a new .csv file in a folder that exists")
    return out


def _problem(text: str) -> str | None:
    """Return why a text can be no path of this machine; None if it can be one."""
    path = pathlib.Path(os.path.expanduser(text))
    try:
        os.stat(path)
        missing = ""
    except (OSError, ValueError) as error:  # ValueError: a zero character
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return os.strerror(error.errno).lower()
        # The names that do not exist yet: what exists is a path, whatever its name.
        folder = next((one for one in path.parents if os.path.isdir(one)), path)
        missing = str(path.relative_to(folder))
    if any(len(name) > _LONGEST_NAME for name in text.encode(errors="replace").split(b"/")):
        return f"a name in it is longer than {_LONGEST_NAME} bytes"
    # As scp reads it: what stands before a colon in the first part names a machine or a scheme.
    # Older versions of jaxbench made folders of addresses, so those are refused in any case.
    first = text.partition("/")[0]
    if "://" in text or (re.search(r"^\\\\|.:", first) and not os.path.exists(first)):
        scheme, _, rest = text.lower().partition(":")
        hint = "a local name with a colon begins with ./"
        if rest.startswith("//"):
            hint = "copy from and to it by other means"
        hint = _INSTEAD_OF_ADDRESS.get(scheme, hint)
        return f"jaxbench reads and writes only local paths: {hint}"
    if variable := re.search(r"\$(\w+|\{\w*\}?|\(.*\)?)", missing):
        return f"the shell has not replaced {variable[0]}: write the path in full"
    if missing != missing.strip() or re.search(r"[\0-\x1f\x7f-\x9f\ud800-\udfff]", missing):
        return "a name in it begins or ends with a space, or has a character that cannot be printed"
    return None


def user_cache(name: str, instead: str = "") -> pathlib.Path:
    """Return a folder of the user's cache, the same from every working directory."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores a relative path.
    return user_path(f"{home if os.path.isabs(home) else '~/.cache'}/jaxbench/{name}", instead)


@contextlib.contextmanager
def locked(path: pathlib.Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time make a file or folder; the system frees a dead process's lock.

    A path that exists in a folder that cannot be written in needs no lock: it is only read.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open_own(f"{path}.lock", "w"))
        except OSError:
            if not path.exists():
                raise
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_can_be_made(path: pathlib.Path, flag: str) -> None:
    """Raise BadInput if a folder cannot be made, or nothing can be written in it."""
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BadInput(f"--{flag}={path}: cannot write in {parent}")


def check_working_folder() -> None:
    """Raise BadInput if this process's working folder has been deleted, or may not be entered."""
    try:
        os.getcwd()
    except OSError as error:
        raise BadInput(
            f"the working folder cannot be used ({error.strerror}): change to another one (cd)"
        ) from error


def hide_paths(text: str) -> str:
    """Return a text with `...` in place of absolute paths, which may name a user.

    What follows the working folder or the user's home folder stays. In all others a space ends a
    path.
    """
    hidden = {os.getcwd(), os.path.expanduser("~")} - {"/", "~"}
    # The longer one first: the one may lie in the other.
    folders = "|".join(map(re.escape, sorted(hidden, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.~/])(?:(?:{folders})(?![\w.-])|{_PATH})", "...", text)
