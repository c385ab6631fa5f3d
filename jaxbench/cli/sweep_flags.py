"""The flags of `python -m jaxbench.sweep`, beside those of jaxbench.main that its trials get."""

import sys
from typing import Any

from absl import flags

from jaxbench.cli import main_flags
from jaxbench.errors import BadInput
from jaxbench.launchers.launcher import LAUNCHERS
from jaxbench.modes.options import COORDINATOR_FLAGS
from jaxbench.records.reader import TRIAL_STATUSES

# Of seconds and of MiB.
_MOST = 1e9
# Flags of jaxbench.main that cannot be for a whole sweep.
_OF_ONE_RUN = ("workdir", "json", "resume")
# Flags of jaxbench.main that are not passed on as they are.
_OF_EACH_TRIAL = ("mode", "target")

GRID = flags.DEFINE_multi_string(
    "grid",
    [],
    "FIELD=VALUE,VALUE,...: a field as in --experiment.FIELD, or experiment itself; give it "
    "several times for every combination.",
)
SWEEPDIR = flags.DEFINE_string(
    "sweepdir",
    None,
    "A new or empty folder, or that of a sweep to resume; default runs/EXPERIMENT/sweep-TIME.",
)
TIMEOUT_S = flags.DEFINE_float(
    "timeout_s", None, "A trial that takes longer is ended.", lower_bound=0.001
)
MEMORY_LIMIT_MB = flags.DEFINE_float(
    "memory_limit_mb",
    None,
    "MiB of private memory that each process of a trial may have on the host (Linux). CPU devices "
    "use this memory, and a trial on them that needs more is out of memory.",
    lower_bound=1,
)
RETRY = flags.DEFINE_multi_enum(
    "retry",
    [],
    [*TRIAL_STATUSES[1:]],
    "Run trials that ended with this status once more; may be given several times.",
)
LAUNCHER = flags.DEFINE_enum(
    "launcher",
    "local",
    [*LAUNCHERS],
    "Where the trials run. local: on this machine, one at a time. slurm: as jobs of Slurm. ssh: on "
    "the hosts of --hosts, one at a time on each.",
)
flags.DEFINE_string(
    "slurm",
    None,
    "With --launcher=slurm: options for sbatch, such as --slurm='--partition=gpu --gpus=1 "
    "--time=1:00:00'.",
)
flags.DEFINE_integer(
    "slots",
    None,
    "With --launcher=slurm: how many jobs are in the queue at once; default 100.",
    lower_bound=1,
)
flags.DEFINE_string(
    "hosts",
    None,
    "With --launcher=ssh: a text file with a line for each host: [user@]host[:port] "
    "[folder=FOLDER] [python=PROGRAM] [kind=NAME]; # begins a comment.",
)
flags.DEFINE_string(
    "ssh_config", None, "With --launcher=ssh: a configuration file for ssh instead of your own."
)
flags.DEFINE_float(
    "lost_after_s",
    None,
    "With --launcher=ssh: a host that does not answer for so long is lost, and its trial runs on "
    "another; default 180.",
    lower_bound=0.001,
)
FIND_MAX_BATCH = flags.DEFINE_bool(
    "find_max_batch",
    False,
    "Instead of a run, find each trial's largest batch that fits in memory (--mode=memory).",
)
BATCH_MULTIPLE = flags.DEFINE_integer(
    "batch_multiple",
    1,
    "With --find_max_batch: try multiples of this only (and of what the devices need).",
    lower_bound=1,
)


def check_sweep_flags() -> None:
    """Check the flags that no trial is needed for; --find_max_batch sets --mode.

    Raises:
      BadInput: a flag or a combination that is not allowed.
    """
    for name in _OF_ONE_RUN:
        if flags.FLAGS[name].present:
            raise BadInput(f"--{name}: is for one run; a sweep has --sweepdir")
    for name in COORDINATOR_FLAGS:
        if flags.FLAGS[name].present:
            raise BadInput(
                f"--{name}: is for one run; a sweep's trials take --local_processes, or a sweep of "
                "your own calls jaxbench.main on every host"
            )
    if SWEEPDIR.value == "":
        raise BadInput("--sweepdir=: must name a folder")
    targets = flags.FLAGS.target
    if not (GRID.value or FIND_MAX_BATCH.value or targets):
        raise BadInput("give --grid=FIELD=VALUE,VALUE,... (or --find_max_batch, or --target)")
    if BATCH_MULTIPLE.value > 1 and not FIND_MAX_BATCH.value:
        raise BadInput("--batch_multiple: it needs --find_max_batch")
    for name in ("timeout_s", "memory_limit_mb", "lost_after_s"):
        value = flags.FLAGS[name].value
        if value is not None and not value <= _MOST:  # nan fails it too
            raise BadInput(f"--{name}={value:g}: must be at most {_MOST:g}")
    if MEMORY_LIMIT_MB.value and LAUNCHER.value == "local" and not sys.platform.startswith("linux"):
        raise BadInput("--memory_limit_mb: only Linux can limit the memory of a process")
    mode = flags.FLAGS["mode"]
    if targets and not mode.present:
        mode.value = "memory"
    if FIND_MAX_BATCH.value:
        if mode.present and mode.value != "memory":
            raise BadInput(f"--mode={mode.value} with --find_max_batch: it needs --mode=memory")
        # Set here, so that the other flags are checked against the mode that will run.
        mode.value = "memory"
        if any(text.startswith("batch_size=") for text in GRID.value):
            raise BadInput("--grid=batch_size=... with --find_max_batch: that is what it finds")
    elif mode.value == "describe":
        raise BadInput("--mode=describe: runs nothing; a sweep is for the other modes")


def launcher_options() -> dict[str, Any]:
    """Return the launcher's options that were given."""
    names = {name for options in LAUNCHERS.values() for name in options}
    return {name: flags.FLAGS[name].value for name in sorted(names) if flags.FLAGS[name].present}


def forwarded_flags() -> list[str]:
    """Return the flags of jaxbench.main that were given, as every trial gets them."""
    mode = flags.FLAGS["mode"].value
    return main_flags.given_flags(_OF_EACH_TRIAL) + ([f"--mode={mode}"] if mode else [])
