"""The lab of stock hosts judges what it sees, and its matrix says what was seen."""

import argparse
import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from labs.hosts import checks, image, lab, limits, matrix, pinning
from labs.hosts import machine as machines
from labs.hosts.bench import Bench, FailedError, LackingError
from labs.hosts.catalogue import BACKPORTS, HOSTS, TRIXIE, Host, Shortfall
from labs.hosts.checks import CHECKS
from labs.hosts.image import Built, _mmdebstrap, requirements
from labs.hosts.lab import Result
from labs.hosts.limits import Kept
from labs.hosts.machine import HostEndedError, Machine, Output, StoodStillError
from partywall import study as studies

CANNOT = Host("h", "a host", TRIXIE, shortfalls={"guard": Shortfall("cannot", "needs root")})


@pytest.mark.parametrize(
    ("check", "status", "expected"),
    [
        ("run", "works", True),
        ("run", "failed", False),
        ("run", "cannot", False),
        ("guard", "cannot", True),
        # The catalogue is out of date.
        ("guard", "works", False),
        ("guard", "failed", False),
    ],
)
def test_a_host_that_does_less_or_more_than_the_catalogue_says_is_reported(check, status, expected):
    assert lab.as_expected(CANNOT, check, Result(status, "", 1.0)) is expected


def raising(error):
    def check(_bench):
        raise error

    return check


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (lambda _bench: "12 rows", ("works", "12 rows")),
        (raising(LackingError("needs root; run with sudo")), ("cannot", "needs root; run with sudo")),
        (raising(FailedError("a traceback")), ("failed", "a traceback")),
        (raising(KeyError("cells")), ("failed", "KeyError('cells')")),
    ],
)
def test_what_a_check_raises_is_its_outcome(monkeypatch, check, outcome):
    monkeypatch.setitem(CHECKS, "guard", check)
    bench = type("Bench", (), {"host": CANNOT})()
    assert lab._outcome(bench, "guard") == outcome


def test_a_host_with_two_nodes_also_shows_where_bound_memory_is(monkeypatch):
    kept = Kept("ceiling", 0.5, 0.5, 0.01, None)
    monkeypatch.setattr(limits, "short", lambda _bench: [kept])
    pages = {"1": 16384}
    monkeypatch.setattr(checks, "_seen", lambda _bench, _name, node: {"pages": pages} if node == "1" else {})
    each, two = (type("Bench", (), {"host": HOSTS[name]})() for name in ("debian-13", "debian-13-numa"))
    assert CHECKS["container-limits"](each) == str(kept)
    assert CHECKS["container-limits"](two) == f"{kept}; memory bound to node 1: 100.0% of its pages are there"
    pages |= {"0": 4096}
    with pytest.raises(FailedError, match=r"node 1: 80\.0% of its pages"):
        CHECKS["container-limits"](two)


@pytest.mark.parametrize(
    ("other", "fails"),
    [
        ({}, ""),
        ({"code": 5}, "0,2 instead of 0-3"),
        ({"without": ""}, "0-3 instead of 0-3"),
        ({"after": "0,2"}, "0,2 after it"),
        ({"killed": "0-3"}, "after kill -9 0-3"),
        ({"reaped": "0,2"}, "after reap 0,2"),
    ],
)
def test_smt_must_be_off_while_a_run_measures_and_on_after_it_and_after_a_killed_one(monkeypatch, other, fails):
    seen = {"before": "0-3", "without": "0,2", "after": "0-3", "killed": "0,2", "reaped": "0-3", "code": 0, **other}
    monkeypatch.setattr(checks, "_seen", lambda _bench, _name, **_: seen)
    if fails:
        with pytest.raises(FailedError, match=fails):
            CHECKS["smt"](None)
    else:
        assert "after kill -9 0,2, after reap 0-3" in CHECKS["smt"](None)


@pytest.mark.parametrize("place", ["docker", "root"])
@pytest.mark.parametrize(("code", "fails"), [(0, False), (3, False), (1, False), (5, True), (70, True)])
def test_the_load_check_judges_the_exit_code_of_partywall_everywhere(place, code, fails):
    class Reported:
        def run(self, command, **_):
            loads = "partywall load" in command
            return Output(command, code if loads else 0, "│ 25 │" if "sql" in command else "loaded", 1.0)

    machine = Reported()
    machine.host = Host("h", "a host", TRIXIE, place=place)
    bench = Bench(machine, Path("wheel"), Path("runs"))
    if fails:
        with pytest.raises(FailedError, match=f"exit code {code}"):
            CHECKS["load"](bench)
    else:
        assert CHECKS["load"](bench) == "25 requests in 5 s"


def test_shortfalls_and_long_checks_name_checks_that_there_are():
    for host in HOSTS.values():
        assert set(host.shortfalls) | set(host.long) <= set(CHECKS), host.name


def test_the_matrix_has_a_row_a_host_and_says_what_was_seen(tmp_path):
    path = tmp_path / "results.json"
    works = {"install": Result("works", "0.1.0", 1.0), "guard": Result("failed", "a traceback", 1.0)}
    tcg = {"accelerator": "tcg"}
    lab.remembered(path, "debian-13", tcg | {"date": "2026-01-01", "commit": "abc"}, works)
    refused = {"install": Result("cannot", "needs root", 1.0)}
    lab.remembered(path, "debian-13-user", tcg | {"date": "2026-01-02", "commit": "abc"}, refused)
    # Done again: the other check's result stays.
    again = {"guard": Result("works", "2 of 2 Mbit/s", 1.0)}
    record = lab.remembered(path, "debian-13", tcg | {"date": "2026-01-02", "commit": "def"}, again)
    text = matrix.matrix(record)
    assert "as root. Tried 2026-01-01 to 2026-01-02 at abc, def." in text
    assert "of his own. Tried 2026-01-02 at abc." in " ".join(text.split())
    assert "emulated" in text
    assert "| debian-13 | ✓ | ✓ |" in text
    assert "| debian-13-user | cannot | – |" in text
    assert "- install: cannot: needs root" in text


def test_what_is_otherwise_than_expected_is_reported_with_host_and_check():
    results = {"guard": Result("works", "2 of 2", 1.0), "run": Result("failed", "exit code 70", 1.0)}
    assert lab.unexpected(CANNOT, results) == ["h guard: 2 of 2", "h run: exit code 70"]


def test_a_limit_holds_by_its_rate_or_by_the_kernels_account_of_its_time():
    assert Kept("ceiling", 0.5, 0.52, 0.01, None).holds
    assert Kept("ceiling", 0.5, 0.45, 0.01, 0.501).holds
    # The rate agrees by chance, and the kernel does not.
    assert not Kept("ceiling", 0.5, 0.5, 0.01, 0.56).holds
    assert not Kept("ceiling", 0.5, 0.45, 0.01, 0.46).holds
    assert not Kept("ceiling", 0.5, 0.54, 0.01, None).holds


def test_an_image_asks_for_every_dependency_and_only_for_tools_that_run_tests():
    names = " ".join(requirements())
    assert "duckdb" in names
    assert "hypothesis" in names
    assert "mypy" not in names
    assert "ruff" not in names


def test_an_image_is_made_again_when_what_it_is_made_of_changes(monkeypatch, tmp_path):
    monkeypatch.setattr(image, "CACHE", tmp_path)
    monkeypatch.setattr(image, "_public_key", lambda: "key")
    names = [image.digest(TRIXIE), image.digest(replace(TRIXIE, packages=("fio",)))]
    monkeypatch.setattr(image, "__file__", str(tmp_path / "image.py"))
    (tmp_path / "image.py").write_text("# made in another way")
    assert len({*names, image.digest(TRIXIE)}) == 3


def test_what_nobody_used_for_a_month_is_removed(tmp_path):
    now_s, day_s, said = 1e9, 86400, []
    for name, days in (("debian-13-old", 31), ("wheels-3.13-old", 90), ("debian-13-new", 29), ("key", 400)):
        path = tmp_path / name
        path.write_text("") if name == "key" else path.mkdir()
        os.utime(path, (now_s, now_s - days * day_s))
    image.prune(tmp_path, said.append, now_s)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["debian-13-new", "key"]
    assert len(said) == 2


def test_backports_are_pinned_for_the_packages_that_want_them():
    options = " ".join(_mmdebstrap(BACKPORTS))
    assert "bookworm-backports" in options
    assert "src:qemu" in options
    assert "backports" not in " ".join(_mmdebstrap(TRIXIE))


class EndingMachine:
    """A host whose kernel ends in its first guard check."""

    boots = 0
    said = "Oops: int3: 0000"

    def __init__(self, host, *_):
        self.host = host
        self.boot_s = 1.0
        type(self).boots += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, _command):
        return Output("uname -r", 0, "6.12\n", 0.1)

    def faults(self):
        return []


def ends_once(machine):
    def check(_bench):
        if machine.boots == 1:
            raise HostEndedError(f"debian-13 ended during: guard; {machine.said}")
        return "2 of 2"

    return check


@pytest.mark.parametrize(("said", "boots", "guard"), [("Oops: int3: 0000", 2, "works"), ("Kernel panic", 1, "failed")])
def test_a_host_that_ends_of_the_emulators_fault_is_booted_again_once(monkeypatch, tmp_path, said, boots, guard):
    machine = type("M", (EndingMachine,), {"said": said})
    monkeypatch.setattr(lab, "Machine", machine)
    monkeypatch.setattr(lab.image, "built", lambda *_: None)
    monkeypatch.setitem(CHECKS, "install", lambda _bench: "0.1.0")
    monkeypatch.setitem(CHECKS, "guard", ends_once(machine))
    monkeypatch.setitem(CHECKS, "trace", lambda _bench: "5 ms")
    options = argparse.Namespace(out=tmp_path, accel="tcg", record=False)
    results = lab.tried(HOSTS["debian-13"], tmp_path, ["install", "guard", "trace"], options)
    assert (machine.boots, results["guard"].status) == (boots, guard)
    assert ("trace" in results) == (guard == "works")


def test_a_command_ends_when_its_machine_does(tmp_path):
    machine = Machine(HOSTS["debian-13"], Built(tmp_path, tmp_path, tmp_path), "tcg", tmp_path / "log", print)
    machine.console.write_text("quiet\nBUG: unable to handle page fault\nRIP: here\n")
    with subprocess.Popen(["sleep", "600"]) as process:
        machine._process = process
        machine._ssh = lambda _user, command: ["sh", "-c", command]
        assert machine.run("echo there").last == "there"
        assert machine.run("exec sleep 9", timeout_s=0.1).code == 124
        process.kill()
        process.wait()
        with pytest.raises(HostEndedError, match=r"ended during: true; .*\n  BUG: unable[^\n]*\n  RIP"):
            machine.run("true")
    assert machine.faults() == ["BUG: unable to handle page fault"]


def test_a_machine_that_stands_still_is_ended_and_booted_again(tmp_path, monkeypatch):
    for name, value in (("LOOK_S", 0.1), ("BANNER_S", 0.1), ("SILENT", 2)):
        monkeypatch.setattr(machines, name, value)
    machine = Machine(HOSTS["debian-13"], Built(tmp_path, tmp_path, tmp_path), "tcg", tmp_path / "log", print)
    machine._ssh = lambda _user, command: ["sh", "-c", command]
    # Connections are accepted, and nothing is said: QEMU's network forwards what a kernel never reads.
    with socket.create_server(("127.0.0.1", 0)) as forwarded, subprocess.Popen(["sleep", "600"]) as process:
        machine._process, machine.port = process, forwarded.getsockname()[1]
        with pytest.raises(StoodStillError, match="ended during: exec sleep 60") as raised:
            machine.run("exec sleep 60")
    assert raised.value.is_emulators


@pytest.mark.parametrize(("failures", "status"), [(0, "works"), (1, "works"), (2, "failed")])
def test_a_check_that_fails_is_done_once_more_and_the_first_failure_is_reported(monkeypatch, failures, status):
    tries = []

    def check(_bench):
        tries.append(1)
        if len(tries) <= failures:
            raise FailedError(f"too late, try {len(tries)}")
        return "2 of 2"

    monkeypatch.setitem(CHECKS, "guard", check)
    results, kept = {}, []
    bench = argparse.Namespace(host=HOSTS["debian-13"], machine=EndingMachine(HOSTS["debian-13"]))
    lab._check_all(bench, ["guard"], results, print, lambda result: kept.append(dict(result)))
    assert results["guard"].status == status
    assert kept == [results]
    assert ("too late, try 1" in results["guard"].text) is (failures > 0)


def test_the_page_shows_the_kept_results():
    record = json.loads(matrix.KEPT.read_text())
    assert set(record["hosts"]) <= set(HOSTS)
    assert f"\n{matrix.matrix(record)}\n" in matrix.DOCS.read_text()


def test_the_study_of_pinning_is_the_shipped_one_with_fewer_cells(tmp_path):
    file = tmp_path / "pinning.yaml"
    pinning.study(file)
    study = studies.kind_of(file).read(file.read_bytes(), str(file))
    assert len(study.cells) == len(pinning.USERS) * len(pinning.SHARES)


class CostingBench:
    """Answers with what the benchmark printed; keeps what it was called with."""

    def __init__(self, code, *lines):
        self.output = Output("", code, "\n".join(lines), 1.0)
        self.machine = self
        self.brought, self.command = [], ""

    def bring(self, files, _to):
        self.brought += files

    def shell(self, command, timeout_s):
        assert timeout_s > 0
        self.command = command
        return self.output


TBF = "  guard, holding (tbf): 299000 ns (half of them 1 to 2)"


def test_the_cost_of_a_frame_is_the_benchmarks_figure_where_the_guard_uses_fq():
    bench = CostingBench(0, TBF, "guard-cost: 202 ns (HTB 422) [bar met]")
    assert CHECKS["guard-cost"](bench) == "202 ns (HTB 422)"
    assert all(file.exists() for file in bench.brought)
    assert "--quick" not in bench.command
    assert CHECKS["guard-cost-short"](bench) == "202 ns (HTB 422)"
    assert "--quick" in bench.command


@pytest.mark.parametrize(
    ("code", "lines", "says"),
    [
        (1, [TBF, "guard-cost: 500 ns (HTB 422) [BAR NOT MET]"], "500 ns"),
        (0, ["guard-cost: 202 ns (HTB 422) [bar met]"], "did not use fq"),
    ],
)
def test_a_frame_that_costs_more_or_a_kernel_without_fq_fails(code, lines, says):
    with pytest.raises(FailedError, match=says):
        CHECKS["guard-cost"](CostingBench(code, *lines))
