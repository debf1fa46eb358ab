"""Meters: names, counters, answers of each protocol, and threads that stop nothing but themselves."""

import contextlib
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.errors import UsageError
from partywall.host import Host
from partywall.power import bmc, meters
from partywall.power.address import PASSWORD, PASSWORD_FILE, Address
from partywall.power.meters import ipmi, nut, redfish, wattsup
from partywall.power.meters.base import Counter, MeterError, Watts, password_of
from partywall.power.sampling import Sampler
from partywall.power.values import Activity, MeterFacts, MeterFault, Reading
from partywall.testing import power
from partywall.testing.power import SERVERS, Hwmon, Rapl, Resctrl

SECOND = 10**9
SENSOR = """Locating sensor record...
Sensor ID              : Total_Power (0x1)
 Entity ID             : 7.1
 Sensor Type (Threshold)  : Other
 Sensor Reading        : {}
 Status                : ok
"""


def test_a_name_with_a_password_is_refused_without_repeating_it():
    with pytest.raises(UsageError, match=PASSWORD) as refused:
        meters.make("redfish://admin:hunter2@bmc/Chassis/1", Host.here())
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rappl", "did you mean rapl"),
        ("rapl:core", "rapl:psys"),
        ("redfish://bmc/Chassis/1?tsl=off", "tls"),
        ("redfish://bmc:70000/x", "Port"),
        ("snmp://pdu", "an object"),
        ("nut://localhost", "nut://ups1@localhost"),
        ("wattsup:", "ttyUSB0"),
        ("replay:/nonexistent.csv", "cannot be read"),
        ("simulated:cervera-dl120-g6?lag=x", "lag=x"),
        ("simulated:cervera-dl120-g6?refresh=0", "greater than 0"),
        ("simulated:nobody", "no power profile"),
        ("simulated:?lag=nan", "lag=nan is not a number"),
        ("simulated:?lag=inf", "lag=inf is not a number"),
        ("simulated:?noise=-1", "noise=-1 is not a number"),
        ("simulated:?colour=1", "colour=1 is not known"),
        ("snmp://pdu/1.3.6.1?scale=0", "scale=0 is not a number"),
        ("snmp://pdu/1.3.6.1?scale=-1", "scale=-1 is not a number"),
        ("snmp://pdu/1.3.6.1?scale=nan", "scale=nan is not a number"),
        ("snmp://pdu/1.3.6.1?scale=inf", "scale=inf is not a number"),
        ("nut://ups1@localhost/ups.load", "ups.load is not in watts"),
        ("nut://ups1@localhost/ups.power", "ups.power is not in watts"),
        ("nut://ups1@localhost/ups.realpower.nominal", "is not in watts"),
        ("redfish://bmc/Chassis/1?tls=maybe", "tls=maybe"),
        ("redfish://bmc/Chassis/1?tls=insecure&certificate=x.pem", "no certificate is checked"),
    ],
)
def test_a_name_that_cannot_be_used_has_one_clear_error(name, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        meters.make(name, Host({}, root=tmp_path))


def test_a_password_comes_from_the_environment_or_a_file(monkeypatch, tmp_path):
    monkeypatch.delenv(PASSWORD, raising=False)
    address = Address.parse("redfish://admin@bmc/Chassis/1")
    with pytest.raises(UsageError, match=PASSWORD_FILE):
        password_of(address)
    file = tmp_path / "password"
    file.write_bytes(b"\xef\xbb\xbffrom-file\r\n")
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    assert password_of(address) == "from-file"
    monkeypatch.setenv(PASSWORD, "from-environment")
    assert password_of(address) == "from-environment"
    monkeypatch.setenv("OTHER", "own")
    assert password_of(Address.parse("redfish://admin@bmc/Chassis/1?password=env:OTHER")) == "own"


@given(st.lists(st.floats(0, 200), min_size=2, max_size=60), st.floats(0, 1000))
def test_a_counter_that_wraps_counts_all_energy(steps, start):
    counter, wrap, value = Counter(wrap=1000.0), 1000.0, start % 1000.0
    counter.add(0, value)
    for number, step in enumerate(steps, 1):
        value = (value + step) % wrap
        counter.add(number * SECOND, value)
    assert counter.total == pytest.approx(sum(steps), abs=1e-6)


def test_a_counter_that_may_have_wrapped_twice_is_not_trusted():
    counter = Counter(wrap=1000.0, least_wrap_s=10.0)
    counter.add(0, 1.0)
    with pytest.raises(MeterError, match="more than once"):
        counter.add(11 * SECOND, 2.0)


def test_a_counter_that_was_reset_is_reported():
    counter = Counter(wrap=None)
    counter.add(0, 50.0)
    with pytest.raises(MeterError, match="reset"):
        counter.add(SECOND, 3.0)


def test_a_counter_that_wraps_is_reported_as_reset_if_no_power_explains_it():
    counter = Counter(wrap=262144.0, least_wrap_s=131.0)
    counter.add(0, 200_000.0)
    with pytest.raises(MeterError, match="reset"):
        counter.add(SECOND, 5.0)
    assert counter.add(2 * SECOND, 105.0) == 100.0


def test_a_counter_that_stands_still_counts_nothing():
    counter = Counter(wrap=1000.0, moves=True)
    assert [counter.add(n * SECOND, 5.0) for n in range(2)] == [0.0, 0.0]
    for still in (2, 3):
        with pytest.raises(MeterError, match=f"stands at 5 J for {still} s: it counts nothing"):
            counter.add(still * SECOND, 5.0)
    assert counter.add(4 * SECOND, 6.0) == 1.0
    idle = Counter(wrap=None)
    assert [idle.add(n * SECOND, 5.0) for n in range(9)] == [0.0] * 9


@pytest.mark.parametrize("name", ["rapl", "rapl:psys"])
def test_counters_of_a_processor_that_stand_still_are_faults_and_an_unused_one_of_memory_is_not(
    name, tmp_path, monkeypatch
):
    now = [0]
    monkeypatch.setattr("partywall.power.meters.rapl.now_ns", lambda: now[0])
    zones = {"0": "package-0", "0:0": "dram", "1": "psys", "2": "package-1"}
    base = tmp_path / "sys/class/powercap"
    for number, zone in zones.items():
        folder = base / f"intel-rapl:{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(zone)
        (folder / "energy_uj").write_text("1000000")
        (folder / "max_energy_range_uj").write_text("262143328850")
    meter = meters.make(name, Host({}, root=tmp_path))
    meter.read()
    moving = {"rapl": ("0", "2"), "rapl:psys": ("1",)}[name]
    for second in range(1, 6):
        now[0] = second * SECOND
        for number in moving:
            (base / f"intel-rapl:{number}/energy_uj").write_text(f"{1000000 + second * 10_000_000}")
        assert meter.read().joules == pytest.approx(10.0 * second * len(moving))
    now[0] = 8 * SECOND
    with pytest.raises(MeterError, match=f"{zones[moving[0]]}: the counter stands at"):
        meter.read()


class Scripted:
    """A meter whose readings are given: joules, watts, or a fault."""

    def __init__(self, *values):
        self._values = iter(values)

    def read(self):
        if isinstance(value := next(self._values), MeterError):
            raise value
        return Reading(meter="m", **value)


def test_the_watts_of_a_counter_are_the_difference_of_two_readings(monkeypatch):
    monkeypatch.setattr("partywall.power.meters.base.LEAST_MEAN_S", 0.01)
    steps = [{"time_ns": n * SECOND, "joules": 60.0 * n * n} for n in range(4)]
    watts = Watts(Scripted(steps[0], steps[1], steps[2], MeterError("gap", "reset"), steps[2], steps[3]))
    assert [watts.read(), watts.read()] == pytest.approx([60.0, 180.0])
    with pytest.raises(MeterError):
        watts.read()
    # What was counted before the fault is not known.
    assert watts.read() == pytest.approx(300.0)
    assert Watts(Scripted({"time_ns": 0, "watts": 5.0})).read() == 5.0


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("simulated", "simulated"),
        ("simulated:cervera-dl120-g6", "simulated"),
        ("replay:watts.csv", "simulated"),
        ("rapl", "measured"),
        ("redfish://bmc/Chassis/1", "measured"),
    ],
)
def test_a_meter_that_exists_only_in_software_says_so(name, origin):
    assert Address.parse(name).origin == origin


def test_cores_are_inside_a_package_and_memory_is_not(tmp_path):
    server = Rapl(tmp_path)
    server.begin()
    server.count(0.0)
    meter = meters.make("rapl", server.host)
    meter.read()
    server.count(100.0)
    # Two packages with 60 % and 30 % of the energy, and memory with 10 %.
    assert meter.read().joules == pytest.approx(100.0, abs=1e-3)


def test_a_package_that_wraps_keeps_counting(tmp_path):
    server = Rapl(tmp_path)
    server.begin()
    server.count(0.0)
    meter = meters.make("rapl", server.host)
    meter.read()
    server.count(1900.0)
    assert meter.read().joules == pytest.approx(1900.0, abs=1e-3)


@pytest.mark.parametrize("make", [Hwmon, Rapl, Resctrl])
def test_a_file_without_a_number_and_a_lost_file_are_reported_apart(make, tmp_path):
    server = make(tmp_path)
    server.start()
    meter = meters.make(server.name, server.host)
    meter.read()
    server.garble()
    with pytest.raises(MeterError) as garbled:
        meter.read()
    server.kill()
    with pytest.raises(MeterError) as lost:
        meter.read()
    assert (garbled.value.kind, lost.value.kind) == ("garbage", "gone")


@pytest.mark.parametrize(
    ("resource", "watts"),
    [
        ({"PowerWatts": {"Reading": 212.5}}, 212.5),
        ({"InputPowerWatts": {"Reading": 100}}, 100),
        ({"PowerControl": [{"PowerConsumedWatts": 344}]}, 344),
        ({"PowerControl": []}, None),
        ({"PowerWatts": {"Reading": None}}, None),
        ({}, None),
    ],
)
def test_each_form_of_a_redfish_reading_is_understood(resource, watts):
    if watts is not None:
        assert redfish.watts_of(resource, "Power") == watts
        return
    with pytest.raises(MeterError, match="Power has no power reading"):
        redfish.watts_of(resource, "Power")


def test_answers_of_ipmitool_are_understood():
    assert ipmi.dcmi_watts("\n    Instantaneous power reading:                   212 Watts\n") == 212
    assert ipmi.sensor_watts(SENSOR.format("332 (+/- 4) Watts"), "Total_Power") == 332
    assert ipmi.sensor_watts(SENSOR.format("332 Watts"), "Total_Power") == 332
    with pytest.raises(MeterError, match="no power reading"):
        ipmi.dcmi_watts("DCMI request failed")
    with pytest.raises(MeterError, match="not a number"):
        ipmi.sensor_watts(SENSOR.format("No Reading"), "Total_Power")
    with pytest.raises(MeterError, match="Fan1 is in RPM, not in watts"):
        ipmi.sensor_watts(SENSOR.format("3600 (+/- 0) RPM"), "Fan1")
    with pytest.raises(MeterError, match="no value of Total_Power"):
        ipmi.sensor_watts("Total_Power      | 332\n", "Total_Power")


def test_a_dcmi_reading_that_is_deactivated_is_no_zero_watts():
    text = "    Instantaneous power reading:   0 Watts\n    Power reading state is:                   {}\n"
    with pytest.raises(MeterError, match="is deactivated"):
        ipmi.dcmi_watts(text.format("deactivated"))
    assert ipmi.dcmi_watts(text.format("activated")) == 0


def test_a_fan_is_no_sensor_of_power(tmp_path):
    server = Hwmon(tmp_path)
    server.start()
    (folder,) = tmp_path.rglob("hwmon[0-9]")
    (folder / "fan1_input").write_text("3600\n")
    with pytest.raises(UsageError, match=f"there is no sensor {folder.name}/fan1"):
        meters.make(f"hwmon:{folder.name}/fan1", server.host)


@given(st.text(max_size=80))
def test_no_answer_of_a_server_ends_a_parser(text):
    for parse in (
        lambda: ipmi.dcmi_watts(text),
        lambda: ipmi.sensor_watts(text, "x"),
        lambda: ipmi.sensor_watts(SENSOR.format(text), "x"),
        lambda: nut.watts_of(text, "GET VAR a b"),
        lambda: wattsup.watts_of(text),
    ):
        try:
            assert 0 <= parse() <= 1e6
        except MeterError:
            continue


def test_a_recording_is_replayed_at_its_pace_and_ends(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("s,watts\n0,100\n3600,200\n")
    assert meters.make(f"replay:{file}", Host.here()).read().watts == 100
    # As spreadsheets of other systems write it.
    file.write_bytes(b"\xef\xbb\xbfs,watts\r\n0,110\r\n1,120\r\n")
    assert meters.make(f"replay:{file}", Host.here()).read().watts == 110
    file.write_text("s,watts\n1,100\n1,200\n")
    with pytest.raises(UsageError, match="do not rise"):
        meters.make(f"replay:{file}", Host.here())
    for row in ("nan,100", "inf,100", "1,nan", "1,inf", "1,-5"):
        file.write_text(f"s,watts\n0,100\n{row}\n")
        with pytest.raises(UsageError, match="not a table of numbers"):
            meters.make(f"replay:{file}", Host.here())
    file.write_text('s,watts\n0,100\n1,"' + "1" * 200_000)
    with pytest.raises(UsageError, match="not a table of numbers: field larger than field limit"):
        meters.make(f"replay:{file}", Host.here())


CELLS = ("s,watts\n", "0,100\n", '"', ",", "\n", "\r", "\0", "1", "nan", "-5", "é", "9" * 200_000)


@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "200")))
@given(st.lists(st.sampled_from(CELLS), max_size=12).map("".join))
def test_any_table_is_replayed_or_a_users_mistake(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_text(f"s,watts\n{text}", newline="")
    with contextlib.suppress(UsageError):
        assert meters.make(f"replay:{file}", Host.here()).read().watts >= 0


class Hanging:
    """A meter that never answers."""

    def __init__(self):
        self.facts, self.free = MeterFacts(meter="hanging"), threading.Event()

    def read(self):
        self.free.wait(60)
        raise MeterError("gone", "it was let go")

    def close(self):
        pass


class Quick:
    facts = MeterFacts(meter="quick")

    def read(self):
        return Reading(meter="quick", time_ns=time.monotonic_ns(), watts=1.0)

    def close(self):
        pass


class Failing(Quick):
    def read(self):
        raise ValueError("a bug of this meter")


def test_a_meter_that_hangs_or_fails_stops_no_other(monkeypatch):
    monkeypatch.setattr("partywall.power.sampling.HANGS_S", 0.2)
    hanging, taken = Hanging(), []
    with Sampler({"hanging": hanging, "quick": Quick(), "failing": Failing()}, 0.02, taken.append) as sampler:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            sampler.look()
            hung = any(isinstance(each, MeterFault) and each.meter == "hanging" for each in list(taken))
            if hung and sum(isinstance(each, Reading) for each in list(taken)) >= 10:
                break
            time.sleep(0.01)
        hanging.free.set()
    kinds = {(each.meter, each.fault) for each in taken if isinstance(each, MeterFault)}
    assert {("hanging", "silent"), ("failing", "garbage")} <= kinds
    assert sum(isinstance(each, Reading) for each in taken) >= 10


def test_cpu_time_is_read_beside_the_meters():
    taken = []
    with Sampler({}, 0.02, taken.append, lambda: (1.0, 2.0), {"web": lambda: 0.5}):
        deadline = time.monotonic() + 20
        while len(taken) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert isinstance(taken[0], Activity)
    assert taken[0].cpus_s == (1.0, 2.0)
    assert taken[0].consumers_s == {"web": 0.5}


def looked_at(sampler):
    """Looks at a sampler until it raises what has ended one of its threads."""
    deadline = time.monotonic() + 20
    with sampler:
        while time.monotonic() < deadline:
            sampler.look()
            time.sleep(0.01)


@pytest.mark.parametrize("fails", ["store", "count"])
def test_a_thread_that_can_read_no_more_ends_the_measurement(fails):
    taken = []

    def store(value):
        taken.append(value)
        if fails == "store":
            raise OSError(28, "No space left on device")

    def cpus():
        if fails == "count":
            raise KeyError("a bug")
        return (1.0,)

    with pytest.raises(OSError if fails == "store" else KeyError):
        looked_at(Sampler({}, 0.02, store, cpus))
    assert not any(isinstance(each, MeterFault) for each in taken)


def test_a_reading_that_cannot_be_stored_is_no_fault_of_its_meter():
    taken = []

    def store(value):
        taken.append(value)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        looked_at(Sampler({"quick": Quick()}, 0.02, store))
    assert [type(each) for each in taken] == [Reading]


def fails(meter):
    """Whether one of a few readings fails: what was on its way may still arrive."""
    for _ in range(3):
        try:
            meter.read()
        except MeterError:
            return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SERVERS if name not in ("rapl", "hwmon", "resctrl")])
def test_each_protocol_is_read_from_its_real_server(name, tmp_path):
    made = SERVERS[name]
    if missing := (made if isinstance(made, type) else power.Redfish).missing():
        pytest.skip(f"{missing} is not installed")
    with power.password(), made(tmp_path / "server") as server:
        meter = meters.make(server.name, server.host)
        server.write(212.0)
        deadline, seen = time.monotonic() + 20, 0.0
        while abs(seen - 212.0) > server.step and time.monotonic() < deadline:
            seen = meter.read().watts or 0.0
        assert seen == pytest.approx(212.0, abs=server.step)
        server.kill()
        assert fails(meter)
        meter.close()


def test_the_password_of_a_server_is_no_part_of_a_command_line():
    tool = bmc.Ipmitool("bmc", user="admin", password="hunter2")  # noqa: S106 - no password of anything
    assert not any("hunter2" in word for word in tool._place)
    assert "hunter2" in tool._environment.values()
    assert "IPMI_PASSWORD" not in os.environ
