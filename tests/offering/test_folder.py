"""The folder of offers, and the checkout that it is made from."""

import subprocess

import pytest

from jaxbench.errors import BadInput
from jaxbench.offering import folder


@pytest.mark.parametrize("somebody_elses", [False, True])
def test_without_a_checkout_a_source_is_asked_for(monkeypatch, tmp_path, somebody_elses):
    """Else the files of whose repository jaxbench is installed in would be sent."""
    installed = tmp_path / "site-packages"
    (installed / "jaxbench" / "offering").mkdir(parents=True)
    (installed / "jaxbench" / "offering" / "folder.py").touch()
    if somebody_elses:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(folder, "_CHECKOUT", installed)
    with pytest.raises(BadInput, match="no git checkout of jaxbench.*give --source"):
        folder.changed_files()


def test_a_folder_is_new_or_empty(tmp_path):
    folder.check_new(tmp_path)
    folder.check_new(tmp_path / "new" / "one")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(BadInput, match="nothing is overwritten"):
            folder.check_new(path)
    with pytest.raises(BadInput, match="cannot write in"):
        folder.check_new(tmp_path / "file" / "below")
