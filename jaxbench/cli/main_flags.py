"""The flags of `jaxbench main`, made from the table of options, and their checks."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxbench.cli import price_flags, process_flags
from jaxbench.cli.flag_table import define_flag
from jaxbench.cli.importing import importing
from jaxbench.config import Config, Experiment
from jaxbench.errors import BadInput
from jaxbench.modes import find_mode
from jaxbench.modes.options import ALL, OPTIONS, RUNS, mode_keywords

for _name, _option in OPTIONS.items():
    _text, _modes = _option.help, _option.any_modes
    if _modes not in (RUNS, ALL) and "--mode=" not in _text:
        _text = f"With --mode={' or '.join(_modes)}: {_text[0].lower()}{_text[1:]}"
    if _option.kind in ("main", "run"):
        define_flag(_name, _option._replace(help=_text))
# Recorded with the run.
flags.adopt_module_key_flags(price_flags)
flags.adopt_module_key_flags(process_flags)


def given_flags(without: Sequence[str] = ()) -> list[str]:
    """Return the flags of jaxbench.main that were given, as another process gets them."""
    defined = sorted(flags.FLAGS.get_key_flags_for_module(__name__), key=lambda flag: flag.name)
    return [f"--{f.name}={f.value}" for f in defined if f.present and f.name not in without]


def chosen_mode(experiment: Experiment) -> str:
    """Return the mode of the flags; raise BadInput if it is for others, or a flag is not for it."""
    mode, target = find_mode(experiment, flags.FLAGS.mode), flags.FLAGS.target
    if target == "":
        raise BadInput("--target=: must name a machine; --target=list shows all")
    for name, option in OPTIONS.items():
        modes = option.target_modes if target else option.modes
        if not flags.FLAGS[name].present or mode in modes:
            continue
        if target and not modes:
            raise BadInput(f"--{name} with --target: compiling measures nothing")
        if mode in option.target_modes:
            raise BadInput(f"--{name} with --mode={mode}: it needs --target")
        needed = f"--mode={' or '.join(modes)}"
        if not modes:
            needed = f"--target and --mode={' or '.join(option.target_modes)}"
        raise BadInput(f"--{name} with --mode={mode}: it needs {needed}")
    return mode


def reads_data(experiment: Experiment, mode: str) -> bool:
    """Return whether a run reads a data set; raise BadInput if data.path does not say where it is.

    For a machine that is not rented yet.
    """
    if not isinstance(experiment, Config):
        return False
    if mode not in ("train", "input") and flags.FLAGS.feed == "synthetic":
        return False
    if experiment.data.source in ("cifar10_batches", "folder", "npz") and not experiment.data.path:
        raise BadInput(
            f"data.path='': data.source={experiment.data.source} reads files; say where they will "
            "be on that machine"
        )
    return True


def cache_setting() -> str:
    """Return the compile cache's folder: a compiler for a target writes to one, but reads none."""
    return flags.FLAGS.compile_cache or ("off" if flags.FLAGS.target else "")


def check_flags(experiment: Experiment, mode: str) -> dict[str, Any]:
    """Check the flags before any device is needed, and the compile cache's folder.

    Return the keywords of the mode's function, except the price; raise BadInput for a wrong value.
    """
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    with importing():
        from jaxbench.hardware.accelerators import check_platforms
        from jaxbench.xla.compile_cache import use_compile_cache
        from jaxbench.xla.flags import check_flag_variables, check_xla_flags
    check_platforms()
    keywords = mode_keywords(mode, experiment, {name: flags.FLAGS[name].value for name in OPTIONS})
    if target := flags.FLAGS.target:
        price_flags.target_prices(target)
    else:
        price_flags.stated_price()
    process_flags.check_processes()
    check_flag_variables()
    if flags.FLAGS.xla_flags:
        check_xla_flags(flags.FLAGS.xla_flags)
    use_compile_cache(cache_setting())
    return keywords
