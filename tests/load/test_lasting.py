"""Virtual users as a trial's workload: they last, hold all they need, and are counted by slices."""

import json
from pathlib import Path
from socket import AF_INET, AF_INET6

import jsonschema
import pytest

from partywall.errors import UsageError
from partywall.load import check
from partywall.load.compiling import inlined
from partywall.load.document import Load
from partywall.load.lasting import FOR_EVER_NS, addresses, for_guest, lasting
from partywall.run.capability import with_loads
from partywall.run.check import loads

HERE = Path(__file__).parent
START = json.loads((HERE.parents[1] / "schema" / "agent.schema.json").read_text())["methods"]["workload.start"][
    "params"
]


def test_a_plan_is_held_at_its_highest_level_and_needs_no_file():
    result = lasting(Load(plan="plans/good.yaml"), HERE)
    jsonschema.validate({"id": "a", "work": {"load": result}, "pace": "scheduled", "work_dir": "/w"}, START)
    stages = result["pacing"]["closed"]["stages"]
    assert [stage["to"] for stage in stages] == [4, 4]
    assert stages[-1]["for_ns"] == FOR_EVER_NS
    assert result["slices"]
    assert result["feeders"]["accounts"]["rows"]["inline"]["rows"][0] == ["ada", "1843"]
    assert result["feeders"]["words"]["rows"]["inline"]["columns"] == ["word", "n"]
    assert str(HERE) not in json.dumps([f["rows"] for f in result["feeders"].values()])


@pytest.mark.parametrize(
    ("load", "model"),
    [(Load(url="http://127.0.0.1/", users=3), "closed"), (Load(url="http://127.0.0.1/", rate=5.0), "open")],
)
def test_a_url_is_requested_by_users_or_at_a_rate(load, model):
    assert list(lasting(load, HERE)["pacing"]) == [model]


def test_names_are_resolved_here_once_and_unknown_ones_are_reported():
    program = {
        "kinds": [{"actions": [{"http": {"url": "http://localhost:81/x"}}, {"http": {"url": "http://127.0.0.1/"}}]}]
    }
    assert addresses(program)["localhost:81"]
    program["kinds"][0]["actions"].append({"transaction": {"steps": [{"http": {"url": "http://no.invalid/"}}]}})
    program["kinds"][0]["actions"].append({"http": {"url": "http://a..b/"}})
    with pytest.raises(
        UsageError, match=r"no\.invalid cannot be resolved(.|\n)*a\.\.b cannot be resolved: this is not a host name"
    ):
        addresses(program)


def test_a_name_of_two_families_is_one_server(monkeypatch):
    result = [(family, None, None, "", (place, 81)) for family, place in ((AF_INET6, "::1"), (AF_INET, "127.0.0.1"))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: result)
    program = {"kinds": [{"actions": [{"http": {"url": "http://both.test:81/"}}]}]}
    assert addresses(program) == {"both.test:81": ["127.0.0.1:81"]}
    del result[1]
    assert addresses(program) == {"both.test:81": ["[::1]:81"]}


def test_what_is_on_this_hosts_loopback_is_at_the_gateway_of_a_guest():
    program = {
        "kinds": [{"actions": [{"http": {"url": "http://127.0.0.1:81/x"}}, {"http": {"url": "https://192.0.2.7/"}}]}],
        "addresses": {"shop.test:80": ["[::1]:8080"]},
    }
    assert for_guest(program, "10.0.2.2") == {
        "shop.test:80": ["10.0.2.2:8080"],
        "127.0.0.1:81": ["10.0.2.2:81"],
        "192.0.2.7:443": ["192.0.2.7:443"],
    }


def test_a_scenario_gets_the_programs_of_its_plans_and_their_mistakes(tmp_path):
    text = "partywall: 1\nname: a\nvictims: {v: {load: p.yaml}}\naggressors: {w: {load: 'http://127.0.0.1:1/'}}\n"
    scenario = loads(text)
    with pytest.raises(UsageError, match=r"p\.yaml"):
        with_loads(scenario, tmp_path)
    (tmp_path / "p.yaml").write_text((HERE / "plans" / "good.yaml").read_text())
    for name in ("users.csv", "words.jsonl", "thinks.txt"):
        (tmp_path / name).write_text((HERE / "plans" / name).read_text())
    whole = with_loads(scenario, tmp_path)
    assert whole.victims["v"].load.program["kinds"][0]["name"] == "visitor"
    assert whole.aggressors["w"].load.program["slices"]


def test_only_line_ends_end_a_line_of_a_users_file(tmp_path):
    """A browser's JSON has U+2028 as it is. The plan worked here, and was refused for guests."""
    words = ["a\u2028b", "c\x85d", "e\x1cf"]
    file = tmp_path / "words.jsonl"
    file.write_text("".join(json.dumps({"word": word, "n": "1"}, ensure_ascii=False) + "\n" for word in words))
    (tmp_path / "thinks.txt").write_text("1s \x1c\r\n2s\n")
    rows = inlined(feeders(tmp_path, file.name, file.read_bytes()))["feeders"]["one"]["rows"]["inline"]
    assert rows["rows"] == [[word, "1"] for word in words]
    (tmp_path / "p.yaml").write_text((HERE / "plans" / "good.yaml").read_text())
    (tmp_path / "users.csv").write_text((HERE / "plans" / "users.csv").read_text())
    check.load(tmp_path / "p.yaml")
    assert check.think_times(tmp_path / "thinks.txt") == [10**9, 2 * 10**9]


def feeders(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    kind = "csv" if name.endswith("csv") else "json_lines"
    return {"kinds": [], "feeders": {"one": {"rows": {kind: str(tmp_path / name)}}}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"\xef\xbb\xbfword,n\na,1\n\nb,2\n\n"),
        ("a.jsonl", b'{"word": "a", "n": 1}\n\n{"word": "b", "n": "2"}\n'),
        ("a.jsonl", b'\xef\xbb\xbf{"word": "a", "n": 1}\r\n{"word": "b", "n": "2"}\r\n'),
    ],
)
def test_rows_that_go_with_a_program_are_those_that_the_agent_reads(tmp_path, name, content):
    rows = inlined(feeders(tmp_path, name, content))["feeders"]["one"]["rows"]["inline"]
    assert rows == {"columns": ["word", "n"], "rows": [["a", "1"], ["b", "2"]]}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"word": "a"}\n{"n": 1}\n', "line 2 has no 'word'"),
        ("a.jsonl", b'{"word": "a"}\n{"word": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"word": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("a.csv", b"word\na\n\xff\n", "cannot be read"),
    ],
)
def test_rows_that_cannot_go_with_a_program_are_reported_by_file_and_line(tmp_path, name, content, said):
    with pytest.raises(UsageError, match=said):
        inlined(feeders(tmp_path, name, content))


def test_a_body_that_is_gone_is_reported_by_its_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        inlined({"kinds": [{"actions": [{"http": {"body": {"file": str(tmp_path / "gone")}}}]}]})
