"""What is missing is asked for with the package manager of the host's own distribution."""

import re
from dataclasses import replace

import pytest

from partywall.host import install
from partywall.testing import fake_host, recorded
from tests.hosts import judge


@pytest.mark.parametrize(
    ("release", "packages", "command"),
    [
        ("ID=debian", ("crun",), "apt-get install crun"),
        ("ID=linuxmint\nID_LIKE=ubuntu", ("iproute2", "util-linux"), "apt-get install iproute2 util-linux"),
        ("ID=fedora", ("crun",), "dnf install crun"),
        ("ID=fedora", ("iproute2",), "dnf install iproute iproute-tc"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', ("qemu-system-x86",), "dnf install qemu-kvm"),
        ('ID="rhel"', ("openssh-client",), "dnf install openssh-clients"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', ("qemu-system-x86",), "zypper install qemu-x86"),
        ('ID="opensuse-tumbleweed"', ("crun",), "zypper install crun"),
        ("ID=arch", ("openssh-client",), "pacman -S openssh"),
        ("ID=manjaro\nID_LIKE=arch", ("libvirt-dev", "libvirt0"), "pacman -S libvirt"),
        ("ID=alpine", ("qemu-system-x86", "crun"), "apk add qemu-system-x86_64 crun"),
        ("ID=nixos", ("crun",), "install crun with your package manager"),
        ("", ("crun",), "install crun with your package manager"),
        ("ID=fedora", ("tomcat10-common",), "install tomcat10-common with your package manager"),
    ],
)
def test_a_package_is_named_as_the_distribution_names_it(tmp_path, release, packages, command):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(f"NAME=x\n{release}\nVERSION_ID=1\n")
    assert install(fake_host(root=tmp_path), *packages) == command


def test_a_host_that_does_not_tell_its_distribution_is_known_by_its_programs(tmp_path):
    host = fake_host(root=tmp_path)
    assert install(host, "crun") == "apt-get install crun"
    assert install(replace(host, which=lambda _name: None), "crun") == "install crun with your package manager"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "runtime", "others"),
    [
        ("kubernetes-pod", "apk add crun", "apt-get|dnf"),
        ("laptop", "dnf install crun", "apt-get|apk"),
        ("debian-13-vm", "apt-get install crun", "dnf|apk"),
    ],
)
def test_doctor_asks_for_packages_with_the_host_s_own_package_manager(tmp_path, name, runtime, others):
    judge.load(name).tree.lay_out(tmp_path)
    text = " ".join(judge.ask(recorded(tmp_path, []), "doctor").output.split())
    assert runtime in text
    # Root images for guests are made of Debian's packages, and kernels for them are taken from there.
    reported = re.sub(r"root images for guests: .*?– |kernel for guests: .*?– |backend libvirt: .*?– ", "", text)
    assert re.findall(rf"(?:{others}) (?:install|add) \S+", reported) == []
