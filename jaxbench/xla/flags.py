"""Check flags for XLA's compiler and add them to XLA_FLAGS.

XLA reads XLA_FLAGS once, and aborts the process at a flag that it does not know. The known flags
differ from release to release, so a process of 0.1 s tries the flags first. Options of `compile`
come too late for flags that make the devices.
"""

import os
import re
import subprocess
import sys

from jaxbench.errors import BadInput

_UNKNOWN = "XLA does not know"
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
    for reason in refused_xla_flags(before).values():
        raise BadInput(f"XLA_FLAGS in the environment: {reason}")
    refused = refused_xla_flags(text)
    unknown = [flag for flag, reason in refused.items() if reason.startswith(_UNKNOWN)]
    for flag, reason in refused.items():
        if flag not in unknown:
            raise BadInput(f"--xla_flags={text}: {reason}")
    os.environ["XLA_FLAGS"] = " ".join([*before.split(), *(f for f in flags if f not in unknown)])
    return unknown


def refused_xla_flags(text: str) -> dict[str, str]:
    """Return {flag: reason} for the flags of a text at which XLA would abort the process."""
    flags = text.split()
    if not flags or not _refusal(text):
        return {}
    return {flag: _explain(flag, refusal) for flag in flags if (refusal := _refusal(flag))}


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
    if re.search(r"Unknown flags? in XLA_FLAGS: ", refusal):
        return f"{_UNKNOWN} {flag}"
    error = _ERROR.search(refusal)
    return error[1] if error else f"XLA does not take {flag}"
