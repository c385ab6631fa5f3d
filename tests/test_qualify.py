"""The command qualify: its words, and its answers to mistakes."""

import pytest

from jaxbench.parallel.child import STARTERS
from tests.cards import made


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chek", "card.json"], "did you mean 'check'?"),
        (["check"], "give one CARD: jaxbench qualify check CARD"),
        (["table", "a", "b"], "give one FOLDER"),
        (["check", "a", "--minutes=3"], "--minutes: is not for check"),
        (["submit", "a"], "--out: name the folder to publish"),
        (["submit", "nowhere", "--out=b"], "nowhere: is refused by `jaxbench qualify check`"),
        (["--fleet=nowhere"], "--fleet=nowhere: there is no card in it"),
        (["table", "a", "--out=cards.pdf"], "--out=cards.pdf: ends in none of .html, .md"),
        (["table", "nowhere"], "nowhere"),
        (["check", "nowhere"], "nowhere: there is no card"),
        (["--minutes=0.2"], "--minutes=0.2: must be 1 at least"),
        (["--soak_minutes=11"], "--soak_minutes=11: must lie within 0 and --minutes"),
        (["--minuets=3"], "did you mean --minutes?"),
    ],
)
def test_a_mistake_is_refused(refused, arguments, told):
    refused(*arguments, told=told, module="jaxbench.qualify")


@pytest.mark.parametrize(
    "parts, outcome, code",
    [
        ((), "pass", 0),
        ([made.soak(errors=1)], "fail", 1),
        ([made.doctor(disk="warning")], "warn", 0),
        ([made.skipped("soak")], "incomplete", 0),
        ([made.soak(drift=(-18.0, -50.4, 117.0))], "inconclusive", 0),
    ],
)
def test_check_says_the_verdict_of_an_intact_card(run_cli, tmp_path, parts, outcome, code):
    made.write(tmp_path, made.judged(*parts))
    done = run_cli("check", str(tmp_path), module="jaxbench.qualify")
    assert (done.returncode, done.stderr) == (code, "")
    text = " ".join(done.stdout.split())
    assert f"intact, and its figures are plausible its verdict: {outcome}" in text
    assert ("soak: errors: 1" in text) == (outcome == "fail")


def test_check_says_what_is_wrong(run_cli, tmp_path):
    path = made.write(tmp_path)
    made.alter(path, lambda content: content["parts"][1].update(time_s=1e6), digest=False)
    done = run_cli("check", str(path), module="jaxbench.qualify")
    assert (done.returncode, done.stderr) == (1, "") and "its digest is not" in done.stdout


@pytest.mark.parametrize("form", ["md", "html"])
def test_table_lists_the_cards_below_a_folder(run_cli, tmp_path, form):
    for host in ("one", "two"):
        (tmp_path / host).mkdir()
        made.write(tmp_path / host, made.judged(host=host))
    done = run_cli("table", str(tmp_path), f"--out=cards.{form}", module="jaxbench.qualify")
    assert (done.returncode, done.stdout) == (0, f"2 card(s): cards.{form}\n")
    text = (tmp_path / f"cards.{form}").read_text()
    assert "one" in text and "two" in text


@pytest.mark.parametrize("starter", [*STARTERS, "a TPU slice"])
def test_one_of_several_processes_is_told_how_to_qualify_each_host(refused, starter):
    """What it is told to do leads to the next mistake."""
    if starter == "a TPU slice":
        environment, told = {"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": ""}, "a TPU slice"
        alone = environment | {"TPU_PROCESS_BOUNDS": "1,1,1"}
    else:
        count, index = STARTERS[starter]
        environment, told = {count: "4", index: "1"}, f"process: env -u {index} jaxbench qualify"
        alone = {count: "4"}
    arguments, how = ["--minutes=0.2"], {"module": "jaxbench.qualify"}
    line = refused(*arguments, told=told, env=environment, **how).stderr
    assert "qualify each host by itself" in line and "--distributed" not in line
    refused(*arguments, told="--minutes=0.2: must be 1 at least", env=alone, **how)
