"""Run an experiment over a grid: `python -m jaxbench.sweep --experiment=cnn10 --grid=FIELD=A,B`.

Each combination of values is a trial, run by jaxbench.main in a process of its own, here or where
--launcher says; all flags of that program may be given. A trial that runs out of memory, takes too
long or fails is a result too. A sweep that was interrupted is resumed by the same command with its
--sweepdir.
"""

import contextlib
import functools
import os
from collections.abc import Sequence

from absl import flags

from jaxbench.cli import entry_point, sweep_flags
from jaxbench.cli.main_flags import check_flags, chosen_mode
from jaxbench.hardware.targets.target import list_targets
from jaxbench.launchers.launcher import Limits, create_launcher
from jaxbench.modes.targets import split_targets
from jaxbench.records.writers.console import create_console
from jaxbench.sweeps.grid import make_trials, parse_grid
from jaxbench.sweeps.max_batch import find_max_batches
from jaxbench.sweeps.trials import TrialRunner, run_trials, running_sweep


def main(spec: str | None, overrides: Sequence[str]) -> int:
    """Do what the flags say; return the exit code: 1 where a trial failed or is invalid."""
    target = flags.FLAGS.target
    if target == "list":
        print("\n".join(list_targets()))
        return 0
    targets = () if target is None else split_targets(target)
    sweep_flags.check_sweep_flags()
    memory_limit_mb = sweep_flags.MEMORY_LIMIT_MB.value
    limits = [f"memory_limit_mb={memory_limit_mb:g}"] if memory_limit_mb else []
    grid = parse_grid(sweep_flags.GRID.value)
    trials = make_trials(spec, overrides, grid, sweep_flags.forwarded_flags(), limits, targets)
    for trial in trials:
        check_flags(trial.config, chosen_mode(trial.config))
    run, console = run_trials, create_console()
    if sweep_flags.FIND_MAX_BATCH.value:
        multiple = sweep_flags.BATCH_MULTIPLE.value
        run = functools.partial(
            find_max_batches, multiple=multiple, memory_limit_mb=memory_limit_mb
        )
    launcher = create_launcher(
        sweep_flags.LAUNCHER.value,
        Limits(sweep_flags.TIMEOUT_S.value, memory_limit_mb),
        console.say,
        sweep_flags.launcher_options(),
    )
    trials = [trial.on(launcher.hardware) for trial in trials]
    with (
        running_sweep(trials, sweep_flags.SWEEPDIR.value, console) as folder,
        contextlib.closing(launcher),
    ):
        if flags.FLAGS["wandb"].present:
            # wandb itself reads it, in every trial.
            os.environ.setdefault("WANDB_RUN_GROUP", folder.path.resolve().name)
        return run(TrialRunner(folder, console, launcher, sweep_flags.RETRY.value), trials)


if __name__ == "__main__":
    flags.adopt_module_key_flags(sweep_flags)  # --help shows them
    entry_point.run_with_experiment(main)
