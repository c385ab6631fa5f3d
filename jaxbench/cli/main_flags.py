"""The flags of `python -m jaxbench.main`, and which of its modes each goes with."""

from absl import flags

from jaxbench.cli import price_flags

MODE = flags.DEFINE_enum(
    "mode",
    None,
    ["train", "throughput", "scaling", "input", "memory", "conv2d", "describe"],
    "What to do; by default what the experiment is for. throughput: measure how fast the devices "
    "train. scaling: the same on 1 to all devices. input: measure what the host can feed and what "
    "the devices can take. memory: find out whether the batch fits. describe: say what it is, run "
    "nothing.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "A new or empty folder for the records; default runs/EXPERIMENT/TIME."
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
FEED = flags.DEFINE_enum(
    "feed",
    "synthetic",
    ["synthetic", "resident", "stream"],
    "With --mode=throughput or memory: synthetic, one constant batch on the devices, measures them "
    "alone; or the experiment's data, resident or streamed.",
)
STEPS_PER_CALL = flags.DEFINE_integer(
    "steps_per_call",
    1,
    "With --mode=throughput: measure so many steps in one call beside the loop over single ones.",
    lower_bound=1,
)
ROUNDS = flags.DEFINE_integer(
    "rounds", 11, "With --mode=throughput or scaling: measurements of each stage.", lower_bound=6
)
WINDOW_S = flags.DEFINE_float(
    "window_s",
    1.0,
    "With --mode=throughput or scaling: a measurement holds as many steps as take so many seconds.",
    lower_bound=0.001,
)
SCALING = flags.DEFINE_enum(
    "scaling",
    "both",
    ["both", "weak", "strong"],
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
    "With --mode=scaling: the links' bandwidth that predictions reckon with, in 1e9 bytes a "
    "second; default what an all-reduce was measured to use.",
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
    "With --mode=train: auto goes on with the run in --workdir, or begins it; a run directory, or "
    "one of its checkpoints with a new --workdir, is gone on with. none: a new run.",
)
CHECKPOINT_MINUTES = flags.DEFINE_float(
    "checkpoint_minutes",
    10.0,
    "With --mode=train: minutes between checkpoints, written beside the training; 0: none.",
)
CHECKPOINT_EPOCHS = flags.DEFINE_integer(
    "checkpoint_epochs",
    0,
    "With --mode=train: a checkpoint after every so many epochs and after the last; 0: none.",
)
KEEP_CHECKPOINTS = flags.DEFINE_integer(
    "keep_checkpoints",
    2,
    "With --mode=train: the newest so many are kept, and beside them the best evaluated one.",
)
DISTRIBUTED = flags.DEFINE_enum(
    "distributed",
    None,
    ["auto", "off"],
    "auto: one of many processes, on a Cloud TPU slice or under Slurm, that find one another by "
    "themselves; off: never, even on a host of a slice.",
)
COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address",
    None,
    "HOST:PORT of process 0, which listens there, for many processes on hosts of any kind.",
)
NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "With --coordinator_address: of how many processes.", lower_bound=1
)
PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "With --coordinator_address: which of them this is, from 0."
)
LOCAL_PROCESSES = flags.DEFINE_integer(
    "local_processes",
    None,
    "Starts so many processes on this machine, which share its work; of GPUs each has one.",
    lower_bound=2,
)
INITIALIZATION_TIMEOUT_S = flags.DEFINE_integer(
    "initialization_timeout_s",
    300,
    "How long processes wait for one another at their start.",
    lower_bound=1,
)
HEARTBEAT_TIMEOUT_S = flags.DEFINE_integer(
    "heartbeat_timeout_s",
    30,
    "A process that has not been heard of for so long is lost, and the others end.",
    lower_bound=2,
)
WANDB = flags.DEFINE_string(
    "wandb",
    None,
    "With --mode=train: the Weights & Biases project that gets the curves, the fields, sample "
    "images and the summary; WANDB_MODE=offline keeps them for `wandb sync`.",
)
# Recorded with the run.
flags.adopt_module_key_flags(price_flags)
# How processes meet, which is each one's own affair.
COORDINATOR_FLAGS = ("distributed", "coordinator_address", "num_processes", "process_id")
# What decides which steps the devices take: the same in all processes, as most fields are. Of the
# other flags those of process 0 count, and these fields are where and how fast, not what.
OF_ALL = ("xla_flags", "feed", "steps_per_call", "rounds", "window_s", "profile", "target_accuracy")
OF_EACH = ("path", "num_threads", "num_workers", "prefetch_batches", "cache_dir")
# Which modes a flag goes with.
MODES_OF = {
    "json": ("describe",),
    "workdir": ("train", "throughput", "scaling", "input", "memory", "conv2d"),
    "telemetry_s": ("train", "throughput", "scaling", "input", "memory", "conv2d"),
    "feed": ("throughput", "memory"),
    "steps_per_call": ("throughput",),
    "rounds": ("throughput", "scaling"),
    "window_s": ("throughput", "scaling"),
    "scaling": ("scaling",),
    "device_counts": ("scaling",),
    "link_gb_per_s": ("scaling",),
    "page_cache": ("input",),
    "profile": ("train", "throughput"),
    "target_accuracy": ("train",),
    "resume": ("train",),
    "checkpoint_minutes": ("train",),
    "checkpoint_epochs": ("train",),
    "keep_checkpoints": ("train",),
    **dict.fromkeys(
        (*COORDINATOR_FLAGS, "local_processes", "initialization_timeout_s", "heartbeat_timeout_s"),
        ("train", "throughput"),
    ),
    **dict.fromkeys(price_flags.NAMES, ("train", "throughput")),
    "wandb": ("train",),
}
