"""The rates of training steps in runs and cards, as predictions take them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxbench.analysis.rate import steady_epochs, steady_rate
from jaxbench.cards.card import Card
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import Target, target_of_kind
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.prediction import setting_of
from jaxbench.predict.rates import Rate
from jaxbench.schema import EpochRecord, InputRecord, RunDocument, ScalingRecord, ThroughputRecord
from jaxbench.xla.jaxpr import FLOPS_PER_MAC

# A training that waits for data longer than this fraction of its time has not the rate of its step.
_MOST_WAIT = 0.05
_TIMES = ("data_wait_s", "train_time_s")


class NoRate(BadInput):
    """Says why a run or a card has no rate that predictions can use."""


class Measured(NamedTuple):
    """A measured rate of a training step.

    Attributes:
      experiment: its name; `settings` are the fields of it that are known.
      macs: multiply-accumulates of the network's forward pass for an example.
      batch: examples of each device in a step; in a part of it if gradients are accumulated.
      step_s: seconds for such a batch.
      attention: that of the record, None if it has none.
    """

    experiment: str
    settings: Mapping[str, Any]
    macs: float
    target: Target
    precision: str
    batch: float
    step_s: float
    source: str
    date: str
    attention: str | None = None

    def rate(self, shape: NetworkShape) -> Rate:
        """Return the rate of a network of this shape; raise NotPredicted for unknown peaks."""
        setting = setting_of(shape, self.target, self.precision, self.batch)
        return Rate(setting, self.step_s, False, self.source, self.date)


def measured_rates(measured: Any, source: str) -> list[Measured]:
    """Return the rates of training steps that a run or a card has.

    Args:
      measured: a `Card`, or a run: `RunRecords` or a run of the report.
      source: its path.

    Raises:
      NoRate: it has none that predictions can use.
    """
    if isinstance(measured, Card):
        rates = _rates_of_card(measured, source)
    else:
        rates = _rates_of_run(measured.document, measured.records, source)
    if not rates:
        raise NoRate("no steady rate of a training step")
    return rates


def unlike_published(settings: Mapping[str, Any], target: Target) -> str:
    """Return why nothing that was published is like an experiment with these fields there."""
    if (remat := settings.get("remat", "none")) != "none":
        return f"no published rate has what remat={remat} recomputes; remat=none may have one"
    if (replicas := settings.get("replicas", "data_parallel")) != "data_parallel":
        return f"no published rate has replicas={replicas}"
    model = settings.get("model", {})  # a configuration, or that of a record
    if (model if isinstance(model, Mapping) else vars(model)).get("lora_rank"):
        return "no published rate has adapters, with all else frozen"
    if target.platform == "gpu" and target.dimensions[0] > 1:
        return (
            f"no published rate tells what the network between {target.dimensions[0]} hosts costs"
        )
    return ""


def _target(environment: Mapping[str, Any], num_devices: int | None = None) -> Target:
    kind = str(environment.get("device_kind"))
    target = target_of_kind(kind, num_devices or environment.get("num_devices") or 1)
    if target is None:
        raise NoRate(f"{kind} is not among --target=list")
    if target.platform == "gpu" and environment.get("num_processes", 1) > 1:
        raise NoRate("several processes drive its GPUs, maybe on several hosts")
    if precision := environment.get("matmul_precision"):
        raise NoRate(f"jax_default_matmul_precision={precision} is not predicted")
    return target


def _rates_of_card(card: Card, source: str) -> list[Measured]:
    target = _target(card.environment)
    flops = {figure.metric[1]: figure.value for figure in card.named("flops_per_image")}
    return [
        Measured(
            str(figure.labels["network"]),
            {},
            # The backward pass has twice as many.
            flops.get(figure.metric[1], 0.0) / 3 / FLOPS_PER_MAC,
            target,
            str(figure.labels["precision"]),
            batch / target.num_devices,
            batch / figure.value,
            source,
            card.created_at[:10],
        )
        for figure in card.named("images_per_s")
        if figure.value > 0 and isinstance(batch := figure.labels["batch"], int) and batch > 0
    ]


def _rates_of_run(document: RunDocument, records: Any, source: str) -> list[Measured]:
    settings, environment = document.config, document.environment
    if problem := unlike_published(settings, _target(environment)):
        raise NoRate(problem)
    steps: list[tuple[int | None, int | None, float | None]] = [
        (one.num_devices, one.batch_size, one.images_per_s)
        for one in records
        if isinstance(one, ScalingRecord)
        or (isinstance(one, ThroughputRecord | InputRecord) and one.stage == "train_step")
    ]
    epochs = steady_epochs(one for one in records if isinstance(one, EpochRecord))
    waited_s, trained_s = (sum(getattr(one, name) for one in epochs) for name in _TIMES)
    if waited_s > _MOST_WAIT * trained_s:
        raise NoRate("its training waited for data")
    steps.append((None, settings.get("batch_size"), steady_rate(epochs).value))
    parts = settings.get("gradient_accumulation_steps", 1)
    rates = []
    for num_devices, batch, rate in steps:
        try:
            target = _target(environment, num_devices)
        except NoRate:  # a part of a host of TPUs
            continue
        if rate and batch:
            rates.append(
                Measured(
                    document.experiment,
                    settings,
                    document.forward_macs_per_image or 0,
                    target,
                    str(settings.get("precision")),
                    batch / target.num_devices / parts,
                    batch / rate / parts,
                    source,
                    document.started_at[:10],
                    document.attention,
                )
            )
    return rates
