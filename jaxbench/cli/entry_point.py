"""The command line shared by the entry points: flags in, one call, exit code out.

Exit codes: 0 done; 1 the run failed, ran out of memory or diverged (its record says which); 2 bad
input, told in one line, nothing written; 130 Ctrl-C; 143 SIGTERM.
"""

import contextlib
import errno
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import app, flags, logging

from jaxbench.cli import registry
from jaxbench.config import Experiment
from jaxbench.distributed.signals import defer_signals, raise_on_signals
from jaxbench.errors import (
    BadInput,
    CorruptDataError,
    Diverged,
    MixedDevices,
    OtherProcessEnded,
    Terminated,
    Unreachable,
    WorkerLost,
    nearest,
)
from jaxbench.fields import describe_type, overridable
from jaxbench.records.migration import CONFIG_FIELDS, CONFIG_VALUES

# What ends a run with one line, and exit code 1.
_FAILURES = (CorruptDataError, Diverged, MixedDevices, Unreachable, WorkerLost)
_EXPERIMENT = re.compile(r"^--?experiment(=.*)?$", re.DOTALL)
_OVERRIDE = re.compile(r"^--?(?:no)?experiment\.([^=]*)")
# Flags, fields and values that have another name now.
_RENAMED = {
    "--mode=fit": "--mode=memory",
    "--stop_at_top1": "--target_accuracy",
    **{f"--experiment.{old}": f"--experiment.{new}" for old, new in CONFIG_FIELDS.items()},
    **{
        f"--experiment.{field}={old}": f"--experiment.{field}={new}"
        for field, values in CONFIG_VALUES.items()
        for old, new in values.items()
    },
}


def run(main: Callable[[], int | None], argv: Sequence[str] | None = None) -> None:
    """Parses absl flags, calls `main()` and exits the process with the code above."""
    _run(lambda _: _run_main(main), _parse_flags, argv)


def run_with_arguments(
    main: Callable[[list[str]], int | None], argv: Sequence[str] | None = None
) -> None:
    """The same for a program without an experiment: `main` gets what is no flag."""
    _run(lambda rest: _run_main(lambda: main(list(rest[1:]))), _parse_plain_flags, argv)


def run_over_experiments(
    main: Callable[[str | None, list[str]], int | None], argv: Sequence[str] | None = None
) -> None:
    """The same for a program that makes many experiments out of one.

    `main` gets what followed `--experiment=` and the overrides as they were given, for
    `load_experiment`.
    """
    taken: list[Any] = []

    def parse(argv: Sequence[str]) -> list[str]:
        rest, spec, overrides = take_experiment(argv)
        taken.extend((spec, overrides))
        rest = _parse_plain_flags(rest)
        if len(rest) > 1:
            raise BadInput(f"{rest[1]!r}: flags begin with --")
        return rest

    _run(lambda _: _run_main(lambda: main(*taken)), parse, argv)


def _run(main: Callable, parse: Callable, argv: Sequence[str] | None) -> None:
    raise_on_signals()
    try:
        app.run(main, argv=argv, flags_parser=parse)
    except SystemExit as exit_:
        # absl calls having shown the help a failure.
        sys.exit(0 if _asks_for_help(argv or sys.argv) else exit_.code)
    except BaseException as error:
        code, line = exit_code(error)
        if line is None:
            raise
        _say(line)
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            # At once: an ordinary exit would wait for the steps still queued on the device.
            sys.stdout.flush()
            os._exit(code)
        sys.exit(code)


def exit_code(error: BaseException) -> tuple[int, str | None]:
    """Returns the exit code of a program that this ends, and the line to say; None: a traceback."""
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
    return 1, None


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """For imports of JAX and what builds on it, in one piece: one that is broken off is a riddle.

    Python's garbage collector rests meanwhile, which would take a fifth of their time, and later
    leaves alone what they have made, which would take a tenth of tracing.
    """
    known = len(sys.modules)
    with defer_signals():
        gc.disable()
        try:
            yield
        finally:
            if len(sys.modules) > known:
                gc.freeze()
            gc.enable()


def load_experiment(spec: str, overrides: Sequence[str] = ()) -> Experiment:
    """Returns a valid experiment with its overrides applied, as --mode would get it.

    Args:
      spec: what follows `--experiment=`.
      overrides: arguments of the form `--experiment.FIELD=VALUE`.

    Raises:
      BadInput: no such experiment or field, or a value that is not allowed.
    """
    own_flags = flags.FlagValues()
    argv, config = define_experiment(["", f"--experiment={spec}", *overrides], own_flags)
    if config is None:
        raise BadInput(f"--experiment={spec}: must name an experiment")
    try:
        own_flags(argv)
    except flags.Error as error:
        raise BadInput(_reworded(str(error), config)) from None
    own_flags.experiment.validate()
    return own_flags.experiment


def take_experiment(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Splits a command line into all else, what followed --experiment=, and the overrides.

    An override comes out as one argument, also where its value was given as the next.
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
    """Looks the experiment up and defines the typed `--experiment` flags for it.

    Args:
      argv: the command line, the program's name first.
      flag_values: where they are defined.

    Returns:
      The command line to parse in its place, and the config that parsing will fill in (None for
      `--experiment=list`, where there is nothing to parse overrides into).

    Raises:
      BadInput: no or two experiments, no such experiment, no such field.
    """
    _check_renamed(argv)
    argv, spec = _experiment_first(argv)
    if spec is None:
        names = list(registry.available())
        stray = next((arg for arg in argv[1:] if arg in names), None)
        hint = f"; did you mean --experiment={stray}?" if stray else ""
        for arg in argv[1:]:
            hint = hint or nearest(arg.partition("=")[0], ["--experiment"])
        raise BadInput(
            f"give --experiment=NAME, one of {', '.join(names)} "
            f"(--experiment=list says what each is for){hint}"
        )
    if spec == "list":
        flags.DEFINE_string("experiment", None, "Lists the experiments.")
        return argv, None
    with importing():
        config = registry.load(spec)
    allowed = overridable(config)
    for arg in argv[1:]:
        match = _OVERRIDE.match(arg)
        if match and match[1] not in allowed:
            raise BadInput(
                f"{arg.partition('=')[0]}: {config.name} has no field {match[1]!r}"
                + (nearest(match[1], allowed) or f"; the fields are {', '.join(allowed)}")
            )
    # Imported late: ml_collections is not needed to say that a name is wrong.
    from ml_collections import config_flags

    config_flags.DEFINE_config_dataclass(
        "experiment",
        Experiment(),
        "Which experiment: NAME, NAME:tiny, path/to/own.py or list. "
        "--experiment.FIELD=VALUE overrides one field of it.",
        sys_argv=argv,
        flag_values=flag_values,
        parse_fn=lambda _: config,
    )
    return argv, config


def _check_renamed(argv: Sequence[str]) -> None:
    """Raise BadInput for a flag, field or value that has another name now."""
    for arg in argv[1:]:
        given = f"--{arg.lstrip('-')}"
        for old in (given, given.partition("=")[0]):
            if old in _RENAMED:
                raise BadInput(f"{old}: is called {_RENAMED[old]} now")


def _experiment_first(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Moves --experiment before its overrides, which ml_collections insists on."""
    rest, specs = [argv[0]], []
    args = iter(argv[1:])
    for arg in args:
        match = _EXPERIMENT.match(arg)
        if not match:
            rest.append(arg)
        elif match[1] is not None:
            specs.append(match[1][1:])
        else:
            specs.append(next(args, ""))
    if len(specs) > 1:
        raise BadInput(f"--experiment is given {len(specs)} times ({', '.join(specs)}): give one")
    if specs:
        rest.insert(1, f"--experiment={specs[0]}")
    return rest, specs[0] if specs else None


def _parse_flags(argv: Sequence[str]) -> list[str]:
    argv = list(argv)
    config = None
    if not _asks_for_help(argv):
        argv, config = define_experiment(argv)
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        raise BadInput(_reworded(str(error), config)) from None
    if len(rest) > 1:
        known = list(registry.available())
        hint = f"; did you mean --experiment={rest[1]}?" if rest[1] in known else ""
        raise BadInput(f"{rest[1]!r}: flags begin with --{hint}")
    return rest


def _parse_plain_flags(argv: Sequence[str]) -> list[str]:
    _check_renamed(argv)
    try:
        return flags.FLAGS(list(argv))
    except flags.Error as error:
        raise BadInput(_reworded(str(error), None)) from None


def _reworded(message: str, config: Experiment | None) -> str:
    """Says of a field's value what is allowed, where absl says what Python could not do."""
    match = re.match(r"^flag --experiment\.([^=]+)=(.*?): ", message, re.DOTALL)
    if match and config is not None:
        hint = overridable(config).get(match[1])
        return f"--experiment.{match[1]}={match[2]}: must be {describe_type(hint)}"
    return " ".join(message.split())


def _run_main(main: Callable[[], int | None]) -> int:
    if not flags.FLAGS["verbosity"].present:
        # absl's default shows what JAX logs about backends that this machine does not have.
        logging.set_verbosity(logging.WARNING)
    return main() or 0


def _asks_for_help(argv: Sequence[str]) -> bool:
    return any(re.match(r"^--?help(short|full|xml)?$", arg) for arg in argv)


def _say(words: object) -> None:
    print(f"jaxbench: {words}", file=sys.stderr, flush=True)
