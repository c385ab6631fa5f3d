"""Compile an experiment for a machine that is not here: --target with --mode=memory or scaling.

The process runs in the variables of `topology.environment`. The records have the target's devices,
and the mode `compile`: nothing is measured.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.clock import Clock
from jaxbench.config import Config, Experiment
from jaxbench.errors import DoesNotFit
from jaxbench.hardware.targets.target import Target, smaller_targets
from jaxbench.jobs.runner import JobResult, Measurement, run_job
from jaxbench.jobs.setup import RunContext, describe_program
from jaxbench.jobs.target_step import build_for_target, compile_program
from jaxbench.jobs.targets import check_target
from jaxbench.records.recorder import Recorder
from jaxbench.records.run_dir import check_workdir
from jaxbench.records.schema import CompileSummary, TargetRecord
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.targets import target_table
from jaxbench.training.program import Program


def compile_memory(
    config: Experiment, workdir: str | None = None, console: Console | None = None, *, target: str
) -> JobResult:
    """Compile the training step for a target; the run's status says whether it fits.

    Args:
      config, workdir, console: see `setup_job`.
      target: the machine's name.

    Raises:
      BadInput: see `check_target`.
      DoesNotFit: the compiler refuses the step, or its estimate is more than there is.
    """
    machine = check_target(config, target)
    return _run(config, workdir, console, machine, functools.partial(TargetMemory, machine))


def compile_scaling(
    config: Experiment,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    target: str,
    scaling: str = "both",
) -> JobResult:
    """Compile the training step for ever more devices of a target, up to all.

    Args:
      config, workdir, console, target: see `compile_memory`.
      scaling: weak | strong | both, see `measure_scaling`.

    Raises:
      BadInput: see `check_target`.
    """
    machine = check_target(config, target)
    kinds = ("weak", "strong") if scaling == "both" else (scaling,)
    return _run(config, workdir, console, machine, functools.partial(TargetScaling, machine, kinds))


def _run(
    config: Config,
    workdir: str | None,
    console: Console | None,
    target: Target,
    measurement: Callable[[Program, RunContext], "_TargetMeasurement"],
) -> JobResult:
    check_workdir(workdir, config.name)
    console = console or create_console()
    try:
        clock = Clock()
        program = build_for_target(config, target, clock)
        context = RunContext(config, clock, console, program.mesh)
        return run_job(context, measurement(program, context), workdir, telemetry_s=0.0)
    finally:
        console.close()


class _TargetMeasurement(Measurement):
    mode = "compile"

    def __init__(self, target: Target, program: Program, context: RunContext):
        self._target, self._program, self._context = target, program, context

    def document(self) -> dict[str, Any]:
        return {"target": self._target.name} | describe_program(self._program)

    def _compile(self, program: Program, target: Target) -> TargetRecord:
        what = f"compiling for {target.name}, batch {program.config.batch_size:,}"
        with self._context.console.phase(what):
            return compile_program(program, target, self._context.clock)

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


class TargetMemory(_TargetMeasurement):
    """The training step on the whole machine."""

    def measure(self, recorder: Recorder) -> None:
        record = self._compile(self._program, self._target)
        recorder.write(record)
        for line in target_table([record]):
            self._context.console.say(line)
        if record.fits:
            return
        if record.refusal:
            raise DoesNotFit(f"{record.target}: {record.refusal}")
        raise DoesNotFit(
            f"{record.target}: the step needs {record.needed_bytes / 2**30:.2f} GiB on each device "
            f"and may use {record.device_memory_bytes / 2**30:.2f}"
        )


class TargetScaling(_TargetMeasurement):
    """The training step on ever more devices; a size on which it does not fit is a result."""

    def __init__(self, target: Target, kinds: Sequence[str], program: Program, context: RunContext):
        super().__init__(target, program, context)
        self._kinds = kinds

    def document(self) -> dict[str, Any]:
        scaling = "both" if len(self._kinds) > 1 else self._kinds[0]
        return super().document() | {"scaling": scaling}

    def measure(self, recorder: Recorder) -> None:
        records: list[TargetRecord] = []
        for kind in self._kinds:
            base = None
            for target in smaller_targets(self._target):
                config = self._context.config
                if kind == "weak":
                    share = config.batch_size // self._target.num_devices
                    config = dataclasses.replace(config, batch_size=share * target.num_devices)
                program = build_for_target(config, target, self._context.clock)
                record = dataclasses.replace(self._compile(program, target), scaling=kind)
                base = base or record
                records.append(dataclasses.replace(record, **_efficiency(record, base)))
                recorder.write(records[-1])
        for line in target_table(records):
            self._context.console.say(line)


def _efficiency(record: TargetRecord, base: TargetRecord) -> dict[str, float]:
    """Return the scaling efficiency against the smallest size, from the least times of a step."""
    if not (_known(record) and _known(base)):
        return {}
    own, first = record.ceiling["least_s"], base.ceiling["least_s"]
    step_s, links_s = max(own["compute"], own["memory"]), own.get("links", 0.0)
    # The smallest size may have two devices: a chip of TPU v2 has.
    per_image_s = (max(first["compute"], first["memory"]) + first.get("links", 0.0)) * (
        base.num_devices / base.batch_size
    )
    images = record.batch_size / record.num_devices
    return {
        "efficiency_no_overlap": per_image_s * images / (step_s + links_s),
        "efficiency_full_overlap": per_image_s * images / max(step_s, links_s),
    }


def _known(record: TargetRecord) -> bool:
    return bool(record.ceiling) and {"compute", "memory"} <= record.ceiling["least_s"].keys()
