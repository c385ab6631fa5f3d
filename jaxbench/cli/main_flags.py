"""The flags of `python -m jaxbench.main`, and the modes that each is for."""

from collections.abc import Sequence

from absl import flags

from jaxbench.cli import price_flags, process_flags
from jaxbench.modes import FEEDS, FEWEST_ROUNDS, MODES, SCALINGS
from jaxbench.parallel.signals import GRACE_PERIOD_S as _GRACE_PERIOD_S

MODE = flags.DEFINE_enum(
    "mode",
    None,
    [*MODES, "describe"],
    "What to do; the default is the experiment's own mode. throughput: measure how fast the "
    "devices train. scaling: the same on 1 to all devices. input: measure what the host can feed "
    "and what the devices can take. memory: find out whether the batch fits. describe: show the "
    "experiment, run nothing.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "A new or empty folder for the records; default runs/EXPERIMENT/TIME."
)
TARGET = flags.DEFINE_string(
    "target",
    None,
    "Compile for a machine that is not here, such as tpu:v5e:2x4 or gpu:h100:8; list shows all. "
    "With --mode=describe several, with commas between them; with memory: whether the batch fits; "
    "with scaling: on 1, 2, 4 ... devices.",
)
JSON = flags.DEFINE_bool("json", False, "With --mode=describe: print one JSON object.")
COMPILE_CACHE = flags.DEFINE_string(
    "compile_cache",
    "",
    "The folder in which compiled programs are kept for the next run, or off; default "
    "$JAX_COMPILATION_CACHE_DIR, else ~/.cache/jaxbench/xla.",
)
XLA_FLAGS = flags.DEFINE_string(
    "xla_flags",
    None,
    "Flags for XLA's compiler, --xla_NAME=VALUE apart by spaces, appended to $XLA_FLAGS; those "
    "that this XLA does not know are left out, with a line.",
)
BACKEND_FLAGS = flags.DEFINE_bool(
    "backend_flags",
    True,
    "On CPU devices, add the flags to $XLA_FLAGS that keep sums right and make steps quicker "
    "(jaxbench/hardware/backend_flags.csv).",
)
FEED = flags.DEFINE_enum(
    "feed",
    "synthetic",
    FEEDS,
    "With --mode=throughput or memory: synthetic, one constant batch on the devices, measures them "
    "alone; or the experiment's data, resident or streamed.",
)
STEPS_PER_CALL = flags.DEFINE_integer(
    "steps_per_call",
    1,
    "With --mode=throughput: if more than 1, also measure this many steps in one call.",
    lower_bound=1,
)
ROUNDS = flags.DEFINE_integer(
    "rounds",
    11,
    "With --mode=throughput or scaling: measurements of each stage.",
    lower_bound=FEWEST_ROUNDS,
)
WINDOW_S = flags.DEFINE_float(
    "window_s",
    1.0,
    "With --mode=throughput or scaling: how long a measurement should take.",
    lower_bound=0.001,
)
SCALING = flags.DEFINE_enum(
    "scaling",
    "both",
    SCALINGS,
    "With --mode=scaling: weak keeps each device's batch, batch_size / the most devices; strong "
    "the global one.",
)
DEVICE_COUNTS = flags.DEFINE_string(
    "device_counts",
    "",
    "With --mode=scaling: how many devices, such as 1,2,4; default 1, 2, 4 ... and all.",
)
LINK_GB_PER_S = flags.DEFINE_float(
    "link_gb_per_s",
    None,
    "With --mode=scaling: the links' bandwidth for predictions, in 1e9 bytes a second; default "
    "what an all-reduce was measured to use.",
)
PAGE_CACHE = flags.DEFINE_enum(
    "page_cache",
    "as_is",
    ["as_is", "cold"],
    "With --mode=input: cold has the system forget the training images before every window, so "
    "that storage is measured too.",
)
TELEMETRY_S = flags.DEFINE_float(
    "telemetry_s",
    1.0,
    "Seconds between readings of the devices and the host, in telemetry.csv; 0 takes none.",
)
PROFILE = flags.DEFINE_string(
    "profile",
    None,
    "START:STOP: JAX's profiler traces steps START to STOP - 1 (the first is 1) into the folder "
    "profile of the run, outside every timed window. With --mode=throughput: steps of a stretch "
    "that follows the measurement.",
)
TARGET_ACCURACY = flags.DEFINE_float(
    "target_accuracy",
    None,
    "With --mode=train: end with the first evaluation at or above this top-1 or Dice (0.94).",
)
RESUME = flags.DEFINE_string(
    "resume",
    "none",
    "With --mode=train: auto resumes the run in --workdir, or begins it; PATH resumes a run "
    "directory, or one of its checkpoints in a new --workdir; none begins a new run.",
)
CHECKPOINT_MINUTES = flags.DEFINE_float(
    "checkpoint_minutes",
    10.0,
    "With --mode=train: minutes between checkpoints, written beside the training; 0: none. The "
    "final state is also written, unless this and --checkpoint_epochs are both 0.",
)
CHECKPOINT_EPOCHS = flags.DEFINE_integer(
    "checkpoint_epochs",
    0,
    "With --mode=train: epochs between checkpoints; 0: none.",
)
KEEP_CHECKPOINTS = flags.DEFINE_integer(
    "keep_checkpoints",
    2,
    "With --mode=train: how many of the newest checkpoints are kept, beside the best one.",
)
GRACE_PERIOD_S = flags.DEFINE_integer(
    "grace_period_s",
    _GRACE_PERIOD_S,
    "Seconds from Ctrl-C, SIGTERM or SIGHUP to a forced exit. A checkpoint that is not complete by "
    "then is lost, so give as many as the scheduler does.",
    lower_bound=1,
    upper_bound=86_400,
)
WANDB = flags.DEFINE_string(
    "wandb",
    None,
    "With --mode=train: the Weights & Biases project that gets the curves, the fields, sample "
    "images and the summary; WANDB_MODE=offline keeps them for `wandb sync`.",
)
# Recorded with the run.
flags.adopt_module_key_flags(price_flags)
flags.adopt_module_key_flags(process_flags)
# These flags decide which steps the devices take, so they are the same in all processes, as most
# fields are. All other flags count in process 0 only, and each process has these fields of its own.
OF_ALL = (
    "xla_flags",
    "backend_flags",
    "feed",
    "steps_per_call",
    "rounds",
    "window_s",
    "profile",
    "target_accuracy",
)
OF_EACH = ("path", "download", "num_threads", "num_workers", "prefetch_batches", "cache_dir")
# The flags that go with --target, beside those of every mode.
OF_TARGETS = ("target", "json", "workdir", "scaling", "experiment", "mode")
# The modes that a flag is for; all others are for every mode.
MODES_OF = {
    "json": ("describe",),
    "target": ("describe", "memory", "scaling"),
    **dict.fromkeys(("workdir", "telemetry_s"), tuple(MODES)),
    **{
        flag: tuple(name for name, mode in MODES.items() if flag in mode.flags)
        for flag in {flag: None for mode in MODES.values() for flag in mode.flags}
    },
}


def given_flags(without: Sequence[str] = ()) -> list[str]:
    """Return the flags of jaxbench.main that were given, as another process gets them."""
    own = sorted(flags.FLAGS.get_key_flags_for_module(__name__), key=lambda flag: flag.name)
    return [f"--{f.name}={f.value}" for f in own if f.present and f.name not in without]
