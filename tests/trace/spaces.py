"""Network namespaces of a test's own, what hangs on their interfaces, and traffic in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

# BPF_PROG_QUERY of programs linked to an interface, at ingress and egress; run inside the namespace.
QUERY = """
import ctypes, socket, struct, sys
found = 0
for hook in (46, 47):
    attr = ctypes.create_string_buffer(struct.pack("<IIIIQI", socket.if_nametoindex(sys.argv[1]), hook, 0, 0, 0, 0), 64)
    if ctypes.CDLL(None).syscall({"x86_64": 321, "aarch64": 280}[sys.argv[2]], 16, attr, 64) == 0:
        found += struct.unpack_from("<I", attr, 24)[0]
print(found)
"""


def run(*argv, check=True, **options):
    return subprocess.run(argv, check=check, capture_output=True, text=True, **options)


def lacking(*tools):
    """Why namespaces cannot be had here; None if they can."""
    if os.geteuid() != 0:
        return "root (CAP_NET_ADMIN) is needed"
    missing = [tool for tool in ("ip", "tc", *tools) if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else None


def ip(*arguments, check=True):
    return run("ip", *arguments, check=check)


def inside(space, *argv, **options):
    return run("nsenter", f"--net=/run/netns/{space}", *argv, **options)


def hooked(*places):
    """How many programs hang on both sides of interfaces, given as NAMESPACE/INTERFACE: linked or filtered."""
    count = 0
    for place in places:
        space, _, device = place.partition("/")
        count += int(inside(space, sys.executable, "-c", QUERY, device, os.uname().machine).stdout)
        for side in ("ingress", "egress"):
            filters = run("tc", "-n", space, "filter", "show", "dev", device, side, check=False).stdout
            count += filters.count("partywall_")
    return count


def wait(until, seconds=20):
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(0.02)
    return until()


# ethtool's requests of one value each (linux/ethtool.h).
FEATURES = {"tx-checksum": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
SET_FEATURE = """
import ctypes, fcntl, socket, struct, sys
value = ctypes.create_string_buffer(struct.pack("II", int(sys.argv[2]), int(sys.argv[3])))
request = struct.pack("16sP", sys.argv[1].encode(), ctypes.addressof(value)).ljust(40, b"\\0")
fcntl.ioctl(socket.socket(), 0x8946, request)
"""


def feature(space, device, name, on):
    """What `ethtool -K` does."""
    inside(space, sys.executable, "-c", SET_FEATURE, device, str(FEATURES[name]), str(int(on)))


DATAGRAMS = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
sockets = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(int(sys.argv[5]))]
for at, one in enumerate(sockets):
    one.bind(("", int(sys.argv[6]) + at))
head = b"PWALLTAG" if sys.argv[4] == "marked" else b"anything"
for number in range(int(sys.argv[2])):
    # Without the marker too, each is another one.
    payload = head + number.to_bytes(8, "big") + bytes(int(sys.argv[3]))
    sockets[number % len(sockets)].sendto(payload, (sys.argv[1], 9000))
"""


def send(space, to, count, *, size=100, marked=True, flows=1, port=5000):
    """Datagrams to port 9000 of an address, each told apart."""
    kind = "marked" if marked else "plain"
    inside(space, sys.executable, "-c", DATAGRAMS, *map(str, (to, count, size, kind, flows, port)))


ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], 9000), family=family)
print("ready", flush=True)
peer, _ = listener.accept()
while data := peer.recv(1 << 20):
    peer.sendall(data[:: int(sys.argv[2])])
peer.shutdown(socket.SHUT_WR)
"""
STREAM = """
import socket, sys, threading
here = "::" if ":" in sys.argv[1] else ""
peer = socket.create_connection((sys.argv[1], 9000), source_address=(here, int(sys.argv[3])))
def write():
    peer.sendall(bytes(int(sys.argv[2])))
    peer.shutdown(socket.SHUT_WR)
writer = threading.Thread(target=write)
writer.start()
while peer.recv(1 << 20):
    pass
writer.join()
"""


def stream(space, to, at, octets, *, port=6000, back=1):
    """A TCP connection to `to` in namespace `at`: so many bytes there, and every `back`th of them back."""
    argv = ["nsenter", f"--net=/run/netns/{at}", sys.executable, "-c", ECHO, to, str(back)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            server.stdout.readline()
            inside(space, sys.executable, "-c", STREAM, to, str(octets), str(port), timeout=60)
        finally:
            server.kill()


TAGGED = """
import socket, struct, sys
peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
peer.bind((sys.argv[1], 0))
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return ~(total % 65535) & 65535
for number in range(int(sys.argv[2])):
    payload = b"PWALLTAG" + number.to_bytes(8, "big") + bytes(50)
    udp = struct.pack("!HHHH", 5000, 9000, 8 + len(payload), 0) + payload
    ends = bytes([10, 80, 1, 1, 10, 80, 1, 2])
    ip = struct.pack("!BBHHHBBH8s", 0x45, 0, 20 + len(udp), number, 0, 64, 17, 0, ends)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    tags = struct.pack("!HHHH", 0x88A8, 7, 0x8100, 9)
    peer.send(bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]) + tags + struct.pack("!H", 0x800) + ip + udp)
"""


def send_tagged(space, device, count):
    """Datagrams behind two VLAN tags, as frames of our own."""
    inside(space, sys.executable, "-c", TAGGED, device, str(count))
