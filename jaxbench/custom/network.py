"""A network of the user's own, given as a flax module class or as a function that returns one."""

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxbench.custom.code import Code
from jaxbench.errors import BadInput
from jaxbench.model_config import ModelConfig

# What jaxbench gives those that ask for it; `rngs` are NNX's. The rest become fields.
_GIVEN = ("num_classes", "dtype", "param_dtype", "axis_name", "rngs")
# Flax adds these to every linen module.
_FLAX = ("parent", "name")
_SCALARS = (bool, int, float, str)


@dataclasses.dataclass(kw_only=True)
class OwnModelConfig(ModelConfig):
    """Base of the configurations that are made of a class or function of the user's own."""

    code: Code = dataclasses.field(metadata={"custom": lambda value: value})

    @property
    def network_name(self) -> str:
        return self.code.__name__

    def hand_on(self, name: str, to: str) -> str:
        name = {"norm_axis": "axis_name"}.get(name, name)
        return f"{self.network_name} must take {name} and hand it to {to}"

    def create(self, *, num_classes: int, dtype: Any, param_dtype: Any, norm_axis: str | None):
        given = {
            "num_classes": num_classes,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "axis_name": norm_axis,
        }
        parameters = _parameters(self.code.value)
        arguments = {name: value for name, value in given.items() if name in parameters}
        for field in dataclasses.fields(self):
            if field.name != "code":
                arguments[field.name] = getattr(self, field.name)
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
        what, hint = f"{self.network_name} returned a {type(module).__name__}", ""
        if _is_nnx(type(module)):
            hint = "; a function that makes an NNX module takes `rngs`"
        raise BadInput(f"{what}, expected a flax module{hint}")


def model_config(value: Any) -> Any:
    """Return the configuration of a module class or a function; leave all else as it is.

    Raises:
      BadInput: an object of a class; a parameter that jaxbench does not know has no default.
    """
    if _is_flax(type(value)):
        name = type(value).__name__
        raise BadInput(f"model is an object of {name}: give the class, model={name}, or a function")
    if isinstance(value, ModelConfig) or not callable(value):
        return value
    parameters, name = _parameters(value), getattr(value, "__name__", type(value).__name__)
    hints, fields = _hints(value), []
    for parameter in parameters.values():
        if parameter.name in _GIVEN:
            continue
        if parameter.default is inspect.Parameter.empty:
            raise BadInput(
                f"{name} needs {parameter.name!r}, which has no default; jaxbench gives "
                f"{', '.join(_GIVEN[:-1])}, all else needs a default"
            )
        hint = _field_type(parameter.default, hints.get(parameter.name))
        if hint and not hasattr(OwnModelConfig, parameter.name) and parameter.name != "code":
            fields.append((parameter.name, hint, dataclasses.field(default=parameter.default)))
    made = dataclasses.make_dataclass(name, fields, bases=(OwnModelConfig,), kw_only=True)
    return made(code=Code(value))


def _parameters(value: Callable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that can be given by name."""
    # The metaclass of NNX modules hides their parameters.
    signature = inspect.signature(value.__init__ if _is_nnx(value) else value)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    hidden = _FLAX if inspect.isclass(value) else ()
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in kinds and name not in hidden and name != "self"
    }


def _field_type(default: Any, hint: Any) -> Any:
    """Return the type of the field for a parameter; None where it cannot be set by a flag."""
    if isinstance(default, tuple):
        if typing.get_origin(hint) is tuple and typing.get_args(hint)[:1]:
            item = typing.get_args(hint)[0]
        else:
            types = {type(item) for item in default}
            item = float if types == {int, float} else types.pop() if len(types) == 1 else None
        return tuple[item, ...] if item in _SCALARS else None
    if type(default) not in _SCALARS:
        return None
    return float if hint is float and type(default) is int else type(default)


def _hints(value: Callable) -> dict[str, Any]:
    try:
        return typing.get_type_hints(value.__init__ if _is_nnx(value) else value)
    except Exception:  # annotations of the user's own may name anything
        return {}


def _is_nnx(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and inspect.isclass(value) and issubclass(value, nnx.Module)


def _is_flax(cls: type) -> bool:
    linen = sys.modules.get("flax.linen")
    return _is_nnx(cls) or (linen is not None and issubclass(cls, linen.Module))
