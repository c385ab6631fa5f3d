"""Describe an experiment without running it: config, layers, arithmetic, estimated memory."""

import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import flax
import flax.linen as nn
import jax
from rich.console import Console
from rich.table import Table

from jaxbench.config import Config, Experiment
from jaxbench.config.custom import config_record
from jaxbench.config.fields import overridable, without_unused
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.modes import conv2d
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.precision import get_precision
from jaxbench.terminal import printable, wrap
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_step
from jaxbench.training.program import Network
from jaxbench.xla.jaxpr import find_matmuls_and_convs

# Names of a group that are shown whole.
_MOST_NAMES = 4


def describe(config: Any) -> dict[str, Any]:
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
        network, analysis = program.network, program.network.analysis
        state = program.abstract_placed_state()
        args = abstract_args(config, layout)
        compiled = compile_step("train_step", program.train_step, state, *args)
        return {
            "experiment": config.name,
            "config": config_record(config),
            "devices": [device.device_kind for device in mesh.devices],
            "layers": list_layers(network),
            "parameter_groups": analysis.parameter_groups(),
            "warnings": [
                *unused,
                *unused_accelerators(mesh.devices[0].platform),
                *analysis.warnings(),
            ],
            "parameters": analysis.num_parameters,
            "trained_parameters": analysis.num_trained,
            "forward_macs_per_image": analysis.forward_macs,
            "training_flops_per_image": analysis.training_flops,
            "training_flops_by_6n": analysis.flops_by_6n,
            "planned_memory_per_device": compiled.memory,
            "xla_flops_per_step_per_device": compiled.xla_flops_per_device,
        }


def list_layers(network: Network) -> list[dict[str, Any]]:
    """Return one row for each module with parameters or MACs, in the order of calls.

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
        traced = network.trace.trace_forward()
    macs = Counter()
    for op in find_matmuls_and_convs(traced.jaxpr.jaxpr):
        # NNX modules are no scopes: their operations are the whole network's.
        macs[(re.findall("<(.*?)>", op.scope) or [""])[-1]] += op.macs
    parameters = Counter()
    params = flax.traverse_util.flatten_dict(network.trace.variables["params"])
    for path, leaf in params.items():
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
    """Print the description as tables, on standard output if no console is given."""
    console = console or Console(highlight=False, markup=False)
    config, _ = without_unused(config)
    fields = [(name, repr(operator.attrgetter(name)(config))) for name in overridable(config)]
    title = printable(description["experiment"])
    _print_table(console, title, "field|value", fields, show_header=False)
    kinds = Counter(description["devices"])
    devices = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if "problems" in description:
        names = ("kernel", "channels", "macs", "input_bytes", "output_bytes")
        rows = [[f"{one[name]:,}" for name in names] for one in description["problems"]]
        _print_table(console, "problems", "|".join(f">{name}" for name in names), rows)
        counts = ", ".join(map(str, description["device_counts"]))
        line = f"devices: {devices}; measured on {counts} device(s)"
        console.print("\n".join(wrap(line)), soft_wrap=True)
        return
    for line in description["warnings"]:
        for part in wrap(f"warning: {line}"):
            console.print(part, soft_wrap=True)
    more = []
    if memory := description["planned_memory_per_device"]:
        total, temporary = (memory[f"{name}_bytes"] / 2**20 for name in ("total", "temporary"))
        data = ", without the data set" if config.data.feed == "resident" else ""
        size = f"{total:,.1f} MiB (temporaries {temporary:,.1f}){data}"
        more.append(("estimated memory (XLA), each device", size))
    if flops := description["xla_flops_per_step_per_device"]:
        more.append(("XLA's count, one step, each device", f"{flops / 1e9:,.4g} GFLOP"))
    print_network(description, console, [*more, ("devices", devices)])


def print_network(
    network: Mapping[str, Any], console: Console | None = None, more: Sequence[tuple[str, str]] = ()
) -> None:
    """Print a network's layers, groups and totals as tables, with `more` rows of totals."""
    console = console or Console(highlight=False, markup=False)
    layers, groups = [], []
    for row in network["layers"]:
        shape, macs = "x".join(map(str, row["output_shape"])), row["forward_macs_per_image"]
        numbers = f"{row['parameters']:,}", f"{macs:,}" if macs else ""
        layers.append((row["layer"], row["kind"], shape, *numbers))
    headings = "layer|kind|output|>parameters|>forward MACs"
    _print_table(console, "layers, for one example", headings, layers)
    # The parameters that the update rule treats alike; of many the last parts of the names.
    for row in network.get("parameter_groups", []):
        names = Counter(row["names"])
        if len(names) > _MOST_NAMES:
            names = Counter(name.rpartition("/")[2] for name in names)
        listed = (f"{count} x {name}" if count > 1 else name for name, count in names.items())
        rate = f"{row['learning_rate']:g}"
        rate += f", {row['epochs']:g} epochs" if row["epochs"] else ""
        numbers = f"{row['parameters']:,}", rate, f"{row['weight_decay']:g}"
        groups.append((row["group"], *numbers, ", ".join(listed)))
    if groups:
        headings = "group|>parameters|>rate|>decay|names"
        _print_table(console, "groups of parameters", headings, groups)
    trained = network["trained_parameters"]
    others = f", {trained:,} trained" if trained < network["parameters"] else ""
    totals = [
        ("parameters", f"{network['parameters']:,}{others}"),
        ("forward, one example", f"{network['forward_macs_per_image'] / 1e9:.4g} GMAC"),
        ("training, one example", f"{network['training_flops_per_image'] / 1e9:.4g} GFLOP"),
    ]
    if flops := network["training_flops_by_6n"]:
        totals.append(("training, by 6 N and attention", f"{flops / 1e9:.4g} GFLOP"))
    _print_table(console, "totals", "name|value", [*totals, *more], show_header=False)


def _print_table(
    console: Console, title: str, headings: str, rows: Sequence[Sequence[str]], **options: Any
) -> None:
    """Print a table that cuts no text: what is too long goes on in the next line.

    Headings are separated by |; > stands before those of columns of numbers.
    """
    table = Table(title=f"\n{title}", title_justify="left", box=None, pad_edge=False, **options)
    for heading in headings.split("|"):
        if heading[0] == ">":
            table.add_column(heading[1:], justify="right")
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
