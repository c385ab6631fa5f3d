"""The hosts file of a sweep over ssh."""

import re
import shlex
from typing import NamedTuple

from jaxbench.errors import BadInput, nearest
from jaxbench.files import read_text
from jaxbench.paths import user_path

# [user@]host[:port]; an IPv6 address in brackets. Nothing that ssh could take for an option.
_ADDRESS = re.compile(r"((?:\w[\w.-]*@)?)(\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?", re.ASCII)
_OPTIONS = ("folder", "python", "kind")


class Host(NamedTuple):
    """A line of the hosts file.

    Attributes:
      name: [user@]host[:port], as it was given.
      address: [user@]host, for ssh.
      port: None for ssh's own choice.
      folder: on that host; the trials run in it.
      python: the interpreter there that has jaxbench.
      kind: the user's name for its hardware.
    """

    name: str
    address: str
    port: str | None = None
    folder: str = "~/jaxbench-sweeps"
    python: str = "python3"
    kind: str | None = None


def read_hosts(path: str) -> list[Host]:
    """Read a hosts file.

    Raises:
      BadInput: it cannot be read, names no host, or a line is not as it must be.
    """
    try:
        lines = read_text(user_path(path), encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--hosts={path}: {getattr(error, 'strerror', None) or error}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                hosts.append(_parse(words))
        except ValueError as error:
            raise BadInput(f"--hosts={path}, line {number}: {error}") from error
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadInput(f"--hosts={path}: {twice} is given twice; a host runs one trial at a time")
    if not hosts:
        raise BadInput(f"--hosts={path}: names no host; a line is [user@]host[:port]")
    return hosts


def _parse(words: list[str]) -> Host:
    """Return the host of a line's words; raise ValueError with what is wrong."""
    name, *rest = words
    found = _ADDRESS.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r}: must be [user@]host[:port]")
    user, host, port = found.groups()
    options = {}
    for word in rest:
        option, _, value = word.partition("=")
        if option not in _OPTIONS or not value:
            allowed = ", ".join(f"{option}=..." for option in _OPTIONS)
            raise ValueError(f"{word!r}: must be one of {allowed}{nearest(option, _OPTIONS)}")
        if option in options:
            raise ValueError(f"{option}=...: is given twice")
        options[option] = value
    return Host(name, user + host.strip("[]"), port, **options)
