"""Runs one experiment: `python -m jaxbench.main --experiment=wrn28_10`.

--experiment=list says what there is; --experiment.FIELD=VALUE overrides a field, as in
--experiment.batch_size=512; --mode=describe shows every field without training.
"""

import json

from absl import flags

from jaxbench import catalog, cli

_MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "describe"], "train, or describe without training."
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
    if _JSON.value and _MODE.value != "describe":
        raise cli.BadInput(f"--json with --mode={_MODE.value}: it goes with --mode=describe")
    if _WORKDIR.value is not None and _MODE.value == "describe":
        raise cli.BadInput("--workdir with --mode=describe: nothing is written then")
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    if _MODE.value == "describe":
        from jaxbench.describe import describe, print_description

        description = describe(experiment)
        if _JSON.value:
            print(json.dumps(description))
        else:
            print_description(description, experiment)
        return 0

    from jaxbench.train import train_and_evaluate

    train_and_evaluate(experiment, _WORKDIR.value)
    return 0


def _print_catalog() -> None:
    purposes = catalog.available()
    width = max(map(len, purposes))
    for name, purpose in purposes.items():
        print(f"{name:<{width}}  {purpose}")


if __name__ == "__main__":
    cli.run(main)
