"""A headless Chromium, and the programs it looks at. Outside the default run: `make test-browser`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.backend.our_processes import command, running

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000
SLOW = "--mocker-ttft-ms 30 --mocker-itl-ms 25"
LISTENING = re.compile(rb"listening on (\S+)")

OpenPage = Callable[..., Page]
Serve = Callable[..., str]
ServeFaces = Callable[..., dict[str, str]]


def browser_path() -> str:
    """The browser of this machine; without one the tests fail, because nothing may pass unseen."""
    given = os.environ.get("ENGINEWIRE_BROWSER", "")
    found = next((path for name in (given, *BROWSERS) if name and (path := shutil.which(name))), None)
    assert found, "no Chromium: run .ci/install_browser, or name one in ENGINEWIRE_BROWSER"
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    # Chromium refuses to build its sandbox for root.
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def serve_faces(tmp_path: Path) -> Iterator[ServeFaces]:
    """`serve_faces("--engine mocker")` are the addresses of a backend and its engine: by `unix`, `http`, …"""
    with ExitStack() as processes:

        def start(launch: str, *options: str) -> dict[str, str]:
            argv = command(
                *("serve", "--launch", launch),
                *("--http-port", "0", "--uds", str(tmp_path / "backend.sock"), *options),
            )
            process = processes.enter_context(running(argv, stderr=subprocess.PIPE))
            assert process.stderr is not None
            addresses: dict[str, str] = {}
            for line in process.stderr:
                # What the engine's log says is of another kind.
                if not line.startswith(b"{") and (found := LISTENING.search(line)):
                    address = found[1].decode()
                    addresses[address.partition(":")[0]] = address
                if len(addresses) == 2 + ("--smg-port" in options):
                    return addresses
            raise AssertionError("the backend ended before it listened")

        yield start


@pytest.fixture
def serve(serve_faces: ServeFaces) -> Serve:
    """`serve("--mocker-itl-ms 20")` is the address of a backend and its mocker."""
    return lambda engine="": serve_faces(f"--engine mocker {engine}")["http"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(address)` is the page there; whatever its script or its policy complains about fails."""
    complaints: list[str] = []
    with ExitStack() as contexts:

        def start(address: str, state: str = "ready", **options: object) -> Page:
            context = browser.new_context(**options)
            contexts.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda line: complaints.append(line.text) if is_complaint(line) else None)
            page.goto(address)
            expect(page.locator("#state")).to_have_text(state)
            expect(page.locator("#go")).to_be_enabled(enabled=state == "ready")
            return page

        yield start
    assert not complaints


def is_complaint(line: ConsoleMessage) -> bool:
    """Chromium also reports every answer that is an error, which may be what a test is about."""
    return line.type in ("error", "warning") and not line.text.startswith("Failed to load resource")


def ask(page: Page, prompt: str, *, max_tokens: int = 200, stop: str = "", chat: bool = False) -> None:
    """Fill the form and send it; without the chat's template the mocker's answer is the prompt."""
    page.fill("#prompt", prompt)
    page.fill("#max-tokens", str(max_tokens))
    if stop:
        page.eval_on_selector("#more-options", "details => { details.open = true }")
        page.fill("#stop", stop)
    page.set_checked("#chat", chat)
    page.click("#go")
