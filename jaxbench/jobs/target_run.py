"""Record what a compiler says of a machine that is not here: --target with memory or scaling.

The records have the target's devices, and the mode `compile`: nothing is measured.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxbench.clock import Clock
from jaxbench.config import Config, Experiment
from jaxbench.distributed.mesh import DataMesh
from jaxbench.errors import BadInput, CompilerFailed, DoesNotFit
from jaxbench.geometry import batch_multiple
from jaxbench.hardware.targets.target import Target, smaller_targets
from jaxbench.jobs.ask_compiler import Answer, ask_compiler
from jaxbench.jobs.runner import JobResult, Measurement, run_job
from jaxbench.jobs.setup import RunContext
from jaxbench.jobs.targets import check_target
from jaxbench.records.recorder import Recorder
from jaxbench.records.run_dir import check_workdir
from jaxbench.records.schema import CompileSummary, TargetRecord
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.targets import compiled_facts, target_table


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
) -> JobResult:
    """Compile the training step for a target; the run's status says whether it fits.

    Args:
      config, workdir, console: see `setup_job`.
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
) -> JobResult:
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
) -> JobResult:
    check_workdir(workdir, config.name)
    console = console or create_console()
    config = config.for_all_devices()
    # No device is used here. JAX would look for all, and its plugins complain where none are.
    jax.config.update("jax_platforms", "cpu")
    try:
        mesh = DataMesh(machine.stand_ins(), config.parallelism)
        context = RunContext(config, Clock(), console, mesh)
        compilation = Compilation(context, arguments, machine, sizes)
        # A machine that its compiler does not know ends the run before anything is written.
        compilation.ask(0)
        return run_job(context, compilation, workdir, telemetry_s=0.0)
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
