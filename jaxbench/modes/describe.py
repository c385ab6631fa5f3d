"""Describe an experiment without running it: config, layers, arithmetic, estimated memory."""

import operator
import re
from collections import Counter
from typing import Any

import flax
import flax.linen as nn
import jax
from rich.console import Console
from rich.table import Table

from jaxbench.config import Config, Experiment
from jaxbench.custom.code import config_record
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.fields import overridable, without_unused
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.modes import conv2d
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.precision import get_precision
from jaxbench.terminal import printable, wrap
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_step
from jaxbench.training.program import Program
from jaxbench.xla.jaxpr import find_matmuls_and_convs

# Names of a group that are shown whole.
_MOST_NAMES = 4


def describe(config: Experiment) -> dict[str, Any]:
    """Return the fields that `--mode=describe` shows; nothing is trained, no data set is read.

    Raises:
      BadInput: the config makes no sense on this machine.
    """
    if not isinstance(config, Config):
        return conv2d.describe(config)
    config.validate()
    config, unused = without_unused(config)
    with get_precision(config.precision).enabled():
        mesh, layout = create_training_mesh(config)
        program = build_program(config, mesh, layout, steps_per_epoch=1)
        program.check()
        state = program.abstract_placed_state()
        label_shape = program.task.label_shape(config.data.example_shape)
        args = abstract_args(config, layout, label_shape, program.precision.param_dtype)
        compiled = compile_step("train_step", program.train_step, state, *args)
        return {
            "experiment": config.name,
            "config": config_record(config),
            "devices": [device.device_kind for device in mesh.devices],
            "layers": list_layers(program),
            "parameter_groups": program.parameter_groups(),
            "warnings": [
                *unused,
                *unused_accelerators(mesh.devices[0].platform),
                *program.facts.warnings(config, program.precision),
            ],
            "parameters": program.num_parameters(),
            "forward_macs_per_image": program.forward_macs,
            "training_flops_per_image": program.training_flops,
            "planned_memory_per_device": compiled.memory,
            "xla_flops_per_step_per_device": compiled.xla_flops_per_device,
        }


def list_layers(program: Program) -> list[dict[str, Any]]:
    """Return one row for each module with parameters or MACs of its own, in the order of calls.

    The MACs and the parameters of all rows add up to those of the network.
    """
    modules: dict[str, tuple[str, tuple[int, ...]]] = {}

    def mark(next_call, args, kwargs, context):
        if context.method_name == "setup":
            return next_call(*args, **kwargs)
        path = "/".join(context.module.path)
        # Flax names scopes too, but a scope's end may be the path of several modules.
        with jax.named_scope(f"<{path}>"):
            output = next_call(*args, **kwargs)
        modules[path] = (type(context.module).__name__, getattr(output, "shape", ()))
        return output

    with nn.intercept_methods(mark):
        traced = program.trace_network()
    macs = Counter()
    for product in find_matmuls_and_convs(traced.jaxpr.jaxpr):
        # NNX modules are no scopes: their products are the whole network's.
        macs[(re.findall("<(.*?)>", product.scope) or [""])[-1]] += product.macs
    parameters = Counter()
    for path, leaf in flax.traverse_util.flatten_dict(
        program.abstract_train_state().params
    ).items():
        parameters["/".join(path[:-1])] += leaf.size
    for path in parameters:
        modules.setdefault(path, ("", ()))
    return [
        {
            "layer": path,
            "kind": kind,
            "output_shape": list(shape[1:]),
            "parameters": parameters[path],
            "forward_macs_per_image": macs[path],
        }
        for path, (kind, shape) in modules.items()
        if parameters[path] or macs[path]
    ]


def print_description(
    description: dict[str, Any], config: Experiment, console: Console | None = None
) -> None:
    """Print the description as tables, on standard output where no console is given."""
    console = console or Console(highlight=False, markup=False)
    title = printable(description["experiment"])
    fields = _table(title, "field", "value", show_header=False)
    config, _ = without_unused(config)
    for name in overridable(config):
        fields.add_row(name, repr(operator.attrgetter(name)(config)))
    console.print(fields)

    if "problems" in description:
        _print_problems(console, description)
        return
    for line in description["warnings"]:
        for part in wrap(f"warning: {line}"):
            console.print(part, soft_wrap=True)
    totals = _print_layers(console, description)
    _print_groups(console, description["parameter_groups"])
    memory = description["planned_memory_per_device"]
    if memory:
        totals.add_row(
            "estimated memory (XLA), each device",
            f"{memory['total_bytes'] / 2**20:,.1f} MiB (temporaries "
            f"{memory['temporary_bytes'] / 2**20:,.1f})"
            + (", without the data set" if config.data.feed == "resident" else ""),
        )
    flops = description["xla_flops_per_step_per_device"]
    if flops:
        totals.add_row("XLA's count, one step, each device", f"{flops / 1e9:,.4g} GFLOP")
    totals.add_row("devices", _describe_devices(description))
    console.print(totals)


def print_network(network: dict[str, Any]) -> None:
    """Print a network's layers and totals as tables, on standard output."""
    console = Console(highlight=False, markup=False)
    console.print(_print_layers(console, network))
    console.print()


def _print_layers(console: Console, description: dict[str, Any]) -> Table:
    """Print a network's layers; return the table of its totals."""
    layers = _table("layers, for one image", "layer", "kind", "output")
    layers.add_column("parameters", justify="right")
    layers.add_column("forward MACs", justify="right")
    for row in description["layers"]:
        shape, macs = "x".join(map(str, row["output_shape"])), row["forward_macs_per_image"]
        parameters = f"{row['parameters']:,}"
        layers.add_row(row["layer"], row["kind"], shape, parameters, f"{macs:,}" if macs else "")
    console.print(layers)
    totals = _table("totals", "name", "value", show_header=False)
    totals.add_row("parameters", f"{description['parameters']:,}")
    totals.add_row("forward, one image", f"{description['forward_macs_per_image'] / 1e9:.4g} GMAC")
    totals.add_row(
        "training, one image", f"{description['training_flops_per_image'] / 1e9:.4g} GFLOP"
    )
    return totals


def _print_groups(console: Console, groups: list[dict[str, Any]]) -> None:
    """Print which parameters the update rule treats alike; of many the last parts of the names."""
    table = _table("groups of parameters", "group")
    for heading in ("parameters", "rate", "decay"):
        table.add_column(heading, justify="right")
    table.add_column("names", overflow="fold")
    for row in groups:
        names = Counter(row["names"])
        if len(names) > _MOST_NAMES:
            names = Counter(name.rpartition("/")[2] for name in names)
        rate = f"{row['learning_rate']:g}"
        if row["epochs"]:
            rate += f", {row['epochs']:g} epochs"
        table.add_row(
            row["group"],
            f"{row['parameters']:,}",
            rate,
            f"{row['weight_decay']:g}",
            ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items()),
        )
    if groups:
        console.print(table)


def _describe_devices(description: dict[str, Any]) -> str:
    kinds = Counter(description["devices"])
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _table(title: str, *headings: str, **options: Any) -> Table:
    """Return a table that cuts no text: what is too long goes on in the next line."""
    table = Table(title=f"\n{title}", title_justify="left", box=None, pad_edge=False, **options)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _print_problems(console: Console, description: dict[str, Any]) -> None:
    table = _table("problems")
    for heading in ("images", "size", "kernel", "channels", "filters", "GMAC", "in MiB", "out MiB"):
        table.add_column(heading, justify="right")
    for problem in description["problems"]:
        table.add_row(
            str(problem["images"]),
            f"{problem['height']}x{problem['width']}",
            *(str(problem[name]) for name in ("kernel", "channels", "filters")),
            f"{problem['macs'] / 1e9:.4g}",
            f"{problem['input_bytes'] / 2**20:,.1f}",
            f"{problem['output_bytes'] / 2**20:,.1f}",
        )
    console.print(table)
    devices = f"devices: {_describe_devices(description)}; {description['shared_by']}"
    console.print("\n".join(wrap(devices)), soft_wrap=True)
