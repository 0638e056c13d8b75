"""A headless Chromium, driven by the WebDriver protocol through Debian's chromedriver."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
SECONDS = 60


class Browser:
    """One session; coordinates are CSS pixels of the window."""

    def __init__(self, url: str, width: int, height: int) -> None:
        self.url = url
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            f"--window-size={width},{height}",
        ]
        options = {"binary": CHROMIUM, "args": flags}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.url = f"{url}/session/{made['sessionId']}"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read())["value"]

    def view(self, width: int, height: int, *, dark: bool = False, printed: bool = False) -> None:
        """The size of the page as on a phone, a screen or paper, and what the user prefers."""
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        media = "print" if printed else "screen"
        self._tell("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def _tell(self, command: str, **given: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": given})

    def open(self, path: Path) -> None:
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body in JavaScript returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        (element,) = found.values()
        self._call("POST", f"/element/{element}/click")

    def hover(self, x: float, y: float) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self._call("POST", "/actions", {"actions": [mouse | {"actions": [move]}]})

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The page as PNG: all of it, or what the window shows."""
        shot = self._tell("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(shot))

    def complaints(self) -> list[str]:
        """What the console has said since the last time."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def quit(self) -> None:
        self._call("DELETE", "")


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser in a process of its own, on a free port of this machine."""
    assert DRIVER is not None, MISSING
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            ports = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
            port = next(found.group(1) for found in ports if found)
            session = Browser(f"http://127.0.0.1:{port}", width, height)
            try:
                yield session
            finally:
                session.quit()
        finally:
            driver.terminate()
