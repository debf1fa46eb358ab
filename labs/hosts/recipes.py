"""The recipes of docs/no-root.md, tried as they are written there.

Lines with sudo are an administrator's and run as root; all others run as the ordinary user. So a recipe that is changed
is tried as changed, and one that does not work fails here.
"""

from __future__ import annotations

import re
import shlex

from labs.hosts import image
from labs.hosts.bench import CAPABILITY, MEASURED, Bench, FailedError, expect
from labs.hosts.machine import Output

PAGE = image.CLONE / "docs" / "no-root.md"
OTHER = "bob"
SENDER = """
import socket, time
sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
until = time.monotonic() + 120
sent = 0
while time.monotonic() < until:
    sent += 1
    try:
        # A serial number at the front: no two datagrams look alike.
        sender.sendto(sent.to_bytes(8, "big") + bytes(92), ("ff02::1", 9, 0, socket.if_nametoindex("veth-web")))
    except OSError:
        pass
    time.sleep(0.01)
"""
CANNOT = "It cannot run on this host"
DISK = "scenario check /opt/try/scenarios/disk.yaml"
LIMITS = "/opt/try/scenarios/limits.yaml"


def blocks(page: str) -> list[list[str]]:
    """The blocks of shell lines of a page, without comments."""
    matches = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [[line.partition("  #")[0].rstrip() for line in block.splitlines()] for block in matches]


def block(page: str, holds: str) -> list[str]:
    """The one block that holds some words."""
    (matching,) = [lines for lines in blocks(page) if any(holds in line for line in lines)]
    return matching


def tried(bench: Bench) -> str:
    page = PAGE.read_text()
    return "; ".join((_capabilities(bench, page), _controllers(bench, page), _linger(bench)))


def _line(bench: Bench, line: str, variables: str = "") -> Output:
    """Runs one line by whom it is meant for."""
    if "sudo " in line:
        own = line.replace("$(id -u)", bench.as_root(f"id -u {bench.user}").last)
        return bench.as_root(variables + own.replace("sudo ", ""))
    return bench.shell(variables + line, timeout_s=300)


def _capabilities(bench: Bench, page: str) -> str:
    """An agent with capabilities: a user's trace then sees the packets of a pair of interfaces."""
    bench.as_root("ip link add veth-web type veth peer name veth-db; ip link set veth-web up; ip link set veth-db up")
    # A check that failed is tried again: its first sender may still be there.
    bench.as_root("systemctl stop sender; systemctl reset-failed sender; true")
    bench.as_root(f"systemd-run --quiet --collect --unit=sender python3 -c {shlex.quote(SENDER)}")
    first, *lines, last = block(page, "setcap")
    name, _, command = first.partition("=")
    agent = bench.shell(f"echo {command}").last
    for line in lines:
        _line(bench, line.replace("GROUP", bench.user), f"{name}={shlex.quote(agent)}; ")
    bench.shell("rm -rf traced")
    output = _line(bench, f"{last} --out traced")
    seen = re.search(r"forward: (\d+) packets", output.text.replace("\u202f", "").replace(",", ""))
    expect(output.code == 0 and seen is not None, f"{last}: exit code {output.code}: {output.last}")
    return f"an agent with capabilities traced {seen[1] if seen else 0} packets"


def _controllers(bench: Bench, page: str) -> str:
    """The controller io, which a container's disk limit needs, is delegated only afterwards."""
    in_scope = f"systemd-run --user --scope --quiet -p Delegate=yes partywall {DISK}"
    before = bench.shell(in_scope)
    expect(CANNOT in before.text and "controller" in before.text, f"before the drop-in: {before.last}")
    for line in block(page, "delegate.conf"):
        output = _line(bench, line)
        expect(output.code == 0, f"{line}: {output.last}")
    after = bench.shell(in_scope)
    expect(after.code == 0 and CANNOT not in after.text, f"with the drop-in: exit code {after.code}: {after.last}")
    return "with the drop-in a scope has the controller io"


def _linger(bench: Bench) -> str:
    """A user who never logs in gets containers once an administrator lets him linger."""
    bench.as_root(f"{image.VENV}/bin/pip install --quiet --no-index --no-deps /opt/try/{bench.wheel.name}")
    bench.as_root(f"useradd --create-home --shell /bin/bash {OTHER}")
    run = f"{image.VENV}/bin/partywall run {LIMITS} --out limits"
    before = _as_other(bench, run)
    expect(before.code == CAPABILITY and "enable-linger" in before.text, f"before lingering: {before.last}")
    bench.as_root(f"loginctl enable-linger {OTHER}; sleep 5")
    offered = re.search(r"XDG_RUNTIME_DIR=\S+ systemd-run .*", _as_other(bench, run).text)
    if offered is None:
        raise FailedError("a user who lingers is offered no scope")
    output = _as_other(bench, offered[0])
    expect(output.code in MEASURED, f"in the scope of a user who lingers: exit code {output.code}: {output.last}")
    return "a user who lingers ran containers in a scope"


def _as_other(bench: Bench, command: str) -> Output:
    """Without a session, as cron and services run."""
    own = f"HOME=/home/{OTHER} USER={OTHER} PATH=/usr/bin:/bin COLUMNS=4000"
    # What the lab sets for an emulated processor is kept.
    own += ' NPY_DISABLE_CPU_FEATURES="$NPY_DISABLE_CPU_FEATURES"'
    other = f"setpriv --reuid={OTHER} --regid={OTHER} --init-groups env -i {own}"
    return bench.machine.run(f"cd /home/{OTHER} && {other} bash -c {shlex.quote(command)}", timeout_s=300)
