"""The slowest packets of a trace while it runs: kept with their flows, in the journal, and on the page."""

import json

from partywall import events
from partywall.kinds.journal import FILE, Journal
from partywall.trace.measure.follow import Log
from partywall.trace.record import Flow, TraceDirectory
from partywall.trace.report import live
from partywall.web import pages
from partywall.web.live import Watched
from tests.trace.synthetic_trace import FLOW, MS, PACKET, evidence, forward, report

OTHER = Flow(flow="0011", protocol=6, from_="10.0.0.3", from_port=80, to="10.0.0.4", to_port=81)
SLOW = PACKET.model_copy(update={"flow": "0011", "at_ns": (20 * MS, None, 22 * MS), "length": 1400})


def test_the_slowest_packets_so_far_are_kept_with_their_flows_and_no_others(tmp_path):
    told = []
    log = Log(TraceDirectory.begun(tmp_path / "trace", evidence(report()).start, {}), told.append)
    log.report(report(flows=(FLOW, Flow(**FLOW.model_dump() | {"flow": "0099"}))))
    log.report(report(forward(slowest=(SLOW,)), flows=(OTHER,)))
    (whole,) = told[-1].value.reports
    assert [packet.flow for packet in whole.ways[0].slowest] == ["0011", "00ff"]
    assert sorted(flow.flow for flow in whole.flows) == ["0011", "00ff"]
    assert whole.ways[0].packets == ()


def test_the_page_of_a_trace_shows_the_slowest_packets_hop_by_hop(tmp_path):
    whole = report(forward(slowest=(SLOW, PACKET)), flows=(FLOW, OTHER))
    with Journal(live) as journal:
        journal(events.Started(tmp_path))
        journal(events.Seen(evidence(whole)))
    line = json.loads((tmp_path / FILE).read_text().splitlines()[1])
    assert [table["title"] for table in line["tables"]][:2] == [
        "forward: 10 packets, 8 delivered",
        "The slowest packets forward",
    ]
    assert [row[3:] for row in line["tables"][1]["rows"]] == [
        ["not seen", "not seen", "2 ms"],
        ["20 ns", "30 ns", "50 ns"],
    ]
    assert line["tables"][3]["rows"] == []
    watched = Watched(tmp_path)
    watched.advance()
    empty = dict.fromkeys(("has_matrix", "strip", "chart", "output"), None)
    text = pages.render("live_figures.html.j2", live=watched.state, seconds=(), **empty)
    assert "tcp 10.0.0.3:80 → 10.0.0.4:81" in text
    assert "2 ms" in text
    assert "30 ns" in text
    assert "not seen" in text
