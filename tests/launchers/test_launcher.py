"""Which launchers there are, and their options."""

import pytest

from jaxbench.errors import BadInput
from jaxbench.launchers.launcher import Limits, create_launcher
from tests.conftest import MICRO
from tests.launchers.fakes import FakeLauncher
from tests.sweeps.test_sweep import make


def test_a_launcher_that_there_is_not_is_told():
    with pytest.raises(BadInput, match="one of local, ray, slurm; did you mean 'slurm'"):
        create_launcher("slum", Limits(), print, {})
    with pytest.raises(BadInput, match="--gpus with --launcher=ray: there is no such option"):
        create_launcher("ray", Limits(), print, {"gpus": 1})


def test_hardware_is_part_of_a_key_elsewhere():
    [here] = make("seed=0")
    there = here.on(FakeLauncher(None, hardware=["GPU:1"]).hardware)
    assert here.on(()).key == here.key != there.key
    assert there.with_field("batch_size", 64).key != here.with_field("batch_size", 64).key


def test_an_option_of_another_launcher_is_told(run_cli, tmp_path):
    quick = (f"--experiment={MICRO}", "--grid=seed=1", "--ray_hosts=2")
    done = run_cli(*quick, module="jaxbench.sweep")
    said = "jaxbench: --ray_hosts with --launcher=local: it needs --launcher=ray\n"
    assert (done.returncode, done.stderr) == (2, said) and not [*tmp_path.iterdir()]
