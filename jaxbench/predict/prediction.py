"""Predict the rate of a training step on a machine that is not here, or say why not.

setting = setting_of(shape, target, precision="bf16", batch_per_device=128)
predict(setting, load()).to_json()
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbench.analysis.rate import Estimate
from jaxbench.errors import BadInput
from jaxbench.hardware.peak_table import find_bandwidth, find_peak
from jaxbench.hardware.targets.target import Target
from jaxbench.predict.calibration import ANCHOR_WEIGHT, LEVELS, Calibration, anchored
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.model import errors
from jaxbench.predict.networks import identify
from jaxbench.predict.rates import Rate, Setting, arithmetic_of

SOFTWARE = "JAX"
# Launches, dispatch and latency are not calibrated well enough to be most of a step.
_MOST_OVERHEAD = 0.5
# No row that was left out is further off than 2.4 times; a slowed device may be.
_MOST_ANCHOR_ERROR = 5


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The rate to expect.

    Attributes:
      rates: {level: examples/s of all devices, with the interval of that level}.
      parts_s: {what: seconds of a step}: products, elementwise, optimizer, links, fixed.
    """

    rates: dict[float, Estimate]
    parts_s: dict[str, float]
    basis: dict[str, Any]

    @property
    def rate(self) -> Estimate:
        """Examples/s of all devices, with the 80 % interval."""
        return self.rates[LEVELS[0]]

    @property
    def bound_by(self) -> str:
        """What takes most of a step."""
        return max(self.parts_s, key=self.parts_s.get)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of `predicted` in JSON."""
        return {
            **self.rate.fields("images_per_s"),
            **self.rates[LEVELS[1]].fields("images_per_s_90"),
            "step_s": sum(self.parts_s.values()),
            "bound_by": self.bound_by,
            "parts_s": self.parts_s,
            "origin": "predicted",
            "basis": self.basis,
        }


class NotPredicted(BadInput):
    """Says in one line why there is no prediction."""


class RunsOutOfMemory(NotPredicted):
    """Says that a device has less memory than the step needs at the least."""


def setting_of(
    shape: NetworkShape, target: Target, precision: str, batch_per_device: float
) -> Setting:
    """Return the setting of a training step of jaxbench.

    Raises:
      NotPredicted: the machine has no such arithmetic, or its peaks are unknown.
    """
    if not find_peak(target.kind, precision):
        others = [one for one in ("bf16", "fp16", "fp32") if find_peak(target.kind, one)]
        raise NotPredicted(
            f"{target.kind} has no {precision} units, or no peak of them is known; "
            f"--experiment.precision={' or '.join(others)} has one"
        )
    if find_bandwidth(target.kind) is None:
        raise NotPredicted(f"no memory bandwidth of {target.kind} is known")
    return Setting(
        shape=shape,
        network=identify(shape.macs, shape.weights),
        target=target,
        num_devices=target.num_devices,
        arithmetic=arithmetic_of(target.kind, precision),
        element_bytes=2 if precision in ("bf16", "fp16") else 4,
        batch=batch_per_device,
        software=SOFTWARE,
    )


def predict(setting: Setting, calibration: Calibration, anchors: Sequence[Rate] = ()) -> Prediction:
    """Predict the rate of a step.

    Args:
      anchors: rates of this network and precision that were measured on devices of the same kind.
        The prediction is shifted by their mean error, times `ANCHOR_WEIGHT`.

    Raises:
      NotPredicted: no rate near it was measured, the step runs out of memory, or it is too short.
    """
    target, family = setting.target, setting.shape.family
    near = f"{target.platform}, {setting.arithmetic}, {family}"
    if near not in calibration.seen["arithmetic, family"]:
        precision = {"16": "16 bits", "tf32": "TF32", "fp32": "fp32"}[setting.arithmetic]
        raise NotPredicted(
            f"no rate of a network like this ({family}) in {precision} on a "
            f"{target.platform.upper()} was published for XLA"
        )
    needed, least = memory_bytes(setting), least_memory_bytes(setting)
    if least > target.usable_bytes:
        raise RunsOutOfMemory(
            f"it runs out of memory: a device needs {least / 2**30:.1f} GiB at least and has "
            f"{target.usable_bytes / 2**30:.1f}"
        )
    parts_s = {name: float(part[0]) for name, part in calibration.model.parts([setting]).items()}
    step_s = sum(parts_s.values())
    overhead_s = parts_s["fixed"] + _latency_s(setting, calibration)
    if overhead_s > _MOST_OVERHEAD * step_s:
        raise NotPredicted(
            f"launches and the latency of exchanges would be {overhead_s / step_s:.0%} of a step "
            f"of {step_s * 1e3:.2g} ms, and no published rate tells how long they take; a larger "
            "batch is predicted"
        )
    rate = setting.batch * setting.num_devices / step_s
    shift = 1.0
    if anchors:
        error = float(np.mean(errors(calibration.model, anchors)))
        if abs(error) > math.log(_MOST_ANCHOR_ERROR):
            raise NotPredicted(
                f"the anchor's rate is {math.exp(-error):.3g} times what is expected of such a "
                f"device; more than {_MOST_ANCHOR_ERROR} times is none of its rates"
            )
        shift = math.exp(-ANCHOR_WEIGHT * error)
    rate, parts_s = rate * shift, {name: part / shift for name, part in parts_s.items()}
    widths = {
        level: calibration.half_width(setting, level, has_anchor=bool(anchors)) for level in LEVELS
    }
    evidence = calibration.evidence(setting)
    new_generation, rows = "generation" in evidence, calibration.left_out[evidence[0]]
    if anchors:
        evidence, rows = ("device, with an anchor,",), anchored(calibration.left_out["device"])
    basis = {
        "software": SOFTWARE,
        "generation": setting.generation,
        "new_generation": new_generation,
        "family": family,
        "network": setting.network,
        "arithmetic": setting.arithmetic,
        "rates": calibration.num_rates,
        "interval_from": [f"each {name} left out" for name in evidence],
        "median_error": float(np.median(np.abs(np.expm1([row.error for row in rows])))),
        "may_run_out_of_memory": needed > target.usable_bytes,
        "anchor": {"rates": len(anchors), "shift": shift} if anchors else None,
    }
    return Prediction(
        {
            level: Estimate(rate, rate * math.exp(-width), rate * math.exp(width))
            for level, width in widths.items()
        },
        parts_s,
        basis,
    )


def _latency_s(setting: Setting, calibration: Calibration) -> float:
    """Return the seconds of launches and of an exchange's latency, before offsets."""
    parameters = calibration.model.parameters
    launches = sum(layer.times for layer in setting.shape.layers)
    exchange_s = math.exp(parameters["exchange_s"]) if setting.link != "none" else 0.0
    return 6 * launches * math.exp(parameters["launch_xla_s"]) + exchange_s


def memory_bytes(setting: Setting) -> float:
    """Return what a device needs: the state, and what the backward pass reads.

    XLA plans 0.7 to 1.2 of it for networks that have room (`results/targets/`).
    """
    shape = setting.shape
    return shape.state_bytes + shape.kept_bytes(setting.element_bytes) * setting.batch


def least_memory_bytes(setting: Setting) -> float:
    """Return what a device needs if the compiler computes most activations again.

    XLA was seen to fit ViT-S/16 into 0.46 of `memory_bytes`, and ResNet-50 into 0.64.
    """
    state_bytes = setting.shape.state_bytes
    return state_bytes + 0.4 * (memory_bytes(setting) - state_bytes)
