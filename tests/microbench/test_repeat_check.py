"""The search for corrupted results: what checksums see, who is named."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.microbench.repeat_check import RepeatCheck, checksum
from jaxbench.parallel.mesh import AXIS, DataMesh

_TYPES = ("float32", "int32", "uint32")


@pytest.fixture
def mesh():
    return DataMesh(tuple(jax.devices()[:4]), "shard_map")


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.device
def test_a_checksum_sees_one_bit_and_changed_places(dtype):
    array = jnp.asarray(np.arange(12).reshape(3, 4) % 3, dtype)
    flipped = array.at[1, 2].set(array[1, 2] == 0)
    swapped = array.at[0, 0].set(array[0, 1]).at[0, 1].set(array[0, 0])
    sums = {int(checksum(one)) for one in (array, flipped, swapped)}
    assert len(sums) == 3
    assert checksum(array) == checksum(array + 0)


@pytest.mark.device
def test_zeros_of_both_signs_differ():
    assert checksum(jnp.zeros(3)) != checksum(-jnp.zeros(3))


def _from_host(mesh, wrong):
    """A step whose results the host makes: +1 to element 3 on the devices that `wrong` names."""
    calls = collections.Counter()

    def make(device, x_N):
        calls[int(device)] += 1
        flip = int(device) in wrong(calls[int(device)] - 1)
        return x_N + flip * (np.arange(9) == 3).astype(np.float32)

    def step(x_N):
        shape = jax.ShapeDtypeStruct((9,), jnp.float32)
        return {"x": jax.pure_callback(make, shape, jax.lax.axis_index(AXIS), x_N)}

    return RepeatCheck(step, [jnp.arange(9.0)], mesh)


@pytest.mark.device
def test_a_single_wrong_round_is_found(mesh):
    """Of one device, in the third of four calls, in one element."""
    alone = dataclasses.replace(mesh, devices=mesh.devices[:1])
    [found] = _from_host(alone, lambda number: {0} if number == 2 else ()).burst(4)
    assert (found.device_id, found.round, found.path, found.elements) == (0, 2, "x", 1)


def test_of_two_devices_that_disagree_either_may_be_wrong(mesh):
    two = dataclasses.replace(mesh, devices=mesh.devices[:2])
    found = _from_host(two, lambda number: {1}).burst(2)
    named = [(one.device_id, one.round, one.elements) for one in found]
    assert named == [(device, number, 1) for number in (0, 1) for device in (0, 1)]


def test_later_rounds_tell_which_of_two_devices_was_wrong_once(mesh):
    two = dataclasses.replace(mesh, devices=mesh.devices[:2])
    check = _from_host(two, lambda number: {0} if number == 0 else ())
    assert [one.device_id for one in check.burst(1)] == [0, 1]
    assert check.burst(2) == []


def test_most_devices_are_right_and_bursts_share_one_reference(mesh):
    check = _from_host(mesh, lambda number: {2} if number == 1 else range(9) if number > 2 else ())
    assert [[one.device_id for one in check.burst(1)] for _ in range(3)] == [[], [2], []]
    found = check.burst(1)  # equal among themselves
    assert [one.device_id for one in found] == [0, 1, 2, 3]
    assert {(one.round, one.elements) for one in found} == {(3, 1)}


@pytest.mark.device
def test_all_bursts_are_of_one_program(mesh):
    traced = []
    check = RepeatCheck(lambda x: traced.append(1) or 2 * x, [jnp.ones(3)], mesh)
    for _ in range(3):
        assert check.burst(2) == []
    assert (len(traced), check.rounds) == (1, 6)
