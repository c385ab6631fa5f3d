"""The part corruption: the same step again and again, compared bit for bit.

The step is one of training, of dense layers. A network with convolutions would not do: GPU
libraries may compute their gradients in any order, so that equal steps rightly differ in some bits.
Dense layers and sums have one order.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.cards.card import measured
from jaxbench.microbench.repeat_check import check_repeats, checksum
from jaxbench.qualification.bench import Bench

_LAYERS, _SEED = 4, 20260304
# The rounds of each burst, which are compared with one another.
_ROUNDS = 3
# A card names no more of them; all are counted.
_MOST_NAMED = 100


def train_step(weights: dict[str, jax.Array], inputs_BxK: jax.Array) -> dict[str, jax.Array]:
    """Return the weights after a step: the first layer in fp32, the others in bf16."""

    def loss(weights):
        x = inputs_BxK
        for place, name in enumerate(sorted(weights)):
            dtype = jnp.bfloat16 if place else jnp.float32
            product = lax.dot(
                x.astype(dtype), weights[name].astype(dtype), precision=lax.Precision.HIGHEST
            )
            x = jnp.tanh(product.astype(jnp.float32))
        return jnp.mean(jnp.square(x - inputs_BxK))

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradients)


class CorruptionCheck:
    """Bursts of equal rounds, spread over a time.

    Within a burst rounds and devices are compared with one another, and the first device's results
    with those of the first burst.
    """

    def __init__(self, bench: Bench):
        self._bench, width = bench, bench.preset.check_width
        generator = np.random.default_rng(_SEED)
        names = [f"layer{place}" for place in range(_LAYERS)]
        self._inputs = (
            {n: generator.normal(0, width**-0.5, (width, width)).astype("f4") for n in names},
            generator.normal(0, 1, (width, width)).astype("f4"),
        )
        self._sum_up = jax.jit(lambda *inputs: jax.tree.map(checksum, train_step(*inputs)))
        self._expected: dict[str, int] | None = None
        self._rounds = 0
        self._mismatches = {device.id: 0 for device in bench.mesh.devices}
        self._named: dict[tuple[int, int, str], int] = {}

    def burst(self) -> None:
        """Run some rounds on all devices, and compare."""
        bench = self._bench
        with bench.clock.phase("corruption"):
            for found in check_repeats(train_step, self._inputs, bench.mesh, _ROUNDS):
                self._mismatches[found.device_id] += 1
                if found.elements is not None:
                    place = (found.device_id, self._rounds + found.round, found.path)
                    self._named[place] = found.elements
            first = bench.mesh.local_devices[0]
            sums = jax.device_get(self._sum_up(*jax.device_put(self._inputs, first)))
            sums = {name: int(value) for name, value in sums.items()}
            self._expected = self._expected or sums
            self._mismatches[first.id] += sum(sums[n] != self._expected[n] for n in sums)
            self._rounds += _ROUNDS + 1

    def report(self) -> None:
        """Add the figures of all bursts; none without one."""
        if not self._rounds:
            return
        self._bench.figures.append(measured("rounds", self._rounds))
        for device, count in self._mismatches.items():
            self._bench.figures.append(measured("mismatches", count, device=device))
        for (device, number, path), count in [*self._named.items()][:_MOST_NAMED]:
            self._bench.figures.append(
                measured("mismatched_values", count, device=device, round=number, tensor=path)
            )
