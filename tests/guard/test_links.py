"""A policy with several links: what is refused, how it is flattened and shown, and two links on this host."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from partywall.core.report import terminal
from partywall.core.report.value import Lines, Report
from partywall.errors import UsageError
from partywall.guard import promised
from partywall.guard.capability import Guards
from partywall.guard.change import changes, refuse
from partywall.guard.check import loads
from partywall.guard.document import Policy
from partywall.guard.findings import Means, SoFar
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.resolve import VifPlace, resolve, resolve_links
from partywall.guard.measure.run import Kept, keep
from partywall.guard.prometheus import Totals
from partywall.guard.record import GuardInterval
from partywall.guard.report import live
from partywall.sandbox.lab import Lab, lab, sender
from tests.guard.policy_corpus import replaced
from tests.guard.records import guard_record

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "two-links.yaml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
PLACES = {name: VifPlace(f"vnet{at}", None, False) for at, name in enumerate(("acme-left", "acme-right", "other"))}
SECOND = 1_000_000_000


changed = functools.partial(replaced, TEXT)


def flat(text: str = TEXT) -> Flat:
    policy = loads(text)
    links = {name: VifPlace(link.interface, None, False) for name, link in policy.by_link.items()}
    return flatten(policy, PLACES, links=links)


@pytest.mark.parametrize(
    ("pairs", "key", "words"),
    [
        (
            [("guarantee: 300Mbit/s", "guarantee: 350Mbit/s")],
            "links.right.capacity",
            "acme-right 100 Mbit/s + other 350 Mbit/s = 450 Mbit/s on 400 Mbit/s — promise 50 Mbit/s less",
        ),
        (
            [("guarantee: 300Mbit/s", "ceiling: 500Mbit/s")],
            "vifs.other.send.ceiling",
            "is above the link's capacity, 400 Mbit/s",
        ),
        ([("link: left", "link: lefd")], "vifs.acme-left.link", "no link 'lefd' — did you mean left?"),
        (
            [("link: left, ", "")],
            "vifs.acme-left.link",
            "the key link is missing, and the policy has several links — add link: one of left, right",
        ),
        ([("links:\n", "link: {capacity: 1Gbit/s}\nlinks:\n")], "links", "both link and links are given"),
        ([("interface: eth1", "interface: eth0")], "links.right.interface", "eth0 is the interface of link 'left'"),
        ([("  left: {", "  middle: {capacity: 1Gbit/s}\n  left: {")], "links.middle", "no vif has this link"),
        ([("capacity: 400Mbit/s", "capactiy: 400Mbit/s")], "links.right.capactiy", "did you mean capacity?"),
        ([("interface: eth1", "namespace: 'pid:x', interface: eth1")], "links.right.namespace", "names no process"),
        ([("guarantee: 300Mbit/s", "packets_guarantee: 3k/s")], "vifs.other.send.packets_guarantee", "needs the pack"),
        ([("ceiling: 500Mbit/s", "ceiling: 250Mbit/s")], "tenants.acme.ceiling", "acme-left 200 Mbit/s + acme-right"),
        (
            [("interface: eth1, ", ""), ("tenants:", "service_classes: {only: {priority: 1, delay: 2ms}}\ntenants:")],
            "service_classes.only",
            "needs the interface of link 'right', to watch its queue — add interface: to links.right",
        ),
    ],
)  # fmt: skip
def test_a_mistake_about_links_is_reported_with_its_place(pairs: list[tuple[str, str]], key: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        loads(changed(*pairs), "p.yaml")
    result = [problem for problem in raised.value.problems if problem.key == key and words in str(problem)]
    assert result, str(raised.value)
    assert result[0].line
    assert len(raised.value.problems) <= 2


def test_a_policy_without_a_link_is_reported_how_to_write_one() -> None:
    text = changed(("links:\n  left: {interface: eth0, capacity: 1Gbit/s}\n", ""))
    text = text.replace("  right: {interface: eth1, capacity: 400Mbit/s}\n", "")
    with pytest.raises(UsageError, match=r"link: this key is missing .*e\.g\. link: \{capacity: 1Gbit/s\}"):
        loads(text)


def test_a_link_at_a_vif_needs_links() -> None:
    text = "partywall_guard: 1\nname: p\nlink: {capacity: 1Gbit/s}\nvifs: {vm: {interface: eth0, link: left}}\n"
    with pytest.raises(UsageError, match=r"vifs\.vm\.link: there is no link 'left': the policy has one link"):
        loads(text)


def test_the_only_one_of_links_needs_no_name_at_a_vif() -> None:
    text = "partywall_guard: 1\nname: p\nlinks: {left: {capacity: 1Gbit/s}}\nvifs: {vm: {interface: eth0}}\n"
    policy = loads(text)
    assert policy.link_name(policy.vifs["vm"]) == "left"
    assert policy.link_of(policy.vifs["vm"]).capacity == 1_000_000_000


def test_each_link_has_two_pools_and_a_total_has_leaves_of_several() -> None:
    start = flat(changed(("guarantee: 300Mbit/s}", "guarantee: 300Mbit/s}, receive: {ceiling: 100Mbit/s}"))).start
    pools = [(pool["name"], pool["capacity_bps"], (pool["link"] or {}).get("interface")) for pool in start["pools"]]
    assert pools == [
        ("send on left", 1_000_000_000, "eth0"),
        ("receive on left", 1_000_000_000, None),
        ("send on right", 400_000_000, "eth1"),
        ("receive on right", 400_000_000, None),
    ]
    leaves = [(leaf["name"], leaf["pool"], leaf["totals"], leaf["ceiling_bps"]) for leaf in start["leaves"]]
    assert leaves == [
        ("acme-left", 0, [0], 1_000_000_000),
        ("acme-right", 2, [0], 400_000_000),
        ("other", 2, [], 400_000_000),
        ("other (receives)", 3, [], 100_000_000),
    ]


def test_a_goal_is_one_of_each_link() -> None:
    start = flat(changed(("tenants:", "service_classes: {only: {priority: 1, delay: 2ms}}\ntenants:"))).start
    goals = [(goal["name"], goal["pool"], goal["leaves"]) for goal in start["goals"]]
    assert goals == [("only on left", 0, [0]), ("only on right", 2, [1, 2])]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("link: right, send: {guarantee: 300M", "link: left, send: {guarantee: 300M")], "the link of vif 'other'"),
        ([("interface: eth1", "interface: eth7")], "the interface of link 'right'"),
        ([("right: {", "rechts: {"), ("link: right", "link: rechts")], "link 'rechts' is not in the running policy"),
        (
            [
                ("links:\n", "link: {capacity: 2Gbit/s}\n"),
                ("  left: {interface: eth0, capacity: 1Gbit/s}\n", ""),
                ("  right: {interface: eth1, capacity: 400Mbit/s}\n", ""),
                ("link: left, ", ""),
                ("link: right, ", ""),
            ],
            "one of the two policies has one link without a name",
        ),
    ],
)  # fmt: skip
def test_links_of_a_running_guard_stay(pairs: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UsageError, match="start the guard") as refused:
        refuse(loads(TEXT), loads(changed(*pairs)))
    assert said in str(refused.value)


def test_the_capacity_of_a_link_can_be_changed() -> None:
    new = loads(changed(("capacity: 400M", "capacity: 500M")))
    refuse(loads(TEXT), new)
    assert changes(loads(TEXT), new) == ("links.right.capacity: 400 Mbit/s → 500 Mbit/s",)


def row(**other: Any) -> dict[str, Any]:
    rates = ("offered_bps", "passed_bps", "granted_bps", "offered_pps", "passed_pps")
    return (
        dict.fromkeys((*rates, "dropped_packets", "marked_packets"), 1_000_000)
        | {"granted_pps": None, "delay_ns": None, "jitter_ns": None}
        | other
    )


def reported(divided: int = 400_000_000) -> GuardInterval:
    rows = {"acme-left": row(link="left"), "acme-right": row(link="right"), "other": row(link="right")}
    pools = {
        "send on left": {"divided_bps": 1_000_000_000, "delay_ns": None},
        "send on right": {"divided_bps": divided, "delay_ns": None},
    }
    return GuardInterval(0, SECOND, rows, pools, (), 0, 0)


def test_the_check_and_the_live_table_show_the_link_of_each_vif(capsys: pytest.CaptureFixture[str]) -> None:
    console, policy = Console(width=200), loads(TEXT)
    shown = Report("", sections=(promised.table(policy), Lines("sums", "", list(promised.sums(policy)))))
    terminal.show(shown, console)
    said = capsys.readouterr().out
    assert "guaranteed to send on left: 200 Mbit/s of 1 Gbit/s" in said
    assert "guaranteed to send on right: 400 Mbit/s of 400 Mbit/s" in said
    assert any("acme: acme-left, acme-right" in line and "left, right" in line for line in said.splitlines())
    terminal.show(live(SoFar(policy, reported(300_000_000), Means())), console)
    said = capsys.readouterr().out
    cells = [line.split("│") for line in said.splitlines() if line.startswith("│")]
    assert [line[2].strip() for line in cells] == ["left", "right", "right"]
    assert "300 Mbit/s of 400 Mbit/s are divided on right, to meet a delay goal" in said
    assert "on left, to meet" not in said


def test_the_page_the_figures_and_prometheus_show_the_link_of_each_vif(tmp_path: Path) -> None:
    log = guard_record(tmp_path / "series", TEXT)
    log.add(reported())
    log.settle()
    run = Guards().findings(log)
    files = Guards().files()
    page = files.documents["html"][1](run)
    assert '<th scope="row">acme-right</th><td>right</td>' in page
    assert "acme-left on left" in page
    assert {vif: figures["link"] for vif, figures in files.value(run)["vifs"].items()} == run.links
    assert [row["link"] for row in files.rows(run)] == ["left", "right", "right"]
    totals = Totals()
    totals.add(SoFar(loads(TEXT), reported(), Means()))
    text = totals.text()
    assert 'partywall_guard_passed_bits_per_second{policy="two-links",vif="other",link="right"} 1000000' in text
    assert 'partywall_guard_dropped_packets_total{policy="two-links",vif="other",link="right"} 1000000' in text


# On this host

FRAME, LEFT, RIGHT = 1514, 50_000_000, 20_000_000
TOTAL, PROMISED = 30_000_000, 15_000_000


def until(kept: Kept, condition: Callable[[GuardInterval], bool], deadline: int = 300) -> GuardInterval:
    """The first of the next `deadline` reports that meets the condition."""
    seen = None
    for _ in range(deadline):
        seen = kept.report(1) or seen
        if seen and condition(seen):
            return seen
    raise AssertionError(f"no such report; the last: {seen}")


@pytest.fixture
def two() -> Iterator[tuple[Lab, Lab]]:
    """A link of 50 Mbit/s with one vif, and one of 20 Mbit/s with two. Each vif offers more than its link carries."""
    with contextlib.ExitStack() as stack:
        left = stack.enter_context(lab(["first"], f"{LEFT}bit"))
        right = stack.enter_context(lab(["second", "other"], f"{RIGHT}bit", number=2))
        for made, name, pps in ((left, "first", 4500), (right, "second", 2000), (right, "other", 2000)):
            stack.enter_context(sender(made, name, FRAME, pps))
        yield left, right


def policy_of(left: Lab, right: Lab, total: int) -> Policy:
    vifs = {
        "first": {"namespace": left.namespace("first"), "link": "left", "tenant": "VM"},
        "second": {"namespace": right.namespace("second"), "link": "right", "tenant": "VM"},
        "other": {"namespace": right.namespace("other"), "link": "right", "send": {"guarantee": f"{PROMISED}bit/s"}},
    }
    links = {
        name: {"interface": "nic", "namespace": made.namespace("switch"), "capacity": f"{bps}bit/s"}
        for name, made, bps in (("left", left, LEFT), ("right", right, RIGHT))
    }
    return Policy.model_validate(
        {
            "partywall_guard": 1,
            "name": f"lab-{left.label.run}",
            "links": links,
            "tenants": {"VM": {"ceiling": f"{total}bit/s"}},
            "vifs": {name: {"interface": "eth0", **vif} for name, vif in vifs.items()},
        }
    )


@pytest.mark.host
@pytest.mark.usefixtures("guarded_lab", "own_state")
def test_two_links_are_divided_apart_and_a_total_holds_over_both(two: tuple[Lab, Lab]) -> None:
    def passes(report: GuardInterval, **mbits: float) -> bool:
        return all(abs(report.rows[vif]["passed_bps"] / (mbit * 1e6) - 1) < 0.05 for vif, mbit in mbits.items())

    policy, more = policy_of(*two, TOTAL), policy_of(*two, LEFT + RIGHT)
    located = resolve(policy)
    with keep(flatten(policy, located, 500_000_000, resolve_links(policy))) as kept:
        # The right link has 5 Mbit/s left beside what is promised, so the left one carries the rest of the total.
        seen = until(kept, lambda report: passes(report, first=25, second=5, other=15))
        assert [(vif, row["link"]) for vif, row in seen.rows.items()] == [
            ("first", "left"),
            ("second", "right"),
            ("other", "right"),
        ]
        assert set(seen.pools) == {"send on left", "receive on left", "send on right", "receive on right"}
        assert sum(seen.rows[vif]["granted_bps"] for vif in ("first", "second")) <= TOTAL
        assert seen.rows["second"]["granted_bps"] + seen.rows["other"]["granted_bps"] <= RIGHT
        before = [made.read() for made in two]
        until(kept, lambda report: passes(report, first=25, second=5, other=15))
        until(kept, lambda report: passes(report, first=25, second=5, other=15))
        (left, right) = (was.rates(made.read()) for was, made in zip(before, two, strict=True))
        assert left["first"][0] + right["second"][0] < 1.05 * TOTAL
        kept.adjust(flatten(more, located, 500_000_000, resolve_links(more)))
        until(kept, lambda report: passes(report, first=50, second=5, other=15))
    for made, name in ((two[0], "first"), (two[1], "second"), (two[1], "other")):
        shown = subprocess.run(
            ["tc", "-n", made.namespace(name), "-j", "qdisc", "show", "dev", "eth0"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert [queue["kind"] for queue in json.loads(shown.stdout)] == ["noqueue"]
