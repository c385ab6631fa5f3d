"""`jaxbench kernels`: its rows, what it does with a compiler that crashes, what it refuses."""

import dataclasses
import json
import os

import pytest

from jaxbench.errors import BadInput, RunFailed
from jaxbench.modes import kernels
from jaxbench.modes.kernels import HERE, KernelRow, find_kernels, read_rows
from jaxbench.parallel.child import ProcessResult

NAMES = ["copy", "sort"]
ABOUT = {"target": HERE, "device_kind": "cpu", "compiler": "jaxlib 1", "jax": "1"}


@pytest.fixture
def compiler(monkeypatch):
    """Returns a function that puts another in the place of the child process."""

    def install(run):
        class Child:
            def __init__(self, command, log, *, variables):
                names = [word.partition("=")[2] for word in command if "--operation=" in word]
                self._args = names[0].split(",") if names else [], variables

            def wait(self):
                names, variables = self._args
                with pytest.MonkeyPatch.context() as patch:
                    for name, value in variables.items():
                        patch.setenv(name, value)
                    return run(names) or ProcessResult("exited", None, 0, 1.0)

            def end(self):
                pass

        monkeypatch.setattr(kernels, "Child", Child)

    return install


def crash_at_sort(names):
    with open(os.environ[kernels.RESULT_VARIABLE], "a") as file:
        print(json.dumps(ABOUT | {"operations": names}), file=file)
        for name in names:
            if name == "sort":
                print('{"operation": "so', end="", file=file)
                return ProcessResult("exited", "killed by SIGABRT: Check failed: x", 134, 1.0)
            row = ABOUT | {"operation": name, "found": "library", "command": "x"}
            print(json.dumps(row), file=file)


def test_a_compiler_that_crashes_loses_one_operation(compiler):
    compiler(crash_at_sort)
    shown = []
    names = ["copy", "sort", "cumsum", "top_k"]
    rows = list(find_kernels(HERE, names, lambda *progress: shown.append(progress)))
    assert [row.operation for row in rows] == names
    assert [row.found for row in rows] == ["library", None, "library", "library"]
    assert "Check failed: x" in rows[1].refused and rows[1].verdict == "refused"
    assert rows[1].command == "jaxbench kernels --target=here --operation=sort"
    assert shown == [(1, 4, "sort"), (4, 4, "")]


def test_a_compiler_that_does_not_start_is_a_failure(compiler):
    compiler(lambda names: ProcessResult("exited", "no such module", 1, 1.0))
    with pytest.raises(RunFailed, match="here: no such module"):
        list(find_kernels(HERE, [], lambda *progress: None))
    compiler(lambda names: ProcessResult("exited", "--target=x: unknown", 2, 1.0))
    with pytest.raises(BadInput, match="unknown"):
        list(find_kernels(HERE, [], lambda *progress: None))


def test_rows_of_this_machine(compiler, run_cli, tmp_path):
    """They are found and timed, and written as they are."""
    compiler(lambda names: kernels.write_rows(HERE, names))
    names = "fused_attention,softmax,copy"
    flags = ("--target=here", "--out=k.csv")
    done = run_cli(*flags, f"--operation={names}", module="jaxbench.kernels")
    assert done.returncode == 0
    attention, softmax, copy = read_rows(tmp_path / "k.csv")
    assert (copy.found, copy.fraction_of, copy.chosen) == ("fused loop", "copy", "on the device")
    assert softmax.time_us > 0 and 0 < softmax.fraction < 3
    assert attention.verdict == "refused" and "compute capability 8.0" in attention.refused
    assert " of copy" in done.stdout and "3 rows: " in done.stdout
    assert copy.other_cpu_percent is not None
    again = run_cli(*flags, module="jaxbench.kernels")
    assert again.returncode == 2 and "must be a new .csv file" in again.stderr
    assert len(read_rows(tmp_path / "k.csv")) == 3


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("gpu:h100",), "'gpu:h100': give flags"),
        (("--operation=conv_depthwse",), "did you mean 'conv_depthwise'"),
        (("--target=gpu:h101",), "did you mean 'h100'"),
        (("--target=here", "--out=/no/such/folder/k.csv"), "must be a new .csv file"),
        (("--target=here", "--out=k.txt"), "must be a new .csv file"),
        (("--target=here,here",), "names here twice"),
        (("--target=cpu",), "must be here, or as --target=list shows"),
    ],
)
def test_bad_input_is_refused(refused, args, told):
    refused(*args, module="jaxbench.kernels", told=told)


def test_lists(run_cli):
    operations = run_cli("--operation=list", module="jaxbench.kernels").stdout.split()
    assert "conv_transposed_gradients" in operations and len(operations) > 30
    assert run_cli("--target=list", module="jaxbench.kernels").stdout.startswith("here\n")


def test_without_compilers_and_accelerators_there_is_nothing_to_ask(monkeypatch):
    def missing(target):
        raise BadInput(f"--target={target.name}: compiling needs libtpu")

    monkeypatch.setattr(kernels, "compiler_version", missing)
    monkeypatch.setattr(kernels, "find_accelerators", list)
    with pytest.raises(BadInput, match="compiling needs libtpu"):
        kernels.machines_to_ask()
    monkeypatch.setattr(kernels, "find_accelerators", lambda: ["a GPU"])
    machines, left_out = kernels.machines_to_ask()
    assert machines == [HERE] and len(left_out) == len(kernels.MACHINES)


def test_a_row_survives_its_file(tmp_path):
    row = KernelRow(
        operation="top_k", **ABOUT, found="dense detour", factor=8.04, command="jaxbench kernels"
    )
    path = tmp_path / "k.csv"
    path.write_text(kernels.as_csv([row]))
    assert read_rows(path) == [row] and row.verdict == "dense detour, 8 times"
    wide = dataclasses.replace(row, found="library", asked="bf16", operands="f32 x bf16")
    assert wide.verdict == "library in f32"
    assert json.loads(json.dumps(vars(row)))["operands"] is None


def test_a_compiler_that_hangs_loses_one_operation(compiler, monkeypatch):
    monkeypatch.setattr(kernels, "_LONGEST_S", -1.0)
    compiler(crash_at_sort)
    first, last = find_kernels(HERE, ["sort", "top_k"], lambda *progress: None)
    assert first.refused == "took longer than -1 s" and last.found == "library"


def test_a_device_that_failed_gets_a_new_process(compiler):
    """It ended well, with operations left: none of them is to blame."""

    def end_early(names):
        crash_at_sort([names[0]])
        path = os.environ[kernels.RESULT_VARIABLE]
        with open(path) as file:
            begun, *rows = file.read().splitlines()
        with open(path, "w") as file:
            print(json.dumps(json.loads(begun) | {"operations": names}), *rows, sep="\n", file=file)

    compiler(end_early)
    rows = list(find_kernels(HERE, ["copy", "top_k", "cumsum"], lambda *progress: None))
    assert [row.found for row in rows] == ["library"] * 3


def test_a_machine_that_is_refused_does_not_end_the_list(compiler, run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "machines_to_ask", lambda: ([HERE, "gpu:t4", "gpu:a100"], []))
    monkeypatch.setattr(kernels, "variables_for", lambda target: {})

    asked = []

    def refuse_second(names):
        asked.append(names)
        if len(asked) == 2:
            return ProcessResult("exited", "no such TPU", 2, 1.0)
        return crash_at_sort(names)

    compiler(refuse_second)
    args = ("--operation=copy", "--out=k.csv")
    done = run_cli(*args, module="jaxbench.kernels")
    assert done.returncode == 0 and "not compiled: gpu:t4: no such TPU" in done.stdout
    assert len(read_rows(tmp_path / "k.csv")) == 2


def test_one_row_is_printed_whole_and_a_busy_host_is_said(compiler, run_cli):
    def one_row(names):
        row = ABOUT | {"operation": "copy", "found": "fused loop", "command": "x"}
        row |= {"time_us": 12.5, "calls_without_triton": "1 x y", "other_cpu_percent": 60.0}
        with open(os.environ[kernels.RESULT_VARIABLE], "a") as file:
            print(json.dumps(ABOUT | {"operations": names}), json.dumps(row), sep="\n", file=file)

    compiler(one_row)
    done = run_cli("--target=here", "--operation=copy", module="jaxbench.kernels")
    assert "calls_without_triton: 1 x y\n" in done.stdout and "command: x" in done.stdout
    assert "warning: other processes took 60 % of the host's processor" in done.stderr


def test_a_compiler_that_ends_without_a_row_is_not_asked_for_ever(compiler):
    def only_begin(names):
        with open(os.environ[kernels.RESULT_VARIABLE], "a") as file:
            print(json.dumps(ABOUT | {"operations": names}), file=file)

    compiler(only_begin)
    rows = list(find_kernels(HERE, NAMES, lambda *progress: None))
    assert [(row.operation, row.refused) for row in rows] == [(n, "no answer") for n in NAMES]
