"""Commands in the tests' own process: what `python -m` does, without a process's start."""

import contextlib
import importlib
import io
import os
import pathlib
import runpy
import signal
import sys
from collections.abc import Iterator
from typing import NamedTuple

import grain  # noqa: F401 (defines flags, which a command must not take with it)
import jax
import pytest
from absl import app, flags
from jax.experimental.compilation_cache import compilation_cache

from jaxbench.cli import COMMANDS, price_flags, process_flags  # noqa: F401 (define flags, once)
from jaxbench.parallel import signals

_COMMANDS = ["jaxbench.cli.main_flags", *(f"jaxbench.{name}" for name in COMMANDS)]
_COMPILE_SETTINGS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_compilation_cache_include_metadata_in_key",
)
# Once for all commands: absl defines --help when the first one starts.
app.define_help_flags()


class Finished(NamedTuple):
    """What a command came to, with the names that subprocess gives it."""

    returncode: int
    stdout: str
    stderr: str


def run_command(
    folder: pathlib.Path,
    *args: str,
    module: str = "jaxbench.main",
    env: dict[str, str] | None = None,
) -> Finished:
    """Runs a command in this process as `python -m` would in a folder, with fresh flags."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        fresh_process_state(),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as ended,
    ):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [module, *args])
        # What ends a process at once would end this one.
        patch.setattr(os, "_exit", lambda code: sys.exit(code))
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return Finished(ended.value.code or 0, stdout.getvalue(), stderr.getvalue())


def _copy(of):
    """Copies dicts and the lists in them, not the flags."""
    if isinstance(of, dict):
        return {key: list(value) if isinstance(value, list) else value for key, value in of.items()}
    return of


@contextlib.contextmanager
def fresh_process_state() -> Iterator[None]:
    """Inside the `with` absl's flags, signals and the compilation cache are as at a start."""
    state = vars(flags.FLAGS)
    defined = {name: _copy(of) for name, of in state.items()}
    values = {flag: dict(vars(flag)) for flag in defined["__flags"].values()}
    numbers = (*signals._EXIT_CODES, signal.SIGALRM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    settings = {name: getattr(jax.config, name) for name in _COMPILE_SETTINGS}
    compilation_cache.reset_cache()  # it looks at the settings only once
    for module, own in flags.FLAGS.flags_by_module_dict().items():
        for flag in list(own):
            # The command is run anew and defines its own; others' of the same name are in the way.
            if module in _COMMANDS and flag.name in flags.FLAGS:
                delattr(flags.FLAGS, flag.name)
    # Those that the command imports are imported anew too, for their flags.
    modules = _forget_commands()
    try:
        yield
    finally:
        _forget_commands()
        for name, module in modules.items():
            sys.modules[name] = module
            setattr(*_parent(name), module)
        state.clear()
        state.update(defined)
        for flag, attributes in values.items():
            vars(flag).clear()
            vars(flag).update(attributes)
        signals.raise_on_signals()  # forgets those that came
        # A command that a signal ends has so long until it is cut short.
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _parent(name: str):
    """Returns the package of a module, and the module's name in it."""
    package, _, name = name.rpartition(".")
    return importlib.import_module(package), name


def _forget_commands() -> dict:
    """Has the next import of each command run it; returns those that had been imported."""
    found = {}
    for command in _COMMANDS:
        if command in sys.modules:
            found[command] = sys.modules.pop(command)
            package, name = _parent(command)
            vars(package).pop(name, None)
    return found
