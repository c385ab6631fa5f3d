"""Compile a training step for a machine that is not here: --target with memory or scaling.

`compile_for_target` runs in a child process, see `modes/targets.py`. The modes record its answers,
with the target's devices and the mode `compile`. Nothing is measured. What the compiler says is
`compiled`; a ceiling on the rate is `predicted` from it and the machine's peak rates.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxbench.analysis.ceiling import all_reduced_bytes, ceiling, least_traffic
from jaxbench.batch_layout import BatchLayout, batch_multiple
from jaxbench.clock import Clock
from jaxbench.config import Config, Experiment
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.errors import BadInput, CompilerFailed, DoesNotFit, first_line
from jaxbench.fields import without_unused
from jaxbench.hardware.peak_table import find_bandwidth, find_peak
from jaxbench.hardware.targets.target import Target, smaller_targets
from jaxbench.hardware.targets.topology import compiler_version, create_devices
from jaxbench.modes.describe import list_layers
from jaxbench.modes.runner import Measurement, RunResult, run_mode
from jaxbench.modes.setup import RunContext, describe_program
from jaxbench.modes.targets import RESULT_VARIABLE, Answer, ask_compiler, check_target, read_refusal
from jaxbench.parallel.mesh import DataMesh
from jaxbench.precision import get_precision
from jaxbench.records.recorder import Recorder
from jaxbench.records.run_dir import check_workdir
from jaxbench.records.schema import CompileRecord, CompileSummary, TargetRecord
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.targets import compiled_facts, target_table
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_with_text
from jaxbench.training.program import Program
from jaxbench.xla.hlo import count_work


def devices_of(target: Target) -> tuple[Any, ...]:
    """Return the devices of a target, for a process in the variables of `topology.environment`.

    Raises:
      BadInput: the compiler is missing or does not know the machine.
    """
    return create_devices(target, find_bandwidth(target.kind))


def compile_for_target(
    config: Config, target: Target, clock: Clock
) -> tuple[TargetRecord, dict[str, Any]]:
    """Return what the compiler says of a training step on a target, and `Answer`'s `network`.

    For a process in the variables of `topology.environment`.

    Args:
      config: a valid experiment.
      target: the machine.
      clock: gets the phases `devices`, `build`, `lower` and `compile`.

    Raises:
      BadInput: the compiler is missing or does not know the machine, or the batch does not split
        over its devices.
    """
    config, _ = without_unused(config.for_all_devices())
    with clock.phase("devices"):
        devices = devices_of(target)
    layout = BatchLayout.create(config, len(devices))
    with get_precision(config.precision).enabled():
        with clock.phase("build"):
            mesh = DataMesh(devices, config.parallelism)
            program = build_program(config, mesh, layout, steps_per_epoch=1)
            program.check()
        network = describe_program(program) | {
            "layers": list_layers(program),
            "training_flops_per_image": program.training_flops,
        }
        return _compile(program, target, clock), network


def write_answer(config: Config, name: str) -> None:
    """Compile in this process, which `ask_compiler` started, and write the answer.

    Raises:
      BadInput: the compiler does not know this machine.
    """
    answer: dict[str, Any] = {"record": None, "network": {}, "failed": None}
    try:
        record, answer["network"] = compile_for_target(config, check_target(config, name), Clock())
        answer["record"] = record.to_json()
    except BadInput:
        raise
    except Exception as error:  # a compiler raises errors of any kind
        answer["failed"] = f"{type(error).__name__}: {first_line(error)}"
    pathlib.Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(answer))


def _compile(program: Program, target: Target, clock: Clock) -> TargetRecord:
    config, layout = program.config, program.layout
    record = TargetRecord(
        target=target.name,
        origin="compiled",
        compiler=compiler_version(target),
        device_kind=target.kind,
        num_devices=layout.num_devices,
        batch_size=config.batch_size,
        batch_per_device=layout.batch_per_device,
        precision=config.precision,
        device_memory_bytes=target.usable_bytes,
        fits=False,
    )
    labels = program.task.label_shape(config.data.example_shape)
    args = abstract_args(config, layout, labels, program.precision.param_dtype)
    try:
        compiled, text = compile_with_text(
            "train_step",
            program.train_step,
            program.abstract_placed_state(),
            *args,
            clock=clock,
        )
    except jax.errors.JaxRuntimeError as error:
        refusal = " ".join(str(error).split())
        found = read_refusal(refusal)
        if found is None:
            raise
        needed_bytes = found.asked_bytes if found.kind == "memory" else None
        return dataclasses.replace(record, refusal=refusal, needed_bytes=needed_bytes)
    return dataclasses.replace(record, **_describe(program, target, compiled, text))


def _describe(
    program: Program, target: Target, compiled: CompileRecord, text: str
) -> dict[str, Any]:
    cache_bytes = _cache_bytes(target)
    work = count_work(text, _activation_sizes(program), cache_bytes)
    memory = compiled.memory
    return {
        # A TPU's compiler has refused what does not fit.
        "fits": target.platform == "tpu" or memory["total_bytes"] <= target.usable_bytes,
        "needed_bytes": memory["total_bytes"],
        "lower_s": compiled.lower_s,
        "compile_s": compiled.compile_s,
        "memory": memory,
        "state_donated": memory["alias_bytes"] >= program.state_bytes_per_device(),
        "collectives": compiled.collectives or {},
        "flops_per_image": program.training_flops,
        "custom_calls": work["custom_calls"],
        "transposes": work["transposes"],
        "converts": work["converts"],
        "moved_bytes": work["moved_bytes"],
        "bytes_lower_bound": program.facts.bytes_lower_bound(
            program.layout.batch_per_device, program.state_bytes_per_device()
        ),
        "ceiling": _ceiling(
            program,
            target,
            least_traffic(memory, work["uncached_bytes"], cache_bytes),
            all_reduced_bytes(compiled.collectives or {}, program.layout.num_devices),
        ),
    }


def _ceiling(
    program: Program, target: Target, moved_bytes: int, exchanged_bytes: int
) -> dict[str, Any]:
    layout, precision = program.layout, program.main_precision
    peak = find_peak(target.kind, precision)
    fast_rate = fast_convolution_rate(target, precision)
    found = ceiling(
        images_per_step=layout.images_per_step,
        flops_per_device=program.least_training_flops(fast_rate) * layout.batch_per_device,
        bytes_per_device=moved_bytes,
        exchanged_bytes=exchanged_bytes,
        num_devices=layout.num_devices,
        peak_flops_per_s=peak.flops_per_s if peak else None,
        memory_bytes_per_s=find_bandwidth(target.kind),
        link_bytes_per_s=target.link_bytes_per_s,
    )
    origins = {"origin": "predicted", "peak": peak and peak._asdict(), "link": target.link}
    return found | origins | {"least_moved_bytes": moved_bytes}


def fast_convolution_rate(target: Target, precision: str) -> float:
    """Return how fast a target may compute Winograd's or Fourier's convolutions, in peaks.

    cuDNN has them for fp32. They run outside of tensor cores, at the rate of IEEE fp32.
    """
    peak = find_peak(target.kind, precision)
    ieee = find_peak(target.kind, "fp32", "highest")
    if target.platform != "gpu" or precision != "fp32" or not (peak and ieee):
        return 0.0
    return ieee.flops_per_s / peak.flops_per_s


def _cache_bytes(target: Target) -> int:
    """Return the size of the cache between a GPU's cores and its memory."""
    return int(float(target.facts.get("l2_mib", 0)) * 2**20)


def _activation_sizes(program: Program) -> set[int]:
    """Return how many values the activations have in a step on one device.

    A parameter of as many values cannot be told from an activation, so that size is left out.
    """
    layout = program.layout
    images = layout.batch_per_device // layout.gradient_accumulation_steps
    shapes = [program.config.data.example_shape]
    shapes += [row["output_shape"] for row in list_layers(program)]
    rank = 2 if program.config.data.sequence_length else 3
    sizes = {images * math.prod(shape) for shape in shapes if len(shape) == rank}
    return sizes - {leaf.size for leaf in jax.tree.leaves(program.abstract_train_state().params)}


@dataclasses.dataclass(frozen=True)
class Size:
    """A step to compile: weak | strong or None, the machine, and the global batch."""

    scaling: str | None
    target: Target
    batch_size: int


def compile_memory(
    config: Experiment,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    arguments: Sequence[str],
    target: str,
) -> RunResult:
    """Compile the training step for a target; the run's status says whether it fits.

    Args:
      config, workdir, console: see `prepare_run`.
      arguments: see `ask_compiler`.
      target: the machine's name.

    Raises:
      BadInput: see `check_target`.
      DoesNotFit: the compiler refuses the step, or its estimate is more than there is.
      CompilerFailed: it crashed, or failed otherwise.
    """
    machine = check_target(config, target)
    sizes = [Size(None, machine, config.batch_size)]
    return _run(config, workdir, console, arguments, machine, sizes)


def compile_scaling(
    config: Experiment,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    arguments: Sequence[str],
    target: str,
    scaling: str = "both",
) -> RunResult:
    """Compile the training step for ever more devices of a target, up to all.

    A size on which it does not fit is a result.

    Args:
      config, workdir, console, arguments, target: see `compile_memory`.
      scaling: weak | strong | both, see `measure_scaling`.

    Raises:
      BadInput: see `check_target`.
      CompilerFailed: it crashed, or failed otherwise, for one of the sizes.
    """
    machine = check_target(config, target)
    kinds = ("weak", "strong") if scaling == "both" else (scaling,)
    sizes = [size for kind in kinds for size in _sizes(config, machine, kind)]
    return _run(config, workdir, console, arguments, machine, sizes)


def _sizes(config: Config, machine: Target, kind: str) -> Iterator[Size]:
    """Yield the sizes of a machine, but those over which the batch does not divide."""
    share = config.batch_size // machine.num_devices
    for target in smaller_targets(machine):
        batch_size = share * target.num_devices if kind == "weak" else config.batch_size
        if batch_size % batch_multiple(config, target.num_devices) == 0:
            yield Size(kind, target, batch_size)


def _run(
    config: Config,
    workdir: str | None,
    console: Console | None,
    arguments: Sequence[str],
    machine: Target,
    sizes: Sequence[Size],
) -> RunResult:
    check_workdir(workdir, config.name)
    console = console or create_console()
    config, unused = without_unused(config.for_all_devices())
    # No device is used here. JAX would look for all, and its plugins complain where none are.
    jax.config.update("jax_platforms", "cpu")
    try:
        mesh = DataMesh(machine.stand_ins(), config.parallelism)
        context = RunContext(config, Clock(), console, mesh, unused)
        compilation = Compilation(context, arguments, machine, sizes)
        # A machine that its compiler does not know ends the run before anything is written.
        compilation.ask(0)
        return run_mode(context, compilation, workdir, telemetry_s=0.0)
    finally:
        console.close()


class Compilation(Measurement):
    """The training step, compiled for each size in turn."""

    mode = "compile"

    def __init__(
        self,
        context: RunContext,
        arguments: Sequence[str],
        machine: Target,
        sizes: Sequence[Size],
    ):
        self._context, self._arguments = context, arguments
        self._machine, self._sizes = machine, sizes
        self._answers: list[Answer] = []

    def document(self) -> dict[str, Any]:
        kinds = {size.scaling for size in self._sizes}
        scaling = "both" if len(kinds) > 1 else kinds.pop()
        known = {"scaling": scaling} if scaling else {}
        network = {name: v for name, v in self.ask(0).network.items() if name != "layers"}
        return {"target": self._machine.name} | known | network

    def ask(self, place: int) -> Answer:
        """Return the compiler's answer for the size at this place, the next or an earlier one."""
        if place < len(self._answers):
            return self._answers[place]
        size = self._sizes[place]
        for answer, asked in zip(self._answers, self._sizes, strict=False):
            # Weak and strong scaling end in the same step.
            if dataclasses.replace(asked, scaling=size.scaling) == size:
                self._answers.append(answer)
                return answer
        what = f"compiling for {size.target.name}, batch {size.batch_size:,}"
        with self._context.console.phase(what), self._context.clock.phase("compile"):
            batch = f"--experiment.batch_size={size.batch_size}"
            try:
                answer = ask_compiler([*self._arguments, batch], size.target)
            except BadInput as error:
                if place == 0:
                    raise
                answer = Answer(None, {}, str(error))
        self._answers.append(answer)
        return answer

    def measure(self, recorder: Recorder) -> None:
        records: list[TargetRecord] = []
        failed = []
        for place, size in enumerate(self._sizes):
            answer = self.ask(place)
            if answer.record is None:
                failed.append(f"{size.target.name}: {answer.failed}")
                continue
            record = dataclasses.replace(answer.record, scaling=size.scaling)
            alike = [one for one in records if one.scaling == size.scaling]
            base = alike[0] if alike else record
            records.append(dataclasses.replace(record, **_efficiency(record, base)))
            recorder.write(records[-1])
        for line in [*target_table(records), *compiled_facts(records[-1:])]:
            self._context.console.say(line)
        if failed:
            raise CompilerFailed("; ".join(failed))
        if self._sizes[0].scaling is None and not records[0].fits:
            raise DoesNotFit(f"{records[0].target}: {_why(records[0])}")

    def summarize(self, status: str, records: Sequence[TargetRecord]) -> CompileSummary:
        """Return the figures of the whole machine, which comes last."""
        if not records:
            return CompileSummary(status=status)
        last = records[-1]
        return CompileSummary(
            status=status,
            planned_bytes_per_device=last.needed_bytes,
            device_memory_bytes=last.device_memory_bytes,
            ceiling_images_per_s=last.ceiling and last.ceiling["images_per_s"],
            ceiling_bound_by=last.ceiling and last.ceiling["bound_by"],
            compile_s=sum((r.lower_s or 0.0) + (r.compile_s or 0.0) for r in records) or None,
        )


def _why(record: TargetRecord) -> str:
    if record.refusal:
        return record.refusal
    return (
        f"the step needs {record.needed_bytes / 2**30:.2f} GiB on each device and may use "
        f"{record.device_memory_bytes / 2**30:.2f}"
    )


def _efficiency(record: TargetRecord, base: TargetRecord) -> dict[str, float]:
    """Return the scaling efficiency against the smallest size, from the least times of a step."""
    if not (_known(record) and _known(base)):
        return {}
    own, first = _step_and_links_s(record), _step_and_links_s(base)
    images = record.batch_per_device / base.batch_per_device
    # The smallest size may have links too, and overlaps alike: a chip of TPU v2 is two devices.
    return {
        "efficiency_no_overlap": images * sum(first) / sum(own),
        "efficiency_full_overlap": images * max(first) / max(own),
    }


def _step_and_links_s(record: TargetRecord) -> tuple[float, float]:
    least_s = record.ceiling["least_s"]
    return max(least_s["compute"], least_s["memory"]), least_s.get("links", 0.0)


def _known(record: TargetRecord) -> bool:
    return bool(record.ceiling) and {"compute", "memory"} <= record.ceiling["least_s"].keys()
