"""Flags that are checked before a mode runs: together, with the experiment, and with JAX."""

from typing import Any

from absl import flags

from jaxbench.cli import main_flags, price_flags, process_flags
from jaxbench.cli.importing import importing
from jaxbench.config import Config, Experiment
from jaxbench.errors import BadInput
from jaxbench.modes import find_mode


def chosen_mode(experiment: Experiment) -> str:
    """Return the mode that the flags ask for.

    Raises:
      BadInput: the mode is not for the experiment, or a flag is not for the mode.
    """
    mode = find_mode(experiment, main_flags.MODE.value)
    if main_flags.TARGET.value == "":
        raise BadInput("--target=: must name a machine; --target=list shows all")
    if main_flags.TARGET.value:
        for name in main_flags.MODES_OF.keys() - set(main_flags.OF_TARGETS):
            if flags.FLAGS[name].present:
                raise BadInput(f"--{name} with --target: compiling measures nothing")
    for name, modes in main_flags.MODES_OF.items():
        if flags.FLAGS[name].present and mode not in modes:
            raise BadInput(f"--{name} with --mode={mode}: it goes with --mode={' or '.join(modes)}")
    return mode


def reads_data(experiment: Experiment, mode: str) -> bool:
    """Return whether a run reads a data set. For a machine that is yet to be paid for.

    Raises:
      BadInput: it reads files, and data.path does not say where they are.
    """
    if not isinstance(experiment, Config):
        return False
    if mode not in ("train", "input") and main_flags.FEED.value == "synthetic":
        return False
    if experiment.data.source in ("cifar10_batches", "folder", "npz") and not experiment.data.path:
        raise BadInput(
            f"data.path='': data.source={experiment.data.source} reads files; say where they will "
            "be on that machine"
        )
    return True


def check_flags(experiment: Experiment) -> None:
    """Check the flags, as far as no device is needed, and set up the compile cache.

    Raises:
      BadInput: a value that is not allowed.
    """
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    with importing():
        from jaxbench.hardware.accelerators import check_platforms
        from jaxbench.modes.options import check_options
        from jaxbench.xla.compile_cache import use_compile_cache
        from jaxbench.xla.flags import check_xla_flags
    check_platforms()
    options = ("telemetry_s", "window_s", "profile", "target_accuracy", "wandb")
    values = {name: flags.FLAGS[name].value for name in options}
    check_options(experiment, values | {"checkpoints": checkpoint_policy()})
    price_flags.stated_price()
    parse_counts(main_flags.DEVICE_COUNTS.value)
    price_flags.check_positive("link_gb_per_s")
    process_flags.check_processes()
    if main_flags.XLA_FLAGS.value:
        check_xla_flags(main_flags.XLA_FLAGS.value)
    # A compiler for a target writes to a cache, and cannot read it.
    default = "off" if main_flags.TARGET.value else ""
    use_compile_cache(
        main_flags.COMPILE_CACHE.value or default, by_names=main_flags.PROFILE.value is not None
    )


def checkpoint_policy() -> Any:
    from jaxbench.checkpoints.checkpoint import Policy

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
