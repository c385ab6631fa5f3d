"""What a reader does with a report: sort, filter, switch lines off, ask points, unfold, print."""

import re
import shutil

import pytest

from tests.integration.browser import DESKTOP, PAPER, PHONE, unfold
from tests.integration.conftest import program, run_program
from tests.recorded import trained, write_telemetry
from tests.reports.many_runs import write_many
from tests.reports.pages import Page, page_of

_HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of 70 runs and one with a hostile name."""
    folder = tmp_path_factory.mktemp("many")
    write_many(folder, 70)
    trained(folder / "z", experiment=_HOSTILE, environment={"device_kind": _HOSTILE})
    path = folder / "report.html"
    path.write_text(page_of(folder))
    return path


@pytest.fixture
def opened(browse, report):
    """Opens the report, whose hostile name must not run."""

    def opened(**how):
        page = browse(report, **how)
        assert page.title() == "a report"
        return page

    return opened


def column(table, place):
    """The texts of a column, without the headings of groups."""
    rows = table.locator("tbody tr:not(.group):visible")
    return [texts[place] for texts in (row.locator("td").all_inner_texts() for row in rows.all())]


def test_a_click_on_a_heading_sorts(opened):
    page = opened()
    unfold(page)
    table = page.locator("#rates details.wide", has_text="All rates").locator("table")
    heads = table.locator("thead th").all_inner_texts()
    place = heads.index("images/s")
    given = column(table, place)
    head = table.locator("thead th").nth(place)
    # What is not known comes last, whichever way.
    known = sorted((text for text in given if text != "–"), key=lambda t: float(t.replace(",", "")))
    unknown = ["–"] * given.count("–")
    head.locator("[role=button]").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(table, place) == [*known, *unknown] != given
    # By the keyboard too; a third time brings back the order that was given.
    head.locator("[role=button]").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(table, place) == [*known[::-1], *unknown]
    head.locator("[role=button]").press(" ")
    assert head.get_attribute("aria-sort") is None and column(table, place) == given
    # Words: R2 before R10.
    table.locator("thead th [role=button]").first.click()
    runs = column(table, 0)
    assert runs == sorted(runs, key=lambda run: int(run[1:])) and len(runs) > 50


def test_rows_are_sorted_within_their_group(opened):
    page = opened()
    table = page.locator("#overview .wide table").first
    before = table.locator("tr.group").all_inner_texts()
    first = table.locator("tr.group").first.locator("~ tr").all_inner_texts()[:4]
    table.locator("thead th [role=button]").nth(1).click()
    assert table.locator("tr.group").all_inner_texts() == before
    after = table.locator("tr.group").first.locator("~ tr").all_inner_texts()[:4]
    assert after == first[::-1]


def test_a_filter_keeps_rows_with_all_its_words(opened):
    page = opened()
    table, box = (
        page.locator("#overview .wide table").first,
        page.locator("#overview .wide input").first,
    )
    box.fill("h200 CNN10")
    rows = table.locator("tbody tr:visible").all_inner_texts()
    assert len(rows) == 5 and all("H200" in row or "cnn10" in row for row in rows)
    told = page.locator("#overview .wide output").first
    assert told.inner_text().startswith("3 of ")
    box.fill("nothing like it")
    assert table.locator("tbody tr:visible").count() == 0 and told.inner_text().startswith("0 of")
    box.fill("")
    assert told.inner_text() == "" and table.locator("tr.group:visible").count() > 3


def test_a_legend_switches_lines(opened):
    page = opened()
    figure = page.locator("#learning figure").first
    lines, buttons = figure.locator(".series"), figure.locator(".legend button")
    buttons.nth(1).click()
    assert buttons.nth(1).get_attribute("aria-pressed") == "false"
    assert lines.nth(0).is_visible() and not lines.nth(1).is_visible()
    buttons.nth(1).click()
    assert lines.nth(1).is_visible()


def test_the_nearest_point_is_told(opened):
    page = opened()
    chart = page.locator("#learning .chart").first
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    box = chart.locator(".series .m").nth(2).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 1)
    tip = page.locator("#tip")
    told = tip.inner_text().splitlines()
    assert told[0].startswith("top-1 [%]: ") and told[1] == "epoch: 3" and told[2].startswith("R1")
    place = tip.bounding_box()
    assert place["x"] >= 0 and place["x"] + place["width"] <= DESKTOP["width"]
    page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_a_link_unfolds_what_it_leads_to(opened):
    page = opened(hash="#R70")
    assert page.locator("#R70").is_visible()
    page = opened()
    assert not page.locator("#R33").is_visible()
    page.evaluate("location.hash = 'R33'")
    page.locator("#R33").wait_for()
    page.locator("nav a", has_text="Where the time went").click()
    page.locator("#time table").first.wait_for(state="attached")


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_makes_the_page_wider_than_the_window(opened, viewport):
    page = opened(viewport=viewport)
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) == viewport["width"]
    # Without a sea of details: the answers first.
    assert page.evaluate("document.documentElement.scrollHeight") < 12 * viewport["height"]
    unfold(page)
    page.locator("#overview .wide input").first.fill(
        "a rather long text to look for, of no use at all"
    )
    assert page.evaluate(width) == viewport["width"]


def test_without_scripts_all_is_there(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("#overview .wide table").first.is_visible()
    assert page.locator(".filter, #tip, button").count() == 0
    page.locator("#time summary").first.click()
    assert page.locator("#time table").first.locator("tbody tr").count() > 10


def test_paper_is_short_and_has_no_controls(opened):
    page = opened(viewport=PAPER)
    page.emulate_media(media="print")
    assert not page.locator(".filter:visible, .tools:visible, nav:visible").count()
    pdf = page.pdf(prefer_css_page_size=True)
    assert 3 < len(re.findall(rb"/Type\s*/Page\b", pdf)) < 10


def test_a_table_is_copied_as_csv(opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("#overview .wide[open] .tools button").first
    button.click()
    page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith('"machine"') and '"1 × NVIDIA H200"' in copied


def test_a_tooltip_stays_when_the_finger_is_lifted(opened):
    page = opened(viewport=PHONE, has_touch=True)
    mark = page.locator("#learning .chart .series .m").nth(2)
    mark.scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    box = mark.bounding_box()
    page.touchscreen.tap(box["x"] + 2, box["y"] + 2)
    assert page.locator("#tip").is_visible()
    page.touchscreen.tap(5, 5)
    assert not page.locator("#tip").is_visible()


def test_500_runs_and_a_day_of_telemetry(tmp_path):
    """500 runs of 150 epochs, 3 of them with a day of telemetry of three devices."""
    folder = write_many(tmp_path / "many", 500, num_epochs=150)
    first, *others = sorted(folder.glob("cnn10/*"))[:3]
    write_telemetry(first, 86_400)
    for other in others:
        shutil.copy(first / "telemetry.csv", other)
    # Seconds on an idle machine; the bound is for a busy one.
    done = run_program(program(folder, command="report"), cwd=tmp_path, timeout_s=60)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text()
    assert len(text.encode()) < 3e6
    Page(text)
    for number in (0, 250, 499):
        assert f"/<wbr>run{number:03d}<" in text or f"/run{number:03d}<" in text
    assert "500 runs" in text and "n = 86,400 samples" in text
