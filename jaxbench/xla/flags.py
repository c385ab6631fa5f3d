"""Check flags for XLA's compiler and add them to XLA_FLAGS.

XLA reads XLA_FLAGS once, and aborts the process at a flag that it does not know. The known flags
differ from release to release, so a process of 0.1 s tries each flag first. Options of `compile`
come too late for flags that make the devices.
"""

import os
import re
import subprocess
import sys

from jaxbench.errors import BadInput

_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: ")
_ERROR = re.compile(r"^E\d+ .*?\] (.*?)\.?$", re.MULTILINE)
# Makes XLA read XLA_FLAGS; creates no device.
_READ = "from jaxlib import xla_client; xla_client.CompileOptions()"


def check_xla_flags(text: str) -> list[str]:
    """Return the flags in a text; raise BadInput for a word that is not `--xla_NAME[=VALUE]`."""
    flags = text.split()
    for flag in flags:
        if not re.fullmatch(r"--xla_\w+(=.*)?", flag):
            raise BadInput(f"--xla_flags={text}: {flag!r} must be of the form --xla_NAME=VALUE")
    return flags


def add_xla_flags(text: str) -> list[str]:
    """Append flags, `--xla_NAME=VALUE ...`, to XLA_FLAGS, before JAX creates its devices.

    The environment's flags stay. Return the flags that this XLA does not know; they are left out.

    Raises:
      BadInput: a word is no flag, a flag has an invalid value, or XLA refuses a flag of the
        environment.
    """
    flags, before = check_xla_flags(text), os.environ.get("XLA_FLAGS", "")
    for reason in refused_xla_flags(before):
        raise BadInput(f"XLA_FLAGS in the environment: {reason}")
    refusals = {flag: _refusal(flag) for flag in flags}
    unknown = [flag for flag in flags if refusals[flag] and _UNKNOWN.search(refusals[flag])]
    for flag in flags:
        if refusals[flag] and flag not in unknown:
            raise BadInput(f"--xla_flags={text}: {_explain(flag, refusals[flag])}")
    os.environ["XLA_FLAGS"] = " ".join([*before.split(), *(f for f in flags if f not in unknown)])
    return unknown


def refused_xla_flags(text: str) -> list[str]:
    """Return why XLA refuses flags of a text, an entry each; the process would abort at them."""
    flags = text.split()
    if not flags or not _refusal(text):
        return []
    return [_explain(flag, refusal) for flag in flags if (refusal := _refusal(flag))]


def _refusal(flags: str) -> str | None:
    """Return what XLA prints when it aborts at flags; None if it accepts them."""
    done = subprocess.run(
        [sys.executable, "-c", _READ],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    return done.stderr if done.returncode else None


def _explain(flag: str, refusal: str) -> str:
    """Return one line: why XLA refuses a flag."""
    if _UNKNOWN.search(refusal):
        return f"XLA does not know {flag}"
    error = _ERROR.search(refusal)
    return error[1] if error else f"XLA does not take {flag}"
