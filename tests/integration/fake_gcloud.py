"""Stands in for gcloud, and for Python on the workers of a TPU VM, below $FAKE_CLOUD.

Records every call in calls.jsonl. `tpu` there holds the state of the TPU, one a line, of which
every look takes one and the last stays; without the file there is none. A worker's home is
worker-I, in which an ssh command runs as it would there. `settings.json` may have

  fail: {a subcommand, or one and a word of its arguments: exit code}
  workers: how many hosts a TPU has
  made: the states of a new TPU
  code, job_s: how jaxbench ends, and after how long

With a file `lose` the next connection breaks while a job runs.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

CLOUD = pathlib.Path(os.environ["FAKE_CLOUD"])


def settings():
    path = CLOUD / "settings.json"
    return json.loads(path.read_text()) if path.exists() else {}


def record(name, **fields):
    with open(CLOUD / name, "a") as file:
        file.write(json.dumps(fields) + "\n")


def gcloud(argv):
    record("calls.jsonl", argv=argv)
    if argv[0] == "storage":
        return storage(argv[1:])
    verb, rest = argv[3], argv[4:]
    options = dict(word.removeprefix("--").partition("=")[::2] for word in rest if word[:2] == "--")
    for failing, code in settings().get("fail", {}).items():
        name, _, word = failing.partition(" ")
        if name == verb and word in " ".join(rest):
            print("ERROR: (gcloud) as the test asked for", file=sys.stderr)
            return code
    tpu = CLOUD / "tpu"
    if verb == "describe":
        if not tpu.exists():
            print("ERROR: (gcloud.describe) NOT_FOUND: Resource was not found", file=sys.stderr)
            return 1
        if "networkEndpoints" in options["format"]:
            print(settings().get("workers", 1))
            return 0
        state, *later = tpu.read_text().split()
        print(state)
        if later:
            tpu.write_text("\n".join(later))
    elif verb == "create":
        tpu.write_text(settings().get("made", "ACTIVE" if argv[2] != "tpu-vm" else "READY"))
    elif verb == "delete":
        tpu.unlink()
    else:
        chosen = options["worker"]
        workers = range(settings().get("workers", 1)) if chosen == "all" else [int(chosen)]
        homes = [CLOUD / f"worker-{index}" for index in workers]
        for home in homes:
            home.mkdir(exist_ok=True)
        if verb == "scp":
            scp([word for word in rest if word[:2] != "--"], homes)
        else:
            return ssh(options["command"], homes)
    return 0


def scp(words, homes):
    source, target = words
    for home in homes:
        if ":" in target:
            shutil.copy(source, home / target.partition(":")[2])
        else:
            source = home / source.partition(":")[2]
            shutil.copytree(source, pathlib.Path(target) / source.name, dirs_exist_ok=True)


def ssh(command, homes):
    """As gcloud does: to all at once, again where a connection breaks, the first bad exit code."""
    while True:
        lose = CLOUD / "lose"
        running = [
            subprocess.Popen(
                ["bash", "-c", command], cwd=home, env=os.environ | {"HOME": str(home)}
            )
            for home in homes
        ]
        if lose.exists() and " run " in command:
            lose.unlink()
            while not (homes[0] / "jaxbench/job/log").exists():
                time.sleep(0.02)
            running[0].kill()
            running[0].wait()
            continue
        codes = [process.wait() for process in running]
        return next((code for code in codes if code), 0)


def storage(argv):
    local = [CLOUD / "bucket" / w.removeprefix("gs://") if w[:5] == "gs://" else w for w in argv]
    if argv[0] == "ls":
        if not local[1].exists():
            print("ERROR: One or more URLs matched no objects.", file=sys.stderr)
            return 1
        return 0
    source, target = map(pathlib.Path, local[1:3])
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
    record("python.jsonl", argv=argv, worker=pathlib.Path(os.environ["HOME"]).name)
    if argv[:2] != ["-u", "-m"]:
        return 0
    if pathlib.Path(os.environ["HOME"]).name == "worker-0":
        options = dict(word.partition("=")[::2] for word in argv)
        folder = pathlib.Path(options.get("--workdir", "runs/quickstart/20260101-000000"))
        before = (folder / "run.json").exists()
        (folder / "checkpoints/2").mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps({"resumed": before}))
    print("begins", flush=True)
    time.sleep(settings().get("job_s", 0))
    print("ends", flush=True)
    return settings().get("code", 0)


if __name__ == "__main__":
    sys.exit({"gcloud": gcloud, "python": python}[sys.argv[1]](sys.argv[2:]))
