"""Stands in for gcloud's storage commands and for Python on a TPU VM, below $FAKE_CLOUD.

Records every call in calls.jsonl and python.jsonl. `settings.json` there may have

  code, job_s: how jaxbench ends, and after how long
"""

import json
import os
import pathlib
import shutil
import sys
import time

CLOUD = pathlib.Path(os.environ["FAKE_CLOUD"])


def record(name, argv):
    with open(CLOUD / name, "a") as file:
        file.write(json.dumps(argv) + "\n")


def gcloud(argv):
    record("calls.jsonl", argv)
    assert argv[0] == "storage"
    local = [CLOUD / "bucket" / w.removeprefix("gs://") if w[:5] == "gs://" else w for w in argv]
    if argv[1] == "ls":
        if not local[2].exists():
            print("ERROR: One or more URLs matched no objects.", file=sys.stderr)
            return 1
        return 0
    source, target = map(pathlib.Path, local[2:4])
    excluded = ("checkpoints",) if any("--exclude" in word for word in argv) else ()
    shutil.copytree(
        source, target, dirs_exist_ok=True, ignore=lambda folder, names: set(names) & set(excluded)
    )
    if "--delete-unmatched-destination-objects" in argv:
        for path in target.iterdir():
            if not (source / path.name).exists():
                shutil.rmtree(path)
    return 0


def python(argv):
    if argv[0] == "-c":
        return 0
    if argv[:2] == ["-m", "venv"]:
        binary = pathlib.Path(argv[2], "bin")
        binary.mkdir(parents=True)
        shutil.copy(shutil.which("python3.12"), binary / "python")
        return 0
    record("python.jsonl", argv)
    if argv[:2] != ["-u", "-m"]:
        return 0
    [folder] = [pathlib.Path(w.partition("=")[2]) for w in argv if w.startswith("--workdir=")]
    before = (folder / "run.json").exists()
    (folder / "checkpoints/2").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"resumed": before}))
    path = CLOUD / "settings.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    print("begins", flush=True)
    time.sleep(settings.get("job_s", 0))
    print("ends", flush=True)
    return settings.get("code", 0)


if __name__ == "__main__":
    sys.exit({"gcloud": gcloud, "python": python}[sys.argv[1]](sys.argv[2:]))
