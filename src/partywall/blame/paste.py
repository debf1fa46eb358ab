"""Commands that hold a suspect to some use, by the tool of its owner. Pure."""

from __future__ import annotations

from shlex import quote

from partywall.blame.record import Place
from partywall.host import shaping
from partywall.host.quota import PERIOD_US, quota_us


def paste(place: Place, use: float, device: str = "") -> str:
    """A command that holds a suspect to this use: CPUs, or bytes a second that it sends, or of a disk.

    device: the number of the disk; empty: CPU time, or what it sends if `tc` is the tool. A suspect that is moved to
    other CPUs has no limit.
    """
    if place.tool == "tc":
        return _network(place, use)
    if place.cpus:
        return _moved(place, ",".join(map(str, place.cpus)))
    return _disk(place, int(use), device) if device else _cpu(place, use)


def _cpu(place: Place, cpus: float) -> str:
    quota, name = quota_us(cpus), quote(place.known_as)
    match place.tool:
        case "systemd":
            return f"systemctl set-property --runtime {name} CPUQuota={max(1, round(100 * cpus))}%"
        case "libvirt":
            each = quota_us(cpus / place.vcpus)
            return f"virsh schedinfo {name} --live vcpu_period={PERIOD_US} vcpu_quota={each}"
        case "docker" | "podman":
            return f"{place.tool} update --cpus {max(0.01, cpus):.2f} {name}"
        case "crun" | "runc":
            return f"{place.tool} update --cpu-period {PERIOD_US} --cpu-quota {quota} {name}"
        case _ if place.is_v2:
            return f"echo '{quota} {PERIOD_US}' > {quote(place.folder)}/cpu.max"
        case _:
            folder = quote(place.folder)
            return f"echo {PERIOD_US} > {folder}/cpu.cfs_period_us; echo {quota} > {folder}/cpu.cfs_quota_us"


def _moved(place: Place, cpus: str) -> str:
    name = quote(place.known_as)
    match place.tool:
        case "systemd":
            return f"systemctl set-property --runtime {name} AllowedCPUs={cpus}"
        case "docker" | "podman" | "crun" | "runc":
            return f"{place.tool} update --cpuset-cpus {cpus} {name}"
        case _:
            return f"echo {cpus} > {quote(place.folder)}/cpuset.cpus"


def _network(place: Place, rate: float) -> str:
    shaped = shaping.bucket(rate, shaping.burst(rate, place.mtu))
    return f"nsenter --net={place.known_as} tc qdisc replace dev {quote(place.interface)} root {shaped}"


def _disk(place: Place, rate: int, device: str) -> str:
    match place.tool:
        case "systemd":
            limits = (f"IO{way}BandwidthMax='/dev/block/{device} {rate}'" for way in ("Read", "Write"))
            return f"systemctl set-property --runtime {quote(place.known_as)} {' '.join(limits)}"
        case "libvirt":
            limits = (f"--{way}-bytes-sec {rate}" for way in ("read", "write"))
            return f"virsh blkdeviotune {quote(place.known_as)} {place.disk} --live {' '.join(limits)}"
        # The other tools cannot change the limits of a disk of a container that runs.
        case _ if place.is_v2:
            return f"echo '{device} rbps={rate} wbps={rate}' > {quote(place.folder)}/io.max"
        case _:
            files = (f"{quote(place.folder)}/blkio.throttle.{way}_bps_device" for way in ("read", "write"))
            return "; ".join(f"echo '{device} {rate}' > {file}" for file in files)
