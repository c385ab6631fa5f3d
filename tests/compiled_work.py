"""What a compiled step does to its activations, and the bytes that it moves."""

import collections
import contextlib
import math
from typing import NamedTuple
from unittest import mock

import flax.linen as nn
import jax

from jaxbench.models import layers, mnist_cnn, resnet, speed_net, unet, vgg
from jaxbench.modes import targets
from jaxbench.xla.hlo import arrays, called, executed, instructions

_NAMES_ONLY = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "call"),
    *("conditional", "optimization-barrier", "after-all"),
}
# The other parts of an asynchronous instruction, or the computation that it calls, do the work. A
# TPU copies ahead to its chip what others then read.
_NO_WORK = ("-done", "-update", "async-start", "copy-start", "slice-start")


class Work(NamedTuple):
    """What the instructions of a compiled step do that write to memory, or on a TPU to the chip."""

    transposes: int  # activations that are written only to change their layout
    converts: int  # only to change their type
    moved_bytes: int  # results and operands, each whole; the body of a loop as often as it runs


def count_work(hlo, activation_sizes):
    """Count what a program does with arrays of these numbers of values, and the bytes it moves."""
    types, fused = {}, collections.defaultdict(set)
    for instruction in instructions(hlo):
        types[instruction.name] = instruction.type
        fused[instruction.computation].add(instruction.opcode)
    transposes = converts = moved_bytes = 0
    for instruction, times in executed(hlo):
        if instruction.opcode in _NAMES_ONLY or instruction.opcode.endswith(_NO_WORK):
            continue
        read = [types.get(name, "") for name in set(instruction.operands)]
        moved = [array for type_ in (instruction.type, *read) for array in arrays(type_)]
        moved_bytes += times * sum(array.num_bytes for array in moved)
        parts = {instruction.opcode}
        if instruction.opcode == "fusion":
            parts = set().union(*(fused[name] for name in called(instruction))) - _NAMES_ONLY
        if parts <= {"copy", "transpose", "convert", "reshape"}:
            written = sum(array.size in activation_sizes for array in arrays(instruction.type))
            transposes += written * bool(parts & {"copy", "transpose"})
            converts += written * ("convert" in parts)
    return Work(transposes, converts, moved_bytes)


def activation_sizes(network, rows, images):
    """Return how many values the activations of some images have in a step on one device.

    Sizes that a parameter has too are excluded: the two look alike in the compiled step.
    """
    data = network.config.data
    shapes = [data.example_shape, *(row["output_shape"] for row in rows)]
    rank = 2 if data.sequence_length else 3
    sizes = {images * math.prod(shape) for shape in shapes if len(shape) == rank}
    return sizes - {leaf.size for leaf in jax.tree.leaves(network.trace.variables["params"])}


@contextlib.contextmanager
def flaxs_layer(name):
    """Networks that are built and traced inside the `with` use flax's BatchNorm or max_pool."""

    def norm(*, relu=False, **fields):
        own = nn.BatchNorm(**fields)
        return lambda x: nn.relu(own(x)) if relu else own(x)

    def pool(x, window, stride, padding=0):
        sides = ((padding, padding), (padding, padding))
        return nn.max_pool(x, (window, window), (stride, stride), sides)

    own = {"BatchNorm": norm, "max_pool": pool}[name]
    with contextlib.ExitStack() as stack:
        for module in (layers, mnist_cnn, resnet, speed_net, unet, vgg):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, own))
        yield


def compile_work(config, target):
    """Return a step's TargetRecord and its Work; see `compile_for_target`."""
    with (
        mock.patch.object(targets, "count_calls", wraps=targets.count_calls) as text,
        mock.patch.object(targets, "list_layers", wraps=targets.list_layers) as listed,
    ):
        record, network = targets.compile_for_target(config, target)
    [listed_network], [hlo] = listed.call_args.args, text.call_args.args
    images = record.batch_per_device // config.gradient_accumulation_steps
    return record, count_work(hlo, activation_sizes(listed_network, network["layers"], images))
