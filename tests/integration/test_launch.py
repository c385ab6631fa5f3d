"""The scripts of launch/, run for real against stand-ins for gcloud and Slurm."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.conftest import ROOT

LAUNCH = ROOT / "launch"
STAND_IN = pathlib.Path(__file__).with_name("fake_gcloud.py")
SCRIPTS = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch"), ROOT / ".ci" / "run"]
TPU = ("--name=bench", "--zone=us-central1-a", "--type=v5litepod-8", "--poll_s=0")
AT = "bench --zone=us-central1-a"


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


class Cloud:
    """A folder that stands for Google's cloud, and a checkout to start from."""

    def __init__(self, tmp_path):
        self.folder, self.home = tmp_path / "cloud", tmp_path / "desk"
        checkout, binaries = tmp_path / "check out", tmp_path / "bin"
        for folder in (self.folder, self.home, checkout, binaries):
            folder.mkdir()
        for name, role in {"gcloud": "gcloud", "python3.12": "python"}.items():
            stand_in = shlex.join(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(pathlib.Path(__file__).with_name("fake_gcloud.py")),
                    role,
                ]
            )
            executable(binaries / name, f'#!/bin/sh\nexec {stand_in} "$@"\n')
        for name in ("launch", "experiments"):
            shutil.copytree(ROOT / name, checkout / name)
        (checkout / "untracked").touch()
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        for line in (
            ["init", "-q"],
            ["add", "launch", "experiments"],
            [*identity, "commit", "-qm", "a"],
        ):
            subprocess.run(["git", *line], cwd=checkout, check=True)
        self.script = checkout / "launch" / "tpu_vm.sh"
        self.environment = os.environ | {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "FAKE_CLOUD": str(self.folder),
        }

    def set(self, tpu=None, **settings):
        (self.folder / "settings.json").write_text(json.dumps(settings))
        if tpu:
            (self.folder / "tpu").write_text("\n".join(tpu.split()))

    def start(self, *flags, **options):
        return subprocess.Popen(
            [self.script, *flags],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *flags):
        process = self.start(*flags)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(flags, process.returncode, out, err)

    def calls(self):
        """The arguments of gcloud since this was last asked."""
        path = self.folder / "calls.jsonl"
        calls = [json.loads(line)["argv"] for line in path.read_text().splitlines()]
        path.unlink()
        return calls

    def verbs(self):
        return [argv[3] for argv in self.calls() if argv[0] == "compute"]

    def pythons(self):
        lines = (self.folder / "python.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def jobs(self):
        """The arguments that jaxbench.main got, by worker, of every start."""
        return [
            (one["worker"], one["argv"][3:])
            for one in self.pythons()
            if one["argv"][:3] == ["-u", "-m", "jaxbench.main"]
        ]


@pytest.fixture
def cloud(tmp_path):
    if not shutil.which("flock") or not shutil.which("setsid"):
        pytest.skip("the workers' script is for Linux")
    return Cloud(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script):
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    command = ["shellcheck", "-S", "warning", "-s", "bash", script]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_all_scripts_are_linted():
    assert {path.name for path in SCRIPTS} >= {"tpu_vm.sh", "on_tpu_vm.sh", "slurm.sbatch", "run"}


def test_a_run_from_nothing(cloud):
    done = cloud.run(*TPU, "--project=p-1", "--", "--experiment=quickstart")
    assert done.returncode == 0, done.stderr
    assert "begins\nends\n" in done.stdout
    at = ["bench", "--zone=us-central1-a", "--project=p-1"]
    calls = cloud.calls()
    tpu = [argv[3:] for argv in calls if argv[:3] == ["compute", "tpus", "tpu-vm"]]
    assert len(tpu) == len(calls)
    packed = tpu[4][1]
    on_vm = "bash jaxbench/src/launch/on_tpu_vm.sh"
    assert tpu == [
        ["describe", *at, "--format=value(state)"],
        ["create", *at, "--accelerator-type=v5litepod-8", "--version=v2-alpha-tpuv5-lite"],
        ["describe", *at, "--format=value(state)"],
        ["describe", *at, "--format=value(networkEndpoints.len())"],
        ["scp", packed, "bench:jaxbench.tgz", *at[1:], "--worker=all"],
        [
            "ssh",
            *at,
            "--worker=all",
            "--command=rm -rf jaxbench/new && mkdir -p jaxbench/new && tar -xzf jaxbench.tgz -C "
            "jaxbench/new && bash jaxbench/new/launch/on_tpu_vm.sh set_up tpu",
        ],
        ["ssh", *at, "--worker=all", f"--command={on_vm} run '' '' --experiment=quickstart"],
        ["ssh", *at, "--worker=0", f"--command={on_vm} report ''"],
        [
            "scp",
            "bench:jaxbench/runs/quickstart/20260101-000000",
            "runs/quickstart",
            *at[1:],
            "--worker=0",
            "--recurse",
        ],
        ["ssh", *at, "--worker=all", f"--command={on_vm} forget"],
    ]
    assert not pathlib.Path(packed).exists()
    assert (cloud.home / "runs/quickstart/20260101-000000/run.json").exists()
    worker = cloud.folder / "worker-0/jaxbench"
    assert (worker / "src/launch").is_dir() and not (worker / "src/untracked").exists()
    assert ["-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", "src[tpu]"] in [
        one["argv"] for one in cloud.pythons()
    ]
    assert "costs money" in done.stderr


def test_arguments_arrive_as_they_were_given(cloud):
    given = [
        "--experiment=/home/me/my file.py",
        "--a=it's",
        '--b="q" $HOME `id` $(id) \\ \\n !1 * ? ~ # ; & | < >',
        "--c=",
        "",
        "two\nlines\t",
        "--d=ü",
        "-e",
    ]
    done = cloud.run(*TPU, "--", *given)
    assert done.returncode == 0, done.stderr
    assert cloud.jobs() == [("worker-0", given)]


@pytest.mark.parametrize(
    "named",
    ["quickstrat", "quickstrat:tiny", "quickstart:tny", "own.py", "../experiments/x.py"],
)
@pytest.mark.parametrize("flags", [(), ("--dry_run",)])
def test_no_tpu_is_planned_for_an_experiment_that_is_not_sent(cloud, named, flags):
    for experiment in ([f"--experiment={named}"], ["-experiment", named]):
        done = cloud.run(*TPU, *flags, "--", *experiment)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--experiment={named}: no " in done.stderr
    done = cloud.run(*TPU, *flags, "--", "--experiment=quickstart", "--experiment.batchsize=4")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no field 'batchsize'; did you mean 'batch_size'?" in done.stderr
    done = cloud.run(
        *TPU, *flags, "--", "--experiment=quickstart", "--mode=memory", "--resume=auto"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--resume with --mode=memory: it needs --mode=train" in done.stderr
    done = cloud.run(*TPU, *flags, "--", "--experiment=vit_s16")
    assert (done.returncode, done.stdout) == (2, "")
    assert "data.path='': data.source=folder reads files" in done.stderr
    assert not (cloud.folder / "calls.jsonl").exists()


def test_a_jobset_begins_again_where_pip_fails(tmp_path):
    """pip ends with 2 where the network fails, as jaxbench does for bad input."""
    document = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    job = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    final = job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    executable(tmp_path / "python", '#!/bin/sh\necho "$@"; exit 2\n')
    for code in (2, 0):
        executable(tmp_path / "pip", f"#!/bin/sh\nexit {code}\n")
        done = subprocess.run(
            [*container["command"], *container["args"]],
            env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SOURCE": "x"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode in final) == (code == 0)
        assert ("--resume=auto" in done.stdout) == (code == 0)


# Flags whose values a shell would split or change.
ODD = ("--experiment.data.path=a b", "--experiment.data.name=$it's")


def test_dry_run_runs_nothing_and_prints_what_would_run(cloud):
    flags = [*TPU, "--spot", "--delete", "--", "--experiment=cnn10", *ODD]
    shown = cloud.run(*flags[:4], "--dry_run", *flags[4:])
    assert shown.returncode == 0, shown.stderr
    assert not (cloud.folder / "calls.jsonl").exists() and not any(cloud.home.iterdir())
    printed = [shlex.split(line) for line in shown.stdout.splitlines()]
    assert all(line[0] == "gcloud" for line in printed)
    assert cloud.run(*flags).returncode == 0
    # What is known only then: how it stands, how many hosts there are, the folders' names.
    ran = [argv for argv in cloud.calls() if argv[3] != "describe"]

    def known(argv):
        return [re.sub(r"\S*\.tgz|runs/\S+", "", word) for word in argv]

    assert [known(line[1:]) for line in printed if line[4] != "describe"] == [*map(known, ran)]


@pytest.mark.parametrize(
    ("failing", "step", "exists", "deleted"),
    [
        ("describe", "looking for bench", True, False),
        ("create", "making bench", False, False),
        ("scp", "sending the checkout", False, True),
        ("scp", "sending the checkout", True, False),
        ("ssh set_up", "installing it", False, True),
    ],
)
def test_a_failing_step_stops_with_its_name_and_exit_code(cloud, failing, step, exists, deleted):
    cloud.set(fail={failing: 7}, tpu="READY" if exists else None)
    done = cloud.run(*TPU, "--delete", "--", "--experiment=quickstart")
    assert done.returncode == 7
    assert re.search(rf"failed: {step}.*\(exit code 7\)", done.stderr)
    verbs = cloud.verbs()
    if deleted:
        assert verbs.pop() == "delete"
    # Nothing comes after it.
    assert verbs[-1] == failing.split()[0] and not (cloud.folder / "python.jsonl").exists()


@pytest.mark.parametrize("asked", [True, False])
def test_the_tpu_is_deleted_after_a_failed_run_only_if_asked(cloud, asked):
    cloud.set(code=3, tpu="READY")
    done = cloud.run(*TPU, *["--delete"] * asked, "--", "--experiment=quickstart")
    assert done.returncode == 3 and "failed: running it (exit code 3)" in done.stderr
    assert (cloud.home / "runs/quickstart/20260101-000000/run.json").exists()
    calls = [argv[3:] for argv in cloud.calls()]
    deletion = ["delete", *AT.split(), "--async", "--quiet"]
    assert (calls[-1] == deletion) is asked and (deletion in calls) is asked
    assert ("costs money" in done.stderr) is not asked


def test_the_tpu_is_not_deleted_before_the_results_are_here(cloud):
    command = (*TPU, "--delete", "--", "--experiment=quickstart")
    cloud.set(fail={"scp --recurse": 9}, tpu="READY")
    done = cloud.run(*command)
    assert done.returncode == 9 and "failed: fetching runs/quickstart/" in done.stderr
    assert "not deleted" in done.stderr and "delete" not in cloud.verbs()
    # The same command fetches what is there, and does not measure again.
    cloud.set()
    assert cloud.run(*command).returncode == 0
    assert cloud.verbs()[-1] == "delete" and len(cloud.jobs()) == 1


def test_states_of_a_tpu(cloud):
    cloud.set(tpu="CREATING CREATING STARTING READY")
    done = cloud.run(*TPU, "--", "--experiment=quickstart")
    assert done.returncode == 0 and "bench is CREATING; waiting" in done.stderr
    assert cloud.verbs()[:5] == ["describe"] * 5
    cloud.set(tpu="PREEMPTED")
    assert cloud.run(*TPU, "--spot", "--", "--experiment=quickstart").returncode == 0
    assert cloud.verbs()[:4] == ["describe", "delete", "create", "describe"]
    cloud.set(tpu="STOPPED")
    done = cloud.run(*TPU, "--", "--experiment=quickstart")
    assert done.returncode == 1 and "its state is STOPPED" in done.stderr
    assert cloud.verbs() == ["describe"]


def test_queued_resource(cloud):
    cloud.set(made="WAITING_FOR_RESOURCES PROVISIONING ACTIVE")
    done = cloud.run(*TPU, "--queued", "--spot", "--delete", "--", "--experiment=quickstart")
    assert done.returncode == 0, done.stderr
    calls = [shlex.join(argv) for argv in cloud.calls()]
    asked = [line for line in calls if "queued-resources" in line]
    where = f"compute tpus queued-resources {{}} {AT}"
    assert asked == [
        shlex.join([*where.format("describe").split(), "--format=value(state.state)"]),
        "compute tpus queued-resources create bench --node-id=bench --zone=us-central1-a "
        "--accelerator-type=v5litepod-8 --runtime-version=v2-alpha-tpuv5-lite --spot",
        *[shlex.join([*where.format("describe").split(), "--format=value(state.state)"])] * 3,
        where.format("delete") + " --force --async --quiet",
    ]
    cloud.set(made="FAILED")
    done = cloud.run(*TPU, "--queued", "--", "--experiment=quickstart")
    assert done.returncode == 1 and "its state is FAILED" in done.stderr


def test_workers_of_a_slice_meet(cloud):
    cloud.set(workers=3)
    done = cloud.run(*TPU, "--", "--experiment=quickstart")
    assert done.returncode == 0, done.stderr
    line = ["--experiment=quickstart", "--distributed=auto"]
    assert sorted(cloud.jobs()) == [(f"worker-{index}", line) for index in range(3)]
    done = cloud.run(*TPU, "--", "--experiment=quickstart", "--distributed=off")
    assert cloud.jobs()[-1][1] == ["--experiment=quickstart", "--distributed=off"]
    by_hand = ["-experiment", "quickstart", "-distributed", "off"]
    assert cloud.run(*TPU, "--", *by_hand).returncode == 0 and cloud.jobs()[-1][1] == by_hand
    done = cloud.run(*TPU, "--bucket=gs://b", "--", "--experiment=cnn10", "--workdir=runs/a")
    assert done.returncode == 2 and "--bucket is for TPUs of one host" in done.stderr


def test_a_lost_connection_joins_the_same_job(cloud):
    cloud.set(tpu="READY", job_s=1)
    (cloud.folder / "lose").touch()
    done = cloud.run(*TPU, "--", "--experiment=quickstart")
    assert done.returncode == 0, done.stderr
    assert not (cloud.folder / "lose").exists()
    assert "started before" in done.stderr and len(cloud.jobs()) == 1
    # What was fetched is over: the same command is a new job.
    cloud.set()
    assert cloud.run(*TPU, "--", "--experiment=quickstart").returncode == 0
    assert len(cloud.jobs()) == 2


def test_ctrl_c_leaves_the_job_and_the_same_command_fetches_it(cloud):
    cloud.set(tpu="READY", job_s=12)
    command = (*TPU, "--delete", "--", "--experiment=quickstart")
    process = cloud.start(*command, start_new_session=True)
    for line in process.stdout:
        if "begins" in line:
            break
    other = cloud.run(*TPU, "--delete", "--", "--experiment=cnn10")
    assert other.returncode == 75 and "another job" in other.stderr
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "go on, and the same command joins it" in err
    assert "delete" not in cloud.verbs()
    done = cloud.run(*command)
    assert done.returncode == 0 and "begins\nends\n" in done.stdout
    assert len(cloud.jobs()) == 1 and cloud.verbs()[-1] == "delete"
    assert (cloud.home / "runs/quickstart/20260101-000000/run.json").exists()


def test_a_broken_off_run_is_not_deleted(cloud):
    cloud.set(tpu="READY", fail={"ssh run": 255, "ssh report": 255})
    done = cloud.run(*TPU, "--spot", "--delete", "--", "--experiment=quickstart")
    assert done.returncode == 255
    assert "the same command again" in done.stderr and "not deleted" in done.stderr
    assert "delete" not in cloud.verbs()


def test_a_bucket_outlives_a_preempted_tpu(cloud):
    cloud.set(tpu="READY", code=143)
    cloud.environment["JAXBENCH_SYNC_S"] = "100"
    command = (*TPU, "--spot", "--bucket=gs://b/x", "--")
    command += ("--experiment=quickstart", "--workdir=runs/a", "--resume=auto")
    done = cloud.run(*command)
    assert done.returncode == 143 and "the same command goes on" in done.stderr
    kept = cloud.folder / "bucket/b/x/runs/a"
    assert json.loads((kept / "run.json").read_text()) == {"resumed": False}
    assert (kept / "checkpoints/2").is_dir()
    rsyncs = [argv[2:] for argv in cloud.calls() if argv[:2] == ["storage", "rsync"]]
    assert rsyncs == [
        ["runs/a", "gs://b/x/runs/a", "--recursive", "--exclude=^checkpoints/"],
        ["held/checkpoints", "gs://b/x/runs/a/checkpoints", "--recursive"],
        [
            "held/checkpoints",
            "gs://b/x/runs/a/checkpoints",
            "--recursive",
            "--delete-unmatched-destination-objects",
        ],
    ]
    # The disk goes with the TPU.
    shutil.rmtree(cloud.folder / "worker-0")
    cloud.set(tpu="PREEMPTED")
    assert cloud.run(*command).returncode == 0
    assert json.loads((kept / "run.json").read_text()) == {"resumed": True}
    assert json.loads((cloud.home / "runs/a/run.json").read_text()) == {"resumed": True}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--zone=z", "--type=v5p-8", "--", "--a"], "--name is missing"),
        ([*TPU], "flags of jaxbench.main after --"),
        ([*TPU, "--"], "flags of jaxbench.main after --"),
        ([*TPU, "--spott", "--", "--a"], "--spott: no such flag"),
        ([*TPU, "--spot=yes", "--", "--a"], "--spot=yes: no such flag"),
        ([*TPU, "--name=a b", "--", "--a"], "--name=a b: must be"),
        ([*TPU, "--name=A;id", "--", "--a"], "--name=A;id: must be"),
        ([*TPU, "--type=h100", "--", "--a"], "--type=h100: its image is not known"),
        ([*TPU, "--extras=tpu]", "--", "--a"], "--extras=tpu]: must be"),
        ([*TPU, "--poll_s=x", "--", "--a"], "--poll_s=x: must be"),
        ([*TPU, "--", "--workdir=/tmp/a"], "--workdir=/tmp/a: must lie below runs/"),
        ([*TPU, "--", "--workdir", "runs/../a"], "--workdir=runs/../a: must lie below runs/"),
        ([*TPU, "--bucket=b", "--", "--workdir=runs/a"], "--bucket=b: must be gs://"),
        ([*TPU, "--bucket=gs://b", "--", "--a"], "give jaxbench.main a --workdir"),
        ([*TPU[1:], "--name", "bench", "--", "--a"], "--name bench: write it as --name=bench"),
        ([*TPU, "--", "quickstart"], "no --experiment after --"),
    ],
)
def test_bad_input_is_told_in_one_line(cloud, flags, words):
    done = cloud.run(*flags)
    assert done.returncode == 2 and done.stdout == ""
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert not (cloud.folder / "calls.jsonl").exists()


@pytest.mark.parametrize("there", [True, False])
def test_python_of_an_old_image_is_replaced(cloud, tmp_path, there):
    """Where there is only Python 3.10, apt is asked for 3.12, then with the archive that has it."""
    binaries = tmp_path / "old"
    binaries.mkdir()
    log = tmp_path / "apt"
    for tool in ("bash", "dirname", "mkdir", "rm", "mv", "ln", "flock", "cat", "cp", "true"):
        (binaries / tool).symlink_to(shutil.which(tool))
    executable(binaries / "python3", "#!/bin/sh\nexit 1\n")
    later = cloud.environment["PATH"].split(":")[0] + "/python3.12" if there else "/nowhere"
    executable(
        binaries / "sudo",
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in\n'
        f"add-apt*) true > {log}.added ;;\n"
        f"*install*) [ -e {log}.added ] && cp {later} {binaries}/python3.12 ;;\nesac\n",
    )
    home = tmp_path / "home"
    shutil.copytree(LAUNCH, home / "jaxbench/new/launch")
    done = subprocess.run(
        ["bash", str(LAUNCH / "on_tpu_vm.sh"), "set_up", "tpu"],
        env={"PATH": str(binaries), "HOME": str(home), "FAKE_CLOUD": str(cloud.folder)},
        capture_output=True,
        text=True,
    )
    apt = "apt-get -q -y -o DPkg::Lock::Timeout=300"
    assert log.read_text().splitlines() == [
        f"{apt} update",
        f"{apt} install python3.12 python3.12-venv",
        "add-apt-repository -y ppa:deadsnakes/ppa",
        f"{apt} install python3.12 python3.12-venv",
    ]
    assert done.returncode == (0 if there else 1), done.stderr
    if there:
        assert cloud.pythons()[-1]["argv"][-1] == "src[tpu]"
    else:
        assert "could not be installed" in done.stderr


def test_what_is_sent_knows_its_commit(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    archive = tmp_path / "a.tgz"
    commands = (
        ["git", "archive", "--format=tar.gz", f"--output={archive}", "HEAD", "jaxbench"],
        ["tar", "-xzf", str(archive), "-C", str(tmp_path)],
        ["git", "rev-parse", "HEAD"],
    )
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from jaxbench.hardware import environment; print(environment._git())",
        ],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    expected = {"commit": done.stdout.strip(), "dirty": False}
    assert found.stdout == f"{expected}\n", found.stderr


def slurm(tmp_path, job):
    """Starts slurm.sbatch with stand-ins; srun runs `job`, a line of shell."""
    binaries = tmp_path / "bin"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    binaries.mkdir()
    said = tmp_path / "said"
    executable(
        binaries / "srun",
        f'#!/bin/bash\nprintf "%s\\n" "$@" > {said}.srun\necho $$ > {said}.pid\n{job}\n',
    )
    executable(
        binaries / "scancel", f'#!/bin/bash\necho "$@" > {said}.scancel\nkill $(<{said}.pid)\n'
    )
    executable(binaries / "scontrol", f'#!/bin/bash\necho "$@" > {said}.scontrol\n')
    return subprocess.Popen(
        ["bash", LAUNCH / "slurm.sbatch", "--experiment=a b", "--x=$HOME"],
        cwd=tmp_path,
        env=os.environ
        | {"PATH": f"{binaries}:{os.environ['PATH']}"}
        | {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "8"},
    )


WAITS = "trap 'sleep 0.3; exit 143' TERM; touch waits; for i in {1..100}; do sleep 0.1; done"


def test_slurm_requeues_what_ran_out_of_time(tmp_path):
    process = slurm(tmp_path, WAITS)
    while not (tmp_path / "waits").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == 143
    assert (tmp_path / "said.scancel").read_text() == "--signal=TERM 12\n"
    assert (tmp_path / "said.scontrol").read_text() == "requeue 12\n"
    arguments = (tmp_path / "said.srun").read_text().splitlines()
    # srun itself does not take the job's over.
    assert "--cpus-per-task=8" in arguments
    assert arguments[arguments.index("python") :] == [
        *("python", "-u", "-m", "jaxbench.main", "--grace_period_s=150"),
        *("--experiment=a b", "--x=$HOME"),
        *("--distributed=auto", "--workdir=runs/slurm-12", "--resume=auto"),
    ]


@pytest.mark.parametrize("code", [0, 1, 143])
def test_slurm_requeues_nothing_else(tmp_path, code):
    assert slurm(tmp_path, f"exit {code}").wait(timeout=30) == code
    assert not (tmp_path / "said.scontrol").exists()


def test_a_jobsets_arguments_come_through_the_shell_unchanged():
    document = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    [replicated] = document["spec"]["replicatedJobs"]
    [container] = replicated["template"]["spec"]["template"]["spec"]["containers"]
    # After the installation.
    shell = container["command"][:2] + [container["command"][2].replace("pip", "true")]
    shell[2] = shell[2].replace("exec python -u -m jaxbench.main", "printf '%s\\n'")
    told = subprocess.run(
        [*shell, container["command"][3], *container["args"]],
        env={"SOURCE": "x", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert told.stdout.splitlines() == container["args"]
