"""Power controls that give answers that cannot be understood: an error, and never "off"."""

import http.server
import threading

import pytest

from partywall.consolidate.control import CONTROLS
from partywall.errors import TrialError
from partywall.model.cluster import Control


@pytest.fixture
def service():
    """A Redfish service that answers everything with `body`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(("state", "is_on"), [("On", True), ("PoweringOff", True), ("Off", False)])
def test_redfish_knows_whether_a_system_is_on(service, state, is_on):
    service.body = f'{{"PowerState": "{state}"}}'.encode()
    assert redfish(service).is_on() is is_on


@pytest.mark.parametrize(
    "body", [b"{}", b'{"PowerState": null}', b'{"PowerState": "Unknown"}', b"[1]", b"<html>", b"7"]
)
def test_an_answer_without_a_power_state_is_not_taken_for_off(service, body):
    service.body = body
    with pytest.raises(TrialError, match="Redfish at"):
        redfish(service).is_on()


def test_a_service_that_speaks_no_http_is_an_error():
    for address in ("http://127.0.0.1:x", "http://127.0.0.1:1"):
        with pytest.raises(TrialError, match="Redfish at"):
            CONTROLS["redfish"](Control(kind="redfish", address=address, system="1")).is_on()


def test_a_command_that_cannot_be_run_is_an_error(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(TrialError, match="cannot be started: Permission denied"):
        CONTROLS["command"](Control(kind="command", on=(str(plain),), off=("true",), state=("true",))).switch_on()


def test_ipmitool_that_says_neither_on_nor_off_is_an_error(tmp_path, monkeypatch):
    tool = tmp_path / "ipmitool"
    tool.write_text('#!/bin/sh\necho "$SAID"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    control = CONTROLS["ipmi"](Control(kind="ipmi", address="bmc", user="u", password_file="f"))  # noqa: S106 - a path
    for said, is_on in (("Chassis Power is on", True), ("Chassis Power is off", False)):
        monkeypatch.setenv("SAID", said)
        assert control.is_on() is is_on
    monkeypatch.setenv("SAID", "Unspecified error")
    with pytest.raises(TrialError, match="neither on nor off"):
        control.is_on()


def redfish(service):
    address = f"http://127.0.0.1:{service.server_port}"
    return CONTROLS["redfish"](Control(kind="redfish", address=address, system="1"))
