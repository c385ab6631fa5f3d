"""Prepares a run: the devices, the data, their feed, the network and its steps."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxbench.clock import Clock, wait_until
from jaxbench.config import Config, Experiment
from jaxbench.data import augment
from jaxbench.data.dataset import Dataset
from jaxbench.data.feeds.feed import Feed, create_feed
from jaxbench.data.sources.load import load_dataset
from jaxbench.distributed import coordination
from jaxbench.distributed.mesh import DataMesh, all_ready, broadcast_arrays, create_training_mesh
from jaxbench.errors import BadInput
from jaxbench.precision import get_precision
from jaxbench.records.run_dir import check_workdir
from jaxbench.records.schema import CompileRecord
from jaxbench.records.writers.console import Console, create_console
from jaxbench.training.program import Program, build_program, compile_step
from jaxbench.training.train_step import TrainState
from jaxbench.xla.flops import TRAINING_FLOPS_PER_MAC


@dataclasses.dataclass(frozen=True)
class RunContext:
    """What every run has. Nothing has run yet, nothing has been written.

    Attributes:
      config: the experiment.
      clock: counts from the run's first moment.
      console: where progress is shown.
      mesh: the devices that take part.
    """

    config: Experiment
    clock: Clock
    console: Console
    mesh: DataMesh

    def document(self) -> dict[str, Any]:
        """Return run.json's fields at the start."""
        return {"config": dataclasses.asdict(self.config)}


@dataclasses.dataclass(frozen=True)
class Job(RunContext):
    """What a run on a network has.

    Attributes:
      dataset: what the feed reads; None with a synthetic feed.
      feed: how the data reach the devices.
      program: the network and its steps.
    """

    config: Config
    dataset: Dataset | None
    feed: Feed
    program: Program

    def document(self) -> dict[str, Any]:
        """Return run.json's fields at the start."""
        config, program, feed = self.config, self.program, self.feed
        geometry = program.geometry
        macs = sum(program.forward_macs().values())
        seeds_R = config.seeds(self.mesh.num_devices)
        sync = config.batch_norm == "sync"
        batch_norm_examples = geometry.global_batch if sync else geometry.batch_per_device
        has_batch_norm = bool(jax.tree.leaves(program.abstract_train_state().batch_stats))
        data: dict[str, Any] = {
            "feed": feed.name,
            "steps_per_epoch": feed.steps_per_epoch,
            **dataclasses.asdict(feed.resources),
        }
        if self.dataset is not None:
            data |= {
                "description": self.dataset.description,
                "encoded": self.dataset.encoded,
                "cache": self.dataset.cache,
                "train_examples": len(self.dataset.train),
                "eval_examples": len(self.dataset.eval),
            }
        return super().document() | {
            "task": config.task,
            "model": type(config.model).__name__.removesuffix("Config"),
            "models": geometry.num_models,
            "seeds": list(seeds_R),
            "parameters": program.num_parameters(),
            "forward_macs_per_image": macs,
            "training_flops_per_image": macs * TRAINING_FLOPS_PER_MAC,
            "data": data,
            "batch_per_device": geometry.batch_per_device,
            # How many images a batch-norm layer takes its statistics from.
            "batch_norm_examples": batch_norm_examples // geometry.gradient_accumulation_steps
            if has_batch_norm
            else None,
        }

    def place_train_state(self) -> TrainState:
        """Initialise the state on the devices, as a phase that is timed and shown."""
        with self.clock.phase("init"), self.console.phase("initialising the parameters"):
            state = self.program.place_train_state()
            wait_until(lambda: all_ready(state))
            return state

    def compile(
        self, name: str, step: Any, state: TrainState, data: Any, batch: Any, how: str = ""
    ) -> CompileRecord:
        """Compile a step for these arguments; return its record."""
        what = f"compiling {name} for {self.mesh.num_devices} device(s){how}"
        with self.console.phase(what):
            return compile_step(name, step, state, data, batch, clock=self.clock)


@contextlib.contextmanager
def setup_job(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    checked: bool = False,
) -> Iterator[Job]:
    """Check everything that can be checked before anything is written; close it all at the end.

    Args:
      config: a valid experiment.
      workdir: where the records will go, see `check_workdir`.
      console: where progress is shown; None picks one for standard output.
      checked: whether `workdir` has been checked already.

    Raises:
      BadInput: the experiment cannot run here.
    """
    if not checked and coordination.is_primary():
        check_workdir(workdir, config.name)
    if coordination.count() > 1:
        _check_across_processes(config)
    clock = Clock()
    with contextlib.ExitStack() as stack:
        precision = get_precision(config.precision)
        stack.enter_context(precision.enabled())
        console = console or create_console()
        stack.callback(console.close)
        with clock.phase("devices"):
            mesh = create_training_mesh(config)
        console.say(_headline(config, mesh))
        dataset = None
        if config.data.feed != "synthetic":
            reading = f"reading {config.data.source} data"
            with clock.phase("read_data"), console.phase(reading):
                dataset = load_dataset(config, console.say)
                if coordination.count() > 1:
                    coordination.check_same("the data", dataset.fingerprint())
        data_dependent_params = _data_dependent_params(config, dataset, mesh, clock)
        with clock.phase("place_data"):
            feed = create_feed(config, dataset, mesh, precision.param_dtype)
            stack.callback(feed.close)
            # Otherwise sending the data would be timed as part of the next phase.
            wait_until(lambda: all_ready((feed.train_data, feed.eval_data)))
        with clock.phase("build"):
            program = build_program(config, mesh, feed.steps_per_epoch, data_dependent_params)
            program.check()
        yield Job(config, clock, console, mesh, dataset, feed, program)


def _data_dependent_params(
    config: Config, dataset: Dataset | None, mesh: DataMesh, clock: Clock
) -> Callable[[], dict[str, Any]]:
    """Return a function that computes, once, the parameters that follow from training images.

    Without a data set, for throughput alone, it computes none, and all are drawn. A resumed run has
    them in its checkpoint.

    Raises:
      BadInput: the images are decoded on the fly.
    """
    count = config.model.num_init_images()
    if not count or dataset is None:
        return dict
    if dataset.encoded:
        raise BadInput(
            f"{type(config.model).__name__} computes parameters from {count} training images, "
            f"which are decoded on the fly in {dataset.description}; data.feed=resident and "
            "data.random_resized_crop=False read them whole"
        )

    def compute() -> dict[str, Any]:
        with clock.phase("init_from_images"):
            images_NxHxWxC = dataset.train.images_NxHxWxC[:count]
            if config.data.standardization == "per_image":
                images_NxHxWxC = np.asarray(augment.whiten(images_NxHxWxC, np.float32, np.float32))
            else:
                statistics = dataset.normalization(np.float32)
                images_NxHxWxC = augment.normalize(
                    images_NxHxWxC, statistics["mean"], statistics["std"], np.float32
                )
            params = config.model.parameters_from_images(images_NxHxWxC)
            if mesh.process[1] == 1:
                return params
            # This may be the first collective: see `barrier_before_first_step`.
            coordination.barrier("the parameters from images")
            # Hosts with different processors may round differently, and replicas would differ.
            return broadcast_arrays(params)

    return functools.cache(compute)


def _check_across_processes(config: Config) -> None:
    """Raise BadInput for an experiment that several processes cannot run together."""
    across = f"across {coordination.count()} processes"
    if config.replicas == "independent":
        raise BadInput(
            f"replicas='independent' {across}: each would know its own models only; give each "
            "seed a run, or each process a run of its own"
        )
    if config.data.max_corrupt:
        raise BadInput(
            f"data.max_corrupt={config.data.max_corrupt} {across}: each would count its own "
            "corrupt images; it must be 0"
        )


def with_feed(config: Config, feed: str) -> Config:
    """Return a valid experiment with another feed.

    Args:
      config: the experiment.
      feed: `resident`, `stream`, or `synthetic`: one synthetic, device-resident batch, which
        measures the devices alone. No experiment has that feed itself.

    Raises:
      BadInput: the experiment is not valid, or not with this feed.
    """
    config.validate()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, feed=feed))
    if feed != "synthetic":
        config.validate()
    return config


def _headline(config: Config, mesh: DataMesh) -> str:
    models = config.num_models(mesh.num_devices)
    each = f"{models} independent models, each with batch" if models > 1 else "global batch"
    return (
        f"{config.name or 'experiment'} on {mesh.num_devices} x {mesh.devices[0].device_kind}"
        f"{f' in {mesh.process[1]} processes' if mesh.process[1] > 1 else ''}: "
        f"{each} {config.batch_size}, {config.data.feed} feed, "
        f"{config.precision}, {config.parallelism}, "
        f"batch norm {config.batch_norm}, {config.epochs} epoch(s), seed {config.seed}"
    )
