"""A path of three hops on one CPU, its traces and counters: what benchmarks of the tracer share."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from common import processes, program
from partywall.host.label import Label
from partywall.trace.hops import ask
from partywall.trace.measure.tracing import Tracing
from partywall.trace.record import Report, merged

SENDER_CPU, TRACER_CPU = 0, max(os.sched_getaffinity(0))
Spaces = tuple[str, str, str]
SPACES: Spaces = ("pwta", "pwtb", "pwtc")
"""Namespaces of the sender, of the bridge and of the receiver."""
NETWORK = """
{ns}
ip link add eth0 netns {a} type veth peer name va netns {b}
ip link add eth0 netns {c} type veth peer name vc netns {b}
ip -n {b} link add br0 type bridge
ip -n {b} link set va master br0
ip -n {b} link set vc master br0
ip -n {a} addr add 10.79.0.1/24 dev eth0
ip -n {c} addr add 10.79.0.2/24 dev eth0
ip -n {a} link set eth0 address 02:00:00:00:00:01
ip -n {c} link set eth0 address 02:00:00:00:00:02
ip -n {a} tuntap add tuna mode tun
ip -n {c} tuntap add tunc mode tun
ip -n {a} addr add 10.79.1.1/24 dev tuna
ip -n {c} addr add 10.79.1.2/24 dev tunc
{up}
ip -n {a} neigh add 10.79.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent
ip -n {c} neigh add 10.79.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent
"""
UP = (("lo", "eth0", "tuna"), ("br0", "va", "vc"), ("lo", "eth0", "tunc"))


def path_of(spaces: Spaces) -> tuple[str, ...]:
    """The hops from sender to receiver."""
    return f"{spaces[0]}/eth0:out", f"{spaces[1]}/va:in", f"{spaces[2]}/eth0:in"


PATH = path_of(SPACES)


def shell(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True)


@contextlib.contextmanager
def network(spaces: Spaces = SPACES) -> Iterator[None]:
    """Three namespaces, without IPv6, whose own messages would come whenever they like.

    Neighbours are set: a lost request for an address is repeated only a second later.
    """
    a, b, c = spaces
    quiet = [
        f"ip netns exec {space} sysctl -qw net.ipv6.conf.{key}.disable_ipv6=1"
        for space in spaces
        for key in ("all", "default")
    ]
    made = "\n".join([*(f"ip netns add {space}" for space in spaces), *quiet])
    up = "\n".join(
        f"ip -n {space} link set {name} up" for space, names in zip(spaces, UP, strict=True) for name in names
    )
    try:
        for line in NETWORK.format(ns=made, a=a, b=b, c=c, up=up).strip().splitlines():
            shell(line)
        yield
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def softirq_threads(cpu: int) -> list[Path]:
    """The kernel's thread for packets that a CPU could not handle at once."""
    return processes(lambda folder: (folder / "comm").read_text() == f"ksoftirqd/{cpu}\n")


@contextlib.contextmanager
def sink(space: str, address: str) -> Iterator[None]:
    """A socket that nobody reads: what comes is dropped there, where no hop sees it, and answered by nothing."""
    code = (
        "import socket,sys,time;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);"
        "s.bind((sys.argv[1],9000));print(1,flush=True);time.sleep(1e6)"
    )
    argv = ["nsenter", f"--net=/run/netns/{space}", sys.executable, "-c", code, address]
    with program(*argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


@contextlib.contextmanager
def chosen(agent: Path | None) -> Iterator[None]:
    """Starts `agent` instead of the one under test, if it is given."""
    before = os.environ.get("PARTYWALL_AGENT")
    if agent is not None:
        os.environ["PARTYWALL_AGENT"] = str(agent)
    try:
        yield
    finally:
        os.environ.pop("PARTYWALL_AGENT", None)
        os.environ.update({"PARTYWALL_AGENT": before} if before else {})


class Trace:
    """A trace over `hops`, and what it found. one_in: it records one packet in so many.

    Its agent runs on a CPU of its own.
    """

    def __init__(self, label: Label, hops: tuple[str, ...], one_in: int = 1, *, agent: Path | None = None) -> None:
        """agent: another than the one under test."""
        self.reports: list[Report] = []
        self._agent = agent
        self._session = Tracing(ask(hops, budget="100%", packets=0, one_in=one_in), label, self.reports.append)

    def __enter__(self) -> Self:
        with chosen(self._agent):
            self._session.__enter__()
        for task in Path(f"/proc/{self._session.pid}/task").iterdir():
            # One of a moment may have ended by now.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), {TRACER_CPU})
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def finish(self) -> Report:
        self._session.finish()
        return merged(self.reports)


def parts(hop: str) -> tuple[str, str, str]:
    """Namespace, interface and hook of a hop."""
    space, _, rest = hop.partition("/")
    name, _, hook = rest.partition(":")
    return space, name, hook


def counters(hop: str) -> int:
    """Packets the interface counted, in the direction of the hop."""
    space, name, hook = parts(hop)
    said = subprocess.run(
        ["ip", "-n", space, "-s", "-j", "link", "show", name], capture_output=True, check=True, text=True
    )
    stats = json.loads(said.stdout)[0]["stats64"]
    return int(stats["rx" if hook == "in" else "tx"]["packets"])


# linux/bpf.h
PROGRAM_LOAD, LINK_CREATE, CLASSIFIER = 5, 28, 3
TCX = {"in": 46, "out": 47}
CLONE_NEWNET = 0x40000000
# r0 = TC_ACT_UNSPEC; exit
NOTHING = struct.pack("=BBhi", 0xB7, 0, 0, -1) + struct.pack("=BBhi", 0x95, 0, 0, 0)
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]


def made(command: int, attributes: bytes) -> int:
    """Makes a program or a link, see bpf(2) of the Linux manual; returns its file descriptor."""
    number = int(LIBC.syscall(SYS_BPF, command, attributes, len(attributes)))
    if number < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return number


@contextlib.contextmanager
def inside(space: str) -> Iterator[None]:
    """Moves this thread into a network namespace."""
    with Path("/proc/thread-self/ns/net").open() as own, Path(f"/run/netns/{space}").open() as there:
        if LIBC.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), space)
        try:
            yield
        finally:
            LIBC.setns(own.fileno(), CLONE_NEWNET)


@contextlib.contextmanager
def empty_hooks(hops: tuple[str, ...]) -> Iterator[None]:
    """At each hop, a program that returns at once: what the kernel's part of a hook costs."""
    code, license_ = ctypes.create_string_buffer(NOTHING), ctypes.create_string_buffer(b"GPL")
    load = struct.pack("=IIQQ", CLASSIFIER, 2, ctypes.addressof(code), ctypes.addressof(license_))
    with contextlib.ExitStack() as stack:
        for hop in hops:
            space, name, hook = parts(hop)
            # A program for each hop, as a trace has.
            program = made(PROGRAM_LOAD, load)
            stack.callback(os.close, program)
            with inside(space):
                link = struct.pack("=IIII", program, socket.if_nametoindex(name), TCX[hook], 0)
                stack.callback(os.close, made(LINK_CREATE, link))
        yield
