"""Generators in libvirt domains: how options name them, and a load and a study with a real libvirtd."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from partywall import study as studies
from partywall.agent import binary
from partywall.cli import machine
from partywall.errors import Exit, UsageError
from partywall.host import Host, free_port
from partywall.host.label import Label
from partywall.load import tomcat
from partywall.load.document import Generator
from partywall.load.report import generator_row
from partywall.load.values import GeneratorRow
from partywall.sandbox import Settings, reaper
from partywall.sandbox.lab import ip
from partywall.sandbox.libvirt import domain, library
from partywall.sandbox.qemu.initramfs import initramfs, loaded
from partywall.sandbox.qemu.kernel import GuestKernel
from partywall.sandbox.qemu.machine import KERNEL_ARGUMENTS, Nic
from partywall.study.document import Machines
from partywall.study.generation import cells
from partywall.study.generation.model import Cell
from partywall.testing import libvirt as daemons

NAME = "papers/load-generation-netto"
LACKING = daemons.lacking()
HERE, THERE = "198.18.79.1", "198.18.79.2"
"""Addresses that RFC 2544 keeps for measuring: of this host, and of the host of the domains."""


@pytest.mark.parametrize(
    ("text", "named", "place"),
    [
        ("load1", Generator(host="load1"), "load1"),
        ("admin@load2", Generator(host="admin@load2"), "admin@load2"),
        ("libvirt:gen1", Generator(domain="gen1"), "domain gen1"),
        (
            "libvirt:gen1@qemu+ssh://root@kvm1/system",
            Generator(domain="gen1", uri="qemu+ssh://root@kvm1/system"),
            "domain gen1 of qemu+ssh://root@kvm1/system",
        ),
    ],
)
def test_an_option_names_a_host_for_ssh_or_a_libvirt_domain(text, named, place):
    assert machine.generator(text, "--generator") == named
    assert named.place == place


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("libvirt:", "--generator: 'libvirt:': domain cannot be '' — write for example web1"),
        ("libvirt:a@", "--generator: 'libvirt:a@': uri cannot be '' — write for example qemu:///system"),
        ("libvirt:-a", "domain cannot be '-a'"),
        ("-a", "--generator: '-a' is not a host for ssh"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_with_an_example(text, said):
    with pytest.raises(UsageError) as reported:
        machine.generator(text, "--generator")
    assert said in str(reported.value)


def test_a_row_of_an_emulated_generator_says_so():
    one = GeneratorRow("domain gen1", "domain gen1", 3, 3, 0, {10: 3}, 0.5, 2, 3, 250_000, emulated=True)
    other = replace(one, name="west", place="load1", emulated=False)
    both = replace(one, name="guest")
    names = [generator_row(each)["generator"] for each in (one, other, both)]
    assert names == ["domain gen1 (emulated)", "west (load1)", "guest (domain gen1, emulated)"]


class Domains:
    """A libvirtd whose guests reach this host at HERE. Its domains are a user's: each has an agent on its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon = daemons.Daemon(folder)
        network = f"/proc/{self.daemon.process.pid}/ns/net"
        # The link ends with the daemon's network.
        ip("link", "add", "pwt-domains", "type", "veth", "peer", "name", "uplink", "netns", network)
        ip("addr", "add", f"{HERE}/30", "dev", "pwt-domains")
        ip("link", "set", "pwt-domains", "up")
        for change in (("addr", "add", f"{THERE}/30", "dev", "uplink"), ("link", "set", "uplink", "up")):
            subprocess.run(["nsenter", f"--net={network}", "ip", *change], check=True)
        self.connection = library.connect(self.daemon.uri)

    def start(self, name: str) -> Generator:
        """A running domain that starts again after its agent has ended, as a service of a user's guest does."""
        kernel, initial = GuestKernel.prepared(), self.folder / "initramfs"
        initial.write_bytes(initramfs(loaded(binary.find().read_bytes()), kernel.module_contents()))
        settings = Settings(name=name, backend="libvirt", cpus=(0,), files=False)
        xml = domain.definition(settings, name, "qemu", domain.Boot(kernel.image, initial), None)
        interface = "<interface type='user'><model type='virtio'/></interface>"
        for old, new in (
            (KERNEL_ARGUMENTS, " ".join([KERNEL_ARGUMENTS, *Nic.user().arguments])),
            ("<on_poweroff>destroy", "<on_poweroff>restart"),
            ("<on_reboot>destroy", "<on_reboot>restart"),
            ("</devices>", f"{interface}</devices>"),
        ):
            assert old in xml
            xml = xml.replace(old, new)
        self.connection.createXML(xml, 0)
        return Generator(domain=name, uri=self.daemon.uri)

    def stop(self) -> None:
        self.connection.close()
        self.daemon.stop()


@pytest.fixture(scope="module")
def domains(tmp_path_factory):
    started = Domains(tmp_path_factory.mktemp("libvirt"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def gen1(domains):
    return domains.start("gen1")


@pytest.fixture
def url():
    """A service of this host that guests reach."""
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", HERE, "--directory", "/usr/share/doc"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((HERE, port), timeout=1):
                break
        yield f"http://{HERE}:{port}/"
        server.kill()


def partywall(*words):
    command = [sys.executable, "-m", "partywall", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.host
@pytest.mark.skipif(bool(LACKING), reason=f"domains need: {LACKING}")
class TestReal:
    def test_a_load_comes_from_a_domain_that_an_option_names_and_says_that_it_is_emulated(self, gen1, url, tmp_path):
        out = tmp_path / "kept"
        place = ("--generator", f"libvirt:gen1@{gen1.uri}")
        said = partywall("load", url, "--users", 2, "--think", "100ms", "--for", "3s", *place, "--out", out)
        assert said.returncode in (Exit.HOLDS, Exit.INCONCLUSIVE), said.stderr
        assert "errors: none" in said.stdout
        about = json.loads((out / "load.json").read_text())
        assert about["generator"] == f"{gen1.place} (emulated); 1 thread each"
        (generator,) = about["generators"]
        assert (generator["name"], generator["emulated"]) == (gen1.place, True)
        assert 0 < generator["clock_error_ns"] < 100_000_000
        assert sum(second["requests"] for second in pq.read_table(out / "seconds.parquet").to_pylist()) > 5

    def test_a_domain_that_does_not_exist_is_reported_with_those_that_do(self, gen1, url, tmp_path):
        out = tmp_path / "kept"
        said = partywall("load", url, "--generator", f"libvirt:nobody@{gen1.uri}", "--out", out)
        assert said.returncode == Exit.USAGE
        assert "--generator: " in said.stderr
        assert "no domain has this name; there are: gen1" in said.stderr
        assert "Traceback" not in said.stderr

    @pytest.mark.skipif(bool(tomcat.missing(Host.here())), reason=tomcat.missing(Host.here()) or "-")
    def test_a_cell_of_the_study_is_measured_in_a_domain_and_marked_as_emulated(self, gen1, tmp_path):
        study = cells.load(studies.find(NAME).read_bytes(), NAME)
        # On a busy host an emulated guest needs seconds for one iteration, and only whole ones have a response time.
        form = study.forms["short"].model_copy(update={"hold": 12_000_000_000, "compress": 10_000})
        named = Machines(physical=Generator(host="nobody"), sandboxes=(gen1,), address=HERE)
        label = Label.create(f"test-domains-{os.getpid()}", tmp_path)
        try:
            with tomcat.running(label, HERE) as service:
                cell = Cell(generator="sandbox", users=4)
                observed = cells.observe(study, form, [service], cell, 0, tmp_path, machines=named)
        finally:
            reaper.clean(label)
        assert observed.emulated
        assert observed.values["errors"] == 0
        assert observed.values["response_s"] > observed.values["pages_s"] > 0
        assert observed.sent[gen1.place] > 3
        assert observed.values["cpu_percent"] > 0
        assert 0 < observed.clock_error_ns < 100_000_000
