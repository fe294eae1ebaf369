"""A headless Chromium with the network off; the tests skip where the machine has none."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from circuit.draw import View, to_page

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Open = Callable[..., "playwright.Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator["playwright.Browser"]:
    """Start one browser for all tests of a process."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: expected one of {', '.join(BROWSERS)} on PATH")
    with playwright.sync_playwright() as running:
        # a container's shared memory is too small for a page's, and its root may not be sandboxed
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: "playwright.Browser", tmp_path: Path) -> Iterator[Open]:
    """Return what opens a page over views from file://; anything on its console or over the network is a failure."""
    heard: list[str] = []
    contexts = []

    def opened(
        views: Sequence[View], *, theme: str = "light", width: int = 1280, height: int = 800
    ) -> "playwright.Page":
        file = tmp_path / "drawing.html"
        file.write_text(to_page(views), encoding="utf-8")
        context = browser.new_context(
            offline=True,
            color_scheme=theme,
            viewport={"width": width, "height": height},  # type: ignore[arg-type]
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: heard.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-drawn]", timeout=60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    # the page itself, and what it makes out of its own text, are no requests over the network
    assert not [line for line in heard if not line.startswith(("data:", "blob:", tmp_path.as_uri()))]
