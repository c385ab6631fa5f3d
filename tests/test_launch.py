"""The files of launch/, read: what Slurm and Kubernetes ask of them, and the flags they name."""

import copy
import re

import pytest
import yaml

from jaxbench.parallel import signals
from tests.conftest import ROOT

LAUNCH = ROOT / "launch"
SCRIPTS = ("on_tpu_vm.sh", "slurm.sbatch")


def test_slurm_options_stand_before_the_first_command():
    lines = (LAUNCH / "slurm.sbatch").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.split()[1] for line in lines if line.startswith("#SBATCH ")]
    assert all("#SBATCH" not in line for line in lines[first:])
    named = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    # JAX takes a GPU for each task, and each must see all of its node's.
    assert named["ntasks-per-node"] == named["gpus-per-node"]
    assert "requeue" in named
    [grace_period_s] = re.findall(r"--grace_period_s=(\d+)", "\n".join(lines[first:]))
    assert (
        signals.GRACE_PERIOD_S < int(grace_period_s) < int(named["signal"].removeprefix("B:USR1@"))
    )


def test_jobset():
    document = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    assert document["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and document["kind"] == "JobSet"
    [replicated] = document["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    chips = 1
    for side in pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"):
        chips *= int(side)
    hosts = chips // container["resources"]["limits"]["google.com/tpu"]
    assert job["completions"] == job["parallelism"] == hosts
    [grace_period_s] = re.findall(r"--grace_period_s=(\d+)", " ".join(container["args"]))
    assert signals.GRACE_PERIOD_S < int(grace_period_s) < pod["terminationGracePeriodSeconds"]
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_jobs_of_the_jobset_are_what_kubernetes_takes():
    """By its published schemas. JobSet has one of its own, which no package carries."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    document = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    [replicated] = document["spec"]["replicatedJobs"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": replicated["name"]},
        "spec": replicated["template"]["spec"],
    }
    # The last three versions are the ones that Kubernetes itself looks after.
    minor = int(kubernetes_validate.latest_version().split(".")[1])
    for version in (f"1.{minor - 2}", f"1.{minor}"):
        kubernetes_validate.validate(job, version, strict=True)
    wrong = copy.deepcopy(job)
    wrong["spec"]["template"]["spec"]["containers"][0]["arg"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="'arg' was unexpected"):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_files_name_flags_that_exist(run_cli):
    helped = run_cli("--helpfull")
    known = set(re.findall(r"^ +--(?:\[no\])?(\w+)", helped.stdout, re.MULTILINE)) | {"experiment"}
    text = "".join((LAUNCH / name).read_text() for name in (*SCRIPTS, "jobset.yaml"))
    # What follows the entry point or a script, and the arguments of the JobSet.
    heads = r"(?:jaxbench\.main \"\$@\"|\$@\" |sbatch |on_tpu_vm\.sh )"
    commands = re.findall(heads + r"(?:\\\n|[^\n])*", text)
    commands += re.findall(r"^ +- --.*", text, re.MULTILINE)
    used = set(re.findall(r"--(\w+)=", "\n".join(commands)))
    assert used >= {"experiment", "workdir", "resume", "distributed"}
    assert used <= known, used - known
