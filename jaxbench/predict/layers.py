"""What a training step of a network does for one example: its products, and what else it moves.

A network is a `NetworkShape`, whether it is traced (`tracing.py`) or, if jaxbench lacks it,
described by hand (`networks.py`).
"""

from typing import NamedTuple

# Multiply-accumulates for each element that elementwise kernels move; a network with fewer is thin.
_THIN = 70
# Weights, gradients and the optimizer's values, of a parameter.
_STATE_BYTES = 12


class Layer(NamedTuple):
    """A convolution or a matrix product of the forward pass; all sizes are of one example.

    Attributes:
      rows: output pixels, or tokens.
      cols: output channels of a group.
      depth: taps x input channels of a group.
      groups: how many such products: groups of a convolution, heads of attention.
      inputs, outputs, weights: elements; attention's products have no weights.
      channels: input channels of a group of a convolution, else 0.
      taps: of a kernel with stride 1, which fast algorithms can compute, else 1.
      times: how many such layers there are.
      transposed: whether it is a transposed convolution.
    """

    rows: int
    cols: int
    depth: int
    groups: int
    inputs: int
    outputs: int
    weights: int
    channels: int = 0
    taps: int = 1
    times: int = 1
    transposed: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all the layers."""
        return self.times * self.rows * self.cols * self.depth * self.groups


class NetworkShape(NamedTuple):
    """A network's layers, and the elements that its other kernels move forward.

    Attributes:
      touched: of elementwise kernels and norms.
      pooled: that pooling reads and writes.
    """

    layers: tuple[Layer, ...]
    touched: float
    pooled: float = 0.0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass."""
        return sum(layer.macs for layer in self.layers)

    @property
    def weights(self) -> int:
        """Elements of the kernels and matrices."""
        return sum(layer.times * layer.weights for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of the weights, their gradients and the optimizer's values."""
        return _STATE_BYTES * self.weights

    def kept_bytes(self, element_bytes: int) -> int:
        """Bytes that the backward pass of an example reads, if the compiler recomputes nothing."""
        kept = sum(layer.times * (layer.inputs + layer.outputs) for layer in self.layers)
        return kept * element_bytes

    @property
    def family(self) -> str:
        """Residual, plain, thin, unet or transformer, by rules for custom networks too."""
        if any(layer.transposed for layer in self.layers):
            return "unet"
        if sum(layer.macs for layer in self.layers if not layer.channels) > 0.5 * self.macs:
            return "transformer" if any(layer.rows > 1 for layer in self.layers) else "plain"
        if self.macs < _THIN * self.touched or any(layer.groups > 1 for layer in self.layers):
            return "thin"
        dense = sum(layer.weights for layer in self.layers if not layer.channels)
        return "plain" if dense > 0.6 * self.weights else "residual"
