"""Runs one experiment: `python -m jaxbench.main --experiment=wrn28_10`.

--experiment=list says what there is; --experiment.FIELD=VALUE overrides a field, as in
--experiment.batch_size=512; --mode=describe shows every field without training.
"""

import json

from absl import flags

from jaxbench import catalog, cli

_MODE = flags.DEFINE_enum(
    "mode",
    None,
    ["train", "throughput", "input", "conv2d", "describe"],
    "What to do; by default what the experiment is for. throughput: measure how fast the devices "
    "train. input: measure what the host can feed and what the devices can take. describe: say "
    "what it is, run nothing.",
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "A new or empty folder for the records; default runs/EXPERIMENT/TIME."
)
_JSON = flags.DEFINE_bool("json", False, "With --mode=describe: print one JSON object.")
_COMPILE_CACHE = flags.DEFINE_string(
    "compile_cache",
    "",
    "The folder in which compiled programs are kept for the next run, or off; default "
    "$JAX_COMPILATION_CACHE_DIR, else ~/.cache/jaxbench/xla.",
)
_FEED = flags.DEFINE_enum(
    "feed",
    "synthetic",
    ["synthetic", "resident", "stream"],
    "With --mode=throughput: one made-up batch that lies on the devices, so that they alone are "
    "measured; or the experiment's data, resident or streamed.",
)
_STEPS_PER_CALL = flags.DEFINE_integer(
    "steps_per_call",
    1,
    "With --mode=throughput: measure so many steps in one call beside the loop over single ones.",
    lower_bound=1,
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 11, "With --mode=throughput: measurements of each stage.", lower_bound=6
)
_WINDOW_S = flags.DEFINE_float(
    "window_s",
    1.0,
    "With --mode=throughput: a measurement holds as many steps as take so many seconds.",
    lower_bound=0.001,
)
_PAGE_CACHE = flags.DEFINE_enum(
    "page_cache",
    "as_is",
    ["as_is", "cold"],
    "With --mode=input: cold has the system forget the training images before every window, so "
    "that storage is measured too.",
)
_PROFILE = flags.DEFINE_string(
    "profile",
    None,
    "START:STOP: JAX's profiler traces steps START to STOP - 1 (the first is 1) into the folder "
    "profile of the run, outside every timed window. With --mode=throughput: steps of a stretch "
    "that follows the measurement.",
)
# Which modes a flag goes with.
_MODES_OF = {
    "json": ("describe",),
    "workdir": ("train", "throughput", "input", "conv2d"),
    "feed": ("throughput",),
    "steps_per_call": ("throughput",),
    "rounds": ("throughput",),
    "window_s": ("throughput",),
    "page_cache": ("input",),
    "profile": ("train", "throughput"),
}


def main() -> int:
    """Does what the flags say; returns the exit code."""
    experiment = flags.FLAGS.experiment
    if experiment == "list":
        _print_catalog()
        return 0
    mode = _MODE.value or experiment.job
    allowed = {"train": ("train", "throughput", "input")}.get(experiment.job, (experiment.job,))
    if mode not in (*allowed, "describe"):
        raise cli.BadInput(
            f"--mode={mode}: {experiment.name} is an experiment for --mode="
            f"{' or '.join(allowed)}; --mode=describe goes with any"
        )
    for name, modes in _MODES_OF.items():
        if flags.FLAGS[name].present and mode not in modes:
            raise cli.BadInput(
                f"--{name} with --mode={mode}: it goes with --mode={' or '.join(modes)}"
            )
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    from jaxbench.compile_cache import use_compile_cache

    use_compile_cache(_COMPILE_CACHE.value, by_names=_PROFILE.value is not None)
    if mode == "train":
        from jaxbench.train import train_and_evaluate

        train_and_evaluate(experiment, _WORKDIR.value, profile=_PROFILE.value)
    elif mode == "input":
        from jaxbench.feeding import measure_input

        measure_input(experiment, _WORKDIR.value, page_cache=_PAGE_CACHE.value)
    elif mode == "throughput":
        from jaxbench.throughput import measure_throughput

        measure_throughput(
            experiment,
            _WORKDIR.value,
            feed=_FEED.value,
            steps_per_call=_STEPS_PER_CALL.value,
            rounds=_ROUNDS.value,
            window_s=_WINDOW_S.value,
            profile=_PROFILE.value,
        )
    elif mode == "conv2d":
        from jaxbench.conv2d import measure

        measure(experiment, _WORKDIR.value)
    else:
        from jaxbench.describe import describe, print_description

        description = describe(experiment)
        if _JSON.value:
            print(json.dumps(description))
        else:
            print_description(description, experiment)
    return 0


def _print_catalog() -> None:
    purposes = catalog.available()
    width = max(map(len, purposes))
    for name, purpose in purposes.items():
        print(f"{name:<{width}}  {purpose}")


if __name__ == "__main__":
    cli.run(main)
