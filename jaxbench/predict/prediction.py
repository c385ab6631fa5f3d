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
from jaxbench.predict.calibration import LEVELS, SOFTWARE, Calibration, near
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.networks import identify
from jaxbench.predict.rates import Rate, Setting, arithmetic_of

# Launches, dispatch and latency are not calibrated well enough to be most of a step.
_MOST_OVERHEAD = 0.5
# No row that was left out is further off than 2.7 times; a slowed device may be.
_MOST_ANCHOR_ERROR = 5


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The rate to expect.

    Attributes:
      rates: {level: examples/s of all devices, with the interval of that level}.
      parts_s: {what: seconds of a step}: products, elementwise, optimizer, links, launches, fixed.
    """

    rates: dict[float, Estimate]
    parts_s: dict[str, float]
    basis: dict[str, Any]

    @property
    def rate(self) -> Estimate:
        """Examples/s of all devices, with the 80 % interval."""
        return self.rates[LEVELS[0]]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of `predicted` in JSON."""
        return {
            **self.rate.fields("images_per_s"),
            **self.rates[LEVELS[1]].fields("images_per_s_90"),
            "step_s": sum(self.parts_s.values()),
            "bound_by": max(self.parts_s, key=self.parts_s.__getitem__),
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
    """Return the setting of a training step of jaxbench; raise NotPredicted for unknown peaks."""
    if not find_peak(target.kind, precision):
        others = [one for one in ("bf16", "fp16", "fp32") if find_peak(target.kind, one)]
        raise NotPredicted(
            f"{target.kind} has no {precision} units, or no peak of them is known; "
            f"--experiment.precision={' or '.join(others)} has one"
        )
    if precision == "fp8":
        raise NotPredicted("no published rate of a training step in fp8 is among those fitted to")
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
        They are fitted to, too.

    Raises:
      NotPredicted: no rate near it was measured, the step runs out of memory, or it is too short.
    """
    target, family = setting.target, setting.shape.family
    if near(setting) not in calibration.near:
        precision = {"16": "16 bits", "tf32": "TF32", "fp32": "fp32"}[setting.arithmetic]
        raise NotPredicted(
            f"no rate of a network like this ({family}) in {precision} on a "
            f"{target.platform.upper()} was published for XLA"
        )
    needed, least = memory_bytes(setting)
    if least > target.usable_bytes:
        raise RunsOutOfMemory(
            f"it runs out of memory: a device needs {least / 2**30:.1f} GiB at least and has "
            f"{target.usable_bytes / 2**30:.1f}"
        )
    model, shift = calibration.model, 1.0
    if anchors:
        known_s = [rate.step_s for rate in anchors]
        offs = model.predict([one.setting for one in anchors])[0] - np.log(known_s)
        off = float(offs[np.argmax(abs(offs))])
        if abs(off) > math.log(_MOST_ANCHOR_ERROR):
            raise NotPredicted(
                f"the anchor is {math.exp(abs(off)):.3g} times {'faster' if off > 0 else 'slower'} "
                f"than such a device is expected to be; at most {_MOST_ANCHOR_ERROR} times is taken"
            )
        before_s = model.step_s([setting])[0]
        model = model.given(anchors)
        shift = float(before_s / model.step_s([setting])[0])
    parts_s = {name: float(part[0]) for name, part in model.parts([setting]).items()}
    step_s, overhead_s = sum(parts_s.values()), parts_s["launches"] + parts_s["fixed"]
    if setting.link != "none":
        overhead_s += math.exp(model.knowing([setting]).values[f"exchange_s: {SOFTWARE}"])
    if overhead_s > _MOST_OVERHEAD * step_s:
        raise NotPredicted(
            f"launches and the latency of exchanges would be {overhead_s / step_s:.0%} of a step "
            f"of {step_s * 1e3:.2g} ms, and no published rate tells how long they take; a larger "
            "batch is predicted"
        )
    rate, sd = setting.batch * setting.num_devices / step_s, float(model.predict([setting])[1][0])
    basis = {
        "software": SOFTWARE,
        "generation": setting.generation,
        "new_generation": setting.generation not in calibration.generations,
        "family": family,
        "network": setting.network,
        "arithmetic": setting.arithmetic,
        "rates": calibration.num_rates,
        "rates_of": calibration.rates_of(setting),
        "may_run_out_of_memory": needed > target.usable_bytes,
        "anchor": {"rates": len(anchors), "shift": shift} if anchors else None,
    }
    return Prediction(
        {
            level: Estimate(rate, rate * math.exp(-width), rate * math.exp(width))
            for level, width in ((one, scale * sd) for one, scale in calibration.scales.items())
        },
        parts_s,
        basis,
    )


def memory_bytes(setting: Setting) -> tuple[float, float]:
    """Return what a device needs, and what if the compiler computes most activations again.

    That is the state, and what the backward pass reads. XLA plans 0.6 to 1.5 of it for steps of
    1 GiB or more (`results/targets/`), but was seen to fit ViT-S/16 into 0.46 of it, and ResNet-50
    into 0.64.
    """
    state_bytes = setting.shape.state_bytes
    needed = state_bytes + setting.shape.kept_bytes(setting.element_bytes) * setting.batch
    return needed, state_bytes + 0.4 * (needed - state_bytes)
