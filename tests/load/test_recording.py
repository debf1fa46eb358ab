"""`partywall load record`: a proxy and a browser, and what is said if they are not there."""

from __future__ import annotations

import http.server
import re
import shutil
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partywall.cli.app import app
from partywall.errors import CapabilityError, UsageError
from partywall.load import check
from partywall.load.recorder import recording
from partywall.load.recorder.recording import Recording
from partywall.testing import fake_host

NOTHING = fake_host(which=lambda _: None)


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["load", "record", *arguments], obj=lambda: NOTHING)


def test_a_missing_proxy_and_a_missing_browser_are_named_with_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setattr(recording.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(CapabilityError, match=r"mitmproxy is not installed.*pip install 'partywall\[record\]'"):
        recording.proxy_program(NOTHING)
    with pytest.raises(CapabilityError, match=r"no browser was found.*--browser none"):
        recording.browser_program(NOTHING, None)
    with pytest.raises(UsageError, match="--browser: there is no program 'netscape'"):
        recording.browser_program(NOTHING, "netscape")
    assert recording.browser_program(NOTHING, "none") is None


def test_a_wrong_url_and_an_existing_plan_are_refused_before_anything_starts(tmp_path):
    there = tmp_path / "plan.yaml"
    there.write_text("mine")
    assert "is not an http or https URL" in str(invoke("shop.test", "-o", str(tmp_path / "new.yaml")).exception)
    assert "exists already" in str(invoke("http://shop.test/", "-o", str(there)).exception)
    assert there.read_text() == "mine"


def test_the_proxy_keeps_its_authority_in_the_recordings_folder_and_verifies_servers(tmp_path):
    label = recording.Label("r", tmp_path / "state", tmp_path / "work")
    job = Recording("https://a/", authorities=tmp_path / "ca.pem")
    command = recording._proxy_command("mitmdump", job, label, tmp_path / "a.har", 8080)
    assert f"confdir={tmp_path / 'work' / 'authority'}" in command
    assert "listen_host=127.0.0.1" in command
    assert "ssl_insecure=false" in command
    assert f"ssl_verify_upstream_trusted_ca={tmp_path / 'ca.pem'}" in command


def test_the_browser_asks_services_on_this_host_through_the_proxy_too(tmp_path):
    command = recording._browser_command("chromium", Recording("http://a/", options=("--x",)), 8080, tmp_path)
    assert "--proxy-server=127.0.0.1:8080" in command
    assert "--proxy-bypass-list=<-loopback>" in command
    assert list(command[-2:]) == ["--x", "http://a/"]


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = b'{"next": "/items/4711aabb99"}' if self.path == "/" else b"{}"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


BROWSER = """#!/bin/sh
for word in "$@"; do case $word in --proxy-server=*) proxy=${word#*=};; http*) url=$word;; esac; done
curl -s -x "http://$proxy" "$url" && curl -s -x "http://$proxy" "${url}items/4711aabb99"
"""


@pytest.mark.host
@pytest.mark.skipif(not shutil.which("mitmdump"), reason="mitmproxy is not installed")
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_what_a_browser_requests_becomes_a_plan_and_nothing_is_left(tmp_path: Path):
    browser, out = tmp_path / "browser", tmp_path / "plan.yaml"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [f"http://127.0.0.1:{server.server_port}/", "-o", str(out), "--browser", str(browser)]
    try:
        done = CliRunner().invoke(app, ["load", "record", *words, "--work-dir", str(tmp_path)], catch_exceptions=False)
    finally:
        server.shutdown()
        server.server_close()
    assert done.exit_code == 0, done.output
    check.loads(out.read_bytes(), "plan.yaml", tmp_path)
    urls = re.findall(r"url: (\S+)", out.read_text())
    assert urls == ["/", "/items/${items}"]
    assert not list(tmp_path.glob("partywall-*"))
