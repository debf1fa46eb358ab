"""Power meters for tests: real protocol servers, and trees of sysfs files, that show the watts that they are given.

The servers are those that users' hardware runs in its place: `sushy-static` (Redfish), `ipmi_sim` and pyghmi (IPMI),
`snmpsim` (SNMP), `upsd` with `dummy-ups` (NUT), a pseudo-terminal (Watts up?). Each listens on the loopback interface
only. `missing` names what has to be installed. Nothing here is used in a measurement.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
import tty
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from partywall.errors import TrialError
from partywall.files import write_whole
from partywall.host import Host, free_port
from partywall.power.meters import MeterError, make

START_S = 40.0
USER, PASSWORD = "admin", "secret"
OID = "1.3.6.1.4.1.318.1.1.26.4.3.1.5.1"


class Server(ABC):
    """A meter's other end. Use it as a context manager. own_refresh_s: how often it reads its file; 0: at each request.

    name: the meter's name for `partywall power`. host: with the root folder of its files.
    """

    kind = ""
    own_refresh_s = 0.0
    step = 1.0
    sends = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = Host.here()
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def name(self) -> str: ...

    @classmethod
    def missing(cls) -> str:
        """What is not installed; empty if nothing is missing."""
        return ""

    @abstractmethod
    def write(self, watts: float) -> None:
        """Shows watts from now on."""

    @abstractmethod
    def garble(self) -> None:
        """Shows something that is not a number."""

    def begin(self) -> None:  # noqa: B027 - a tree of files needs no start
        """Starts the processes."""

    def kill(self) -> None:
        """Ends the processes without warning."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def start(self) -> None:
        """Starts it without waiting."""
        self.write(100.0)
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        log = (self.folder / f"log-{len(self._processes)}").open("wb")
        with log:
            process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | dict(env or {}),
                cwd=self.folder,
            )
        self._processes.append(process)

    def await_ready(self) -> None:
        """Waits until a meter can be read. TrialError if it cannot in time."""
        deadline, why = time.monotonic() + START_S, "it was not tried"
        while time.monotonic() < deadline:
            meter = make(self.name, self.host)
            try:
                meter.read()
            except MeterError as error:
                why = str(error)
                time.sleep(0.1)
            else:
                return
            finally:
                meter.close()
        logs = " ".join(file.read_text(errors="replace")[-300:] for file in sorted(self.folder.glob("log-*")))
        raise TrialError(f"{self.kind} did not start within {START_S:g} s: {why}; {logs}")


class Redfish(Server):
    """`sushy-static` on a folder of resources. old: the form `Power` instead of `EnvironmentMetrics`."""

    kind = "redfish"

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        super().__init__(folder)
        self._old, self._port = old, free_port()

    @classmethod
    def missing(cls) -> str:
        return "" if _script("sushy-static") else "sushy-static (pip install sushy-tools)"

    @property
    def name(self) -> str:
        return f"redfish://{USER}@127.0.0.1:{self._port}/Chassis/1?tls=off"

    def begin(self) -> None:
        self._run([_script("sushy-static") or "", "-i", "127.0.0.1", "-p", str(self._port), "-m", str(self.folder)])

    def write(self, watts: float) -> None:
        new = {"Id": "EnvironmentMetrics", "PowerWatts": {"Reading": round(watts)}}
        old = {"Id": "Power", "PowerControl": [{"MemberId": "0", "PowerConsumedWatts": round(watts)}]}
        self._write(json.dumps(old if self._old else new))

    def garble(self) -> None:
        self._write('{"PowerControl": [{"PowerConsumedWatts": "n/a"}], "PowerWatts": {"Reading": "n/a"}}')

    def _write(self, text: str) -> None:
        folder = self.folder / "Chassis" / "1" / ("Power" if self._old else "EnvironmentMetrics")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "index.json", text)


class OverUdp(Server):
    """A server at a UDP port that reads its watts from a file. parts: of a watt in which the file counts."""

    parts = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port(socket.SOCK_DGRAM)

    def write(self, watts: float) -> None:
        write_whole(self.folder / "watts", str(round(watts * self.parts)))

    def garble(self) -> None:
        write_whole(self.folder / "watts", "n/a")


DCMI_SERVER = """
import sys, time
from pyghmi.ipmi.bmc import Bmc
class Controller(Bmc):
    def get_power_state(self): return "on"
    def power_on(self): pass
    def power_off(self): pass
    def handle_raw_request(self, request, session):
        if (request["netfn"], request["command"]) != (0x2C, 2):
            return super().handle_raw_request(request, session)
        watts = int(open(sys.argv[2]).read()).to_bytes(2, "little")
        stamp, period = int(time.time()).to_bytes(4, "little"), (1000).to_bytes(4, "little")
        session.send_ipmi_response(data=b"\\xdc" + watts * 4 + stamp + period + b"\\x40")
Controller({"admin": "secret"}, port=int(sys.argv[1]), address="::ffff:127.0.0.1").listen()
"""


class Dcmi(OverUdp):
    """A management controller of pyghmi, which answers the DCMI power reading."""

    kind = "ipmi (DCMI)"

    @classmethod
    def missing(cls) -> str:
        if importlib.util.find_spec("pyghmi") is None:
            return "pyghmi (pip install pyghmi)"
        return "" if shutil.which("ipmitool") else "ipmitool (apt-get install ipmitool)"

    @property
    def name(self) -> str:
        return f"ipmi://{USER}@127.0.0.1:{self._port}"

    def begin(self) -> None:
        self._run([sys.executable, "-c", DCMI_SERVER, str(self._port), str(self.folder / "watts")])


LAN = """name "bench"
set_working_mc 0x20
startlan 1
  addr 127.0.0.1 {port}
  priv_limit admin
  allowed_auths_admin none md2 md5 straight
  guid a123456789abcdefa123456789abcdef
endlan
user 2 true "{user}" "{password}" admin 10 none md2 md5 straight
"""
EMULATION = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
main_sdr_add 0x20 {record}
sensor_add 0x20 0 1 0x0b 0x01 poll 500 file "{file}" div=4
mc_enable 0x20
"""
SENSOR = "Total_Power"


class IpmiSim(OverUdp):
    """`ipmi_sim` with one sensor in steps of 4 W, which it reads from a file every 500 ms."""

    kind = "ipmi (sensor)"
    own_refresh_s = 0.5
    step = 4.0

    @classmethod
    def missing(cls) -> str:
        for tool, package in (("ipmi_sim", "openipmi"), ("ipmitool", "ipmitool")):
            if not shutil.which(tool):
                return f"{tool} (apt-get install {package})"
        return ""

    @property
    def name(self) -> str:
        return f"ipmi://{USER}@127.0.0.1:{self._port}/{SENSOR}"

    def begin(self) -> None:
        name = SENSOR.encode()
        body = [32, 0, 1, 7, 1, 0x45, 0x43, 11, 1, *[0] * 6, 0, 6, 0, 0, 4, *[0] * 9, 255, 0, *[0] * 11]
        body += [0xC0 | len(name), *name]
        record = " ".join(map(str, [0, 0, 0x51, 1, len(body), *body]))
        (self.folder / "lan.conf").write_text(LAN.format(port=self._port, user=USER, password=PASSWORD))
        (self.folder / "sim.emu").write_text(EMULATION.format(record=record, file=self.folder / "watts"))
        (self.folder / "state").mkdir(exist_ok=True)
        self._run(["ipmi_sim", "-c", "lan.conf", "-f", "sim.emu", "-s", "state", "-n"])

    def garble(self) -> None:
        """ipmi_sim keeps its last value when its file is not a number, so it is killed instead."""
        self.kill()


class Snmp(OverUdp):
    """`snmpsim` with one object, in tenths of watts."""

    kind = "snmp"
    step = 0.1
    parts = 10

    @classmethod
    def missing(cls) -> str:
        if importlib.util.find_spec("puresnmp") is None:
            return "puresnmp (pip install puresnmp)"
        return "" if _script("snmpsim-command-responder") else "snmpsim (pip install snmpsim pysmi)"

    @property
    def name(self) -> str:
        return f"snmp://127.0.0.1:{self._port}/{OID}?scale=0.1"

    def begin(self) -> None:
        (self.folder / "cache").mkdir(exist_ok=True)
        package = importlib.util.find_spec("snmpsim")
        variation = Path(package.origin if package and package.origin else ".").parent / "variation"
        printer = self.folder / "print-watts.sh"
        printer.write_text(f"#!/bin/sh\ncat {self.folder}/watts\n")
        printer.chmod(0o700)
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / f"{PASSWORD}.snmprec").write_text(f"{OID}|2:subprocess|{printer}\n")
        self._run(
            [
                _script("snmpsim-command-responder") or "",
                f"--data-dir={self.folder}/data",
                f"--cache-dir={self.folder}/cache",
                f"--variation-modules-dir={variation}",
                f"--agent-udpv4-endpoint=127.0.0.1:{self._port}",
                *(["--process-user=root", "--process-group=root"] if os.geteuid() == 0 else []),
            ]
        )


class Nut(Server):
    """`upsd` with a `dummy-ups`, which reads its file within a second of a change."""

    kind = "nut"
    own_refresh_s = 1.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()

    @classmethod
    def missing(cls) -> str:
        there = Path("/lib/nut/dummy-ups").exists() and Path("/lib/nut/upsd").exists()
        return "" if there else "dummy-ups (apt-get install nut-server)"

    @property
    def name(self) -> str:
        return f"nut://pdu1@127.0.0.1:{self._port}"

    def begin(self) -> None:
        device = self.folder / "pdu1.dev"
        (self.folder / "run").mkdir(exist_ok=True)
        (self.folder / "ups.conf").write_text(f"[pdu1]\ndriver=dummy-ups\nport={device}\nmode=dummy-once\n")
        (self.folder / "upsd.conf").write_text(f"LISTEN 127.0.0.1 {self._port}\n")
        (self.folder / "upsd.users").write_text("")
        (self.folder / "upsd.users").chmod(0o600)
        env = {"NUT_CONFPATH": str(self.folder), "NUT_STATEPATH": str(self.folder / "run")}
        # In the foreground, so that they can be ended.
        self._run(["/lib/nut/dummy-ups", "-a", "pdu1", "-u", "root", "-i", "1", "-D"], env)
        self._run(["/lib/nut/upsd", "-u", "root", "-D"], env)

    def write(self, watts: float) -> None:
        write_whole(self.folder / "pdu1.dev", f"ups.realpower: {round(watts)}\n")

    def garble(self) -> None:
        file = self.folder / "pdu1.dev"
        write_whole(file, "ups.realpower: n/a\n")
        # It reads the file again only if its time differs by a second.
        os.utime(file, (time.time() + 2, time.time() + 2))


class WattsUp(Server):
    """A pseudo-terminal that speaks the protocol of Watts up? .Net: records on request, or one a second."""

    kind = "wattsup"
    step = 0.1
    own_refresh_s = 1.0
    sends = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._watts: float | str = 100.0
        self._link = folder / "ttyUSB0"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._master = -1

    @property
    def name(self) -> str:
        return f"wattsup:{self._link}"

    def begin(self) -> None:
        self._master, slave = pty.openpty()
        tty.setraw(slave)
        self._slave = slave
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(os.ttyname(slave))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            os.close(self._slave)
            os.close(self._master)

    def write(self, watts: float) -> None:
        self._watts = watts

    def garble(self) -> None:
        self._watts = "??"

    def _serve(self) -> None:
        received, every_s, due_s = "", 0, 0.0
        while not self._ended.is_set():
            wait_s = max(0.0, min(0.05, due_s - time.monotonic())) if every_s else 0.05
            if select.select([self._master], [], [], wait_s)[0]:
                received += os.read(self._master, 4096).decode("ascii", "replace")
            while ";" in received:
                packet, _, received = received.partition(";")
                fields = packet[packet.rfind("#") + 1 :].split(",")
                if fields[0] == "D":
                    self._send()
                if fields[0] == "L":
                    every_s = int(float(fields[5])) if fields[1:4] == ["W", "3", "E"] else 0
                    due_s = time.monotonic() + every_s
            if every_s and time.monotonic() >= due_s:
                due_s += every_s
                self._send()

    def _send(self) -> None:
        watts = self._watts
        if isinstance(watts, str):
            record = "#d,-,18," + watts
        else:
            amperes = f"{watts / 0.2304:.0f}"
            record = f"#d,-,18,{watts * 10:.0f},2304,{amperes},0" + ",_" * 9 + f",100,0,0,500,{watts * 10:.0f}"
        with contextlib.suppress(OSError):
            os.write(self._master, f"{record};\r\n".encode())


class Tree(Server):
    """A tree of sysfs files below the host's root."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.host = Host({}, root=folder)

    def kill(self) -> None:
        shutil.rmtree(self.folder / "sys", ignore_errors=True)

    def _put(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)


class Hwmon(Tree):
    """An ACPI power meter."""

    kind, name, step = "hwmon", "hwmon", 0.1
    _base = "sys/class/hwmon/hwmon0"

    def write(self, watts: float) -> None:
        self._put(f"{self._base}/name", "power_meter\n")
        self._put(f"{self._base}/power1_average", f"{round(watts * 1e6)}\n")

    def garble(self) -> None:
        self._put(f"{self._base}/power1_average", "\n")


class EnergyTree(Tree):
    """Counters of energy. `write` lets them grow by that power since the last call; `count` sets them."""

    base_joules = 0.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._joules, self._last_s = 0.0, time.monotonic()

    def write(self, watts: float) -> None:
        now_s = time.monotonic()
        self._joules += watts * (now_s - self._last_s)
        self._last_s = now_s
        self.count(self._joules)

    @abstractmethod
    def count(self, joules: float) -> None:
        """Shows the energy since the start."""


class Rapl(EnergyTree):
    """Two packages with cores inside, and memory apart. The first package wraps after `wrap_joules`."""

    kind, name = "rapl", "rapl"
    wrap_joules = 8000.0
    zones: ClassVar = {"0": ("package-0", 0.6), "0:0": ("core", 0.5), "0:1": ("dram", 0.1), "1": ("package-1", 0.3)}
    _base = "sys/class/powercap/intel-rapl:"
    # The first package wraps after 1000 J.
    base_joules = (wrap_joules - 600.0) / 0.6

    def count(self, joules: float) -> None:
        for number, (_, share) in self.zones.items():
            counted = (joules + self.base_joules) * share % self.wrap_joules
            self._put(f"{self._base}{number}/energy_uj", f"{round(counted * 1e6)}\n")

    def begin(self) -> None:
        for number, (name, _) in self.zones.items():
            self._put(f"{self._base}{number}/name", f"{name}\n")
            self._put(f"{self._base}{number}/max_energy_range_uj", f"{round(self.wrap_joules * 1e6)}\n")

    def garble(self) -> None:
        self._put("sys/class/powercap/intel-rapl:0/energy_uj", "garbage\n")


class Resctrl(EnergyTree):
    """The energy counter of the cores of one package."""

    kind, name = "resctrl", "resctrl"

    def count(self, joules: float) -> None:
        self._put("sys/fs/resctrl/mon_data/mon_PERF_PKG_00/core_energy", f"{joules:.6f}\n")

    def garble(self) -> None:
        self._put("sys/fs/resctrl/mon_data/mon_PERF_PKG_00/core_energy", "Unavailable\n")


SERVERS: Mapping[str, Callable[[Path], Server]] = {
    "redfish": Redfish,
    "redfish, old form": lambda folder: Redfish(folder, old=True),
    "ipmi (DCMI)": Dcmi,
    "ipmi (sensor)": IpmiSim,
    "snmp": Snmp,
    "nut": Nut,
    "wattsup": WattsUp,
    "hwmon": Hwmon,
    "rapl": Rapl,
    "resctrl": Resctrl,
}
"""Every meter, by name."""


@contextlib.contextmanager
def password() -> Iterator[None]:
    """The servers' password, where meters look for it."""
    from partywall.power.address import PASSWORD as VARIABLE  # noqa: PLC0415 - two constants of one name

    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = PASSWORD
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _script(name: str) -> str | None:
    """A program of this Python's environment, or of the path."""
    own = Path(sys.executable).parent / name
    return str(own) if own.exists() else shutil.which(name)
