"""The figures of a sweep's table: each is recorded, and what is not known is told from never."""

import dataclasses

import pytest

from jaxbench.records.reader import load_run
from jaxbench.records.schema import RECORDS, TrialFigures
from jaxbench.sweeps.tables import figures_of
from tests.recorded import epochs, recorded_run


def test_every_figure_is_a_field_of_a_record_or_derived():
    recorded = {field.name for cls in RECORDS.values() for field in dataclasses.fields(cls)}
    figures = {field.name for field in dataclasses.fields(TrialFigures)}
    assert figures - recorded == {
        *("total_s", "weak_efficiency", "strong_efficiency", "training_flops", "energy_j"),
        *("prepare_images_per_s", "prepare_and_send_images_per_s", "train_step_images_per_s"),
        *("conv2d_compute_s", "conv2d_scipy_s", "needed_bytes_per_device"),
        *("target_value", "target_reached", "target_s", "target_epoch", "target_images"),
        *("target_flops", "target_energy_j", "target_usd"),
    }


@pytest.mark.parametrize(
    ("status", "reached"), [("done", False), ("diverged", False), ("preempted", None)]
)
def test_never_reached_is_told_from_not_known(tmp_path, status, reached):
    never = {"score": "top1", "value": 0.99, "reached": False, "energy_j": None}
    run = recorded_run(tmp_path / "run", status=status, summary={"target_accuracy": never})
    figures = figures_of(load_run(str(run)))
    assert (figures.target_value, figures.target_reached) == (0.99, reached)
    assert figures.target_s is None


def test_what_a_target_took_is_that_of_the_epoch_that_reached_it(tmp_path):
    target = {"score": "top1", "value": 0.4, "reached": True, "energy_j": 7200.0, "usd": 0.5}
    run = recorded_run(
        tmp_path / "run",
        epochs([100.0] * 4, images=[50_000] * 4),
        summary={"target_accuracy": target, "compile_s": 7.0},
        training_flops_per_image=10,
    )
    figures = figures_of(load_run(str(run)))
    assert (figures.target_s, figures.target_epoch, figures.target_images) == (31.5, 2, 99_840)
    assert (figures.target_flops, figures.training_flops) == (998_400, 2_000_000)
    assert (figures.target_energy_j, figures.target_usd, figures.total_s) == (7200.0, 0.5, 2007.0)
