"""Measure how a training step scales over devices: --mode=scaling.

A trial is one training step on some devices with one batch. Trials and all-reduces of the
gradient's size take turns, so that drift hits all alike. A trial that does not fit in memory is
recorded as lost, and the others continue.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxbench.analysis.scaling_model import efficiency, split
from jaxbench.analysis.statistics import dependent, held_up
from jaxbench.clock import Stopwatch, duration
from jaxbench.config import Config
from jaxbench.distributed.mesh import DataMesh, create_mesh, mixed_devices
from jaxbench.errors import BadInput, MixedDevices
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.jobs import scaling_summary
from jaxbench.jobs.runner import JobResult, Measurement, run_job
from jaxbench.jobs.scaling_trials import ScalingTrial, describe_all_reduce, job_on
from jaxbench.jobs.setup import Job, check_device_counts, setup_job, with_feed
from jaxbench.jobs.windows import falling_loss_warnings
from jaxbench.microbench.collectives import Collective
from jaxbench.microbench.interleaved import Interleaved, in_turn, unsettled_warnings
from jaxbench.records.recorder import Recorder, classify
from jaxbench.records.schema import (
    AllReduceRecord,
    CompileRecord,
    DeviceRecord,
    Record,
    ScalingRecord,
    ScalingSummary,
)
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.describe import scaling_table


def measure_scaling(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    scaling: str = "both",
    device_counts: Sequence[int] = (),
    link_gb_per_s: float | None = None,
    rounds: int = 11,
    window_s: float = 1.0,
    telemetry_s: float = INTERVAL_S,
) -> JobResult:
    """Measure an experiment's training step on 1 to N devices.

    Args:
      config, workdir, console, rounds, window_s, telemetry_s: see `measure_throughput`.
      scaling: weak: each device has `batch_size / N` images, on any number of devices. strong: all
        together have `batch_size`. both.
      device_counts: numbers of local devices, the first ones; the largest is N. Empty takes 1, 2, 4
        ... and all.
      link_gb_per_s: the bandwidth of the links for predictions, in 1e9 bytes a second; None takes
        what the all-reduce over most devices was measured to use.

    Raises:
      BadInput: before anything is written.
      Diverged: a loss is no longer finite.
      MixedDevices: the devices are of several kinds and the backend does not run them together;
        each one alone has been measured by then.
    """
    config = with_feed(config, "synthetic")
    if config.replicas == "independent":
        raise BadInput(
            "--mode=scaling with replicas='independent': models that exchange nothing have nothing "
            "to scale; replicas=data_parallel goes with it"
        )
    mesh = create_mesh(config)
    counts = _powers_of_two(mesh)
    if device_counts:
        counts = check_device_counts("--device_counts", device_counts, mesh)
    config = dataclasses.replace(config, num_devices=counts[-1])
    with setup_job(config, workdir, console) as job:
        benchmark = ScalingBenchmark(job, scaling, counts, link_gb_per_s, rounds, window_s)
        return run_job(job, benchmark, workdir, telemetry_s=telemetry_s)


def _powers_of_two(mesh: DataMesh) -> list[int]:
    """Return 1, 2, 4 ... and all of the mesh's devices."""
    most = mesh.num_devices
    return sorted({most, *(2**power for power in range(most.bit_length()))} - {0})


class ScalingBenchmark(Measurement):
    mode = "scaling"
    csv_record = ScalingRecord

    def __init__(
        self,
        job: Job,
        scaling: str,
        counts: Sequence[int],
        link_gb_per_s: float | None,
        rounds: int,
        window_s: float,
    ):
        self._job = job
        self._flags = {
            "rounds": rounds,
            "scaling": scaling,
            "device_counts": counts,
            "link_gb_per_s": link_gb_per_s,
        }
        self._rounds, self._link_gb_per_s = rounds, link_gb_per_s
        self._mixed: MixedDevices | None = None
        params = jax.tree.leaves(job.program.abstract_train_state().params)
        self._gradient_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in params)
        devices, geometry = job.mesh.devices, job.program.geometry
        share, whole = geometry.batch_per_device, geometry.global_batch
        # Weak and strong meet on all devices, weak and alone on the first: measured once.
        trial = functools.cache(lambda *on: ScalingTrial(job_on(*on, job), window_s))
        self._scaled = {
            (kind, count): trial(devices[:count], share * count if kind == "weak" else whole)
            for kind in ("weak", "strong")
            if scaling in (kind, "both")
            for count in counts
        }
        self._alone = [trial((device,), share) for device in devices]
        self._trials = list(dict.fromkeys([*self._scaled.values(), *self._alone]))
        meshes = [dataclasses.replace(job.mesh, devices=devices[:n]) for n in counts if n > 1]
        self._all_reduces = [
            Collective(mesh, "all_reduce", self._gradient_bytes, window_s) for mesh in meshes
        ]

    def document(self) -> dict[str, Any]:
        return self._flags

    def measure(self, recorder: Recorder) -> None:
        for record in self._start():
            recorder.write(record)
        try:
            self._warm_up()
            self._measure_windows()
            with (
                self._job.clock.phase("compare"),
                self._job.console.phase("comparing the replicas"),
            ):
                for trial in self._trials:
                    if trial.status == "done":
                        trial.compare_replicas()
        finally:
            # However it ends, what has been measured until then is recorded.
            records = list(self._describe())
            scaled = [record for record in records if isinstance(record, ScalingRecord)]
            for line in scaling_table(scaled) if scaled else ():
                self._job.console.say(line)
            for record in records:
                recorder.write(record)
        if self._mixed:
            raise self._mixed

    def _start(self) -> Iterator[CompileRecord]:
        """Compile everything and take first steps; yield the compile records."""
        job = self._job
        with job.clock.phase("init"), job.console.phase("initialising the parameters"):
            initial = jax.device_get(job.program.create_train_state())
        for trial in self._trials:
            if record := self._unless_lost(trial, functools.partial(trial.start, initial)):
                yield record
        if self._mixed:
            self._all_reduces = []
        for all_reduce in self._all_reduces:
            with job.console.phase(f"compiling the {all_reduce.name}"):
                all_reduce.start()

    def _unless_lost(self, trial: ScalingTrial, act: Callable[[], Any]) -> Any:
        """Give up a trial that does not fit in memory, or whose devices do not run together."""
        try:
            return act()
        except Exception as error:
            mixed = mixed_devices(trial.devices, error)
            self._mixed = self._mixed or mixed
            status, reason = classify(mixed or error)
            if status != "oom" and not mixed:
                raise
            trial.give_up(status, reason)
            self._job.console.say(f"{trial.name}: {status}")
            return None

    def _turns(self) -> list[Interleaved]:
        return [*(trial for trial in self._trials if trial.status == "done"), *self._all_reduces]

    def _warm_up(self) -> None:
        with self._job.clock.phase("warm_up"):
            turns = self._turns()
            for place, turn in enumerate(turns):
                self._job.console.progress("warming up", place, len(turns), turn.name)
                if isinstance(turn, ScalingTrial):
                    self._unless_lost(turn, functools.partial(turn.warm_up, self._rounds))
                else:
                    turn.warm_up(self._rounds)

    def _measure_windows(self) -> None:
        turns = self._turns()
        total, watch = self._rounds * len(turns), Stopwatch()
        with self._job.clock.phase("measure"):
            for number in range(self._rounds):
                for place, turn in enumerate(in_turn(turns, number), 1):
                    turn.measure()
                    done = number * len(turns) + place
                    left_s = watch.elapsed_s() / done * (total - done)
                    status = f"windows  {duration(left_s)} left"
                    self._job.console.progress("measuring", done, total, status)

    def _describe(self) -> Iterator[Record]:
        """Yield the records of what has been measured."""
        for (kind, count), trial in self._scaled.items():
            if not trial.rate and trial.status == "done":
                continue  # the run ended before its turns
            base = self._scaled.get((kind, 1)) or (self._alone[0] if kind == "weak" else None)
            yield ScalingRecord(
                scaling=kind,
                **trial.describe(),
                **efficiency(count, trial.rate, base.rate if base else None),
                gradient_bytes=self._gradient_bytes,
                collectives=trial.collectives,
                replicas_equal_after_steps=None if trial.unequal is None else not trial.unequal,
                unequal=trial.unequal,
            )
        for trial in self._alone:
            if trial.rate:
                [device] = trial.devices
                kind = device.device_kind
                yield DeviceRecord(device_id=device.id, device_kind=kind, **trial.describe())
        for all_reduce in self._all_reduces:
            if all_reduce.windows_s:
                weak = self._scaled.get(("weak", all_reduce.mesh.num_devices))
                weak_step_s = weak.describe().get("step_s") if weak else None
                yield describe_all_reduce(all_reduce, weak_step_s)

    def summarize(self, status: str, records: Sequence[Record]) -> ScalingSummary:
        devices = self._job.mesh.devices
        compiled, scaled, alone, all_reduces = (
            [record for record in records if isinstance(record, kind)]
            for kind in (CompileRecord, ScalingRecord, DeviceRecord, AllReduceRecord)
        )
        turns = [*self._trials, *self._all_reduces]
        warmups = {turn.name: (turn.warmup, turn.warmup.calls) for turn in turns if turn.warmup}
        falling = (falling_loss_warnings(trial.losses, trial.name) for trial in self._trials)
        config = self._job.config
        predicts = config.parallelism != "fsdp"
        unlike = (dependent(f"{t.name}: windows", t.windows_s) for t in turns)
        late = (held_up(f"{t.name}: window", dict(enumerate(t.windows_s, 1))) for t in turns)
        return ScalingSummary(
            status=status,
            efficiencies=scaling_summary.efficiencies(scaled),
            exchange=scaling_summary.exchange(compiled, self._gradient_bytes),
            devices=split(alone) if len(alone) == len(devices) else None,
            predictions=scaling_summary.predictions(
                alone, all_reduces, devices[0], self._gradient_bytes, self._link_gb_per_s
            )
            if predicts
            else [],
            tokens_per_image=config.data.sequence_length or None,
            invalid=scaling_summary.failed_checks([*scaled, *alone], devices),
            warnings=[
                *scaling_summary.efficiency_warnings(scaled),
                *scaling_summary.device_warnings(devices),
                *([] if predicts else [scaling_summary.NOTHING_PREDICTED]),
                *unsettled_warnings(warmups),
                *(warning for warnings in (*falling, *unlike, *late) for warning in warnings),
            ],
        )
