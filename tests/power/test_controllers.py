"""Management controllers as servers have them: what one lacks or answers oddly does not hide what it has."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.consolidate.measure.control import redfish as control
from partywall.errors import TrialError, UsageError
from partywall.host import Host
from partywall.power import bmc, meters
from partywall.power.address import PASSWORD
from partywall.power.meters import ipmi, redfish
from partywall.power.meters.base import MeterError
from tests.bmc import DCMI, Service, ipmitool, self_signed

CHASSIS = "/redfish/v1/Chassis/1"
POWER = {"PowerControl": [{"Name": "System", "PowerConsumedWatts": 150}]}
FUJITSU = {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": 150, "Designation": "Total Power"}}
SUPPLIES = f"{CHASSIS}/PowerSubsystem/PowerSupplies"


@pytest.fixture(autouse=True)
def _password(monkeypatch):
    monkeypatch.setenv(PASSWORD, "secret")


def meter_of(service, path="/Chassis/1", options="tls=off"):
    return meters.make(f"redfish://admin@{service.place}{path}?{options}", Host.here())


def read(answers, path="/Chassis/1", **form):
    with Service(answers, **form) as service:
        return meter_of(service, path).read().watts


@pytest.mark.parametrize("status", [400, 403, 404, 405, 406, 410, 500, 501, 503])
def test_a_status_of_what_a_controller_lacks_does_not_hide_what_it_has(status):
    lacking = (status, {"error": {"code": "Base.1.0.GeneralError"}})
    answers = {f"{CHASSIS}/EnvironmentMetrics": lacking, f"{CHASSIS}/Power": (200, POWER)}
    assert read(answers) == 150


def dropped():
    raise ConnectionResetError


def silent():
    time.sleep(0.3)
    raise ConnectionResetError


@pytest.mark.parametrize("lacks", ["EnvironmentMetrics", "Power"])
@pytest.mark.parametrize("answer", [(200, dropped), (200, silent), (302, "http://192.0.2.1/elsewhere")])
def test_a_connection_that_is_dropped_or_sent_elsewhere_for_one_form_does_not_hide_another(lacks, answer, monkeypatch):
    monkeypatch.setattr(redfish, "TIMEOUT_S", 0.2)
    has = {"EnvironmentMetrics": {"PowerWatts": {"Reading": 150}}, "Power": POWER}
    answers = {f"{CHASSIS}/{name}": (200, content) for name, content in has.items()}
    assert read(answers | {f"{CHASSIS}/{lacks}": answer}) == 150


def test_a_controller_that_drops_every_connection_is_gone_after_two():
    answers = dict.fromkeys((f"{CHASSIS}/EnvironmentMetrics", f"{CHASSIS}/Power"), (200, dropped))
    with Service(answers) as service:
        with pytest.raises(MeterError, match="EnvironmentMetrics: ") as failed:
            meter_of(service).read()
        assert (failed.value.kind, len(service.seen)) == ("gone", 2)


@pytest.mark.parametrize(
    "content", [b"<html>no</html>", b"", b"[1]", b"[" * 200_000, {"PowerWatts": {"Reading": None}}]
)
def test_an_answer_without_a_figure_does_not_hide_the_next(content):
    assert read({f"{CHASSIS}/EnvironmentMetrics": (200, content), f"{CHASSIS}/Power": (200, POWER)}) == 150


@pytest.mark.parametrize("form", [{"zipped": True}, {"slash": True}, {"zipped": True, "slash": True}])
def test_compressed_answers_and_redirects_to_a_trailing_slash_are_followed(form):
    assert read({f"{CHASSIS}/Power": (200, POWER)}, **form) == 150


@pytest.mark.parametrize(
    ("entries", "watts"),
    [
        (
            [{"Name": "CPU Sub-system", "PowerLimit": {}}, {"Name": "Server Power Control", "PowerConsumedWatts": 150}],
            150,
        ),
        ([{"PowerConsumedWatts": 60, "PhysicalContext": "CPU"}, {"PowerConsumedWatts": 150}], 150),
        ([{"PowerConsumedWatts": 150}, {"PowerConsumedWatts": 60}, {"PowerConsumedWatts": 20}], 150),
        ([{"PowerConsumedWatts": None}, None, 7, {"PowerConsumedWatts": "n/a"}, {"PowerConsumedWatts": "150"}], 150),
        ([{"PowerConsumedWatts": -1}, {"PowerConsumedWatts": True}, {"PowerConsumedWatts": 150.5}], 150.5),
        ([{"PowerConsumedWatts": 900, "Status": {"State": "Absent"}}, {"PowerConsumedWatts": 150}], 150),
    ],
)
def test_every_entry_of_power_control_is_read_and_the_whole_server_counts(entries, watts):
    assert redfish.watts_of({"PowerControl": entries}, "Power") == watts


@pytest.mark.parametrize(
    "resource",
    [
        {"PowerControl": [{"PowerConsumedWatts": None}], "Oem": {"ts_fujitsu": FUJITSU}},
        {"PowerConsumedWatts": 150, "PowerCapacityWatts": 1600},
        {"PowerControl": [], "PowerConsumedWatts": 150},
        {"Reading": 150, "ReadingUnits": "W", "ReadingType": "Power"},
    ],
)  # fmt: skip
def test_figures_outside_of_power_control_are_read(resource):
    assert redfish.watts_of(resource, "Power") == 150


def test_a_sensor_of_something_else_is_no_power():
    with pytest.raises(MeterError, match="no power reading"):
        redfish.watts_of({"Reading": 42, "ReadingUnits": "Cel"}, "Temp")


@pytest.mark.parametrize("key", ["DataSourceUri", "@odata.id"])
def test_a_reference_to_a_sensor_is_followed(key):
    sensor = f"{CHASSIS}/Sensors/total"
    answers = {
        f"{CHASSIS}/EnvironmentMetrics": (200, {"PowerWatts": {key: sensor}}),
        sensor: (200, {"Reading": 150, "ReadingUnits": "W"}),
    }
    assert read(answers) == 150
    assert read(answers, path="/Chassis/1/Sensors/total") == 150


def supplies(*figures, page=2):
    """A chassis of power supplies, whose collection comes in pages. None: a supply that is absent."""
    answers = {}
    for number, figure in enumerate(figures):
        place = f"{SUPPLIES}/{number}"
        absent = {"Status": {"State": "Absent"}} if figure is None else {}
        answers[place] = (200, absent | {"Metrics": {"@odata.id": f"{place}/Own"}})
        answers[f"{place}/Own"] = (200, {"InputPowerWatts": {"Reading": figure}})
    members = [{"@odata.id": f"{SUPPLIES}/{number}"} for number in range(len(figures))]
    for number in range(0, len(members), page):
        more = {"Members@odata.nextLink": f"{SUPPLIES}/from{number + page}"} if number + page < len(members) else {}
        answers[f"{SUPPLIES}/from{number}" if number else SUPPLIES] = (
            200,
            {"Members": members[number : number + page]} | more,
        )
    return answers


def test_the_power_of_all_supplies_is_added_and_an_absent_one_has_none():
    assert read(supplies(100, None, 50.5, 7)) == 157.5


def test_a_supply_that_is_put_in_later_is_added_and_one_that_is_taken_out_has_none(monkeypatch):
    """The sum was that of the supplies of the first reading for ever."""
    with Service(supplies(100, None)) as service:
        meter = meter_of(service)
        assert meter.read().watts == 100
        service.answers = supplies(60, 50)
        assert meter.read().watts == 60, "supplies are not looked up at every reading"
        monkeypatch.setattr(redfish, "now_ns", lambda: meter._until_ns)
        assert meter.read().watts == 110
        service.answers = supplies(None, 120)
        monkeypatch.setattr(redfish, "now_ns", lambda: 0)
        with pytest.raises(MeterError):
            meter.read()
        assert meter.read().watts == 120


def test_a_supply_without_a_figure_is_no_zero():
    with Service(supplies(100, "n/a")) as service, pytest.raises(MeterError, match="'n/a', which is not a number"):
        meter_of(service).read()


def test_a_controller_without_power_names_what_it_was_asked_for_and_its_chassis():
    answers = {"/redfish/v1/Chassis": (200, {"Members": [{"@odata.id": "/redfish/v1/Chassis/System.Embedded.1"}]})}
    with Service(answers) as service, pytest.raises(MeterError) as failed:
        meter_of(service).read()
    for said in (
        "reports no power",
        "there is Chassis/System.Embedded.1",
        "EnvironmentMetrics: HTTP 404",
        "/Power: HTTP",
    ):
        assert said in str(failed.value)


def test_a_wrong_password_is_tried_once():
    with Service({f"{CHASSIS}/EnvironmentMetrics": (401, {})}) as service:
        with pytest.raises(MeterError, match="user or password is wrong"):
            meter_of(service).read()
        assert len(service.seen) == 1


def test_credentials_are_not_sent_to_another_service():
    with Service() as other, Service({f"{CHASSIS}/EnvironmentMetrics": (302, f"http://{other.place}/x")}) as service:
        with pytest.raises(MeterError, match=f"redirects to http://{other.place}"):
            meter_of(service).read()
        assert other.seen == []
        assert service.authorizations[0].startswith("Basic ")


def test_an_answer_that_unpacks_to_too_much_is_refused():
    with Service({"/x": (200, b" " * (bmc.MOST_BYTES + 1))}, zipped=True) as service:
        client = bmc.Redfish(f"http://{service.place}", timeout_s=5)
        with pytest.raises(bmc.ControllerError, match="longer than 1 MiB"):
            client.get("/x")


def test_the_message_of_a_refused_request_is_shown():
    error = {"error": {"code": "x", "@Message.ExtendedInfo": [{"Message": "The system is\n already on."}]}}
    with Service({"/x": (409, error)}, zipped=True) as service:
        with pytest.raises(bmc.ControllerError, match="HTTP 409: The system is already on") as refused:
            bmc.Redfish(f"http://{service.place}", timeout_s=5).post("/x", {})
        assert refused.value.status == 409


@pytest.mark.parametrize("bits", [2048, 1024])
def test_a_certificate_of_its_own_is_refused_with_the_remedy_and_accepted_as_the_user_says(tmp_path, bits):
    """The meter and the power control accept the same options. A key of 1024 bits is what old controllers have."""
    own = self_signed(tmp_path, bits)
    answers = {f"{CHASSIS}/Power": (200, POWER), "/redfish/v1/Systems/1": (200, {"PowerState": "On"})}
    with Service(answers, certificate=own) as service:
        url = f"https://{service.place}"
        with pytest.raises(MeterError, match="certificate"):
            meter_of(service, options="").read()
        with pytest.raises(TrialError, match="certificate"):
            control.Redfish(url, "1").is_on()
        assert meter_of(service, options="tls=insecure").read().watts == 150
        assert control.Redfish(url, "1", tls="insecure").is_on()
        if bits >= 2048:
            assert meter_of(service, options=f"certificate={own}").read().watts == 150
            assert control.Redfish(url, "1", certificate=str(own)).is_on()


def test_a_certificate_of_another_controller_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    own, other = self_signed(tmp_path), self_signed(tmp_path / "other")
    with Service({f"{CHASSIS}/Power": (200, POWER)}, certificate=own) as service:
        with pytest.raises(MeterError, match="cannot be checked"):
            meter_of(service, options=f"certificate={other}").read()
        for wrong, said in (
            (tmp_path / "none", "cannot be read"),
            (own.with_suffix(".key"), "is not a PEM certificate"),
        ):
            with pytest.raises(UsageError, match=said):
                meter_of(service, options=f"certificate={wrong}")


def test_the_cipher_suite_that_a_controller_accepts_is_found_and_kept(tmp_path, monkeypatch):
    calls = ipmitool(tmp_path, monkeypatch, 17)
    meter = meters.make("ipmi://admin@bmc", Host.here())
    assert [meter.read().watts, meter.read().watts] == [150, 150]
    suites = [line.partition(" -C ")[2].split()[0] for line in calls.read_text().splitlines()]
    assert suites == ["3", "17", "17"]
    assert "secret: " in calls.read_text()


def test_a_cipher_suite_that_is_named_is_the_only_one(tmp_path, monkeypatch):
    calls = ipmitool(tmp_path, monkeypatch, 17)
    with pytest.raises(MeterError, match="no matching cipher suite; suites tried: 3; set `cipher`"):
        meters.make("ipmi://admin@bmc?cipher=3", Host.here()).read()
    assert meters.make("ipmi://admin@bmc?cipher=17", Host.here()).read().watts == 150
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "name", ["ipmi://admin@bmc?cipher=18", "ipmi://admin@bmc?cipher=x", "ipmi://admin@bmc?cipher="]
)
def test_a_cipher_suite_that_does_not_exist_is_refused(name):
    with pytest.raises(UsageError, match="0 to 17"):
        meters.check(name)


def test_a_wrong_password_is_not_tried_with_the_next_suite(tmp_path, monkeypatch):
    calls = ipmitool(tmp_path, monkeypatch, 3)
    tool = tmp_path / "ipmitool"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {calls}\necho "RAKP 2 HMAC is invalid" >&2\nexit 1\n')
    with pytest.raises(MeterError, match=r"RAKP 2 HMAC is invalid$"):
        meters.make("ipmi://admin@bmc", Host.here()).read()
    assert len(calls.read_text().splitlines()) == 1


def test_a_dcmi_reading_with_watts_counts_whatever_its_state():
    """OpenBMC measures, and reports the state `deactivated` all the same."""
    assert ipmi.dcmi_watts(DCMI.format(watts=360, state="deactivated")) == 360
    assert ipmi.dcmi_watts(DCMI.format(watts=0, state="activated")) == 0
    for watts, state in ((0, "deactivated"), (65535, "activated"), (65535, "deactivated")):
        with pytest.raises(MeterError, match="DCMI power reading"):
            ipmi.dcmi_watts(DCMI.format(watts=watts, state=state))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["n/a", "150", -1]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["PowerWatts", "InputPowerWatts", "Reading", "ReadingUnits", "PowerControl", "PowerConsumedWatts", "Status",
             "State", "Oem", "ts_fujitsu", "ChassisPowerConsumption", "CurrentPowerConsumptionW", "Members", "Metrics",
             "@odata.id", "DataSourceUri", "Members@odata.nextLink", "PowerState", "error", "@Message.ExtendedInfo"]
        ), inner, max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip


def outcome(read):
    """The kind of fault of a reading, or its watts: one of the two is empty."""
    try:
        return set(), [read()]
    except MeterError as error:
        return {error.kind}, []


@given(JSON.filter(lambda document: isinstance(document, dict)))
def test_no_document_ends_the_reader_of_a_meter(document):
    kinds, watts = outcome(lambda: redfish.watts_of(document, "x"))
    assert kinds <= {"garbage"}
    assert all(0 <= value <= 1e6 for value in watts)


class Scripted:
    """A service whose every resource is drawn: a document, a status, or something that is not JSON."""

    def __init__(self, data):
        self._data = data

    def get(self, path):
        drawn = self._data.draw(JSON | st.sampled_from([401, 404, 500]), label=path)
        if isinstance(drawn, dict):
            return json.loads(json.dumps(drawn))
        raise bmc.ControllerError("gone" if drawn == 401 else "garbage", f"{path}: {drawn}")


@given(st.data())
def test_no_service_ends_a_meter_or_keeps_it_for_ever(data):
    meter = meters.make("redfish://admin@bmc/Chassis/1", Host.here())
    meter._service = Scripted(data)
    kinds, watts = outcome(lambda: meter.read().watts)
    assert kinds <= {"garbage", "gone"}
    assert all(value >= 0 for value in watts)
