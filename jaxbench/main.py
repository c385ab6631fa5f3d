"""Runs one experiment: `python -m jaxbench.main --experiment=wrn28_10`.

--experiment=list lists all experiments; --experiment.FIELD=VALUE overrides a field, as in
--experiment.batch_size=512; --mode=describe shows every field without training.
"""

import importlib
import json
import sys

from absl import flags

from jaxbench.cli import entry_point, main_flags, price_flags, registry
from jaxbench.cli.main_checks import check_flags, checkpoint_policy, chosen_mode, parse_counts
from jaxbench.cli.main_processes import common_facts, coordinator, exit_status
from jaxbench.clock import process_age_s
from jaxbench.config import Experiment
from jaxbench.distributed import coordination
from jaxbench.distributed.launch_local import run_local_processes

flags.adopt_module_key_flags(main_flags)

# {mode: (module in jobs/, its function, the keywords that it takes beside telemetry_s)}.
_JOBS = {
    "train": (
        "train",
        "train_and_evaluate",
        ("profile", "target_accuracy", "price", "wandb", "checkpoints", "resume", "import_s"),
    ),
    "throughput": (
        "throughput",
        "measure_throughput",
        ("feed", "steps_per_call", "rounds", "window_s", "profile", "price"),
    ),
    "scaling": (
        "scaling",
        "measure_scaling",
        ("scaling", "device_counts", "link_gb_per_s", "rounds", "window_s"),
    ),
    "input": ("input_benchmark", "measure_input", ("page_cache",)),
    "memory": ("memory", "check_fit", ("feed",)),
    "conv2d": ("conv2d", "measure_conv2d", ()),
}
# Where a keyword's value comes from, if not from the flag of its name.
_COMPUTED = {
    "price": price_flags.stated_price,
    "checkpoints": checkpoint_policy,
    "device_counts": lambda: parse_counts(main_flags.DEVICE_COUNTS.value),
    "import_s": process_age_s,
}


def main() -> int:
    """Do what the flags say; return the exit code."""
    experiment = flags.FLAGS.experiment
    if experiment == "list":
        _print_experiments()
        return 0
    mode = chosen_mode(experiment)
    check_flags(experiment, mode)
    if main_flags.LOCAL_PROCESSES.value:
        return run_local_processes(sys.orig_argv, main_flags.LOCAL_PROCESSES.value)
    if main_flags.XLA_FLAGS.value:
        from jaxbench.xla.flags import add_xla_flags

        for flag in add_xla_flags(main_flags.XLA_FLAGS.value):
            print(f"jaxbench: XLA does not know {flag}: left out", file=sys.stderr, flush=True)
    with coordination.process_group(coordinator(mode), exit_status):
        if coordination.count() > 1:
            coordination.check_same("the command", common_facts(experiment, mode))
        if mode == "describe":
            _describe(experiment)
        else:
            _run(experiment, mode)
    return 0


def _run(experiment: Experiment, mode: str) -> None:
    module, function, names = _JOBS[mode]
    # Imported before the keywords are computed: `import_s` includes it.
    run = getattr(importlib.import_module(f"jaxbench.jobs.{module}"), function)
    keywords = {
        name: _COMPUTED[name]() if name in _COMPUTED else flags.FLAGS[name].value
        for name in (*names, "telemetry_s")
    }
    run(experiment, main_flags.WORKDIR.value, **keywords)


def _describe(experiment: Experiment) -> None:
    from jaxbench.jobs.describe import describe, print_description

    description = describe(experiment)
    if main_flags.JSON.value:
        print(json.dumps(description))
    else:
        print_description(description, experiment)


def _print_experiments() -> None:
    purposes = registry.available()
    width = max(map(len, purposes))
    for name, purpose in purposes.items():
        print(f"{name:<{width}}  {purpose}")


if __name__ == "__main__":
    entry_point.run(main)
