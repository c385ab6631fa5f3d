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
    ["train", "input", "conv2d", "describe"],
    "What to do; by default what the experiment is for. input: measure what the host can feed and "
    "what the devices can take. describe: say what it is, run nothing.",
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "A new or empty folder for the records; default runs/EXPERIMENT/TIME."
)
_JSON = flags.DEFINE_bool("json", False, "With --mode=describe: print one JSON object.")


def main() -> int:
    """Does what the flags say; returns the exit code."""
    experiment = flags.FLAGS.experiment
    if experiment == "list":
        _print_catalog()
        return 0
    mode = _MODE.value or experiment.job
    allowed = {"train": ("train", "input")}.get(experiment.job, (experiment.job,))
    if mode not in (*allowed, "describe"):
        raise cli.BadInput(
            f"--mode={mode}: {experiment.name} is an experiment for --mode="
            f"{' or '.join(allowed)}; --mode=describe goes with any"
        )
    if _JSON.value and mode != "describe":
        raise cli.BadInput(f"--json with --mode={mode}: it goes with --mode=describe")
    if _WORKDIR.value is not None and mode == "describe":
        raise cli.BadInput("--workdir with --mode=describe: nothing is written then")
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    if mode == "train":
        from jaxbench.train import train_and_evaluate

        train_and_evaluate(experiment, _WORKDIR.value)
    elif mode == "input":
        from jaxbench.feeding import measure_input

        measure_input(experiment, _WORKDIR.value)
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
