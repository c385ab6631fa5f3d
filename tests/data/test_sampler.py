"""Reading order: a function of seed and epoch, whatever the devices; evaluation misses nobody."""

import numpy as np
import pytest

from jaxbench.batch_layout import BatchLayout
from jaxbench.data.sampler import PADDING, EpochSampler, epoch_order, eval_order, train_order


def layout_of(num_devices, eval_batch=10, process=(0, 1), models=1, parts=1):
    return BatchLayout(
        global_batch=24,
        global_eval_batch=eval_batch,
        num_devices=num_devices,
        process_index=process[0],
        num_processes=process[1],
        num_models=models,
        gradient_accumulation_steps=parts,
    )


def test_an_epoch_is_a_permutation_and_no_two_are_alike():
    orders = [epoch_order(1000, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order) == list(range(1000))
    assert len({order.tobytes() for order in orders}) == 4
    assert np.array_equal(orders[0], epoch_order(1000, 0, 0))


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
def test_the_parts_of_a_global_batch_are_the_same_on_any_number_of_devices(num_devices, num_parts):
    order_DxSxB = train_order(layout_of(num_devices, parts=num_parts), 100, seed=3, epoch=5)
    order_DxSxPxN = order_DxSxB.reshape(num_devices, 4, num_parts, -1)
    parts_SxPxN = epoch_order(100, 3, 5)[:96].reshape(4, num_parts, -1)
    for step in range(4):
        for part in range(num_parts):
            read = np.concatenate(order_DxSxPxN[:, step, part])
            assert np.array_equal(read, parts_SxPxN[step, part])


@pytest.mark.parametrize("num_examples", [1, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("batch_size", [1, 7, 8, 9, 64])
def test_evaluation_reads_every_example_once(num_examples, batch_size):
    order_DxSxB = eval_order(layout_of(8, eval_batch=batch_size), num_examples)
    read = order_DxSxB[order_DxSxB != PADDING]
    assert sorted(read) == list(range(num_examples))


@pytest.mark.parametrize(("num_processes", "seeds"), [(2, (3,)), (4, (3,)), (2, (3, 4, 5, 6))])
def test_processes_read_their_share_and_together_everything(num_processes, seeds):
    def sampler(index, count):
        layout = layout_of(4, process=(index, count), models=len(seeds))
        return EpochSampler(layout, num_train=103, num_eval=29, seeds_R=seeds)

    whole = sampler(0, 1)
    parts = [sampler(index, num_processes) for index in range(num_processes)]
    for part in parts:
        assert len(part.train_LxSxB(1)) == len(part.eval_LxSxB) == 4 // num_processes
    joined = np.concatenate([part.train_LxSxB(1) for part in parts])
    assert np.array_equal(joined, whole.train_LxSxB(1))
    evaluated = np.concatenate([part.eval_LxSxB for part in parts])
    assert np.array_equal(evaluated, whole.eval_LxSxB)
    read = evaluated[evaluated != PADDING]
    assert sorted(read) == sorted(list(range(29)) * len(seeds))
    assert np.array_equal(np.concatenate([part.seeds_L for part in parts]), whole.seeds_L)
