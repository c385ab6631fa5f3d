"""What is the same, by purpose."""

import pytest

from jaxbench.records import same
from jaxbench.reports.work import labelled
from jaxbench.schema import RunDocument
from tests.recorded import filled

CPU = {"device_kind": "cpu", "cpu": "Xeon", "cpu_cores": 8, "num_devices": 4}


def setting(**fields):
    given = {"config": {"model": {"width": 64}}, "environment": CPU, "experiment": "cnn10"}
    return same.setting_of(filled(RunDocument, **given | fields))


@pytest.mark.parametrize(
    ("fields", "differ", "tell_apart"),
    [
        ({"config": {"model": {"width": 64.0}}}, [], []),
        ({"config": {"model": {"width": 64}, "seed": 1, "batch_size": 8, "epochs": 2}}, [], []),
        ({"config": {"model": {"width": 32}}}, ["model.width"], ["model.width=64", "32"]),
        ({"environment": CPU | {"hostname": "lab"}}, ["host"], ["host=lab"]),
    ],
    ids=["spelling", "repeats", "network", "host"],
)
def test_keys_differences_and_labels_agree(fields, differ, tell_apart):
    settings = [setting(), setting(**fields)]
    assert same.differing(settings) == differ
    assert len({same.setting_key(one) for one in settings}) == 1 + bool(differ)
    labels = " ".join(label for label, _ in labelled(settings, lambda one: one))
    assert all(text in labels for text in tell_apart) and ("=" in labels) == bool(tell_apart)
    work = {same.setting_key(one, same.is_work) for one in settings}
    assert len(work) == 1 + ("model.width" in differ)


def test_attention_is_what_ran_and_not_the_work():
    """A setting that `auto` chose is the one asked for; cuDNN's and XLA's get a verdict."""

    def with_attention(asked, ran):
        return setting(config={"model": {"attention": asked}}, attention=ran)

    chosen, asked, fell_back = (
        with_attention(*names) for names in (("auto", "cudnn"), ("cudnn",) * 2, ("auto", "xla"))
    )
    assert same.differing([chosen, asked]) == []
    assert same.differing([chosen, fell_back]) == ["model.attention"]
    assert not same.is_other_work("model.attention") and same.is_other_work("model.heads")


def test_what_gpus_are_set_to_and_compute_with_tells_apart():
    board = {"device": "gpu0", "power_limit_w": 700.0, "ecc": True}
    gpu = {"boards": [board], "versions": {"cuDNN": "9.12.0"}, "variables": {}}
    others = [
        {"boards": [board | {"power_limit_w": 500.0}]},
        {"boards": [board, board | {"ecc": False}]},
        {"versions": {"cuDNN": "9.8.0"}},
        {"variables": {"NCCL_ALGO": "Tree", "NCCL_VERSION": "2.1", "CUDA_VERSION": "13.0"}},
    ]
    first, *changed = [setting(environment=gpu | other) for other in ({}, *others)]
    assert [same.differing([first, one]) for one in changed] == [
        *(["power_limit_w"], ["ecc"], ["cuDNN"], ["NCCL_ALGO"])
    ]
    assert first["power_limit_w"] == 700 and changed[1]["ecc"] == "True, False"
    label = labelled([first, changed[0]], lambda one: one)[1][0]
    assert "power_limit_w=500" in label


@pytest.mark.parametrize(
    ("environment", "keys"),
    [
        ({"device_kind": "H100"}, {"device_key", "machine_key", "host_key"}),
        ({"num_devices": 8}, {"device_key", "host_key"}),
        ({"hostname": "attic"}, {"device_key", "machine_key"}),
        ({"device_kind": "NVIDIA H200"}, set()),
    ],
    ids=["older driver", "more devices", "another host", "other devices"],
)
def test_what_makes_another_machine(environment, keys):
    here = {"device_kind": "NVIDIA H100", "hostname": "lab", "num_devices": 4}
    equal = {
        name
        for name in ("device_key", "machine_key", "host_key")
        if getattr(same, name)(here) == getattr(same, name)(here | environment)
    }
    assert equal == keys


@pytest.mark.parametrize("field", ["cpu", "cpu_cores", "num_devices"])
def test_cpu_devices_are_made_of_their_processor(field):
    assert same.device_key(CPU) != same.device_key(CPU | {field: 1})
