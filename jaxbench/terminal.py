"""Standard output and error: what a terminal is shown, and what happens if nobody reads."""

import contextlib
import math
import os
import re
import select
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from typing import IO, TextIO

# The blank between a number and its unit, where no line ends.
_UNITS = re.compile(r"(?<=\d) (?=(%|ms|s|min|MiB|GB/s|images/s|USD)(\W|$))")
# TERM of terminals that show nothing but text.
PLAIN_TERMINALS = ("dumb", "unknown")
# {code of a colour: words for a status}: green, amber, red.
_COLOURS = {
    "32": ("ok", "done", "pass"),
    "33": ("warning", "inconclusive", "incomplete", "undecided"),
    "31": ("problem", "invalid", "failed", "fail", "oom", "diverged"),
}
_WORDS = "|".join(word for words in _COLOURS.values() for word in words)
_STATUS = re.compile(rf"((?:verdict: )?)(?P<word>{_WORDS})(?![\w-])", re.IGNORECASE)


def shown_path(path: str | os.PathLike) -> str:
    """Return a path relative to the working folder if it is below that, else the absolute one."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith(os.pardir) else relative


def printable(text: str) -> str:
    """Replace what would steer a terminal, or cannot be written, by question marks.

    For text from outside: names of folders, records, what other programs say.
    """
    return "".join(
        letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else "?"
        for letter in text
    )


def four_digits(value: float) -> str:
    """Return a finite number with four significant digits and thousands separators."""
    if value == 0 or not 1e-4 <= abs(value) < 1e15:
        return f"{value:.4g}"
    # 999.97 has four digits as 1,000.
    rounded = abs(float(f"{value:.4g}"))
    return f"{value:,.{max(0, 3 - math.floor(math.log10(rounded)))}f}"


def width() -> int:
    """Return the columns of a line: COLUMNS, those of the terminal, or 80."""
    return max(40, shutil.get_terminal_size().columns)


def wrap(line: str, indent: str = "  ") -> list[str]:
    """Return a line as lines that fit the width, `indent` before all but the first.

    A word that is longer has a line of its own.
    """
    parts = textwrap.wrap(
        _UNITS.sub("\0", line),
        width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\0", " ") for part in parts]


def print_wrapped(*lines: str, indent: str = "  ") -> None:
    """Print lines that fit the width, see `wrap`."""
    for line in lines:
        print("\n".join(coloured(part, sys.stdout) for part in wrap(line, indent)))


def coloured(line: str, stream: IO[str]) -> str:
    """Return a line whose status, the word at its start, has a colour if a terminal shows it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in PLAIN_TERMINALS
    if plain or not stream.isatty() or not (match := _STATUS.match(line)):
        return line
    code = next(code for code, words in _COLOURS.items() if match["word"].lower() in words)
    return f"{match[1]}\x1b[{code}m{match['word']}\x1b[0m{line[match.end() :]}"


def warn(line: str) -> None:
    """Print a line on standard error; without one it is lost."""
    with tolerated(sys.stderr):
        print(printable(line), file=sys.stderr, flush=True)


@contextlib.contextmanager
def tolerated(stream: TextIO) -> Iterator[None]:
    """Go on if a stream cannot be written to inside the `with`; the rest of it goes nowhere."""
    try:
        yield
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Have all that is still written to a stream go nowhere."""
    # Where the stream has no descriptor there is nothing to do.
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def open_closed_streams() -> None:
    """Have the standard streams that were closed at the start lead nowhere.

    A file opened later would get their descriptor, and whatever is printed would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


def flush_streams() -> None:
    """Write what is left in the buffers, so that Python does not fail to at its end."""
    for stream in (sys.stdout, sys.stderr):
        with tolerated(stream):
            stream.flush()


def is_unread() -> bool:
    """Return whether the program that was to read standard output has ended (`| head`)."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except OSError:
        return False
