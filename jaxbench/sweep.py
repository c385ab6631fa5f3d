"""Run an experiment over a grid of settings.

    jaxbench sweep --experiment=cnn10:tiny --grid=batch_size=32,64,128

Each combination of values is a trial: a run of `jaxbench main` in a separate process, on this
machine or where --launcher says. All flags of that command may be given. A trial that runs out of
memory, takes too long or fails is a result too. The same command with --sweepdir resumes a sweep.
"""

import functools
import os
import sys
from collections.abc import Sequence

from absl import flags

from jaxbench.cli import entry_point, main_flags
from jaxbench.cli.flag_table import define_flags
from jaxbench.cli.main_flags import check_flags, chosen_mode
from jaxbench.cli.price_flags import check_positive
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import (
    compiler_version,
    list_targets,
    parse_target,
    split_targets,
)
from jaxbench.launchers.launcher import LAUNCHERS, Limits, create_launcher
from jaxbench.modes.options import COORDINATOR_FLAGS
from jaxbench.records.writers.console import create_console
from jaxbench.schema import TRIAL_STATUSES
from jaxbench.sweeps.grid import make_trials, parse_grid, repeated
from jaxbench.sweeps.max_batch import find_max_batches
from jaxbench.sweeps.trials import run_trials, running_sweep

# Flags of jaxbench.main that cannot be for a whole sweep.
_OF_ONE_RUN = ("workdir", "json", "resume", *COORDINATOR_FLAGS)

_GRID = flags.DEFINE_multi_string(
    "grid",
    [],
    "FIELD=VALUE,VALUE,...: a field as in --experiment.FIELD, or experiment itself; give it "
    "several times for every combination.",
)
_RETRY = flags.DEFINE_multi_enum(
    "retry",
    [],
    [*TRIAL_STATUSES[1:]],
    "Run trials that ended with this status once more; may be given several times.",
)
_LAUNCHER = flags.DEFINE_enum(
    "launcher",
    "local",
    [*LAUNCHERS],
    "Where the trials run. local: on this machine, one at a time. ray: on the nodes of a Ray "
    "cluster. slurm: as jobs of Slurm.",
)
_SWEEPDIR, _REPEATS, _TIMEOUT_S, *_MORE = define_flags("sweep")
_MEMORY_LIMIT_MB, _FIND_MAX_BATCH, _BATCH_MULTIPLE, *_ = _MORE


def main(spec: str | None, overrides: Sequence[str]) -> int:
    """Do what the flags say; return the exit code: 1 if a trial failed or is invalid."""
    target = flags.FLAGS.target
    if target == "list":
        print("\n".join(list_targets()))
        return 0
    targets = () if target is None else split_targets(target)
    check_sweep_flags()
    memory_limit_mb, mode = _MEMORY_LIMIT_MB.value, flags.FLAGS["mode"].value
    forwarded = main_flags.given_flags(("mode", "target")) + ([f"--mode={mode}"] if mode else [])
    grid = repeated(parse_grid(_GRID.value), _REPEATS.value, overrides)
    trials = make_trials(spec, overrides, grid, forwarded, targets)
    for trial in trials:
        check_flags(trial.config, chosen_mode(trial.config))
    run, console = run_trials, create_console()
    if _FIND_MAX_BATCH.value:
        for name in targets:
            compiler_version(parse_target(name))
        run = functools.partial(
            find_max_batches, multiple=_BATCH_MULTIPLE.value, memory_limit_mb=memory_limit_mb
        )
    options = {name: flags.FLAGS[name] for names in LAUNCHERS.values() for name in names}
    launcher = create_launcher(
        _LAUNCHER.value,
        Limits(_TIMEOUT_S.value, memory_limit_mb),
        console.say,
        {name: flag.value for name, flag in options.items() if flag.present},
    )
    limits = [f"memory_limit_mb={memory_limit_mb:g}"] if memory_limit_mb else []
    trials = [trial.on([*limits, *launcher.hardware]) for trial in trials]
    with running_sweep(trials, _SWEEPDIR.value, console, launcher, _RETRY.value) as runner:
        if flags.FLAGS["wandb"].present:
            # wandb itself reads it, in every trial.
            os.environ.setdefault("WANDB_RUN_GROUP", runner.folder.path.resolve().name)
        return run(runner, trials)


def check_sweep_flags() -> None:
    """Check the flags that no trial is needed for; --find_max_batch sets --mode.

    Raises:
      BadInput: a flag or a combination that is not allowed.
    """
    for name in _OF_ONE_RUN:
        if flags.FLAGS[name].present:
            raise BadInput(
                f"--{name}: is for one run; a sweep takes --sweepdir and --local_processes"
            )
    if _SWEEPDIR.value == "":
        raise BadInput("--sweepdir=: must name a folder")
    if flags.FLAGS["ray_hosts"].present and flags.FLAGS["local_processes"].present:
        raise BadInput("--local_processes with --ray_hosts: a trial has one process on each host")
    targets = flags.FLAGS.target
    if not (_GRID.value or _REPEATS.value or _FIND_MAX_BATCH.value or targets):
        raise BadInput(
            "give --grid=FIELD=VALUE,VALUE,... (or --repeats, --find_max_batch or --target)"
        )
    if _BATCH_MULTIPLE.value > 1 and not _FIND_MAX_BATCH.value:
        raise BadInput("--batch_multiple: it needs --find_max_batch")
    check_positive("timeout_s", "memory_limit_mb")
    on_linux = _LAUNCHER.value != "local" or sys.platform.startswith("linux")
    if _MEMORY_LIMIT_MB.value and not on_linux:
        raise BadInput("--memory_limit_mb: only Linux can limit the memory of a process")
    mode = flags.FLAGS["mode"]
    if targets and not mode.present:
        mode.value = "memory"
    if _FIND_MAX_BATCH.value:
        if _REPEATS.value:
            raise BadInput("--repeats with --find_max_batch: the largest batch is the same")
        if mode.present and mode.value != "memory":
            raise BadInput(f"--mode={mode.value} with --find_max_batch: it needs --mode=memory")
        # Set here, so that the other flags are checked against the mode that will run.
        mode.value = "memory"
        if any(text.startswith("batch_size=") for text in _GRID.value):
            raise BadInput("--grid=batch_size=... with --find_max_batch: that is what it finds")
    elif mode.value == "describe":
        raise BadInput("--mode=describe: runs nothing; a sweep is for the other modes")


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
