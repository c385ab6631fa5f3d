"""The time of a training step on a machine: a sum over kernels, and offsets fitted to rates.

A product of N multiply-adds has three kernels: forward, and the gradients of its input and of its
weights. A kernel takes the p-norm of its least times by arithmetic and by memory, at efficiencies
that fall for shallow, narrow and few products, and a launch. Other kernels, pooling and the
optimizer take their bytes; an exchange of gradients its bytes over the slowest link, partly hidden
by the step. Software without XLA launches kernels from the host beside the device, and may read
its images there: the slowest of these counts most.

`PARAMETERS` lists the laws' parameters. Offsets of the logarithm (`OFFSETS`) belong to a software,
a family of networks, a generation, a device and so on; `network, device, arithmetic, software` is
that of one cell of the table. All values are fitted together, each with a prior, to the logarithms
of the rates by Gauss-Newton steps with a robust loss. The standard deviations of the offsets and
the noise are estimated with them, not chosen by the errors of rows left out. The fit also gives the
covariance of its values. So a prediction has a standard deviation, which is large for what no rate
tells of.
"""

import dataclasses
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxbench.analysis.scaling_model import ring_bytes
from jaxbench.hardware.peak_table import find_peak
from jaxbench.predict.rates import Rate, Setting, is_jax, peaks_of

# {parameter: (its value beforehand, its standard deviation)}; logarithms, but for an exponent and a
# logit.
_OF_PRODUCTS = {
    "conv_efficiency": (-0.5, 1.0),  # of the peak, of a convolution with its input's gradient
    "weight_gradient": (-0.1, 0.5),  # the same, relative to it
    "dense": (0.0, 0.5),
    "attention": (-0.5, 0.7),
    "first_layer": (0.0, 0.7),  # of plain cores, which convolve few channels of images
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
    "tpu_memory": (0.7, 0.5),  # a TPU's compiler fuses more
}
PARAMETERS = _OF_PRODUCTS | {
    "elementwise_memory": (-0.3, 0.3),
    "pooling": (0.3, 0.5),  # the time of a byte of pooling, over that of another kernel's
    "launch_xla_s": (-12.4, 0.7),
    "launch_tpu_s": (-13.8, 0.7),
    "launch_other_s": (-12.0, 0.7),  # in 2020
    "faster_hosts": (-2.0, 0.5),  # the yearly fall of its logarithm, as a logarithm
    "beside": (1.1, 0.2),  # p - 1 of the device's and the host's times
    "link_fast": (-0.7, 0.5),  # of the bandwidth of links
    "link_pcie": (-1.2, 0.7),
    "link_host": (-2.3, 0.7),
    "hidden": (0.0, 0.7),  # the part of a step that hides an exchange, as a logit
}
_LINKS = {"fast": "link_fast", "PCIe": "link_pcie", "through the host": "link_host"}
# Logarithms that a rate has one of each: an efficiency of its generation and arithmetic; seconds of
# a step beside its kernels; a launch over that of `PARAMETERS`; seconds for an image of 224 x
# 224 on the host; seconds of an exchange beside its bytes. {kind: (value beforehand, standard
# deviation)}.
_ONE_OF_EACH = {
    "efficiency": (0.0, 0.1),
    "fixed_s": (np.log(2e-3), 1.0),
    "launch": (0.0, 0.4),
    "image_s": (np.log(3e-4), 0.4),
    "exchange_s": (np.log(1e-3), 1.0),
}
# Of JAX: its dispatch and the start of a collective are a few tenths of a ms. It launches several
# kernels at once (command buffers); TensorFlow's launches are those of 2020.
_OF_JAX = {
    "fixed_s": (np.log(4e-4), 0.3),
    "exchange_s": (np.log(2e-4), 0.7),
    "launch": (np.log(0.3), 0.4),
}
OFFSETS = (
    "software",
    "xla",
    "family",
    "generation",
    "device",
    "software, family",
    "software, arithmetic",
    "software, generation",
    "family, arithmetic",
    "family, generation",
    "network, device, arithmetic, software",
)
# What the estimates of the offsets' standard deviations and of the noise start from, and of how
# many values or rows this counts as.
_SD, _SD_COUNT, _NOISE, _NOISE_COUNT = 0.08, 4, 0.05, 20
# In standard deviations of the noise: residuals beyond it count less and less.
_ROBUST = 1.5
_OTHER_WEIGHT = 0.25
_OPTIMIZER_BYTES = 24  # of each parameter in a step: gradient, value and momentum, read and written
_LAUNCHES = 6  # of a product in a step: three, and three of what is between products
_STEP = 1e-4
_IMAGE = 3 * 224 * 224


def names_of(setting: Setting) -> tuple[list[str], list[str]]:
    """Return the names of a setting's values: one of each of `_ONE_OF_EACH`, and its offsets."""
    values = {
        "software": setting.software,
        "xla": "XLA" if setting.uses_xla else "other",
        "family": setting.shape.family,
        "arithmetic": setting.arithmetic,
        "generation": setting.generation,
        "device": setting.kind,
        "network": setting.network_name,
    }
    ones = [setting.software] * len(_ONE_OF_EACH)
    ones[0] = f"{setting.generation}, {setting.arithmetic}"
    offsets = [", ".join(values[part] for part in offset.split(", ")) for offset in OFFSETS]
    return (
        [f"{kind}: {name}" for kind, name in zip(_ONE_OF_EACH, ones, strict=True)],
        [f"{kind}: {name}" for kind, name in zip(OFFSETS, offsets, strict=True)],
    )


class _Table(types.SimpleNamespace):
    """Settings as arrays: of a value each, or of the kernels of all settings, one after the other.

    Attributes:
      kernels: of the products: `setting`, the index of each one's setting; depth, columns, tiles
        (for each multiprocessor); channels of a convolution's input on tensor cores, else infinite;
        `product`: 0 convolution, 1 its weight gradient, 2 dense, 3 attention.
      first: the index of each setting's first kernel.
      years: since 2020, of software without XLA.
    """

    def __init__(self, settings: Sequence[Setting], dates: Sequence[str] = ()):
        each = [one.shape for one in settings]
        self.xla = np.array([one.uses_xla for one in settings])
        self.years = np.array([float(date[:4]) - 2020 if date else 0.0 for date in dates] or 0.0)
        self.peak, self.accumulating, self.bandwidth = np.array(list(map(peaks_of, settings))).T
        plain = [find_peak(one.kind, "fp32", "highest") for one in settings]
        self.plain_peak = np.array([peak.flops_per_s if peak else np.nan for peak in plain])
        self.tensor = np.array([_has_tensor_cores(one) for one in settings])
        self.tpu = np.array([one.target.platform == "tpu" for one in settings])
        self.link = np.array([one.target.link_bytes_per_s for one in settings], float)
        self.links = np.array([one.link for one in settings])
        # The backward pass moves twice as much.
        sizes = 3.0 * np.array([one.batch * one.element_bytes for one in settings])
        self.touched_bytes = sizes * [shape.touched for shape in each]
        self.pooled_bytes = sizes * [shape.pooled for shape in each]
        self.optimizer_bytes = _OPTIMIZER_BYTES * np.array([float(one.weights) for one in each])
        counts = np.array([sum(layer.times for layer in shape.layers) for shape in each])
        self.launches = _LAUNCHES * counts
        images = [one.layers[0].inputs if one.layers[0].channels else 0 for one in each]
        self.images = np.array(images) / _IMAGE * [one.batch for one in settings]
        self.exchanged_bytes = np.array(
            [ring_bytes(one.num_devices, 4 * one.shape.weights) * _crowd(one) for one in settings]
        )
        parts = [part for index, one in enumerate(settings) for part in _kernels(index, one)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.kernels = types.SimpleNamespace(**joined)
        self.first = np.flatnonzero(np.diff(self.kernels.setting, prepend=-1))


def _kernels(index: int, one: Setting) -> Iterable[dict[str, Any]]:
    """Yield a setting's products: forward, gradients of the inputs, gradients of the weights."""
    layers = np.array([tuple(layer) for layer in one.shape.layers], float)
    rows, cols, depth, groups, inputs, outputs, weights, channels, taps, times, _ = layers.T
    tensor, is_gpu = _has_tensor_cores(one), one.target.platform == "gpu"
    height, kind = rows * one.batch, np.where(weights == 0, 3, np.where(rows == 1, 2, 0))
    of_images = (np.arange(len(layers)) == 0) & (channels > 0)
    for number, (tall, wide, deep) in enumerate(
        ((height, cols, depth), (height, depth, cols), (cols, depth, height))
    ):
        yield {
            "setting": np.full(len(layers), index),
            "flops": 2 * height * cols * depth * groups,
            "bytes": ((inputs + outputs) * one.batch + weights) * one.element_bytes,
            "depth": deep,
            "columns": np.minimum(tall, wide) if number == 2 else wide,
            "tiles": tall * wide * groups / 128**2 / float(one.target.specs.get("sms", 1)),
            "product": np.where((kind == 0) & (number == 2), 1, kind),
            "channels": np.where((channels > 0) & tensor, channels, np.inf),
            "fast": (taps == 9) & (not tensor),
            # A patch is deep enough for tensor cores.
            "plain": of_images & (channels < 8) & (depth < 512) & tensor & is_gpu,
            # No program computes the gradient of the images.
            "times": np.where(of_images & (number == 1), 0.0, times),
        }


def _crowd(setting: Setting) -> float:
    """Return how many pairs of devices share a link; those through the host share its memory."""
    return setting.num_devices / 2 if setting.link == "through the host" else 1.0


def _has_tensor_cores(setting: Setting) -> bool:
    if setting.target.platform == "tpu":
        return True
    return setting.arithmetic != "fp32" and setting.generation not in ("Maxwell", "Pascal")


def _products_s(values: dict[str, float], generation: np.ndarray, table: _Table) -> np.ndarray:
    """Return the seconds of the products of a step of each setting.

    Args:
      generation: the logarithm of the efficiency of each setting's generation and arithmetic.
    """
    t, k, e = table, table.kernels, {name: np.exp(value) for name, value in values.items()}
    classes = np.array([1.0, e["weight_gradient"], e["dense"], e["attention"]])
    efficiency = e["conv_efficiency"] * classes[k.product] * np.where(k.fast, e["winograd"], 1.0)
    for name in ("depth", "columns", "tiles"):
        size = getattr(k, name)
        efficiency = efficiency * size / (size + e[f"half_{name}"])
    efficiency = efficiency / (1 + e["half_channels"] / k.channels)
    scale = values["intensity"] * np.log(t.peak / t.bandwidth / 100)
    reached = t.peak * np.exp(scale + generation + values["plain_cores"] * ~t.tensor)
    plain = t.plain_peak * np.exp(generation) * e["conv_efficiency"] * e["first_layer"]
    memory = e["product_memory"] * np.where(t.tpu, e["tpu_memory"], 1.0) * t.bandwidth
    p, of = 1 + e["norm"], k.setting
    kernel_s = (k.flops / np.where(k.plain, plain[of], efficiency * reached[of])) ** p
    kernel_s += (k.flops / (e["accumulation"] * t.accumulating)[of]) ** p
    kernel_s += (k.bytes / memory[of]) ** p
    return np.add.reduceat(kernel_s ** (1 / p) * k.times, t.first)


def _step_parts(
    values: dict[str, float], ones: Sequence[np.ndarray], products_s: np.ndarray, table: _Table
) -> dict[str, np.ndarray]:
    """Return the seconds of a step of each setting, before offsets, by what takes them.

    Args:
      ones: see `_ONE_OF_EACH`.
    """
    t, e = table, {name: np.exp(value) for name, value in values.items()}
    _, fixed_s, launch, image_s, latency_s = map(np.exp, ones)
    rate = e["elementwise_memory"] * np.where(t.tpu, e["tpu_memory"], 1.0) * t.bandwidth
    parts = {
        "products": products_s,
        "elementwise": (t.touched_bytes + e["pooling"] * t.pooled_bytes) / rate,
        "optimizer": t.optimizer_bytes / rate,
    }
    device_s = np.sum([*parts.values()], axis=0)
    share = np.select([t.links == link for link in _LINKS], [e[one] for one in _LINKS.values()], 1)
    exchange_s = t.exchanged_bytes / (share * t.link)
    hidden = 1 / (1 + np.exp(-values["hidden"]))
    exposed_s = np.maximum(0.15 * exchange_s, exchange_s - hidden * device_s) + latency_s
    parts["links"] = np.where(t.links == "none", 0.0, exposed_s)
    other_s = e["launch_other_s"] * np.exp(-e["faster_hosts"] * t.years)
    xla_s = np.where(t.tpu, e["launch_tpu_s"], e["launch_xla_s"])
    launches_s = t.launches * launch * np.where(t.xla, xla_s, other_s)
    # Other software's host works beside the device: what it adds to the p-norm of both.
    device_s, q = device_s + parts["links"], 1 + e["beside"]
    host_s = (launches_s + fixed_s) ** q + (image_s * t.images) ** q
    added_s = (device_s**q + host_s) ** (1 / q) - device_s
    parts["launches"] = np.where(t.xla, launches_s, added_s)
    parts["fixed"] = np.where(t.xla, fixed_s, 0.0)
    return parts


@dataclasses.dataclass
class Model:
    """A fitted model, or a prior one.

    Attributes:
      values: {name: value} of the parameters, of `_ONE_OF_EACH` and of the offsets, in one order.
      covariance: of the values.
      sds: {kind of offset: its standard deviation}; `noise` is that of a rate.
      changes: {name: how further rates change its value}; predictions are linear in them, so they
        do not go beyond those rates.
    """

    values: dict[str, float]
    covariance: np.ndarray
    sds: dict[str, float]
    noise: float
    changes: dict[str, float] = dataclasses.field(default_factory=dict)

    def prior(self, name: str) -> tuple[float, float]:
        """Return the value and the standard deviation of a name before any rate."""
        kind, _, of = name.partition(": ")
        if kind in _OF_JAX and is_jax(of):
            return _OF_JAX[kind]
        known = PARAMETERS.get(kind) or _ONE_OF_EACH.get(kind)
        return known or (0.0, self.sds[kind])

    def knowing(self, settings: Iterable[Setting]) -> "Model":
        """Return the model with the prior values of names of settings that it lacks."""
        names = (name for one in settings for part in names_of(one) for name in part)
        new = {name: self.prior(name) for name in names if name not in self.values}
        size, count = len(self.values), len(new)
        covariance = np.zeros((size + count, size + count))
        covariance[:size, :size] = self.covariance
        covariance[size:, size:] = np.diag([sd**2 for _, sd in new.values()])
        values = self.values | {name: value for name, (value, _) in new.items()}
        return dataclasses.replace(self, values=values, covariance=covariance)

    def parts(self, settings: Sequence[Setting]) -> dict[str, np.ndarray]:
        """Return the seconds of a step of each setting by what takes them, offsets included."""
        model = self.knowing(settings)
        parts, _ = _Fit(settings, model.values).parts(np.array([*model.values.values()]))
        scale = self.step_s(settings) / sum(parts.values())
        return {name: part * scale for name, part in parts.items()}

    def predict(self, settings: Sequence[Setting]) -> tuple[np.ndarray, np.ndarray]:
        """Return the logarithm of the seconds of a step of each setting, and its deviation."""
        model = self.knowing(settings)
        log_s, slopes = model._linear(settings)
        variance = _variances(slopes, model.covariance)
        # Rounding of a stored covariance may leave less than nothing.
        return log_s, np.sqrt(np.maximum(variance, 0.0) + self.noise**2)

    def _linear(self, settings: Sequence[Setting]) -> tuple[np.ndarray, np.ndarray]:
        """Return the logarithm of the seconds of a step of each setting, and its slopes."""
        theta, fit = np.array([*self.values.values()]), _Fit(settings, self.values)
        slopes = fit.slopes(theta)
        changes = np.array([self.changes.get(name, 0.0) for name in self.values])
        return fit.log_s(theta) + slopes @ changes, slopes

    def step_s(self, settings: Sequence[Setting]) -> np.ndarray:
        """Return the seconds of a step of each setting."""
        return np.exp(self.predict(settings)[0])

    def given(self, rates: Sequence[Rate]) -> "Model":
        """Return the model after some more rates."""
        settings = [rate.setting for rate in rates]
        model = self.knowing(settings)
        log_s, slopes = model._linear(settings)
        residual = np.log([rate.step_s for rate in rates]) - log_s
        shared = model.covariance @ slopes.T
        gain = np.linalg.solve(slopes @ shared + self.noise**2 * np.eye(len(rates)), shared.T).T
        changes = {
            name: self.changes.get(name, 0.0) + change
            for name, change in zip(model.values, (gain @ residual).tolist(), strict=True)
        }
        covariance = model.covariance - gain @ shared.T
        return dataclasses.replace(model, covariance=covariance, changes=changes)

    def of_software(self, software: str) -> "Model":
        """Return the model without the values of other software."""
        others = (*_ONE_OF_EACH, *(kind for kind in OFFSETS if "software" in kind))

        def is_needed(name: str) -> bool:
            kind, _, of = name.partition(": ")
            return kind not in others or kind == "efficiency" or software in of.split(", ")

        kept = [number for number, name in enumerate(self.values) if is_needed(name)]
        values = {name: value for name, value in self.values.items() if is_needed(name)}
        covariance = self.covariance[np.ix_(kept, kept)]
        return dataclasses.replace(self, values=values, covariance=covariance)


class _Fit:
    """Settings with the places of their values in a vector."""

    def __init__(
        self, settings: Sequence[Setting], names: Iterable[str], dates: Sequence[str] = ()
    ):
        self.table = _Table(settings, dates)
        place = {name: number for number, name in enumerate(names)}
        named = [names_of(one) for one in settings]
        self.design = np.zeros((len(settings), len(place)))
        for row, (_, offsets) in enumerate(named):
            self.design[row, [place[name] for name in offsets]] = 1.0
        self.ones = np.array([[place[name] for name in ones] for ones, _ in named]).T

    def parts(
        self, theta: np.ndarray, products_s: np.ndarray | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the seconds of a step by what takes them, and those of products before offsets."""
        values = dict(zip(PARAMETERS, theta, strict=False))
        ones = theta[self.ones]
        if products_s is None:
            products_s = _products_s(values, ones[0], self.table)
        scale = np.exp(self.design @ theta)
        parts = _step_parts(values, ones, products_s, self.table)
        return {name: part * scale for name, part in parts.items()}, products_s

    def log_s(self, theta: np.ndarray, products_s: np.ndarray | None = None) -> np.ndarray:
        """Return the logarithm of the seconds of a step of each setting."""
        return np.log(sum(self.parts(theta, products_s)[0].values()))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """Return the slopes of `log_s` by each value, one row a setting."""
        slopes, rows = self.design.copy(), np.arange(len(self.design))
        products_s = self.parts(theta)[1]
        log_s = self.log_s(theta, products_s)
        # A setting has one of each: one difference serves all of them.
        columns = [*enumerate(PARAMETERS), *zip(self.ones, _ONE_OF_EACH, strict=True)]
        for column, name in columns:
            moved = theta.copy()
            moved[column] += _STEP
            again = name in _OF_PRODUCTS or name == "efficiency"
            slopes[rows, column] = (
                self.log_s(moved, None if again else products_s) - log_s
            ) / _STEP
        return slopes


def _variances(slopes: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the variance of each row of slopes times values of this covariance."""
    return np.sum(slopes @ covariance * slopes, axis=1)


def is_judged(rate: Rate) -> bool:
    """Return whether a row's error counts as one of XLA, which is like jaxbench's."""
    return rate.setting.uses_xla and not rate.lower_bound


class Fitter:
    """Fits models to rates, with some of them left out.

    Attributes:
      rates: all rates.
    """

    def __init__(self, rates: Sequence[Rate]):
        self.rates = rates
        settings = [rate.setting for rate in rates]
        names = {name: None for one in settings for part in names_of(one) for name in part}
        self._names = [*PARAMETERS, *sorted(names)]
        self._kinds = np.array([name.partition(": ")[0] for name in self._names])
        self._fit = _Fit(settings, self._names, [rate.date for rate in rates])
        self._log_s = np.log([rate.step_s for rate in rates])
        self._lower = np.array([rate.lower_bound for rate in rates])
        self._weight = np.where([one.uses_xla for one in settings], 1.0, _OTHER_WEIGHT)
        empty = Model({}, np.zeros((0, 0)), dict.fromkeys(OFFSETS, _SD), _NOISE)
        before = {name: empty.prior(name)[0] for name in self._names}
        self._start = dataclasses.replace(empty, values=before)

    def fit(
        self,
        is_used: Callable[[Rate], bool] = lambda rate: True,
        start: Model | None = None,
        steps: int = 16,
    ) -> tuple[Model, np.ndarray, np.ndarray]:
        """Return a model, log(predicted rate / published rate) of all rates, and its deviations.

        Args:
          is_used: whether a rate is fitted; errors are returned of all.
          start: a model of these rates, from which fewer steps do.
        """
        model = start or self._start
        used = self._weight * [is_used(rate) for rate in self.rates]
        theta, fit = np.array([*model.values.values()]), self._fit
        log_s = fit.log_s(theta)
        for step in range(steps):
            means, sds = np.array([model.prior(name) for name in self._names]).T
            residual, slopes = self._log_s - log_s, fit.slopes(theta)
            weights = self._weights(residual, used, model.noise)
            slope = slopes.T @ (weights * residual) - (theta - means) / sds**2
            covariance = np.linalg.inv((slopes * weights[:, None]).T @ slopes + np.diag(sds**-2))
            if step == steps - 1:
                break
            change = covariance @ slope
            least = self._loss(residual, theta, used, model.noise, means, sds)
            for scale in (1.0, 0.5, 0.25, 0.1, 0.03, 0.0):
                tried = theta + scale * change
                log_s = fit.log_s(tried)
                if self._loss(self._log_s - log_s, tried, used, model.noise, means, sds) < least:
                    break
            theta = tried
            model = self._spread(model, theta, self._log_s - log_s, used, slopes, covariance)
        model = dataclasses.replace(
            model,
            values=dict(zip(self._names, theta.tolist(), strict=True)),
            covariance=covariance,
        )
        variance = _variances(slopes, covariance)
        return model, self._log_s - log_s, np.sqrt(variance + model.noise**2)

    def _used(self, residual: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return the weights of rates; a lower bound that a prediction keeps to has none."""
        return used * ~(self._lower & (residual > 0))

    def _weights(self, residual: np.ndarray, used: np.ndarray, noise: float) -> np.ndarray:
        size = residual / (_ROBUST * noise)
        return self._used(residual, used) / np.sqrt(1 + size**2) / noise**2

    def _loss(self, residual, theta, used, noise, means, sds) -> float:
        size = np.sqrt(1 + (residual / (_ROBUST * noise)) ** 2)
        robust = 2 * _ROBUST**2 * (size - 1)
        return self._used(residual, used) @ robust + np.sum(((theta - means) / sds) ** 2)

    def _spread(self, model, theta, residual, used, slopes, covariance) -> Model:
        """Return a model with new estimates of the offsets' deviations and of the noise."""
        squares, sds = theta**2 + np.diag(covariance), {}
        for kind in OFFSETS:
            of = squares[self._kinds == kind]
            sds[kind] = float(np.sqrt((of.sum() + _SD_COUNT * _SD**2) / (len(of) + _SD_COUNT)))
        weights = self._weights(residual, used, model.noise) * model.noise**2
        fitted = _variances(slopes, covariance)
        squares = weights * (residual**2 + np.minimum(fitted, model.noise**2))
        total = squares.sum() + _NOISE_COUNT * _NOISE**2
        noise = float(np.sqrt(total / (weights.sum() + _NOISE_COUNT)))
        return dataclasses.replace(model, sds=sds, noise=noise)
