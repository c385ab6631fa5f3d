"""Batch norm (Ioffe and Szegedy 2015) with a gradient that reads each activation five times.

Variables are flax's, and numbers too, to rounding. XLA:GPU differentiates flax's layer with seven
reads or writes of an activation. The gradient by hand takes one pass for the sums over the batch
and one for the input's gradient, and writes nothing between them (docs/decisions/step.md, D18).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.aliases import DType


class BatchNorm(nn.Module):
    """Normalise each channel to mean 0 and deviation 1 over the batch, then scale and shift it.

    Statistics and all arithmetic are in at least float32, whatever the input's type.

    Attributes:
      use_running_average: use the running averages as statistics, and do not update them.
      relu: apply a ReLU to the output.
      momentum: the fraction of the running averages that a step keeps.
      dtype, param_dtype: of the output and of the variables.
      axis_name: the mesh axis over which statistics are averaged; None for each device by itself.
      use_scale: whether there is a scale; without one it is 1.
    """

    use_running_average: bool
    relu: bool = False
    momentum: float = 0.9
    epsilon: float = 1e-5
    dtype: DType = jnp.float32
    param_dtype: DType = jnp.float32
    axis_name: str | None = None
    use_scale: bool = True
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x_BxHxWxC: jax.Array) -> jax.Array:
        channels = x_BxHxWxC.shape[-1:]
        mean = self.variable("batch_stats", "mean", jnp.zeros, channels, self.param_dtype)
        var = self.variable("batch_stats", "var", jnp.ones, channels, self.param_dtype)
        scale_C = jnp.ones(channels, self.param_dtype)
        if self.use_scale:
            scale_C = self.param("scale", self.scale_init, channels, self.param_dtype)
        bias_C = self.param("bias", nn.initializers.zeros, channels, self.param_dtype)
        if self.use_running_average:
            rstd_C = jax.lax.rsqrt(var.value + self.epsilon)
            y = (x_BxHxWxC.astype(self.param_dtype) - mean.value) * (rstd_C * scale_C) + bias_C
            return (jnp.maximum(y, 0) if self.relu else y).astype(self.dtype)
        options = (self.epsilon, self.axis_name, self.relu, self.dtype)
        y_BxHxWxC, mean_C, var_C = _normalize(x_BxHxWxC, scale_C, bias_C, options)
        if not self.is_initializing():
            for average, now_C in ((mean, mean_C), (var, var_C)):
                average.value = self.momentum * average.value + (1 - self.momentum) * now_C
        return y_BxHxWxC


def _forward(x_BxHxWxC, scale_C, bias_C, options):
    """Return (output, mean, variance) of the batch, and what the gradient needs."""
    epsilon, axis_name, relu, dtype = options
    x = x_BxHxWxC.astype(scale_C.dtype)
    # Both sums in one pass over x, and in one exchange.
    sums_2xC = jnp.stack([jnp.mean(x, (0, 1, 2)), jnp.mean(jnp.square(x), (0, 1, 2))])
    if axis_name is not None:
        sums_2xC = jax.lax.pmean(sums_2xC, axis_name)
    mean_C = sums_2xC[0]
    # Rounding may leave less than 0 of a channel that is constant.
    var_C = jnp.maximum(sums_2xC[1] - jnp.square(mean_C), 0)
    rstd_C = jax.lax.rsqrt(var_C + epsilon)
    factor_C = rstd_C * scale_C
    offset_C = bias_C - mean_C * factor_C
    y = x * factor_C + offset_C
    y = (jnp.maximum(y, 0) if relu else y).astype(dtype)
    return (y, mean_C, var_C), (x_BxHxWxC, mean_C, rstd_C, factor_C, offset_C)


def _backward(options, residuals, cotangents):
    _, axis_name, relu, _ = options
    x_BxHxWxC, mean_C, rstd_C, factor_C, offset_C = residuals
    dtype = factor_C.dtype

    def terms(value_of_pass):
        """Return the gradient before the ReLU, and the input, computed anew in each pass.

        The barrier keeps XLA from computing them once and writing them to memory. The ReLU's mask
        is a factor, because XLA would write the boolean result of a comparison.
        """
        x = jax.lax.optimization_barrier((x_BxHxWxC, value_of_pass))[0].astype(dtype)
        dy = cotangents[0].astype(dtype)
        if relu:
            most = jnp.finfo(dtype).max  # makes at least 1 of any normal number above 0
            dy *= jnp.clip((x * factor_C + offset_C) * most, 0, 1)
        return dy, x

    dy, x = terms(mean_C)
    dbias_C = jnp.sum(dy, (0, 1, 2))
    # The mean is subtracted from the sum: XLA:CPU writes an array of means to subtract before it.
    dscale_C = (jnp.sum(dy * x, (0, 1, 2)) - mean_C * dbias_C) * rstd_C
    means_2xC = jnp.stack([dbias_C, dscale_C]) / float(x_BxHxWxC.size // x_BxHxWxC.shape[-1])
    if axis_name is not None:
        means_2xC = jax.lax.pmean(means_2xC, axis_name)
    dy, x = terms(means_2xC)
    dx = factor_C * (dy - means_2xC[0] - (x - mean_C) * (rstd_C * means_2xC[1]))
    return dx.astype(x_BxHxWxC.dtype), dscale_C, dbias_C


# Mean and variance are not differentiated.
_normalize = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(3,))
_normalize.defvjp(_forward, _backward)
