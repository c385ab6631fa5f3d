"""Custom code of an experiment file: a network, a task, an update rule or a data source.

What it may be, how it is recorded, and the line that an error in it ends with.
"""

import dataclasses
import functools
import hashlib
import inspect
import os
import pathlib
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxbench.config.model import ModelConfig
from jaxbench.errors import BadInput
from jaxbench.terminal import shown_path

# Experiment files are loaded as modules whose names begin so.
EXPERIMENT_MODULE = "jaxbench_experiment_"
# The modules that define what configurations were given as code.
_code_modules: set[str] = set()
_SCALARS = (bool, int, float, str)
# The arguments that jaxbench passes to a network that takes them; `rngs` are NNX's.
_ARGUMENTS = ("num_classes", "dtype", "param_dtype", "axis_name", "rngs")
# A task's attributes with names of sums or metrics, and the names that each must contain.
_NAMES: dict[str, tuple[str, ...]]
_NAMES = dict.fromkeys(("train_sums", "eval_sums"), ("loss", "count"))
_NAMES |= dict.fromkeys(("train_metrics", "eval_metrics"), ("loss",))
_METHODS = ("label_shape", "output_shape", "losses", "metric_sums", "compute")


class Code:
    """A function, class or object, with a text for the record: its name and its file's digest.

    Two runs with the same text ran the same code, as far as that file goes.

    Attributes:
      value: the function, class or object.
    """

    def __init__(self, value: Any):
        self.value = value
        self.__name__, self._text = _describe(value)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.value(*args, **keywords)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __deepcopy__(self, memo: Any) -> "Code":
        return self


def as_code(value: Any) -> Any:
    """Wrap a callable; leave all else as it is."""
    return Code(value) if callable(value) and not isinstance(value, Code) else value


class HoldsCode:
    """Base of the configurations: a field declared with `custom` wraps the value it gets.

    Code that is set also sets the field that selects it, until that is set to something else.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        field = self.__dataclass_fields__.get(name)  # type: ignore[attr-defined]
        wrap = field and field.metadata.get("custom")
        object.__setattr__(self, name, wrap(value) if wrap else value)
        if wrap and not isinstance(value, Code) and callable(value):
            for selector, [choice] in field.metadata.get("only_with", {}).items():
                object.__setattr__(self, selector, choice)


def config_record(config: Any) -> dict[str, Any]:
    """Return a config's fields, nested, as in run.json: code by its text."""
    return dataclasses.asdict(
        config,
        dict_factory=lambda items: {
            name: str(value) if isinstance(value, Code) else value for name, value in items
        },
    )


def _describe(value: Any) -> tuple[str, str]:
    """Return the name of a function, class or object, and its text for the record."""
    arguments: dict[Any, Any] = {}
    if isinstance(value, functools.partial):
        arguments, value = {**dict(enumerate(value.args)), **value.keywords}, value.func
    is_named = inspect.isroutine(value) or inspect.isclass(value)
    if not is_named and not arguments:
        plain = (*_SCALARS, tuple, type(None))
        attributes = getattr(value, "__dict__", {}).items()
        arguments = {name: item for name, item in attributes if isinstance(item, plain)}
    name = getattr(value, "__qualname__", type(value).__qualname__)
    text = ", ".join(f"{argument}={item!r}" for argument, item in arguments.items())
    text = f"{name}({text})" if text else name
    _code_modules.add(getattr(value, "__module__", ""))
    definition = inspect.unwrap(value) if is_named else type(value)
    try:
        path = pathlib.Path(inspect.getsourcefile(definition) or "")
        is_file = path.is_file()
        source = path.read_bytes() if is_file else inspect.getsource(definition).encode()
    except (TypeError, OSError):
        return name, f"{text}, source unknown"
    place = path.name if is_file else "a notebook"
    return name, f"{text} in {place}, sha256 {hashlib.sha256(source).hexdigest()[:12]}"


def user_line(error: BaseException) -> str | None:
    """Return FILE:LINE of the user's code that failed; None if none of it was running.

    The user's code is each experiment file, the modules in its folder, and the modules that define
    what a configuration was given as code. Where a file lies says nothing about it: packages may be
    installed anywhere.
    """
    folders = {
        os.path.dirname(os.path.realpath(module.__file__))
        for name, module in [*sys.modules.items()]
        if name.startswith(EXPERIMENT_MODULE) and module.__file__
    }
    line = None
    for frame, lineno in traceback.walk_tb(error.__traceback__):
        module, path = frame.f_globals, frame.f_code.co_filename
        file = module.get("__file__")  # none in a notebook
        is_beside = file is not None and os.path.dirname(os.path.realpath(file)) in folders
        is_users = is_beside or module.get("__name__") in _code_modules
        is_jaxbench = f"{module.get('__package__')}.".startswith("jaxbench.")
        if not is_users or is_jaxbench or path.startswith("<"):
            continue
        path = shown_path(path)
        if os.path.basename(os.path.dirname(path)).startswith("ipykernel_"):
            path = "the notebook's cell"
        line = f"{path}:{lineno}"
    return line


def describe_error(failure: str, error: BaseException) -> str:
    """Return a line: file and line of the custom code, if any, what failed, the error's text."""
    # JAX appends lines of jaxbench, which called the code.
    text = " ".join(str(error).split()).partition(" The error occurred while tracing")[0]
    text = text if len(text) <= 300 else f"{text[:300]} ..."
    message = f"{failure}: {type(error).__name__}" + (f": {text}" if text else "")
    line = user_line(error)
    return f"{line}: {message}" if line else message


@dataclasses.dataclass(kw_only=True)
class CustomModelConfig(ModelConfig):
    """Base of the configurations that are made of a network's class or function."""

    code: Code

    @property
    def network_name(self) -> str:
        return self.code.__name__

    def create(self, *, num_classes: int, dtype: Any, param_dtype: Any, norm_axis: str | None):
        parameters = _parameters(self.code.value)
        values = (num_classes, dtype, param_dtype, norm_axis)
        arguments = {n: v for n, v in zip(_ARGUMENTS, values, strict=False) if n in parameters}
        arguments |= {name: value for name, value in vars(self).items() if name != "code"}
        if _is_nnx(self.code.value) or "rngs" in parameters:
            from flax import nnx

            return nnx.bridge.ToLinen(
                self.code.value,
                kwargs=arguments,
                skip_rng="rngs" not in parameters,
                metadata_fn=None,
            )
        import flax.linen as nn

        module = self.code.value(**arguments)
        if isinstance(module, nn.Module):
            return module
        raise BadInput(
            f"{self.network_name} returned a {type(module).__name__}, expected a linen module (a "
            "function that makes an NNX module takes `rngs`)"
        )


def model_config(value: Any) -> Any:
    """Return the configuration of a module class or a function; leave all else as it is.

    Raises:
      BadInput: an object of a class; or a parameter without a default that jaxbench does not pass.
    """
    linen = sys.modules.get("flax.linen")
    if _is_nnx(type(value)) or (linen and isinstance(value, linen.Module)):
        name = type(value).__name__
        raise BadInput(f"model is an object of {name}: give the class, model={name}, or a function")
    if isinstance(value, ModelConfig) or not callable(value):
        return value
    name, fields = getattr(value, "__name__", type(value).__name__), []
    for parameter in _parameters(value).values():
        if parameter.name in _ARGUMENTS:
            continue
        if parameter.default is inspect.Parameter.empty:
            raise BadInput(
                f"{name} needs {parameter.name!r}, which has no default; jaxbench gives "
                f"{', '.join(_ARGUMENTS[:-1])}, all else needs a default"
            )
        hint = _field_type(parameter.default, parameter.annotation)
        if hint and not hasattr(CustomModelConfig, parameter.name):
            fields.append((parameter.name, hint, dataclasses.field(default=parameter.default)))
    made = dataclasses.make_dataclass(name, fields, bases=(CustomModelConfig,), kw_only=True)
    return made(code=Code(value))


def _parameters(value: Callable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that can be passed by name."""
    # The metaclass of NNX modules hides their parameters; flax adds two to every linen module.
    signature = inspect.signature(value.__init__ if _is_nnx(value) else value)
    hidden = ("self", "parent", "name") if inspect.isclass(value) else ("self",)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {n: p for n, p in signature.parameters.items() if p.kind in kinds and n not in hidden}


def _field_type(default: Any, annotation: Any) -> Any:
    """Return the type of the field for a parameter; None if no flag can set it."""
    if isinstance(default, tuple):
        types = {type(item) for item in default}
        if typing.get_origin(annotation) is tuple:
            types = {*typing.get_args(annotation)[:1]}
        item = float if types == {int, float} else types.pop() if len(types) == 1 else None
        return tuple[item, ...] if item in _SCALARS else None  # type: ignore[valid-type]
    if type(default) is int and (annotation is float or annotation == "float"):
        return float
    return type(default) if type(default) in _SCALARS else None


def _is_nnx(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and inspect.isclass(value) and issubclass(value, nnx.Module)


def custom_task(value: Any) -> Any:
    """Wrap a task that is an object, or raise BadInput that names all it lacks; leave a name."""
    if isinstance(value, (str, Code)):
        return value
    if isinstance(value, type):
        raise BadInput(f"task is the class {value.__name__}: give an object, {value.__name__}()")
    lacks = [name for name in ("name", "primary_metric", *_NAMES) if not hasattr(value, name)]
    lacks += [f"{name}()" for name in _METHODS if not callable(getattr(value, name, None))]
    for name, needed in _NAMES.items():
        lacks += [
            f"{part!r} in {name}" for part in needed if part not in getattr(value, name, needed)
        ]
    primary = getattr(value, "primary_metric", "")
    if primary and primary not in getattr(value, "eval_metrics", primary):
        lacks.append(f"its primary_metric {primary!r} in eval_metrics")
    if lacks:
        label = type(value).__name__
        raise BadInput(f"task {label} lacks {', '.join(lacks)}; see jaxbench.tasks.Task")
    return Code(value)


def check_task(
    task: Any, image_shape: tuple[int, ...], output_shape: tuple[int, ...], dtype: Any
) -> None:
    """Try a task's loss and sums on shapes, and its metrics on ones.

    Raise BadInput if one of them fails, or its result does not fit the task's names.
    """
    import jax
    import numpy as np

    label, label_shape = f"task {type(task).__name__}", task.label_shape(image_shape)
    outputs_Bx = jax.ShapeDtypeStruct((2, *output_shape), dtype)
    labels_Bx = jax.ShapeDtypeStruct((2, *label_shape), np.uint8 if label_shape else np.int32)
    mask_B = jax.ShapeDtypeStruct((2,), np.bool_)
    for kind in ("train", "eval"):
        names = getattr(task, f"{kind}_sums")
        try:
            losses_B = jax.eval_shape(lambda x, y: task.losses(x, y, 0.0), outputs_Bx, labels_Bx)
            sums = jax.eval_shape(task.metric_sums, losses_B, outputs_Bx, labels_Bx, mask_B)
            metrics = task.compute({name: np.ones(1) for name in names})
        except Exception as error:
            raise BadInput(describe_error(f"{label} fails", error)) from error
        if losses_B.shape != (2,):
            raise BadInput(
                f"{label}: losses of 2 examples have shape {losses_B.shape}, expected (2,)"
            )
        # The sum of test-time augmentation is from a second call, with other outputs.
        wrong = [n for n in names if n != "top1_tta" and getattr(sums.get(n), "shape", None) != ()]
        if wrong:
            raise BadInput(
                f"{label}: metric_sums must return one sum for each of {str(wrong)[1:-1]}"
            )
        missing = [name for name in getattr(task, f"{kind}_metrics") if name not in metrics]
        if missing:
            raise BadInput(f"{label}: compute returns no {str(missing)[1:-1]}")
