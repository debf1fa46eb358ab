"""One connection of the user's `ssh` with an agent at its other end: how it starts, and errors if it does not.

The user's own agent is used if this exact version is on the PATH there. Otherwise it is sent through the same stream
that it will use, so that one connection is enough.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from partywall.agent import binary
from partywall.agent.agents import Agents
from partywall.agent.client import AgentClient
from partywall.errors import CapabilityError
from partywall.host import Host, install
from partywall.sandbox.document import File
from partywall.sandbox.qemu.initramfs import loaded
from partywall.sandbox.ssh import bootstrap
from partywall.sandbox.ssh.bootstrap import Answer

VARIABLE = "PARTYWALL_SSH"
CONNECT_S = 15
# Time from the start of ssh to the first answer: connecting, logging in, and slow login scripts.
GREETING_S = 40.0
# After its end, a child of ssh may keep its streams open.
STREAMS_S = 5.0
# For a link of 100 KB/s.
COPY_S = 120.0
# The other side disconnects after the same time; we send messages much more often.
PATIENCE_S = 30
NOISE_LINES = 200
OPTIONS = {
    # Nobody is there to answer questions.
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
    # Settings in the user's configuration that are meant for interactive sessions.
    "ClearAllForwardings": "yes",
    "ForwardX11": "no",
    "ForwardAgent": "no",
    "RemoteCommand": "none",
    "PermitLocalCommand": "no",
    # An existing master is used. We do not become one, because others would lose it with us.
    "ControlMaster": "no",
}
# ssh's message → its meaning and a remedy. {to}: the destination; {detail}: the pattern's group.
_FAILURES = (
    (
        r"Could not resolve hostname (.*)",
        "its name is not known ({detail}); name a Host of ~/.ssh/config, or an address",
    ),
    (
        r"Permission denied \((.*)\)",
        "it refused us ({detail}); check that 'ssh {to} true' works without a password",
    ),
    (r"(REMOTE HOST IDENTIFICATION HAS CHANGED)", "its key has changed; if that is expected, use: ssh-keygen -R"),
    (r"(Host key verification failed)", "its key is not known here; run 'ssh {to} true' once and confirm it"),
    (
        r"(Too many authentication failures)",
        "it refused us ({detail}); name one key: IdentitiesOnly yes and IdentityFile in ~/.ssh/config",
    ),
    (
        r"(Connection refused|No route to host|Network is unreachable|Connection timed out|Operation timed out)",
        "it cannot be reached ({detail}); check that it is up, that sshd runs, and the port",
    ),
    (
        r"(Bad configuration option.*|terminating, .* bad configuration options)",
        "your ssh configuration cannot be read ({detail})",
    ),
)


def program(which: Callable[[str], str | None] = shutil.which, host: Host | None = None) -> list[str]:
    """The client: $PARTYWALL_SSH, which may contain options, or ssh. CapabilityError if there is none."""
    words = shlex.split(os.environ.get(VARIABLE, "ssh"))
    if not words or not which(words[0]):
        name = words[0] if words else "an empty text"
        where = f"${VARIABLE} names {name}, which was" if VARIABLE in os.environ else "ssh was"
        remedy = install(host or Host.here(), "openssh-client")
        raise CapabilityError(f"{where} not found, so backend: ssh cannot run; {remedy}")
    return words


def version(host: Host) -> str:
    """The client's version. CapabilityError if there is none."""
    return host.output([*program(host.which, host), "-V"]).strip()


def argv(destination: str, command: str, more: Sequence[str] = ()) -> list[str]:
    """The command line of ssh. more: options of this destination."""
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    return [*program(), "-T", *options, *more, "--", destination, command]


@dataclass(frozen=True)
class Parcel:
    """The agent as it is sent. hashes: those of the original and of the stripped agent; either is accepted."""

    content: bytes
    hashes: tuple[str, str]

    @classmethod
    @functools.cache
    def packed(cls) -> Self:
        """Packs it once for all connections, because that takes a second."""
        whole = binary.find().read_bytes()
        lean = loaded(whole)
        hashes = (hashlib.sha256(whole).hexdigest(), hashlib.sha256(lean).hexdigest())
        return cls(gzip.compress(lean, compresslevel=6, mtime=0), hashes)


class Connection:
    """An ssh process that runs the bootstrap script on the other machine."""

    def __init__(self, destination: str, base: str, run: str, agent: Sequence[str], env: dict[str, str]) -> None:
        self.destination = destination
        self._base = base
        self._parcel = Parcel.packed()
        command = bootstrap.command(
            base, self._parcel.hashes, len(self._parcel.content), platform.machine(), run, agent
        )
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            argv(destination, command), stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | env, process_group=0
        )

    def ready(self) -> str:
        """Waits until the agent is ready, and returns its folder. CapabilityError with one sentence if it fails."""
        try:
            return self._folder()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends it, before an agent has taken over the streams."""
        _kill(self.process)
        self._last_words()

    def _folder(self) -> str:
        answer = self._answer(GREETING_S)
        if answer.word == "want":
            answer = self._send()
        if answer.word != "ready":
            raise CapabilityError(self._named(bootstrap.refusal(answer.rest, self._base)))
        return answer.rest

    def _send(self) -> Answer:
        stream = cast("IO[bytes]", self.process.stdin)
        # If the other side gives up half-way, it reports why before it closes.
        with _ended_after(self.process, COPY_S), contextlib.suppress(BrokenPipeError):
            stream.write(self._parcel.content)
            stream.flush()
        return self._answer(COPY_S)

    def _answer(self, timeout_s: float) -> Answer:
        stream = cast("IO[bytes]", self.process.stdout)
        noise = b""
        with _ended_after(self.process, timeout_s):
            for _ in range(NOISE_LINES):
                line = stream.readline(4096)
                if not line:
                    raise CapabilityError(self._named(self._why_silent(noise, timeout_s)))
                if answer := bootstrap.answer(line):
                    return answer
                noise = line
        too_much = (
            f"its login shell printed more than {NOISE_LINES} lines; make it print nothing if it is not interactive"
        )
        raise CapabilityError(self._named(too_much))

    def _why_silent(self, noise: bytes, timeout_s: float) -> str:
        errors = self._last_words()
        status = self.process.wait()
        if status == -9 and not errors:
            return f"no answer within {timeout_s:g} s; check if it is overloaded, or if its login shell waits for input"
        return explained(errors or noise.decode(errors="replace").strip(), self.destination)

    def _last_words(self) -> str:
        """What is left of its messages. Its child may keep the streams open for ever, so their end is not awaited."""
        try:
            _, errors = self.process.communicate(timeout=STREAMS_S)
        except subprocess.TimeoutExpired as expired:
            _kill(self.process)
            errors = expired.stderr or b""
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self.process.wait()
        return errors.decode(errors="replace").strip()

    def _named(self, why: str) -> str:
        return f"{self.destination}, by ssh: {why}"


def explained(said: str, destination: str) -> str:
    """Converts an error of ssh or the other machine to a sentence, with a remedy if one is known. Pure."""
    for pattern, meaning in _FAILURES:
        if match := re.search(pattern, said):
            return meaning.format(to=destination, detail=match[1])
    last = said.splitlines()[-1] if said else "nothing"
    return f"no shell answered; the last line of output was: {last}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills ssh with its children, such as a ProxyCommand."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _ended_after(process: subprocess.Popen[bytes], timeout_s: float) -> Iterator[None]:
    """Kills the process when the time is up. Its streams then end, and readers return."""
    timer = threading.Timer(timeout_s, _kill, [process])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


PUT = 'umask 077; cat > "$1" && chmod "$2" "$1" && sha256sum < "$1"'


def put(destination: str, path: str, file: File, mode: int) -> None:
    """Copies a planned file there, over a connection of its own, and compares its hash. CapabilityError if it differs.

    The time for it is that of the agent's copy, or more for a large file on a link of 100 KB/s.
    """
    command = shlex.join(["sh", "-c", PUT, "sh", path, f"{mode:o}"])
    timeout_s = max(COPY_S, GREETING_S + (file.size or 0) / 100_000)
    try:
        with Path(file.origin).open("rb") as content:
            done = subprocess.run(
                argv(destination, command), stdin=content, capture_output=True, timeout=timeout_s, check=False
            )
    except subprocess.TimeoutExpired:
        why = f"{path} was not copied within {timeout_s:.0f} s; check the connection"
        raise CapabilityError(f"{destination}, by ssh: {why}") from None
    if (file.sha256 or "").encode() not in done.stdout.split():
        said = done.stderr.decode(errors="replace").strip() or "it arrived damaged"
        why = f"{path} could not be copied: {explained(said, destination) if done.returncode == 255 else said}"
        raise CapabilityError(f"{destination}, by ssh: {why}; check the free space there and the connection")


def survey(destination: str, base: str, programs: Sequence[str]) -> dict[str, Any]:
    """Facts about a machine as an agent there reports them, with its usable CPUs.

    CapabilityError if it is unreachable, cannot run the agent, or lacks one of `programs`.
    """
    with machine_agent(destination, base, "survey") as agent:
        facts = dict(agent.call("facts"))
        facts["cpus_allowed"] = agent.hello["cpus"]
    if lacking := _lacking(destination, programs):
        raise CapabilityError(
            f"{destination}, by ssh: {', '.join(lacking)} is not installed or not on the PATH there; "
            "install it, or give its path"
        )
    return facts


LOOK_FOR = 'for program; do command -v "$program" >/dev/null && echo there || echo lacking; done'


def _lacking(destination: str, programs: Sequence[str]) -> list[str]:
    if not programs:
        return []
    command = shlex.join(["sh", "-c", LOOK_FOR, "sh", *programs])
    try:
        done = subprocess.run(
            argv(destination, command), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=GREETING_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"no answer within {GREETING_S:g} s, while it looked for {', '.join(programs)}; check the connection"
        raise CapabilityError(f"{destination}, by ssh: {why}") from None
    said = [line for line in done.stdout.splitlines() if line in ("there", "lacking")]
    if done.returncode != 0 or len(said) != len(programs):
        raise CapabilityError(f"{destination}, by ssh: {explained(done.stderr.strip(), destination)}")
    return [program for program, word in zip(programs, said, strict=True) if word == "lacking"]


@contextlib.contextmanager
def machine_agent(destination: str, base: str, run: str) -> Iterator[AgentClient]:
    """An agent on another machine, for facts and checks."""
    connection = Connection(destination, base, run, ["serve", "--die-with-parent", "--patience", str(PATIENCE_S)], {})
    connection.ready()
    with Agents() as agents:
        yield agents.adopt(destination, connection.process)
