"""Lines of real programs to slices of work.

The golden files were written by fio 3.33, sysbench 1.0.20, vmstat and stress-ng 0.15.06.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partywall.agent.metric import Extractor, Metric, MetricError

GOLDEN = Path(__file__).parent / "golden" / "metric"
STEP_NS = 100_000_000


def feed(extractor: Extractor, name: str, step_ns: int = STEP_NS) -> list[tuple[int, int, float]]:
    lines = (GOLDEN / name).read_text("utf-8").splitlines()
    return [result for index, line in enumerate(lines) for result in extractor.feed(index * step_ns, line)]


def metric(**keys) -> Metric:
    return Metric.model_validate(keys)


def test_fio_terse_totals_by_column_add_up_to_what_fio_read():
    extractor = Extractor(metric(csv_column=5, kind="total", scale=1024))
    slices = feed(extractor, "fio-terse.txt")
    lines = (GOLDEN / "fio-terse.txt").read_text("utf-8").splitlines()
    assert len(slices) == len(lines) - 1
    assert sum(work for _, _, work in slices) == int(lines[-1].split(";")[5]) * 1024
    assert extractor.counts.bad == extractor.counts.malformed == 0


def test_fio_terse_by_regular_expression_gives_the_same_as_by_column():
    by_column = feed(Extractor(metric(csv_column=5, kind="total")), "fio-terse.txt")
    by_regex = feed(Extractor(metric(regex=r"^3;(?:[^;]*;){4}(\d+)", kind="total")), "fio-terse.txt")
    assert by_column == by_regex != []


def test_fio_json_documents_span_lines_and_each_gives_a_reading():
    extractor = Extractor(metric(json="$.jobs[*].read.io_bytes", kind="total"))
    slices = feed(extractor, "fio-json.txt")
    documents = (GOLDEN / "fio-json.txt").read_text("utf-8").count('"fio version"')
    assert extractor.counts.readings == documents >= 4
    assert len(slices) == documents - 1
    assert all(work >= 0 for _, _, work in slices)
    assert extractor.counts.malformed == 0


def test_sysbench_rates_hold_since_the_reading_before():
    extractor = Extractor(metric(regex=r"\[ \d+s \] ([0-9.]+) MiB/sec", scale=1 << 20))
    slices = feed(extractor, "sysbench-memory.txt", 1_000_000_000)
    assert extractor.counts.readings >= 3
    assert len(slices) == extractor.counts.readings - 1
    text = (GOLDEN / "sysbench-memory.txt").read_text("utf-8")
    second = [float(line.split()[3]) for line in text.splitlines() if line.endswith("MiB/sec")][1]
    assert slices[0][2] == pytest.approx(second * (1 << 20))


def test_vmstat_columns_are_found_by_the_name_in_their_second_header():
    extractor = Extractor(metric(csv_column="cs"))
    slices = feed(extractor, "vmstat.txt", 1_000_000_000)
    rows = [line.split() for line in (GOLDEN / "vmstat.txt").read_text("utf-8").splitlines()[2:]]
    assert [work for _, _, work in slices] == [float(row[11]) for row in rows[1:]]


def test_stress_ng_says_its_figure_only_at_the_end_so_there_is_no_slice():
    extractor = Extractor(metric(regex=r"metrc: \[\d+\] vm +(\d+)", kind="total"))
    assert feed(extractor, "stress-ng.txt") == []
    assert extractor.counts.readings == 1


def test_stress_ng_vmstat_is_read_behind_its_prefix():
    extractor = Extractor(metric(csv_column="cs"))
    assert [work for _, _, work in feed(extractor, "stress-ng-vmstat.txt", 1_000_000_000)] == [3996.0]


def test_a_total_that_goes_back_opens_a_new_count():
    extractor = Extractor(metric(regex=r"(\S+)", kind="total"))
    lines = ["10", "15", "2", "5"]
    slices = [result for at, line in enumerate(lines) for result in extractor.feed(at * 10, line)]
    assert slices == [(0, 10, 5.0), (20, 30, 3.0)]
    assert extractor.counts.resets == 1


@pytest.mark.parametrize("bad", ["nan", "inf", "1e999", "-3", "1,234", "abc", "--", "1_0x"])
def test_a_bad_rate_leaves_its_time_out_and_is_counted(bad: str):
    extractor = Extractor(metric(regex=r"v=(\S+)"))
    slices = [
        result for at, text in enumerate(["1", "1", bad, "1"]) for result in extractor.feed(at * 10**9, f"v={text}")
    ]
    assert slices == [(0, 10**9, 1.0), (2 * 10**9, 3 * 10**9, 1.0)]
    assert extractor.counts.bad == 1


def test_a_bad_total_is_caught_up_with_by_the_next():
    extractor = Extractor(metric(regex=r"v=(\S+)", kind="total"))
    slices = [result for at, text in enumerate(["1", "x", "4"]) for result in extractor.feed(at * 10, f"v={text}")]
    assert slices == [(0, 20, 3.0)]


def test_readings_at_one_instant_make_no_slice_without_length():
    extractor = Extractor(metric(regex=r"(\d+)", kind="total"))
    slices = [result for at, text in [(0, "1"), (5, "2"), (5, "3"), (9, "7")] for result in extractor.feed(at, text)]
    assert slices == [(0, 5, 1.0), (5, 9, 5.0)]
    assert extractor.counts.bunched == 1


def test_a_csv_header_that_comes_again_and_quotes_are_understood():
    extractor = Extractor(metric(csv_column="ops", kind="total"))
    lines = ["# started", '"time, s",ops', '"1,0",5', '"time, s",ops', '"2,0",9', "short"]
    slices = [result for at, line in enumerate(lines) for result in extractor.feed(at, line)]
    assert slices == [(2, 4, 4.0)]
    assert extractor.counts.malformed == 1


def test_a_json_document_that_does_not_parse_is_counted_and_the_next_is_read():
    extractor = Extractor(metric(json="$.v", kind="total"))
    lines = ["{oops}", '{"v": 1}', "noise", '{"v": "}{"}', '{"v":', " 4}"]
    slices = [result for at, line in enumerate(lines) for result in extractor.feed(at, line)]
    assert slices == [(1, 5, 3.0)]
    assert (extractor.counts.malformed, extractor.counts.bad) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "readings", "malformed"),
    [
        (["[INFO] begun {", '{"v": 1}', '{"v": 2}'], 2, 1),
        (["{ not yet", '{"v": 1}'], 1, 1),
        (["[", '{"v": 1}', '{"v": 2}', '{"v": 3}'], 2, 1),
        (["{", '{"v": 1}'], 1, 1),
        (["[ 10s ] 4 threads", ' {"v": 1}'], 1, 1),
        (["{", '  "v": 1,', "warning: slow", '  "w": {"v": 7}', "}", "{", '  "v": 2', "}"], 1, 1),
        (["  {", '    "v": 1', "oops", '    {"v": 7}', "  }", "  {", '    "v": 2', "  }"], 1, 1),
        (['{"v": 1} done', '{"v": 2}'], 2, 1),
        (['{"v": 1}, {"v": 2}', "[]"], 2, 0),
        (['{"v": -nan}', '{"v": 5.9e 06}', '{"v": 1}'], 1, 2),
        (['{"v": "\\q"}', '{"v": 01}', '{"v": 1}'], 1, 2),
        (['\ufeff{"v": 1}', "plain text"], 1, 0),
        (['{"v": "a', '{"v": 2}'], 1, 1),
        (["[" * 5000, '{"v": 2}'], 0, 0),
    ],
)
def test_noise_costs_at_most_the_document_that_it_spoils_and_is_counted(
    lines: list[str], readings: int, malformed: int
):
    extractor = Extractor(metric(json="$.v"))
    for at, line in enumerate(lines):
        extractor.feed(at, line)
    assert (extractor.counts.readings, extractor.counts.malformed) == (readings, malformed)


DOCUMENTS = st.builds(
    lambda value, more, indent: json.dumps({"v": value, **more}, indent=indent).splitlines(),
    st.integers(0, 9),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=2) | st.text(max_size=3), max_size=2),
    st.sampled_from([None, 1, 4]),
)
NOISE = st.sampled_from(["[INFO] x", "[ 10s ] thds: 4", "{ x", "{", "[", "}", "]", ",", '"', "fio: ok", "", "  {"]).map(
    lambda line: [line]
)


@given(st.lists(st.tuples(st.booleans(), DOCUMENTS, NOISE), max_size=12))
def test_each_line_of_noise_costs_at_most_one_document(parts: list[tuple[bool, list[str], list[str]]]):
    extractor, documents, noises, at = Extractor(metric(json="$.v")), 0, 0, 0
    for is_noise, document, noise in parts:
        documents, noises = documents + (not is_noise), noises + is_noise
        for line in noise if is_noise else document:
            at += 1
            extractor.feed(at, line)
    assert documents - noises <= extractor.counts.readings + extractor.counts.bad
    assert noises or not extractor.counts.malformed


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({}, ""),
        ({"regex": "(a)", "json": "$.a"}, ""),
        ({"regex": "a"}, "regex"),
        ({"regex": "("}, "regex"),
        ({"json": "$["}, "json"),
        ({"json": ""}, "json"),
        ({"csv_column": -1}, "csv_column"),
        ({"csv_column": ""}, "csv_column"),
    ],
)
def test_a_metric_that_cannot_be_used_says_which_key(keys: dict[str, object], key: str):
    with pytest.raises(MetricError) as caught:
        Extractor(metric(**keys))
    assert caught.value.key == key
    assert caught.value.remedy


METRICS = st.sampled_from(
    [
        {"regex": r"(\S+)"},
        {"regex": r"(\d*)", "kind": "total"},
        {"json": "$..v", "kind": "total"},
        {"json": "$[0]"},
        {"csv_column": 1},
        {"csv_column": "v", "kind": "total"},
        {"csv_column": 0, "scale": 1e300},
    ]
)
LINES = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.text(max_size=30) | st.sampled_from(['{"v": 1}', "[1]", "{", "}", "v,w", "1,2", '"', "1e308", "\0"]),
    )
)


@given(METRICS, LINES)
@example({"json": "$[0]"}, [(0, '{"v": 1}')])
def test_no_output_makes_it_fail_and_slices_never_overlap(keys: dict[str, object], lines: list[tuple[int, str]]):
    extractor, at_ns, end_ns = Extractor(metric(**keys)), 0, 0
    for step, line in lines:
        at_ns += step
        for start, end, work in extractor.feed(at_ns, line):
            assert end_ns <= start < end <= at_ns
            assert work >= 0
            end_ns = end


@given(st.lists(st.integers(0, 10**9), min_size=2))
def test_totals_lose_nothing(steps: list[int]):
    extractor, total, seen = Extractor(metric(regex=r"(\d+)", kind="total")), 0, 0.0
    for at, step in enumerate(steps):
        total += step
        seen += sum(work for _, _, work in extractor.feed(at, str(total)))
    assert seen == total - steps[0]
