"""Copies of encoded images that processes make: killed while they do, or two at once."""

import json
import shutil
import signal
import subprocess
import sys
import time

from tests.conftest import ROOT
from tests.data.encoded_images import load, resized, write_folder


def test_a_killed_build_is_built_again(tmp_path):
    """The real process, killed while it writes."""
    own = write_folder(tmp_path / "images")
    for path in list((own / "train" / "ape").iterdir()):
        for copy in range(150):
            shutil.copy(path, path.with_name(f"{copy}-{path.name}"))
    code = (
        "import sys; sys.path.insert(0, '.'); from pathlib import Path;"
        "import tests.data.encoded_images as t;"
        f"t.load(t.resized(Path({str(own)!r}), Path({str(tmp_path)!r})))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not list((tmp_path / "cache").glob("train*.building/images.array_record")):
        assert child.poll() is None
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not list((tmp_path / "cache").glob("train*[0-9a-f]"))
    dataset, told = load(resized(own, tmp_path))
    assert dataset.cache["train"]["made"] == "now" and len(dataset.train) > 1000
    assert dataset.train.source.read(len(dataset.train) - 1)[0][:2] == b"\xff\xd8"


def test_two_processes_make_one_copy(tmp_path):
    own = write_folder(tmp_path / "images")
    code = (
        "import sys, json; sys.path.insert(0, '.'); from pathlib import Path;"
        "import tests.data.encoded_images as t;"
        f"made = t.load(t.resized(Path({str(own)!r}), Path({str(tmp_path)!r})))[0].cache;"
        "print(json.dumps([made[name]['made'] for name in ('train', 'eval')]))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    made = [json.loads(child.communicate(timeout=120)[0].splitlines()[-1]) for child in children]
    for split in zip(*made, strict=True):
        assert sorted(split) == ["before", "now"]
