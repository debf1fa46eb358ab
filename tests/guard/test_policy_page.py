"""The page on policies tells every key of the format, with its default where that is a value."""

import re
from pathlib import Path

import pytest

from partywall import units
from partywall.guard.document import Ceilings, Flow, Link, Policy, Promise, ServiceClass, Total, Vif

PAGE = (Path(__file__).parents[2] / "docs" / "guard.md").read_text(encoding="utf-8")
SECTIONS = {
    "### The top of the file": (Policy, set()),
    "### `link`": (Link, set()),
    "### Service classes": (ServiceClass, set()),
    "### Tenants": (Total, set(Ceilings.model_fields) - set(Total.model_fields)),
    "### Vifs": (Vif, set()),
    "### Promises": (Flow, set()),
}


def rows(title):
    section = PAGE[PAGE.index(title) :]
    section = section[: end.start() + 3] if (end := re.search(r"\n##+ ", section[3:])) else section
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


@pytest.mark.parametrize("title", SECTIONS)
def test_each_key_has_its_row_and_no_row_is_of_a_key_that_is_not_there(title):
    model, more = SECTIONS[title]
    assert set(rows(title)) == set(model.model_fields) | more


@pytest.mark.parametrize("title", SECTIONS)
def test_what_is_required_is_called_so_and_defaults_are_the_formats_own(title):
    reported = rows(title)
    for name, info in SECTIONS[title][0].model_fields.items():
        if info.is_required():
            assert reported[name] == "required", name
        elif isinstance(info.default, int) and info.default >= 1_000_000:
            assert f"`{units.format_duration(info.default).replace(' ', '')}`" in reported[name], name
        elif isinstance(info.default, (int, str)) and info.default not in ("", 0):
            assert f"`{info.default}`" in reported[name], name
        else:
            assert reported[name] != "required", name


def test_a_flow_is_a_promise_with_keys_of_its_own():
    assert set(Promise.model_fields) < set(Flow.model_fields)
