"""A guest gets as long to start as this host needs, and what failed on a busy host is tried again."""

import dataclasses

import pytest

from partywall.errors import UsageError
from partywall.host import waits
from partywall.sandbox.qemu import accelerator
from partywall.testing import fake_host

REFUSES = "hello was not answered"
TICKS = 100


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    monkeypatch.delenv(waits.VARIABLE, raising=False)


def with_files(root, *, load=0.0, cpus=2, used_s=0.0, steal_s=0.0, **changes):
    """A host with /dev/kvm, whose CPUs worked for so long, and were taken away for so long, since it was booted."""
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kvm").touch()
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/loadavg").write_text(f"{load:.2f} 0.00 0.00 1/99 1234\n")
    used, steal = (round(seconds * TICKS) for seconds in (used_s, steal_s))
    lines = [f"cpu  {used} 0 0 987654 0 0 0 {steal} 0 0", *(f"cpu{cpu} 0 0 0 0 0 0 0 0 0 0" for cpu in range(cpus))]
    (root / "proc/stat").write_text("\n".join([*lines, "intr 1"]))
    return fake_host(root=root, **changes)


def start_s(host, *, times_slower=1.0):
    return waits.start_s(10, host, lambda: waits.REFERENCE_S * times_slower)


def test_the_time_to_start_grows_with_the_load_and_with_a_slow_processor(tmp_path):
    assert start_s(with_files(tmp_path)) == 10
    assert start_s(with_files(tmp_path, load=1.0)) == 10
    assert start_s(with_files(tmp_path, load=5.0)) == 30
    assert start_s(with_files(tmp_path, load=5.0, cpus=6)) == 10
    assert start_s(with_files(tmp_path), times_slower=12) == pytest.approx(120)
    assert start_s(with_files(tmp_path, load=3.0), times_slower=12) == pytest.approx(240)
    assert start_s(with_files(tmp_path), times_slower=0.5) == 10


def test_the_time_to_start_has_an_end_and_never_falls_below_the_usual_one(tmp_path):
    slow = with_files(tmp_path, load=500)
    assert start_s(slow, times_slower=20) == waits.LONGEST_S
    assert waits.start_s(2 * waits.LONGEST_S, slow) == 2 * waits.LONGEST_S


def test_a_host_that_shows_no_load_gives_the_usual_time(tmp_path):
    for text in ("", "none 0.00"):
        host = with_files(tmp_path)
        (tmp_path / "proc/loadavg").write_text(text)
        assert start_s(host) == 10
    assert start_s(fake_host()) == 10


def test_this_processor_takes_some_time_for_the_loop():
    assert waits.REFERENCE_S / 50 < waits._loop() < waits.REFERENCE_S * 100


def test_the_user_can_set_the_time_to_start(tmp_path, monkeypatch):
    monkeypatch.setenv(waits.VARIABLE, "2min")
    assert start_s(with_files(tmp_path, load=500)) == 120


@pytest.mark.parametrize(
    ("text", "said"), [("soon", "'soon' is not a duration"), ("60", "not a duration"), ("-3s", "greater than 0")]
)
def test_a_wrong_time_to_start_is_refused_by_name(tmp_path, monkeypatch, text, said):
    monkeypatch.setenv(waits.VARIABLE, text)
    with pytest.raises(UsageError, match=f"{waits.VARIABLE}.*{said}"):
        start_s(with_files(tmp_path))


def test_kvm_gets_the_time_that_the_host_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "_loop", lambda: waits.REFERENCE_S * 10)
    given = []
    accelerator.choose("auto", with_files(tmp_path, load=3.0, try_kvm=lambda within_s: given.append(within_s) or ""))
    assert given == [pytest.approx(accelerator.DEADLINE_S * 10 * 2)]


def failing(root, *, others_s=0.0, steal_s=0.0, own_s=0.0, monkeypatch):
    """A host whose KVM fails after 10 s, in which others used CPU time, and our guest some too."""
    tried = []
    times = dataclasses.make_dataclass("Times", ["user", "system", "children_user", "children_system"])
    monkeypatch.setattr(waits.time, "monotonic", lambda: 10.0 * len(tried))
    monkeypatch.setattr(waits.os, "times", lambda: times(1.0, 1.0, own_s * len(tried), 0.0))
    monkeypatch.setattr(waits.os, "sysconf", lambda _name: TICKS)
    monkeypatch.setattr(waits, "_loop", lambda: waits.REFERENCE_S)

    def fail(_within_s):
        tried.append(1)
        with_files(root, used_s=(others_s + own_s) * len(tried), steal_s=steal_s * len(tried))
        return REFUSES

    return with_files(root, try_kvm=fail), tried


@pytest.mark.parametrize(
    ("seen", "attempts"),
    [
        ({}, 1),
        # A guest that never starts uses a CPU itself.
        ({"own_s": 10.0}, 1),
        ({"others_s": 10.0}, 1),
        ({"others_s": 19.0}, 2),
        ({"others_s": 10.0, "own_s": 10.0}, 1),
        # A hypervisor gave this host's CPUs to others.
        ({"steal_s": 15.0}, 2),
    ],
)
def test_a_failure_on_a_busy_host_is_not_remembered(tmp_path, monkeypatch, seen, attempts):
    host, tried = failing(tmp_path, monkeypatch=monkeypatch, **seen)
    assert accelerator.untried(host)
    assert accelerator.choose("auto", host).name == "tcg"
    assert accelerator.untried(host) is (attempts == 2)
    accelerator.choose("auto", host)
    assert len(tried) == attempts


def test_doctor_says_when_and_why_kvm_was_given_up_and_how_to_try_again(tmp_path, monkeypatch):
    host, _ = failing(tmp_path, monkeypatch=monkeypatch)
    monkeypatch.setattr(accelerator.time, "strftime", lambda _form: "2026-01-02 03:04")
    accelerator.choose("auto", host)
    verdict = accelerator.verdict(host)
    assert not verdict.works
    assert verdict.text == f"/dev/kvm opens, but a guest did not come up at 2026-01-02 03:04 ({REFUSES})"
    assert f"{waits.VARIABLE}=2min partywall vm check" in verdict.remedy


def test_doctor_says_that_the_host_was_busy(tmp_path, monkeypatch):
    host, _ = failing(tmp_path, others_s=18.6, monkeypatch=monkeypatch)
    accelerator.choose("auto", host)
    verdict = accelerator.verdict(host)
    assert "while other work used 1.9 of 2 CPUs" in verdict.text
    assert "the next guest tries again" in verdict.remedy


def test_more_time_from_the_user_is_a_new_attempt_and_less_is_none(tmp_path, monkeypatch):
    host, tried = failing(tmp_path, monkeypatch=monkeypatch)
    for text, attempts in (("", 1), ("5s", 1), ("1min", 2), ("1min", 2), ("", 2), ("2min", 3)):
        monkeypatch.setenv(waits.VARIABLE, text)
        accelerator.choose("auto", host)
        assert len(tried) == attempts, text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot": "", "failure": "it was slow"}', '{"attempt": {}}'])
def test_a_verdict_of_an_older_version_or_half_a_file_is_no_verdict(tmp_path, content):
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / accelerator.VERDICT).write_text(content)
    assert accelerator.untried(with_files(tmp_path))
    assert accelerator.verdict(with_files(tmp_path)).works
