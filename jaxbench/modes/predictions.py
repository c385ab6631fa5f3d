"""Predict the rates of an experiment on machines that are not here, in seconds, without compilers.

The forward pass is traced for one example on this machine's CPU; `jaxbench.predict` does the rest.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxbench.analysis.pricing import Price, costs_to_expect, usd
from jaxbench.analysis.rate import Estimate, rank
from jaxbench.batch_layout import BatchLayout
from jaxbench.cards.card_file import is_card, read_card
from jaxbench.clock import duration
from jaxbench.config import Config
from jaxbench.config.data import PUBLIC_SETS
from jaxbench.config.fields import without_unused
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import Target
from jaxbench.metrics import plain
from jaxbench.models.transformer_block import FUSED_ATTENTION
from jaxbench.modes.measured_rates import Measured, NoRate, measured_rates, unlike_published
from jaxbench.modes.runner import describe_attention, describe_network, with_attention
from jaxbench.parallel.mesh import DataMesh, host_device
from jaxbench.paths import user_path
from jaxbench.precision import get_precision
from jaxbench.predict import calibration as fitted
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.prediction import (
    NotPredicted,
    Prediction,
    RunsOutOfMemory,
    predict,
    setting_of,
)
from jaxbench.records.reader import load_run
from jaxbench.records.writers.rows import noun
from jaxbench.tables.text import text_table
from jaxbench.train import build_program

TITLE = "Predicted, not measured, from published rates, with intervals."


def read_shape(
    config: Config, attention: str | None = "xla"
) -> tuple[NetworkShape, dict[str, Any]]:
    """Return what the experiment's network does with an example, and run.json's fields of it.

    It is traced on a CPU.

    Args:
      attention: xla, cudnn or flash, if the network has transformer blocks.

    Raises:
      BadInput: the config makes no network.
    """
    config, _ = without_unused(config.for_all_devices())
    # The batch has no effect on an example.
    one = dataclasses.replace(config, num_devices=1)
    if config.model.has_blocks:
        # Without a GPU JAX does not trace cuDNN's, nor is flash for CPUs.
        traced = FUSED_ATTENTION if attention in ("cudnn", "flash") else attention
        one = with_attention(one, traced)
    mesh = DataMesh((host_device(),), one.parallelism)
    with get_precision(config.precision).enabled():
        program = build_program(one, mesh, BatchLayout.create(one, 1), steps_per_epoch=1)
        program.check()
        return program.network.analysis.shape, describe_network(program.network)


def load_calibration(path: str | None) -> fitted.Calibration:
    """Return the calibration in a file that `jaxbench calibrate` wrote, or jaxbench's.

    Raises:
      BadInput: the file is missing or no calibration.
    """
    if path is None:
        return fitted.load()
    try:
        return fitted.load(user_path(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"--calibration={path}: no calibration of this version: {error}") from None


def read_anchor(path: str, config: Config, shape: NetworkShape) -> list[Measured]:
    """Return the rates of a network on an accelerator, by which its predictions are shifted.

    Args:
      path: a run directory, or a card or its folder.
      config: the experiment that is predicted.
      shape: its network, which the run or the card trained too.

    Raises:
      BadInput: it has no rate of this network in this precision, or its device is unknown.
    """
    try:
        rates = measured_rates(read_card(path) if is_card(path) else load_run(path), path)
    except NoRate as error:
        raise BadInput(f"--anchor={path}: {error}") from None
    alike = [
        one
        for one in rates
        if one.precision == config.precision and math.isclose(one.macs, shape.macs, rel_tol=1e-3)
    ]
    if not alike:
        raise BadInput(
            f"--anchor={path}: no rate of this network in {config.precision}; only the same "
            "network and precision help"
        )
    return alike


class Predictor:
    """Predicts an experiment's rates on machines that are not here.

    Attributes:
      config: the experiment.
    """

    def __init__(
        self,
        config: Config,
        targets: Sequence[Target] = (),
        calibration: str | None = None,
        anchors: Sequence[str] = (),
    ):
        """Trace the network for the targets.

        Args:
          config: a valid experiment.
          targets: the machines that will be asked for; needed with anchors.
          calibration: a file of `python -m jaxbench.calibrate`; None takes jaxbench's.
          anchors: see `read_anchor`; their devices are of the targets' kinds.

        Raises:
          BadInput: no calibration, or an anchor that does not help; also see `trace`.
        """
        # No device is used. JAX would look for all, and its plugins complain about missing ones.
        jax.config.update("jax_platforms", "cpu")
        self._calibration = load_calibration(calibration)
        self.config = config
        self._traced: dict[str | None, tuple[NetworkShape, dict[str, Any]]] = {}
        shapes = [self.trace(target)[0] for target in targets]
        self._anchors = [
            one for path in dict.fromkeys(anchors) for one in read_anchor(path, config, shapes[0])
        ]
        for one in self._anchors:
            if (kind := one.target.kind) not in {target.kind for target in targets}:
                raise BadInput(f"--anchor={one.source}: measured on {kind}, and no --target is one")

    def trace(self, target: Target) -> tuple[NetworkShape, dict[str, Any]]:
        """Return the shape that the network has on a target, and run.json's fields of it.

        The network is traced once for each attention.

        Raises:
          BadInput: the config makes no network, or none with this attention on this target.
        """
        fields = describe_attention(self.config, target.devices[0])
        shape, network = self._trace(fields["attention"])
        return shape, network | fields

    def _trace(self, attention: str | None) -> tuple[NetworkShape, dict[str, Any]]:
        if attention not in self._traced:
            self._traced[attention] = read_shape(self.config, attention)
        return self._traced[attention]

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

        Raises:
          BadInput: see `trace`.
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
        shape, network = self.trace(target)
        anchors = [
            one.rate(self._trace(one.attention or network["attention"])[0])
            for one in self._anchors
            if one.target.kind == target.kind
        ]
        try:
            if why := unlike_published(vars(config), target):
                raise NotPredicted(why)
            batch = layout.batch_per_device / layout.gradient_accumulation_steps
            setting = setting_of(shape, target, config.precision, batch)
            prediction = predict(setting, self._calibration, anchors)
        except RunsOutOfMemory as error:
            return answer | {"not_predicted": str(error), "fits": False}
        except NotPredicted as error:
            return answer | {"not_predicted": str(error)}
        fields = prediction.to_json() | _schedule(config, prediction, price)
        fields["basis"] |= {"attention": network["attention"]}
        if tokens := config.data.sequence_length:
            fields["tokens_per_s"] = prediction.rate.span[0] * tokens
        return answer | {"predicted": fields}


def _schedule(config: Config, prediction: Prediction, price: Price | None) -> dict[str, Any]:
    """Return the seconds and USD of an epoch and of the training, without its evaluations."""

    def takes(examples: float) -> Estimate:
        return prediction.rate.map(lambda rate: examples / rate)

    fields: dict[str, Any] = {}
    paid_s = {"usd_per_million_images": takes(1e6)}
    if examples := config.data.train_examples or _published_examples(config):
        steps = max(1, examples // config.batch_size)
        fields["train_examples"] = examples
        paid_s["training_usd"] = takes(config.num_steps(steps) * config.batch_size)
        fields |= takes(steps * config.batch_size).fields("epoch_s")
        fields |= paid_s["training_usd"].fields("training_s")
    if price is not None:
        fields["usd_per_hour"] = price.usd_per_hour
        cost = functools.partial(usd, usd_per_hour=price.usd_per_hour)
        for name, time_s in paid_s.items():
            fields |= time_s.map(cost).fields(name)
    return fields


def _published_examples(config: Config) -> int:
    """Return how many training examples a public data set has, 0 if it is unknown.

    A folder of images is taken for the public set of its shape and number of classes.
    """
    data = config.data
    name = re.split("[:/]", data.name)[0] if data.source == "tfds" else ""
    name = "cifar10" if data.source == "cifar10_batches" else name
    for examples, shape, classes, public in PUBLIC_SETS.values():
        is_like_it = (tuple(data.image_shape), data.num_classes) == (shape, classes)
        if name == public or (data.source == "folder" and is_like_it):
            return examples
    return 0


def add_efficiency(scalings: Sequence[str | None], answers: Sequence[Mapping[str, Any]]) -> None:
    """Add to predictions the rate of a device over that of the first of its kind of scaling."""
    first: dict[str | None, float] = {}
    for scaling, answer in zip(scalings, answers, strict=True):
        if predicted := answer["predicted"]:
            rate = predicted["images_per_s"] / answer["num_devices"]
            predicted["efficiency"] = rate / first.setdefault(scaling, rate)


def prediction_lines(
    config: Config, answers: Sequence[Mapping[str, Any]], scalings: Sequence[str | None] = ()
) -> list[str]:
    """Return the lines of a table of a `Predictor`'s answers, and of what they rest on.

    Args:
      scalings: weak | strong of each answer; None or nothing without scaling.
    """
    cells = {
        "90 %": lambda predicted: _span(predicted, "images_per_s_90"),
        "efficiency": lambda predicted: f"{predicted['efficiency']:.0%}",
        "most of a step": _bound_by,
    }
    if not any("efficiency" in (answer["predicted"] or {}) for answer in answers):
        del cells["efficiency"]
    return [
        TITLE,
        *_table(
            config,
            "scaling",
            [*itertools.zip_longest(scalings, answers)],
            cells,
            ("most of a step", "90 %", "batch", "training"),
        ),
    ]


def ranked(answers: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return answers with their possible ranks in words, the cheapest first."""
    predictions = [answer["predicted"] or {} for answer in answers]
    rates = [Estimate.of_fields(one, "images_per_s") for one in predictions]
    costs = costs_to_expect(rates, [one.get("usd_per_hour") for one in predictions])
    return [(words, answers[index]) for index, words in rank(costs)]


def ranking_lines(config: Config, answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of a `Predictor`'s answers, the cheapest first."""
    cells = {
        "USD/h": lambda predicted: plain(predicted.get("usd_per_hour")),
        "USD per million": lambda predicted: _span(predicted, "usd_per_million_images"),
    }
    if not any("usd_per_hour" in (answer["predicted"] or {}) for answer in answers):
        cells = {}
    by = f"USD per million {noun(config.data.sequence_length)}" if cells else "rate"
    title = (
        f"Predicted, not measured, with 80 % intervals; ranked by {by}. Machines whose intervals "
        "overlap are not told apart and have several possible ranks."
    )
    return [
        title,
        *_table(config, "rank", ranked(answers), cells, ("batch", "80 %", "USD/h", "rate")),
    ]


def _table(
    config: Config,
    title: str,
    answers: Sequence[tuple[str | None, Mapping[str, Any]]],
    cells: Mapping[str, Callable[[Mapping[str, Any]], str]],
    spare: Sequence[str],
) -> list[str]:
    """Return the lines of a table, and of what its predictions rest on.

    Args:
      config: the experiment.
      title: of the first column.
      answers: with their texts in the first column; None leaves it out.
      cells: {heading: what a prediction shows below it}.
      spare: the columns that a narrow console leaves out first.
    """
    unit = noun(config.data.sequence_length)
    cells = {
        "rate": lambda predicted: f"{plain(predicted['images_per_s'])} {unit}/s",
        "80 %": lambda predicted: _span(predicted, "images_per_s"),
        **cells,
        "training": _training,
    }
    rows: list[list[str]] = []
    notes: dict[str, list[str]] = {}
    for first, answer in answers:
        predicted, name = answer["predicted"], answer["target"]
        shown = [show(predicted) if predicted else "-" for show in cells.values()]
        rows.append([*filter(None, [first]), name, f"{answer['batch_size']:,}", *shown])
        note = f"not predicted, because {answer.get('not_predicted')}"
        notes.setdefault(basis_words(predicted["basis"]) if predicted else note, []).append(name)
    headings = [*([title] if answers[0][0] else []), "target", "batch", *cells]
    footnotes = [f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in notes.items()]
    return [*text_table(headings, rows, spare), *footnotes]


def _span(predicted: Mapping[str, Any], name: str) -> str:
    of = Estimate.of_fields(predicted, name)
    return f"{plain(of.low)} to {plain(of.high)}" if of.interval else "-"


def _bound_by(predicted: Mapping[str, Any]) -> str:
    share = predicted["parts_s"][predicted["bound_by"]] / predicted["step_s"]
    return f"{predicted['bound_by']} {share:.0%}"


def _training(predicted: Mapping[str, Any]) -> str:
    if "training_s" not in predicted:
        return "-"
    cost = f", {_span(predicted, 'training_usd')} USD" if "training_usd" in predicted else ""
    return duration(predicted["training_s"]) + cost


def basis_words(basis: Mapping[str, Any]) -> str:
    """Return what a prediction rests on, in a line."""
    new = "a new generation; " if basis["new_generation"] else ""
    network, rates = basis["network"] or f"a {basis['family']} network", basis["rates_of"]
    attention = f", {basis['attention']} attention" if basis["attention"] else ""
    return (
        f"{'may run out of memory; ' if basis['may_run_out_of_memory'] else ''}"
        f"{new}{basis['generation']}, {network}{attention}, {basis['software']}; rests on "
        f"{rates['device']} XLA rates of this device, {rates['network']} of this network, "
        f"{rates['generation']} of this generation"
    )
