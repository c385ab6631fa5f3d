"""Cards in the report, the table of all of them, and those in results/."""

import csv

from msgspec.structs import replace

from jaxbench.cards.card import Part, measured
from jaxbench.cards.card_file import CARD
from jaxbench.hardware.checks import Check
from jaxbench.hardware.targets.target import parse_target
from jaxbench.paths import hide_paths
from jaxbench.qualification.forecast import read_forecast
from jaxbench.reports.collect import collect
from jaxbench.reports.sides import read_sides
from jaxbench.reports.write import render_markdown
from tests.cards import made
from tests.conftest import ROOT, refusal
from tests.recorded import throughput, trained
from tests.reports import pages
from tests.reports.pages import shown, tables

RESULTS = ROOT / "results"


def section_of(*paths, name="card-details"):
    return pages.sections_of(*paths)[name]


def test_a_card_is_a_source_by_its_path_or_its_folder(tmp_path):
    path = made.write(tmp_path / "card")
    trained(tmp_path / "card" / made.RUN)
    alone = collect([str(path)])
    assert [card.name for card in alone.cards] == [str(path)] and not alone.runs
    below = collect([str(tmp_path)])
    # Beside it are the runs that it is from.
    assert [card.name for card in below.cards] == ["card"] and len(below.runs) == 1
    assert len(collect([str(path), str(tmp_path)]).cards) == 1


def test_the_section_has_the_verdict_by_rule(tmp_path, snapshot):
    made.write(tmp_path / "card", made.judged(made.ceilings([700, 700, 200, 700])))
    assert shown(section_of(tmp_path, name="cards"), "Cards") == snapshot
    assert shown(section_of(tmp_path), "Verdict by rule") == snapshot


def test_notes_of_other_parts_are_no_lines_of_the_doctor(tmp_path, snapshot):
    note = Check(name="memory", status="ok", detail="arrays of 128 MiB each")
    card = made.judged(replace(made.ceilings(), checks=(note,)))
    assert shown(section_of(made.write(tmp_path, card)), "Doctor", "Notes") == snapshot


def test_a_rate_stands_beside_the_peak_that_a_card_of_its_machine_measured(tmp_path):
    peak = measured("matmul_tf32_tflops", 400.0, device=0)
    part = Part(name="ceilings", status="measured", time_s=1.0, figures=(peak,))
    made.write(tmp_path / "card", made.judged(part, kind="NVIDIA H200"))
    made.write(tmp_path / "links", made.judged(made.skipped("ceilings"), kind="NVIDIA H200"))
    here = {"hostname": "lab", "device_kind": "NVIDIA H200", "num_devices": 1}
    throughput(tmp_path / "a", 900.0, environment=here)  # at 200 TFLOP/s
    throughput(tmp_path / "b", 900.0, environment=here | {"hostname": "elsewhere"})
    older_driver = here | {"device_kind": "H200"}
    throughput(tmp_path / "c", 900.0, environment=older_driver, config={"batch_size": 64})
    tf32 = {"kind": "NVIDIA H200", "arithmetic": "tf32", "source": "made"}
    used = {"flops_per_s_per_device": 1e14, "peak": tf32}
    trained(tmp_path / "d", environment=here, summary=used)
    sections = pages.sections_of(tmp_path)
    table = tables(sections["rates"])["All rates"]
    # A training has it, too.
    fractions = pages.column_of(table, "of the measured peak [%]")
    assert sorted(fractions) == ["25.00", "50.00", "50.00", "–"]


def test_the_pairs_are_a_square_table(tmp_path):
    slow = measured("pair_gb_per_s", 5.0, source=2, peer=10)
    part = made.collectives()
    part = replace(part, figures=(*part.figures, slow))
    section = section_of(made.write(tmp_path, made.judged(part)))
    [table] = [table for title, table in tables(section).items() if "copies between" in title]
    # 10 comes after 3; both ways have the same rate.
    assert table.columns == ["from / to", "0", "1", "2", "3", "10"]
    assert pages.texts(table.rows[-1]) == ["10", "–", "–", "5.000", "–", "–"]
    assert pages.texts(table.rows[2])[1:] == ["102.0", "103.0", "–", "105.0", "5.000"]


def test_what_is_wrong_with_a_card_is_said(tmp_path):
    def lines(path):
        return [one for one in section_of(path, name="cards").blocks if isinstance(one, str)]

    path = made.write(tmp_path, made.judged(made.networks(mfu=1.9)))
    assert any("cannot be" in line for line in lines(path))
    assert not lines(made.write(tmp_path / "b"))


def test_a_card_that_cannot_be_read_is_a_note_or_an_error(tmp_path):
    made.write(tmp_path / "a")
    path = made.write(tmp_path / "b")
    made.alter(path, lambda c: c.update(preset="x"), digest=False)
    found = collect([str(tmp_path)])
    assert [card.name for card in found.cards] == ["a"]
    assert len(found.card_notes) == 1 and "b is left out" in found.card_notes[0]
    refusal(collect, [str(path)], told="altered or damaged")


def test_the_report_of_a_card(run_cli, refused, tmp_path):
    path = made.write(tmp_path / "card")
    done = run_cli(str(path), "--out=a.html", module="jaxbench.report")
    assert done.returncode == 0 and done.stdout.startswith("0 run(s), 1 card(s): ")
    assert 'id="cards"' in (tmp_path / "a.html").read_text()
    refused(path, "--format=csv", told="in its card.json", module="jaxbench.report")


def test_cards_are_no_runs_to_compare(tmp_path):
    path = made.write(tmp_path / "card")
    refusal(read_sides, str(path.parent.parent), told="holds only cards")


def test_what_lies_in_results_can_be_published():
    """Each card is whole, and the table is that of the command."""
    cards = [*RESULTS.glob(f"*/{CARD}")]
    files = {path for path in RESULTS.rglob("*") if path.is_file() and path.suffix != ".csv"}
    table = [RESULTS / "cards.md"] if cards else []
    belong = {RESULTS / "README.md", *cards, *table}
    assert files == belong, "something does not belong here"
    for path in RESULTS.glob("targets/*.csv"):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert rows and {row["fits"] for row in rows} == {"yes", "no"}
        assert all(parse_target(row["target"]) and row["date"] and row["compiler"] for row in rows)
    for path in RESULTS.glob("forecasts/*.csv"):
        about, _ = read_forecast(str(path))
        assert about["commit"].isalnum(), f"{path}: commit all changes, then make the forecast"
    if not cards:
        return
    found = collect([str(RESULTS)])
    assert found.notes + found.card_notes == []
    assert {card.name: card.problems for card in found.cards if card.problems} == {}
    texts = {path: path.read_text() for path in cards}
    assert [path for path, text in texts.items() if hide_paths(text) != text] == []
    text = render_markdown([section_of(RESULTS, name="cards")], "jaxbench: cards")
    assert table[0].read_text() == text, "jaxbench qualify table results --out=results/cards.md"
