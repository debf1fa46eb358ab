"""What keeps a guest from being moved: a file each in bad/, with both ends as they are and what is to be said."""

from pathlib import Path

import pytest

from partywall.agent.catalogue import shipped
from partywall.core.document.decode import decode
from partywall.errors import UsageError
from partywall.migrate import check as plans
from partywall.migrate.document import Method
from partywall.migrate.measure import series
from partywall.migrate.measure.end import Info
from partywall.migrate.measure.refusals import refusals

CASES = sorted(Path(__file__).parent.glob("bad/*.yaml"))


def info(content):
    lists = {name: frozenset(content[name]) for name in ("features", "machines", "cpu", "cpus") if name in content}
    return Info(**{**content, **lists, "blockers": tuple(content.get("blockers", ()))})


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_each_obstacle_is_one_clear_sentence(file):
    case = decode(file.read_bytes(), file.name).data
    methods = {name: Method.model_validate(method) for name, method in case.get("methods", {"default": {}}).items()}
    said = refusals(
        info(case["source"]), info(case["destination"]), methods, moves_storage=case.get("storage") == "moved"
    )
    for part in case["expected"]:
        assert any(part in each for each in said), said
    # Nothing else is said of the same thing.
    named = [each for each in said if any(part in each for part in case["expected"])]
    assert named == said or file.stem == "unknown-feature", said


HEAD = "partywall_migration: 1\nname: bad\n"
LIBVIRT = "hosts: {a: {uri: 'qemu:///system'}, b: {uri: 'qemu+ssh://two/system'}}\n"
QMP = "hosts: {a: {qmp: /run/a, address: one}, b: {qmp: /run/b, address: two}}\n"
PLANS = {
    "no domain": (LIBVIRT, "the domain that moves is not named"),
    "a domain without hosts": ("guest: {domain: web}\n", "a domain is on hosts of your own"),
    "an address without hosts": (
        "clients: {address: 10.0.0.1}\n",
        "the guest of this plan gets its address from Partywall",
    ),
    "neither libvirt nor a monitor": (
        "hosts: {a: {}, b: {qmp: /run/b, address: two}}\n",
        "libvirt daemon or a monitor",
    ),
    "both": (LIBVIRT.replace("{uri: 'qemu:///system'}", "{uri: x, qmp: /run/a, address: one}"), "daemon or a monitor"),
    "one of each": (QMP.replace("qmp: /run/a, address: one", "uri: x"), "one host has libvirt and the other has not"),
    "the same host twice": (LIBVIRT.replace("qemu+ssh://two/system", "qemu:///system"), "both hosts are the same"),
    "a monitor without an address": (QMP.replace(", address: two", ""), "an address on which it takes the guest"),
    "a monitor with a relative path": (QMP.replace("/run/a", "a.sock"), "qmp"),
    "ssh with libvirt": (LIBVIRT.replace("'qemu:///system'", "'qemu:///system', ssh: one"), "its own way to the host"),
    "a QEMU twice": (QMP + "moves: 2\n", "takes it once"),
    "a workload": (LIBVIRT + "guest: {domain: web}\nworkloads: {w: {kernel: integer}}\n", "has work of its own"),
    "a size": (LIBVIRT + "guest: {domain: web, memory: 1GiB}\n", "is as it is"),
    "calibration": (LIBVIRT + "guest: {domain: web}\ncalibration: 3\n", "nothing is tried out"),
    "users": (LIBVIRT + "guest: {domain: web}\nclients: {http: {users: 3}}\n", "partywall load"),
    "a neighbour": (LIBVIRT + "guest: {domain: web}\nbystander: {kernel: integer}\n", "no neighbour is started"),
}


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_of_one_s_own_hosts_is_checked_with_line_and_remedy(case):
    text, expected = PLANS[case]
    with pytest.raises(UsageError) as raised:
        plans.loads((HEAD + text).encode(), "plan.yaml", shipped())
    problems = raised.value.problems
    assert any(expected in str(problem) for problem in problems), [str(problem) for problem in problems]
    assert all(problem.line for problem in problems)


def test_a_guest_of_one_s_own_moves_once_and_nothing_is_tried_out_on_it():
    plan = plans.loads((HEAD + LIBVIRT + "guest: {domain: web}\n").encode(), "plan.yaml", shipped())
    assert (plan.moves, plan.calibration) == (1, 0)
    # A record keeps a plan as JSON.
    assert type(plan).model_validate(plan.model_dump(mode="json", exclude_unset=True)) == plan


def test_a_probe_of_the_service_that_hangs_is_no_connection_yet():
    assert not series._succeeds(["sleep", "60"], 0.05)
    assert not series._succeeds(["false"], 60)
    assert series._succeeds(["true"], 60)
