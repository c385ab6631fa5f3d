"""The errors that end a run on purpose, each with a message of one line."""

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator

# What reports that memory ran out: by XLA, C++, Python, cuDNN, the loader, the system, Slurm.
OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|bad_alloc|MemoryError|[Oo]ut of memory|OUT_OF_MEMORY|ALLOC_FAILED"
    r"|[Cc]annot allocate|[Ff]ailed to allocate|allocate of .* failed|oom.kill event"
    r"|failed to map segment"
)
# What a write fails with: the disk is full, a quota is used up, a file is larger than `ulimit -f`.
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# A refusal with a suggestion lists no more names.
_FEW_NAMES = 8


class BadInput(Exception):
    """What the user asked for cannot be done: exit code 2, nothing was written.

    The message is one line: the value, and what is allowed. It is deliberately no
    `ValueError`, because absl turns those into flag errors with a text of its own.
    """


@contextlib.contextmanager
def as_refusal(what: str, *more: type[Exception]) -> Iterator[None]:
    """Raise an OSError, or an error of `more` kinds, as a BadInput about `what`."""
    kinds: tuple[type[Exception], ...] = (OSError, *more)
    try:
        yield
    except kinds as error:
        raise BadInput(f"{what}: {getattr(error, 'strerror', None) or error}") from error


class RunFailed(Exception):
    """Base of the errors that end a run with their message, one line, and exit code 1."""


class Diverged(RunFailed):
    """The training loss stopped being a finite number."""


class DoesNotFit(RunFailed):
    """A step needs more memory than its device has; the message says how much."""


class Unreachable(RunFailed):
    """The processes of a run, Slurm or a server do not answer as they should; the text says how."""


class OtherProcessEnded(BaseException):
    """Another process of the run has ended, so this one does, with this status and exit code.

    Like `Terminated` no `Exception`, for it may be raised anywhere.
    """

    def __init__(self, message: str, status: str, code: int):
        super().__init__(message)
        self.status, self.code = status, code


class Terminated(BaseException):
    """A scheduler or a preempted machine sent SIGTERM or a signal like it; the text says which.

    Like `KeyboardInterrupt` no `Exception`, so that no `except Exception` on the way swallows it.
    """


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return str(error).split("\n", 1)[0] or type(error).__name__


def jax_variable_problem(error: BaseException) -> str | None:
    """Return what is wrong with a variable that JAX could not read; None for another error."""
    match = re.fullmatch(
        r"invalid truth value '(.*)' for environment '(\w+)'"
        r'|Invalid value "(.*)" for JAX flag (\w+)',
        str(error),
        re.IGNORECASE,
    )
    if match is None:
        return None
    value, name = match[1] or match[3] or "", match[2] or match[4]
    return f"{name.upper()}={value}: JAX does not take this value; correct or unset the variable"


def closest(value: str, allowed: Iterable[str]) -> str | None:
    """Return the name with the closest spelling, None if none is close."""
    names = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.6)
    return names[close[0]] if close else None


def one_of(value: str, allowed: Iterable[str]) -> str:
    """Return what to write instead of a wrong name: the closest one, and all names if few."""
    names = list(allowed)
    listed, name = f"must be one of {', '.join(names)}", closest(value, names)
    if name is None:
        return listed
    return f"did you mean {name!r}?" + (f" It {listed}" if len(names) <= _FEW_NAMES else "")
