"""The command line shared by the entry points: flags in, one call, exit code out.

Exit codes: 0 done; 1 failed, out of memory, diverged or invalid (the record says which); 2 bad
input, one line, nothing written; 3 undecided (`compare --baseline`); 130 Ctrl-C; 143 SIGTERM,
SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU. If nobody reads standard output (`| head`) a run goes on; a
program that only prints something ends with 1, in silence.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from absl import app, flags, logging

from jaxbench import terminal
from jaxbench.cli import registry
from jaxbench.cli.help import help_text
from jaxbench.cli.hints import check_field, meant_fields
from jaxbench.cli.importing import importing
from jaxbench.config.custom import describe_error, user_line
from jaxbench.config.fields import describe_type, overridable
from jaxbench.errors import (
    DISK_IS_FULL,
    OUT_OF_MEMORY,
    BadInput,
    OtherProcessEnded,
    RunFailed,
    Terminated,
    jax_variable_problem,
)
from jaxbench.modes.options import check_choice
from jaxbench.parallel.signals import raise_on_signals, reason_of
from jaxbench.paths import check_working_folder

_EXPERIMENT = re.compile(r"--?(no)?experiment(\.(?P<field>[^=]*))?(?P<value>=.*)?", re.DOTALL)


def run_with_arguments(
    main: Callable[[list[str]], int | None],
    argv: Sequence[str] | None = None,
    parse: Callable[[Sequence[str]], list[str]] | None = None,
) -> None:
    """Parse absl flags, call `main` with what is no flag, exit the process with the code above."""

    def quietly(rest: list[str]) -> int | None:
        if not flags.FLAGS["verbosity"].present:
            # absl's default shows what JAX logs about backends that this machine does not have.
            logging.set_verbosity(logging.WARNING)
        # A warning of the run says what to install.
        getLogger("jax._src.xla_bridge").addFilter(
            lambda record: "Falling back to" not in str(record.msg)
        )
        code = main(rest[1:])
        sys.stdout.flush()
        return code

    terminal.open_closed_streams()
    raise_on_signals()
    arguments = sys.argv if argv is None else argv
    if {"-h", "-help", "--help", "--helpshort"} & {*arguments[1:]}:
        with terminal.tolerated(sys.stdout):
            print(help_text(parse is not None), flush=True)
        sys.exit(0)
    try:
        check_working_folder()
        app.run(quietly, argv=[*arguments], flags_parser=parse or _parse_flags)  # type: ignore[call-overload]
    except SystemExit as exit_:
        if user_line(exit_):
            # Whatever its code: nothing has been done.
            terminal.warn(f"jaxbench: {describe_error('your code ends the program', exit_)}")
            sys.exit(2)
        # absl calls having shown the help a failure.
        asks = any(re.match(r"--?help(full|xml)$", argument) for argument in arguments)
        sys.exit(0 if asks else exit_.code)
    except BaseException as error:
        code, line = exit_code(error)
        if isinstance(error, BrokenPipeError) and terminal.is_unread():
            sys.exit(code)
        if line is None:
            raise
        terminal.warn(f"jaxbench: {line}")
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            # At once: an ordinary exit would wait for the steps still queued on the device.
            terminal.flush_streams()
            os._exit(code)
        sys.exit(code)
    finally:
        terminal.flush_streams()


def run_with_experiment(main: Callable[..., int | None], argv: Sequence[str] | None = None) -> None:
    """Do as `run_with_arguments`, but call `main` with the arguments of `load_experiment`."""
    experiment: list[Any] = []

    def parse(argv: Sequence[str]) -> list[str]:
        argv, *experiment[:] = take_experiment(argv)
        arguments, spec = _parse_flags(argv, experiment[0])[1:], experiment[0]
        if not arguments:
            return [argv[0]]
        name, equals, value = arguments[0].partition("=")
        meant = [f"experiment={name}"] if name.split(":")[0] in registry.available() else []
        if equals:
            meant = [f"experiment.{one}={value}" for one in meant_fields(name, _fields(spec))]
        hint = f"; did you mean --{' or --'.join(meant)}?" if meant else ""
        raise BadInput(f"{arguments[0]!r}: flags begin with --{hint}")

    run_with_arguments(lambda _: main(*experiment), argv, parse)


def exit_code(error: BaseException) -> tuple[int, str | None]:
    """Return a program's exit code for an error, and its line; None for a traceback."""
    error = reason_of(error)
    if isinstance(error, BadInput):
        return 2, str(error)
    if isinstance(error, RunFailed):
        return 1, str(error)
    if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
        return 1, f"{error.filename or 'the disk'}: {error.strerror}"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, Terminated):
        return 143, "terminated"
    if isinstance(error, OtherProcessEnded):
        return error.code, str(error)
    if problem := jax_variable_problem(error):
        return 2, problem
    if isinstance(error, Exception) and user_line(error) and not OUT_OF_MEMORY.search(repr(error)):
        return 2, describe_error("your code fails", error)
    text = " ".join(str(error).split())
    # Of an installation or a limit (memory, processes) a traceback says no more than the text.
    is_library = isinstance(error, ImportError) and not (error.name or "").startswith("jaxbench")
    if is_library or OUT_OF_MEMORY.search(repr(error)) or "can't start new thread" in text:
        return 1, f"{type(error).__name__}: {text[:300]}".rstrip(": ")
    return 1, None


def load_experiment(spec: str | None, overrides: Sequence[str] = ()) -> Any:
    """Return the experiment of `--experiment=SPEC` with overrides, `--experiment.FIELD=VALUE`.

    Raise BadInput if there is no such experiment or field, or a value is not allowed.
    """
    if spec is None:
        raise BadInput("give --experiment=NAME, such as quickstart; --experiment=list shows all")
    with importing():
        config = registry.load(spec)
        # Not needed to say that a name is wrong.
        from ml_collections import config_flags
    fields = overridable(config)
    last = {}  # else the values of a field that is given twice would be joined
    for match in filter(None, map(_EXPERIMENT.fullmatch, overrides)):
        check_field(config, match["field"], fields)
        last[match["field"]] = match[0]
    values, argv = flags.FlagValues(), ["", *last.values()]
    config_flags.DEFINE_config_dataclass(
        "experiment", config, "", flag_values=values, sys_argv=argv
    )
    try:
        values(argv)
    except flags.Error as error:
        message = " ".join(str(error).split())
        if match := re.match(r"flag --experiment\.([^=]+)=(.*?): ", message):
            message = f"--experiment.{match[1]}={match[2]}: must be "
            message += describe_type(fields[match[1]])
        raise BadInput(message) from None
    values.experiment.validate()
    return values.experiment


def take_experiment(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Split a command line into all else, what followed --experiment=, and the overrides.

    Each override is one argument, also if its value is the next.
    """
    rest, spec, overrides = [], None, []
    args = [*argv]
    while args:
        arg = args.pop(0)
        match = _EXPERIMENT.fullmatch(arg)
        if match and not match["value"] and args and not args[0].startswith("--"):
            arg = f"{arg}={args.pop(0)}"
        if not match:
            rest.append(arg)
        elif match["field"]:
            overrides.append(arg)
        elif spec is None:
            spec = arg.partition("=")[2]
        else:
            raise BadInput(f"{arg}: --experiment={spec} is given, too; give one")
    return rest, spec, overrides


def _parse_flags(argv: Sequence[str], spec: str | None = None) -> list[str]:
    """Parse flags; if absl fails, raise BadInput, in the words of the experiment's fields."""
    try:
        return flags.FLAGS(list(argv))
    except flags.UnrecognizedFlagError as error:
        # A command may have no --experiment.
        names = [one for one in ("experiment", *flags.FLAGS) if one != error.flagname]
        meant = meant_fields(error.flagname, [*names, *_fields(spec)])
        meant = [f"--{name}" if name in names else f"--experiment.{name}" for name in meant]
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        raise BadInput(f"--{error.flagname}: no such flag{hint}") from None
    except flags.Error as error:
        message = re.sub(r"\('Non-boolean.*", "must be true or false", " ".join(str(error).split()))
        if match := re.fullmatch(r"flag --(\w+)=(.*): value should be one of <(.*)>", message):
            check_choice(match[1], match[2], match[3].split("|"))
        raise BadInput(message) from None


def _fields(spec: str | None) -> dict[str, Any]:
    return overridable(registry.load(spec)) if spec not in (None, "list") else {}
