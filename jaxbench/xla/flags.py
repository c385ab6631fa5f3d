"""Check flags for XLA's compiler and add them to XLA_FLAGS.

XLA reads XLA_FLAGS once, and aborts the process at a flag that it does not know. The known flags
differ from release to release, so a process of 0.1 s tries each flag first.
`lowered.compile(compiler_options=...)` would not do: it comes too late for flags that make the
devices (--xla_force_host_platform_device_count), and `jax.pmap` takes no such options.
"""

import os
import re
import subprocess
import sys
import textwrap

from jaxbench.errors import BadInput

_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: ")
_ERROR = re.compile(r"^E\d+ .*?\] (.*?)\.?$", re.MULTILINE)
# Has XLA read XLA_FLAGS; creates no device.
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

    The environment's flags stay.

    Returns:
      The flags that this XLA does not know. They are left out.

    Raises:
      BadInput: a word is no flag, a flag has an invalid value, or XLA refuses a flag of the
        environment.
    """
    check_xla_flags(text)
    environment = os.environ.get("XLA_FLAGS", "").split()
    for flag in environment:
        if refusal := _refusal(flag):
            raise BadInput(f"XLA_FLAGS in the environment: {_explain(flag, refusal)}")
    known, unknown = [], []
    for flag in check_xla_flags(text):
        refusal = _refusal(flag)
        if refusal and not _UNKNOWN.search(refusal):
            raise BadInput(f"--xla_flags={text}: {_explain(flag, refusal)}")
        (unknown if refusal else known).append(flag)
    os.environ["XLA_FLAGS"] = " ".join([*environment, *known])
    return unknown


def refused_xla_flags(text: str) -> list[str]:
    """Return why XLA refuses flags of a text, an entry each; the process would abort at them."""
    flags = text.split()
    if not flags or not _refusal(text):
        return []
    refusals = {flag: refusal for flag in flags if (refusal := _refusal(flag))}
    return [_explain(flag, refusal) for flag, refusal in refusals.items()]


def _refusal(flag: str) -> str | None:
    """Return what XLA prints where it aborts over a flag, or flags; None where it takes them."""
    done = subprocess.run(
        [sys.executable, "-c", _READ],
        env=os.environ | {"XLA_FLAGS": flag},
        capture_output=True,
        text=True,
    )
    return done.stderr if done.returncode else None


def _explain(flag: str, refusal: str) -> str:
    """Return one line: why XLA refuses a flag, and the flag's type, default and purpose."""
    if _UNKNOWN.search(refusal):
        return f"XLA does not know {flag}"
    error = _ERROR.search(refusal)
    why = error[1] if error else f"XLA does not take {flag}"
    # XLA lists all flags as `<tab>--xla_NAME=DEFAULT<tab>TYPE<tab>PURPOSE`, cut off at some length.
    name = flag.partition("=")[0]
    listed = re.search(rf"^\t{name}=(.*?) *\t(\w+)\t(.*)$", refusal, re.MULTILINE)
    if not listed:
        return why
    default, kind, purpose = listed.groups()
    purpose = textwrap.shorten(purpose, 200, placeholder=" ...")
    return f"{why}; it takes {kind}, {default} by default: {purpose}"
