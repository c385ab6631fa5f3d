"""The part corruption: the same step again and again, compared bit for bit.

The step is one of training, of dense layers. A network with convolutions would not do: GPU
libraries may compute their gradients in any order, so that equal steps rightly differ in some bits.
Dense layers and sums have one order.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbench.cards.card import measured
from jaxbench.microbench.repeat_check import Mismatch, RepeatCheck
from jaxbench.qualification.session import QualifySession

_LAYERS, _SEED = 4, 20260304
# The rounds of each burst.
_ROUNDS = 3
# A card names no more of them; all are counted.
_MOST_NAMED = 100


def train_step(weights: dict[str, jax.Array], inputs_BxK: jax.Array) -> dict[str, jax.Array]:
    """Return the weights after a step: the first layer in fp32, the others in bf16."""

    def loss(weights):
        x = inputs_BxK
        for number, name in enumerate(sorted(weights)):
            dtype = jnp.bfloat16 if number else jnp.float32
            product = lax.dot(
                x.astype(dtype), weights[name].astype(dtype), precision=lax.Precision.HIGHEST
            )
            x = jnp.tanh(product.astype(jnp.float32))
        return jnp.mean(jnp.square(x - inputs_BxK))

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradients)


class CorruptionCheck:
    """Bursts of equal rounds, spread over the soak, all compared with one reference."""

    def __init__(self, session: QualifySession):
        self._session, width = session, session.preset.check_width
        generator = np.random.default_rng(_SEED)
        names = [f"layer{number}" for number in range(_LAYERS)]
        inputs = (
            {n: generator.normal(0, width**-0.5, (width, width)).astype("f4") for n in names},
            generator.normal(0, 1, (width, width)).astype("f4"),
        )
        self._check = RepeatCheck(train_step, inputs, session.mesh)
        self._counts = {device.id: 0 for device in session.mesh.devices}
        self._named: list[Mismatch] = []

    def burst(self) -> None:
        """Run some rounds on all devices, and compare."""
        with self._session.clock.phase("corruption"):
            for mismatch in self._check.burst(_ROUNDS):
                self._counts[mismatch.device_id] += 1
                if len(self._named) < _MOST_NAMED:
                    self._named.append(mismatch)

    def report(self) -> None:
        """Add the figures of all bursts, if any."""
        if not self._check.rounds:
            return
        figures = self._session.figures
        figures.append(measured("rounds", self._check.rounds))
        figures += [measured("mismatches", n, device=device) for device, n in self._counts.items()]
        for one in self._named:
            labels: dict[str, Any] = {"device": one.device_id, "round": one.round}
            figures.append(measured("mismatched_values", one.elements, tensor=one.path, **labels))
