"""Flags for XLA's compiler beside those of the environment.

XLA reads XLA_FLAGS once, and ends the process at a flag that it does not know. What is known
differs from release to release, so a process of its own is asked first.
"""

import os
import re
import subprocess
import sys
import textwrap

from jaxbench.errors import BadInput

_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: ")
_ERROR = re.compile(r"^E\d+ .*?\] (.*?)\.?$", re.MULTILINE)
# Reads XLA_FLAGS and makes no device.
_READ = "from jaxlib import xla_client; xla_client.CompileOptions()"


def check_xla_flags(text: str) -> list[str]:
    """Returns the flags that a text holds; raises BadInput for what is no flag of XLA's."""
    flags = text.split()
    for flag in flags:
        if not re.fullmatch(r"--xla_\w+(=.*)?", flag):
            raise BadInput(f"--xla_flags={text}: {flag!r} must be of the form --xla_NAME=VALUE")
    return flags


def add_xla_flags(text: str) -> list[str]:
    """Appends flags to XLA_FLAGS, before JAX makes its devices; those of the environment stay.

    Args:
      text: `--xla_NAME=VALUE ...`, apart by spaces.

    Returns:
      The flags that this XLA does not know, which are left out.

    Raises:
      BadInput: what is no flag, or a value that its flag cannot have; a flag of the environment
        over which XLA would end.
    """
    given = check_xla_flags(text)
    environment = os.environ.get("XLA_FLAGS", "").split()
    unknown = []
    if _read([*environment, *given]) is not None:
        # One by one: XLA does not always say which flag it ends over.
        for flag in environment if _read(environment) is not None else []:
            if said := _read([flag]):
                raise BadInput(f"XLA_FLAGS in the environment: {_explain(flag, said)}")
        for flag in given:
            said = _read([flag])
            if said and _UNKNOWN.search(said):
                unknown.append(flag)
            elif said:
                raise BadInput(f"--xla_flags={text}: {_explain(flag, said)}")
    known = [flag for flag in given if flag not in unknown]
    os.environ["XLA_FLAGS"] = " ".join([*environment, *known])
    return unknown


def _read(flags: list[str]) -> str | None:
    """Has XLA read flags; returns what it says where it ends over them."""
    done = subprocess.run(
        [sys.executable, "-c", _READ],
        env=os.environ | {"XLA_FLAGS": " ".join(flags)},
        capture_output=True,
        text=True,
    )
    return done.stderr if done.returncode else None


def _explain(flag: str, said: str) -> str:
    """One line of what XLA said of a flag: the value, and what its list of flags knows of it."""
    if _UNKNOWN.search(said):
        return f"XLA does not know {flag}"
    name = flag.partition("=")[0]
    error = _ERROR.search(said)
    why = error[1] if error else f"XLA does not take {flag}"
    # `<tab>--xla_NAME=DEFAULT<tab>TYPE<tab>what it is for`; XLA cuts the list off, maybe before.
    known = re.search(rf"^\t{name}=(.*?) *\t(\w+)\t(.*)$", said, re.MULTILINE)
    if not known:
        return why
    default, kind, purpose = known.groups()
    purpose = textwrap.shorten(purpose, 200, placeholder=" ...")
    return f"{why}; it takes {kind}, {default} by default: {purpose}"
