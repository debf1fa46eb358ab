"""A command line's words become a program that fits the contract."""

import json
from pathlib import Path

import jsonschema
import pytest

from partywall.errors import UsageError
from partywall.load.quick import Quick, program

SCHEMA = json.loads((Path(__file__).parents[2] / "schema" / "agent.schema.json").read_text())
START = SCHEMA["methods"]["workload.start"]["params"]
SECOND = 1_000_000_000


def fits(compiled):
    start = {"id": "load", "work": {"load": compiled}, "pace": "scheduled", "work_dir": "/work"}
    jsonschema.validate(start, START)


def test_users_make_a_closed_and_a_rate_an_open_program():
    closed = program(Quick("http://a:80/", 10 * SECOND, users=100, ramp_ns=SECOND, think_ns=SECOND))
    fits(closed)
    assert closed["pacing"] == {
        "closed": {"stages": [{"to": 100, "for_ns": SECOND}, {"to": 100, "for_ns": 10 * SECOND}]}
    }
    opened = program(Quick("http://a:80/", 10 * SECOND, rate=50.0, poisson=True))
    fits(opened)
    assert opened["pacing"]["open"]["arrivals"] == "poisson"


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(UsageError) as caught:
        program(Quick("http://a/", 1, rate=-1.0, headers=("bad",), data="x", data_file=Path("y")))
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("requested", "key"),
    [
        ({"rate": float("nan")}, "--rate"),
        ({"rate": float("inf")}, "--rate"),
        ({"rate": 2e7}, "--rate"),
        ({"poisson": True}, "--poisson"),
        ({"method": "G T"}, "--method"),
        ({"data_file": Path("nothing")}, "--data-file"),
    ],
)
def test_what_a_command_line_cannot_mean_is_refused_by_its_own_name(requested, key):
    with pytest.raises(UsageError) as caught:
        program(Quick("http://a/", SECOND, **requested))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_a_url_is_no_template():
    compiled = program(Quick("http://a/?$top=5", SECOND))
    assert compiled["kinds"][0]["actions"][0]["http"]["url"] == "http://a/?$$top=5"


def test_headers_and_bodies_are_sent_as_written():
    compiled = program(Quick("http://a/", SECOND, users=1, headers=("Cost: $5",), data="${x}", method="POST"))
    fits(compiled)
    http = compiled["kinds"][0]["actions"][0]["http"]
    assert (http["headers"][0]["value"], http["body"]["text"]) == ("$$5", "$${x}")


@pytest.mark.parametrize(
    ("given", "method"), [({}, "GET"), ({"data": "x"}, "POST"), ({"data": "x", "method": "PUT"}, "PUT")]
)
def test_a_body_is_posted_unless_a_method_is_given(given, method):
    compiled = program(Quick("http://a/", SECOND, **given))
    assert compiled["kinds"][0]["actions"][0]["http"]["method"] == method


@pytest.mark.parametrize(
    ("url", "key"),
    [("http://A/x", "a:80"), ("https://a?x", "a:443"), ("http://a:81/", "a:81"), ("http://[::1]/", "[::1]:80")],
)
def test_another_place_to_connect_to_is_named_by_host_and_port(url, key):
    assert program(Quick(url, SECOND, connect_to="unix:/s"))["addresses"] == {key: ["unix:/s"]}


def test_a_missing_file_of_authorities_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nothing\.pem"):
        program(Quick("https://a/", SECOND, authorities=tmp_path / "nothing.pem"))
