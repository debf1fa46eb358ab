"""Counters in words, and their readings in units people know."""

from __future__ import annotations

import json
import subprocess
from importlib import resources

import pytest

from partywall.agent import binary, counters
from partywall.errors import CapabilityError
from partywall.run.values.evidence import Counter


def counter(name: str, unit: str = "nanoseconds", kind: str = "total") -> Counter:
    return Counter(name, unit, kind, "cpu", counters.phrase(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("victim.process_run_queue_wait_ns", "the victim's wait for its CPU"),
        ("cpu1.cpu_steal_ns", "time stolen by the hypervisor on CPU 1"),
        ("cpu.cpu_system_ns", "time in the operating system on all CPUs together"),
        ("eth0.100.network_sent_bytes", "data sent on eth0.100"),
        ("forks_count", "processes and threads started"),
    ],
)
def test_a_counter_is_named_in_words_with_its_subject(name: str, words: str):
    assert counter(name).title == f"{words} ({name})"


def test_a_counter_without_words_keeps_its_name():
    assert counter("vda.of_another_version").title == "vda.of_another_version"


@pytest.mark.parametrize(
    ("made", "before", "after", "text"),
    [
        (counter("victim.process_run_queue_wait_ns"), 93_320_000, 662_100_000, "9.33\u00a0% → 66.2\u00a0% of a core"),
        (counter("io_pressure_some_ns"), 0.222e9, 0.634e9, "22.2\u00a0% → 63.4\u00a0% of the time"),
        (counter("vda.disk_queue_ns"), 0.713e9, 1.54e9, "0.713 → 1.54 requests at a time"),
        (counter("vda.disk_written_bytes", "bytes"), 2e6, 812e6, "2.00 → 812 MB/s"),
        (counter("forks_count", "count"), 2.68, 8222, "2.68 → 8\u202f220 /s"),
        (counter("runnable_count", "count", "gauge"), 6.31, 8.38, "6.31 → 8.38"),
        (counter("memory_free_bytes", "bytes", "gauge"), 8e9, 2e9, "8.00 → 2.00 GB"),
        (counter("cpu0.cpu_frequency_hz", "hertz", "gauge"), 3.1e9, 2.4e9, "3.10 → 2.40 GHz"),
        (counter("x.cpu_temperature_millidegrees", "millidegrees", "gauge"), 45e3, 81e3, "45.0 → 81.0 °C"),
    ],
)
def test_readings_are_shown_in_the_unit_people_know(made: Counter, before: float, after: float, text: str):
    assert made.change(before, after) == text


def test_every_counter_of_the_agent_has_words_and_a_unit_that_is_known():
    for name, entry in counters.shipped().items():
        made = counter(name, entry["unit"], entry["kind"])
        assert made.words != name
        assert entry["unit"] not in made.change(1e9, 2e9)


@pytest.mark.host
def test_the_shipped_counters_are_what_the_agent_prints():
    try:
        agent = binary.find()
    except CapabilityError as error:
        pytest.skip(str(error))
    printed = subprocess.run([agent, "counters"], capture_output=True, check=True, timeout=30).stdout
    shipped = resources.files("partywall.agent").joinpath("counters.json").read_text("utf-8")
    assert json.loads(shipped) == json.loads(printed), "write it anew: partywall-agent counters > counters.json"
