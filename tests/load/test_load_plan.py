"""Plans: what is written becomes a program that the agent's contract knows; each mistake gets one message."""

import base64
import contextlib
import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from partywall.errors import UsageError
from partywall.load import check
from partywall.load.check import think_times
from partywall.load.compiling import program, whole_url
from partywall.load.schema import json_schema

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD = HERE / "plans" / "good.yaml"
CORPUS = sorted((HERE / "bad_plans").glob("*.yaml"))
EXPECT = re.compile(r"^# expect: line (\d+) \| (.*?) \| (.*?) \| (.*)$")
START = json.loads((ROOT / "schema" / "agent.schema.json").read_text())["methods"]["workload.start"]["params"]


def made_of(text: str, folder: Path = HERE / "plans") -> dict:
    compiled = program(check.loads(text.encode(), "plan.yaml", folder))
    jsonschema.validate({"id": "a", "work": {"load": compiled}, "pace": "scheduled", "work_dir": "/w"}, START)
    return compiled


HEAD = "partywall_load: 1\nname: a\nbase: http://h:1/x/\nclosed: {users: 5, hold: 1s}\nusers: {one: {actions: [%s]}}\n"


def test_a_plan_with_every_key_becomes_a_program_of_the_contract():
    compiled = made_of(GOOD.read_text())
    assert [kind["name"] for kind in compiled["kinds"]] == ["visitor", "buyer"]
    login = compiled["kinds"][1]["init"][1]["http"]
    assert login["url"] == "http://127.0.0.1:8080/login"
    assert login["extract"][0]["from"] == {"regex": "token=([a-z0-9]+)"}
    cart = compiled["kinds"][1]["actions"][0]["transaction"]["steps"][2]["http"]
    assert cart["body"] == {"json": '{"word": "${word}", "n": 1, "price": "$$5"}'}
    assert {"name": "Content-Type", "value": "application/json"} in cart["headers"]
    assert {"name": "X-Number", "value": "5"} in cart["headers"]
    assert {"body_bytes": {"from": 1, "to": 1_000_000}} in cart["checks"]
    assert compiled["feeders"]["accounts"]["rows"] == {"csv": str(HERE / "plans" / "users.csv")}


def test_a_program_for_a_sandbox_without_the_hosts_files_names_none_of_them():
    inlined = program(check.loads(GOOD.read_bytes(), "plan.yaml", HERE / "plans"), inline=True)
    jsonschema.validate({"id": "a", "work": {"load": inlined}, "pace": "scheduled", "work_dir": "/w"}, START)
    assert str(HERE) not in json.dumps(inlined)
    bodies = [step["http"]["body"] for step in inlined["kinds"][1]["actions"] if "http" in step]
    file = bodies[0]["multipart"][1]["content"]["content"]
    assert file["file_name"] == "users.csv"
    for encoded in (file["base64"], bodies[2]["base64"]):
        assert base64.b64decode(encoded) == (HERE / "plans" / "users.csv").read_bytes()


def test_a_level_with_ramps_becomes_stages_and_the_first_is_a_jump_without_a_ramp():
    assert made_of(HEAD % "{http: /}")["pacing"]["closed"]["stages"] == [
        {"to": 5.0, "for_ns": 0},
        {"to": 5.0, "for_ns": 10**9},
    ]
    ramped = (HEAD % "{http: /}").replace("hold: 1s", "ramp_up: 2s, hold: 1s, ramp_down: 3s")
    assert [s["to"] for s in made_of(ramped)["pacing"]["closed"]["stages"]] == [5.0, 5.0, 0.0]


def test_urls_that_begin_with_a_slash_are_below_the_bases_host():
    assert whole_url("/a?b", "http://h:1/x/") == "http://h:1/a?b"
    assert whole_url("http://g/", "http://h:1/x/") == "http://g/"


def test_files_of_a_plan_may_begin_with_a_byte_order_mark(tmp_path: Path):
    (tmp_path / "thinks.txt").write_bytes(b"\xef\xbb\xbf1s\r\n2s\r\n")
    assert think_times(tmp_path / "thinks.txt") == [10**9, 2 * 10**9]


def test_bare_values_stand_for_the_key_that_matters_most():
    steps = made_of(HEAD % "{http: /}, {think: 2s}, {compress: 5MB}")["kinds"][0]["actions"]
    assert steps[0]["http"]["method"] == "GET"
    assert steps[1] == {"think": {"constant_ns": 2 * 10**9}}
    assert steps[2]["compress"]["file_bytes"] == 5_000_000


def test_what_the_agent_finds_is_reported_by_the_plans_line():
    loaded = check.load(GOOD)
    said = check.locate(loaded, "kinds[1].actions[0].transaction.steps[2].http.extract[1].from: no selector")
    line = next(n for n, text in enumerate(GOOD.read_text().splitlines(), 1) if "title: {css" in text)
    assert (said.line, said.message) == (line, "no selector")
    assert check.locate(loaded, "http://a:1: nobody listens there").message == "http://a:1: nobody listens there"


def test_the_corpus_states_what_it_expects():
    assert len(CORPUS) >= 50
    assert [path.name for path in CORPUS if not EXPECT.search(path.read_text().splitlines()[0])] == []


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_each_mistake_of_a_plan_gets_one_message_with_its_place_and_remedy(path: Path):
    wanted = sorted((int(m[1]), *m.groups()[1:]) for line in path.read_text().splitlines() if (m := EXPECT.match(line)))
    with pytest.raises(UsageError) as caught:
        check.load(path)
    result = sorted(caught.value.problems, key=lambda problem: (problem.line, problem.key))
    assert [(p.line, p.key) for p in result] == [(line, key) for line, key, _, _ in wanted], str(caught.value)
    for problem, (_, _, message, remedy) in zip(result, wanted, strict=True):
        assert message in problem.message
        assert remedy in problem.remedy
        assert problem.remedy
        assert problem.file == str(path)


def test_the_checked_in_schema_of_plans_is_up_to_date_and_fits_the_good_plan():
    checked_in = json.loads((ROOT / "schema" / "load-plan.schema.json").read_text())
    assert checked_in == json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(checked_in)
    good = YAML(typ="safe", pure=True).load(GOOD.read_text())
    assert [error.message for error in jsonschema.Draft202012Validator(checked_in).iter_errors(good)] == []


@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "150")))
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_a_plan_or_a_users_mistake(raw: bytes):
    with pytest.raises(UsageError):
        check.loads(raw, "fuzz", HERE)


LEAVES = st.none() | st.booleans() | st.integers(-5, 10) | st.floats(allow_nan=False) | st.text(max_size=6)
KEYS = ["http", "think", "compress", "repeat", "choose", "transaction", "feed", "url", "steps", "times", "body", "json"]
KEYS += ["weight", "name", "extract", "checks", "regex", "status", "uniform", "form", "users", "closed", "stages", "to"]
VALUES = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=3)
)


@pytest.mark.long
@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")))
@given(st.lists(VALUES, max_size=3), VALUES)
@example([], {"http": None, "steps": [{"http": None, "uniform": None}, {}]})
def test_any_steps_are_compiled_or_a_users_mistake(steps: list, closed: object):
    text = json.dumps(
        {"partywall_load": 1, "name": "a", "base": "http://h", "users": {"u": {"actions": steps}}, "closed": closed}
    )
    with contextlib.suppress(UsageError):
        made_of(text)
