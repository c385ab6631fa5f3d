"""Fetch the official files of CIFAR-10 and MNIST: once for a user, and never used unverified.

`downloads.csv` holds their addresses, sizes and SHA-256 digests. The first address of a file is the
preferred one; the others serve the same bytes. `$JAXBENCH_DOWNLOADS` names another such table, for
the mirrors of a site. The digest decides which bytes are used, not the server or the way to it.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import http.client
import math
import os
import pathlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from jaxbench import __version__
from jaxbench.clock import Stopwatch, ask
from jaxbench.data.dataset import as_bad_input
from jaxbench.errors import Unreachable, first_line
from jaxbench.files import open_regular, replace_file
from jaxbench.paths import locked

_TABLE = pathlib.Path(__file__).with_name("downloads.csv")
# A server that sends nothing for so long is given up, and one that sends less than this.
_TIMEOUT_S = 30.0
_LEAST_BYTES_PER_S = 1000
_CHUNK_BYTES = 2**18

# For the error that a data set is missing.
FORBIDDEN = "data.download=False or JAXBENCH_DOWNLOAD=0 forbids fetching it"
WAYS = (
    ". Other ways: --experiment.data.path=FOLDER of a set that TFDS prepared; local files with "
    "--experiment.data.source=cifar10_batches or npz and their data.path; without data, "
    "--mode=throughput"
)

# Shows a title, what is done, the whole, and a unit with anything else.
Bar = Callable[[str, int, int, str], None]


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file to fetch."""

    name: str
    size_bytes: int
    sha256: str
    urls: list[str]


def listed_files(dataset: str) -> list[RemoteFile]:
    """Return the official files of a data set; none if the table does not list it.

    Raises:
      BadInput: `$JAXBENCH_DOWNLOADS` is no such table.
    """
    table = os.environ.get("JAXBENCH_DOWNLOADS") or _TABLE
    files: dict[str, RemoteFile] = {}
    with as_bad_input(f"JAXBENCH_DOWNLOADS={table}"), open(table) as stream:
        for row in csv.DictReader(stream):
            if row["dataset"] == dataset:
                file = RemoteFile(row["file"], int(row["size_bytes"]), row["sha256"], [])
                files.setdefault(file.name, file).urls.append(row["url"])
    return list(files.values())


def may_download(allowed: bool) -> bool:
    """Return whether `data.download` and `$JAXBENCH_DOWNLOAD` both allow fetching."""
    return allowed and os.environ.get("JAXBENCH_DOWNLOAD", "").lower() not in ("0", "false", "no")


def read_verified(path: pathlib.Path, file: RemoteFile) -> bytes | None:
    """Return the bytes at a path if they have the pinned digest of a file."""
    try:
        with open_regular(path, "rb", most_bytes=math.inf) as stream:
            content = stream.read(file.size_bytes + 1)
    except FileNotFoundError:
        return None
    return content if hashlib.sha256(content).hexdigest() == file.sha256 else None


def fetch(
    file: RemoteFile, folder: pathlib.Path, progress: Callable[[str], None], bar: Bar
) -> bytes:
    """Fetch a file into a folder, unless another process is faster, and return its bytes.

    A file gets its name once it is complete and verified; a fetch that is interrupted begins again.

    Raises:
      Unreachable: no address serves the file.
      OSError: the folder cannot be written in, or the disk is full; then nothing is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, reasons = folder / file.name, []
    with locked(path, lambda: progress(f"waiting for another process that fetches {file.name}")):
        content = read_verified(path, file)
        if content is not None:
            return content
        progress(f"fetching {file.name} ({_megabytes(file.size_bytes)} MB) into {folder}")
        for url in file.urls:
            try:
                content = _fetch_from(url, file, bar)
                break
            except Unreachable as error:
                reasons.append(f"{urlsplit(url).hostname}: {error}")
        else:
            raise Unreachable("; ".join(reasons))
        replace_file(path, content)
        return content


def _megabytes(size_bytes: int) -> int:
    return max(1, round(size_bytes / 1e6))


@contextlib.contextmanager
def _network_errors() -> Iterator[None]:
    """Raise Unreachable for anything that urllib raises for a server or the way to it."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        reason = " ".join(str(error.reason).split())
        raise Unreachable(f"HTTP {error.code} {reason[:90]}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(first_line(reason)[:200] if str(reason) else repr(reason)) from error


def _fetch_from(url: str, file: RemoteFile, bar: Bar) -> bytes:
    """Return a file's bytes from one server, verified."""
    headers = {"User-Agent": f"jaxbench/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)
    # The timeout of urllib is that of a single byte.
    urlopen = functools.partial(urllib.request.urlopen, request, timeout=_TIMEOUT_S)
    with _network_errors():
        response = ask(url, urlopen, 2 * _TIMEOUT_S)
    with response:
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) != file.size_bytes:
            raise Unreachable(f"it has {int(length):,} bytes, not {file.size_bytes:,}")
        chunks, done = [], 0
        watch, seen = Stopwatch(), 0
        while done < file.size_bytes:
            with _network_errors():
                chunk = response.read1(min(_CHUNK_BYTES, file.size_bytes - done))
            if not chunk:
                raise Unreachable(f"it ended after {done:,} of {file.size_bytes:,} bytes")
            chunks.append(chunk)
            done += len(chunk)
            bar(f"fetching {file.name}", _megabytes(done), _megabytes(file.size_bytes), "MB")
            if (elapsed_s := watch.elapsed_s()) > _TIMEOUT_S:
                if done - seen < _LEAST_BYTES_PER_S * elapsed_s:
                    raise Unreachable(f"it sent only {done - seen:,} bytes in {elapsed_s:.0f} s")
                watch, seen = Stopwatch(), done
    content = b"".join(chunks)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise Unreachable("its bytes are not the published ones")
    return content
