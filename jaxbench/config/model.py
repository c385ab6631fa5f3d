"""The base of the networks' configurations."""

import dataclasses
import typing
from typing import Any


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """Base of the model configurations; each lives beside its network in `jaxbench/models`.

    Attributes:
      has_blocks: whether the network is made of blocks that can be recomputed one by one, so that
        `create` takes `block` and `attention`.
    """

    has_blocks: typing.ClassVar[bool] = False

    def validate(self) -> None:
        """Raise BadInput for values that no network can be built from."""

    def create(self, *, num_classes: int, dtype: Any, param_dtype: Any, norm_axis: str | None):
        """Build the flax module.

        Args:
          num_classes: K, the width of the logits.
          dtype: what the network computes in; its logits come back in at least float32.
          param_dtype: what parameters and batch-norm statistics are stored in.
          norm_axis: the mesh axis over which batch norm averages, or None for per-device.

        If `has_blocks`, it also gets `block`, the class of the blocks (the plain one, or a form
        whose backward pass keeps less), and `attention`, the implementation for these devices.
        """
        raise TypeError(f"{type(self).__name__} does not say how to create its network")

    @property
    def network_name(self) -> str:
        """The name that messages and records have for the network."""
        return type(self).__name__

    def num_init_images(self) -> int:
        """Return how many training images `parameters_from_images` needs; 0: it is not called."""
        return 0

    def parameters_from_images(self, images_NxHxWxC: Any) -> dict[str, Any]:
        """Return parameters computed from images, nested as flax has them; the rest are drawn.

        Args:
          images_NxHxWxC: the first N = `num_init_images()` training images, normalised as in the
            step, float32 in NumPy.
        """
        raise TypeError(f"{type(self).__name__} computes no parameters from images")

    def trainable_epochs(self) -> dict[str, float]:
        """Return, by path (`stem/kernel`), how many epochs a parameter trains if not all of them.

        Its rate falls linearly to 0 over these epochs, whatever the schedule. A parameter with 0
        epochs never changes.
        """
        return {}
