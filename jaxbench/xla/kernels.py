"""Read from XLA's text of a compiled operation what runs it: a library, a fused kernel, a loop."""

import collections
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxbench.xla.hlo import ARRAY, BITS, TARGET, Instruction, called, executed, instructions

# In words, from the best to the worst.
LIBRARY, PRODUCT, FUSED, DETOUR, NAIVE = (
    "library",
    "fused product",
    "fused loop",
    "dense detour",
    "naive loop",
)
# A detour does more than this many times the multiply-accumulates that the operation needs.
_DETOUR = 1.5
_PRODUCTS = ("dot", "convolution", "ragged-dot")
# What launches nothing, or only moves an array; a TPU prefetches operands.
_NO_KERNEL = re.compile(
    r"parameter|constant|iota|bitcast|(get-)?tuple(-element)?|while|call|conditional|partition-id"
    r"|after-all|add-dependency|opt-barrier|(copy|slice|async|dynamic-slice)-(start|update|done)"
)
# TPU's marks about operands, which compute nothing.
_MARKS = ("ConcatBitcast", "AssumeGatherIndicesInBound", "AllocateBuffer", "Sharding")
# What a GPU's fusion is compiled by, in its configuration; a loop if it is not stated.
_KIND = re.compile(r'"kind":"([^"]+)"')
# What else is worth a name among the kernels, fused or not.
_NAMED = ("sort", "scatter", "select-and-scatter", "reduce-window")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)")
_CONTRACTED = re.compile(r'lhs_contracting_(?:dims=\{|dimensions":\[)([\d,"]*)')
# Which of (first operand, second operand, result) are image, kernel and output of the forward pass.
_ROLES = {"__cudnn$convBackwardFilter": (0, 2, 1), "__cudnn$convBackwardInput": (2, 1, 0)}
# Calls of products whose text does not say how many multiply-accumulates they do.
_MULTIPLIES = re.compile(r"cudnn|cublas|tpu_custom_call")
_GEMMS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__onednn$matmul")


class Kernels(NamedTuple):
    """What a compiled operation runs.

    Attributes:
      found: LIBRARY, PRODUCT, FUSED, DETOUR or NAIVE.
      calls: {what does the work: how often it runs}: a library's function by its name in XLA,
        `Triton product`, `loop product`, `sort` and others.
      kernels: how many are launched, all together.
      operands: the types that products multiply, such as `f8e4m3fn x f8e4m3fn`.
      factor: the products' multiply-accumulates, as a multiple of those that are needed; None
        without products, or if a library does not say.
    """

    found: str
    calls: dict[str, int]
    kernels: int
    operands: str
    factor: float | None


class _Part(NamedTuple):
    """What one kernel is."""

    name: str  # in `Kernels.calls`; empty: not worth a name
    found: str
    operands: str = ""
    macs: int | None = 0  # None: it multiplies, and its text does not say how much


def read_kernels(hlo: str, platform: str, needed_macs: int) -> Kernels:
    """Return what a compiled operation runs.

    Args:
      hlo: XLA's text of the program.
      platform: cpu, gpu or tpu.
      needed_macs: that the operation needs; 0 if it is no product.
    """
    program = list(instructions(hlo))
    inside = collections.defaultdict(list)
    for instruction in program:
        inside[instruction.computation].append(instruction)
    types = {instruction.name: instruction.type for instruction in program}
    calls: collections.Counter[str] = collections.Counter()
    operands: dict[str, None] = {}
    macs_of: collections.Counter[str] = collections.Counter()
    kernels, unknown, loops = 0, False, False
    for instruction, times in executed(hlo):
        loops |= instruction.opcode == "while"
        if _NO_KERNEL.fullmatch(instruction.opcode) or _target(instruction) in _MARKS:
            continue
        kernels += times
        for part in _parts(instruction, platform, inside, types):
            if part.name:
                calls[part.name] += times
            if part.operands:
                operands[part.operands] = None
            unknown |= part.macs is None
            macs_of[part.found] += times * (part.macs or 0)
    macs = sum(macs_of.values())
    factor = macs / needed_macs if needed_macs and macs and not unknown else None
    if unknown:  # the library has the rest of them
        macs_of[LIBRARY] += max(0, needed_macs - macs)
    most = max((LIBRARY, PRODUCT, NAIVE), key=lambda kind: macs_of[kind])
    if (macs and not needed_macs) or (factor or 0) > _DETOUR:
        found = DETOUR
    elif needed_macs:
        found = most if macs_of[most] else NAIVE
    elif LIBRARY in macs_of:
        found = LIBRARY
    else:
        found = NAIVE if loops else FUSED
    return Kernels(found, dict(calls), kernels, ", ".join(operands), factor)


def _target(instruction: Instruction) -> str:
    match = TARGET.search(instruction.rest)
    return match[1] if match and instruction.opcode == "custom-call" else ""


def _parts(
    instruction: Instruction,
    platform: str,
    inside: Mapping[str, Sequence[Instruction]],
    types: Mapping[str, str],
) -> list[_Part]:
    """Return what a kernel is: one part, or one for each product in it."""
    if target := _target(instruction):
        if target in _GEMMS or "conv" in target:
            macs = _macs(instruction, types)
            return [_Part(target, LIBRARY, _operands(instruction, types), macs)]
        return [_Part(target, LIBRARY, "", None if _MULTIPLIES.search(target) else 0)]
    contained = [instruction, *_contained(instruction, inside)]
    kind = _KIND.search(instruction.rest)
    # A TPU's products run on its matrix unit, fused with what surrounds them; a CPU's in kernels of
    # XLA that the text does not name.
    label, found = ("loop product", NAIVE) if platform == "gpu" else ("product", PRODUCT)
    if kind and "cudnn" in kind[1]:
        label, found = "cuDNN fusion", LIBRARY
    elif kind and "triton" in kind[1]:
        label, found = "Triton product", PRODUCT
    products = [
        _Part(label, found, _operands(part, types), _macs(part, types))
        for part in contained
        if part.opcode in _PRODUCTS
    ]
    if products:
        return products
    if kind and "triton" in kind[1]:
        return [_Part("Triton", FUSED)]
    named = [part.opcode for part in contained if part.opcode in _NAMED]
    return [_Part(named[0] if named else "", FUSED)]


def _contained(
    instruction: Instruction, inside: Mapping[str, Sequence[Instruction]]
) -> list[Instruction]:
    """Return the instructions of the computations that a fusion calls, in all depths."""
    if instruction.opcode != "fusion":
        return []
    own = [part for name in called(instruction) for part in inside[name]]
    return own + [deeper for part in own for deeper in _contained(part, inside)]


def _operands(product: Instruction, types: Mapping[str, str]) -> str:
    """Return the types that a product multiplies, such as `bf16 x bf16`."""
    matches = [ARRAY.search(types.get(name, "")) for name in product.operands[:2]]
    return " x ".join(match[1] if match else "?" for match in matches)


def wider_in_words(operands: str, asked: str) -> str:
    """Return the wider type in which products multiply than was asked, such as ` in f32`.

    Args:
      operands: as in `Kernels`.
      asked: a type of XLA.
    """
    pairs = operands.split(", ")
    wider = [max(pair.split(" x "), key=_bits) for pair in pairs if _bits(pair) > _bits(asked)]
    if not (wider and asked):
        return ""
    return f"{' partly' if len(wider) < len(pairs) else ''} in {wider[0]}"


def _bits(types: str) -> int:
    """Return the bits of the widest type in a text such as `bf16 x f8e4m3fn`."""
    return max((int(match[1]) for match in map(BITS.match, types.split(" x ")) if match), default=0)


def _sides(type_: str) -> list[int]:
    match = ARRAY.search(type_)
    return [int(side) for side in match[2].replace("<=", "").split(",") if side] if match else []


def _macs(product: Instruction, types: Mapping[str, str]) -> int | None:
    """Return a product's multiply-accumulates; None if its text does not say.

    Zeros that padding adds inside of a convolution do not count. Those that another kernel wrote
    into its image do.
    """
    arrays = [_sides(types.get(name, "")) for name in product.operands[:2]]
    arrays.append(_sides(product.type))
    if (labels := _LABELS.search(product.rest)) is None:
        contracted = _CONTRACTED.search(product.rest)
        if contracted is None:
            return None
        axes = [int(axis) for axis in re.findall(r"\d+", contracted[1])]
        return math.prod(arrays[2]) * math.prod(arrays[0][axis] for axis in axes)
    roles = _ROLES.get(_target(product), (0, 1, 2))
    image, kernel, output = (
        dict(zip(names, arrays[role], strict=True))
        for names, role in zip(labels.groups(), roles, strict=True)
    )
    window = _window(product, sum(name.isdigit() for name in kernel))
    macs = output["b"] * output["f"] * kernel["i"]
    for axis, (size, stride, low, spread, apart) in enumerate(window):
        # Where each of the kernel's pixels falls for each output pixel.
        at = np.arange(output[str(axis)])[:, None] * stride + np.arange(size) * apart - low
        last = (image[str(axis)] - 1) * spread
        macs *= int(((at >= 0) & (at <= last) & (at % spread == 0)).sum())
    return macs


def _window(product: Instruction, axes: int) -> list[tuple[int, int, int, int, int]]:
    """Return (kernel size, stride, padding before, image's and kernel's dilation) of each axis."""
    match = _WINDOW.search(product.rest)
    words = dict(word.split("=") for word in match[1].split()) if match else {}

    def values(name: str, default: str) -> list[int]:
        stated = words[name].split("x") if name in words else [default] * axes
        return [int(value.partition("_")[0]) for value in stated]

    names = {"size": "1", "stride": "1", "pad": "0_0", "lhs_dilate": "1", "rhs_dilate": "1"}
    return list(zip(*(values(name, default) for name, default in names.items()), strict=True))
