from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from benches.results import written
from partywall import units
from partywall.agent import binary
from partywall.agent.catalogue import Catalogue, KernelInfo, shipped
from partywall.errors import CapabilityError

KERNEL = {
    "name": "k",
    "resource": "cpu",
    "summary": "s",
    "unit": "operations",
    "figure": {"kind": "rate", "label": "x", "divisor": 1},
    "latency": {"kind": "step", "of": "a step"},
    "roles": "both",
    "settle": {"rise_ns": 1, "release_ns": 2},
    "params": {
        "type": "object",
        "additionalProperties": False,
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9},
            "name": {"type": ["string", "null"]},
            "mode": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]},
        },
        "$defs": {"Mode": {"oneOf": [{"const": "fast"}, {"const": "slow"}]}},
    },
}


@pytest.mark.parametrize(
    ("params", "result"),
    [
        ({"size": 5}, []),
        ({"size": 5, "mode": None, "name": None}, []),
        ({}, [("size", "k needs the parameter 'size'", "add size: …")]),
        ({"size": 0}, [("size", "0 is too small", "give at least 1")]),
        ({"size": 10}, [("size", "10 is too large", "give at most 9")]),
        ({"size": True}, [("size", "True is not a whole number", "give a whole number")]),
        ({"size": 5, "name": 3}, [("name", "3 is not text", "give text")]),
        ({"size": 5, "mode": "fats"}, [("mode", "'fats' is not one of the values of mode", "did you mean fast?")]),
        ({"size": 5, "sise": 5}, [("sise", "k has no parameter 'sise'", "did you mean size?")]),
        ({"size": 5, "zzz": 5}, [("zzz", "k has no parameter 'zzz'", "it has size, name, mode")]),
    ],
)
def test_parameters_are_checked_against_the_kernels_own_schema(params, result):
    assert Catalogue([KERNEL]).check_params("k", params) == result


def test_all_mistakes_in_parameters_are_found_at_once():
    keys = [key for key, _, _ in Catalogue([KERNEL]).check_params("k", {"size": 0, "name": 3, "mode": 1, "zzz": 1})]
    assert sorted(keys) == ["mode", "name", "size", "zzz"]


def test_names_are_given_by_role():
    probe = {**KERNEL, "name": "p", "roles": "probe"}
    kernels = Catalogue([KERNEL, probe])
    assert kernels.names() == ("k", "p")
    assert kernels.names("stressor") == ("k",)
    assert kernels.kernel("zz") is None


def test_the_shipped_catalogue_has_the_null_kernel_and_every_schema_accepts_its_defaults():
    kernels = shipped()
    assert kernels.kernel("null") is not None
    for name in kernels.names():
        info = kernels.kernel(name)
        assert info is not None
        defaults = {
            key: value["default"] for key, value in info.params.get("properties", {}).items() if "default" in value
        }
        assert kernels.check_params(name, defaults) == []


@pytest.mark.parametrize(
    ("kernel", "doing"),
    [("null", "idling"), ("memory-triad", "memory-adding"), ("disk-direct-read", "direct-disk-reading")],
)
def test_a_kernel_says_what_a_neighbour_that_runs_it_is_doing(kernel, doing):
    assert shipped().kernel(kernel).doing == doing


def test_every_kernel_has_a_doing_word_of_its_own():
    words = [shipped().kernel(name).doing for name in shipped().names()]
    assert all(words)
    assert len(set(words)) == len(words)


def test_only_reading_from_the_disk_is_warned_of_for_the_page_cache():
    result = {name: [each.warning for each in shipped().kernel(name).warnings] for name in shipped().names()}
    cached = {name: warnings for name, warnings in result.items() if warnings}
    assert cached == {"disk-read": ["shared_disk_cache"], "disk-direct-read": ["shared_disk_cache"]}


@pytest.mark.parametrize("name", shipped().names())
def test_a_record_holds_an_entry_as_the_agent_prints_it(name):
    info = shipped().kernel(name)
    entries = json.loads(resources.files("partywall.agent").joinpath("catalogue.json").read_text("utf-8"))
    (printed,) = (entry for entry in entries if entry["name"] == name)
    assert json.loads(json.dumps(info.model_dump())) == printed
    assert KernelInfo.model_validate(info.model_dump()) == info


@pytest.mark.host
def test_the_shipped_catalogue_is_what_the_agent_prints():
    try:
        agent = binary.find()
    except CapabilityError as error:
        pytest.skip(str(error))
    printed = subprocess.run([agent, "catalogue"], capture_output=True, check=True, timeout=30).stdout
    shipped_text = resources.files("partywall.agent").joinpath("catalogue.json").read_text("utf-8")
    assert json.loads(shipped_text) == json.loads(printed), "write it anew: partywall-agent catalogue > catalogue.json"


def test_parameters_are_reported_with_their_choices_and_defaults():
    reported = {parameter.option: parameter.help for parameter in shipped().kernel("cache").parameters}
    assert reported["--order"].endswith("One of sequential, random. [default: sequential]")
    assert reported["--level"].endswith("One of L1, L2, L3.")
    # Choices that the text names already are not told twice.
    assert reported["--chains"].count("16") == 1


def test_default_sizes_are_written_as_one_would_write_them():
    sizes = {parameter.name: parameter.default for parameter in shipped().kernel("disk-direct-read").parameters}
    assert sizes["file_bytes"] == "256MiB"


KERNEL_PAGES = Path(__file__).parents[1] / "docs" / "kernels"
REPORTED = ("figure", "parameters", "as a probe", "as a stressor", "source", "settles", "limits")


def sections():
    """Section of each kernel's own, by name, and the page it is on; a name with two sections is a mistake."""
    result = {}
    for page in KERNEL_PAGES.glob("*.md"):
        for name, text in re.findall(
            r"^## `([a-z-]+)`\n(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            assert name not in result, f"{name} has a section in {result[name][0]} and in {page.name}"
            result[name] = (page.name, text)
    return result


def test_every_kernel_has_a_section_of_its_own_and_no_section_is_of_none():
    assert set(sections()) == set(shipped().names())


@pytest.mark.parametrize("name", shipped().names())
def test_a_kernels_section_tells_what_the_catalogue_says_of_it(name):
    _, text = sections()[name]
    items = re.findall(r"^- \*\*([a-z ]+)\*\*: (.+(?:\n  .+)*)", text, re.MULTILINE)
    rows = {title: " ".join(item.split()) for title, item in items}
    assert [title for title in REPORTED if not rows.get(title)] == []
    kernel = shipped().kernel(name)
    assert rows["figure"].startswith(f"{kernel.figure['label']}, ")
    assert rows["figure"].endswith(f"latency: {kernel.latency['of']}")
    assert re.findall(r"`(\w+)`", rows["parameters"]) == list(kernel.params.get("properties", {}))
    assert rows["as a probe"].startswith("not a probe") != kernel.can_be("probe")
    assert rows["as a stressor"].startswith("presses ") == kernel.can_be("stressor")
    rise, release = kernel.settle.rise_ns, kernel.settle.release_ns
    settles = (
        f"on {units.format_duration(rise)}, off {units.format_duration(release)}" if rise or release else "at once"
    )
    assert rows["settles"] == settles


def table():
    """The index of kernels, from the catalogue and the pages that have their sections."""
    rows = [
        f"| [`{name}`]({sections()[name][0]}#{name}) | {info.resource} | {info.figure['label']} | {info.roles} |"
        for name in shipped().names()
        if (info := shipped().kernel(name))
    ]
    return "\n".join(["| kernel | resource | figure | roles |", "|---|---|---|---|", *rows])


def test_the_index_lists_the_kernels_of_the_catalogue():
    """UPDATE_DOCS=1 writes it anew."""
    page = KERNEL_PAGES / "README.md"
    text = page.read_text("utf-8")
    fresh = written(text, {"kernels": table()})
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(fresh, "utf-8")
    elif text != fresh:
        pytest.fail(f"{page} is not of this catalogue; run make generate")
