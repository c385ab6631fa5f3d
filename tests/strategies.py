"""Inputs that nobody thought of."""

from hypothesis import strategies as st


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """Bytes that are cut short, overwritten in part, longer, or others altogether."""
    start = draw(st.integers(0, len(whole)))
    written = draw(st.binary(max_size=64))
    end = draw(st.sampled_from((start, start + len(written), len(whole))))
    return draw(st.sampled_from((whole[:start] + written + whole[end:], written)))
