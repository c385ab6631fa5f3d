"""The update rule of an experiment: optimizer, learning-rate schedule, weight decay."""

import dataclasses

from jaxbench.config.custom import Code, HoldsCode
from jaxbench.config.fields import choice, custom, fraction, number
from jaxbench.errors import BadInput

# The update rules that treat groups of parameters differently; a custom rule gets all of them.
_RULES = ("sgd", "nesterov", "adam", "adamw", "adadelta", "muon")
_SHIPPED = {"name": _RULES}
_ADAM = {"name": ("adam", "adamw")}
_MUON = {"name": ("muon",)}
_STEP = {"schedule": ("step",)}


@dataclasses.dataclass(kw_only=True)
class OptimizerConfig(HoldsCode):
    """The update rule; `learning_rate` holds for `base_batch_size` and is scaled linearly.

    Attributes:
      name: Update rule. muon: the momentum of every kernel but the last layer's is orthogonalised;
        all other parameters, embeddings too, take Nesterov steps, and only they decay. custom: that
        of `optimizer.update_rule`.
      update_rule: A function that makes an optax.GradientTransformation from the schedule (update
        -> learning rate), set in an experiment file.
      learning_rate: Learning rate for a global batch of `optimizer.base_batch_size`; it is scaled
        linearly to `batch_size`. With a schedule: the highest rate.
      bias_learning_rate: Learning rate of vectors, which are biases and the parameters of norms,
        scaled like `optimizer.learning_rate`; 0 takes that rate.
      head_learning_rate: Learning rate of the last layer's kernel, scaled like
        `optimizer.learning_rate`; 0 takes that rate. The last layer is the one that makes the
        outputs, whatever its name.
      base_batch_size: Global batch, in images, for which the learning rates are given.
      momentum: Decay of the running sum of gradients; 0 is off.
      b1: Decay of the running mean of gradients.
      b2: Decay of the running mean of squared gradients.
      rho: Decay of the running means of squared gradients and updates.
      eps: Added to the denominator of an update, against division by 0.
      newton_schulz_steps: Newton-Schulz iterations with which Muon orthogonalises the momentum.
      newton_schulz_coefficients: Factors (a,b,c) of an iteration, X -> a X + b XX'X + c XX'XX'X.
      norm_interval: Rescale Muon's kernels to a norm of the root of their outputs, which suits
        kernels that batch norm follows. Steps from one rescaling to the next, (at first, at last);
        in between they grow linearly, rounded down. (1,1) rescales in every step, () never.
      sgd_momentum: Momentum of the parameters that take Nesterov steps under Muon.
      weight_decay: Weight decay, as an L2 penalty added to the gradient, like torch.optim.SGD.
        adamw decays parameters by its own rule.
      weight_decay_mode: How weight decay depends on the learning rate. coupled: in proportion to
        it. decoupled: a step at the full rate takes the fraction `optimizer.weight_decay` off a
        parameter, however high that rate is (before momentum).
      weight_decay_on: Which parameters decay. all: every parameter. kernels: those of two or more
        axes, so embeddings too, but neither biases nor the parameters of norms.
      max_gradient_norm: Scale the gradients down to this global norm if theirs is larger, before
        all else; 0 is off.
      schedule: How the learning rate changes during training. step: multiplied by
        `optimizer.decay_factor` at each of `optimizer.decay_at`. cosine, linear: falls to 0.
      decay_at: Fractions of all steps after which the learning rate is multiplied by
        `optimizer.decay_factor`: (0.3,0.6,0.8) is after 60, 120 and 160 of 200 epochs.
      decay_factor: Factor by which the learning rate is multiplied at each of `optimizer.decay_at`.
      warmup_epochs: Epochs in which the learning rate rises linearly from 0 to the full rate.
    """

    name: str = choice(*_RULES, "custom")
    update_rule: Code | None = custom(only_with={"name": ["custom"]})
    learning_rate: float = number(0.1)
    bias_learning_rate: float = number(0.0, only_with=_SHIPPED)
    head_learning_rate: float = number(0.0, only_with=_SHIPPED)
    base_batch_size: int = number(128, low=1)
    momentum: float = fraction(0.9, only_with={"name": ("sgd", "nesterov", "muon")})
    b1: float = fraction(0.9, only_with=_ADAM)
    b2: float = fraction(0.999, only_with=_ADAM)
    rho: float = fraction(0.95, only_with={"name": ("adadelta",)})
    eps: float = number(1e-8, only_with={"name": ("adam", "adamw", "adadelta")})
    newton_schulz_steps: int = number(5, low=1, high=20, only_with=_MUON)
    newton_schulz_coefficients: tuple[float, ...] = number(
        (3.4445, -4.775, 2.0315), low=-100, high=100, only_with=_MUON
    )
    norm_interval: tuple[int, ...] = number((), low=1, only_with=_MUON)
    sgd_momentum: float = fraction(0.9, only_with=_MUON)
    weight_decay: float = number(0.0, only_with=_SHIPPED)
    weight_decay_mode: str = choice(
        "coupled", "decoupled", only_with={"name": ("sgd", "nesterov", "muon"), "decays": [True]}
    )
    weight_decay_on: str = choice("all", "kernels", only_with={**_SHIPPED, "decays": [True]})
    max_gradient_norm: float = number(0.0, only_with=_SHIPPED)
    schedule: str = choice("constant", "step", "cosine", "linear")
    decay_at: tuple[float, ...] = fraction((), only_with=_STEP)
    decay_factor: float = fraction(0.1, only_with=_STEP)
    warmup_epochs: float = number(0.0)

    @property
    def decays(self) -> bool:
        return self.weight_decay > 0

    def validate(self, epochs: float) -> None:
        """Raise BadInput if the fields contradict each other in a run of this many epochs."""
        # The ends stand for a decay before the first step and for one after the last.
        decays, interval = [0, *self.decay_at, 1], self.norm_interval
        problem = ""
        if self.name == "custom" and self.update_rule is None:
            problem = "name='custom': needs OptimizerConfig(update_rule=...) in the experiment file"
        elif len(self.newton_schulz_coefficients) != 3:
            problem = (
                f"newton_schulz_coefficients={self.newton_schulz_coefficients}: must be (a,b,c)"
            )
        elif interval and (len(interval) != 2 or interval[0] > interval[1]):
            problem = f"norm_interval={interval}: must be () or (shortest,longest), such as (2,17)"
        elif decays != sorted(set(decays)):
            problem = f"decay_at={self.decay_at}: must rise, between 0 and 1, such as (0.3,0.6)"
        elif self.schedule == "step" and not self.decay_at:
            problem = "schedule='step' needs optimizer.decay_at, such as (0.3,0.6)"
        elif self.warmup_epochs > epochs:
            problem = f"warmup_epochs={self.warmup_epochs}: must be at most epochs={epochs}"
        if problem:
            raise BadInput(f"optimizer.{problem}")
