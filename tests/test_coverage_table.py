"""The table of coverage adds files up by package and finds what has become less."""

import json

import pytest

from tests.coverage_table import main


def report(folder, **run):
    """A file of `coverage json` in which so many of 10,000 lines and as many branches were run."""
    files = {
        f"{folder}{name.replace('__', '/')}.py": {
            "summary": {
                "num_statements": 10_000,
                "covered_lines": lines,
                "num_branches": 10_000,
                "covered_branches": branches,
            }
        }
        for name, (lines, branches) in run.items()
    }
    return json.dumps({"files": files})


@pytest.fixture
def compare(tmp_path, capsys):
    def run(*texts):
        paths = [tmp_path / f"{number}.json" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        code = main(list(map(str, paths)))
        return code, capsys.readouterr().out.splitlines()

    return run


def test_packages_are_added_up_wherever_the_checkout_lies(compare):
    run = {"step": (9000, 5000), "train": (8000, 7000), "data__feed": (10_000, 0)}
    _, here = compare(report("jaxbench/", **run))
    code, there = compare(report("/work/jaxbench/jaxbench/", **run))
    assert (code, here) == (0, there)
    assert [line.split() for line in here[1:]] == [
        ["jaxbench", "20000", "85.00", "60.00"],
        ["jaxbench.data", "10000", "100.00", "0.00"],
        ["total", "30000", "90.00", "40.00"],
    ]


@pytest.mark.parametrize(
    ("lines", "branches", "code"),
    [(5000, 5000, 0), (4996, 4996, 0), (4994, 9000, 1), (9000, 4994, 1)],
)
def test_a_package_that_loses_more_than_the_tolerance_is_told(compare, lines, branches, code):
    before = report("jaxbench/", step=(5000, 5000), data__feed=(5000, 5000))
    # What one package gains makes up for nothing that another loses.
    after = report("jaxbench/", step=(9000, 9000), data__feed=(lines, branches))
    found, printed = compare(before, after)
    assert found == code
    assert printed[1].split()[2:] == ["90.00", "(+40.00)", "90.00", "(+40.00)"]
    assert (printed[-1] == "lower by more than 0.05 points: jaxbench.data") == bool(code)


def test_packages_of_one_file_only_are_said_and_not_judged(compare):
    before = report("jaxbench/", step=(500, 500), old__a=(500, 500))
    code, lines = compare(before, report("jaxbench/", step=(500, 500), new__a=(500, 500)))
    assert code == 0
    assert "jaxbench.old                 only before" in lines
    assert [line.endswith("only after") for line in lines if ".new" in line] == [True]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"a": {"summary": {}}}}'])
def test_what_is_no_report_is_told(tmp_path, capsys, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    for paths in ([str(path)], [str(tmp_path / "none.json")]):
        with pytest.raises(SystemExit) as ended:
            main(paths)
        assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert main([]) == 2
