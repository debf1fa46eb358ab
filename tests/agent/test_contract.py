"""The schema of the contract is generated from the agent's types and checked in."""

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest

from partywall.agent import binary

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schema" / "agent.schema.json").read_text())
GOLDEN = ROOT / "schema" / "golden"


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
