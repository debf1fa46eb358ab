"""What benchmarks of the web page share: a server on a temporary folder, requests to it, and a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import processes, until

PORT_S = 60.0
SCENARIO = """partywall: 1
name: tiny
budget: {budget}
precision: 0.05%
min_blocks: 8
victims: {{ring: {{probe: pipe}}}}
aggressors: {{copy: {{stressor: memory-copy, intensity: [0.5, 1]}}}}
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}


def runners(root: Path) -> list[int]:
    """The runners of a folder, by their numbers."""

    def is_one(process: Path) -> bool:
        words = (process / "cmdline").read_bytes().decode().split("\0")
        return "partywall.web.runner" in words and str(root.resolve()) in words

    return [int(process.name) for process in processes(is_one)]


class Site:
    """A server on a folder. Its port stays the same if it is started again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.cookie = ""
        self.link = ""

    def start(self) -> None:
        words = [sys.executable, "-m", "partywall", "serve", str(self.root), f"--port={self.port}"]
        self.process = subprocess.Popen(
            words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(r"http://127\.0\.0\.1:(\d+)(/login\S+)", line):
                self.port, self.link = int(match.group(1)), match.group(2)
                break
        else:
            raise RuntimeError("the server did not start")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        until(lambda: self.answers(), PORT_S, "the server does not answer")

    def answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/login")[0] in (200, 401)
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends server, runner and job."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait()
        for pid in runners(self.root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for file in (self.root / ".partywall").glob("jobs/*.json"):
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
                os.killpg(json.loads(file.read_text())["pid"], signal.SIGINT)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def login(self) -> None:
        _, headers, _ = self.get(self.link)
        self.cookie = headers["set-cookie"].partition(";")[0]

    def let_in(self, driver: Any) -> None:
        """Gives a browser the session."""
        driver.get(f"{self.origin}/login")
        name, _, value = self.cookie.partition("=")
        driver.add_cookie({"name": name, "value": value, "path": "/"})

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        return self.request("GET", path, **headers)

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """(status, headers, text) of an answer. headers: names with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given.setdefault("cookie", self.cookie)
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
        finally:
            connection.close()

    def api(self, method: str, path: str, content: Any = None, key: str = "") -> dict[str, Any]:
        """An answer of the interface for programs."""
        token = subprocess.run(
            [sys.executable, "-m", "partywall", "serve", str(self.root), "--token"],
            env=ENVIRONMENT, capture_output=True, text=True, check=True,
        ).stdout.strip() if not hasattr(self, "_token") else self._token  # fmt: skip
        self._token = token
        body = None if content is None else json.dumps(content).encode()
        headers = {"authorization": f"Bearer {token}", "content_type": "application/json", "idempotency_key": key}
        document: dict[str, Any] = json.loads(self.request(method, path, body, **headers)[2])
        return document

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs as their files say, so that it works without a server."""
        jobs = [json.loads(file.read_text()) for file in (self.root / ".partywall" / "jobs").glob("*.json")]
        return sorted(jobs, key=lambda job: job["created"])


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """A server on an empty folder. Nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as name:
        made = Site(Path(name) / "runs")
        made.root.mkdir()
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def browser(width: int = 1280, *, dark: bool = False) -> Iterator[Any]:
    """A headless Chromium."""
    os.environ |= {"SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    from selenium import webdriver  # noqa: PLC0415 - only where a browser is
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield opened
    finally:
        opened.quit()
