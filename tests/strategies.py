"""Hypothesis strategies for files that somebody damaged or made up."""

import copy
import json

from hypothesis import strategies as st

# What JSON holds, and what Python's reads besides: nan, infinities, numbers of any size.
_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
JSON = st.recursive(
    _PLAIN | st.sampled_from([10**40, 10**400, 1e308, "\x1b[2J"]),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(max_size=5), value),
    max_leaves=4,
)


def paths_of(value, path=()):
    """Return the path of every value in a JSON value; of like ones in a list, the first."""
    found = [path] if path else []
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, one in pairs if isinstance(value, dict) else pairs[:1]:
        deeper = isinstance(one, (dict, list))
        found += paths_of(one, (*path, key)) if deeper else [(*path, key)]
    return found


def changed(document, path, value):
    """Return a copy of a JSON value in which another value is at a path."""
    document = part = copy.deepcopy(document)
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return document


def with_a_wrong_value(document):
    """Return a strategy: the document with any JSON value at one of its places."""
    places = st.sampled_from(paths_of(document))
    return st.builds(changed, st.just(document), places, JSON)


@st.composite
def damaged(draw, whole: bytes):
    """Return bytes that are cut short, overwritten in part, longer, or others altogether."""
    start = draw(st.integers(0, len(whole)))
    written = draw(st.binary(max_size=64) | st.just(b"[" * 99_999))
    end = draw(st.sampled_from((start, start + len(written), len(whole))))
    return draw(st.sampled_from((whole[:start] + written + whole[end:], written)))


@st.composite
def damaged_json(draw, whole: bytes):
    """Return lines of JSON of which one has a wrong value, or damaged bytes."""
    *lines, last = whole.splitlines()
    lines.insert(draw(st.integers(0, len(lines))), last)
    wrong = with_a_wrong_value(json.loads(lines.pop())).map(json.dumps)
    return draw(damaged(whole) | wrong.map(lambda line: b"\n".join([*lines, line.encode()])))
