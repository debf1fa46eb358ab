"""Power controls that give answers that cannot be understood: an error, and never "off"."""

import http.server
import threading

import pytest

from partywall.consolidate.document import Control
from partywall.consolidate.measure.control import CONTROLS
from partywall.errors import TrialError
from tests.bmc import Service, ipmitool, self_signed


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


def test_a_command_that_speaks_no_utf_8_is_an_error_and_no_bug():
    on = ("sh", "-c", r"printf 'ger\344t aus\n' >&2; exit 1")
    control = Control(kind="command", on=on, off=("true",), state=("true",))
    with pytest.raises(TrialError, match="sh failed with exit code 1: ger\ufffdt aus"):
        CONTROLS["command"](control).switch_on()


def test_ipmitool_that_says_neither_on_nor_off_is_an_error(tmp_path, monkeypatch):
    tool = tmp_path / "ipmitool"
    tool.write_text('#!/bin/sh\necho "$SAID"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    control = ipmi(tmp_path)
    for said, is_on in (("Chassis Power is on", True), ("Chassis Power is off", False)):
        monkeypatch.setenv("SAID", said)
        assert control.is_on() is is_on
    monkeypatch.setenv("SAID", "Unspecified error")
    with pytest.raises(TrialError, match="neither on nor off"):
        control.is_on()


def test_a_control_finds_the_cipher_suite_and_reads_its_password_from_the_file(tmp_path, monkeypatch):
    calls = ipmitool(tmp_path, monkeypatch, 17, "Chassis Power is on\n")
    assert ipmi(tmp_path).is_on()
    assert calls.read_text().splitlines()[-1].startswith("hunter2: -I lanplus -C 17 -H ::1 -p 6230 -U u -E")
    with pytest.raises(TrialError, match="suites tried: 3"):
        ipmi(tmp_path, cipher=3).is_on()
    control = ipmi(tmp_path)
    (tmp_path / "password").unlink()
    with pytest.raises(TrialError, match="password cannot be read"):
        control.is_on()


@pytest.mark.parametrize("slash", [False, True])
def test_a_reset_goes_to_the_target_that_the_system_names_and_keeps_its_content(slash):
    target = "/redfish/v1/Systems/1/Actions/Own.Reset"
    system = {"PowerState": "Off", "Actions": {"#ComputerSystem.Reset": {"target": target}}}
    with Service({"/redfish/v1/Systems/1": (200, system), target: (204, b"")}, slash=slash) as own:
        CONTROLS["redfish"](Control(kind="redfish", address=f"http://{own.place}/", system="1")).switch_on()
        assert own.seen[-1] == ("POST", target + "/" * slash, b'{"ResetType": "On"}')


def test_a_control_of_a_cluster_file_accepts_the_certificate_that_the_file_names(tmp_path):
    own = self_signed(tmp_path)
    with Service({"/redfish/v1/Systems/1": (200, {"PowerState": "On"})}, certificate=own) as service:
        address = f"https://{service.place}"
        for options in ({"certificate": str(own)}, {"tls": "insecure"}):
            assert CONTROLS["redfish"](Control(kind="redfish", address=address, system="1", **options)).is_on()
        with pytest.raises(TrialError, match="set `certificate` to a file with it, or `tls` to insecure"):
            CONTROLS["redfish"](Control(kind="redfish", address=address, system="1")).is_on()


def ipmi(folder, **options):
    (folder / "password").write_text("hunter2\n")
    file = str(folder / "password")
    return CONTROLS["ipmi"](Control(kind="ipmi", address="[::1]:6230", user="u", password_file=file, **options))


def redfish(service):
    address = f"http://127.0.0.1:{service.server_port}"
    return CONTROLS["redfish"](Control(kind="redfish", address=address, system="1"))
