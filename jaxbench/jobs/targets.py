"""Check the targets that an experiment is to be compiled for. JAX is not imported."""

from jaxbench.config import Config, Experiment
from jaxbench.errors import BadInput
from jaxbench.geometry import BatchGeometry
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.hardware.targets.topology import compiler_version


def check_target(experiment: Experiment, name: str) -> Target:
    """Return the target of this name.

    Raises:
      BadInput: an unknown or impossible target, no compiler for it, a batch that does not split
        over its devices, or an experiment without a network.
    """
    if not isinstance(experiment, Config):
        raise BadInput(f"--target: {experiment.name} trains no network; only those are compiled")
    experiment.validate()
    target = parse_target(name)
    compiler_version(target)
    BatchGeometry.create(experiment, target.num_devices)
    return target


def split_targets(names: str) -> list[str]:
    """Return names that commas separate.

    Raises:
      BadInput: a name is given twice.
    """
    listed = names.split(",")
    if not all(listed):
        raise BadInput(f"--target={names}: must name machines; --target=list shows all")
    for name in listed:
        if listed.count(name) > 1:
            raise BadInput(f"--target={names}: names {name} twice")
    return listed
