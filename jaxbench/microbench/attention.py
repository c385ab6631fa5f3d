"""The fastest implementation of attention for a network on these devices: `model.attention=auto`.

Each that the devices can do runs forward and backward at the shapes of one of the network's layers,
on one device, interleaved with the others. One that fails is left out. Process 0 measures for all.
"""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxbench.batch_layout import BatchLayout
from jaxbench.clock import Clock
from jaxbench.config import Config
from jaxbench.errors import first_line
from jaxbench.hardware.backend_flags import is_deterministic
from jaxbench.hardware.targets.target import compute_capability
from jaxbench.microbench.interleaved import Calls, measure_in_turn, warm_up
from jaxbench.models.transformer_block import attend, possible_attention
from jaxbench.parallel import processes
from jaxbench.precision import get_precision

_ROUNDS, _WINDOW_S = 5, 0.05
# The preferred one is taken if it takes at most this fraction longer than the fastest.
_NEAR = 0.05
_UNTIMED = "chosen without timing"
_LONGEST_ERROR = 200


class Attention(NamedTuple):
    """What the network's attention is: xla, cudnn or flash, None without blocks; and why."""

    name: str | None
    reason: str | None
    warnings: Sequence[str] = ()
    tried: bool = False  # whether implementations have run on a device


def possible_on(config: Config, device: Any) -> tuple[tuple[str | None, ...], str | None]:
    """Return what `possible_attention` does for a device of JAX, or a stand-in for one."""
    tpu = device.device_kind if device.platform == "tpu" else None
    dtype = get_precision(config.precision).compute_dtype
    return possible_attention(config, compute_capability(device), dtype, tpu)


def preferred_attention(config: Config, device: Any) -> Attention:
    """Return the attention of a network that is only compiled, described or predicted.

    Args:
      config: of the experiment.
      device: of JAX, or a stand-in with its `platform` and `device_kind`.

    Raises:
      BadInput: see `possible_attention`.
    """
    names, reason = possible_on(config, device)
    return Attention(names[0], _UNTIMED if len(names) > 1 else reason)


def fastest_attention(
    config: Config,
    layout: BatchLayout,
    device: jax.Device,
    clock: Clock,
    show: Callable[[str], contextlib.AbstractContextManager],
    before: Mapping[str, Any] | None = None,
) -> Attention:
    """Return the attention of a network that will run.

    Nothing is timed if only one is possible, or under --deterministic.

    Args:
      config: of the experiment.
      layout: its batch.
      device: the run's first one.
      clock: of the run.
      show: the context in which a console says what is done.
      before: run.json of the run that is resumed, which keeps its attention, in process 0; None of
        a new run.

    Raises:
      BadInput: see `possible_attention`.
    """
    names, _ = possible_on(config, device)
    # Two deterministic runs of a command must choose alike.
    if len(names) == 1 or is_deterministic(os.environ.get("XLA_FLAGS")):
        return preferred_attention(config, device)
    with clock.phase("attention"), show(f"timing attention by {' and '.join(map(str, names))}"):
        attention = Attention(None, None)
        if before and before.get("attention") in names:
            attention = Attention(before["attention"], before.get("attention_reason"))
        elif processes.is_primary():
            attention = _measure(config, layout, device, names)
        return Attention(*processes.broadcast_value(attention))


def _measure(
    config: Config, layout: BatchLayout, device: jax.Device, names: Sequence[Any]
) -> Attention:
    """Time each of these; the first is preferred."""
    turns, failed = {}, {}
    for name in names:
        try:
            turn = _layer(config, layout, device, name)
            # Not the turn's own warm-up, in which all processes take part.
            turn.warmup = warm_up(turn.time_calls, _WINDOW_S, _ROUNDS)
            turns[name] = turn
        except Exception as error:  # of any kind: JAX's cuDNN fails in several ways
            line = f"{type(error).__name__}: {first_line(error)}"[:_LONGEST_ERROR]
            failed[name] = f"{name} failed ({line})"
    times_s = {}
    if len(turns) > 1:
        measure_in_turn([*turns.values()], _ROUNDS)
        times_s = {name: turn.call_s().value or math.inf for name, turn in turns.items()}
        chosen = min(times_s, key=times_s.__getitem__)
        if times_s[names[0]] <= (1 + _NEAR) * times_s[chosen]:
            chosen = names[0]
    else:
        chosen = next(iter(turns), "xla")
    texts = {name: f"{1e6 * time_s:,.1f} us" for name, time_s in times_s.items()}
    others = [f"{name} {text}" for name, text in texts.items() if name != chosen]
    timed = [f"{texts[chosen]} a layer", *others] if texts else []
    warnings = [f"attention: {text}; {chosen} is taken" for text in failed.values()]
    return Attention(chosen, ", ".join([*timed, *failed.values()]), warnings, tried=True)


def _layer(config: Config, layout: BatchLayout, device: jax.Device, name: str) -> Calls:
    """Compile a layer's attention and its gradients."""
    model: Any = config.model
    batch = layout.batch_per_device // layout.gradient_accumulation_steps
    tokens, width = model.num_tokens(config.data.example_shape), model.width // model.heads
    dtype, heads = get_precision(config.precision).compute_dtype, model.heads
    shared_heads = getattr(model, "kv_heads", heads)

    def step(query_BxTxNxF, key_BxTxGxF, value_BxTxGxF, dy_BxTxNxF):
        y_BxTxNxF, backward = jax.vjp(
            lambda query, key, value: attend(query, key, value, model.causal, name),
            query_BxTxNxF,
            key_BxTxGxF,
            value_BxTxGxF,
        )
        return y_BxTxNxF, backward(dy_BxTxNxF)

    with jax.default_device(device):
        arrays = [
            jax.random.normal(jax.random.key(seed), (batch, tokens, count, width), dtype)
            for seed, count in enumerate((heads, shared_heads, shared_heads, heads))
        ]
        compiled = jax.jit(step).lower(*arrays).compile()
    return Calls(name, functools.partial(compiled, *arrays), [device], _WINDOW_S)
