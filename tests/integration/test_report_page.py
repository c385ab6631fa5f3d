"""A report in a real browser: nothing missing, cut off or unreadable, and what a reader does there.

The browser is the system's Chromium; without it, or without Playwright, these tests are skipped.
"""

import functools
import itertools
import math
import os
import re
import shutil
import sys

import cv2
import pytest

from jaxbench.analysis.rate import Estimate
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.write import render_html
from jaxbench.tables.columns import Cell, metric_column
from jaxbench.tables.table import Table, make_table
from tests.conftest import ROOT
from tests.integration.browser import DESKTOP, PAPER, PHONE, unfold
from tests.integration.conftest import program, run_program
from tests.recorded import compiled, trained, write_telemetry
from tests.reports.many_runs import write_many
from tests.reports.pages import Page, page_of
from tests.reports.test_golden import write_golden_runs

# In the order of the page; another section of the report is added here.
SECTIONS = [
    *("overview", "cards", "card-details", "before-you-rent", "runs", "history", "rates"),
    *("learning", "time", "scaling", "telemetry", "conv2d", "cost", "target"),
]
# Those that are tables alone.
WITHOUT_CHARTS = {"overview", "cards", "card-details", "runs", "time", "conv2d", "cost"}
_HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reports of the golden runs, of machines alone that are not here, and of 70 runs.

    One more run has a hostile name.
    """
    folder = tmp_path_factory.mktemp("reports")
    lock = write_golden_runs(folder / "golden")
    write_many(folder / "many", 70)
    hostile = {"experiment": _HOSTILE, "environment": {"device_kind": _HOSTILE}}
    trained(folder / "many" / "z", **hostile)
    for target in ("gpu:rtx2080ti:2", "gpu:h100:8"):
        compiled(folder / "compiled" / target, target)
    for name in ("golden", "compiled", "many"):
        (folder / f"{name}.html").write_text(page_of(folder / name))
    os.close(lock)
    return folder


@pytest.fixture
def golden(browse, folder):
    """Opens the report of one run of every kind and state."""
    return functools.partial(browse, folder / "golden.html")


@pytest.fixture
def opened(browse, folder):
    """Opens the report of many runs, whose hostile name must not run."""

    def opened(**how):
        page = browse(folder / "many.html", **how)
        assert page.title() == "a report"
        return page

    return opened


@pytest.fixture
def page_with(chromium):
    """Shows some blocks as a page."""
    pages = []

    def show(*blocks, viewport=DESKTOP):
        pages.append(chromium.new_page(viewport=viewport))
        pages[-1].set_content(render_html([Section("s", "S", "", blocks)], "a title"))
        return pages[-1]

    yield show
    for page in pages:
        page.close()


def test_every_section_is_there_with_something_in_it(golden):
    page = golden()
    names = page.eval_on_selector_all("section", "all => all.map(one => one.id)")
    assert names == SECTIONS
    unfold(page)
    for name in SECTIONS:
        section = page.locator(f"section#{name}")
        assert section.locator("h2").is_visible()
        assert section.bounding_box()["height"] > 100
        tables = section.locator("table:visible")
        assert tables.count() and tables.first.locator("tbody tr").count()
        assert bool(section.locator("svg.chart").count()) == (name not in WITHOUT_CHARTS)
    # What leads somewhere leads to something.
    targets = page.eval_on_selector_all("a", "all => all.map(one => one.getAttribute('href'))")
    assert len(targets) > 50
    for target in set(targets):
        assert target.startswith("#") and page.locator(f"[id='{target[1:]}']").count() == 1
    # A chart's numbers are folded in and come out.
    page.evaluate("document.querySelectorAll('figure details').forEach(o => { o.open = false })")
    numbers = page.locator("figure details").first
    assert not numbers.locator("table").is_visible()
    numbers.locator("summary").click()
    assert numbers.locator("table").is_visible()
    # A mark besides the colour.
    running = page.locator("#runs tbody .mark-running").first
    assert "…" in running.evaluate("node => getComputedStyle(node, '::before').content")


_CHARTS = """() => [...document.querySelectorAll('svg.chart')].map(chart => {
  const box = chart.getBoundingClientRect(), texts = [...chart.querySelectorAll('text')];
  const rect = node => {
    const r = node.getBoundingClientRect();
    return [r.left, r.top, r.right, r.bottom];
  };
  return {
    title: chart.getAttribute('aria-label'),
    box: rect(chart),
    marks: chart.querySelectorAll('.m, .fill, circle').length,
    texts: texts.map(text => [text.firstChild.nodeValue, ...rect(text)]),
  }})"""


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, PAPER], ids=["desktop", "phone", "paper"])
def test_charts_show_something_and_all_of_their_text(golden, viewport):
    page = golden(viewport=viewport)
    if viewport is PAPER:
        page.emulate_media(media="print")
    unfold(page)
    charts = page.evaluate(_CHARTS)
    assert len(charts) > 10
    check_charts(charts, viewport)


def test_long_numbers_and_names_have_room(page_with):
    """What no tiny run comes to: hundreds of thousands of images, long names."""
    points = [Point(10.0**power, 999_999.0 - power) for power in range(7)]
    name = "R1 " + "a long name " * 9
    charts = [
        LineChart("line", "n", "global batch", "images/s", [Series(name, points)]),
        LineChart("log", "n", "batch", "images/s", [Series(name, points)], x_log=True),
        DotChart("dots", "n", "images/s", [Dot(name, 999_999.0)]),
    ]
    check_charts(page_with(*charts).evaluate(_CHARTS), DESKTOP)


def check_charts(charts, viewport):
    for chart in charts:
        left, top, right, bottom = chart["box"]
        title = chart["title"]
        assert right - left > 200 and bottom - top > 60, title
        assert left >= 0 and right <= viewport["width"], title
        assert chart["marks"] >= 1 and len(chart["texts"]) >= 4, title
        for words, *(x0, y0, x1, y1) in chart["texts"]:
            inside = x0 >= left - 1 and x1 <= right + 1 and y0 >= top - 1 and y1 <= bottom + 1
            assert inside, f"{title}: {words!r} runs out of the chart"
        for one, other in itertools.combinations(chart["texts"], 2):
            wide = min(one[3], other[3]) - max(one[1], other[1])
            high = min(one[4], other[4]) - max(one[2], other[2])
            # Boxes of lines of text are higher than their letters.
            assert wide <= 1 or high <= 3, f"{title}: {one[0]!r} lies on {other[0]!r}"


# What is wider than the page, but for what stands in a box that can be scrolled.
_WIDER = """() => [...document.querySelectorAll('body *')].filter(node => {
  const scrolled = node.closest('.scroll');
  const own = scrolled && getComputedStyle(scrolled).overflowX === 'auto' && scrolled !== node;
  return !own && node.getBoundingClientRect().right > innerWidth + 1
}).map(node => `${node.tagName}: ${node.textContent.slice(0, 60)}`)"""


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["golden", "many"])
def test_the_page_is_never_wider_than_the_window(browse, folder, name, viewport):
    page = browse(folder / f"{name}.html", viewport=viewport)
    if name == "many":
        # Without a sea of details: the answers first.
        assert page.evaluate("document.documentElement.scrollHeight") < 12 * viewport["height"]
        page.locator("#overview .wide input").first.fill("a rather long text to look for " * 2)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        assert page.evaluate(_WIDER) == []
        unfold(page)


# [words, colour of the text, colours behind it from the innermost], for every piece of text.
_COLOURS = """() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const words = walker.currentNode.nodeValue.trim(), node = walker.currentNode.parentElement;
    if (!words || node.tagName.toLowerCase() === 'title' || !node.checkVisibility()) continue;
    const svg = node.closest('svg'), behind = [];
    for (let at = node; at; at = at.parentElement)
      behind.push(getComputedStyle(at).backgroundColor);
    found.push([words.slice(0, 40), getComputedStyle(node)[svg ? 'fill' : 'color'], behind]);
  }
  return found
}"""


def parse_colour(text):
    """Red, green, blue and alpha of what getComputedStyle says, 0 to 1."""
    red, green, blue, alpha = (*map(float, re.findall(r"[\d.]+", text)), 1.0)[:4]
    return (red / 255, green / 255, blue / 255, alpha)


def contrast(colour, behind):
    """WCAG 2's contrast ratio of a colour with what lies behind it."""
    layers = []
    for layer in map(parse_colour, behind):
        layers.append(layer)
        if layer[3] == 1:
            break
    else:
        raise AssertionError(f"nothing opaque lies behind: {behind}")
    shown = layers.pop()[:3]
    for layer in [*reversed(layers), parse_colour(colour)]:
        under, shown = shown, blend(layer, shown)
    light, dark = sorted((luminance(shown), luminance(under)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def blend(over, under):
    return tuple(over[3] * o + (1 - over[3]) * u for o, u in zip(over, under, strict=False))


def luminance(colour):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("look", ["light", "dark", "print"])
def test_text_can_be_read(golden, look):
    page = golden(color_scheme="dark" if look == "print" else look)
    if look == "print":
        page.emulate_media(media="print")
    unfold(page)
    pieces = page.evaluate(_COLOURS)
    assert len(pieces) > 500
    pale = {
        (words, colour, round(contrast(colour, behind), 2))
        for words, colour, behind in pieces
        if contrast(colour, behind) < 4.5
    }
    assert not pale
    page_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(parse_colour(page_colour)[:3]) < 0.1) == (look == "dark")


@pytest.mark.parametrize("name", ["golden", "compiled"])
def test_nothing_is_cut_off_in_print(browse, folder, name):
    page = browse(folder / f"{name}.html", viewport=PAPER)
    page.emulate_media(media="print")
    cut = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(node =>
          getComputedStyle(node).overflow !== 'visible' && !node.closest('svg')
            && (node.scrollWidth > node.clientWidth + 1
              || node.scrollHeight > node.clientHeight + 1)
          || node.getBoundingClientRect().right > innerWidth + 1
        ).map(node => `${node.tagName}: ${node.textContent.slice(0, 60)}`)"""
    )
    assert cut == []


def test_times_sort_by_value_and_an_arrow_says_how(page_with):
    times_s = [3600.0, None, 45.2, math.inf, 700.0]
    rows = [{"time": Estimate(time_s, time_s, time_s)} for time_s in times_s]
    table = make_table([metric_column("duration_s", "time", ends="too")], rows, title="times")
    page = page_with(table)
    head = page.locator("th [role]")
    arrow = "node => getComputedStyle(node, '::after').content"
    for sign, up in (("↑", True), ("↓", False)):
        head.click()
        page.mouse.move(0, 0)
        assert sign in head.evaluate(arrow)
        shown = [text.split(" ")[0] for text in page.locator("tbody td").all_text_contents()]
        in_order = ["0:00:45", "0:11:40", "1:00:00", "∞"]
        # What is not known comes last, whichever way.
        assert shown == [*(in_order if up else in_order[::-1]), "–"]


def test_what_is_folded_stays_folded_on_paper_and_says_so(page_with):
    table = Table(("a",), [[Cell(f"row {number}")] for number in range(99)], title="long")
    page = page_with(table, viewport=PAPER)
    last = page.get_by_text("row 98", exact=True)
    seen = "node => node.checkVisibility() && node.getBoundingClientRect().height > 0"
    assert not last.evaluate(seen)
    page.emulate_media(media="print")
    assert not last.evaluate(seen)
    told = "node => getComputedStyle(node, '::after').content"
    assert "is folded here" in page.locator("summary", has_text="long").evaluate(told)
    assert page.get_by_text("printed without the tables of their numbers").is_visible()


def test_the_gallery_shows_machines_that_are_not_here(folder, tmp_path):
    script = ROOT / "benchmarks" / "gallery.py"

    def run(runs, out):
        return run_program([sys.executable, script, f"--runs={runs}", f"--out={out}"])

    failed = run(folder / "golden" / "conv2d", tmp_path / "none")
    assert failed.returncode == 2 and "no section" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()
    done = run(folder / "compiled", tmp_path)
    assert done.returncode == 0, done.stderr
    dark, light = (
        cv2.imread(str(tmp_path / f"before-you-rent-{scheme}.webp")) for scheme in ("dark", "light")
    )
    assert dark.mean() < 64 and light.mean() > 192
    assert all(p.shape[1] > 1200 and p.shape[0] > 400 and p.std() > 10 for p in (dark, light))


def column(table, place):
    """The texts of a column, without the headings of groups."""
    cells = f"tbody tr:not(.group):visible td:nth-child({place + 1})"
    return table.locator(cells).all_inner_texts()


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
