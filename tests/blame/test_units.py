"""Levers on units of a real systemd, which is the first process of its own namespaces."""

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall.host.settings import ledger
from tests import systemd

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(bool(why := systemd.lacking()), reason=f"a systemd needs: {why}"),
]
PLAIN, LIMITED, BY_HAND = "plain.service", "limited.service", "by-hand.service"
UNITS = (PLAIN, LIMITED, BY_HAND)
SCRIPT = """
import os, sys, time, random, itertools
from partywall.blame.measure.levers import Held, lever
from partywall.blame.measure.owners import Kind
from partywall.sandbox import cgroups
here = cgroups.read()
levers = {name: lever(Kind.CPU, f"/system.slice/{name}", here, has_systemd=True) for name in sys.argv[1:]}
"""
PULSES = """
with Held(levers) as held:
    print(os.getpid(), flush=True)
    for n in itertools.count():
        held.beat()
        for name in levers:
            held.hold(name, 0.3, 0.5 + 0.01 * (n % 7)) if random.random() < 0.5 else held.release(name)
        time.sleep(random.random() * 0.002)
"""
ONE_PULSE = """
with Held(levers) as held:
    for name in levers:
        held.hold(name, 0.3, 0.5)
    os.system("systemctl daemon-reload >/dev/null")
    print({name: open(next(iter(each.owner.undo.files)).parent / FILE).read() for name, each in levers.items()})
"""
LIMITS = """
import glob, json, sys
def content(*patterns):
    return {name: open(name).read() for each in patterns for name in sorted(glob.glob(each, recursive=True))}
limits = [f"/sys/fs/cgroup/**/system.slice/{unit}/{file}" for unit in sys.argv[1:] for file in ("cpu.cfs*s", "cpu.max")]
print(json.dumps([content(*limits), content("/run/systemd/system.control/**/*.conf")]))
"""


@pytest.fixture(scope="module")
def host() -> Iterator[systemd.Host]:
    """Three services: without a limit, with one and a runtime one before us, and with one that somebody wrote."""
    with systemd.started() as one:
        one.service(PLAIN)
        one.service(LIMITED, "CPUQuota=80%")
        one.run("systemctl", "set-property", "--runtime", LIMITED, "CPUQuota=70%")
        one.service(BY_HAND)
        one.python(
            "import glob\nfor name in glob.glob('/sys/fs/cgroup/**/by-hand.service/cpu.*', recursive=True):\n"
            "  if name.endswith('quota_us'): open(name, 'w').write('61234')\n"
            "  if name.endswith('cpu.max'): open(name, 'w').write('61234 100000')"
        )
        yield one


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("PARTYWALL_STATE", str(folder))
    return folder


def now(host: systemd.Host) -> list[dict[str, str]]:
    return json.loads(host.python(LIMITS, *UNITS))


@pytest.mark.usefixtures("state")
def test_a_pulse_outlives_a_reload_of_systemd_and_everything_is_as_before(host: systemd.Host):
    before = now(host)
    assert "61234" in str(before[0])
    assert "CPUQuota=70%" in str(before[1])
    file = "cpu.max" if "cpu.max" in str(before[0]) else "cpu.cfs_quota_us"
    during = host.python(SCRIPT + ONE_PULSE.replace("FILE", repr(file)), *UNITS)
    assert during.count("3500") == 3, during
    assert now(host) == before


@pytest.mark.usefixtures("state")
def test_the_limits_of_others_stay_as_somebody_wrote_them_behind_systemds_back(host: systemd.Host):
    before = now(host)
    assert "61234" in str(before[0])
    file = "cpu.max" if "cpu.max" in str(before[0]) else "cpu.cfs_quota_us"
    assert "3500" in host.python(
        SCRIPT + ONE_PULSE.replace("FILE", repr(file)).replace("daemon-reload", "--version"), PLAIN
    )
    assert now(host) == before


@pytest.mark.usefixtures("state")
def test_a_unit_that_ends_in_a_pulse_leaves_nothing_that_its_next_start_would_read(host: systemd.Host):
    host.service("ends.service")
    before = now(host)
    code = SCRIPT + (
        "with Held(levers) as held:\n"
        "    held.hold('ends.service', 0.3, 0.5)\n"
        "    os.system('systemctl stop ends.service')\n"
    )
    host.python(code, "ends.service")
    assert now(host) == before
    host.run("systemctl", "start", "ends.service")
    assert host.run("systemctl", "show", "ends.service", "-P", "CPUQuotaPerSecUSec").strip() == "infinity"
    host.run("systemctl", "stop", "ends.service")


def test_only_units_with_the_label_are_suspects_unless_told_otherwise(host: systemd.Host):
    host.service("agrees.service", "[X-Partywall]", "Blame=yes")
    try:
        code = (
            "import sys\nfrom partywall.blame.measure import labels\n"
            "print([labels.Labels(has_systemd=True).lacking(f'/system.slice/{name}') for name in sys.argv[1:]])"
        )
        said = host.python(code, "agrees.service", PLAIN)
        assert said.startswith("['', 'has no [X-Partywall] Blame=yes in its unit; name it, or use --any'"), said
    finally:
        host.run("systemctl", "stop", "agrees.service")


@contextlib.contextmanager
def experiment(host: systemd.Host) -> Iterator[str]:
    argv = host.argv(sys.executable, "-c", SCRIPT + PULSES, *UNITS)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = running.stdout.readline().strip()
        assert pid, "it did not begin"
        try:
            yield pid
        finally:
            subprocess.run(host.argv("kill", "-9", pid), check=False)
            running.wait()


def test_kills_at_random_moments_and_reloads_leave_every_unit_byte_for_byte(host: systemd.Host, state: Path):
    before, chance, was_changed = now(host), random.Random(53), False
    for number in range(5):
        with experiment(host):
            if number % 2:
                host.run("systemctl", "daemon-reload")
            was_changed |= now(host) != before
            time.sleep(chance.random() * 0.05)
        deadline = time.monotonic() + 20
        while (state / ledger.LEVERS).exists():
            assert time.monotonic() < deadline, "the watchdog did not put it back"
            time.sleep(0.01)
        assert now(host) == before
    assert was_changed, "no pulse was ever seen"


@pytest.mark.usefixtures("state")
def test_a_unit_that_systemd_does_not_know_and_a_freeze_that_it_cannot_do_are_refused(host: systemd.Host):
    code = SCRIPT.rpartition("levers =")[0] + (
        "from partywall.errors import CapabilityError\n"
        "from partywall.blame.measure.units import unit_of\n"
        "from partywall.blame.measure.files import files_of\n"
        "try: unit_of('gone.service', files_of(Kind.CPU, sys.argv[1], here))\n"
        "except CapabilityError as error: print(error)\n"
    )
    said = host.python(code, f"/system.slice/{PLAIN}")
    assert "systemd owns its limits, and Unit gone.service not loaded" in said
