"""The scripts of launch/, run for real against stand-ins for uv and Python."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile

import pytest
import yaml

from tests.conftest import ROOT
from tests.integration.conftest import run_program

LAUNCH = ROOT / "launch"
SCRIPTS = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch"), ROOT / ".ci" / "run"]


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


# Notes the arguments of each call. As jaxbench it makes a run, and ends as settings.json says.
PYTHON = """#!{python} -ISu
import json, pathlib, sys, time
cloud, argv = pathlib.Path({cloud!r}), sys.argv[1:]
with open(cloud / "calls.jsonl", "a") as file:
    print(json.dumps(argv), file=file)
settings = json.loads((cloud / "settings.json").read_text())
if argv[:2] == ["-u", "-m"]:
    [folder] = [word.partition("=")[2] for word in argv if word.startswith("--workdir=")]
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    print("begins")
    time.sleep(settings.get("job_s", 0))
    print("ends")
    sys.exit(settings.get("code", 0))
sys.exit(settings.get("pip", 0) if "-e" in argv else 0)
"""


class Worker:
    """A home folder that stands for a TPU VM's, with the commands that the script needs."""

    def __init__(self, tmp_path):
        self.cloud, self.home, binaries = (tmp_path / name for name in ("cloud", "home", "bin"))
        for folder in (self.cloud, self.home, binaries):
            folder.mkdir()
        python = PYTHON.format(python=sys.executable, cloud=str(self.cloud))
        executable(self.cloud / "python", python)
        make = f'mkdir -p venv/bin && cp {self.cloud}/python venv/bin && echo "$@" >venv/uv'
        executable(binaries / "uv", f"#!/bin/sh\n{make}\n")
        self.set()
        with tarfile.open(self.home / "jaxbench.tgz", "w:gz") as archive:
            archive.add(ROOT / "setup.cfg", "setup.cfg")
        path = f"{binaries}:{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "HOME": str(self.home)}

    def set(self, **settings):
        (self.cloud / "settings.json").write_text(json.dumps(settings))

    def start(self, *flags, **variables):
        return subprocess.Popen(
            ["bash", str(LAUNCH / "on_tpu_vm.sh"), *flags],
            cwd=self.home,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *flags, **variables):
        process = self.start(*flags, **variables)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(flags, process.returncode, out, err)

    def calls(self):
        return [json.loads(line) for line in (self.cloud / "calls.jsonl").read_text().splitlines()]

    def jobs(self):
        """The arguments that jaxbench.main got in every start."""
        return [argv[3:] for argv in self.calls() if argv[:3] == ["-u", "-m", "jaxbench.main"]]


@pytest.fixture
def worker(tmp_path):
    if not shutil.which("flock") or not shutil.which("setsid"):
        pytest.skip("the workers' script is for Linux")
    return Worker(tmp_path)


def test_shellcheck_finds_nothing():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    assert {path.name for path in SCRIPTS} >= {"on_tpu_vm.sh", "slurm.sbatch", "run"}
    command = ["shellcheck", "-S", "warning", "-s", "bash", *SCRIPTS]
    checked = run_program(command)
    assert checked.returncode == 0, checked.stdout


def test_a_run_from_nothing(worker):
    given = [
        "--workdir=runs/a",
        "--experiment=/home/me/my file.py",
        "--a=it's",
        '--b="q" $HOME `id` $(id) \\ \\n !1 * ? ~ # ; & | < >',
        "--c=",
        "",
        "two\nlines\t",
        "--d=ü",
        "-e",
    ]
    done = worker.run(*given, EXTRAS="tpu,prepare")
    assert done.returncode == 0 and done.stdout == "begins\nends\n", done.stderr
    assert worker.jobs() == [given]
    assert (worker.home / "jaxbench/src/setup.cfg").exists()
    assert (worker.home / "jaxbench/runs/a").is_dir()
    # The images have Python 3.10.
    assert "--python 3.12" in (worker.home / "jaxbench/venv/uv").read_text()
    assert ["-m", "pip", "install", "-q", "-e", "src[tpu,prepare]"] in worker.calls()


def test_the_same_command_joins_the_job(worker):
    worker.set(job_s=6, code=3)
    command = ("--workdir=runs/a", "--experiment=cnn10")
    process = worker.start(*command)
    assert process.stdout.readline() == "begins\n"
    os.killpg(process.pid, signal.SIGKILL)  # the connection is lost
    process.communicate()
    other = worker.run("--workdir=runs/b", "--experiment=cnn10")
    assert other.returncode == 75 and "another job is running here" in other.stderr
    for _ in range(2):  # while it runs, and after its end
        done = worker.run(*command)
        assert (done.returncode, done.stdout) == (3, "begins\nends\n")
        assert "started before" in done.stderr
    assert len(worker.jobs()) == 1
    # A second setting on the same machine.
    worker.set()
    assert worker.run("--workdir=runs/b", "--experiment=cnn10").returncode == 0
    assert {path.name for path in (worker.home / "jaxbench/runs").iterdir()} == {"a", "b"}


def test_a_stopped_job_starts_again_and_keeps_its_runs(worker):
    worker.set(code=143)
    command = ("--experiment=quickstart", "--workdir=a run", "--resume=auto")
    for _ in range(2):
        assert worker.run(*command).returncode == 143
    assert len(worker.jobs()) == 2 and (worker.home / "jaxbench/a run").is_dir()


def test_what_fails_before_the_run_is_told(worker):
    done = worker.run("--experiment=cnn10")
    assert done.returncode == 2 and "give --workdir=runs/NAME" in done.stderr
    assert not (worker.home / "jaxbench").exists()
    worker.set(pip=3)
    assert worker.run("--workdir=runs/a").returncode == 3 and not worker.jobs()
    worker.set()
    assert worker.run("--workdir=runs/a").returncode == 0  # not the old failure again
    jobs = worker.jobs()
    (worker.home / "jaxbench.tgz").write_text("cut off")
    done = worker.run("--workdir=runs/b")
    assert done.returncode and "tar:" in done.stdout and worker.jobs() == jobs


def test_a_jobset_begins_again_where_pip_fails(tmp_path):
    """pip ends with 2 where the network fails, as jaxbench does for bad input."""
    document = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    job = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    final = job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    executable(tmp_path / "python", '#!/bin/sh\nprintf "%s\\n" "$@"; exit 2\n')
    for code in (2, 0):
        executable(tmp_path / "pip", f"#!/bin/sh\nexit {code}\n")
        done = run_program(
            [*container["command"], *container["args"]],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SOURCE": "x"},
        )
        assert (done.returncode in final) == (code == 0)
    # All arguments come through the shell unchanged.
    arguments = done.stdout.splitlines()
    assert arguments[:3] == ["-u", "-m", "jaxbench.main"]
    assert arguments[3:] == container["args"] and "--resume=auto" in arguments
