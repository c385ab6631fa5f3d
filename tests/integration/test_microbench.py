"""The links of two processes, as the command qualify measures them."""

from jaxbench.cards.card_file import read_card
from jaxbench.cards.check import check_card
from tests.integration.test_processes import Processes

# The command in fewer seconds than it takes from users.
_SHORT = """
import runpy, sys
from jaxbench.qualification import plan
plan.FEWEST_MINUTES = 0.2
_, port, index = sys.argv
sys.argv = ["jaxbench.qualify", "--minutes=0.2", "--out=card", "--num_processes=2"]
sys.argv += [f"--coordinator_address=localhost:{port}", f"--process_id={index}"]
runpy.run_module("jaxbench.qualify", run_name="__main__")
"""


def test_two_processes_measure_collectives_and_pairs_together(tmp_path):
    """If they disagreed about sizes, windows or calls, they would wait for one another."""
    started = Processes(tmp_path, code=_SHORT)
    assert started.wait() == [0, 0], started.log(0) + started.log(1)
    folder = started.folders[0] / "card"
    assert check_card(folder) == [] and not any(started.folders[1].iterdir())
    card = read_card(folder)
    assert [part.name for part in card.parts if part.status == "measured"] == ["collectives"]
    part, ids = card.part("collectives"), [device["id"] for device in card.environment["devices"]]
    sizes = {figure.labels["bytes"] for figure in part.named("bus_gb_per_s")}
    assert sizes == {1024 * 4**power for power in range(6)}
    # Two devices are of the first process, two of the second.
    pairs = {(one.labels["source"], one.labels["peer"]) for one in part.named("pair_gb_per_s")}
    assert len(ids) == 4 and pairs == {(a, b) for a in ids for b in ids if a != b}


def test_processes_that_were_asked_for_different_minutes_do_not_begin(tmp_path):
    minutes = {0: ("--minutes=1",), 1: ("--minutes=2",)}
    started = Processes(tmp_path, of_one=minutes, command="qualify", devices=1)
    assert started.wait() == [2, 2]
    assert started.errors(1) == [
        "jaxbench: --minutes=2.0, process 0 has 1.0: must be the same in all processes"
    ]
    assert not any(started.folders[0].iterdir())
