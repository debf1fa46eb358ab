"""A guest's memory is touched and timed inside it before its workload starts (VITS, section 4.1)."""

import pytest

from partywall.agent.catalogue import shipped
from partywall.agent.memory_check import Checks
from partywall.errors import RefusalError
from partywall.host.label import Label
from partywall.run.document.scenario import Scenario
from partywall.run.measure.stage import staged
from partywall.run.plan import Topology, make
from partywall.testing import SimulatedHost

MIB = 1 << 20


class Host(SimulatedHost):
    """A host whose agents answer a memory check with a doubt about some of them, or refuse it."""

    def __init__(self, warnings=None, refuses=""):
        super().__init__()
        self.warnings, self.refuses, self.checked = warnings or {}, refuses, {}
        self.budgets = set()

    def answer(self, agent, sink, method, params):
        if method != "memory.check":
            return super().answer(agent, sink, method, params)
        self.checked[agent] = params["bytes"]
        self.budgets.add(params["budget_ns"])
        if agent == self.refuses:
            raise RefusalError("memory.check: 8 MiB are free")
        return {"doubt": self.warnings.get(agent)}


def missing(host, backend, tmp_path, checks=None, **box):
    box = {"sandbox": {"backend": backend} | box}
    content = {
        "partywall": 1,
        "name": "guests",
        "victims": {"latency": {"probe": "memory-latency", "params": {"bytes": 32 * MIB}} | box},
        "aggressors": {
            "copy": {"stressor": "memory-copy", "params": {"block_bytes": 8 * MIB}} | box,
            "sum": {"stressor": "integer"} | box,
        },
    }
    (trial,) = make(Scenario.model_validate(content), Topology((0, 1), ()), shipped()).trials
    label = Label("simulated", tmp_path / "state", tmp_path / "work")
    with staged(trial, host.session(label), slice_ns=2_000_000, seed=1, host_cpus=(0,), checks=checks) as stage:
        return stage.missing


def test_each_guest_is_checked_for_what_its_kernel_holds(tmp_path):
    host = Host()
    assert missing(host, "qemu", tmp_path) == []
    assert host.checked == {"copy": 16 * MIB, "victim": 32 * MIB}


def test_a_domain_of_the_users_own_is_checked_too(tmp_path):
    host = Host()
    missing(host, "libvirt", tmp_path, domain="shop")
    assert host.checked == {"copy": 16 * MIB, "victim": 32 * MIB}


def test_guests_wait_as_long_as_the_run(tmp_path):
    host, said = Host(), []
    missing(host, "qemu", tmp_path, Checks(said.append, 300_000_000_000))
    assert host.budgets == {300_000_000_000}
    assert "in the guest of the victim; waiting for at most 5 min" in said[-1].text


def test_nothing_is_checked_inside_containers(tmp_path):
    host = Host()
    missing(host, "container", tmp_path)
    assert host.checked == {}


@pytest.mark.parametrize(
    ("host", "what", "why"),
    [
        (Host(warnings={"victim": "swapped"}), "32 MiB of memory in the guest of the victim", "wrote pages to swap"),
        (Host(refuses="copy"), "16 MiB of memory in the guest of aggressor copy", "8 MiB are free"),
    ],
)
def test_a_warning_is_among_what_could_not_be_read_and_the_turn_goes_on(host, what, why, tmp_path):
    (gap,) = missing(host, "qemu", tmp_path)
    assert gap["what"] == what
    assert why in gap["why"]
    assert gap["cost"]
    assert gap["remedy"]
