"""The devices of a process."""

import types

import pytest

from jaxbench.parallel import mesh
from jaxbench.parallel.mesh import find_devices
from tests.conftest import refusal


@pytest.mark.parametrize(
    ("asked", "platforms", "found", "told"),
    [
        ("cuda", "cuda,cpu", "cpu", "the plugin for JAX_PLATFORMS=cuda has not started; correct"),
        ("cuda", "cuda", AssertionError(), "the plugin for JAX_PLATFORMS=cuda has not started"),
        ("tpu", "tpu,cpu", RuntimeError("Busy. (set JAX_PLATFORMS='')"), "devices: Busy; correct"),
        ("cuda", "cuda,cpu", "gpu", None),
        ("cuda,cpu", "cuda,cpu", "cpu", None),
        (None, None, "cpu", None),
    ],
)
def test_the_cpu_does_not_take_the_place_of_what_was_asked_for(
    monkeypatch, asked, platforms, found, told
):
    def local_devices():
        if isinstance(found, Exception):
            raise found
        return [types.SimpleNamespace(platform=found)]

    fake = types.SimpleNamespace(values={"jax_platforms": platforms})
    monkeypatch.setattr(
        mesh, "jax", types.SimpleNamespace(local_devices=local_devices, config=fake)
    )
    monkeypatch.delenv("JAX_PLATFORMS")
    if asked:
        monkeypatch.setenv("JAX_PLATFORMS", asked)
    if told:
        refusal(find_devices, told=told)
    else:
        assert find_devices()[0].platform == found
