"""Measure how a training step scales over devices: --mode=scaling.

A trial is one training step on some devices with one batch. Trials and all-reduces of the
gradient's size take turns, so that drift hits all alike. A trial that does not fit in memory is
recorded as lost, and the others continue.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import msgspec

from jaxbench.analysis.rate import Estimate
from jaxbench.analysis.scaling_model import efficiency, predict, split
from jaxbench.batch_layout import BatchLayout
from jaxbench.clock import Stopwatch, rough_duration
from jaxbench.config import Config
from jaxbench.data.feeds.feed import create_feed
from jaxbench.errors import BadInput, RunFailed
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.system import available_cores
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.microbench.collectives import Collective
from jaxbench.microbench.interleaved import measure_in_turn, unsettled_warnings
from jaxbench.modes.runner import (
    PreparedRun,
    check_device_counts,
    prepare_run,
    record_run,
    with_feed,
)
from jaxbench.modes.windows import (
    StepWindows,
    falling_loss_warnings,
    window_warnings,
)
from jaxbench.parallel.mesh import create_mesh, mixed_devices, unequal_copies
from jaxbench.records.recorder import Recorder, classify
from jaxbench.records.validity import impossible
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.describe import scaling_table
from jaxbench.schema import (
    AllReduceRecord,
    CompileRecord,
    DeviceRecord,
    Record,
    ScalingRecord,
    ScalingSummary,
)
from jaxbench.train import TrainState, build_program

_PREDICTED_DEVICES = (8, 64, 256, 1024)
_RATE = ("images_per_s", "images_per_s_low", "images_per_s_high")
# The fields of each record that a summary repeats.
_REPEATED = ("scaling", "num_devices", "batch_size", "images_per_s")
_REPEATED += ("efficiency", "efficiency_low", "efficiency_high")


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
) -> Recorder:
    """Measure an experiment's training step on 1 to N devices; see `OPTIONS`.

    `device_counts` are the first ones of the local devices; the largest is N.

    Raises:
      BadInput: before anything is written.
      Diverged: a loss is no longer finite.
      RunFailed: the devices are of several kinds, and the backend does not run them together.
        Each single device has been measured.
    """
    config = with_feed(config, "synthetic")
    if config.replicas == "independent":
        raise BadInput(
            "--mode=scaling with replicas='independent': models that exchange nothing have nothing "
            "to scale; it needs replicas=data_parallel"
        )
    mesh = create_mesh(config)
    most = mesh.num_devices
    counts = device_counts or [most, *(2**power for power in range(most.bit_length()))]
    counts = check_device_counts("--device_counts", counts, mesh)
    config = dataclasses.replace(config, num_devices=counts[-1])
    with prepare_run(config, workdir, console) as setup:
        clock, console, devices = setup.clock, setup.console, setup.mesh.devices
        per_device, whole = setup.program.layout.batch_per_device, config.batch_size
        # Weak and strong meet on all devices, weak and alone on the first: measured once.
        trial_on = functools.cache(functools.partial(ScalingTrial, setup, window_s))
        scaled = {
            (kind, n): trial_on(devices[:n], per_device * n if kind == "weak" else whole)
            for kind in ("weak", "strong")
            if scaling in (kind, "both")
            for n in counts
        }
        alone = [trial_on((device,), per_device) for device in devices]
        trials: list[ScalingTrial] = list(dict.fromkeys([*scaled.values(), *alone]))
        meshes = [dataclasses.replace(setup.mesh, devices=devices[:n]) for n in counts if n > 1]
        gradient_bytes = setup.gradient_bytes
        all_reduces = [Collective(one, "all_reduce", gradient_bytes, window_s) for one in meshes]
        mixed: RunFailed | None = None  # why devices of several kinds do not run together
        with record_run(
            setup,
            "scaling",
            workdir,
            summarize=functools.partial(_summarize, setup, trials, all_reduces, link_gb_per_s),
            document={
                "rounds": rounds,
                "scaling": scaling,
                "device_counts": counts,
                "link_gb_per_s": link_gb_per_s,
            },
            csv_record=ScalingRecord,
            telemetry_s=telemetry_s,
        ) as recorder:
            with clock.phase("init"), console.phase("initialising the parameters"):
                initial = jax.device_get(setup.program.initial_state())
            try:
                for position, trial in enumerate(trials):
                    try:
                        recorder.write(trial.start(initial))
                        with clock.phase("warm_up"):
                            console.progress("warming up", position, len(trials), trial.name)
                            trial.warm_up(rounds)
                    except Exception as error:
                        # Lost: it does not fit in memory, or its devices do not run together.
                        trial_mixed = mixed_devices(trial.devices, error)
                        mixed = mixed or trial_mixed
                        status, reason = classify(trial_mixed or error)
                        if status != "oom" and not trial_mixed:
                            raise
                        trial.status, trial.reason = status, reason
                        trial.state = None  # frees the devices' memory
                        console.say(f"{trial.name}: {status}")
                if mixed:
                    all_reduces.clear()
                for all_reduce in all_reduces:
                    with console.phase(f"compiling the {all_reduce.name}"):
                        all_reduce.start()
                    with clock.phase("warm_up"):
                        all_reduce.warm_up(rounds)
                fitting = [trial for trial in trials if trial.status == "done"]
                watch = Stopwatch()

                def end_round(number: int) -> None:
                    left_s = watch.elapsed_s() / number * (rounds - number)
                    left = f"rounds  {rough_duration(left_s)} left"
                    console.progress("measuring", number, rounds, left)

                with clock.phase("measure"):
                    measure_in_turn([*fitting, *all_reduces], rounds, end_round=end_round)
                with clock.phase("compare"), console.phase("comparing the replicas"):
                    for trial in fitting:
                        if len(trial.devices) > 1:
                            trial.unequal = unequal_copies(trial.state)
                        trial.state = None  # frees the devices' memory
            finally:
                # However it ends, what has been measured until then is recorded.
                records = list(_describe(scaled, alone, all_reduces, gradient_bytes))
                rows = [record for record in records if isinstance(record, ScalingRecord)]
                for line in scaling_table(rows) if rows else ():
                    console.say(line)
                for record in records:
                    recorder.write(record)
            if mixed:
                raise mixed
    return recorder


def _describe(
    scaled: Mapping[tuple[str, int], "ScalingTrial"],
    alone: Sequence["ScalingTrial"],
    all_reduces: Sequence[Collective],
    gradient_bytes: int,
) -> Iterator[Record]:
    """Yield the records of what has been measured.

    Args:
      scaled: {(weak | strong, number of devices): trial}.
      alone: the trial of each device.
      all_reduces: of the gradient, on ever more devices.
    """
    fields = {trial: trial.describe() for trial in (*scaled.values(), *alone)}
    rates = {
        trial: Estimate(*(values[name] for name in _RATE))
        for trial, values in fields.items()
        if "images_per_s" in values
    }
    for (kind, count), trial in scaled.items():
        if trial not in rates and trial.status == "done":
            continue  # the run ended before the second window
        base = scaled.get((kind, 1)) or (alone[0] if kind == "weak" else None)
        base_rate = rates.get(base) if base else None
        yield ScalingRecord(
            scaling=kind,
            **fields[trial],
            **efficiency(count, rates.get(trial), base_rate).fields("efficiency"),
            gradient_bytes=gradient_bytes,
            collectives=trial.collectives,
            replicas_equal_after_steps=None if trial.unequal is None else not trial.unequal,
            unequal=trial.unequal,
        )
    for trial in alone:
        if trial in rates:
            [device] = trial.devices
            kind = device.device_kind
            yield DeviceRecord(device_id=device.id, device_kind=kind, **fields[trial])
    for all_reduce in all_reduces:
        if all_reduce.windows_s:
            count, time_s = all_reduce.mesh.num_devices, all_reduce.call_s()
            weak = scaled.get(("weak", count))
            weak_step_s = fields[weak].get("step_s") if weak else None
            yield AllReduceRecord(
                num_devices=count,
                bytes=all_reduce.num_bytes,
                **time_s.fields("all_reduce_s"),
                **all_reduce.bus_bytes_per_s().fields("bus_bytes_per_s"),
                share_of_weak_step=time_s.value / weak_step_s if weak_step_s else None,
                calls_per_window=all_reduce.calls_per_window,
                windows_s=all_reduce.windows_s,
            )


def _summarize(
    setup: PreparedRun,
    trials: Sequence["ScalingTrial"],
    all_reduces: Sequence[Collective],
    link_gb_per_s: float | None,
    status: str,
    records: Sequence[Record],
) -> ScalingSummary:
    config, devices = setup.config, setup.mesh.devices
    gradient_bytes = setup.gradient_bytes
    compiled = [record for record in records if isinstance(record, CompileRecord)]
    scaled = [record for record in records if isinstance(record, ScalingRecord)]
    alone = [record for record in records if isinstance(record, DeviceRecord)]
    reduced = [record for record in records if isinstance(record, AllReduceRecord)]
    warnings, predictions, exchange = efficiency_warnings(scaled), [], None
    if len(devices) == 1:
        warnings.append("one device: nothing was scaled")
    elif devices[0].platform == "cpu":
        warnings.append(
            f"these {len(devices)} devices are simulated and share {available_cores()} "
            "processor core(s): the results say nothing about accelerators"
        )
    if config.parallelism == "fsdp":
        warnings.append(
            "nothing is predicted: predictions take an all-reduce of the gradient, and "
            "parallelism=fsdp exchanges shards"
        )
    elif alone and alone[0].device_id == devices[0].id:
        predictions = _predict(gradient_bytes, link_gb_per_s, alone[0], reduced)
    stages = [*trials, *all_reduces]
    warnings += unsettled_warnings({stage.name: stage.warmup for stage in stages})
    for trial in trials:
        warnings += falling_loss_warnings(trial.losses, trial.name)
    for stage in stages:
        warnings += window_warnings(stage.name, stage.windows_s)
    counted = [record for record in compiled if record.collectives is not None]
    if counted:
        most = max(counted, key=lambda record: record.num_devices or 0)
        sizes = {"num_devices": most.num_devices, "gradient_bytes": gradient_bytes}
        exchange = sizes | {"collectives": most.collectives}
    invalid = []
    measured: list[ScalingRecord | DeviceRecord] = [*scaled, *alone]
    for record in measured:
        if record.images_per_s is not None:
            limit = flops_limit(devices[: record.num_devices])
            invalid += [f"{_label(record)}: {why}" for why in impossible(record, limit)]
        if isinstance(record, ScalingRecord) and record.unequal:
            invalid.append(
                f"{_label(record)}: after {record.steps} steps the replicas differ in "
                f"{len(record.unequal)} arrays, the first of them {record.unequal[0]}"
            )
    efficiencies: list[Any] = [{n: getattr(one, n) for n in _REPEATED} for one in scaled]
    return ScalingSummary(
        status=status,
        efficiencies=efficiencies,
        exchange=exchange,
        devices=split(alone) if len(alone) == len(devices) else None,
        predictions=predictions,
        tokens_per_image=config.data.sequence_length or None,
        invalid=invalid,
        warnings=warnings,
    )


def _predict(
    gradient_bytes: int,
    link_gb_per_s: float | None,
    one_device: DeviceRecord,
    all_reduces: Sequence[AllReduceRecord],
) -> list[Any]:
    """Predict weak scaling beyond the devices that are here, from the first device's step.

    Nothing is predicted if the links' bandwidth is neither stated nor measured.
    """
    if link_gb_per_s is not None:
        link_bytes_per_s, source = link_gb_per_s * 1e9, "stated (--link_gb_per_s)"
    elif all_reduces:
        count, kind = all_reduces[-1].num_devices, one_device.device_kind
        source = f"measured: bus bandwidth of an all-reduce over {count} {kind} devices"
        link_bytes_per_s = all_reduces[-1].bus_bytes_per_s
    else:
        return []
    step: dict[str, Any] = {"step_s": one_device.step_s, "gradient_bytes": gradient_bytes}
    step |= {"batch_per_device": one_device.batch_size}
    step |= {"link_bytes_per_s": link_bytes_per_s, "link_source": source}
    return [predict(count, **step) for count in _PREDICTED_DEVICES]


class ScalingTrial(StepWindows):
    """One training step on some devices with one synthetic batch of this global size.

    Attributes:
      collectives: what the compiled step exchanges; None before it is compiled.
      unequal: the arrays that differ between replicas; None unless they were compared.
      status, reason: done, or how the trial was lost, and why.
    """

    def __init__(
        self, setup: PreparedRun, window_s: float, devices: tuple[jax.Device, ...], batch_size: int
    ):
        self.devices, count = devices, len(devices)
        self.collectives: dict[str, dict[str, int]] | None = None
        self.unequal: list[str] | None = None
        self.status = "done"
        self.reason: str | None = None
        mesh = dataclasses.replace(setup.mesh, devices=devices)
        built = setup.network.config
        config = dataclasses.replace(built, num_devices=count, batch_size=batch_size)
        layout = BatchLayout.create(config, count)
        feed = create_feed(config, None, mesh, layout)
        program = build_program(config, mesh, layout, feed.steps_per_epoch)
        setup = dataclasses.replace(setup, config=config, mesh=mesh, feed=feed, program=program)
        on = f"device {devices[0].id}" if count == 1 else f"{count} devices"
        name = f"batch {batch_size} on {on}"
        super().__init__(name, setup, None, window_s, program.train_step, iter(()))

    def start(self, initial: TrainState) -> CompileRecord:
        """Place the state, compile, take the first step; return the compile record."""
        setup, feed = self.setup, self.setup.feed
        with setup.clock.phase("place_data"):
            self.state = setup.program.place_train_state(initial)
            batch = next(feed.train_batches(0, 1))
        self.batches = itertools.repeat(batch)
        args = (self.state, feed.train_data, batch)
        record = setup.compile("train_step", self.step, *args, f", {self.name}")
        self.collectives = record.collectives
        with setup.clock.phase("first_step"):
            self.run(1)
        return msgspec.structs.replace(
            record,
            num_devices=len(self.devices),
            device_ids=[device.id for device in self.devices],
            batch_size=setup.config.batch_size,
        )

    def describe(self) -> dict[str, Any]:
        """Return the fields that all records of a trial have."""
        return self.describe_steps() | {
            "batch_per_device": self.setup.program.layout.batch_per_device,
            "images_per_step": self.images_per_step,
            "images_counted": self.images_counted,
            "steps": self.steps,
            "status": self.status,
            "reason": self.reason,
        }


def efficiency_warnings(scaled: Sequence[ScalingRecord]) -> list[str]:
    """Return the warnings about efficiencies whose whole interval is above 100 %."""
    return [
        f"{_label(record)}: an efficiency of {record.efficiency:.1%}, "
        f"{record.efficiency_low:.1%} at least: was the single device held up?"
        for record in scaled
        if record.efficiency_low is not None and record.efficiency_low > 1
    ]


def _label(record: ScalingRecord | DeviceRecord) -> str:
    if isinstance(record, DeviceRecord):
        return f"device {record.device_id}"
    return f"{record.scaling}, {record.num_devices} device(s)"
