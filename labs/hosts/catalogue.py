"""The stock hosts: what each is made of, and what Partywall is expected to do on it.

One list of images, one of hosts. An expectation other than `WORKS` says why; the lab fails if a host does less than
expected here, and if it does more, for then this list is out of date.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Expected = Literal["works", "loss", "cannot"]

BASE = (
    *("systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "udev", "kmod", "openssh-server"),
    *("python3-venv", "crun", "iproute2", "libcap2-bin", "procps", "nginx-light", "linux-image-cloud-amd64"),
)
# What the host-marked tests start; without these they skip by name.
TESTS = ("fio", "stress-ng", "nftables", "iperf3", "openssh-client", "strace")


@dataclass(frozen=True)
class Image:
    """A root file system.

    suite: Debian's name for the release. python: what its python3 is. backports: packages taken from its backports.
    """

    name: str
    suite: str
    python: str
    packages: tuple[str, ...] = BASE
    backports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shortfall:
    """A capability that does not wholly work, and the reason a user reads in the matrix.

    says: a pattern that Partywall's own message matches.
    """

    expected: Expected
    why: str
    says: str = ""


@dataclass(frozen=True)
class Host:
    """An emulated machine.

    cpus: QEMU's -smp. cpu: QEMU's -cpu, where it emulates. machine: further arguments of QEMU. append: kernel command
    line. place: where Partywall runs: on the host as root or as an ordinary user, in a scope that systemd delegated to
    this user, or in a container. hold: a shell command, once it is up, for what `HOLD_KEYS` is for. long: checks that
    take long, and are done here all the same. only: the checks that are done here; empty for all.
    """

    name: str
    summary: str
    image: Image
    cpus: str = "2"
    cpu: str = "max"
    memory_mib: int = 3072
    machine: tuple[str, ...] = ()
    append: str = ""
    place: Literal["root", "user", "scope", "docker"] = "root"
    shortfalls: dict[str, Shortfall] = field(default_factory=dict)
    hold: str = ""
    long: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


BOOKWORM = Image("debian-12", "bookworm", "3.11", (*BASE, *TESTS))
BACKPORTS = Image(
    "debian-12-backports",
    "bookworm",
    "3.11",
    (*BASE, "qemu-system-x86"),
    backports=("src:linux", "src:linux-signed-amd64", "src:qemu", "src:seabios"),
)
TRIXIE = Image("debian-13", "trixie", "3.13")
# With all that the host-marked tests start; the image above stays small, because every CI run builds it.
TRIXIE_TESTS = Image("debian-13-tests", "trixie", "3.13", (*BASE, *TESTS))
TRIXIE_TOMCAT = Image("debian-13-tomcat", "trixie", "3.13", (*BASE, "tomcat10-common", "default-jre-headless"))
TRIXIE_DOCKER = Image("debian-13-docker", "trixie", "3.13", (*BASE, "docker.io", "docker-cli"))
# The kernel for clouds has no module for KVM on AMD's processors.
KVM = (
    *(package.replace("-cloud-", "-") for package in BASE),
    *("qemu-system-x86", "qemu-utils", "libvirt-daemon-system", "libvirt-daemon-driver-qemu", "libvirt-clients"),
    *("python3-libvirt", "e2fsprogs"),
)
# What is tried of guests, where they run under KVM.
GUESTS = ("vm-check", "guest-limits", "guest-load", "guest-trace", "libvirt", "guest-power", "migrate")
TRIXIE_KVM = Image("debian-13-kvm", "trixie", "3.13", KVM)

# The first guest under KVM, the last, and each that enables its interrupt controller while no other guest has it
# disabled, make the kernel rewrite its own code (see HOLD_KEYS): a guest that never runs stays from the start.
HOLD_GUEST = (
    "systemd-run --quiet --unit=one-guest qemu-system-x86_64 -accel kvm -S -nodefaults -display none -m 16; sleep 5"
)
# QEMU 7.2 corrupts the flags of cmpxchg16b, upon which this kernel ends in a double fault in its slab allocator. The
# processor itself keeps the instruction, for NumPy refuses one that lacks it.
WITHOUT_CMPXCHG16B = "clearcpuid=cx16"
NEEDS_ROOT = Shortfall("cannot", "needs root", says="sudo|CAP_")
LEGACY = "systemd.unified_cgroup_hierarchy=0"
NUMA = (
    *("-object", "memory-backend-ram,id=m0,size=2G", "-object", "memory-backend-ram,id=m1,size=2G"),
    *("-numa", "node,nodeid=0,cpus=0-3,memdev=m0", "-numa", "node,nodeid=1,cpus=4-7,memdev=m1"),
)

HOSTS = {
    host.name: host
    for host in (
        Host("debian-13", "Debian 13, Linux 6.12, cgroup v2, two CPUs, as root", TRIXIE, long=("guard-tcp",)),
        Host("debian-12", "Debian 12, Linux 6.1, cgroup v2, two CPUs, as root", BOOKWORM, long=("guard-tcp", "tests")),
        Host(
            "debian-12-backports",
            "Debian 12 with the backports' kernel and QEMU 10, as root",
            BACKPORTS,
            append=WITHOUT_CMPXCHG16B,
            long=("migrate",),
        ),
        Host("debian-13-tests", "Debian 13 with the programs that the tests start", TRIXIE_TESTS, long=("tests",)),
        Host(
            "debian-13-1cpu",
            "Debian 13 on one CPU, as root",
            TRIXIE,
            cpus="1",
            shortfalls={
                "run": Shortfall("cannot", "the demo's neighbours need a second CPU", says="needs a CPU other than")
            },
        ),
        Host(
            "debian-13-numa",
            "Debian 13 on eight CPUs: two NUMA nodes, two sockets of two cores of two threads",
            TRIXIE,
            cpus="8,sockets=2,cores=2,threads=2",
            memory_mib=4096,
            machine=NUMA,
            long=("smt",),
        ),
        Host(
            "debian-13-kvm",
            "Debian 13 on a processor with AMD-V and nested pages, whose guests run under KVM; both are emulated",
            TRIXIE_KVM,
            cpu="EPYC,+svm,+npt",
            memory_mib=4096,
            hold=HOLD_GUEST,
            long=GUESTS,
            only=("install", "doctor", *GUESTS),
        ),
        Host(
            "debian-13-4cpu",
            "Debian 13 on four CPUs, with Tomcat for the study of load generation",
            TRIXIE_TOMCAT,
            cpus="4",
            memory_mib=4096,
            long=("pinning",),
            only=("install", "topology", "pinning"),
        ),
        Host(
            "debian-13-old-cpu",
            "Debian 13 on QEMU's default CPU model, which NumPy's wheels refuse",
            TRIXIE,
            cpu="qemu64",
            shortfalls=dict.fromkeys(
                ("install", "doctor", "run"), Shortfall("cannot", "NumPy needs a newer processor", says="x86-64-v2")
            ),
            only=("install", "doctor", "run"),
        ),
        Host(
            "debian-12-cgroup-v1",
            "Debian 12 with cgroup v1 alone, as root",
            BOOKWORM,
            append=f"{LEGACY} systemd.legacy_systemd_cgroup_controller=1",
        ),
        Host("debian-12-hybrid", "Debian 12 with systemd's hybrid hierarchy, as root", BOOKWORM, append=LEGACY),
        Host(
            "debian-13-user",
            "Debian 13 as an ordinary user without sudo, who installs all in an environment of his own",
            TRIXIE,
            place="user",
            shortfalls=dict.fromkeys(("container-limits", "guard", "trace"), NEEDS_ROOT),
            long=("no-root", "recipes"),
        ),
        Host(
            "debian-13-scope",
            "Debian 13 as an ordinary user, in a scope that systemd delegated to him",
            TRIXIE,
            place="scope",
            shortfalls=dict.fromkeys(("guard", "trace"), NEEDS_ROOT),
        ),
        Host(
            "debian-13-docker",
            "inside a container on Debian 13, with docker's default profile, as its root",
            TRIXIE_DOCKER,
            place="docker",
            shortfalls={
                name: Shortfall("cannot", "the profile forbids it", says="CAP_|cgroup|on the host itself")
                for name in ("container-limits", "guard", "trace")
            },
        ),
    )
}
