"""A card with its runs."""

import pathlib
import shutil

import pytest

# What `jaxbench qualify submit` made of a card of one network on two busy cores.
RECORDED = pathlib.Path(__file__).with_name("recorded")


@pytest.fixture
def recorded(tmp_path):
    """A copy of the recorded card's folder."""
    return shutil.copytree(RECORDED, tmp_path / "card")
