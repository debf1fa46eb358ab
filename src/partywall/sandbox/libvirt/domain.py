"""Creates a domain's definition from a sandbox's settings, and reads definitions. Pure.

Source: libvirt.org/formatdomain.html, of version 9.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET  # what is read comes from the user's own libvirt daemon
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from urllib.parse import urlsplit

from partywall.host.block import Throttle
from partywall.sandbox.base import Settings
from partywall.sandbox.document import Disk
from partywall.sandbox.qemu.machine import EMULATED_SLOWLY, KERNEL_ARGUMENTS, MEMORY, PORT

PREFIX = "partywall-"
# Xen's guests have no virtio port. The stream is their console, so the kernel must print little to it.
XEN_ARGUMENTS = "console=hvc0 quiet loglevel=4 panic=-1 random.trust_cpu=on -- init --console /dev/hvc0"
# scenario key → element of <iotune>
THROTTLES = {
    "read_bps": "read_bytes_sec",
    "write_bps": "write_bytes_sec",
    "read_iops": "read_iops_sec",
    "write_iops": "write_iops_sec",
}


@dataclass(frozen=True)
class Boot:
    """The files that a created domain boots, as paths on the daemon's host."""

    kernel: PurePath
    initramfs: PurePath


def is_local(uri: str) -> bool:
    """True if a URI refers to the daemon on this host."""
    return not urlsplit(uri).netloc


def vcpus(settings: Settings) -> int:
    """The requested number of virtual CPUs, or one for each CPU."""
    return settings.vcpus or len(settings.cpus)


def definition(settings: Settings, name: str, kind: str, boot: Boot, image: PurePath | None) -> str:
    """The XML of a created domain. kind: kvm, qemu (emulated) or xen."""
    domain = ET.Element("domain", type=kind)
    _text(domain, "name", name)
    _text(domain, "memory", str(-(-(settings.memory or MEMORY) // 1024)), unit="KiB")
    _text(domain, "vcpu", str(vcpus(settings)))
    _pins(domain, settings, emulator=kind != "xen")
    if settings.memory_nodes:
        nodes = ",".join(map(str, settings.memory_nodes))
        ET.SubElement(ET.SubElement(domain, "numatune"), "memory", mode="strict", nodeset=nodes)
    system = ET.SubElement(domain, "os")
    _text(
        system, "type", "linux" if kind == "xen" else "hvm", arch="x86_64", machine="xenpv" if kind == "xen" else "pc"
    )
    _text(system, "kernel", str(boot.kernel))
    _text(system, "initrd", str(boot.initramfs))
    _text(system, "cmdline", XEN_ARGUMENTS if kind == "xen" else KERNEL_ARGUMENTS)
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        _text(domain, event, "destroy")
    devices = ET.SubElement(domain, "devices")
    if kind == "xen":
        ET.SubElement(ET.SubElement(devices, "console", type="pty"), "target", type="xen")
    else:
        _of_qemu(domain, devices, kind)
    if image is not None:
        _disk(devices, image, settings.disk or Disk())
    return ET.tostring(domain, encoding="unicode")


def _pins(domain: ET.Element, settings: Settings, *, emulator: bool) -> None:
    tune = ET.SubElement(domain, "cputune")
    for number in range(vcpus(settings)):
        cpu = settings.cpus[number % len(settings.cpus)]
        ET.SubElement(tune, "vcpupin", vcpu=str(number), cpuset=str(cpu))
    if emulator:
        beside = settings.host_cpus or settings.cpus
        ET.SubElement(tune, "emulatorpin", cpuset=",".join(map(str, beside)))


def _of_qemu(domain: ET.Element, devices: ET.Element, kind: str) -> None:
    # A guest needs this to switch itself off.
    ET.SubElement(ET.SubElement(domain, "features"), "acpi")
    cpu = ET.SubElement(domain, "cpu", mode="host-passthrough" if kind == "kvm" else "maximum")
    if kind != "kvm":
        # The processor of emulated guests in backend qemu.
        ET.SubElement(cpu, "cache", mode="passthrough")
        for feature in EMULATED_SLOWLY:
            ET.SubElement(cpu, "feature", policy="disable", name=feature)
    ET.SubElement(ET.SubElement(devices, "serial", type="pty"), "target", port="0")
    channel = ET.SubElement(devices, "channel", type="unix")
    ET.SubElement(channel, "target", type="virtio", name=PORT)
    ET.SubElement(devices, "memballoon", model="virtio")


def _disk(devices: ET.Element, image: PurePath, requested: Disk) -> None:
    disk = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type="raw", cache=requested.cache or "none")
    ET.SubElement(disk, "source", file=str(image))
    ET.SubElement(disk, "target", dev="vda", bus="virtio")
    limits = {element: value for key, element in THROTTLES.items() if (value := getattr(requested, key)) is not None}
    if limits:
        tune = ET.SubElement(disk, "iotune")
        for element, value in limits.items():
            _text(tune, element, str(value))


def throttles(throttle: Throttle, before: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """Disk limits for `blkdeviotune`, which needs all of them. None becomes the previous limit, or else 0."""
    requested = {element: getattr(throttle, key) for key, element in THROTTLES.items()}
    return {element: before.get(element, 0) if rate is None else rate for element, rate in requested.items()}


def has_port(xml: str) -> bool:
    """True if a domain has the virtio port for an agent."""
    targets = ET.fromstring(xml).findall("devices/channel/target")  # noqa: S314 - written by the user's own daemon
    return any(target.get("name") == PORT for target in targets)


def first_disk(xml: str) -> str | None:
    """The name of a domain's first disk, such as vda."""
    for disk in ET.fromstring(xml).findall("devices/disk"):  # noqa: S314 - written by the user's own daemon
        target = disk.find("target")
        if disk.get("device", "disk") == "disk" and target is not None:
            return target.get("dev")
    return None


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text
