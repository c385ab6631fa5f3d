"""The fit of the model: what rates move, what a bound does, and what its deviations say."""

import numpy as np
import pytest

from jaxbench.hardware.targets.target import parse_target
from jaxbench.predict.calibration import load
from jaxbench.predict.model import Fitter, is_judged, names_of
from jaxbench.predict.networks import NETWORKS
from jaxbench.predict.prediction import setting_of
from jaxbench.predict.rates import Rate, read_rates

_STEPS = 6
_CARD = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module")
def of_jax():
    """JAX's rates; most are of transformers, whose few kernels are quick to fit."""
    return [rate for rate in read_rates() if rate.setting.software.startswith("JAX")]


@pytest.fixture(scope="module")
def fitter(of_jax):
    return Fitter(of_jax)


@pytest.fixture(scope="module")
def fitted(fitter):
    return fitter.fit(steps=_STEPS)


@pytest.fixture(scope="module")
def model(fitted):
    return fitted[0]


def test_the_fit_is_close_to_its_rates_and_knows_its_errors(fitted, of_jax):
    model, errors, sds = fitted
    sizes = [abs(error) for error, rate in zip(errors, of_jax, strict=True) if is_judged(rate)]
    assert np.median(sizes) < 0.03 and np.quantile(sizes, 0.9) < 0.12
    log_s, predicted_sds = model.predict([rate.setting for rate in of_jax])
    np.testing.assert_allclose(np.log([rate.step_s for rate in of_jax]) - log_s, errors)
    np.testing.assert_allclose(predicted_sds, sds)


@pytest.mark.parametrize(("of_predicted", "moves"), [(0.3, False), (1.3, True)])
def test_a_lower_bound_bounds_from_one_side(of_jax, model, of_predicted, moves):
    setting = next(rate.setting for rate in of_jax if rate.setting.kind == _CARD)
    step_s = float(model.step_s([setting])[0]) / of_predicted
    without, bound, rate = (
        Fitter([*of_jax, *more]).fit(start=model, steps=_STEPS)[0].step_s([setting])
        for more in ([], *([Rate(setting, step_s, lower, "", "")] for lower in (True, False)))
    )
    assert abs(np.log(rate / without)) > 0.02
    assert bound == pytest.approx(rate if moves else without, rel=1e-6)


def test_a_device_that_is_twice_as_slow_is_predicted_so(of_jax, model):
    slowed = [
        rate._replace(step_s=2 * rate.step_s) if rate.setting.kind == _CARD else rate
        for rate in of_jax
    ]
    again, _, _ = Fitter(slowed).fit(start=model, steps=_STEPS)
    settings = [rate.setting for rate in of_jax]
    ratio = again.step_s(settings) / model.step_s(settings)
    is_slowed = np.array([setting.kind == _CARD for setting in settings])
    assert np.median(ratio[is_slowed]) > 1.6
    assert np.median(ratio[~is_slowed]) == pytest.approx(1, abs=0.05)


def test_the_deviation_grows_with_what_is_not_known(fitter, model, of_jax):
    """Its generation has another device, whose rates are left out with it."""
    kind, generation = "TPU v6 lite", "TPU v6e, 7x"
    without = (
        lambda rate: True,
        lambda rate: rate.setting.kind != kind,
        lambda rate: rate.setting.generation != generation,
    )
    known, device, all_of_it = (fitter.fit(used, model, 3)[2] for used in without)
    rows = [row for row, rate in enumerate(of_jax) if rate.setting.kind == kind]
    assert len(rows) > 10
    assert (known[rows] < 0.7 * device[rows]).all() and (device < all_of_it)[rows].all()


def test_what_no_rate_has_is_as_uncertain_as_what_was_left_out(fitter, of_jax):
    generation = "TPU v6e, 7x"
    unknown = [rate.setting for rate in of_jax if rate.setting.generation == generation]
    known = [rate for rate in of_jax if rate.setting.generation != generation]
    alone, _, _ = Fitter(known).fit(steps=_STEPS)
    _, _, sds = fitter.fit(lambda rate: rate.setting.generation != generation, steps=_STEPS)
    rows = [row for row, rate in enumerate(of_jax) if rate.setting.generation == generation]
    assert alone.predict(unknown)[1] == pytest.approx(sds[rows], rel=0.1)


@pytest.mark.parametrize("target", ["gpu:a100", "gpu:h100", "gpu:b200"])
@pytest.mark.parametrize("slower", [0.33, 0.8, 1.3, 3.0])
def test_an_anchor_moves_and_narrows_what_is_like_it(target, slower):
    one, other, unlike = (
        setting_of(NETWORKS[name], parse_target(target), "bf16", batch)
        for name, batch in (("resnet50", 256), ("resnet50", 64), ("gpt2", 16))
    )
    model, settings = load().model, [one, other, unlike]
    anchor = Rate(one, slower * float(model.step_s([one])[0]), False, "", "")
    anchored = model.given([anchor])
    (before, wide), (after, narrow) = (each.predict(settings) for each in (model, anchored))
    moved = (after - before) / np.log(slower)
    assert 1 > moved[0] > moved[2] > 0 and 1 > moved[1] > moved[2]
    assert (narrow < wide).all() and narrow[0] < 0.97 * wide[0]
    # Rates that say the same again move it on, and not beyond them.
    again, narrowest = model.given([anchor] * 9).predict([one])
    assert 1 > (again - before[:1]) / np.log(slower) > moved[0] and narrowest < narrow[0]


def test_the_model_of_a_software_predicts_as_the_whole(model, of_jax):
    settings = [rate.setting for rate in of_jax if rate.setting.software == "JAX"]
    settings += [setting._replace(batch=setting.batch / 2) for setting in settings[:3]]
    part = model.of_software("JAX")
    assert len(part.values) < len(model.values)
    assert not [name for name in part.values if "MaxText" in name]
    np.testing.assert_allclose(part.predict(settings), model.predict(settings), rtol=1e-9)


def test_the_shipped_calibration_is_the_fit_to_the_shipped_rates():
    """The loss has no slope by values that belong to JAX's rates alone."""
    rates, shipped = read_rates(), load().model
    alone = Fitter([rate for rate in rates if rate.setting.software == "JAX"])
    others = {
        name
        for rate in rates
        if rate.setting.software != "JAX"
        for names in names_of(rate.setting)
        for name in names
    }
    theta = np.array([shipped.values[name] for name in alone._names])
    means, sds = np.array([shipped.prior(name) for name in alone._names]).T
    residual = alone._log_s - alone._fit.log_s(theta)
    weights = alone._weights(residual, alone._weight, shipped.noise)
    slope = alone._fit.slopes(theta).T @ (weights * residual) - (theta - means) / sds**2
    own = [": " in name and name not in others for name in alone._names]
    assert sum(own) > 20 and np.abs(slope * sds**2)[own].max() < 0.005
    assert load().num_rates == len(rates)
    assert {rate.setting.network for rate in rates} <= set(NETWORKS)


def test_the_measured_rates_of_an_h100_are_fitted():
    source = "jaxbench results/measurements/gpu.csv"
    rates = [rate for rate in read_rates() if rate.source == source]
    of = {rate.setting.network: rate for rate in rates}
    assert {"resnet50", "wrn28_10", "cnn10"} <= of.keys()
    for rate in rates:
        assert (rate.setting.kind, rate.setting.software) == (_CARD, "JAX")
    assert of["resnet50"].rate == pytest.approx(5892)
    assert load().counts["device"][_CARD] >= len(rates)
    # Their cells' own offsets are those of the shipped model.
    for rate in rates:
        assert names_of(rate.setting)[1][-1] in load().model.values
