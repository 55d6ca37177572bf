"""A headless browser for tests, driven over a pipe by the DevTools protocol.

Only what the tests of pages need: load a file at some width, collect what it logs and requests,
run an expression in it, take a picture.
"""

import base64
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from scripts import browser

__all__ = ["Browser"]

_OPTIONS = (
    "--headless",
    "--no-sandbox",  # it may run as root, and loads nothing but our own page
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


class Browser:
    """A running browser with one tab; `requests` and `messages` grow with each page."""

    def __init__(self, path: Path, limit: float = 60.0) -> None:
        self.requests: list[str] = []
        self.messages: list[str] = []
        self._deadline = time.monotonic() + limit
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        os.set_blocking(self._from, False)
        # The protocol is spoken on descriptors 3 and 4 of the browser.
        script = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        command = [str(path), *_OPTIONS, f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, str(theirs), str(ours), *command],
            pass_fds=(theirs, ours),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=browser.environment(),
        )
        os.close(theirs)
        os.close(ours)
        self._buffer = b""
        self._number = 0
        self._tab: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._tab = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Load a file at this width in pixels, and wait until it is there."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._loaded = False
        answer = self._call("Page.navigate", url=page.resolve().as_uri())
        assert "errorText" not in answer, answer
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page as PNG."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._tab is not None:
            message["sessionId"] = self._tab
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert time.monotonic() < self._deadline, "the browser does not answer"
            assert self._process.poll() is None, "the browser has ended"
            try:
                self._buffer += os.read(self._from, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        data, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(parameters))
