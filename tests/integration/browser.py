"""The system's Chromium; without it, or without Playwright, tests that use it are skipped."""

import shutil

import pytest

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# A4 landscape within its margins, as page.css has it: 273 mm of 96 / 25.4 px.
PAPER = {"width": 1031, "height": 703}


@pytest.fixture(scope="module")
def chromium():
    """Chromium of the system: Playwright's own would have to be downloaded."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no Chromium is installed ({', '.join(names)})")
    with api.sync_playwright() as playwright:
        # Chromium's sandbox does not work for root.
        browser = playwright.chromium.launch(executable_path=found, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium):
    """Opens a file; at the end, nothing may have been said, asked for or gone wrong."""
    events, contexts = [], []

    def browse(path, hash="", **how):
        contexts.append(chromium.new_context(**{"viewport": DESKTOP} | how))
        page, url = contexts[-1].new_page(), path.as_uri()

        def note_request(request):
            if request.url != url and not request.url.startswith("data:"):
                events.append(f"request: {request.url}")

        page.on("console", lambda message: events.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: events.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (events.append("dialog"), dialog.dismiss()))
        page.on("request", note_request)
        page.goto(url + hash)
        return page

    yield browse
    for context in contexts:
        context.close()
    assert events == []


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
