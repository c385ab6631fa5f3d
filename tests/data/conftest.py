"""Folders of encoded images."""

import shutil

import pytest

from tests.data.encoded_images import write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of small JPEGs, which no test may change."""
    return write_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture
def writable(folder, tmp_path):
    """A copy of the folder that a test may change."""
    return shutil.copytree(folder, tmp_path / "images")
