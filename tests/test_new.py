"""`jaxbench new`: templates that are written once, and can be trained."""

import ast

import pytest

from jaxbench.cli import registry
from jaxbench.data.sources.load import load_dataset
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.train import build_program
from tests.conftest import ROOT

KINDS = ("network", "optimizer", "data", "task")


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_is_an_experiment_that_can_be_built(run_cli, tmp_path, kind):
    done = run_cli(kind, "mine.py", module="jaxbench.new")
    assert done.returncode == 0 and "--experiment=mine.py" in done.stdout
    text = (tmp_path / "mine.py").read_text()
    assert "=FILE" not in text and "jaxbench main --experiment=mine.py" in text
    config = registry.load(str(tmp_path / "mine.py"))
    config.num_devices = 1
    config.validate()
    program = build_program(config, *create_training_mesh(config), 1)
    program.check()
    dataset = load_dataset(config) if kind == "data" else None
    assert dataset is None or len(dataset.train) == 2048


def test_a_folders_name_is_no_code(run_cli, tmp_path):
    (tmp_path / 'a"""b').mkdir()
    assert run_cli("network", 'a"""b/mine.py', module="jaxbench.new").returncode == 0
    assert 'a"""b' not in (tmp_path / 'a"""b' / "mine.py").read_text()


def test_a_file_that_exists_stays(run_cli, tmp_path):
    (tmp_path / "mine.py").write_text("mine")
    done = run_cli("network", "mine.py", module="jaxbench.new")
    assert done.returncode == 2 and "mine.py: exists" in done.stderr
    assert (tmp_path / "mine.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "one of data, network, optimizer, task"),
        (("netwrok", "x.py"), "did you mean 'network'"),
        (("network", "x.txt"), "must end in .py"),
        (("network", "no/such/x.py"), "No such file"),
        (("network", 'x""";print(1);""".py'), "after letters, digits and _ only"),
    ],
)
def test_bad_arguments_write_nothing(run_cli, tmp_path, args, message):
    done = run_cli(*args, module="jaxbench.new")
    assert done.returncode == 2 and message in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_essence_of_the_network_is_20_lines():
    tree = ast.parse((ROOT / "jaxbench" / "templates" / "network.py").read_text())
    [net] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert net.end_lineno - net.lineno < 20
