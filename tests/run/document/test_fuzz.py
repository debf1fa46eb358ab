"""Whatever the bytes, only a Scenario or a UsageError comes out, and soon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from partywall.agent.catalogue import Catalogue
from partywall.errors import UsageError
from partywall.run.check import load, loads
from partywall.run.check.rules import check
from partywall.run.document.scenario import Scenario

HERE = Path(__file__).parent
CATALOGUE = Catalogue.from_json((HERE / "kernels.json").read_text("utf-8"))
GOOD = (HERE / "good.yaml").read_bytes()
SEEDS = [GOOD, *(path.read_bytes() for path in sorted((HERE / "bad").glob("*.yaml")))]
# `make fuzz` asks for many more.
BUDGET = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "80")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def decodes_or_refuses(raw: bytes) -> None:
    try:
        scenario = loads(raw, "x.yaml", CATALOGUE)
    except UsageError as error:
        problems = error.problems
    else:
        problems = ()
        assert isinstance(scenario, Scenario)
        assert check(scenario, CATALOGUE) == []
    for problem in problems:
        assert problem.message
        assert problem.file == "x.yaml"
        assert "\n" not in str(problem)


def test_the_seed_itself_is_good():
    assert load(HERE / "good.yaml", CATALOGUE).name == "good"


@BUDGET
@given(st.binary(max_size=400))
def test_random_bytes(raw: bytes):
    decodes_or_refuses(raw)


@BUDGET
@given(
    st.text(
        alphabet=st.sampled_from("abk:-?[]{}&*!|>'\"%@`#,\n \t~<=.0123456789\\_eExX\r\0é\ufeff\u2028"), max_size=120
    )
)
@example("!!timestamp x")
@example("? ")
@example("a: !!binary 'x'")
@example("a: 0x")
@example("a: !!float abc")
@example("a: !!bool perhaps")
@example("%YAML 1.1\n---\na: 190:20:30\nb: 0b\n")
@example("a: !<tag:yaml.org,2002:int> []")
def test_random_yaml_text(text: str):
    decodes_or_refuses(text.encode("utf-8", "surrogatepass"))


@BUDGET
@given(st.data())
def test_good_and_bad_scenarios_with_bytes_changed(data: st.DataObject):
    raw = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        size = data.draw(st.integers(0, 12))
        raw[at : at + size] = data.draw(
            st.binary(max_size=6)
            | st.sampled_from([b"\t", b"*a", b"&a ", b"[", b"{", b": ", b"\n", b"- ", b"null", b"1e999", b"-1"])
        )
    decodes_or_refuses(bytes(raw))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "auto",
            "same",
            "0-3",
            "9-1",
            "50%",
            "1e400",
            "1e400s",
            "10ms",
            "64MiB",
            "1__0",
            "(x)",
            "((x))",
            "$.a",
            "*",
            "l2",
            "cache",
            "container",
            "١s",
            "\u2028",
        ]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(result for key, inner in items for result in places(inner, (*path, key)))]


def dump(value: Any) -> bytes:
    from io import BytesIO  # noqa: PLC0415

    stream = BytesIO()
    YAML(typ="safe", pure=True).dump(value, stream)
    return stream.getvalue()


@pytest.mark.long
@BUDGET
@given(st.data())
def test_a_good_scenario_with_a_value_replaced_or_added(data: st.DataObject):
    tree = YAML(typ="safe", pure=True).load(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([place for place in places(tree) if place]))
        holder = tree
        for part in path[:-1]:
            holder = holder[part]
        if data.draw(st.booleans()) or not isinstance(holder, dict):
            holder[path[-1]] = data.draw(VALUES)
        else:
            holder[data.draw(st.text(max_size=8))] = holder.pop(path[-1])
    try:
        raw = dump(tree)
    except UnicodeEncodeError:
        return
    decodes_or_refuses(raw)


@BUDGET
@given(VALUES)
def test_random_structures(value: Any):
    try:
        raw = dump(value)
    except UnicodeEncodeError:
        return
    decodes_or_refuses(raw)


PATHS = st.lists(
    st.sampled_from(
        [
            "victim",
            "victims",
            "aggressor",
            "sandbox",
            "copy",
            "fio.read",
            "params",
            "threads",
            "env",
            "cpu_limit",
            "disk",
            "read_bps",
            "",
            "probe",
            "x",
        ]
    ),
    min_size=1,
    max_size=5,
).map(".".join)


@pytest.mark.long
@BUDGET
@given(st.dictionaries(PATHS, st.lists(SCALARS, max_size=3), max_size=3))
@example({"victims.copy.params.": [1]})
@example({"victims.copy.env": [1]})
@example({"victims.copy.": [1]})
def test_random_factors(factors: dict[str, list[Any]]):
    tree = YAML(typ="safe", pure=True).load(GOOD)
    tree["factors"] = factors
    try:
        raw = dump(tree)
    except UnicodeEncodeError:
        return
    decodes_or_refuses(raw)
