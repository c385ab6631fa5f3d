"""Read a pickle of texts, whole numbers and NumPy arrays of bytes, and build no object of it.

A pickle is a program. Even one that may build nothing but arrays can hand NumPy a pointer, ask for
memory that the file does not hold, or nest tuples until hashing them crashes. So its few
instructions that such files need are carried out here, on plain values.
"""

import math
import pickletools
from typing import Any

import numpy as np

_CORES = ("numpy.core", "numpy._core")
_RECONSTRUCT = {f"{core}.multiarray _reconstruct" for core in _CORES}
_FROMBUFFER = {f"{core}.numeric _frombuffer" for core in _CORES}
_KNOWN = {*_RECONSTRUCT, *_FROMBUFFER, "numpy ndarray", "numpy dtype", "_codecs encode"}
# Instructions that push their argument.
_VALUES = {
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
    *("BINSTRING", "SHORT_BINSTRING", "STRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_MAX_DIMENSIONS = 4
_MAX_KEY = 1000
# A batch of 10,000 images takes 60,000 with its files' names. Each makes up to 80 bytes of one.
_MAX_INSTRUCTIONS = 2**20


class _Global:
    """The name of a class or function."""

    def __init__(self, name: str):
        if name not in _KNOWN:
            raise ValueError(f"it wants to build {ascii(name[:100])}, which is not allowed")
        self.name = name


class _Call:
    """A call of a class or function, and the state that its result is given."""

    def __init__(self, of: _Global, arguments: tuple):
        if not isinstance(of, _Global) or not isinstance(arguments, tuple):
            raise ValueError("it calls what cannot be called")
        self.name, self.arguments = of.name, arguments
        self.state: Any = None


def read_pickle(content: bytes) -> dict[str, Any]:
    """Return the dictionary that a pickle holds, its keys as text and its arrays as `_Call`.

    Python 2 and 3 write the same in different types: texts may be bytes, and bytes texts.

    Raises:
      ValueError: it holds no dictionary or anything else than the above.
    """
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under the marks
    memo: dict[int, Any] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count > _MAX_INSTRUCTIONS:
            raise ValueError(f"it has more than {_MAX_INSTRUCTIONS:,} instructions")
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _PUTS:
            memo[argument] = stack[-1]
        elif name in _GETS:
            stack.append(memo[argument])
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
            items, stack = stack, below.pop()
            _gather(name, stack, items)
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        else:
            _carry_out(name, argument, stack)
    [found] = stack
    if not isinstance(found, dict):
        raise ValueError("it holds no dictionary")
    return found


def _gather(name: str, stack: list[Any], items: list[Any]) -> None:
    """Carry out an instruction about all above the last mark."""
    if name == "TUPLE":
        stack.append(tuple(items))
    elif name == "LIST":
        stack.append(items)
    elif name == "APPENDS":
        _of_type(list, stack[-1]).extend(items)
    else:
        if name == "DICT":
            stack.append({})
        pairs = zip(items[::2], items[1::2], strict=True)
        _of_type(dict, stack[-1]).update((_as_key(key), value) for key, value in pairs)


def _carry_out(name: str, argument: Any, stack: list[Any]) -> None:
    if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "APPEND":
        item = stack.pop()
        _of_type(list, stack[-1]).append(item)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _of_type(dict, stack[-1])[_as_key(key)] = value
    elif name == "GLOBAL":
        stack.append(_Global(argument))
    elif name == "STACK_GLOBAL":
        function, module = stack.pop(), stack.pop()
        stack.append(_Global(f"{as_text(module)} {as_text(function)}"))
    elif name == "REDUCE":
        arguments = stack.pop()
        stack.append(_Call(stack.pop(), arguments))
    elif name == "BUILD":
        state = stack.pop()
        _of_type(_Call, stack[-1]).state = state
    elif name not in ("PROTO", "FRAME", "STOP"):
        raise ValueError(f"its instruction {name} is not allowed")


def _of_type(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it changes a {type(value).__name__} as a {kind.__name__}")
    return value


def as_text(value: Any) -> str:
    """Return a text that Python 2 or 3 wrote as text or bytes."""
    return value if isinstance(value, str) else as_bytes(value).decode("latin-1")


def _as_key(value: Any) -> str:
    # Short: a long text that is converted for each of a million keys takes hours.
    text = value.arguments[0] if isinstance(value, _Call) and value.arguments else value
    if isinstance(text, str | bytes | bytearray) and len(text) > _MAX_KEY:
        raise ValueError("a key of its dictionary is too long")
    return as_text(value)


def as_bytes(value: Any) -> bytes:
    """Return bytes that Python 2 wrote as text, or Python 3 as the call that makes them of one."""
    if isinstance(value, _Call) and value.name == "_codecs encode":
        value, encoding = value.arguments
        if encoding != "latin1":
            raise ValueError("its bytes are not in latin1")
    if isinstance(value, str):
        return value.encode("latin-1")
    if not isinstance(value, bytes | bytearray):
        raise ValueError(f"a {type(value).__name__} is where bytes are expected")
    return bytes(value)


def as_array(value: Any) -> np.ndarray:
    """Return an array of uint8 from the bytes that the pickle holds of it.

    Raises:
      ValueError: it is another array or none, or its bytes are not as many as its shape says.
    """
    if not isinstance(value, _Call) or value.name not in _RECONSTRUCT | _FROMBUFFER:
        raise ValueError(f"a {type(value).__name__} is where an array is expected")
    if value.name in _RECONSTRUCT:
        _, shape, dtype, is_fortran, content = value.state
    else:
        content, dtype, shape, order = value.arguments
        is_fortran = order == "F"
    # A type of one byte has no order of bytes; its state could say more than its name.
    if not isinstance(dtype, _Call) or dtype.name != "numpy dtype":
        raise ValueError("its array has no type")
    if as_text(dtype.arguments[0]) not in ("u1", "|u1"):
        raise ValueError(f"pixels are {ascii(dtype.arguments[0])[:100]}, expected uint8")
    content = as_bytes(content)
    # Few and small: the product of many long numbers would take for ever.
    valid = isinstance(shape, tuple) and len(shape) <= _MAX_DIMENSIONS
    valid = valid and all(type(n) is int and 0 <= n < 2**31 for n in shape)
    if not valid or math.prod(shape) != len(content):
        raise ValueError(f"its array has {len(content)} bytes, not as many as its shape says")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def as_labels(value: Any) -> np.ndarray:
    """Return whole numbers of 32 bits from a list of them; raise ValueError for anything else."""
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**31 for n in value):
        raise ValueError("its labels are no list of whole numbers")
    return np.array(value, np.int32)
