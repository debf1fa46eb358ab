"""A guard that fails between attaching its hooks and its first round leaves nothing behind. A later end is reported."""

import contextlib
from types import SimpleNamespace

import pytest

from partywall.errors import AgentError, TrialError
from partywall.guard.measure import run


@pytest.mark.parametrize("fails", ["guard.remove", "write"])
def test_hooks_that_are_attached_are_removed_if_the_start_fails(monkeypatch, tmp_path, fails):
    calls, writes = [], []

    def call(method, **_):
        calls.append(method)
        if method == fails:
            raise AgentError("it died")

    def write(name, hooks, *, kept=True):
        writes.append((name, tuple(hooks), kept))
        if fails == "write" and len(writes) == 2:
            raise OSError(28, "No space left on device")

    kept = SimpleNamespace(client=SimpleNamespace(call=call), sources=[], hooks=["hook"], hold_at_source=lambda _: None)
    monkeypatch.setattr(run, "Agents", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(run, "Kept", lambda *_: kept)
    monkeypatch.setattr(run, "left", SimpleNamespace(
        reap=lambda: None, located=lambda *_: [], hooks=lambda _: [], state=lambda _: tmp_path / "state",
    ))  # fmt: skip
    monkeypatch.setattr(run, "_write", write)
    for name in ("_refuse", "_start"):
        monkeypatch.setattr(run, name, lambda *_: calls.append("start"))
    monkeypatch.setattr(run, "_remove", lambda _, name, hooks: calls.append(("removed", name, tuple(hooks))))
    flat = SimpleNamespace(start={"id": "edge", "hooks": ["hook"]})
    with pytest.raises((AgentError, OSError)), run.keep(flat):
        pytest.fail("it began")
    assert calls[-2:] == ["guard.stop", ("removed", "edge", ("hook",))]


@pytest.mark.parametrize(("method", "what"), [("gone", "the guard's agent"), ("ended", "the guard")])
def test_a_guard_that_ends_on_its_own_is_no_guard_without_reports(monkeypatch, method, what):
    messages = [(run.AGENT, method, {"id": "edge", "reason": "its thread guard panicked"})]
    monkeypatch.setattr(run, "_attached", lambda _: SimpleNamespace())
    kept = run.Kept(SimpleNamespace(start={"hooks": []}), SimpleNamespace(take=lambda _: messages))
    with pytest.raises(TrialError, match=f"^{what} ended: its thread guard panicked; the kernel continues"):
        kept.report(0)


def test_ctrl_c_during_the_start_leaves_no_hook(monkeypatch):
    calls = []

    def start():
        raise KeyboardInterrupt

    client = SimpleNamespace(call=lambda method, **_: calls.append(method))
    kept = SimpleNamespace(client=client, start=start, hooks=["hook"])
    monkeypatch.setattr(run, "_remove", lambda _, name, hooks: calls.append(("removed", name, tuple(hooks))))
    with pytest.raises(KeyboardInterrupt):
        run._start(kept, "edge", [])
    assert calls == ["guard.stop", ("removed", "edge", ("hook",))]


def test_a_policy_that_was_replaced_is_kept_only_until_its_last_report(monkeypatch):
    def flat(guarantee):
        leaf = {"guarantee_bps": guarantee, "ceiling_bps": 9}
        start = {"hooks": [], "leaves": [leaf], "pools": []}
        return SimpleNamespace(start=start, leaves=["vm"], links=[None])

    client = SimpleNamespace(call=lambda *_, **__: {"at_ns": 100})
    monkeypatch.setattr(run, "_attached", lambda _: client)
    kept = run.Kept(flat(1), SimpleNamespace())
    kept.adjust(flat(2))
    reports = [kept._report({"from_ns": at - 50, "at_ns": at, "rows": [{}], "pools": [], "notes": [],
                             "round_ns_max": 0, "decide_ns_max": 0}) for at in (100, 150)]  # fmt: skip
    assert [report.rows["vm"]["guarantee_bps"] for report in reports] == [1, 2]
    assert kept._earlier == []
