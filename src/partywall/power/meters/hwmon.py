"""hwmon: power and energy sensors of the kernel, such as ACPI power meters and those of power supplies.

`hwmon` is the host's ACPI power meter. Others are named: `hwmon:DEVICE/SENSOR`, such as hwmon:hwmon3/power1. Units are
microwatts and microjoules. Kernel documentation: hwmon/sysfs-interface.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import Counter, Place, listed, now_ns, number, text_of
from partywall.power.values import WHOLE_MACHINE, MeterFacts, Reading

SCHEMES = ("hwmon",)
FOLDER = "/sys/class/hwmon"
WHOLE = ("power_meter", "acpi_power_meter")
"""Names of devices that measure the whole machine."""
FILES = {"power": ("_input", "_average"), "energy": ("_input",)}


@dataclass(frozen=True)
class Sensor:
    """name: DEVICE/SENSOR. device: the device's own name. file: the one to read."""

    name: str
    device: str
    file: Path

    @property
    def is_energy(self) -> bool:
        return self.file.name.startswith("energy")


class Hwmon:
    """One sensor."""

    def __init__(self, address: Address, sensor: Sensor) -> None:
        self._sensor, self._counter = sensor, Counter(wrap=None, moves=True)
        is_whole = sensor.device in WHOLE
        self.facts = MeterFacts(
            meter=address.text,
            quantity="joules" if sensor.is_energy else "watts",
            step=1e-6,
            covers=WHOLE_MACHINE if is_whole else f"what {sensor.device} measures",
            is_whole=is_whole,
            about=str(sensor.file),
        )

    def read(self) -> Reading:
        begin_ns = now_ns()
        value = number(text_of(self._sensor.file, self._sensor.name), self._sensor.name, most=1e18) / 1e6
        end_ns = now_ns()
        reading = Reading(meter=self.facts.meter, time_ns=(begin_ns + end_ns) // 2, took_ns=end_ns - begin_ns)
        if self._sensor.is_energy:
            return reading.model_copy(update={"joules": self._counter.add(reading.time_ns, value)})
        return reading.model_copy(update={"watts": number(value, self._sensor.name)})

    def close(self) -> None:
        pass


def check(address: Address) -> None:
    """Any sensor may be named: the host's are looked up by `make`."""
    del address


def make(address: Address, host: Host) -> Hwmon:
    sensors = sensors_of(host)
    if not address.path:
        whole = [sensor for sensor in sensors if sensor.device in WHOLE]
        if not whole:
            names = ", ".join(f"hwmon:{sensor.name}" for sensor in sensors) or "none"
            raise unusable(address.text, "no sensor measures the whole machine", f"name a sensor; there is {names}")
        return Hwmon(address, whole[0])
    for sensor in sensors:
        if sensor.name == address.path:
            return Hwmon(address, sensor)
    raise unusable(address.text, f"there is no sensor {address.path}", "partywall power meters lists what there is")


def sensors_of(host: Host) -> list[Sensor]:
    """The sensors of power and energy."""
    sensors: dict[str, Sensor] = {}
    for folder in listed(host, FOLDER, "hwmon*"):
        try:
            device = (folder / "name").read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            device = folder.name
        for kind, endings in FILES.items():
            for ending in endings:
                for file in sorted(folder.glob(f"{kind}[0-9]*{ending}")):
                    name = f"{folder.name}/{file.name.removesuffix(ending)}"
                    sensors.setdefault(name, Sensor(name, device, file))
    return list(sensors.values())


def find(host: Host) -> list[Place]:
    sensors = sensors_of(host)
    if not sensors:
        return [Place("hwmon", "sensors of the kernel", f"{FOLDER} has no power sensor", "modprobe acpi_power_meter")]
    return [Place(f"hwmon:{sensor.name}", f"sensor of {sensor.device}") for sensor in sensors]
