"""Commands around a part's runs: shown, carried out around each run, and what they set as the x of a figure."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from partywall import study as studies
from partywall.agent import binary
from partywall.cli.app import app
from partywall.errors import TrialError, UsageError
from partywall.events import silent
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Settings, cgroups, reaper
from partywall.sandbox.libvirt import domain
from partywall.sandbox.qemu.initramfs import initramfs, loaded
from partywall.sandbox.qemu.kernel import GuestKernel
from partywall.study.document import StudyRequest
from partywall.study.isolation import around, tables
from partywall.study.isolation.kind import Isolation, Place, _jobs, _shown
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host
from partywall.testing import libvirt as daemons
from tests.study.made_up import part

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "other-hypervisor.yaml"
LACKING = daemons.lacking()


def example():
    return Isolation().read(EXAMPLE.read_bytes(), str(EXAMPLE))


def test_the_example_sets_each_limit_before_its_part_and_none_after():
    jobs = {job.name: job for job in _jobs(example(), StudyRequest(), Place((0, 1), polls=False))}
    assert list(jobs) == [f"tested-{kind}-{share}" for kind in ("integer", "RAM") for share in (100, 75, 25)]
    command = "powershell Set-VMProcessor tested -Maximum 25 -Reserve 25"
    assert jobs["tested-RAM-25"].before == ("ssh", "administrator@hyperv", command)
    assert jobs["tested-RAM-25"].after[-1].endswith("-Maximum 100 -Reserve 0")


def test_the_commands_are_shown_and_refused_unless_they_are_allowed():
    refused = pytest.raises(UsageError, match=r"the study would run these commands")
    with refused as seen:
        Isolation().check(example(), StudyRequest(), fake_host(), WORK_ROOT, allow_commands=False)
    text = str(seen.value)
    assert (
        "part tested-integer-75, before it, on this host: ssh administrator@hyperv 'powershell Set-VMProcessor "
        "tested -Maximum 75 -Reserve 75'" in text
    )
    assert text.count("after it, on this host") == 6
    assert "again with --allow-commands" in text


def test_the_other_command_follows_also_after_an_error(tmp_path):
    def touch(name):
        return "touch", str(tmp_path / name)

    with around.held("part", touch("a"), touch("b"), silent):
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "b").exists()
    with pytest.raises(KeyboardInterrupt), around.held("part", (), touch("c"), silent):
        raise KeyboardInterrupt
    assert (tmp_path / "c").exists()
    with pytest.raises(TrialError), around.held("part", ("false",), touch("d"), silent):
        pytest.fail("nothing is measured after a command that failed")
    assert (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sh", "-c", "echo no such VM >&2; exit 3"), "exit code 3: no such VM — try it by hand"),
        (("/nowhere/virsh",), "/nowhere/virsh: No such file or directory — "),
        (("sleep", "10"), "did not end within 0.2 s"),
    ],
)
def test_a_command_that_fails_is_named_with_what_it_said(argv, said, monkeypatch):
    monkeypatch.setattr(around, "DEADLINE_S", 0.2 if argv[0] == "sleep" else 60)
    with pytest.raises(TrialError, match="part-25: ") as error, around.held("part-25", argv, (), silent):
        pytest.fail("measured")
    assert said in str(error.value)


def test_a_run_without_a_limit_stands_for_the_bare_host():
    scenario = {
        "victims": {"tested": {"probe": "integer"}},
        "aggressors": {"integer": {"stressor": "integer"}, "ram": {"stressor": "memory-write"}},
    }

    def run(percent, rate, benchmark="integer"):
        def effect(_trial, treatment):
            return rate * (0.9 if treatment.aggressor == "integer" else 1.0)

        values = {"benchmark": benchmark, "percent": percent, "share": percent / 100}
        return part(scenario, effect, part="tested", values=values)

    def points(rule, runs):
        return {at.place: at.measured for at in tables.points(rule, runs, "process", _shown)}

    runs = [run(25, 2.4e6), run(100, 1e7), run(75, 7.5e6), run(100, 4e6, "RAM")]
    (relative,), (efficiency,) = example().exhibits["fig 1"], example().exhibits["fig 1 (efficiency)"]
    got = points(relative, runs)
    assert got["integer, no load", 25.0].value == pytest.approx(24, rel=0.01)
    assert got["integer, no load", 100.0].value == 100
    assert got["integer, integer load", 75.0].value == pytest.approx(67.5, rel=0.02)
    # The run without a limit is that of the same benchmark.
    assert got["RAM, no load", 100.0].value == 100
    assert points(efficiency, runs)["integer, no load", 25.0].value == pytest.approx(96, rel=0.01)
    assert points(relative, runs[:1]) == {}


class Read(NamedTuple):
    """The control group of a guest's virtual CPU. limit_us: of each 100 ms; None without a limit."""

    limit_us: int | None
    used_s: float
    at_s: float

    @classmethod
    def of(cls, folder):
        is_v2 = (folder / "cpu.max").exists()
        limit = (folder / ("cpu.max" if is_v2 else "cpu.cfs_quota_us")).read_text().split()[0]
        (thread,) = (folder / ("cgroup.threads" if is_v2 else "tasks")).read_text().split()
        used_ns = int(Path(f"/proc/{thread}/schedstat").read_text().split()[0])
        return cls(None if limit in ("max", "-1") else int(limit), used_ns / 1e9, time.monotonic())


@contextlib.contextmanager
def watched(name):
    """Reads the control group of each guest of this name until the end: readings by the number that libvirt gave it."""
    seen, ended = {}, threading.Event()

    def read():
        while not ended.wait(0.05):
            # It is coming up, or going, also while its folder is searched.
            with contextlib.suppress(OSError, ValueError):
                for folder in cgroups.read().folder("cpu", "/machine").glob(f"*-{name}.*/**/vcpu0"):
                    number = int(str(folder).split("/qemu-")[1].split("-")[0])
                    seen.setdefault(number, []).append(Read.of(folder))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        ended.set()
        reader.join()


@pytest.mark.host
@pytest.mark.skipif(bool(LACKING), reason=f"domains need: {LACKING}")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the neighbour needs a CPU other than the victim's")
def test_limits_that_a_command_sets_on_a_domain_of_libvirt_are_measured_in_it(tmp_path, monkeypatch):
    """virsh stands for the shell of another hypervisor: Partywall sets no limit here, and knows of none."""
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    # It boots again before each run, with a quarter of a CPU in one part.
    monkeypatch.setenv("PARTYWALL_GUEST_START", "3min")
    (tmp_path / "daemon").mkdir()
    daemon = daemons.Daemon(tmp_path / "daemon")
    label = Label.create(f"test-around-{os.getpid()}", Path("/var/tmp"))
    name, virsh = f"theirs-{os.getpid()}", f"virsh -q -c {daemon.uri}"
    try:
        xml, limited = tmp_path / "theirs.xml", tmp_path / "limited.sh"
        xml.write_text(definition(daemon, label, name))
        limited.write_text(
            f"{virsh} destroy {name}; set -e; {virsh} create {xml}\n"
            f"{virsh} schedinfo {name} --live --set vcpu_quota=$2\necho $1 $2 >> {tmp_path}/set\n"
        )
        subprocess.run(["sh", str(limited), "first", "-1"], check=True, capture_output=True)
        file = tmp_path / "by-hand.yaml"
        study = by_hand(daemon, name, str(limited))
        file.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in study.items()))
        options = ["--out", str(tmp_path / "out"), "--work-dir", str(tmp_path), "--allow-commands"]
        with watched(name) as seen:
            CliRunner().invoke(app, ["study", str(file), *options], catch_exceptions=False)
        calls = [line.split() for line in (tmp_path / "set").read_text().splitlines()]
        assert [call[0] for call in calls] == ["first", "before", "after", "before", "after"]
        assert sorted(call[1] for call in calls if call[0] == "before") == ["-1", "25000"]
        # Each call makes a guest. The limit was in force from the moment that the command set it to the end of the
        # part, in that part alone, and is gone after it.
        shares = {}
        for number, (when, quota) in enumerate(calls, start=1):
            limits = [each.limit_us for each in seen.get(number, ())]
            if quota == "-1":
                assert set(limits) <= {None}
            else:
                assert limits[limits.index(25_000) :] == [25_000] * limits.count(25_000)
            if when == "before":
                first, last = seen[number][limits.index(None if quota == "-1" else 25_000)], seen[number][-1]
                shares[quota] = (last.used_s - first.used_s) / (last.at_s - first.at_s)
        (now,) = cgroups.read().folder("cpu", "/machine").glob(f"*-{name}.*/**/vcpu0")
        assert Read.of(now).limit_us is None
        # The kernel may exceed a quota by a slice of the scheduler in each period.
        assert shares["25000"] < 0.3
        report = studies.report(StudyDirectory.open(tmp_path / "out"))
        assert report.incomplete == ()
        places = {point.place: point for each in report.comparisons for point in each.measured}
        got = places["integer, no load", 25.0]
        # On a busy host, the guest without a limit gets less than a whole CPU. What each guest got is known.
        expected = 100 * shares["25000"] / shares["-1"]
        assert got.low < 1.5 * expected
        assert got.high > expected / 1.5
    finally:
        subprocess.run([*virsh.split(), "destroy", name], check=False, capture_output=True)
        reaper.clean(label)
        daemon.stop()


def definition(daemon, label, name):
    """A domain of the user's, with an agent on its port."""
    image = label.state / "initramfs"
    kernel = GuestKernel.prepared()
    image.write_bytes(initramfs(loaded(binary.find().read_bytes()), kernel.module_contents()))
    wanted = Settings(name="guest", backend="libvirt", cpus=(0,), uri=daemon.uri, files=False)
    xml = domain.definition(wanted, name, "qemu", domain.Boot(kernel.image, image), None)
    # The agent is the first process of this guest, which ends with each trial. Unlike this one, a user's guest goes on.
    return re.sub(r"<(on_\w+)>destroy<", r"<\1>restart<", xml)


def by_hand(daemon, name, limited):
    there = {"backend": "libvirt", "uri": daemon.uri, "domain": name}
    scenario = {
        "victims": {"tested": {"probe": "integer", "sandbox": there}},
        "aggressors": {"load": {"stressor": "integer", "sandbox": {"backend": "process"}}},
        "timing": {"slot": "500ms", "guard": "100ms"},
    }
    part = {
        "each": [{"share": 1.0, "quota": -1}, {"share": 0.25, "quota": 25000}],
        "budget": {"short": "30s"},
        "before": ["sh", limited, "before", "$quota"],
        "after": ["sh", limited, "after", "-1"],
        "scenario": scenario,
    }
    shown = {"part": "tested", "victim": "tested", "value": "relative", "series": "integer, $beside", "x": "value"}
    shown |= {"beside": {"none": "no load"}, "of": "share", "over": {"share": 1.0, "quota": -1}}
    return {
        "partywall_study": 1,
        "name": "by-hand",
        "paper": "hyperv-quality",
        "backends": ["libvirt"],
        "forms": {"short": {"min_blocks": 8, "precision": "5%"}},
        "parts": {"tested": part},
        "exhibits": {"fig 1": [shown]},
    }
