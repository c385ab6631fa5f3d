"""Which steps and evaluations a run consists of."""

import pytest

from jaxbench.training.run import TrainPlan


@pytest.mark.parametrize("plan", [(33, 11, 1), (14, 11, 2), (30, 10, 2), (50, 10, 3), (1, 11, 5)])
def test_epochs_make_up_the_run_and_the_last_is_evaluated(plan):
    plan = TrainPlan(*plan)
    epochs = range(plan.num_epochs)
    steps = [step for epoch in epochs for step in plan.steps(epoch)]
    assert steps == list(range(1, plan.total_steps + 1))
    evaluated = [epoch for epoch in epochs if plan.is_evaluated(epoch)]
    every = plan.eval_every_epochs
    assert evaluated == sorted({*epochs[every - 1 :: every], epochs[-1]})
    for done in epochs:
        assert plan.num_evaluations(done) == len([epoch for epoch in evaluated if epoch >= done])
