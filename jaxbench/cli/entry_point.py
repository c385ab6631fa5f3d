"""The command line shared by the entry points: flags in, one call, exit code out.

Exit codes: 0 done; 1 failed, out of memory, diverged or invalid (the record says which); 2 bad
input, one line, nothing written; 3 undecided (`compare --baseline`); 130 Ctrl-C; 143 SIGTERM or
SIGHUP. If nobody reads standard output (`| head`) a run goes on; a program that only prints
something ends with 1, in silence.
"""

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from absl import app, flags, logging

from jaxbench import terminal
from jaxbench.cli import registry
from jaxbench.cli.hints import field_hint, flag_hint, meant_fields
from jaxbench.cli.importing import importing
from jaxbench.config import Experiment
from jaxbench.custom import describe_error, user_line
from jaxbench.errors import (
    OUT_OF_MEMORY,
    BadInput,
    CompilerFailed,
    CorruptDataError,
    Diverged,
    DoesNotFit,
    MixedDevices,
    OtherProcessEnded,
    Terminated,
    Unreachable,
    WorkerLost,
    nearest,
)
from jaxbench.fields import describe_type, overridable
from jaxbench.parallel.signals import raise_on_signals, reason_of

# What ends a run with one line, and exit code 1.
_FAILURES = (
    *(CompilerFailed, CorruptDataError, Diverged, DoesNotFit),
    *(MixedDevices, Unreachable, WorkerLost),
)
_EXPERIMENT = re.compile(r"^--?experiment(=.*)?$", re.DOTALL)
_TARGET_LIST = re.compile(r"--?target[= ]list")
_OVERRIDE = re.compile(r"^--?(?:no)?experiment\.([^=]*)")


def run(main: Callable[[], int | None], argv: Sequence[str] | None = None) -> None:
    """Parse absl flags, call `main()` and exit the process with the code above."""
    _run(lambda rest: main(), _parse_flags, argv)


def run_with_arguments(
    main: Callable[[list[str]], int | None], argv: Sequence[str] | None = None
) -> None:
    """Do the same for a program without an experiment: `main` gets what is no flag."""
    _run(lambda rest: main(rest[1:]), _parse_known, argv)


def run_over_experiments(
    main: Callable[[str | None, list[str]], int | None], argv: Sequence[str] | None = None
) -> None:
    """Do the same for a program that makes many experiments out of one.

    `main` gets what followed `--experiment=` and the overrides, for `load_experiment`.
    """
    taken: list[Any] = []

    def parse(argv: Sequence[str]) -> list[str]:
        rest, spec, overrides = take_experiment(argv)
        taken.extend((spec, overrides))
        return _check_no_arguments(
            _parse_known(rest, lambda: registry.load(spec) if spec else None)
        )

    _run(lambda rest: main(*taken), parse, argv)


def _run(main: Callable, parse: Callable, argv: Sequence[str] | None) -> None:
    def quietly(rest: list[str]) -> int | None:
        if not flags.FLAGS["verbosity"].present:
            # absl's default shows what JAX logs about backends that this machine does not have.
            logging.set_verbosity(logging.WARNING)
        # A warning of the run says what to install.
        getLogger("jax._src.xla_bridge").addFilter(
            lambda record: "Falling back to" not in str(record.msg)
        )
        code = main(rest)
        sys.stdout.flush()
        return code

    terminal.open_closed_streams()
    raise_on_signals()
    try:
        app.run(quietly, argv=argv, flags_parser=parse)
    except SystemExit as exit_:
        if user_line(exit_):
            # Whatever its code: nothing has been done.
            terminal.warn(f"jaxbench: {describe_error('your code ends the program', exit_)}")
            sys.exit(2)
        # absl calls having shown the help a failure.
        sys.exit(0 if _asks_for_help(argv or sys.argv) else exit_.code)
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


def exit_code(error: BaseException) -> tuple[int, str | None]:
    """Return a program's exit code for an error, and its line; None for a traceback."""
    error = reason_of(error)
    if isinstance(error, BadInput):
        return 2, str(error)
    if isinstance(error, _FAILURES):
        return 1, str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return 1, f"{error.filename or 'the disk'}: {error.strerror}"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, Terminated):
        return 143, "terminated"
    if isinstance(error, OtherProcessEnded):
        return error.code, str(error)
    if isinstance(error, Exception) and user_line(error) and not OUT_OF_MEMORY.search(repr(error)):
        return 2, describe_error("your code fails", error)
    return 1, None


def load_experiment(spec: str, overrides: Sequence[str] = ()) -> Experiment:
    """Return a valid experiment with its overrides applied.

    Args:
      spec: what follows `--experiment=`.
      overrides: arguments of the form `--experiment.FIELD=VALUE`.

    Raises:
      BadInput: no such experiment or field, or a value that is not allowed.
    """
    flag_values = flags.FlagValues()
    argv, config = define_experiment(["", f"--experiment={spec}", *overrides], flag_values)
    if config is None:
        raise BadInput(f"--experiment={spec}: must name an experiment")
    _parse_known(argv, lambda: config, flag_values)
    flag_values.experiment.validate()
    return flag_values.experiment


def take_experiment(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Split a command line into all else, what followed --experiment=, and the overrides.

    Each override is one argument, also if its value is the next.
    """
    argv, spec = _experiment_first(argv)
    rest, overrides = [argv[0]], []
    args = argv[2:] if spec is not None else argv[1:]
    while args:
        arg, *args = args
        if not _OVERRIDE.match(arg):
            rest.append(arg)
        elif "=" in arg or not args or args[0].startswith("--"):
            overrides.append(arg)
        else:
            value, *args = args
            overrides.append(f"{arg}={value}")
    return rest, spec, overrides


def define_experiment(
    argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS
) -> tuple[list[str], Experiment | None]:
    """Load the experiment and define the typed `--experiment` flags for it.

    Returns:
      The command line to parse in place of `argv`, and the config, which parsing copies; None for
      `--experiment=list`, and for only `--target=list`.

    Raises:
      BadInput: no or two experiments, no such experiment, no such field.
    """
    argv, spec = _experiment_first(argv)
    if spec == "list" or (spec is None and _TARGET_LIST.search(" ".join(argv))):
        flags.DEFINE_string("experiment", None, "Lists the experiments.")
        return argv, None
    if spec is None:
        names = registry.available()
        hints = [f"; did you mean --experiment={arg}?" for arg in argv[1:] if arg in names]
        hints += [nearest(arg.partition("=")[0], ["--experiment"]) for arg in argv[1:]]
        raise BadInput(
            f"give --experiment=NAME, one of {', '.join(names)} "
            f"(--experiment=list says what each is for){next(filter(None, hints), '')}"
        )
    with importing():
        config = registry.load(spec)
    allowed = overridable(config)
    for arg in argv[1:]:
        match = _OVERRIDE.match(arg)
        if match and match[1] not in allowed:
            raise BadInput(
                f"{arg.partition('=')[0]}: {config.name} has no field {match[1]!r}"
                + field_hint(match[1], allowed)
            )
    # Imported late: ml_collections is not needed to say that a name is wrong.
    from ml_collections import config_flags

    config_flags.DEFINE_config_dataclass(
        "experiment",
        Experiment(),
        "Which experiment: NAME, NAME:VARIANT, NAME:tiny, path/to/FILE.py or list. "
        "--experiment.FIELD=VALUE overrides one field of it.",
        sys_argv=argv,
        flag_values=flag_values,
        parse_fn=lambda _: config,
    )
    return argv, config


def _experiment_first(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Move --experiment before its overrides, which ml_collections insists on."""
    rest, specs = [argv[0]], []
    args = iter(argv[1:])
    for arg in args:
        if match := _EXPERIMENT.match(arg):
            specs.append(match[1][1:] if match[1] else next(args, ""))
        else:
            rest.append(arg)
    if len(specs) > 1:
        raise BadInput(f"--experiment is given {len(specs)} times ({', '.join(specs)}): give one")
    if specs:
        rest.insert(1, f"--experiment={specs[0]}")
    return rest, specs[0] if specs else None


def _parse_flags(argv: Sequence[str]) -> list[str]:
    config = None
    if not _asks_for_help(argv):
        argv, config = define_experiment(argv)
    return _check_no_arguments(_parse_known(argv, lambda: config), config)


def _check_no_arguments(rest: list[str], config: Experiment | None = None) -> list[str]:
    if len(rest) < 2:
        return rest
    hint = f"; did you mean --experiment={rest[1]}?" if rest[1] in registry.available() else ""
    field, equals, value = rest[1].partition("=")
    if equals and config and (meant := meant_fields(field, overridable(config))):
        hint = f"; did you mean {' or '.join(f'--experiment.{name}={value}' for name in meant)}?"
    raise BadInput(f"{rest[1]!r}: flags begin with --{hint}")


def _parse_known(
    argv: Sequence[str],
    find_config: Callable[[], Experiment | None] = lambda: None,
    flag_values: flags.FlagValues = flags.FLAGS,
) -> list[str]:
    """Parse flags; if absl fails, raise BadInput in the words of the experiment's fields."""
    try:
        return flag_values(list(argv))
    except flags.Error as error:
        config, message = find_config(), str(error)
        fields = overridable(config) if config else {}
        if isinstance(error, flags.UnrecognizedFlagError):
            hint = flag_hint(error.flagname, flag_values, fields)
            raise BadInput(f"--{error.flagname}: no such flag{hint}") from None
        match = re.match(r"^flag --experiment\.([^=]+)=(.*?): ", message, re.DOTALL)
        if match and config:
            allowed = describe_type(fields.get(match[1]))
            message = f"--experiment.{match[1]}={match[2]}: must be {allowed}"
        raise BadInput(" ".join(message.split())) from None


def _asks_for_help(argv: Sequence[str]) -> bool:
    return any(re.match(r"^--?help(short|full|xml)?$", arg) for arg in argv)
