"""Compile several training steps for one machine that is not here, in one process.

    python -m tests.integration.compile_steps TARGET EXPERIMENT,PRECISION ...

Starting a TPU's compiler takes seconds, which all steps share. Each prints one line of JSON:
the fields of `TargetRecord`, and `experiment`.
"""

import json
import os
import sys

from jaxbench.cli.entry_point import load_experiment
from jaxbench.hardware.targets.target import environment, parse_target


def main(name: str, *steps: str) -> None:
    target = parse_target(name)
    os.environ.update(environment(target))  # before JAX is imported
    from jaxbench.modes.targets import compile_for_target

    for step in steps:
        experiment, precision = step.split(",")
        config = load_experiment(experiment, [f"--experiment.precision={precision}"])
        record, _ = compile_for_target(config, target)
        print(json.dumps({"experiment": experiment, **record.to_json()}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
