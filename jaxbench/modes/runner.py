"""What all modes share: prepare a run, record it and how it ends.

A new mode is a function that measures within `prepare_run` and `record_run`, as in modes/memory.py,
with its line in modes/__init__.py. New metrics are fields in schema.py.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from jaxbench.analysis.pricing import Price
from jaxbench.batch_layout import batch_multiple
from jaxbench.clock import Clock, now
from jaxbench.config import Config, Experiment
from jaxbench.config.custom import config_record
from jaxbench.config.fields import without_unused
from jaxbench.data import augment
from jaxbench.data.dataset import Dataset
from jaxbench.data.feeds.feed import Feed, create_feed
from jaxbench.data.images.decode import describe_warnings
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import BadInput, DoesNotFit
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.hardware.backend_flags import wrong_sums
from jaxbench.hardware.distorters import distortion_warnings
from jaxbench.hardware.environment import describe_environment, host_peak_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S, Telemetry, create_readers, no_telemetry
from jaxbench.microbench.attention import Attention, fastest_attention, preferred_attention
from jaxbench.microbench.memory_bandwidth import memory_bytes
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import (
    DataMesh,
    broadcast_arrays,
    create_training_mesh,
    mixed_devices,
    wait_for,
)
from jaxbench.parallel.signals import defer_signals
from jaxbench.precision import get_precision
from jaxbench.records.next_steps import say_next_steps
from jaxbench.records.recorder import Recorder, classify
from jaxbench.records.run_dir import RunDir, check_workdir, create_run_dir
from jaxbench.records.validity import clock_disagreements, missing_arithmetic
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.files import CsvWriter, JsonlWriter
from jaxbench.schema import CompileRecord, Record, RunDocument, Summary
from jaxbench.train import TrainState, build_program
from jaxbench.training.compilation import compile_step
from jaxbench.training.program import Network, Program
from jaxbench.xla.jaxpr import FLOPS_PER_MAC

# ----------------------------------------------------------------------------------- prepare a run


@dataclasses.dataclass(frozen=True)
class RunContext:
    """What every run has. Nothing has run yet, nothing has been written."""

    config: Experiment
    clock: Clock  # counts from the run's first moment
    console: Console
    mesh: DataMesh
    unused: Sequence[str]  # the warning about fields without effect, see `without_unused`

    def document(self) -> dict[str, Any]:
        """Return run.json's fields at the start."""
        return {"config": config_record(self.config)}

    def warnings_at_start(self) -> list[str]:
        """Return what is doubtful about the run before anything is compiled."""
        return [*self.unused]

    def check_memory(self) -> None:
        """Raise DoesNotFit if no batch can fit in a device's memory."""

    def warnings(self, records: Sequence[Record]) -> list[str]:
        """Return what is doubtful about the run, from what it has recorded."""
        return []


@dataclasses.dataclass(frozen=True)
class PreparedRun(RunContext):
    """What a run on a network has."""

    config: Config
    dataset: Dataset | None  # None with a synthetic feed
    feed: Feed
    # Its config has the name of the attention in place of auto.
    program: Program
    attention: Attention

    @property
    def network(self) -> Network:
        return self.program.network

    @property
    def seeds_R(self) -> tuple[int, ...]:
        """Return the seed of each model."""
        return self.config.seeds(self.mesh.num_devices)

    def document(self) -> dict[str, Any]:
        config, layout, feed, dataset = self.config, self.program.layout, self.feed, self.dataset
        sync = config.batch_norm == "sync"
        batch_norm_examples = layout.global_batch if sync else layout.batch_per_device
        data: dict[str, Any] = {
            "feed": feed.name,
            "steps_per_epoch": feed.steps_per_epoch,
            **feed.resources,
        }
        if dataset is not None:
            data |= {
                "description": dataset.description,
                "encoded": dataset.encoded,
                "cache": dataset.cache,
                "train_examples": len(dataset.train),
                "eval_examples": len(dataset.eval),
                "train_checksum": dataset.train.checksum(),
                "eval_checksum": dataset.eval.checksum(),
            }
        if dataset is not None and dataset.statistics is not None:
            # What normalises the pixels, on the scale 0 to 255.
            mean, std, statistics = None, None, "each image's own"
            if config.data.standardization != "per_image":
                mean, std = (values_C.tolist() for values_C in dataset.channel_statistics)
                statistics = dataset.statistics
            data |= {"mean": mean, "std": std, "statistics": statistics}
        return super().document() | {
            **describe_network(self.network),
            **_attention_fields(self.attention),
            "models": layout.num_models,
            "seeds": list(self.seeds_R),
            "data": data,
            "batch_per_device": layout.batch_per_device,
            # How many images a batch-norm layer takes its statistics from.
            "batch_norm_examples": batch_norm_examples // layout.gradient_accumulation_steps
            if self.network.analysis.batch_norm
            else None,
        }

    def warnings_at_start(self) -> list[str]:
        config, layout, shape = self.config, self.program.layout, self.network.analysis.shape
        memory_gib = memory_bytes(self.mesh.local_devices[0]) / 2**30
        state_gib = self.program.state_bytes_per_device() / 2**30
        element_bytes = np.dtype(self.network.precision.compute_dtype).itemsize
        example_gib = shape.kept_bytes(element_bytes) / 2**30
        accumulated = layout.gradient_accumulation_steps
        needed_gib = state_gib + example_gib * layout.batch_per_device / accumulated
        doubts = [*super().warnings_at_start(), *(self.dataset.warnings if self.dataset else ())]
        doubts += self.attention.warnings
        if needed_gib <= memory_gib or config.remat != "none" or not example_gib:
            return doubts
        multiple = batch_multiple(config, layout.num_devices)
        fits = int((memory_gib - state_gib) / example_gib) * accumulated * layout.devices_per_model
        largest = max(0, fits // multiple * multiple)
        return [
            *doubts,
            f"batch_size={config.batch_size} needs about {needed_gib:.3g} GiB on each device, but "
            f"there are {memory_gib:.3g}, unless the compiler recomputes activations; "
            + (f"the largest batch that fits is about {largest}" if largest else "none fits"),
        ]

    def check_memory(self) -> None:
        needed = self.program.state_bytes_per_device()
        if needed > (memory := memory_bytes(self.mesh.local_devices[0])):
            raise DoesNotFit(
                f"the parameters and the optimizer's values take {needed / 2**30:.3g} GiB on each "
                f"device, which has {memory / 2**30:.3g}"
            )

    def warnings(self, records: Sequence[Record]) -> list[str]:
        warnings = self.network.analysis.warnings()
        warnings += describe_warnings(self.feed.image_warnings)
        for record in records:
            if not isinstance(record, CompileRecord):
                continue
            if record.function == "train_step":
                warnings += self._exchange_warnings(record)
            # On GPUs products are calls of libraries, whose arithmetic XLA need not know, and on
            # TPUs it does not know that of flash attention.
            if self.mesh.devices[0].platform != "gpu" and self.attention.name != "flash":
                warnings += missing_arithmetic(record, self._least_flops(record))
        return warnings

    def _least_flops(self, record: CompileRecord) -> float:
        """Return the least FLOPs of the network on a device in a call of a compiled step.

        Bodies of loops count once, gradient accumulation's too.
        """
        analysis, layout = self.network.analysis, self.program.layout
        images = layout.batch_per_device
        if record.num_devices and record.batch_size:  # it ran on some of the devices
            images = record.batch_size // record.num_devices
        if record.function == "train_step":
            macs = analysis.work.step_macs_once / layout.gradient_accumulation_steps
        else:
            macs = analysis.macs_once
            # The evaluation batch may be smaller than the training batch, or not full.
            per_device = (layout.global_eval_batch, self.feed.num_eval)
            images = min(images, *(count // layout.devices_per_model for count in per_device))
        return FLOPS_PER_MAC * macs * images

    def _exchange_warnings(self, record: CompileRecord) -> list[str]:
        """Return a warning if the compiled step does not exchange what the config says."""
        if record.collectives is None or (record.num_devices or self.mesh.num_devices) == 1:
            return []
        exchanged_bytes = sum(count["bytes"] for count in record.collectives.values())
        expected = exchanged_bytes and exchanged_bytes >= self.gradient_bytes
        if self.config.replicas == "independent":
            expected = not exchanged_bytes
        if expected:
            return []
        return [
            f"replicas={self.config.replicas}, but the compiled step exchanges {exchanged_bytes:,} "
            f"bytes; its gradients have {self.gradient_bytes:,}"
        ]

    @property
    def gradient_bytes(self) -> int:
        params = jax.tree.leaves(self.network.trace.variables["params"])
        pairs = zip(params, self.network.uses_gradients, strict=True)
        return sum(leaf.size * leaf.dtype.itemsize for leaf, is_used in pairs if is_used)

    def place_train_state(self, saved: TrainState | None = None) -> TrainState:
        """Initialise the state on the devices, or place a saved one; timed and shown."""
        title = "initialising the parameters" if saved is None else "placing the saved state"
        with self.clock.phase("init"), self.console.phase(title):
            state = self.program.place_train_state(saved, lambda: self.params_from_images)
            wait_for(state)
            return state

    @functools.cached_property
    def params_from_images(self) -> dict[str, Any]:
        """The parameters that follow from training images; all others are drawn.

        A resumed run has them in its checkpoint.
        """
        config, dataset = self.config, self.dataset
        count = config.model.num_init_images()
        if not count or dataset is None:
            return {}
        with self.clock.phase("init_from_images"):
            images_NxHxWxC = dataset.train.inputs_Nx[:count]
            if config.data.standardization == "per_image":
                images_NxHxWxC = np.asarray(
                    augment.per_image_standardization(images_NxHxWxC, np.float32, np.float32)
                )
            else:
                statistics = dataset.normalization(np.float32)
                images_NxHxWxC = augment.normalize(
                    images_NxHxWxC, statistics["mean"], statistics["std"], np.float32
                )
            params = config.model.parameters_from_images(images_NxHxWxC)
            if self.mesh.process[1] == 1:
                return params
            # This may be the first collective: see `barrier_before_first_step`.
            processes.barrier("the parameters from images")
            # Hosts with different processors may round differently, and replicas would differ.
            return broadcast_arrays(params)

    def compile(
        self, name: str, step: Any, state: TrainState, data: Any, batch: Any, title: str = ""
    ) -> CompileRecord:
        """Compile a step for these arguments; return its record."""
        with self.console.phase(f"compiling {name} for {self.mesh.num_devices} device(s){title}"):
            return compile_step(name, step, state, data, batch, clock=self.clock)


def describe_network(network: Network) -> dict[str, Any]:
    """Return run.json's fields of the network."""
    return {
        "task": network.task.name,
        "model": network.config.model.network_name.removesuffix("Config"),
        "parameters": network.analysis.num_parameters,
        "trained_parameters": network.analysis.num_trained,
        "forward_macs_per_image": network.analysis.forward_macs,
        "forward_macs_by_dtype": network.analysis.macs_by_dtype,
        **describe_attention(network.config, network.mesh.devices[0]),
    }


def describe_attention(config: Config, device: Any) -> dict[str, Any]:
    """Return run.json's fields of the attention that is preferred on such devices.

    Args:
      device: of JAX, or a stand-in with its `platform` and `device_kind`.

    Raises:
      BadInput: see `possible_attention`.
    """
    return _attention_fields(preferred_attention(config, device))


def _attention_fields(attention: Attention) -> dict[str, Any]:
    return {"attention": attention.name, "attention_reason": attention.reason}


@contextlib.contextmanager
def prepare_run(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    checked: bool = False,
    resumed: Mapping[str, Any] | None = None,
) -> Iterator[PreparedRun]:
    """Check everything that can be checked before anything is written; close it all at the end.

    Args:
      config: a valid experiment.
      workdir: where the records will go, see `check_workdir`.
      console: where progress is shown; None picks one for standard output.
      checked: whether `workdir` has been checked already.
      resumed: run.json of the run that is resumed, in process 0; None of a new run.

    Raises:
      BadInput: the experiment cannot run here.
    """
    if not checked and processes.is_primary():
        check_workdir(workdir, config.name)
    config, unused = without_unused(config)
    if processes.count() > 1:
        across = f"across {processes.count()} processes"
        if config.replicas == "independent":
            raise BadInput(
                f"replicas='independent' {across}: each would know its own models only; give each "
                "seed a run, or each process a run of its own"
            )
    clock = Clock()
    with contextlib.ExitStack() as stack:
        precision = get_precision(config.precision)
        stack.enter_context(precision.enabled())
        console = console or create_console()
        stack.callback(console.close)
        with clock.phase("devices"):
            mesh, layout = create_training_mesh(config, console.say)
        dataset = None
        if config.data.feed != "synthetic":
            with clock.phase("read_data"), console.phase(f"reading {config.data.source} data"):
                dataset = load_dataset(config, console.say, console.progress)
                if processes.count() > 1:
                    processes.check_same("the data", dataset.fingerprint())
        with clock.phase("place_data"):
            feed = create_feed(config, dataset, mesh, layout)
            stack.callback(feed.close)
            # Otherwise sending the data would be timed as part of the next phase.
            wait_for((feed.train_data, feed.eval_data))
        attention = fastest_attention(
            config, layout, mesh.devices[0], clock, console.phase, resumed
        )
        if attention.tried:
            mesh = mesh.without_peak()
            if not attention.warnings:
                console.say(f"attention: {attention.name}, {attention.reason}")
        with clock.phase("build"):
            built = with_attention(config, attention.name)
            program = build_program(built, mesh, layout, feed.steps_per_epoch)
            program.check()
        yield PreparedRun(config, clock, console, mesh, unused, dataset, feed, program, attention)


def with_feed(config: Config, feed: str) -> Config:
    """Return a valid experiment with another feed: `resident`, `stream` or `synthetic`.

    A synthetic feed, one batch on the devices, measures only them; no experiment has it itself.

    Raises:
      BadInput: the experiment is not valid, or not with this feed.
    """
    config.validate()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, feed=feed))
    if feed != "synthetic":
        config.validate()
    return config


def with_attention(config: Config, name: str | None) -> Config:
    """Return the experiment with this `model.attention`; as it is for None."""
    if name is None:
        return config
    model: Any = config.model
    return dataclasses.replace(config, model=dataclasses.replace(model, attention=name))


def check_device_counts(name: str, counts: Sequence[int], mesh: DataMesh) -> list[int]:
    """Return the numbers of devices that a flag or field gives, in rising order.

    Raises:
      BadInput: a number is less than 1, or more than the mesh has.
    """
    most = mesh.num_devices
    if min(counts) < 1 or max(counts) > most:
        raise BadInput(
            f"{name}={','.join(map(str, counts))}: must lie within 1 and {most}, the "
            f"{mesh.devices[0].device_kind} device(s) that take part"
        )
    return sorted(set(counts))


# ------------------------------------------------------------------------------------ record a run


@contextlib.contextmanager
def record_run(
    setup: RunContext,
    mode: str,
    workdir: str | None = None,
    *,
    summarize: Callable[[str, Sequence[Any]], Summary],
    document: Mapping[str, Any] = types.MappingProxyType({}),
    csv_record: type[Record] | None = None,
    telemetry_s: float = INTERVAL_S,
    price: Price | None = None,
    resume_into: Callable[[RunDocument], RunDir] | None = None,
) -> Iterator[Recorder]:
    """Record what the `with` measures and how it ends, whatever ends it; say what can be done next.

    Args:
      setup: of `prepare_run`; of a mode without a network, a `RunContext`.
      mode: its name in run.json.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      summarize: (status, the records written) -> the mode's fields of the summary.
      document: the mode's fields of run.json.
      csv_record: the kind of record that also goes into a CSV file, KIND.csv; None for no file.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      price: what the hardware costs, recorded with the run; None if it is unknown.
      resume_into: opens the folder of the run to resume; None makes a new one.

    Raises:
      BadInput: before anything is written.
      RunFailed: instead of a backend's error about devices that it does not run together.
      Exception: whatever ended the `with`. Status and reason are in run.json by then.
    """
    console, devices = setup.console, setup.mesh.devices
    with setup.clock.phase("devices"):
        warnings = [
            *setup.warnings_at_start(),
            *unused_accelerators(devices[0].platform),
            *wrong_sums(devices[0].platform),
            *distortion_warnings(),
        ]
    for warning in warnings:
        console.say(f"warning: {warning}")
    fields = {"mode": mode} | setup.document() | dict(document)
    # Every process that cannot run has said so by now: nothing has been written then.
    processes.barrier("the record")
    summarize_run = functools.partial(_summarize_run, setup, warnings, summarize)
    if not processes.is_primary():  # only the first process writes
        recorder = Recorder(None, no_telemetry())
        setup.check_memory()
        yield recorder
        recorder.finish("done", None, summarize_run)
        return
    fields |= {"price": price and vars(price), "environment": describe_environment(devices)}
    run_json = RunDocument(
        experiment=setup.config.name,
        status="running",
        reason=None,
        started_at=now().isoformat(),
        **fields,
        telemetry_s=telemetry_s,
        command_line=list(sys.orig_argv),
        working_directory=os.getcwd(),
        pid=os.getpid(),
    )
    create = resume_into or (lambda new: create_run_dir(workdir, setup.config.name, new))
    run_dir, local_devices = create(run_json), setup.mesh.local_devices
    telemetry = Telemetry(
        run_dir.path / "telemetry.csv",
        telemetry_s,
        setup.clock,
        create_readers(local_devices) if telemetry_s else [],
        len(local_devices) / len(devices),
        run_json.environment["device_kind"],
    )
    recorder = Recorder(run_dir, telemetry, price, is_resumed=resume_into is not None)
    # Another process has ended while this one's main thread hangs in a collective: a thread writes.
    processes.on_abort(lambda end: run_dir.end(end.status, str(end)))
    with contextlib.closing(run_dir):
        try:
            console.say(f"records in {run_dir.path}")
            recorder.writers.add(JsonlWriter(run_dir.path))
            recorder.writers.add(console)
            if csv_record:
                recorder.writers.add(CsvWriter(run_dir.path / f"{csv_record.kind}.csv", csv_record))
            with defer_signals():
                telemetry.start()
            setup.check_memory()
            yield recorder
            if isinstance(setup, PreparedRun):
                # It takes seconds to count, so no start waits for it.
                run_dir.update(training_flops_per_image=setup.network.analysis.training_flops)
        except BaseException as error:
            # A second signal or a full disk must not hide why the run ended, nor leave it
            # unrecorded.
            with defer_signals():
                cause = processes.root_cause(mixed_devices(devices, error) or error)
                with contextlib.suppress(Exception):
                    recorder.finish(*classify(cause), summarize_run)
                with contextlib.suppress(Exception):
                    recorder.writers.close()
                with contextlib.suppress(Exception):
                    say_next_steps(console, run_dir)
            if cause is not error:
                raise cause from error
            raise
        with defer_signals():
            recorder.finish("done", None, summarize_run)
            recorder.writers.close()
            say_next_steps(console, run_dir)


def _summarize_run(
    setup: RunContext,
    warnings: Sequence[str],
    summarize: Callable[[str, Sequence[Any]], Summary],
    status: str,
    records: Sequence[Record],
) -> Summary:
    """Return the mode's summary with what every run has; `warnings` are those of its start."""
    # Read together: the phases are the whole time.
    phases_s, wall_s = setup.clock.totals_s(), setup.clock.wall_s()
    summary = summarize(status, records)
    compile_s = sum(r.lower_s + r.compile_s for r in records if isinstance(r, CompileRecord))
    return msgspec.structs.replace(
        summary,
        # A resumed run counts what earlier processes compiled, too.
        compile_s=summary.compile_s or compile_s or None,
        peak_memory_bytes=setup.mesh.peak_memory_bytes,
        host_peak_memory_bytes=host_peak_memory_bytes(),
        phases_s=phases_s,
        wall_s=wall_s,
        warnings=[
            *warnings,
            *setup.warnings(records),
            *clock_disagreements(setup.clock.elapsed_s()),
            *summary.warnings,
        ],
    )
