"""Make a launcher from its name and options."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from jaxbench.errors import BadInput, nearest
from jaxbench.launchers.launcher import Launcher, Limits

# {launcher: the names of its options}, which are the arguments of `create` in its module.
LAUNCHERS = {
    "local": (),
    "slurm": ("slurm", "slots"),
    "ssh": ("hosts", "ssh_config", "lost_after_s"),
}


def create_launcher(
    name: str, limits: Limits, say: Callable[[str], None], options: Mapping[str, Any]
) -> Launcher:
    """Make a launcher that is ready to start trials.

    Args:
      limits: those of each trial.
      say: prints a line.
      options: those of this launcher that were given.

    Raises:
      BadInput: no such launcher, another one's option, or what an option names is not usable.
    """
    if name not in LAUNCHERS:
        raise BadInput(
            f"--launcher={name}: must be one of {', '.join(LAUNCHERS)}{nearest(name, LAUNCHERS)}"
        )
    for option in options:
        if option not in LAUNCHERS[name]:
            own = [f"--launcher={other}" for other, names in LAUNCHERS.items() if option in names]
            goes = f"it needs {' or '.join(own)}" if own else "there is no such option"
            raise BadInput(f"--{option} with --launcher={name}: {goes}")
    module = importlib.import_module(f"jaxbench.launchers.{name}")
    return module.create(limits, say, **options)
