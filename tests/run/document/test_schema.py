from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from partywall.agent.catalogue import Catalogue, shipped
from partywall.run.check import find, json_schema, names

ROOT = Path(__file__).parents[3]
BAD = Path(__file__).parent / "bad"


def read(path: Path) -> object:
    return YAML(typ="safe", pure=True).load(path.read_text("utf-8"))


def test_the_checked_in_schema_is_up_to_date():
    checked_in = json.loads((ROOT / "schema" / "scenario.schema.json").read_text("utf-8"))
    assert checked_in == json.loads(json.dumps(json_schema())), (
        "write it anew: partywall scenario schema > schema/scenario.schema.json"
    )


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", names())
def test_shipped_scenarios_fit_the_schema(name: str):
    assert list(Draft202012Validator(json_schema()).iter_errors(read(find(name)))) == []


def test_a_scenario_with_every_way_of_writing_fits_the_schema(catalogue: Catalogue):
    good = read(Path(__file__).parent / "good.yaml")
    assert list(Draft202012Validator(json_schema(catalogue)).iter_errors(good)) == []


def test_cpus_and_nodes_as_numbers_and_lists_fit_the_schema():
    box = {"backend": "qemu", "cpus": [0, "2-3"], "host_cpus": 1, "memory_nodes": [0, 1]}
    cpus = {"v": {"probe": "memory-copy", "sandbox": box}}
    varied = {"victim.sandbox.cpus": [0, [0, 1], "same"], "victim.sandbox.memory_nodes": [0, [0, 1], "0-1"]}
    scenario = {"partywall": 1, "name": "x", "victims": cpus, "factors": varied, "budget": "1min"}
    assert list(Draft202012Validator(json_schema()).iter_errors(scenario)) == []


@pytest.mark.parametrize(
    "what",
    [
        "misspelt-victims",
        "unknown-kernel",
        "stressor-only-kernel",
        "unknown-param",
        "param-not-a-choice",
        "param-bad-size",
        "no-source",
        "two-sources",
        "backend",
        "share-text",
        "budget-number",
        "intensity-percent",
        "threads-zero",
    ],
)
def test_editors_see_plain_mistakes_at_once(what: str, catalogue: Catalogue):
    result = [path for path in BAD.glob("*.yaml") if path.stem[4:] == what]
    assert result
    for path in result:
        value = read(path)
        assert list(Draft202012Validator(json_schema(catalogue)).iter_errors(value)), path.name


def test_kernels_are_offered_by_role_with_their_parameters():
    schema = json_schema()
    probes = schema["$defs"]["Victim"]["properties"]["probe"]["enum"]
    assert "memory-copy" in probes
    assert set(probes) == set(shipped().names("probe"))
    assert "null" not in schema["$defs"]["Aggressor"]["properties"]["stressor"]["enum"]
