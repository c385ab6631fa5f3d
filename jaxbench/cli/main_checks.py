"""Flags that are checked before a mode runs: together, with the experiment, and with JAX."""

from typing import Any

from absl import flags

from jaxbench.cli import entry_point, main_flags, price_flags
from jaxbench.config import Experiment
from jaxbench.distributed.coordinator import check_coordinator
from jaxbench.errors import BadInput


def chosen_mode(experiment: Experiment) -> str:
    """Return the mode that the flags ask for.

    Raises:
      BadInput: the mode is not for the experiment, or a flag is not for the mode.
    """
    mode = main_flags.MODE.value or experiment.job
    on_networks = ("train", "throughput", "scaling", "input", "memory")
    allowed = {"train": on_networks}.get(experiment.job, (experiment.job,))
    if mode not in (*allowed, "describe"):
        raise BadInput(
            f"--mode={mode}: {experiment.name} is an experiment for --mode="
            f"{' or '.join(allowed)}; --mode=describe goes with any"
        )
    for name, modes in main_flags.MODES_OF.items():
        if flags.FLAGS[name].present and mode not in modes:
            raise BadInput(f"--{name} with --mode={mode}: it goes with --mode={' or '.join(modes)}")
    return mode


def check_flags(experiment: Experiment, mode: str) -> None:
    """Check what can be checked of the flags without a device, and set up the compile cache.

    Raises:
      BadInput: a value that is not allowed.
    """
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    with entry_point.importing():
        from jaxbench.checkpoints.checkpointer import check_policy
        from jaxbench.hardware.telemetry.sampler import check_interval
        from jaxbench.jobs.train import check_target
        from jaxbench.jobs.windows import check_window_s
        from jaxbench.records.writers.wandb import check_wandb
        from jaxbench.training.profiler import parse_steps
        from jaxbench.xla.compile_cache import use_compile_cache
        from jaxbench.xla.flags import check_xla_flags
    check_interval(main_flags.TELEMETRY_S.value)
    check_window_s(main_flags.WINDOW_S.value)
    parse_steps(main_flags.PROFILE.value)
    price_flags.stated_price()
    parse_counts(main_flags.DEVICE_COUNTS.value)
    if main_flags.LINK_GB_PER_S.value is not None:
        from jaxbench.jobs.scaling import check_link

        check_link(main_flags.LINK_GB_PER_S.value)
    given = [flags.FLAGS[name].value for name in main_flags.COORDINATOR_FLAGS]
    if main_flags.LOCAL_PROCESSES.value and any(value is not None for value in given):
        raise BadInput(
            f"--local_processes={main_flags.LOCAL_PROCESSES.value}: "
            "starts the others itself; leave out --" + ", --".join(main_flags.COORDINATOR_FLAGS)
        )
    check_coordinator(*given)
    if mode == "train":
        check_target(experiment, main_flags.TARGET_ACCURACY.value)
        check_policy(checkpoint_policy())
    if main_flags.XLA_FLAGS.value:
        check_xla_flags(main_flags.XLA_FLAGS.value)
    if main_flags.WANDB.value is not None:
        check_wandb(main_flags.WANDB.value)
    use_compile_cache(main_flags.COMPILE_CACHE.value, by_names=main_flags.PROFILE.value is not None)


def checkpoint_policy() -> Any:
    from jaxbench.checkpoints.checkpointer import Policy

    return Policy(
        main_flags.CHECKPOINT_MINUTES.value,
        main_flags.CHECKPOINT_EPOCHS.value,
        main_flags.KEEP_CHECKPOINTS.value,
    )


def parse_counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise BadInput(f"--device_counts={text}: must be whole numbers, such as 1,2,4") from None
