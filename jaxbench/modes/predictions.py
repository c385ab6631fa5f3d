"""Predict the rates of an experiment on machines that are not here, in seconds, without compilers.

The forward pass is traced for one example on this machine's CPU; `jaxbench.predict` does the rest.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxbench.analysis.pricing import S_PER_HOUR, Price
from jaxbench.batch_layout import BatchLayout
from jaxbench.clock import duration
from jaxbench.config import Config
from jaxbench.data_config import PUBLIC_SETS
from jaxbench.errors import BadInput
from jaxbench.fields import without_unused
from jaxbench.hardware.targets.target import Target, target_of_kind
from jaxbench.metrics import plain
from jaxbench.modes.runner import describe_program
from jaxbench.parallel.mesh import DataMesh
from jaxbench.precision import get_precision
from jaxbench.predict import calibration as fitted
from jaxbench.predict.layers import NetworkShape, read_network
from jaxbench.predict.prediction import (
    NotPredicted,
    Prediction,
    RunsOutOfMemory,
    predict,
    setting_of,
)
from jaxbench.predict.rates import Rate
from jaxbench.records.reader import load_run
from jaxbench.records.writers.rows import noun
from jaxbench.tables.text import text_table
from jaxbench.train import build_program
from jaxbench.training.network_analysis import trace_network

TITLE = "Predicted, not measured, from published rates; 80 % and 90 % intervals."
_SHARED = ("target", "batch", "rate", "80 %", "90 %")
_SPARE = ("most of a step", "training")


def read_shape(config: Config) -> tuple[NetworkShape, dict[str, Any]]:
    """Return what the experiment's network does with an example, and run.json's fields of it.

    It is traced on a CPU.

    Raises:
      BadInput: the config makes no network.
    """
    config, _ = without_unused(config.for_all_devices())
    # The batch has no effect on an example.
    one = dataclasses.replace(config, num_devices=1)
    mesh = DataMesh(tuple(jax.devices("cpu")[:1]), one.parallelism)
    with get_precision(config.precision).enabled():
        program = build_program(one, mesh, BatchLayout.create(one, 1), steps_per_epoch=1)
        program.check()
        shapes = vars(program.abstract_train_state())
        traced = trace_network(program.model, program.mesh, program.input_shape, shapes)
        return read_network(traced.jaxpr.jaxpr), describe_program(program)


def load_calibration(path: str | None) -> fitted.Calibration:
    """Return the calibration in a file that `jaxbench calibrate` wrote, or jaxbench's.

    Raises:
      BadInput: the file is missing or no calibration.
    """
    if path is None:
        return fitted.load()
    try:
        return fitted.load(pathlib.Path(path).expanduser())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"--calibration={path}: no calibration: {error}") from None


def read_anchor(path: str, config: Config, shape: NetworkShape) -> Rate:
    """Return the rate that a run measured on an accelerator, to shift predictions by.

    Args:
      path: a run directory.
      config: the experiment that is predicted.
      shape: its network, which the run trained too.

    Raises:
      BadInput: it has no rate, or its device or its network is unknown.
    """
    run = load_run(path)
    document = run.document
    rates = {name: rate for name, (rate, _, _) in run.rates().items()}
    rate = rates.get("train_step") or rates.get("training")
    kind, count = (document.environment.get(name) for name in ("device_kind", "num_devices"))
    target = target_of_kind(str(kind), count or 1)
    if not rate or target is None:
        problem = "no steady rate of training" if target else f"{kind} is not among --target=list"
        raise BadInput(f"--anchor={path}: {problem}")
    precision = document.config["precision"]
    if document.forward_macs_per_image != shape.macs or precision != config.precision:
        raise BadInput(
            f"--anchor={path}: it trained another network, or in {precision}; only the same "
            "network and precision help"
        )
    batch = document.config["batch_size"] / target.num_devices
    setting = setting_of(shape, target, precision, batch)
    return Rate(setting, batch * target.num_devices / rate, False, path, "")


class Predictor:
    """Predicts an experiment's rates on machines that are not here.

    Attributes:
      config: the experiment.
      shape: of its network.
      network: run.json's fields of it.
    """

    def __init__(
        self,
        config: Config,
        targets: Sequence[Target],
        calibration: str | None = None,
        anchors: Sequence[str] = (),
    ):
        """Trace the network.

        Args:
          config: a valid experiment.
          targets: the machines that will be asked for.
          calibration: a file of `python -m jaxbench.calibrate`; None takes jaxbench's.
          anchors: run directories of devices of the targets' kinds, to shift predictions by.

        Raises:
          BadInput: no calibration, or an anchor that does not help.
        """
        # No device is used. JAX would look for all, and its plugins complain about missing ones.
        jax.config.update("jax_platforms", "cpu")
        self._calibration = load_calibration(calibration)
        self.config = config
        self.shape, self.network = read_shape(config)
        self._anchors = [read_anchor(path, config, self.shape) for path in anchors]
        for rate in self._anchors:
            if rate.setting.kind not in {target.kind for target in targets}:
                raise BadInput(
                    f"--anchor={rate.source}: measured on {rate.setting.kind}, and no --target is "
                    "one"
                )

    def predict(
        self, target: Target, price: Price | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Return the fields of a prediction.

        `predicted` is None, and `not_predicted` says why, or it has `Prediction.to_json` with the
        time of an epoch and of the whole training, and with its price, each with the 80 % interval.
        `fits` is False of a step that is predicted to run out of memory.

        Args:
          target: the machine.
          price: what an hour of it costs.
          batch_size: in place of the experiment's.
        """
        config = dataclasses.replace(self.config, batch_size=batch_size or self.config.batch_size)
        layout = BatchLayout.create(config, target.num_devices)
        answer = {
            "target": target.name,
            "device_kind": target.kind,
            "num_devices": target.num_devices,
            "batch_size": config.batch_size,
            "batch_per_device": layout.batch_per_device,
            "precision": config.precision,
            "predicted": None,
        }
        anchors = [rate for rate in self._anchors if rate.setting.kind == target.kind]
        try:
            if why := _uncalibrated(config, target):
                raise NotPredicted(why)
            batch = layout.batch_per_device / layout.gradient_accumulation_steps
            setting = setting_of(self.shape, target, config.precision, batch)
            prediction = predict(setting, self._calibration, anchors)
        except RunsOutOfMemory as error:
            return answer | {"not_predicted": str(error), "fits": False}
        except NotPredicted as error:
            return answer | {"not_predicted": str(error)}
        fields = prediction.to_json() | _schedule(config, prediction, price)
        if tokens := config.data.sequence_length:
            fields["tokens_per_s"] = prediction.examples_per_s * tokens
        return answer | {"predicted": fields}


def _uncalibrated(config: Config, target: Target) -> str:
    """Return why nothing that was measured is like this experiment there, or nothing."""
    if config.remat != "none":
        return f"no published rate has what remat={config.remat} recomputes"
    if config.replicas != "data_parallel":
        return f"no published rate has replicas={config.replicas}"
    if target.platform == "gpu" and target.dimensions[0] > 1:
        return (
            f"no published rate tells what the network between {target.dimensions[0]} hosts costs"
        )
    return ""


def _schedule(config: Config, prediction: Prediction, price: Price | None) -> dict[str, Any]:
    """Return the seconds and USD of an epoch and of the training, without its evaluations."""
    low, high = prediction.intervals[fitted.LEVELS[0]]

    def takes(examples: float) -> tuple[float, list[float]]:
        time_s, *ends_s = (examples / rate for rate in (prediction.examples_per_s, high, low))
        return time_s, ends_s

    fields: dict[str, Any] = {}
    times = {"usd_per_million_images": takes(1e6)}
    if examples := config.data.train_examples or _published_examples(config):
        steps = max(1, examples // config.batch_size)
        total_steps = min(math.ceil(steps * config.epochs), config.max_steps or math.inf)
        fields["epoch_s"], fields["epoch_interval_80_s"] = takes(steps * config.batch_size)
        training = takes(total_steps * config.batch_size)
        fields["training_s"], fields["training_interval_80_s"] = training
        times["training_usd"] = training
    if price is not None:
        usd_per_s = price.usd_per_hour / S_PER_HOUR
        for name, (time_s, ends_s) in times.items():
            fields[name] = time_s * usd_per_s
            fields[f"{name}_interval_80"] = [end_s * usd_per_s for end_s in ends_s]
    return fields


def _published_examples(config: Config) -> int:
    """Return how many training examples a public data set has, 0 if the name is unknown."""
    name = config.data.name.partition(":")[0].partition("/")[0]
    sizes = {public: examples for examples, _, _, public in PUBLIC_SETS.values()}
    return sizes.get("cifar10" if config.data.source == "cifar10_batches" else name, 0)


def add_efficiency(scalings: Sequence[str | None], answers: Sequence[Mapping[str, Any]]) -> None:
    """Add to predictions the rate of a device over that of the first of its kind of scaling."""
    first: dict[str | None, float] = {}
    for scaling, answer in zip(scalings, answers, strict=True):
        if predicted := answer["predicted"]:
            rate = predicted["images_per_s"] / answer["num_devices"]
            predicted["efficiency"] = rate / first.setdefault(scaling, rate)


def prediction_lines(config: Config, answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of a `Predictor`'s answers, and of what they rest on."""
    scaled = any("efficiency" in (answer["predicted"] or {}) for answer in answers)
    headings = (*_SHARED, *(("efficiency",) if scaled else ()), *_SPARE)
    rows: list[list[str]] = []
    notes: dict[str, list[str]] = {}
    unit = f"{noun(config.data.sequence_length)}/s"
    for answer in answers:
        predicted, name = answer["predicted"], answer["target"]
        row = [name, f"{answer['batch_size']:,}"]
        if predicted is None:
            rows.append([*row, *["-"] * (len(headings) - 2)])
            note = f"not predicted, because {answer['not_predicted']}"
        else:
            rows.append([*row, *_cells(predicted, unit)])
            note = basis_words(predicted["basis"])
        notes.setdefault(note, []).append(name)
    told = [f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in notes.items()]
    return [TITLE, *text_table(headings, rows, _SPARE), *told]


def _cells(predicted: Mapping[str, Any], unit: str) -> list[str]:
    spans = [
        " to ".join(map(plain, predicted[f"interval_{level * 100:.0f}"])) for level in fitted.LEVELS
    ]
    share = predicted["parts_s"][predicted["bound_by"]] / predicted["step_s"]
    training = "-"
    if "training_s" in predicted:
        training = duration(predicted["training_s"])
        if "training_usd" in predicted:
            low, high = predicted["training_usd_interval_80"]
            training += f", {low:,.2f} to {high:,.2f} USD"
    rate = f"{plain(predicted['images_per_s'])} {unit}"
    scaled = [f"{predicted['efficiency']:.0%}"] if "efficiency" in predicted else []
    return [rate, *spans, *scaled, f"{predicted['bound_by']} {share:.0%}", training]


def basis_words(basis: Mapping[str, Any]) -> str:
    """Return what a prediction rests on, in a line."""
    new = "a new generation; " if basis["new_generation"] else ""
    network = basis["network"] or f"a {basis['family']} network"
    return (
        f"{new}{basis['generation']}, {network}, {basis['software']}; the interval is from "
        f"{' and '.join(basis['interval_from'])}"
    )
