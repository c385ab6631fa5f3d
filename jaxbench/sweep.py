"""Run an experiment over a grid: `python -m jaxbench.sweep --experiment=cnn10 --grid=FIELD=A,B`.

Each combination of values is a trial, run by jaxbench.main in a process of its own; all flags of
that program may be given. A trial that runs out of memory, takes too long or fails is a result too.
A sweep that was interrupted is resumed by the same command with its --sweepdir.
"""

import functools
import os
import pathlib
from collections.abc import Sequence

from absl import flags

from jaxbench.cli import entry_point, sweep_flags
from jaxbench.cli.main_checks import check_flags, chosen_mode
from jaxbench.clock import now
from jaxbench.distributed.child import run_child
from jaxbench.records.run_dir import folder_name
from jaxbench.records.writers.console import create_console
from jaxbench.sweeps.grid import Trial, make_trials
from jaxbench.sweeps.max_batch import find_max_batches
from jaxbench.sweeps.sweep_dir import check_sweepdir, open_sweepdir
from jaxbench.sweeps.trials import TrialRunner, run_trials


def main(spec: str | None, overrides: Sequence[str]) -> int:
    """Do what the flags say; return the exit code: 1 where a trial failed or is invalid."""
    sweep_flags.check_sweep_flags()
    memory_limit_mb = sweep_flags.MEMORY_LIMIT_MB.value
    limits = [f"memory_limit_mb={memory_limit_mb:g}"] if memory_limit_mb else []
    trials = make_trials(
        spec, overrides, sweep_flags.GRID.value, sweep_flags.forwarded_flags(), limits
    )
    for trial in trials:
        check_flags(trial.config, chosen_mode(trial.config))
    launch = functools.partial(
        run_child, timeout_s=sweep_flags.TIMEOUT_S.value, memory_limit_mb=memory_limit_mb
    )
    path = pathlib.Path(sweep_flags.SWEEPDIR.value or _default_path(trials)).expanduser()
    with open_sweepdir(path) as folder:
        console = create_console()
        console.say(f"{len(trials)} trials, results in {folder.path}")
        if flags.FLAGS["wandb"].present:
            # wandb itself reads it, in every trial.
            os.environ.setdefault("WANDB_RUN_GROUP", folder.path.resolve().name)
        runner = TrialRunner(folder, console, launch, sweep_flags.RETRY.value)
        try:
            if sweep_flags.FIND_MAX_BATCH.value:
                multiple = sweep_flags.BATCH_MULTIPLE.value
                return find_max_batches(runner, trials, multiple, memory_limit_mb)
            return run_trials(runner, trials)
        except BaseException:
            console.close()
            console.say(f"to resume: the same command with --sweepdir={folder.path}")
            raise
        finally:
            console.close()


def _default_path(trials: Sequence[Trial]) -> pathlib.Path:
    names = {trial.config.name for trial in trials}
    parent = pathlib.Path("runs", folder_name(names.pop()) if len(names) == 1 else "several")
    stamp = now().strftime("%Y%m%d-%H%M%S")
    numbers = ("", *(f"-{number}" for number in range(2, 1000)))
    path = next(p for n in numbers if not (p := parent / f"sweep-{stamp}{n}").exists())
    check_sweepdir(path)
    return path


if __name__ == "__main__":
    entry_point.run_over_experiments(main)
