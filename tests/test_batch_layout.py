"""One split of the batch: by devices, by processes, by models."""

import functools

import pytest

from jaxbench.batch_layout import BatchLayout, batch_multiple
from tests.conftest import MICRO, config_of, refusal

config_with = functools.partial(config_of, MICRO)


def test_one_model_on_devices_of_two_processes():
    config = config_with(batch_size=48, gradient_accumulation_steps=3)
    layout = BatchLayout.create(config, 8, (1, 2))
    assert (layout.num_models, layout.devices_per_model) == (1, 8)
    assert (layout.batch_per_device, layout.batch_per_process) == (6, 24)
    assert layout.images_per_step == layout.global_batch == layout.global_eval_batch == 48
    assert list(range(8))[layout.local_slice] == [4, 5, 6, 7]


def test_a_model_on_each_device():
    config = config_with(batch_size=6, eval_batch_size=5, replicas="independent")
    layout = BatchLayout.create(config, 4)
    assert (layout.num_models, layout.devices_per_model) == (4, 1)
    assert (layout.batch_per_device, layout.batch_per_process) == (6, 24)
    assert (layout.images_per_step, layout.global_eval_batch) == (24, 5)


PARTS = {"gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("fields", "num_devices", "told"),
    [
        ({"batch_size": 7}, 8, "batch_size=7 does not divide over 8 devices; "),
        ({"batch_size": 17}, 8, "the nearest that do: 16 and 24"),
        ({"batch_size": 9} | PARTS, 1, "over 1 device in 2 parts each; the nearest that do: 8 and"),
        ({"batch_size": 3, "replicas": "independent"} | PARTS, 4, "over 1 device in 2 parts each"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(fields, num_devices, told):
    config = config_with(**fields)
    refusal(BatchLayout.create, config, num_devices, told=told)
    config.batch_size = 5 * batch_multiple(config, num_devices)
    assert BatchLayout.create(config, num_devices).global_batch == config.batch_size
