"""Optimizers and schedules: what a config asks for is what is applied."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.training import optimizers
from jaxbench.training.optimizers import create_optimizer, create_schedule
from jaxbench.training.parameter_groups import ParameterUses
from tests.conftest import refusal

pytestmark = pytest.mark.device


def config_with(epochs=10, batch_size=128, **optimizer):
    config = registry.load("quickstart")
    config.epochs, config.batch_size = epochs, batch_size
    config.optimizer = type(config.optimizer)(**optimizer)
    config.validate()
    return config


def rates(steps_per_epoch=10, **fields):
    config = config_with(**fields)
    schedule = create_schedule(config, steps_per_epoch)
    updates = jnp.arange(config.epochs * steps_per_epoch, dtype=jnp.int32)
    return np.asarray(jax.vmap(schedule)(updates))


def create(config, steps_per_epoch=10, **uses):
    """The update rule for a network that does this with its parameters."""
    uses = ParameterUses(**{use: frozenset(uses.get(use, ())) for use in ParameterUses._fields})
    schedule = create_schedule(config, steps_per_epoch)
    return create_optimizer(config, schedule, steps_per_epoch, lambda: uses)


@pytest.mark.parametrize(
    ("schedule", "fields", "expected"),
    [
        ("constant", {}, {0: 1, 99: 1}),
        ("linear", {}, {0: 1, 50: 0.5, 99: 0.01}),
        ("cosine", {}, {0: 1, 25: (1 + 2**-0.5) / 2, 50: 0.5}),
        (
            "step",
            {"decay_at": (0.3, 0.7), "decay_factor": 0.5},
            {29: 1, 30: 0.5, 69: 0.5, 70: 0.25},
        ),
        # Of two decays that fall on one step both count.
        ("step", {"decay_at": (0.596, 0.602)}, {59: 1, 60: 0.01}),
    ],
)
def test_schedules(schedule, fields, expected):
    values = rates(schedule=schedule, learning_rate=1.0, **fields)
    assert values[[*expected]] == pytest.approx([*expected.values()], rel=1e-4)


@pytest.mark.parametrize("batch_size", [128, 1000, 8192])
@pytest.mark.parametrize(
    ("spec", "examples", "milestones"),
    [
        ("resnet50:step", 1_281_167, [30, 60, 80]),
        ("wrn28_10", 50_000, [60, 120, 160]),
        ("wrn28_10:2019", 50_000, [50, 80]),
        ("cnn10", 50_000, [50, 80]),
    ],
)
def test_decays_are_at_the_end_of_the_recipes_epochs(spec, examples, milestones, batch_size):
    """As by PyTorch's MultiStepLR, which counts epochs."""
    config = registry.load(spec)
    config.batch_size, steps = batch_size, examples // batch_size
    schedule, optimizer = create_schedule(config, steps), config.optimizer
    peak = optimizer.learning_rate * batch_size / optimizer.base_batch_size
    ends = np.arange(optimizer.warmup_epochs + 1, config.epochs).astype(int) * steps
    updates = np.stack([ends - 1, ends, ends + 1])
    decays = np.searchsorted(milestones, updates // steps, side="right")
    found = jax.vmap(jax.vmap(schedule))(updates.astype(np.int32))
    np.testing.assert_allclose(found, peak * optimizer.decay_factor**decays, rtol=1e-5)


def test_a_fraction_of_an_epoch_ends_schedule_and_training():
    """243 steps of 32 an epoch, as the record's recipe has them."""
    config = config_with(epochs=7.59, schedule="linear", learning_rate=1.0, batch_size=128)
    schedule = create_schedule(config, 32)
    assert config.num_steps(32) == config.schedule_steps(32) == 243
    assert float(schedule(242)) == pytest.approx(1 / 243) and float(schedule(243)) == 0
    # No rounding error is a step.
    assert config_with(epochs=1.1).num_steps(110) == 121 and 1.1 * 110 > 121
    config.max_steps = 5
    assert (config.num_steps(32), config.schedule_steps(32)) == (5, 243)


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "linear"])
def test_warmup_rises_to_the_rate_and_moves_no_boundary(schedule):
    fields = {"schedule": schedule, "learning_rate": 1.0}
    if schedule == "step":
        fields |= {"decay_at": (0.5,)}
    warm = rates(warmup_epochs=2, **fields)
    assert warm[:20] == pytest.approx(np.arange(1, 21) / 20, rel=1e-5)
    assert warm[20] == pytest.approx(1, rel=1e-4)
    if schedule == "step":
        assert warm[[49, 50]] == pytest.approx([1, 0.1], rel=1e-5)


def test_a_decay_inside_warmup_comes_at_its_own_step():
    """The rise goes on from there, to the decayed rate."""
    warm = rates(
        4, schedule="step", learning_rate=1.0, epochs=10, warmup_epochs=2, decay_at=(0.1, 0.5)
    )
    rise = np.arange(1, 9) / 8
    assert warm[:8] == pytest.approx(rise * ([1] * 4 + [0.1] * 4))
    assert warm[[8, 19, 20]] == pytest.approx([0.1, 0.1, 0.01])


def first_updates(gradient=0.5, steps=2, **optimizer):
    """What `steps` equal gradients do to a kernel and a bias of one value each."""
    config = config_with(**{"learning_rate": 0.1} | optimizer)
    transform = create(config)
    params = {"layer": {"kernel": jnp.full((1, 1), 2.0), "bias": jnp.full((1,), 2.0)}}
    grads = jax.tree.map(lambda p: jnp.full_like(p, gradient), params)
    state = transform.init(params)
    for _ in range(steps):
        updates, state = transform.update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return float(params["layer"]["kernel"][0, 0]), float(params["layer"]["bias"][0])


def test_gradients_are_clipped_before_all_else():
    """The norm is that of all parameters together, and weight decay is not clipped."""
    step = functools.partial(first_updates, name="sgd", momentum=0.0, steps=1)
    scaled = 0.5 * 0.1 / np.sqrt(2 * 0.5**2)  # of a kernel and of a bias
    clipped = step(max_gradient_norm=0.1, weight_decay=0.3)
    assert clipped == pytest.approx([2 - 0.1 * (scaled + 0.3 * 2)] * 2)
    assert step(max_gradient_norm=0.8) == step()
    # Over groups of parameters with rates of their own.
    kernel, bias = step(bias_learning_rate=0.2, max_gradient_norm=0.1)
    assert (2 - bias) / (2 - kernel) == pytest.approx(2, rel=1e-4)
    assert 2 - kernel == pytest.approx(0.1 * scaled, rel=1e-4)


def test_update_rules_by_hand():
    # sgd: v = 0.9 v + g; p -= 0.1 v.
    assert first_updates(name="sgd")[0] == pytest.approx(2 - 0.1 * 0.5 - 0.1 * 0.95)
    # nesterov: p -= 0.1 (g + 0.9 v).
    assert first_updates(name="nesterov")[0] == pytest.approx(2 - 0.1 * 0.95 - 0.1 * 1.355)
    # adam and adamw: the first steps of equal gradients are the rate itself.
    assert first_updates(name="adam")[0] == pytest.approx(1.8, rel=1e-5)
    decayed = 2 * 0.99 - 0.1
    decayed = decayed * 0.99 - 0.1
    assert first_updates(name="adamw", weight_decay=0.1)[0] == pytest.approx(decayed, rel=1e-5)
    # adadelta's first step: sqrt(eps) / sqrt(0.05 g^2 + eps) of the gradient.
    step = 0.5 * np.sqrt(1e-6) / np.sqrt(0.05 * 0.25 + 1e-6)
    adadelta = first_updates(name="adadelta", steps=1, learning_rate=1.0, eps=1e-6)
    assert adadelta[0] == pytest.approx(2 - step, rel=1e-5)


def test_weight_decay_is_a_penalty_on_all_or_on_kernels():
    kernel, bias = first_updates(name="sgd", weight_decay=0.1, steps=1)
    assert kernel == bias == pytest.approx(2 - 0.1 * (0.5 + 0.2))
    kernel, bias = first_updates(name="sgd", weight_decay=0.1, weight_decay_on="kernels", steps=1)
    assert kernel == pytest.approx(2 - 0.1 * 0.7) and bias == pytest.approx(1.95)
    plain = first_updates(name="adamw", steps=1)
    kernel, bias = first_updates(name="adamw", weight_decay=0.1, weight_decay_on="kernels", steps=1)
    assert kernel < plain[0] and bias == pytest.approx(plain[1])


def test_decoupled_decay_is_a_fraction_at_any_rate():
    """The first step of a zero gradient takes the fraction off, whatever the group's rate."""
    fields = {"weight_decay": 0.03, "weight_decay_mode": "decoupled", "gradient": 0.0, "steps": 1}
    for rate in (0.1, 10.0):
        moved = first_updates(name="sgd", learning_rate=rate, bias_learning_rate=5.0, **fields)
        assert moved == pytest.approx((2 * 0.97, 2 * 0.97))


def test_biases_and_the_head_have_rates_that_scale_with_the_batch():
    config = config_with(
        **{"name": "adam", "learning_rate": 0.1, "batch_size": 256, "schedule": "linear"},
        **{"bias_learning_rate": 0.3, "head_learning_rate": 0.4},
    )
    transform = create(config, multiplied=("head/weights",), last=("last/weights",))
    params = {name: {"weights": jnp.ones((2, 2))} for name in ("head", "last")}
    params["head"]["bias"] = jnp.ones(2)
    updates, _ = transform.update(params, transform.init(params), params)
    # adam's first step is the rate, for twice the base batch.
    steps = {("head", "weights"): 0.2, ("last", "weights"): 0.8, ("head", "bias"): 0.6}
    for (layer, name), step in steps.items():
        assert np.asarray(updates[layer][name]) == pytest.approx(-step, rel=1e-5)


def test_some_parameters_never_learn_and_some_for_a_while(monkeypatch):
    early = {"layer/kernel": 0.0, "layer/bias": 2.0}
    config = config_with(name="sgd", learning_rate=0.1, momentum=0.0)
    monkeypatch.setattr(type(config.model), "trainable_epochs", lambda self: early)
    transform = create(config, 3)
    params = {"layer": {"kernel": jnp.ones((1,)), "bias": jnp.ones((1,))}}
    state, moved = transform.init(params), []
    for _ in range(8):
        updates, state = transform.update(params, state, params)
        assert not updates["layer"]["kernel"].any()
        moved.append(-float(updates["layer"]["bias"][0]))
    assert moved == pytest.approx([0.1 * (1 - step / 6) for step in range(6)] + [0, 0], abs=1e-8)


def test_muon_leaves_biases_heads_and_tables_to_sgd():
    config = config_with(
        name="muon", learning_rate=0.1, momentum=0.6, sgd_momentum=0.0, bias_learning_rate=0.5
    )
    uses = {"multiplied": ("conv/kernel", "head/kernel", "tokens/table"), "last": ("head/kernel",)}
    transform = create(config, looked_up=("tokens/table",), **uses)
    shapes = {"conv": {"kernel": (3, 3, 4, 8), "bias": (8,)}, "head": {"kernel": (8, 2)}}
    shapes |= {"tokens": {"table": (9, 4)}, "places": {"table": (3, 4)}}
    params = jax.tree.map(jnp.ones, shapes, is_leaf=lambda shape: isinstance(shape, tuple))
    grads = jax.tree.map(lambda p: 1e-3 * jax.random.normal(jax.random.key(1), p.shape), params)
    updates, _ = transform.update(grads, transform.init(params), params)
    assert np.asarray(updates["conv"]["bias"]) == pytest.approx(-0.5 * grads["conv"]["bias"])
    for layer, name in (("head", "kernel"), ("tokens", "table"), ("places", "table")):
        assert np.asarray(updates[layer][name]) == pytest.approx(-0.1 * grads[layer][name])


def muon_as_published(
    kernel_NxO,
    grads_TxNxO,
    *,
    rate,
    momentum,
    steps,
    factors=(3.4445, -4.7750, 2.0315),
    rescaled=lambda step: True,
):
    """The updates of airbench94_muon.py, in NumPy: momentum as a plain sum, Nesterov's step."""
    kernel, moment = np.array(kernel_NxO, np.float64), 0.0
    a, b, c = factors
    for step, grad in enumerate(grads_TxNxO, 1):
        moment = momentum * moment + grad
        x = grad + momentum * moment
        x = x / (np.linalg.norm(x) + 1e-7)
        x = x.T if x.shape[0] > x.shape[1] else x
        for _ in range(steps):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
        x = x.T if x.shape != kernel.shape else x
        if rescaled(step):
            kernel *= np.sqrt(kernel.shape[1]) / np.linalg.norm(kernel)
        kernel -= rate * x
    return kernel


@pytest.mark.parametrize(
    ("fields", "published"),
    [
        ({}, {"rescaled": lambda step: False}),
        ({"norm_interval": (1, 1)}, {}),
        (
            {"newton_schulz_coefficients": (3.4576, -4.7391, 2.0843), "norm_interval": (2, 3)},
            # 2 + 1 x progress, rounded down: 2 until the sixth and last step.
            {"factors": (3.4576, -4.7391, 2.0843), "rescaled": lambda step: step in (2, 4)},
        ),
    ],
)
@pytest.mark.usefixtures("fp32_products")
def test_muon_is_that_of_its_publications(fields, published):
    config = config_with(
        **{"name": "muon", "learning_rate": 0.1, "momentum": 0.6, "sgd_momentum": 0.0},
        **{"newton_schulz_steps": 3, "epochs": 1, **fields},
    )
    # Two are one batch, as matrices of 36 x 8; the others have a shape of their own.
    shapes = {"a": (3, 3, 4, 8), "b": (1, 1, 4, 8), "c": (2, 2, 9, 8), "d": (3, 3, 4, 40)}
    keys = dict(zip(shapes, jax.random.split(jax.random.key(0), len(shapes)), strict=True))
    params = {n: {"kernel": jax.random.normal(keys[n], shapes[n])} for n in shapes}
    grads = {n: {"kernel": jax.random.normal(keys[n], (6, *shapes[n]))} for n in shapes}
    params["head"] = {"kernel": jnp.ones((2, 2))}
    grads["head"] = {"kernel": jnp.ones((6, 2, 2))}
    kernels = [f"{name}/kernel" for name in params]
    transform = create(config, 6, multiplied=kernels, last=("head/kernel",))
    start, state = params, transform.init(params)
    for step in range(6):
        step_grads = jax.tree.map(lambda grad: grad[step], grads)  # noqa: B023
        updates, state = transform.update(step_grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    for name, shape in shapes.items():
        expected = muon_as_published(
            np.asarray(start[name]["kernel"]).reshape(-1, shape[-1]),
            np.asarray(grads[name]["kernel"]).reshape(6, -1, shape[-1]),
            **{"rate": 0.1, "momentum": 0.6, "steps": 3, **published},
        )
        kernel = np.asarray(params[name]["kernel"]).reshape(-1, shape[-1])
        assert kernel == pytest.approx(expected, abs=1e-4), name


def test_norms_are_kept_at_intervals_that_grow():
    """The steps of the record's recipe, by its own rule: 2 + int(15 x progress) steps apart."""
    expected, last = [], 0
    for step in range(1, 244):
        if step - last >= 2 + int(15 * (step / 243)):
            expected.append(step)
            last = step
    transform = optimizers._keep_norms((2, 17), 243)
    kernel = jnp.full((1, 1, 1, 4), 3.0)

    @jax.jit
    def scaled(state, _):
        update, state = transform.update(jnp.zeros_like(kernel), state, kernel)
        return state, (update != 0).any()

    is_scaled = jax.lax.scan(scaled, transform.init(kernel), length=243)[1]
    assert (np.flatnonzero(is_scaled) + 1).tolist() == expected and len(expected) < 40


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "muon", "norm_interval": (2,)}, "must be () or (shortest,longest)"),
        ({"name": "muon", "norm_interval": (3, 2)}, "must be () or (shortest,longest)"),
        ({"name": "muon", "norm_interval": (0, 2)}, "must be at least 1"),
        ({"name": "muon", "newton_schulz_coefficients": (3.0, 1.0)}, "must be (a,b,c)"),
        *(
            ({"schedule": "step", "decay_at": at}, "must rise, between 0 and 1")
            for at in ((0.6, 0.3), (0.5, 0.5), (0.0, 0.5), (0.5, 1.0))
        ),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(fields, told):
    refusal(config_with, **fields, told=told)
