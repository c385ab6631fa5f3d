"""Describes an experiment without running it: config, layers, arithmetic, estimated memory."""

import dataclasses
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.config import Config, Experiment
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.distributed.mesh import create_training_mesh
from jaxbench.fields import overridable
from jaxbench.jobs import conv2d
from jaxbench.precision import get_precision
from jaxbench.training.program import Program, build_program, compile_step
from jaxbench.xla.flops import TRAINING_FLOPS_PER_MAC


def describe(config: Experiment) -> dict[str, Any]:
    """Return the fields that `--mode=describe` shows; nothing is trained, no data set is read.

    Raises:
      BadInput: the config makes no sense on this machine.
    """
    if not isinstance(config, Config):
        return conv2d.describe(config)
    config.validate()
    with get_precision(config.precision).enabled():
        mesh = create_training_mesh(config)
        program = build_program(config, mesh, steps_per_epoch=1)
        program.check()
        macs = program.forward_macs()
        compiled = compile_step(
            "train_step",
            program.train_step,
            program.abstract_placed_state(),
            *abstract_args(
                config,
                mesh.num_devices,
                program.task.label_shape(config.data.image_shape),
                program.precision.param_dtype,
            ),
        )
        return {
            "experiment": config.name,
            "config": dataclasses.asdict(config),
            "devices": [device.device_kind for device in mesh.devices],
            "layers": list_layers(program, macs),
            "parameters": program.num_parameters(),
            "forward_macs_per_image": sum(macs.values()),
            "training_flops_per_image": sum(macs.values()) * TRAINING_FLOPS_PER_MAC,
            "planned_memory_per_device": compiled.memory,
            "xla_flops_per_step_per_device": compiled.xla_flops_per_device,
        }


def list_layers(program: Program, macs: dict[str, int]) -> list[dict[str, Any]]:
    """Return one row for each layer that has parameters, in the order they are called."""
    calls: list[tuple[str, str, tuple[int, ...]]] = []

    def note_call(next_call, args, kwargs, context):
        output = next_call(*args, **kwargs)
        if context.method_name == "__call__":
            path = "/".join(context.module.path)
            calls.append((path, type(context.module).__name__, getattr(output, "shape", ())))
        return output

    image = jnp.zeros((1, *program.config.data.image_shape), program.precision.compute_dtype)
    with nn.intercept_methods(note_call):
        jax.eval_shape(lambda key: program.model.init(key, image, train=False), jax.random.key(0))
    params = flax.traverse_util.flatten_dict(program.abstract_train_state().params, sep="/")
    rows = []
    for path, kind, shape in calls:
        own = [leaf.size for name, leaf in params.items() if name.rpartition("/")[0] == path]
        if own and path:
            rows.append(
                {
                    "layer": path,
                    "kind": kind,
                    "output_shape": list(shape[1:]),
                    "parameters": sum(own),
                    "forward_macs_per_image": sum(
                        count for scope, count in macs.items() if _in_scope(scope, path)
                    ),
                }
            )
    return rows


def _in_scope(scope: str, path: str) -> bool:
    """Return whether a named scope (`WideResNet/group1_block1/conv1`) is of a module's path."""
    return f"/{scope}/".endswith(f"/{path}/")


def print_description(description: dict[str, Any], config: Experiment) -> None:
    """Print the description as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    fields = Table(title=description["experiment"], title_justify="left", show_header=False)
    for name in overridable(config):
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        fields.add_row(name, repr(value))
    console.print(fields)

    if "problems" in description:
        _print_problems(console, description)
        return
    layers = Table(title="layers, for one image", title_justify="left")
    for heading in ("layer", "kind", "output"):
        layers.add_column(heading)
    for heading in ("parameters", "forward MACs"):
        layers.add_column(heading, justify="right")
    for row in description["layers"]:
        layers.add_row(
            row["layer"],
            row["kind"],
            "x".join(map(str, row["output_shape"])),
            f"{row['parameters']:,}",
            f"{row['forward_macs_per_image']:,}" if row["forward_macs_per_image"] else "",
        )
    console.print(layers)

    totals = Table(title="totals", title_justify="left", show_header=False)
    totals.add_row("parameters", f"{description['parameters']:,}")
    totals.add_row("forward, one image", f"{description['forward_macs_per_image'] / 1e9:.4g} GMAC")
    totals.add_row(
        "training, one image", f"{description['training_flops_per_image'] / 1e9:.4g} GFLOP"
    )
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
    totals.add_row("devices", ", ".join(description["devices"]))
    console.print(totals)


def _print_problems(console: Any, description: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="problems", title_justify="left")
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
    console.print(f"devices: {', '.join(description['devices'])}; {description['shared_by']}")
