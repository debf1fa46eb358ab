"""The schema of the contract is generated from the agent's types and checked in; the controller keeps to it."""

import ast
import functools
import json
import subprocess
from pathlib import Path

import jsonschema
import pytest

from partywall.agent import binary
from partywall.agent.client import CODES, NOTIFICATIONS, PROTOCOL, refused
from partywall.errors import AgentError, CapabilityError, Exit, LackError, Refusal
from partywall.sandbox import privileges

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schema" / "agent.schema.json").read_text())
GOLDEN = ROOT / "schema" / "golden"


# Passed to the client, not to the agent.
OWN = {"timeout_s", "each_second"}


@functools.cache
def calls():
    """Every call of a method in the controller's source: the method, names of parameters, whether there are more.

    A method is a string with a known group, or without a point one that the schema has.
    """
    groups = {name.partition(".")[0] for name in SCHEMA["methods"]}
    result = []
    for path in sorted((ROOT / "src" / "partywall").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in {"call", "_call"}:
                continue
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            for method in texts:
                if method.partition(".")[0] in groups or len(texts) == 1:
                    names = {keyword.arg for keyword in node.keywords} - OWN
                    here = f"{path.name}:{node.lineno}:{method}"
                    result.append(pytest.param(method, names - {None}, None in names, id=here))
    return result


def golden(name):
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]


@pytest.mark.long
def test_the_checked_in_schema_is_what_the_agent_prints():
    printed = subprocess.run([binary.find(), "schema"], capture_output=True, check=True, text=True).stdout
    assert json.loads(printed) == SCHEMA, "write it anew: make generate"


@pytest.mark.parametrize("request_", golden("requests.jsonl"), ids=lambda request: request["method"])
def test_golden_requests_fit_the_schema(request_):
    jsonschema.validate(request_, SCHEMA["request"])
    if params := SCHEMA["methods"][request_["method"]]["params"]:
        jsonschema.validate(request_["params"], params)


@pytest.mark.parametrize("event", golden("events.jsonl"), ids=lambda event: event["method"])
def test_golden_events_fit_the_schema(event):
    jsonschema.validate(event, SCHEMA["notifications"])


@pytest.mark.parametrize(("method", "names", "has_more"), list(calls()))
def test_the_controller_calls_only_methods_of_the_table_with_their_parameters(method, names, has_more):
    assert method in SCHEMA["methods"], "declare it in agent/crates/wire/src/message.rs, then: make generate"
    params = SCHEMA["methods"][method]["params"] or {}
    assert names <= set(params.get("properties", {}))
    assert has_more or set(params.get("required", ())) <= names


def test_the_calls_of_the_controller_are_found():
    result = {param.values[0] for param in calls()}
    assert {"hello", "clock", "facts", "workload.start", "guard.move", "trace.start"} <= result
    assert len(result) >= 15


def test_every_method_has_a_golden_request():
    assert set(SCHEMA["methods"]) == {request["method"] for request in golden("requests.jsonl")}


def test_both_halves_have_one_protocol_one_list_of_notifications_and_one_of_codes():
    assert SCHEMA["protocol"] == PROTOCOL
    assert SCHEMA["codes"] == CODES
    variants = SCHEMA["notifications"]["oneOf"]
    assert {variant["properties"]["method"]["const"] for variant in variants} == set(NOTIFICATIONS)


@pytest.mark.parametrize("method", ["guard.start", "trace.start"])
def test_the_check_before_hooks_are_made_asks_for_what_the_methods_need(method):
    assert set(SCHEMA["methods"][method]["needs"]) == set(privileges.HOOKS)


@pytest.mark.parametrize(
    ("name", "refusal", "exit_"),
    [
        ("failed", Refusal.LASTING, Exit.FAILED),
        ("denied", Refusal.LACKING, Exit.CAPABILITY),
        ("usage", Refusal.USAGE, Exit.FAILED),
        ("lacking", Refusal.LACKING, Exit.CAPABILITY),
        ("passing", Refusal.PASSING, Exit.FAILED),
        ("internal", Refusal.LASTING, Exit.FAILED),
        ("params", Refusal.LASTING, Exit.FAILED),
        ("no such name", Refusal.LASTING, Exit.FAILED),
    ],
)
def test_a_refusal_is_of_the_kind_that_its_code_says(name, refusal, exit_):
    error = refused("a", {"code": SCHEMA["codes"].get(name, 99), "message": "hop 1: no\nhop 2: no"})
    assert (error.refusal, error.exit, error.why) == (refusal, exit_, "hop 1: no\nhop 2: no")
    assert str(error) == "agent a: hop 1: no\nhop 2: no"
    assert error.is_passing == (not error.is_lasting) == (name == "passing")
    assert isinstance(error, AgentError)
    assert isinstance(error, CapabilityError) == (exit_ is Exit.CAPABILITY)


@pytest.mark.parametrize("fault", [{}, {"code": "4"}, {"code": None}, {"code": 4.5}, {"code": [4]}])
def test_a_refusal_without_a_code_that_is_known_lasts(fault):
    assert refused("a", {**fault, "message": "no"}).refusal is Refusal.LASTING


def test_what_an_agent_lacks_is_one_problem_of_the_host():
    assert [str(problem) for problem in LackError("agent a: no root").problems] == ["agent a: no root"]
