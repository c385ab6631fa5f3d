"""Compile a training step for a machine that is not here: --target.

A compiler runs in a child process (`ask_compiler`): its variables must be set before JAX is
imported, and its crash is a result. `describe_targets` prints the answers, `compile_for` records
them. Nothing is measured: what the compiler reports is `compiled`. The rate to expect is predicted
without a compiler, and if none is installed, that is all.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import msgspec
from jax.experimental import topologies

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.rate import Estimate
from jaxbench.batch_layout import BatchLayout, batch_multiple
from jaxbench.clock import Clock
from jaxbench.config import Config, Experiment
from jaxbench.config.fields import without_unused
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.errors import OUT_OF_MEMORY, BadInput, DoesNotFit, RunFailed, first_line
from jaxbench.hardware.targets.target import (
    Target,
    compiler_version,
    describe_gpu,
    environment,
    parse_target,
    smaller_targets,
    split_targets,
)
from jaxbench.modes.describe import list_layers, print_network
from jaxbench.modes.predictions import Predictor, add_efficiency, prediction_lines
from jaxbench.modes.runner import (
    RunContext,
    describe_attention,
    describe_network,
    record_run,
)
from jaxbench.parallel.child import run_child
from jaxbench.parallel.mesh import DataMesh
from jaxbench.precision import get_precision
from jaxbench.records.recorder import Recorder
from jaxbench.records.run_dir import check_workdir
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.targets import compiled_facts, target_table
from jaxbench.schema import CompileSummary, TargetRecord, decode_record
from jaxbench.train import build_program
from jaxbench.training.compilation import begin_compile
from jaxbench.xla.hlo import count_calls

# The bytes that a step needs of a device's memory, such as `7.48G`, in XLA's words.
_NEEDED = re.compile(
    r"\(([\d.]+)([KMGT]?)\) exceeds available HBM|memory space hbm\. Used ([\d.]+)([KMGT]?) of"
)
_TOO_LARGE = re.compile(r"needs more blocks .* than allowed by hardware")
_UNSUPPORTED = re.compile(r"\bUNIMPLEMENTED\b")
# What XLA adds to an error, before the lines of the stack.
_STACK = "Suspected Python Code Location:"


class Refusal(NamedTuple):
    """A compiler's error about a step's size or operations; no bug, no crash.

    Attributes:
      words: its message, in one line.
      fits: False of a step that is too large, None of one that the compiler does not support.
    """

    words: str
    fits: bool | None


def read_refusal(error: str) -> Refusal | None:
    """Return what a compiler's error refuses; None if it is another error.

    For GPUs XLA refuses no step for its memory: its estimate is more than there is.
    """
    words = " ".join(error.partition(_STACK)[0].split())
    if OUT_OF_MEMORY.search(words) or _TOO_LARGE.search(words):
        return Refusal(words, fits=False)
    return Refusal(words, fits=None) if _UNSUPPORTED.search(words) else None


def needed_bytes(refusal: str) -> int | None:
    """Return the device memory that a refused step needs; None if the refusal is about others."""
    if (match := _NEEDED.search(refusal)) is None:
        return None
    size, unit = (group for group in match.groups() if group is not None)
    return int(float(size) * 1024 ** " KMGT".index(unit or " "))


def check_target(experiment: Experiment, name: str) -> Target:
    """Return the target of this name.

    Raises:
      BadInput: an unknown or impossible target, a batch that does not split over its devices, an
        experiment without a network, or one with attention that the devices cannot do.
    """
    if not isinstance(experiment, Config):
        raise BadInput(f"--target: {experiment.name} trains no network; only those are compiled")
    experiment.validate()
    target = parse_target(name)
    BatchLayout.create(experiment, target.num_devices)
    describe_attention(experiment, target.devices[0])
    return target


# A process that compiles for a target has it: the file for its answer.
RESULT_VARIABLE = "JAXBENCH_TARGET_RESULT"


class Answer(NamedTuple):
    """A compiler's answer.

    Attributes:
      record: None if the compiler failed or was not asked.
      network: run.json's fields of the network, see `describe_network`, and its `layers`.
      failed: how it failed.
      not_compiled: why it was not asked.
    """

    record: TargetRecord | None = None
    network: Mapping[str, Any] = {}
    failed: str | None = None
    not_compiled: str | None = None


def ask_compiler(arguments: Sequence[str], target: Target, *, strict: bool) -> Answer:
    """Return a compiler's answer about a target.

    Args:
      arguments: of `jaxbench.main`: the experiment, its overrides, and flags for XLA.
      target: the machine.
      strict: whether a machine that the compiler does not know raises BadInput; else it is a
        failure, and no reason to lose the answers about other machines.
    """
    command = [sys.executable, "-m", "jaxbench.main", *arguments]
    command += ["--mode=describe", f"--target={target.name}"]
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        result = pathlib.Path(folder, "result.json")
        variables = environment(target) | {RESULT_VARIABLE: str(result)}
        ended = run_child(command, pathlib.Path(folder, "log"), variables=variables)
        if ended.exit_code == 2 and strict:
            raise BadInput(ended.reason)
        if not result.is_file():
            return Answer(failed=ended.reason or "no answer")
        answer = json.loads(result.read_text())
    return Answer(**answer | {"record": answer["record"] and decode_record(answer["record"])})


def write_answer(config: Config, name: str) -> None:
    """Compile in this process, which `ask_compiler` started, and write the `Answer`."""
    try:
        record, network = compile_for_target(config, check_target(config, name))
        answer = {"record": record.to_json(), "network": network}
    except BadInput:
        raise
    except Exception as error:  # a compiler raises errors of any kind
        answer = {"record": None, "failed": f"{type(error).__name__}: {first_line(error)}"}
    pathlib.Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(answer))


def create_devices(target: Target) -> tuple[Any, ...]:
    """Return the JAX devices of a target; they can be compiled for, and run nothing.

    Raises:
      BadInput: the compiler does not know a machine of this size.
    """
    size = "x".join(map(str, target.dimensions))
    if target.platform == "gpu":
        topology: dict[str, Any] = {"platform": "cuda", "topology": f"1x{size}"}
        topology["target_config"] = describe_gpu(target)
    else:
        topology = {"platform": "tpu", "topology_name": f"{target.specs['name']}:{size}"}
        if target.specs["chip_config"]:
            # libtpu's default for v4 has two devices a chip; JAX on a v4 has one.
            topology["chip_config_name"] = target.specs["chip_config"]
        if math.prod(target.dimensions) == 1:
            topology["chips_per_host_bounds"] = (1, 1, 1)  # a single chip is no whole host
    try:
        return tuple(topologies.get_topology_desc(**topology).devices)
    except Exception as error:  # of any kind
        raise BadInput(f"--target={target.name}: {first_line(error)}") from error


def compile_for_target(config: Config, target: Target) -> tuple[TargetRecord, dict[str, Any]]:
    """Return what the compiler reports about a training step on a target, and `Answer.network`.

    It needs a valid experiment and a process in the variables of `target.environment`.

    Raises:
      BadInput: the compiler is missing, or the batch does not split over the machine's devices.
    """
    config, _ = without_unused(config.for_all_devices())
    devices = create_devices(target)
    layout = BatchLayout.create(config, len(devices))
    with get_precision(config.precision).enabled():
        program = build_program(config, DataMesh(devices, config.parallelism), layout, 1)
        program.check()
        network = describe_network(program.network) | {
            "layers": list_layers(program.network),
            "training_flops_per_image": program.network.analysis.training_flops,
            "training_flops_by_6n": program.network.analysis.flops_by_6n,
        }
        args = abstract_args(config, layout)
        state = program.abstract_placed_state()
        record = functools.partial(
            TargetRecord,
            target=target.name,
            origin="compiled",
            compiler=compiler_version(target),
            device_kind=target.kind,
            num_devices=layout.num_devices,
            batch_size=config.batch_size,
            batch_per_device=layout.batch_per_device,
            precision=config.precision,
            device_memory_bytes=target.usable_bytes,
        )
        try:
            compiled, text = begin_compile("train_step", program.train_step, state, *args)()
        except jax.errors.JaxRuntimeError as error:
            if (refusal := read_refusal(str(error))) is None:
                raise
            words, fits = refusal
            return record(fits=fits, refusal=words, needed_bytes=needed_bytes(words)), network
        memory, calls = compiled.memory or {}, count_calls(text or "")
        clock_hz = 1e6 * float(target.specs.get("clock_mhz") or 0)
        cycles = calls.estimated_cycles if clock_hz else 0
        compiled_record = record(
            # A TPU's compiler has refused what does not fit.
            fits=target.platform == "tpu" or memory["total_bytes"] <= target.usable_bytes,
            needed_bytes=memory["total_bytes"],
            lower_s=compiled.lower_s,
            compile_s=compiled.compile_s,
            memory=memory,
            state_donated=memory["alias_bytes"] >= program.state_bytes_per_device(),
            collectives=compiled.collectives or {},
            flops_per_image=program.network.analysis.training_flops,
            custom_calls=calls.custom_calls,
            estimated_cycles=cycles or None,
            estimated_images_per_s=layout.images_per_step * clock_hz / cycles if cycles else None,
        )
        return compiled_record, network


def compile_for(
    target: str,
    config: Config,
    workdir: str | None,
    arguments: Sequence[str],
    *,
    scaling: str | None = None,
    price: Price | None = None,
    calibration: str | None = None,
    anchors: Sequence[str] = (),
) -> Recorder:
    """Predict a training step's rate on a target, compile it if its compiler is here, and record.

    Args:
      target: the machine's name.
      config, workdir: see `prepare_run`.
      arguments: see `ask_compiler`.
      price: what an hour of the target costs.
      calibration, anchors: see `Predictor`.
      scaling: weak | strong | both: compile for ever more devices of the target, up to all; a size
        on which the step does not fit is a result. None: the run's status says whether it fits.

    Raises:
      BadInput: see `check_target` and `Predictor`.
      DoesNotFit: the compiler refuses the step, or its estimate or the least that is predicted is
        more than the memory.
      RunFailed: it does not support the step, crashed, or failed otherwise, for one of the sizes.
    """
    machine = check_target(config, target)
    sizes = [(None, machine, config.batch_size)]
    if scaling:
        kinds = ("weak", "strong") if scaling == "both" else (scaling,)
        sizes = [size for kind in kinds for size in _sizes(config, machine, kind)]
    scalings = [kind for kind, *_ in sizes]
    check_workdir(workdir, config.name)
    predictor = Predictor(config, [machine], calibration, anchors)
    _, network = predictor.trace(machine)
    config, unused = without_unused(config.for_all_devices())
    mesh, most = DataMesh(machine.devices, config.parallelism), machine.num_devices
    with contextlib.closing(create_console()) as console:
        steps = [(one, batch_size) for _, one, batch_size in sizes]
        clock, title = Clock(), "compiling for {}, batch {:,}"
        answers = compile_steps(steps, arguments, title, console, clock, strict=True)
        first = next(answers)  # BadInput of a machine that the compiler does not know
        with record_run(
            RunContext(config, clock, console, mesh, unused),
            "compile",
            workdir,
            summarize=_summarize,
            document={"target": machine.name} | ({"scaling": scaling} if scaling else {}) | network,
            telemetry_s=0.0,
            # Without the price: nothing is paid for here.
        ) as recorder:
            predictions = [
                # The price is of the whole machine.
                predictor.predict(one, price if one.num_devices == most else None, batch_size)
                for one, batch_size in steps
            ]
            if scaling:
                add_efficiency(scalings, predictions)
            for line in prediction_lines(predictor.config, predictions, scalings):
                console.say(line)
            if first.not_compiled:
                console.say(f"not compiled: {first.not_compiled.partition(': ')[2]}")
            failed = []
            answers = itertools.chain([first], answers)
            for (kind, one, _), predicted, answer in zip(sizes, predictions, answers, strict=True):
                if answer.failed:
                    failed.append(f"{one.name}: {answer.failed}")
                    continue
                record = TargetRecord(
                    **predicted, origin="predicted", device_memory_bytes=one.usable_bytes
                )
                if answer.record:
                    record = _with_prediction(answer.record, predicted)
                record = msgspec.structs.replace(record, scaling=kind)
                recorder.write(record)
                if record.refusal and record.fits is None:
                    failed.append(f"{one.name}: {record.refusal}")
            records = recorder.of_kind(TargetRecord)
            if not first.not_compiled:
                for line in [*target_table(records), *compiled_facts(records[-1:])]:
                    console.say(line)
            if failed:
                raise RunFailed("; ".join(failed))
            record = records[-1]
            if scaling is None and record.fits is False:
                why = record.refusal or record.not_predicted
                if record.needed_bytes is not None and record.refusal is None:
                    why = (
                        f"the step needs {record.needed_bytes / 2**30:.2f} GiB on each device and "
                        f"may use {record.device_memory_bytes / 2**30:.2f}"
                    )
                raise DoesNotFit(f"{record.target}: {why}")
        return recorder


def _summarize(status: str, records: Sequence[TargetRecord]) -> CompileSummary:
    """Return the values of the whole machine, which comes last."""
    if not records:
        return CompileSummary(status=status)
    last = records[-1]
    rate = Estimate.of_fields(last.predicted, "images_per_s")
    return CompileSummary(
        status=status,
        planned_bytes_per_device=last.needed_bytes,
        device_memory_bytes=last.device_memory_bytes,
        **rate.fields("predicted_images_per_s"),
        compile_s=sum((r.lower_s or 0.0) + (r.compile_s or 0.0) for r in records) or None,
    )


def _sizes(config: Config, machine: Target, kind: str) -> Iterator[tuple[str, Target, int]]:
    """Yield the sizes of a machine, except those that do not divide the batch."""
    batch_per_device = config.batch_size // machine.num_devices
    for target in smaller_targets(machine):
        weak_batch = batch_per_device * target.num_devices
        batch_size = weak_batch if kind == "weak" else config.batch_size
        if batch_size % batch_multiple(config, target.num_devices) == 0:
            yield kind, target, batch_size


def compile_steps(
    steps: Sequence[tuple[Target, int]],
    arguments: Sequence[str],
    title: str,
    console: Console,
    clock: Clock,
    *,
    strict: bool,
) -> Iterator[Answer]:
    """Yield a compiler's answer about the training step on each target with each batch size.

    Both kinds of scaling end in the same step, which is compiled once.

    Args:
      arguments: see `ask_compiler`.
      title: of the phase in which it compiles; {} are the target and the batch.
      strict: see `ask_compiler`; only of the first step that is compiled.
    """
    answers: dict[tuple[str, int], Answer] = {}
    for target, batch_size in steps:
        step = target.name, batch_size
        if step not in answers:
            try:
                compiler_version(target)
            except BadInput as error:
                yield Answer(not_compiled=str(error))
                continue
            with console.phase(title.format(*step)), clock.phase("compile"):
                given = [*arguments, f"--experiment.batch_size={batch_size}"]
                answers[step] = ask_compiler(given, target, strict=strict and not answers)
        yield answers[step]


def _with_prediction(record: TargetRecord, answer: Mapping[str, Any]) -> TargetRecord:
    """Return a compiler's record with a `Predictor`'s answer; what it refuses has no rate."""
    if record.fits:
        expected = {name: answer.get(name) for name in ("predicted", "not_predicted")}
        if (predicted := expected["predicted"]) and record.estimated_cycles:
            names = ("estimated_cycles", "estimated_images_per_s")
            beside = {name: getattr(record, name) for name in names}
            expected["predicted"] = predicted | {"basis": predicted["basis"] | beside}
    else:
        why = "does not support it" if record.fits is None else "says that it does not fit"
        expected = {"not_predicted": f"the compiler {why}"}
    return msgspec.structs.replace(record, **expected)


def describe_targets(
    experiment: Experiment,
    names: str,
    arguments: Sequence[str],
    *,
    as_json: bool,
    prices: Mapping[str, Price],
    calibration: str | None = None,
    anchors: Sequence[str] = (),
) -> int:
    """Predict a training step's rate on each target, compile it if its compiler is here, and print.

    Args:
      experiment: a valid one.
      names: the targets, with commas between them.
      arguments: see `ask_compiler`.
      as_json: print an object with the fields of `TargetRecord` and `predicted`, or a list of
        several targets' objects, not tables.
      prices: {target: what an hour of it costs}.
      calibration, anchors: see `Predictor`.

    Returns:
      The exit code: 1 if a compiler failed.

    Raises:
      BadInput: see `check_target`, `split_targets` and `Predictor`.
    """
    if RESULT_VARIABLE in os.environ:
        write_answer(experiment, names)  # type: ignore[arg-type]
        return 0
    targets = [check_target(experiment, name) for name in split_targets(names)]
    assert isinstance(experiment, Config)  # check_target refuses others
    console = Console(sys.stderr)  # standard output is for the answers
    with console.phase("tracing the network"):
        predictor = Predictor(experiment, targets, calibration, anchors)
    predictions = [predictor.predict(one, prices.get(one.name)) for one in targets]
    steps = [(one, experiment.batch_size) for one in targets]
    title, strict = "compiling for {}", len(targets) == 1
    answers = [*compile_steps(steps, arguments, title, console, Clock(), strict=strict)]
    records: list[TargetRecord] = []
    for row, answer in zip(predictions, answers, strict=True):
        if answer.record:
            records.append(_with_prediction(answer.record, row))
            row |= {"predicted": None, "fits": None} | records[-1].to_json()
        elif answer.failed:
            row |= {"failed": answer.failed}
        else:
            row |= {"origin": "predicted", "not_compiled": answer.not_compiled}
    failed = [f"{row['target']}: failed: {row['failed']}" for row in predictions if "failed" in row]
    if as_json:
        print(json.dumps(predictions if len(predictions) > 1 else predictions[0]))
        return int(bool(failed))
    console = create_console()
    if records:
        print_network(next(answer.network for answer in answers if answer.record))
        print()
    for line in prediction_lines(experiment, predictions):
        console.say(line)
    if records:
        console.say("")
    # The machine's name is left out: one line for all GPUs.
    reasons = [one.not_compiled.partition(": ")[2] for one in answers if one.not_compiled]
    not_compiled = [f"not compiled: {why}" for why in dict.fromkeys(reasons)]
    for line in [*target_table(records), *compiled_facts(records), *not_compiled, *failed]:
        console.say(line)
    return int(bool(failed))
