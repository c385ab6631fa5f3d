"""A task of the user's own: what it must have, tried on shapes before anything runs."""

from collections.abc import Sequence
from typing import Any

from jaxbench.custom.code import Code
from jaxbench.custom.errors import describe_error
from jaxbench.errors import BadInput

_NAMES = ("train_sums", "eval_sums", "train_metrics", "eval_metrics")
_METHODS = ("label_shape", "output_shape", "losses", "metric_sums", "compute")
# Every sum is divided by `count`; every record has `loss`.
_NEEDED = {"train_sums": ("loss", "count"), "eval_sums": ("loss", "count")}
_NEEDED |= {"train_metrics": ("loss",), "eval_metrics": ("loss",)}


def custom_task(value: Any) -> Any:
    """Wrap a task that is an object; leave the name of a task as it is.

    Raises:
      BadInput: it lacks something; the message names all of it.
    """
    if isinstance(value, (str, Code)):
        return value
    label = type(value).__name__
    if isinstance(value, type):
        raise BadInput(f"task is the class {value.__name__}: give an object, {value.__name__}()")
    lacks = [name for name in ("name", "primary_metric") if not isinstance(_get(value, name), str)]
    lacks += [name for name in _NAMES if not _are_names(_get(value, name))]
    lacks += [f"{name}()" for name in _METHODS if not callable(_get(value, name))]
    for name, needed in _NEEDED.items():
        if name not in lacks:
            lacks += [f"{part!r} in {name}" for part in needed if part not in _get(value, name)]
    if (
        not {"primary_metric", "eval_metrics"} & set(lacks)
        and value.primary_metric not in value.eval_metrics
    ):
        lacks.append(f"its primary_metric {value.primary_metric!r} in eval_metrics")
    if lacks:
        raise BadInput(f"task {label} lacks {', '.join(lacks)}; see jaxbench.tasks.Task")
    return Code(value)


def check_task(
    task: Any, image_shape: tuple[int, ...], output_shape: tuple[int, ...], dtype: Any
) -> None:
    """Try a task's loss and metrics on shapes, and its figures on ones.

    Raises:
      BadInput: one of them fails, or returns something else than its names say.
    """
    import jax
    import numpy as np

    label = type(task).__name__
    label_shape = task.label_shape(image_shape)
    label_dtype = np.uint8 if label_shape else np.int32
    outputs_Bx = jax.ShapeDtypeStruct((2, *output_shape), dtype)
    labels_Bx = jax.ShapeDtypeStruct((2, *label_shape), label_dtype)
    mask_B = jax.ShapeDtypeStruct((2,), np.bool_)
    for names in (task.train_sums, task.eval_sums):
        # Test-time augmentation's is from a second call, with other outputs.
        names = [name for name in names if name != "top1_tta"]
        try:
            losses_B = jax.eval_shape(
                lambda outputs, labels: task.losses(outputs, labels, 0.0), outputs_Bx, labels_Bx
            )
            found = jax.eval_shape(task.metric_sums, losses_B, outputs_Bx, labels_Bx, mask_B)
        except Exception as error:
            raise BadInput(describe_error(f"task {label} fails", error)) from error
        if losses_B.shape != (2,):
            raise BadInput(
                f"task {label}: losses of 2 examples have shape {losses_B.shape}, expected (2,)"
            )
        wrong = [name for name in names if getattr(found.get(name), "shape", None) != ()]
        if wrong:
            raise BadInput(
                f"task {label}: metric_sums must return one sum for each of {_listed(wrong)}"
            )
    for kind, metrics in (("train", task.train_sums), ("eval", task.eval_sums)):
        try:
            figures = task.compute({name: np.ones(1) for name in metrics})
        except Exception as error:
            raise BadInput(describe_error(f"task {label} fails", error)) from error
        missing = [name for name in getattr(task, f"{kind}_metrics") if name not in figures]
        if missing:
            raise BadInput(f"task {label}: compute returns no {_listed(missing)}")


def _get(value: Any, name: str) -> Any:
    return getattr(value, name, None)


def _are_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
