"""Open files of a known kind and size: a pipe blocks whoever opens it, a link may lead anywhere."""

import csv
import errno
import functools
import io
import math
import os
import pathlib
import stat
import tarfile
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

# More than any file has that is read whole: a run's document, a list of prices or hosts.
DOCUMENT_BYTES = 2**25
# More than a line of records or readings has.
LINE_LENGTH = 2**24
# What ends the name of a file while it is written.
PARTIAL = ".partial"
Row = TypeVar("Row")
# What msgspec calls a cell's type, in words.
_TYPES = {"float": "a number", "int": "a whole number", "str": "text"}


def open_regular(
    path: str | os.PathLike, mode: str = "r", *, most_bytes: float, **options: Any
) -> Any:
    """Open a file as `open` does; raise OSError for a pipe, a device, a folder or a large file."""
    opener = functools.partial(_open_descriptor, most_bytes=most_bytes)
    return open(path, mode, opener=opener, **options)


def read_text(path: pathlib.Path, most_bytes: int = DOCUMENT_BYTES, encoding: str = "utf-8") -> str:
    """Return what a text file holds; raises what `open_regular` raises, and ValueError."""
    with open_regular(path, most_bytes=most_bytes, encoding=encoding) as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise ValueError("is no UTF-8 text") from error


def read_lines(file: Any) -> Iterator[Any]:
    """Yield the lines of an open file; raise OSError for one of more than LINE_LENGTH."""
    while line := file.readline(LINE_LENGTH):
        if len(line) == LINE_LENGTH:
            raise OSError(errno.EFBIG, f"has a line of {LINE_LENGTH:,} characters", file.name)
        yield line


def read_table(module: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file beside a module; lines that begin with # are comments."""
    with pathlib.Path(module).with_name(name).open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(line for line in file if line[:1] != "#")]


def parse_rows(text: str, kind: type[Row]) -> list[Row]:
    """Return the rows of a CSV file as a dataclass or dictionary, whose types check the cells.

    An empty cell is None. Lines that begin with # and columns without a field are ignored, and so
    are a spreadsheet's rows and columns without any text.

    Raises:
      ValueError: the text is no CSV, lacks a column, or has a wrong cell; names line and column.
    """
    lines = (line for line in io.StringIO(text, newline=None) if line[:1] != "#")
    reader = csv.DictReader(lines, strict=True, skipinitialspace=True)
    rows = []
    try:
        columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        for field in getattr(msgspec.inspect.type_info(kind), "fields", ()):
            if text and field.required and (count := columns.count(field.name)) != 1:
                number = f"{count or 'no'} column{'s' * (count > 1)}"
                raise ValueError(f"{number} {field.name!r} in {','.join(columns)[:200]!r}")
        for row in reader:
            if any(row.pop(None, ())):
                raise ValueError("it has more cells than columns; quote a text with a comma")
            cells = {name: " ".join((cell or "").split()) or None for name, cell in row.items()}
            if any(cells.values()):
                rows.append(_convert(cells, kind))
    except (csv.Error, ValueError) as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    return rows


def _convert(cells: dict[str, str | None], kind: type[Row]) -> Row:
    try:
        return msgspec.convert(cells, kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, column = str(error).rstrip("`").partition(" - at `$.")
        problem = problem.partition(", got")[0].replace(" | null", ", or nothing")
        for name, words in _TYPES.items():
            problem = problem.replace(f"`{name}", words)
        problem = problem.replace("`", "").replace("Expected", "expected")
        example = ", written like 1.5" if "a number" in problem else ""
        cell = repr(text[:60]) if (text := cells.get(column)) else "empty"
        raise ValueError(f"{column} is {cell}: {problem}{example}") from error


def open_own(path: str | os.PathLike, mode: str, **options: Any) -> Any:
    """Open a file of a run directory, to write to it; raise OSError for a link, too."""
    return open(path, mode, opener=functools.partial(_open_descriptor, no_links=True), **options)


def replace_file(path: pathlib.Path, content: str | bytes, **options: Any) -> None:
    """Replace a file; on a full disk, or if the process is killed, the old file stays whole.

    The options are those of `open`. Raises OSError if it cannot be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    mode, encoding = ("x", "utf-8") if isinstance(content, str) else ("xb", None)
    try:
        # A killed process left it, or it is a link to somewhere else, which is not written through.
        partial.unlink(missing_ok=True)
        with open(partial, mode, encoding=encoding, **options) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _open_descriptor(
    path: str, flags: int, *, no_links: bool = False, most_bytes: float = math.inf
) -> int:
    # Non-blocking: else opening a pipe waits for its other end.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if no_links else 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link", path) from error
        raise
    status = os.fstat(descriptor)
    is_regular = stat.S_ISREG(status.st_mode)
    if is_regular and status.st_size <= most_bytes:
        return descriptor
    os.close(descriptor)
    if is_regular:
        raise OSError(errno.EFBIG, f"has more than {most_bytes:,} bytes", path)
    raise OSError(errno.EINVAL, "is no regular file", path)


def unpack(file: Any, folder: pathlib.Path, most_bytes: int) -> None:
    """Unpack the files and folders of a tar file from another machine; leave links and others out.

    tarfile's own filter lets some links out, before Python 3.11.13 and 3.12.11.

    Raises:
      tarfile.TarError: it is damaged, names a place outside, or holds more than `most_bytes`.
      OSError: the disk is full, or a name is too long or stands for a file and a folder.
    """

    def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        left_bytes = most_bytes
        for member in archive:
            left_bytes -= member.size
            if left_bytes < 0:
                raise tarfile.TarError(f"more than {most_bytes:,} bytes")
            if member.isreg() or member.isdir():
                yield member

    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            archive.extractall(folder, members(archive), filter="data")
    except (OverflowError, ValueError) as error:  # names, sizes and times that no file has
        raise tarfile.TarError(str(error)) from error


def end_of_lines(file: Any) -> int:
    """Return how many bytes of a binary file are whole lines; what follows has no end."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = file.seek(max(0, end - 2**16))
        if (place := file.read(end - start).rfind(b"\n")) >= 0:
            return start + place + 1
        end = start
    return 0
