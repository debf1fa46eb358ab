"""Every parameter of every kernel at its ends and beyond: it works for a moment, or is refused before the run."""

import queue
from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.agent.catalogue import shipped
from partywall.agent.client import AgentClient, start_agent
from partywall.agent.memory import file_bytes, held_bytes
from partywall.errors import AgentError
from partywall.run.document.scenario import Workload

pytestmark = pytest.mark.host

MIB = 1 << 20
# What is not being tried stays small.
SMALL = {
    "file_bytes": 2 * MIB,
    "block_bytes": MIB,
    "bytes": MIB,
    "size": 64,
    "bound_bytes": 64 * MIB,
    "rate_max": 100.0,
}
# More is refused before a run where the host has not as much, and tried nowhere.
MOST_BYTES = 256 * MIB
# Only two parameters together, or the disk, tell that these cannot be: refused as the first sandbox starts.
TOGETHER = {
    ("disk-write", "dirty_bytes"),
    ("disk-rewrite", "dirty_bytes"),
    ("memory-space", "bound_bytes"),
    ("disk-direct-read", "request_bytes"),
    ("disk-direct-write", "request_bytes"),
}


def extremes(schema):
    if "enum" in schema:
        return [*schema["enum"], 0, -1, 3, "many"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "integer" in kinds or "number" in kinds:
        step = schema.get("multipleOf", 1)
        ends = [schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")]
        beyond = [end + sign for end in ends if end is not None for sign in (-1, 1)]
        return (
            [end for end in ends if end is not None]
            + beyond
            + [0, 1, step + 1, -1, 1 << 62, -(1 << 62), 0.5, "16 parsecs"]
        )
    return [0, -1, "", "no such thing"] if "string" not in kinds else []


KERNELS = [shipped().kernel(name) for name in shipped().names()]
CASES = [
    (info.name, key, value)
    for info in KERNELS
    for key, schema in info.params.get("properties", {}).items()
    for value in dict.fromkeys(extremes(schema))
]


def requested(name, key, value):
    known = shipped().kernel(name).param_names
    small = SMALL | ({"file_bytes": 36 * MIB} if key in ("queue_depth", "request_bytes") else {})
    # A ring has one size.
    return {k: v for k, v in small.items() if k in known and not (name == "cache" and key == "level")} | {key: value}


def refused(name, params):
    return shipped().check_params(name, params)


def too_much(name, params):
    workload = Workload(params=params)
    return held_bytes(
        name, workload.params, workload.threads, shipped(), {1: 32768, 2: MIB, 3: 32 * MIB}
    ) > MOST_BYTES or (file_bytes(name, workload.params, workload.threads, shipped()) > MOST_BYTES)


@pytest.fixture(scope="module")
def agent():
    messages = queue.SimpleQueue()
    process = start_agent([str(binary.find()), "serve", "--die-with-parent"])
    client = AgentClient("host", process, lambda method, params: messages.put((method, params)))
    client.greet()
    yield client, messages
    client.close()


def test_all_numbers_have_both_ends():
    open_ended = [
        (info.name, key)
        for info in KERNELS
        for key, schema in info.params.get("properties", {}).items()
        if {"integer", "number"}
        & set([schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", []))
        and "enum" not in schema
        and not ({"minimum", "exclusiveMinimum"} & schema.keys() and "maximum" in schema)
    ]
    assert open_ended == []


def test_the_sweep_is_about_every_kernel_that_takes_parameters():
    assert {name for name, _, _ in CASES} == {info.name for info in KERNELS if info.param_names}
    assert len(CASES) > 300


def test_every_refusal_names_the_parameter_and_what_would_do():
    for name, key, value in CASES:
        for where, message, remedy in refused(name, requested(name, key, value)):
            assert where == key, (name, key, value)
            assert all((message, remedy)), (name, key, value)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CASES}))
def test_what_is_not_refused_works(name, agent, tmp_path_factory):
    client, messages = agent
    folder = Path(tmp_path_factory.mktemp("work"))
    together = []
    for number, (_, key, value) in enumerate(case for case in CASES if case[0] == name):
        params = requested(name, key, value)
        if refused(name, params) or too_much(name, params):
            continue
        id_ = f"{name}-{number}"
        role = {"pace": "flat_out"} if shipped().kernel(name).can_be("probe") else {"pace": "scheduled"}
        if why := not_started(client, id_, name, params, folder, role):
            together.append((key, value, why))
            continue
        try:
            if role["pace"] == "scheduled":
                assert sum(client.call("workload.calibrate", id=id_, for_ns=20_000_000)["rate_max"]) > 0, (key, value)
            else:
                wait_for_work(messages, id_, key, value)
        finally:
            client.call("workload.stop", id=id_)
    unexpected = [case for case in together if (name, case[0]) not in TOGETHER or f"parameter {case[0]}" not in case[2]]
    assert unexpected == []


def not_started(client, id_, name, params, folder, role):
    """Why the agent refused to start it; nothing if it started."""
    work = {"kernel": {"name": name, "params": params}}
    try:
        client.call("workload.start", id=id_, work=work, work_dir=str(folder), **role)
    except AgentError as error:
        return str(error)
    return ""


def wait_for_work(messages, id_, key, value):
    """Until it reports a slice with work in it; a large message may need many slices."""
    while True:
        method, said = messages.get(timeout=20)
        if said["id"] != id_:
            continue
        assert method == "slices", (key, value, said)
        if any(piece["work"] > 0 for piece in said["slices"]):
            return
