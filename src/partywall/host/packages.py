"""Installation commands of package managers, and their names of packages, in one table.

Packages are requested by Debian's names. For an unknown package manager, the result is a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from partywall.host.host import Host

_APT = "apt-get install"
# ID or ID_LIKE of os-release(5) → command → package names that differ from Debian's.
_DEVEL = {"libvirt-dev": "libvirt-devel", "python3-dev": "python3-devel", "libvirt0": "libvirt-libs"}
_MANAGERS: Mapping[str, str] = {
    **dict.fromkeys(("debian", "ubuntu"), _APT),
    **dict.fromkeys(("fedora", "rhel", "centos"), "dnf install"),
    **dict.fromkeys(("suse", "opensuse"), "zypper install"),
    "arch": "pacman -S",
    "alpine": "apk add",
}
_NAMES: Mapping[str, Mapping[str, str]] = {
    _APT: {},
    "dnf install": _DEVEL
    | {"qemu-system-x86": "qemu-kvm", "iproute2": "iproute iproute-tc", "openssh-client": "openssh-clients"}
    | {"pkg-config": "pkgconf-pkg-config"},
    "zypper install": _DEVEL | {"qemu-system-x86": "qemu-x86", "openssh-client": "openssh-clients"},
    "pacman -S": {"openssh-client": "openssh", "pkg-config": "pkgconf", "python3-dev": "python"}
    | {"libvirt-dev": "libvirt", "libvirt0": "libvirt"},
    "apk add": {"qemu-system-x86": "qemu-system-x86_64", "pkg-config": "pkgconf", "libvirt0": "libvirt-libs"},
}
# Partywall expects the files of these packages at Debian's paths.
_DEBIAN_ALONE = ("tomcat10-common", "default-jre-headless")


def install(host: Host, *packages: str) -> str:
    """The command that installs packages on a host, or a sentence if its package manager is unknown."""
    manager = _manager(host)
    if manager is None or (manager != _APT and set(packages) & set(_DEBIAN_ALONE)):
        return f"install {' '.join(packages)} with your package manager"
    names = dict.fromkeys(_NAMES[manager].get(package, package) for package in packages)
    return f"{manager} {' '.join(names)}"


def _manager(host: Host) -> str | None:
    """The package manager: by the distribution, by those it is based on, or else by its program."""
    text = host.text("/etc/os-release")
    if text is None:
        return _APT if host.which("apt-get") else None
    release = dict(re.findall(r'(?m)^(ID|ID_LIKE)="?([^"\n]*)"?$', text))
    like = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".replace("opensuse-", "opensuse ").split()
    return next((_MANAGERS[family] for family in like if family in _MANAGERS), None)
