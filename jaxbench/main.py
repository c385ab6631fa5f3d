"""Runs one experiment: `python -m jaxbench.main --experiment=wrn28_10`.

--experiment=list says what there is; --experiment.FIELD=VALUE overrides a field, as in
--experiment.batch_size=512; --mode=describe shows every field without training.
"""

import dataclasses
import json
import sys
from typing import Any

from absl import flags

from jaxbench.cli import entry_point, main_flags, price_flags, registry
from jaxbench.cli.main_checks import check_flags, checkpoint_policy, chosen_mode, parse_counts
from jaxbench.clock import process_age_s
from jaxbench.config import Experiment
from jaxbench.distributed import coordination
from jaxbench.distributed.coordinator import (
    CoordinatorConfig,
    check_single_host,
    detect_cluster,
)
from jaxbench.distributed.launch_local import run_local_processes
from jaxbench.distributed.signals import defer_signals
from jaxbench.distributed.watch import ExitStatus
from jaxbench.errors import BadInput
from jaxbench.records.reader import flat

flags.adopt_module_key_flags(main_flags)


def main() -> int:
    """Does what the flags say; returns the exit code."""
    experiment = flags.FLAGS.experiment
    if experiment == "list":
        _print_catalog()
        return 0
    mode = chosen_mode(experiment)
    check_flags(experiment, mode)
    if main_flags.LOCAL_PROCESSES.value:
        return run_local_processes(sys.orig_argv, main_flags.LOCAL_PROCESSES.value)
    if main_flags.XLA_FLAGS.value:
        from jaxbench.xla.flags import add_xla_flags

        for flag in add_xla_flags(main_flags.XLA_FLAGS.value):
            print(f"jaxbench: XLA does not know {flag}: left out", file=sys.stderr, flush=True)
    with coordination.process_group(_coordinator(mode), _exit_status):
        if coordination.count() > 1:
            coordination.check_same("the command", _what_is_done(experiment, mode))
        return _run(experiment, mode)


def _what_is_done(experiment: Experiment, mode: str) -> dict[str, Any]:
    """What all processes of a run must have in common, by name."""
    with defer_signals():
        from jaxbench.hardware.environment import describe_code
    fields = flat(dataclasses.asdict(experiment))
    own = {f"data.{name}" for name in main_flags.OF_EACH}
    return {
        "--num_processes": coordination.count(),
        "--mode": mode,
        **{f"--{name}": flags.FLAGS[name].value for name in main_flags.OF_ALL},
        **{f"--experiment.{name}": value for name, value in fields if name not in own},
        **describe_code(),
    }


def _run(experiment: Experiment, mode: str) -> int:
    telemetry = {"telemetry_s": main_flags.TELEMETRY_S.value}
    if mode == "train":
        from jaxbench.jobs.train import train_and_evaluate

        train_and_evaluate(
            experiment,
            main_flags.WORKDIR.value,
            profile=main_flags.PROFILE.value,
            target_accuracy=main_flags.TARGET_ACCURACY.value,
            price=price_flags.stated_price(),
            wandb=main_flags.WANDB.value,
            checkpoints=checkpoint_policy(),
            resume=main_flags.RESUME.value,
            import_s=process_age_s(),
            **telemetry,
        )
    elif mode == "input":
        from jaxbench.jobs.input_benchmark import measure_input

        measure_input(
            experiment,
            main_flags.WORKDIR.value,
            page_cache=main_flags.PAGE_CACHE.value,
            **telemetry,
        )
    elif mode == "throughput":
        from jaxbench.jobs.throughput import measure_throughput

        measure_throughput(
            experiment,
            main_flags.WORKDIR.value,
            feed=main_flags.FEED.value,
            steps_per_call=main_flags.STEPS_PER_CALL.value,
            rounds=main_flags.ROUNDS.value,
            window_s=main_flags.WINDOW_S.value,
            profile=main_flags.PROFILE.value,
            price=price_flags.stated_price(),
            **telemetry,
        )
    elif mode == "scaling":
        from jaxbench.jobs.scaling import measure_scaling

        measure_scaling(
            experiment,
            main_flags.WORKDIR.value,
            scaling=main_flags.SCALING.value,
            device_counts=parse_counts(main_flags.DEVICE_COUNTS.value),
            link_gb_per_s=main_flags.LINK_GB_PER_S.value,
            rounds=main_flags.ROUNDS.value,
            window_s=main_flags.WINDOW_S.value,
            **telemetry,
        )
    elif mode == "memory":
        from jaxbench.jobs.memory import check_fit

        check_fit(experiment, main_flags.WORKDIR.value, feed=main_flags.FEED.value, **telemetry)
    elif mode == "conv2d":
        from jaxbench.jobs.conv2d import measure

        measure(experiment, main_flags.WORKDIR.value, **telemetry)
    else:
        from jaxbench.jobs.describe import describe, print_description

        description = describe(experiment)
        if main_flags.JSON.value:
            print(json.dumps(description))
        else:
            print_description(description, experiment)
    return 0


def _coordinator(mode: str) -> CoordinatorConfig | None:
    """Return how this process joins the others; None for a single process."""
    timeouts = {
        "initialization_timeout_s": main_flags.INITIALIZATION_TIMEOUT_S.value,
        "heartbeat_timeout_s": main_flags.HEARTBEAT_TIMEOUT_S.value,
    }
    if main_flags.DISTRIBUTED.value == "auto":
        return detect_cluster(**timeouts)
    if main_flags.COORDINATOR_ADDRESS.value is None:
        if main_flags.DISTRIBUTED.value is None and mode != "describe":
            check_single_host()
        return None
    return CoordinatorConfig(
        main_flags.COORDINATOR_ADDRESS.value,
        main_flags.NUM_PROCESSES.value,
        main_flags.PROCESS_ID.value,
        **timeouts,
    )


def _exit_status(error: BaseException) -> ExitStatus:
    from jaxbench.records.recorder import classify

    code, line = entry_point.exit_code(error)
    if isinstance(error, BadInput):
        return ExitStatus("failed", str(error), code, line)
    return ExitStatus(*classify(error), code, line)


def _print_catalog() -> None:
    purposes = registry.available()
    width = max(map(len, purposes))
    for name, purpose in purposes.items():
        print(f"{name:<{width}}  {purpose}")


if __name__ == "__main__":
    entry_point.run(main)
