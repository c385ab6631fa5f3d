"""The list of mutations fits the code, and what pytest says of them is read right."""

import pytest

from tests.conftest import ROOT
from tests.mutations import MUTATIONS, asked_files, first_failure, mutated, summarize


def test_every_mutation_is_found_exactly_once_and_parses():
    for mutation in MUTATIONS:
        text = (ROOT / "jaxbench" / mutation.file).read_text()
        assert mutated(mutation, text) != text
        assert asked_files(mutation, ROOT)


def test_mutations_have_names_of_their_own():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 48
    assert len({mutation[2:5] for mutation in MUTATIONS}) == len(MUTATIONS)


def test_text_that_has_moved_is_told():
    mutation = MUTATIONS[0]
    for text, told in (("", "0 times"), (2 * mutation.old, "2 times")):
        with pytest.raises(ValueError, match=f"{mutation.name}: .*{told}"):
            mutated(mutation, text)
    with pytest.raises(ValueError, match="no longer parses"):
        mutated(mutation._replace(new="("), mutation.old)
    with pytest.raises(ValueError, match="asks test_nothing.py"):
        asked_files(mutation._replace(ask="nothing"), ROOT)


@pytest.mark.parametrize(
    ("output", "test"),
    [
        (
            "FAILED tests/test_a.py::test_b[x - y] - a[1] == 2\nFAILED c",
            "tests/test_a.py::test_b[x - y]",
        ),
        ("FAILED tests/test_a.py::test_b - assert [1] == [2]", "tests/test_a.py::test_b"),
        ("ERROR tests/test_a.py - SyntaxError: bad", "tests/test_a.py"),
        ("ERROR tests/test_a.py", "tests/test_a.py"),
        ("..\n2 passed, 1 skipped", None),
        ("a test printed FAILED", None),
    ],
)
def test_the_first_failure_is_read(output, test):
    assert first_failure(output) == test


def test_nine_of_ten_must_be_caught():
    records = [{"name": f"m{number}", "half": "fast"} for number in range(10)]
    assert summarize(records) == ("fast half: 10 of 10 caught", 0)
    records[0]["half"] = "integration"
    assert summarize(records)[1] == 0
    records[1]["half"] = None
    line = "fast half: 8 of 10 caught; integration half alone: m0; not caught: m1"
    assert summarize(records) == (line, 1)
