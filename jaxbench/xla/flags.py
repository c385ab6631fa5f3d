"""Check flags for XLA's compiler and add them to XLA_FLAGS.

XLA reads XLA_FLAGS once, and aborts the process at a flag that it does not know. The known flags
differ from release to release, so a process of 0.1 s tries the flags first. Options of `compile`
come too late for flags that make the devices.
"""

import functools
import os
import re
import subprocess
import sys

from jaxbench.errors import BadInput
from jaxbench.xla.variables import flags_of

_UNKNOWN = "XLA does not know "
# Makes XLA read XLA_FLAGS; creates no device.
_READ = "from jaxlib import xla_client; xla_client.CompileOptions()"


def check_flag_variables() -> None:
    """Raise BadInput if a backend would abort at XLA_FLAGS, or ignore a part of a variable.

    XLA ignores what follows a word that does not begin with a dash, and takes a first word without
    one for the name of a file; jaxbench puts flags before it. Once JAX has its devices this does
    nothing: XLA has read its flags.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge and bridge.backends_are_initialized():
        return
    for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        for word in flags_of(variable):
            # A comma in place of a blank would make the next flag a part of the value.
            if not re.fullmatch(r"--?\w+(=(?!.*,--).*)?", word, re.ASCII | re.DOTALL):
                raise BadInput(
                    f"{variable}: {word!r} must be of the form --NAME=VALUE, with blanks between "
                    f"flags; correct or unset {variable}"
                )
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and (reason := xla_refusal(flags)):
        raise BadInput(f"XLA_FLAGS: {reason}; correct or unset XLA_FLAGS")


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
        environment, see `check_flag_variables`.
    """
    flags, before = check_xla_flags(text), os.environ.get("XLA_FLAGS", "")
    check_flag_variables()
    reason = xla_refusal(text) or _UNKNOWN
    if not reason.startswith(_UNKNOWN):
        raise BadInput(f"--xla_flags={text}: {reason}")
    unknown = reason.removeprefix(_UNKNOWN).split()
    os.environ["XLA_FLAGS"] = " ".join([*before.split(), *(f for f in flags if f not in unknown)])
    return unknown


@functools.cache  # trials of a sweep share their flags
def xla_refusal(flags: str) -> str | None:
    """Return why XLA would abort the process at flags, in one line; None if it accepts them."""
    variables = os.environ | {"XLA_FLAGS": flags}
    command = [sys.executable, "-c", _READ]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if not done.returncode:
        return None
    if unknown := re.search(r"Unknown flags? in XLA_FLAGS: (.*)", done.stderr):
        return _UNKNOWN + unknown[1].strip()
    error = re.search(r"^E\d+ .*?\] (.*?)\.?$", done.stderr, re.MULTILINE)
    return error[1] if error else f"XLA does not take {flags}"
