"""Find which kernel XLA runs for an operation: on machines that are not here, and on this one.

A machine's operations are compiled one after the other in a child process, which writes a line as
each is done. If the compiler crashes or hangs, that is the operation's answer, and the next child
begins with the operation after it. On this machine (`HERE`) they are timed, too.
"""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
from msgspec import Meta

from jaxbench.clock import Stopwatch
from jaxbench.errors import BadInput, RunFailed, first_line
from jaxbench.files import parse_rows, read_text
from jaxbench.hardware.accelerators import find_accelerators
from jaxbench.hardware.system import installed_version
from jaxbench.hardware.targets.target import compiler_version, environment, parse_target
from jaxbench.hardware.telemetry.readers import HostReader
from jaxbench.microbench.operations import (
    COPY,
    PRODUCT,
    Operation,
    compile_operation,
    list_operations,
    operations_on,
    time_beside,
)
from jaxbench.modes.targets import RESULT_VARIABLE, create_devices
from jaxbench.parallel.child import Child
from jaxbench.tables.spreadsheet import render_csv
from jaxbench.xla.hlo import count_calls
from jaxbench.xla.kernels import DETOUR, LIBRARY, Kernels, read_kernels, wider_in_words

HERE = "here"
# One machine of each generation from Volta and TPU v2 on.
MACHINES = (
    *(f"gpu:{name}" for name in ["v100", "t4", "a100", "a10", "l4", "h100", "b200", "rtx5090"]),
    *("tpu:v2:1x1", "tpu:v3:1x1", "tpu:v4:1x1x1", "tpu:v5e:1x1", "tpu:v5p:1x1x1", "tpu:v6e:1x1"),
    "tpu:tpu7x:1x1x1",
)
OPERATIONS = [one.name for one in list_operations("gpu", fused="xla")]
# How often an operation is timed on this machine, and about how long.
_ROUNDS, _WINDOW_S = 7, 0.05
# A compiler that takes longer for one operation hangs.
_LONGEST_S = 900.0
_Amount = Annotated[float, Meta(ge=0, le=1e12)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelRow:
    """What runs an operation on a machine.

    Attributes:
      operation: its name in microbench/operations.py.
      target: as in --target, or `here`.
      device_kind: the device's name in JAX.
      compiler: its package and version.
      jax: the version of JAX.
      found: library, fused product, fused loop, dense detour or naive loop; see xla/kernels.py.
      calls: what does the work, such as `2 x Triton product`.
      kernels: how many are launched.
      operands: the types that its products multiply.
      asked: the type that the operation asks to multiply.
      factor: how many times the multiply-accumulates that it needs are computed.
      found_without_triton, calls_without_triton: the same without Triton's products, for GPUs.
      estimated_fraction: its multiply-accumulates a cycle as a fraction of those of `fraction_of`,
        by the cycles that a TPU's compiler estimates.
      chosen: `without timing`, or `on the device` where the compiler may have timed kernels.
      time_us, time_us_low, time_us_high: microseconds of a call, with the 95 % interval.
      fraction, fraction_low, fraction_high: its rate as a fraction of that of `fraction_of`; both
        were timed interleaved.
      fraction_of: product_bf16 for products, in multiply-accumulates; copy for others, in bytes.
      other_cpu_percent: of the host's processor, taken by other processes meanwhile.
      refused: why it was not compiled or not timed.
      command: what prints this row again.
    """

    operation: str
    target: str
    device_kind: str
    compiler: str
    jax: str
    found: str | None = None
    calls: str | None = None
    kernels: int | None = None
    operands: str | None = None
    asked: str | None = None
    factor: _Amount | None = None
    found_without_triton: str | None = None
    calls_without_triton: str | None = None
    estimated_fraction: _Amount | None = None
    chosen: str | None = None
    time_us: _Amount | None = None
    time_us_low: _Amount | None = None
    time_us_high: _Amount | None = None
    fraction: _Amount | None = None
    fraction_low: _Amount | None = None
    fraction_high: _Amount | None = None
    fraction_of: str | None = None
    other_cpu_percent: _Amount | None = None
    refused: str | None = None
    command: str

    @property
    def verdict(self) -> str:
        """What was found, in words, with the factor of a detour and wider types than were asked."""
        if self.found is None:
            return "refused"
        detour = f", {self.factor:.2g} times" if self.found == DETOUR and self.factor else ""
        return self.found + detour + wider_in_words(self.operands or "", self.asked or "")


_COLUMNS = [field.name for field in dataclasses.fields(KernelRow)]


def as_csv(rows: Sequence[KernelRow]) -> str:
    """Return rows as CSV; `read_rows` reads it."""
    return render_csv(_COLUMNS, map(vars, rows))


def read_rows(path: pathlib.Path) -> list[KernelRow]:
    """Return the rows of a file of `as_csv`."""
    return parse_rows(read_text(path), KernelRow)


def machines_to_ask() -> tuple[list[str], list[str]]:
    """Return the machines without --target, and why others are left out."""
    machines, missing = [HERE] if find_accelerators() else [], []
    for name in MACHINES:
        try:
            compiler_version(parse_target(name))
            machines.append(name)
        except BadInput as error:
            missing.append(str(error).partition(": ")[2])  # the same for all GPUs
    if not machines:
        raise BadInput(
            f"no compiler for GPUs or TPUs is installed ({missing[0]}); --target=here needs none"
        )
    return machines, missing


def variables_for(target: str) -> dict[str, str]:
    """Return the variables of a process that compiles for a target.

    Raises:
      BadInput: an unknown machine, or no compiler for it here.
    """
    if target == HERE:
        return {}
    if ":" not in target:
        raise BadInput(f"--target={target}: must be {HERE}, or as --target=list shows")
    machine = parse_target(target)
    compiler_version(machine)
    return environment(machine)


def find_kernels(
    target: str, names: Sequence[str], show: Callable[[int, int, str], object]
) -> Iterator[KernelRow]:
    """Yield the row of each operation on a machine once it is known.

    Args:
      target: of --target, or HERE.
      names: the operations; empty for all.
      show: gets how many operations are done, of how many, and which is next.

    Raises:
      BadInput: an unknown machine, or no compiler for it here.
      RunFailed: the compiler does not start.
    """
    variables = variables_for(target)
    left, num_done = [*names], 0
    while left or not num_done:
        asked = [f"--operation={','.join(left)}"] if left else []
        command = [sys.executable, "-m", "jaxbench.kernels", f"--target={target}", *asked]
        with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
            result, log = pathlib.Path(folder, "result"), pathlib.Path(folder, "log")
            result.touch()
            child = Child(command, log, variables=variables | {RESULT_VARIABLE: str(result)})
            ended, num_read, since_last, reason = None, 1, Stopwatch(), None
            try:
                while ended is None:
                    ended = child.wait()
                    if since_last.elapsed_s() > _LONGEST_S:
                        child.end()
                        reason = f"took longer than {_LONGEST_S:g} s"
                    lines = result.read_text().split("\n")[:-1]  # the last one is not complete
                    for line in lines[num_read:]:
                        yield KernelRow(**json.loads(line))
                    if len(lines) > num_read:
                        num_done += len(lines) - num_read
                        num_read, since_last = len(lines), Stopwatch()
                    if lines:
                        begun = json.loads(lines[0])
                        left = begun["operations"][num_read - 1 :]
                        show(num_done, num_done + len(left), (left or [""])[0])
            finally:
                child.end()
        if ended.exit_code == 2:
            raise BadInput(ended.reason)
        if not lines:
            raise RunFailed(f"{target}: {ended.reason or 'no answer'}")
        # It crashed or hung with the first that is left, or ended without any.
        if left and (ended.exit_code or num_read == 1):
            yield _row(begun, left.pop(0), refused=reason or ended.reason or "no answer")
            num_done += 1


def write_rows(target: str, names: Sequence[str]) -> None:
    """Compile, and on this machine time, each operation; `find_kernels` starts this in a child."""
    here = target == HERE
    device: Any = jax.devices()[0] if here else create_devices(parse_target(target))[0]
    listed, no_fused = operations_on(device)
    begun = {
        "operations": [name for name in OPERATIONS if name in names or not names],
        "target": target,
        "device_kind": device.device_kind,
        "compiler": f"jaxlib {installed_version('jaxlib')}"
        if here
        else compiler_version(parse_target(target)),
        "jax": jax.__version__,
    }
    with open(os.environ[RESULT_VARIABLE], "a", buffering=1) as file:
        print(json.dumps(begun), file=file)
        host = HostReader()
        for name in begun["operations"]:
            facts: dict[str, Any] = {}
            try:
                if (operation := listed.get(name)) is None:
                    raise BadInput(no_fused)
                reference = listed[PRODUCT if operation.macs else COPY]
                facts |= _describe(operation, reference, device)
                facts["chosen"] = "on the device" if here else "without timing"
                if here:
                    _others_percent(host)
                    facts |= _time(operation, reference, device)
                    facts["other_cpu_percent"] = _others_percent(host)
            except BadInput as error:
                facts["refused"] = str(error)
            except Exception as error:  # a compiler raises errors of any kind
                facts["refused"] = f"{type(error).__name__}: {first_line(error)}"
            print(json.dumps(vars(_row(begun, name, **facts))), file=file)
            if here and device.platform != "cpu" and facts.get("refused"):
                return  # a device that has failed may fail for all others in this process


def _others_percent(host: HostReader) -> Any:
    """Return what other processes took of the host's processor since the last call, in percent."""
    [reading] = host.read()
    return reading.values.get("other_cpu_percent")


def _row(begun: Mapping[str, Any], operation: str, **facts: Any) -> KernelRow:
    identity = {name: begun[name] for name in ("target", "device_kind", "compiler", "jax")}
    command = f"jaxbench kernels --target={begun['target']} --operation={operation}"
    return KernelRow(operation=operation, **identity, **facts, command=command)


def _describe(operation: Operation, reference: Operation, device: Any) -> dict[str, Any]:
    """Return what the compiler makes of an operation, as fields of a `KernelRow`."""
    text = compile_operation(operation, device).as_text()
    kernels = read_kernels(text, device.platform, operation.macs)
    facts = {
        "found": kernels.found,
        "calls": _in_words(kernels),
        "kernels": kernels.kernels,
        "operands": kernels.operands or None,
        "asked": operation.multiplies if operation.macs else None,
        "factor": kernels.factor,
    }
    if device.platform == "gpu":
        other = compile_operation(operation, device, triton=False).as_text()
        without = read_kernels(other, device.platform, operation.macs)
        facts |= {"found_without_triton": without.found, "calls_without_triton": _in_words(without)}
    cycles = count_calls(text).estimated_cycles
    if cycles and operation.macs and kernels.found != LIBRARY:
        of_reference = count_calls(compile_operation(reference, device).as_text()).estimated_cycles
        facts["estimated_fraction"] = operation.macs / cycles / (reference.macs / of_reference)
        facts["fraction_of"] = reference.name
    return facts


def _in_words(kernels: Kernels) -> str | None:
    return ", ".join(f"{count} x {name}" for name, count in kernels.calls.items()) or None


def _time(operation: Operation, reference: Operation, device: jax.Device) -> dict[str, Any]:
    """Return the times of an operation on this machine, as fields of a `KernelRow`."""
    call_s, fraction = time_beside(operation, reference, device, rounds=_ROUNDS, window_s=_WINDOW_S)
    time_us = call_s.map(lambda value: 1e6 * value)
    return time_us.fields("time_us") | fraction.fields("fraction") | {"fraction_of": reference.name}
