"""The time of a training step on a machine: a sum over kernels, and offsets fitted to rates.

A product of N multiply-adds has three kernels: forward, and the gradients of its input and of its
weights. A kernel takes the p-norm of its least times by arithmetic and by memory, at efficiencies
that fall for shallow, narrow and few products, and a launch. Elementwise kernels and the optimizer
take their bytes; an exchange of gradients its bytes over the slowest link, partly hidden by the
step. `PARAMETERS` lists the parameters, each with a prior. Offsets of the logarithm, by software,
family of networks, generation, precision and device, are ridge terms: an offset without rows is 0.

All are fitted together, to the logarithms of the rates, by Gauss-Newton steps with a robust loss.
"""

import dataclasses
import itertools
import types
from collections.abc import Iterable, Sequence

import numpy as np

from jaxbench.analysis.scaling_model import ring_bytes
from jaxbench.predict.rates import Rate, Setting, peaks_of

# {parameter: (its value beforehand, its standard deviation)}; all are logarithms.
PARAMETERS = {
    "conv_efficiency": (-0.5, 1.0),  # of the peak, of a convolution with its input's gradient
    "weight_gradient": (-0.1, 0.5),  # the same, relative to it
    "dense": (0.0, 0.5),
    "attention": (-0.5, 0.7),
    "half_depth": (3.5, 1.0),  # the depth that reaches half of the efficiency
    "half_columns": (2.8, 1.0),
    "half_tiles": (-1.2, 1.0),  # of 128 x 128 results, for each multiprocessor
    "half_channels": (1.4, 1.0),  # on tensor cores
    "norm": (0.7, 0.4),  # p - 1
    "intensity": (-0.1, 0.05),  # exponent of (peak / bandwidth)
    "plain_cores": (0.3, 0.3),  # without tensor cores
    "accumulation": (0.0, 0.2),  # the most, of the peak with fp32 accumulation
    "winograd": (0.26, 0.2),
    "product_memory": (-0.3, 0.3),  # of the bandwidth
    "elementwise_memory": (-0.3, 0.3),
    "tpu_memory": (0.7, 0.5),  # a TPU's compiler fuses more
    "launch_xla_s": (-12.4, 0.7),
    "launch_other_s": (-12.0, 0.7),
    "link_fast": (-0.7, 0.5),  # of the bandwidth of links
    "link_pcie": (-1.2, 0.7),
    "link_host": (-2.3, 0.7),
    "hidden": (0.0, 0.7),  # the part of a step that hides an exchange, as a logit
    "exchange_s": (-6.9, 1.0),
}
# Seconds of each step beside its kernels, before a fit: JAX's own dispatch is a few tenths of a ms.
_FIXED_S = {"JAX": (np.log(4e-4), 0.3), "other": (np.log(2e-3), 1.0)}
# {what an offset belongs to: its standard deviation beforehand}.
OFFSETS = {
    "software": 0.25,
    "xla": 0.25,
    "family": 0.25,
    "software, family": 0.15,
    "software, arithmetic": 0.03,
    "family, generation": 0.1,
    "family, arithmetic": 0.1,
    "software, generation": 0.05,
    "device": 0.08,
    "device, arithmetic": 0.05,
    "network": 0.07,
    "software, link": 0.1,
}
_GENERATION_SD = 0.1
_ROBUST = 0.08  # Residuals beyond it count less and less.
_OTHER_WEIGHT, _LOWER_BOUND_WEIGHT = 0.25, 0.1
_OPTIMIZER_BYTES = 24  # of each parameter in a step: gradient, value and momentum, read and written
_STEP = 1e-4


def offsets_of(setting: Setting) -> list[tuple[str, str]]:
    """Return the (offset, level) pairs of a setting."""
    values = {
        "software": setting.software,
        "xla": "XLA" if setting.uses_xla else "other",
        "family": setting.shape.family,
        "arithmetic": setting.arithmetic,
        "generation": setting.generation,
        "device": setting.kind,
        "network": setting.network,
        "link": setting.link if setting.link != "none" else None,
    }
    levels = {offset: [values[name] for name in offset.split(", ")] for offset in OFFSETS}
    return [(offset, ", ".join(level)) for offset, level in levels.items() if all(level)]


class Kernels(types.SimpleNamespace):
    """The kernels of settings, as arrays: a kernel of all the settings after the other.

    Attributes:
      setting: the index of each kernel's setting; `first` is that of each setting's first kernel.
      depth, columns, tiles: of its product; tiles for each multiprocessor.
      channels: of a convolution's input on tensor cores, else infinite.
      product: 0 convolution, 1 its weight gradient, 2 dense, 3 attention.
    """

    def __init__(self, settings: Sequence[Setting]):
        parts = []
        for index, one in enumerate(settings):
            table = np.array([tuple(layer) for layer in one.shape.layers], float)
            rows, cols, depth, groups, inputs, outputs, weights, channels, taps, times, _ = table.T
            flops = 2 * rows * cols * depth * groups * one.batch
            moved = ((inputs + outputs) * one.batch + weights) * one.element_bytes
            product = np.where(weights == 0, 3, np.where(rows == 1, 2, 0))
            plain = peaks_of(one)[0] == peaks_of(one)[1] and not _has_tensor_cores(one)
            sms = float(one.target.specs.get("sms", 1))
            for height, width, deep in (
                (rows * one.batch, cols, depth),
                (rows * one.batch, depth, cols),
                (depth, cols, rows * one.batch),
            ):
                weight_gradient = deep is not depth and height is depth
                part = {
                    "setting": np.full(len(rows), index),
                    "flops": flops,
                    "bytes": moved,
                    "depth": deep,
                    "columns": np.minimum(height, width) if weight_gradient else width,
                    "tiles": height * width * groups / 128**2 / sms,
                    "product": np.where((product == 0) & weight_gradient, 1, product),
                    "times": times,
                    "channels": np.where((channels > 0) & (not plain), channels, np.inf),
                    "fast": (taps == 9) & plain,
                }
                parts.append(part)
        vars(self).update({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
        self.first = np.flatnonzero(np.diff(self.setting, prepend=-1))
        peaks = np.array([peaks_of(one) for one in settings])
        self.peak, self.accumulating, self.bandwidth = peaks.T
        self.plain = np.array([not _has_tensor_cores(one) for one in settings])
        self.tpu = np.array([one.target.platform == "tpu" for one in settings])
        self.xla = np.array([one.uses_xla for one in settings])
        self.link = np.array([one.target.link_bytes_per_s for one in settings])
        self.links = np.array([one.link for one in settings])
        sizes = [one.batch * one.element_bytes for one in settings]
        # The backward pass moves twice as much.
        self.touched_bytes = 3 * np.array(sizes) * [one.shape.touched for one in settings]
        weights = np.array([one.shape.weights for one in settings], float)
        self.optimizer_bytes = _OPTIMIZER_BYTES * weights
        self.launches = np.array([sum(each.times for each in one.shape.layers) for one in settings])
        self.exchanged_bytes = np.array(
            [ring_bytes(one.num_devices, 4 * one.shape.weights) * _crowd(one) for one in settings]
        )


def _crowd(setting: Setting) -> float:
    """Return how many pairs of devices share a link; those through the host share its memory."""
    return setting.num_devices / 2 if setting.link == "through the host" else 1.0


def _has_tensor_cores(setting: Setting) -> bool:
    if setting.target.platform == "tpu":
        return True
    return setting.arithmetic != "fp32" and setting.generation not in ("Maxwell", "Pascal")


def step_parts(
    values: dict[str, float], generation: np.ndarray, fixed_s: np.ndarray, kernels: Kernels
) -> dict[str, np.ndarray]:
    """Return the seconds of a step of each setting, before offsets, by what takes them.

    Args:
      generation: the offset of each setting's generation and arithmetic, on its efficiency.
    """
    k, e = kernels, {name: np.exp(value) for name, value in values.items()}
    conv = e["conv_efficiency"]
    classes = np.array([1.0, e["weight_gradient"], e["dense"], e["attention"]]) * conv
    efficiency = classes[k.product] * np.where(k.fast, e["winograd"], 1.0)
    efficiency = efficiency * k.depth / (k.depth + e["half_depth"])
    efficiency = efficiency * k.columns / (k.columns + e["half_columns"])
    efficiency = efficiency * k.tiles / (k.tiles + e["half_tiles"])
    efficiency = efficiency / (1 + e["half_channels"] / k.channels)
    scale = values["intensity"] * np.log(k.peak / k.bandwidth / 100)
    reached = k.peak * np.exp(scale + generation + values["plain_cores"] * k.plain)
    fuses = np.where(k.tpu, e["tpu_memory"], 1.0)
    p = 1 + e["norm"]
    kernel_s = (k.flops / (efficiency * reached[k.setting])) ** p
    kernel_s += (k.flops / (e["accumulation"] * k.accumulating[k.setting])) ** p
    kernel_s += (k.bytes / (e["product_memory"] * (fuses * k.bandwidth)[k.setting])) ** p
    launch_s = np.where(k.xla, e["launch_xla_s"], e["launch_other_s"])
    kernel_s = (kernel_s ** (1 / p) + launch_s[k.setting]) * k.times
    rate = e["elementwise_memory"] * fuses * k.bandwidth
    parts = {
        "products": np.add.reduceat(kernel_s, k.first),
        "elementwise": k.touched_bytes / rate + 3 * k.launches * launch_s,
        "optimizer": k.optimizer_bytes / rate,
    }
    step_s = sum(parts.values())
    names = {"fast": "link_fast", "PCIe": "link_pcie", "through the host": "link_host"}
    share = np.select([k.links == link for link in names], [e[name] for name in names.values()], 1)
    exchange_s = k.exchanged_bytes / (share * k.link)
    hidden = 1 / (1 + np.exp(-values["hidden"]))
    exposed_s = np.maximum(0.15 * exchange_s, exchange_s - hidden * step_s)
    parts["links"] = np.where(k.links == "none", 0.0, exposed_s + e["exchange_s"])
    return parts | {"fixed": fixed_s}


@dataclasses.dataclass
class Model:
    """A fitted model.

    Attributes:
      parameters: {parameter: value}, see `PARAMETERS`.
      generations: {generation, arithmetic: offset of the efficiency}.
      fixed: {software: logarithm of its seconds beside the kernels of a step}.
      offsets: {offset: {level: value}}, see `OFFSETS`.
    """

    parameters: dict[str, float]
    generations: dict[str, float]
    fixed: dict[str, float]
    offsets: dict[str, dict[str, float]]

    def parts(self, settings: Sequence[Setting]) -> dict[str, np.ndarray]:
        """Return the seconds of a step of each setting by what takes them, offsets included."""
        generation = np.array([self.generations.get(_generation(one), 0.0) for one in settings])
        prior = [self.fixed.get(one.software, _fixed_prior(one.software)[0]) for one in settings]
        parts = step_parts(self.parameters, generation, np.exp(prior), Kernels(settings))
        scale = np.exp([self.offset(one) for one in settings])
        return {name: part * scale for name, part in parts.items()}

    def offset(self, setting: Setting) -> float:
        """Return the sum of a setting's offsets."""
        return sum(
            self.offsets.get(kind, {}).get(level, 0.0) for kind, level in offsets_of(setting)
        )

    def step_s(self, settings: Sequence[Setting]) -> np.ndarray:
        """Return the seconds of a step of each setting."""
        return np.sum([*self.parts(settings).values()], axis=0)


def _generation(setting: Setting) -> str:
    return f"{setting.generation}, {setting.arithmetic}"


def _fixed_prior(software: str) -> tuple[float, float]:
    return _FIXED_S["JAX" if software.startswith("JAX") else "other"]


def fit(rates: Sequence[Rate], start: Model | None = None, steps: int = 14) -> Model:
    """Fit a model to rates.

    Args:
      start: a model of more rows, from which fewer steps do; None begins at what is known before.
    """
    settings = [rate.setting for rate in rates]
    kernels, log_step_s = Kernels(settings), np.log([rate.step_s for rate in rates])
    generations = sorted(set(map(_generation, settings)))
    softwares = sorted({one.software for one in settings})
    levels = {pair: None for one in settings for pair in offsets_of(one)}
    order = {pair: number for number, pair in enumerate(levels)}
    design = np.zeros((len(rates), len(order)))
    for number, one in enumerate(settings):
        design[number, [order[pair] for pair in offsets_of(one)]] = 1.0
    ends = [*itertools.accumulate(map(len, (PARAMETERS, generations, softwares)))]
    laws, generation_part, fixed_part, offset_part = map(slice, (0, *ends), (*ends, None))
    generation_of = np.array([generations.index(_generation(one)) for one in settings])
    software_of = np.array([softwares.index(one.software) for one in settings])
    known = [*PARAMETERS.values(), *[(0.0, _GENERATION_SD)] * len(generations)]
    known += [_fixed_prior(one) for one in softwares]
    known += [(0.0, OFFSETS[kind]) for kind, _ in order]
    before, spread = np.array(known).T
    theta = before.copy()
    if start is not None:
        theta[laws] = [start.parameters[name] for name in PARAMETERS]
        theta[generation_part] = [start.generations.get(name, 0.0) for name in generations]
        theta[fixed_part] = [start.fixed.get(name, _fixed_prior(name)[0]) for name in softwares]
        theta[offset_part] = [start.offsets.get(kind, {}).get(level, 0.0) for kind, level in order]
    weight = np.array([_weight(rate) for rate in rates])

    def log_time(theta: np.ndarray) -> np.ndarray:
        values = dict(zip(PARAMETERS, theta[laws], strict=True))
        offset, fixed_s = theta[generation_part][generation_of], np.exp(theta[fixed_part])
        return np.log(sum(step_parts(values, offset, fixed_s[software_of], kernels).values()))

    def loss(residual: np.ndarray, theta: np.ndarray) -> float:
        robust = 2 * (np.sqrt(1 + (residual / _ROBUST) ** 2) - 1)
        return float(np.sum(weight * robust) + np.sum(((theta - before) / spread) ** 2))

    predicted = log_time(theta)
    residual = log_step_s - predicted - design @ theta[offset_part]
    best = loss(residual, theta)
    for _ in range(steps):
        jacobian = np.zeros((len(rates), len(theta)))
        for column in range(laws.stop):
            moved = theta.copy()
            moved[column] += _STEP
            jacobian[:, column] = (log_time(moved) - predicted) / _STEP
        # Each setting has one generation and one software: one difference serves all of them.
        for part, index in ((generation_part, generation_of), (fixed_part, software_of)):
            moved = theta.copy()
            moved[part] += _STEP
            slope = (log_time(moved) - predicted) / _STEP
            jacobian[np.arange(len(rates)), part.start + index] = slope
        jacobian[:, offset_part] = design
        weights = weight / np.sqrt(1 + (residual / _ROBUST) ** 2) / _ROBUST**2
        slope = jacobian.T @ (weights * residual) - (theta - before) / spread**2
        curvature = (jacobian * weights[:, None]).T @ jacobian + np.diag(spread**-2)
        step = np.linalg.solve(curvature, slope)
        for scale in (1.0, 0.5, 0.25, 0.1, 0.03):
            tried = theta + scale * step
            tried_time = log_time(tried)
            tried_residual = log_step_s - tried_time - design @ tried[offset_part]
            if (value := loss(tried_residual, tried)) < best:
                break
        else:
            break
        gain = best - value
        theta, predicted, residual, best = tried, tried_time, tried_residual, value
        if gain < 0.02:
            break
    offsets: dict[str, dict[str, float]] = {kind: {} for kind in OFFSETS}
    for (kind, level), value in zip(order, theta[offset_part].tolist(), strict=True):
        offsets[kind][level] = value
    return Model(
        dict(zip(PARAMETERS, theta[laws].tolist(), strict=True)),
        dict(zip(generations, theta[generation_part].tolist(), strict=True)),
        dict(zip(softwares, theta[fixed_part].tolist(), strict=True)),
        offsets,
    )


def _weight(rate: Rate) -> float:
    weight = 1.0 if rate.setting.uses_xla else _OTHER_WEIGHT
    return weight * (_LOWER_BOUND_WEIGHT if rate.lower_bound else 1.0)


def errors(model: Model, rates: Iterable[Rate]) -> np.ndarray:
    """Return log(predicted rate / published rate) of each row."""
    rates = list(rates)
    published_s = np.array([rate.step_s for rate in rates])
    return np.log(published_s / model.step_s([rate.setting for rate in rates]))
