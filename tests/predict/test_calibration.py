"""The errors of rows left out, the intervals from them, and the file that holds both."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from jaxbench.modes import predictions
from jaxbench.predict.calibration import (
    FILE,
    LEFT_OUT,
    LEVELS,
    LeftOut,
    error_quantile,
    leave_out,
    load,
    save,
)
from jaxbench.predict.model import Fitter, is_judged
from jaxbench.predict.rates import read_rates
from tests.conftest import refusal

# {what was left out: median and 90th percentile of |predicted / published - 1|}, of XLA's rows.
_ERRORS = {
    "device": (0.089, 0.255),
    "network": (0.088, 0.259),
    "generation": (0.117, 0.259),
    "years": (0.150, 0.351),
}


def rows_of(name):
    return [row for rows in load().left_out[name].values() for row in rows]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_rows_left_out_are_predicted_as_well_as_the_pages_say(name):
    """docs/concepts/prediction.md has the same figures, by benchmarks/prediction_error.py."""
    rates, rows = read_rates(), rows_of(name)
    sizes = np.abs(np.expm1([row.error for row in rows if is_judged(rates[row.row])]))
    median, ninth = _ERRORS[name]
    assert len(sizes) > 50
    assert np.median(sizes) < 1.1 * median and np.quantile(sizes, 0.9) < 1.1 * ninth


@pytest.mark.parametrize("name", LEFT_OUT)
def test_intervals_hold_rows_left_out(name):
    for level in LEVELS:
        assert np.mean([*load().held(name, level).values()]) > level - 0.01
    # No row is far outside.
    width = load().scales[LEVELS[-1]]
    assert max(abs(row.error) / row.sd for row in rows_of(name)) < 2.5 * width


def test_no_generation_breaks_the_intervals():
    left_out = load().left_out
    holds = load().held("generation", LEVELS[0])
    shares = {
        generation: np.mean([holds[row.row] for row in rows])
        for generation, rows in left_out["generation"].items()
    }
    assert len(shares) == 12
    assert not {name: share for name, share in shares.items() if share < 0.75}


def test_rows_left_out_are_those_of_their_group():
    rates = read_rates()
    for name, groups in load().left_out.items():
        for group, rows in groups.items():
            assert {LEFT_OUT[name](rates[row.row]) for row in rows} == {group}
        counted = [
            row
            for row, rate in enumerate(rates)
            if LEFT_OUT[name](rate) and (is_judged(rate) or name == "generation")
            if not rate.lower_bound
        ]
        assert sorted(row.row for row in rows_of(name)) == counted


def test_the_quantile_of_errors_counts_groups_alike():
    many = [LeftOut(row, 0.1, 1.0) for row in range(23)]
    few = [[LeftOut(row, 0.5, 1.0)] for row in range(3)]
    assert error_quantile([many, *few], 0.2) == 0.1
    assert error_quantile([many, *few], 0.5) == 0.5
    # An error counts in standard deviations.
    assert error_quantile([[LeftOut(0, -0.3, 0.1)]], 0.5) == pytest.approx(3)


def test_an_interval_is_from_rows_of_other_groups_and_the_hardest_way():
    good, bad = [LeftOut(row, 0.1, 0.1) for row in range(9)], LeftOut(9, 5.0, 0.1)
    easy = {str(row.row): [row] for row in good}
    hard = {str(row.row): [row._replace(sd=0.05)] for row in good}

    def calibration(rows_of_jax_on_gpus=range(9), **ways):
        left_out = dict.fromkeys(("device", "network", "generation"), easy) | ways
        return dataclasses.replace(
            load(), left_out=left_out, rows_of_jax_on_gpus=[*rows_of_jax_on_gpus]
        )

    one = calibration(device=easy | {"bad": [bad]})
    assert one.scale(0.8) == pytest.approx(1) and one.scale(0.9) == pytest.approx(50)
    assert one.held("device", 0.9) == {**dict.fromkeys(range(9), True), 9: False}
    for way in ("device", "network", "generation"):
        assert calibration(**{way: hard}).scale(0.8) == pytest.approx(2)
    # JAX's rows count alone, too; here they are one in ten.
    device = {str(row): [LeftOut(row, 0.1, 0.1)] for row in range(90)} | hard
    assert calibration(range(20, 90), device=device).scale(0.8) == pytest.approx(1)
    assert calibration(device=device).scale(0.8) == pytest.approx(2)


def test_a_fit_without_a_group_does_not_know_it():
    of = {"TPU v5": 1.0, "TPU v6 lite": 3.0, "TPU7x": 1.0}
    rates = [rate for rate in read_rates() if rate.setting.kind in of]
    slowed = [rate._replace(step_s=of[rate.setting.kind] * rate.step_s) for rate in rates]
    errors = []
    for some in (rates, slowed):
        fitter = Fitter(some)
        left_out = leave_out(fitter, "device", fitter.fit(steps=5)[0])
        assert left_out.keys() == of.keys()
        errors.append(np.median([row.error for row in left_out["TPU v6 lite"]]))
    assert errors[1] - errors[0] == pytest.approx(np.log(3), abs=0.1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The shipped calibration as it is written and read again."""
    path = tmp_path_factory.mktemp("calibration") / "mine.json"
    save(load(), path)
    return path


def test_the_shipped_file_is_as_it_is_written_a_row_a_line(stored):
    text = FILE.read_text()
    assert stored.read_text() == text
    model, left_out = load().model, load().left_out
    rows = [*model.values, *itertools.chain(*left_out.values()), *model.sds]
    assert not [name for name in rows if f"\n{json.dumps(name)}: " not in text]
    assert len(text.splitlines()) < len(rows) + 120


def test_a_calibration_is_read_as_it_was_fitted(tmp_path):
    rates = [rate for rate in read_rates() if rate.setting.software == "JAX"]
    model, _, _ = Fitter(rates).fit(steps=5)
    fitted = dataclasses.replace(load(), model=model.of_software("JAX"))
    save(fitted, tmp_path / "mine.json")
    again = predictions.load_calibration(str(tmp_path / "mine.json"))
    settings = [rate.setting for rate in rates]
    settings += [setting._replace(batch=setting.batch / 2) for setting in settings]
    (log_s, sds), (read_log_s, read_sds) = (one.predict(settings) for one in (model, again.model))
    np.testing.assert_allclose(np.exp(read_log_s - log_s), 1, atol=0.01)
    np.testing.assert_allclose(read_sds, sds, rtol=0.03)
    assert {name: getattr(again, name) for name in ("left_out", "counts", "near")} == {
        name: getattr(fitted, name) for name in ("left_out", "counts", "near")
    }


def _reorder(stored):
    stored["values"] = dict(sorted(stored["values"].items()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored.pop("values"),
        lambda stored: stored["values"].pop("norm"),
        lambda stored: stored["values"].update(norm=[float("nan"), 0.1, []]),
        lambda stored: stored["values"]["norm"][2].pop(),
        lambda stored: stored["values"]["norm"][2].__setitem__(0, 5000),
        lambda stored: stored["values"]["norm"].__setitem__(1, -0.1),
        _reorder,
        lambda stored: stored["sds"].pop("device"),
        lambda stored: stored["sds"].update(device=0.0),
        lambda stored: stored.update(noise=0.0),
        lambda stored: stored.update(noise="0.1"),
        lambda stored: stored.update(more=1),
        lambda stored: stored["counts"].pop("generation"),
        lambda stored: stored.update(rows_of_jax_on_gpus=[]),
        lambda stored: stored["left_out"].pop("years"),
        lambda stored: stored["left_out"].update(network={}),
        lambda stored: stored["left_out"].update(network={"resnet50": []}),
        lambda stored: stored["left_out"].update(network={"resnet50": [[0, 0.1, 0.0]]}),
        lambda stored: stored["left_out"].update(network={"resnet50": [[0, 0.1]]}),
    ],
)
def test_a_damaged_calibration_is_one_line(damage, stored, tmp_path):
    text = json.loads(stored.read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(text))
    assert predictions.load_calibration(str(path)).scales == load().scales
    damage(text)
    (damaged := tmp_path / "damaged.json").write_text(json.dumps(text))
    told = f"--calibration={damaged}: no calibration of this version: "
    refusal(predictions.load_calibration, str(damaged), told=told)


@pytest.mark.parametrize("text", ["", "{}", "[1]", FILE.read_text()[:5000], "[" * 10_000])
def test_a_file_that_is_no_calibration_is_one_line(text, tmp_path):
    (path := tmp_path / "mine.json").write_text(text)
    refusal(predictions.load_calibration, str(path), told="no calibration")
    refusal(predictions.load_calibration, str(tmp_path / "none"), told="no calibration")
