"""Flags that are lines of tables: flags.csv has those of commands, modes/options.csv of modes."""

from typing import Any

from absl import flags

from jaxbench.files import read_table
from jaxbench.modes.options import OPTIONS, Option, read_option

# The flags are key flags of the module that calls these functions.
flags.disclaim_key_flags()
_DEFINE: dict[Any, Any] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
_TABLES = [(row["name"], read_option(row)) for row in read_table(__file__, "flags.csv")]
_TABLES += OPTIONS.items()


def define_flags(kind: str) -> list[flags.FlagHolder[Any]]:
    """Define the flags of a kind; return them in their table's order."""
    return [define_flag(name, option) for name, option in _TABLES if option.kind == kind]


def define_flag(name: str, option: Option) -> flags.FlagHolder[Any]:
    """Define one flag."""
    if isinstance(option.type, tuple):
        return flags.DEFINE_enum(name, option.default, option.type, option.help)
    has_bounds = option.type in (int, float)
    bounds = {"lower_bound": option.low, "upper_bound": option.high} if has_bounds else {}
    return _DEFINE[option.type](name, option.default, option.help, **bounds)
