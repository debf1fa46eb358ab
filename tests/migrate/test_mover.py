"""The steps of a move, over two hypervisors that are simulated: a guest never runs on both hosts."""

from __future__ import annotations

import pytest

from partywall.clock import Monotonic
from partywall.errors import TrialError
from partywall.migrate.document import Method, Progress
from partywall.migrate.measure import move
from partywall.migrate.measure.end import Announced, Look
from partywall.migrate.measure.move import Mover
from partywall.migrate.measure.qemu_end import QemuEnd

S = 1_000_000_000


class Host:
    """One end. looks: what it says of the move, one after the other; broken: methods that fail."""

    def __init__(self, world, place, looks=(), broken=(), *, is_ours=True):
        self.world, self.place, self.is_ours = world, place, is_ours
        self.looks, self.broken = list(looks), set(broken)
        self.ended = False

    def __getattr__(self, name):
        def call(*_, **__):
            if self.ended or name in self.broken:
                raise TrialError(f"{name} on {self.place}: it does not answer")
            self.world.calls.append((self.place, name))
            return "there"

        return call

    def look(self):
        if self.ended or "look" in self.broken:
            raise TrialError(f"look on {self.place}: it does not answer")
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look.state == "completed":
            self.world.runs[self.place] = False
        return look

    def resume(self):
        if self.ended or "resume" in self.broken:
            raise TrialError(f"resume on {self.place}: it does not answer")
        self.world.runs[self.place] = True
        assert sum(self.world.runs.values()) < 2, "the guest runs on both hosts"

    def state(self):
        if self.ended or "state" in self.broken:
            raise TrialError(f"state on {self.place}: it does not answer")
        return "running" if self.world.runs[self.place] else "postmigrate"

    def kill(self):
        if "kill" in self.broken:
            raise TrialError("it does not end")
        self.ended, self.world.runs[self.place] = True, False

    def cancel(self):
        self.looks = [Look("cancelled")]

    def announced(self):
        return iter(())

    def answers(self):
        return not self.ended

    def has_ended(self, _within_s=0.0):
        return self.ended

    def ending(self):
        return "by SIGKILL"

    def cpu_ns(self):
        return 0

    def link_bytes(self):
        return None

    def wait(self, _seconds):
        if self.world.then:
            self.world.then.pop(0)()


ENDS = (Look("active"), Look("completed"))


class World:
    """A guest on host a. then: what happens meanwhile, step by step."""

    client = None

    def __init__(self, here=ENDS, there=(), *, is_ours=True, heard=None, then=()):
        self.runs, self.calls, self.then, self.heard = {"a": True, "b": False}, [], list(then), heard
        self.a = Host(self, "a", here, is_ours=is_ours)
        self.b = Host(self, "b", [Look("none")], there, is_ours=is_ours)
        self.arrived_at = None

    def current(self):
        return self.a

    def expect(self):
        return self.b

    moves_storage = False

    def mirror(self, _port):
        return None

    def hold(self): ...

    def release(self): ...

    def arrived(self):
        self.arrived_at = "b"

    def stayed(self):
        self.arrived_at = "a"

    def answers(self):
        return self.heard


def moved(world, method=None, give_up_ns=10 * S):
    return Mover(world, Monotonic()).move(method or Method(), give_up_ns)


def test_a_guest_continues_on_the_destination_only_after_the_source_has_given_it_up():
    world = World()
    assert moved(world).outcome == "completed"
    assert world.runs == {"a": False, "b": True}
    assert world.arrived_at == "b"


def test_a_destination_that_cannot_continue_it_is_ended_before_the_source_does():
    world = World(there=("resume",))
    result = moved(world)
    assert result.outcome == "failed"
    assert world.b.ended
    assert world.runs == {"a": True, "b": False}


def test_the_source_stays_stopped_if_the_destination_may_still_run_it():
    world = World(there=("resume", "kill"))
    with pytest.raises(TrialError, match="does not end"):
        world.b.kill()
    result = moved(world)
    assert result.outcome == "lost"
    assert not world.runs["a"], "it might run on both"


def test_a_move_that_takes_too_long_is_cancelled_and_the_guest_stays():
    looks = [Look("active", Progress(at_ns=0, sent=5, left=9, passes=1))]
    world = World(here=looks)
    result = moved(world, give_up_ns=S // 20)
    assert result.outcome == "gave up"
    assert world.runs == {"a": True, "b": False}


def test_a_hand_over_that_waits_for_a_dead_link_is_cancelled_but_not_one_that_goes_on(monkeypatch):
    monkeypatch.setattr(move, "STALL_NS", S // 20)
    stuck = World(here=[Look("active", Progress(at_ns=0, sent=5, left=9, passes=2))])
    method = Method(postcopy={"after_passes": 1})
    found = moved(stuck, method, give_up_ns=S // 50)
    assert (found.outcome, found.reason) == ("gave up", move.STUCK)
    assert stuck.runs == {"a": True, "b": False}
    growing = [Look("active", Progress(at_ns=0, sent=number, left=9, passes=2)) for number in range(1, 12)]
    going = World(here=[*growing, Look("completed")])
    assert moved(going, method, give_up_ns=S // 50).outcome == "completed"


def test_a_dead_link_while_the_guest_stands_still_ends_the_move_after_seconds(monkeypatch):
    monkeypatch.setattr(move, "STALL_NS", S // 20)
    progress = Progress(at_ns=0, sent=5, left=9, passes=2)
    world = World(here=[Look("active", progress), Look("device", progress)])
    world.a.announced = lambda: iter([Announced(Monotonic().now_ns(), "stop")])
    result = moved(world)
    assert (result.outcome, result.reason) == ("gave up", move.STUCK)
    assert world.runs == {"a": True, "b": False}


def test_a_destination_that_does_not_answer_for_a_moment_after_the_hand_over_keeps_the_guest():
    active = [Look("postcopy-active", Progress(at_ns=0, sent=n, left=9, passes=2)) for n in range(1, 6)]
    world = World(here=[*active, Look("completed")], there=("resume", "state"))
    world.runs["a"] = False
    world.then = [lambda: None, lambda: world.b.broken.clear()]
    assert moved(world, Method(postcopy={"after_passes": 1})).outcome == "completed"
    assert world.runs == {"a": False, "b": True}


def test_a_guest_that_was_handed_over_is_not_cancelled_when_its_source_stops_answering():
    world = World(here=[Look("postcopy-active", Progress(at_ns=0, sent=5, left=9, passes=2))])
    world.runs["a"] = False
    world.then = [lambda: world.a.broken.add("look")]
    result = moved(world, Method(postcopy={"after_passes": 1}))
    assert result.outcome == "paused"
    assert "handed over to host b, look there before you start it" in result.reason
    assert world.runs == {"a": False, "b": True}
    assert world.a.looks[0].state == "postcopy-active", "nothing was cancelled"


def test_a_guest_whose_link_does_not_return_waits_and_the_user_is_told_how_to_continue_it(monkeypatch):
    monkeypatch.setattr(move, "RECOVER_S", 0.05)
    paused = Look("postcopy-paused", reason="no route to host")
    for by_hand, end in (
        (": no route to host", ""),
        ("virsh migrate --postcopy-resume", "the plan continues the move, or "),
    ):
        world = World(here=[Look("postcopy-active"), paused])
        world.runs = {"a": False, "b": True}
        world.a.by_hand = lambda _there, text=by_hand, remedy=end: text if remedy else ""
        result = moved(world, Method(postcopy={"after_passes": 1}))
        assert result.outcome == "paused"
        assert (
            "the guest waits on host b for the rest of its memory, which is on host a: no route to host"
            in result.reason
        )
        assert result.reason.endswith(f"{end}{by_hand}")
        assert world.runs == {"a": False, "b": True}


def test_ctrl_c_leaves_the_guest_running_on_one_host():
    def interrupt():
        raise KeyboardInterrupt

    for here, where in (([Look("active")], "a"), ([Look("active"), Look("completed")], "b")):
        world = World(here=here, then=[interrupt], is_ours=False)
        with pytest.raises(KeyboardInterrupt):
            moved(world)
        assert world.runs == {"a": where == "a", "b": where == "b"}
        assert where == "b" or world.a.looks[0].state == "cancelled"


def test_ctrl_c_ends_copies_of_disks_and_restores_the_settings():
    ended = []

    class Copied(World):
        moves_storage = True

        def mirror(self, _port):
            return self

        def begin(self, *_):
            raise KeyboardInterrupt

        def end(self, *, completed):
            ended.append(completed)

    world = Copied(here=[Look("none")], is_ours=False)
    with pytest.raises(KeyboardInterrupt):
        moved(world)
    assert ended == [False]
    assert world.arrived_at == "a", "its settings are the user's again"


def test_a_qemu_that_does_not_answer_does_not_count_as_ended():
    class Gone:
        def execute(self, *_, **__):
            raise TrialError("the connection was closed")

    with pytest.raises(TrialError, match="it is not known whether the QEMU on host b has ended"):
        QemuEnd("b", Gone(), "").kill()


class Unstarted(World):
    """A guest that is handed over over a link that carries nothing more, so the destination never runs it."""

    def __init__(self, broken=()):
        super().__init__(here=[Look("active", Progress(at_ns=0, sent=5, left=9, passes=2)), Look("postcopy-active")])
        self.b.resume = lambda: None
        self.b.broken = set(broken)
        cancel = self.a.cancel
        self.a.cancel = lambda: (cancel(), self.a.resume())

    def handed(self, monkeypatch):
        monkeypatch.setattr(move, "STALL_NS", S // 50)
        monkeypatch.setattr(move, "STRANDED_NS", S // 20)
        self.runs["a"] = False
        return moved(self, Method(postcopy={"after_passes": 1}))


def test_a_guest_that_never_started_on_the_destination_goes_on_where_it_was(monkeypatch):
    world = Unstarted()
    result = world.handed(monkeypatch)
    assert (result.outcome, world.arrived_at) == ("failed", "a")
    assert result.reason.endswith("the guest has not started on host b; it continues on host a")
    assert world.b.ended
    assert world.runs == {"a": True, "b": False}


def test_a_guest_that_never_started_is_not_continued_while_the_destination_may_run_it(monkeypatch):
    world = Unstarted(broken=("kill",))
    result = world.handed(monkeypatch)
    assert result.outcome == "paused"
    assert "may still run it: it does not end" in result.reason
    assert world.runs == {"a": False, "b": False}


@pytest.mark.parametrize(("heard", "outcome"), [(True, "failed"), (False, "lost"), (None, "lost")])
def test_without_the_way_to_somebody_s_own_source_nothing_is_started(heard, outcome):
    world = World(is_ours=False, heard=heard)
    world.then.append(lambda: setattr(world.a, "ended", True))
    result = moved(world)
    assert result.outcome == outcome
    assert "look on both hosts where it runs" in result.reason
    assert not world.runs["b"]
