"""The scripts of launch/, run for real against a stand-in for gcloud."""

import json
import os
import pathlib
import shlex
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
STAND_IN = pathlib.Path(__file__).with_name("fake_gcloud.py")
SCRIPTS = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch"), ROOT / ".ci" / "run"]


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


class Worker:
    """A home folder that stands for a TPU VM's, with the commands that the script needs."""

    def __init__(self, tmp_path):
        self.cloud, self.home, binaries = (tmp_path / name for name in ("cloud", "home", "bin"))
        for folder in (self.cloud, self.home, binaries):
            folder.mkdir()
        for name, role in {"gcloud": "gcloud", "python3.12": "python"}.items():
            stand_in = shlex.join([sys.executable, "-I", "-S", str(STAND_IN), role])
            executable(binaries / name, f'#!/bin/sh\nexec {stand_in} "$@"\n')
        with tarfile.open(self.home / "jaxbench.tgz", "w:gz") as archive:
            archive.add(ROOT / "setup.cfg", "setup.cfg")
        self.environment = os.environ | {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "FAKE_CLOUD": str(self.cloud),
            "HOME": str(self.home),
        }

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

    def lines(self, name):
        return [json.loads(line) for line in (self.cloud / name).read_text().splitlines()]

    def jobs(self):
        """The arguments that jaxbench.main got in every start."""
        start = ["-u", "-m", "jaxbench.main"]
        return [argv[3:] for argv in self.lines("python.jsonl") if argv[:3] == start]


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
    assert (worker.home / "jaxbench/runs/a/run.json").exists()
    pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", "src[tpu,prepare]"]
    assert pip in worker.lines("python.jsonl")


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


def test_a_bucket_outlives_a_preempted_tpu(worker):
    worker.set(code=143)
    command = ("--experiment=quickstart", "--workdir=runs/a", "--resume=auto")
    assert worker.run(*command, BUCKET="gs://b/x").returncode == 143
    kept = worker.cloud / "bucket/b/x/runs/a"
    assert json.loads((kept / "run.json").read_text()) == {"resumed": False}
    assert (kept / "checkpoints/2").is_dir()
    rsyncs = [argv[2:] for argv in worker.lines("calls.jsonl") if argv[1] == "rsync"]
    to = "gs://b/x/runs/a/checkpoints"
    assert rsyncs == [
        ["runs/a", "gs://b/x/runs/a", "--recursive", "--exclude=^checkpoints/"],
        ["held/checkpoints", to, "--recursive"],
        ["held/checkpoints", to, "--recursive", "--delete-unmatched-destination-objects"],
    ]
    # The disk goes with the TPU.
    shutil.rmtree(worker.home / "jaxbench")
    worker.set()
    assert worker.run(*command, BUCKET="gs://b/x").returncode == 0
    assert json.loads((kept / "run.json").read_text()) == {"resumed": True}


def test_a_stopped_job_starts_again_and_is_copied_meanwhile(worker):
    worker.set(code=143, job_s=3)
    command = ("--experiment=quickstart", "--workdir=runs/a", "--resume=auto")
    for _ in range(2):
        assert worker.run(*command, BUCKET="gs://b", SYNC_S="1").returncode == 143
    assert len(worker.jobs()) == 2
    records = [argv for argv in worker.lines("calls.jsonl") if argv[2] == "runs/a"]
    assert len(records) >= 4


@pytest.mark.parametrize(
    ("flags", "bucket"),
    [
        ((), ""),
        (("--workdir=/tmp/a",), ""),
        (("--workdir=runs/../a",), ""),
        (("--workdir=runs/a",), "b"),
    ],
)
def test_bad_input_is_told_in_one_line(worker, flags, bucket):
    done = worker.run("--experiment=quickstart", *flags, BUCKET=bucket)
    said = "on_tpu_vm.sh: give --workdir=runs/NAME, and BUCKET=gs://BUCKET/FOLDER or none\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert not (worker.home / "jaxbench").exists()


@pytest.mark.parametrize("there", [True, False])
def test_python_of_an_old_image_is_replaced(worker, tmp_path, there):
    """Where there is only Python 3.10, apt is asked for 3.12, then with the archive that has it."""
    binaries = tmp_path / "old"
    binaries.mkdir()
    log = tmp_path / "apt"
    tools = (
        "bash cat cp flock gzip kill ln mkdir nohup realpath rm setsid sleep tail tar timeout true"
    )
    for tool in tools.split():
        (binaries / tool).symlink_to(shutil.which(tool))
    executable(binaries / "python3", "#!/bin/sh\nexit 1\n")
    later = tmp_path / "bin/python3.12" if there else "/nowhere"
    executable(
        binaries / "sudo",
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in\n'
        f"add-apt*) true > {log}.added ;;\n"
        f"*install*) [ -e {log}.added ] && cp {later} {binaries}/python3.12 ;;\nesac\n",
    )
    done = worker.run("--workdir=runs/a", PATH=str(binaries))
    apt = "apt-get -q -y -o DPkg::Lock::Timeout=300"
    assert log.read_text().splitlines() == [
        f"{apt} update",
        f"{apt} install python3.12 python3.12-venv",
        "add-apt-repository -y ppa:deadsnakes/ppa",
        f"{apt} install python3.12 python3.12-venv",
    ]
    assert done.returncode == (0 if there else 1), done.stdout
    assert ("could not be installed" in done.stdout) is not there


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
