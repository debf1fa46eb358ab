import html as escaping
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from partywall.core.report import figures, host
from partywall.core.report.page import flat, pack
from partywall.core.stats.histogram import Histogram
from partywall.run.report import html
from partywall.run.values.evidence import Evidence
from partywall.run.values.observation import by_trial

FETCHES = {"src", "href", "data", "action", "poster", "srcset", "background", "formaction", "manifest", "xlink:href"}


class Page(HTMLParser):
    """Collects what a browser would act on: attributes that fetch, ids, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in FETCHES]
        self.ids += [value for name, value in attrs if name == "id"]
        self.inside.append(tag)
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_data(self, data):
        if self.inside and self.inside[-1] in self.texts:
            self.texts[self.inside[-1]][-1] += data

    def handle_endtag(self, tag):
        if tag in self.inside:
            del self.inside[len(self.inside) - 1 - self.inside[::-1].index(tag) :]


@pytest.fixture(scope="module")
def text(run) -> str:
    return html.render(*run)


@pytest.mark.long
def test_nothing_in_the_page_would_be_fetched(text):
    page = Page(text)
    assert page.fetched
    assert [link for link in page.fetched if not link.startswith("#") and link != "data:,"] == []
    assert not any("url(" in style or "@import" in style for style in page.texts["style"])
    assert "default-src 'none'" in text


@pytest.mark.long
def test_every_link_within_the_page_has_its_end(text):
    page = Page(text)
    assert {link[1:] for link in page.fetched if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_the_page_is_light_enough_to_send(text):
    assert len(text.encode()) < 3_000_000


def test_every_figure_is_in_the_page_without_its_script(run, text):
    plain = text[: text.index('<script type="application/json"')]
    for cell in run[0].cells:
        assert plain.count(figures.ratio(cell.isolation)) >= 2


def test_every_chart_that_has_a_place_has_a_specification(text):
    data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    places = set(re.findall(r'data-chart="([^"]+)"', text))
    assert places <= set(data["charts"])
    assert len(data["templates"]) < len(data["charts"])


def rebuilt(packed: dict, identity: str):
    template, tables = packed["charts"][identity]
    rows = [[dict(zip(t["columns"], row, strict=True)) for row in t["rows"]] for t in tables]

    def fill(part):
        if isinstance(part, list):
            return [fill(item) for item in part]
        if isinstance(part, dict):
            return {"values": rows[part["table"]]} if set(part) == {"table"} else {k: fill(v) for k, v in part.items()}
        return part

    return fill(packed["templates"][template])


def test_packed_charts_unpack_to_what_was_packed():
    specs = {
        "a": {"layer": [{"data": {"values": [{"x": 1, "y": None}]}, "mark": "bar"}], "width": 1},
        "b": {"layer": [{"data": {"values": []}, "mark": "bar"}], "width": 1},
        "c": {"data": {"values": [{"x": "</script>"}]}, "mark": "point"},
    }
    packed = pack(specs)
    assert {identity: rebuilt(packed, identity) for identity in specs} == specs
    assert len(packed["templates"]) == 2


@pytest.mark.long
def test_text_from_a_user_or_a_host_cannot_become_markup(run):
    findings, evidence = run
    nasty = "</script><img src=x onerror=alert(1)>"
    odd = {"cpu": nasty, nasty: ["a", nasty]}
    text = html.render(
        findings.model_copy(update={"headline": nasty, "scenario": nasty, "warnings": (nasty,)}),
        Evidence(**{**evidence.__dict__, "host": odd, "disturbances": (("t1-copy", 0, nasty),)}),
    )
    assert "<img src=x" not in text
    assert escaping.escape(nasty) in text


@pytest.mark.long
def test_emulated_runs_say_so_at_the_top_and_in_every_cell_and_panel(emulated_run):
    text = html.render(*emulated_run)
    assert '<span class="badge emulated">' in text
    shown = [cell for cell in emulated_run[0].cells if cell.role != "limit"]
    assert text.count('<span class="tag">emulated</span>') >= 2 * len(shown)


def test_warnings_missing_facts_disturbances_and_seed_are_reported(run, text):
    for what, why, remedy in run[1].missing:
        assert all(escaping.escape(part, quote=False) in text for part in (what, why, remedy))
    assert "--seed 42" in text
    assert "steal: 3.1 % of the block" in text
    assert "The effect still changed within the slots" in text


def test_a_run_without_any_cell_gives_a_page_that_says_so(run):
    findings = run[0].model_copy(
        update={"cells": (), "bands": (), "curves": (), "verdicts": (), "incomplete": ("t1: died",)}
    )
    text = html.render(findings, Evidence(**{**run[1].__dict__, "observations": {}, "timeline": {}}))
    assert "No cell was finished" in text
    assert "t1: died" in text


def test_a_cell_whose_blocks_are_gone_keeps_its_figures(run):
    text = html.render(run[0], Evidence(**{**run[1].__dict__, "observations": {}, "timeline": {}}))
    assert figures.ratio(run[0].cells[0].isolation) in text
    assert "No finished block holds both" in text


def test_the_host_is_reported_in_a_few_lines_and_what_is_not_known_has_none(run):
    assert dict(host.summary(run[1].host)) == {
        "processors": "2 of Example CPU 9000 @ 2.50GHz",
        "caches": "L1 data 48 KiB (2 of them); L3 33 MiB",
        "memory": "24 GiB",
        "disks": "vda 256 GiB",
        "kernel": "6.1.0-40-amd64",
        "clock": "tsc",
        "is itself a guest": "yes, of Example",
    }
    assert host.summary({"cpu": None, "kernel": "odd"}) == ()


def test_unknown_host_facts_are_said_to_be_unknown():
    facts = dict(flat({"governor": None, "memory_bytes": 2**30, "cpus": [0, 1], "disks": [{"name": "sda"}]}))
    assert facts == {"governor": "unknown", "memory": "1 GiB", "cpus": "0, 1", "disks 0 · name": "sda"}


@pytest.fixture
def page(browser, text, tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    return browser


def wait_for(browser, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait  # noqa: PLC0415 - only where a browser is

    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(f"return {script}"))


def requests_of(browser) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def test_in_a_browser_choosing_a_cell_opens_its_drill_down_down_to_the_slots(page, run):
    cell = page.find_element("css selector", 'a.cell[href="#cell-2"]')
    cell.send_keys("\ue007")
    wait_for(page, "document.querySelectorAll('#cell-2.open .chart svg').length >= 4")
    assert page.execute_script("return document.activeElement.id") == "cell-2"
    assert page.execute_script("return document.querySelectorAll('.panel.open').length") == 1
    treatments = len(run[1].plan.trials[0].treatments)
    assert page.execute_script("return document.querySelectorAll('#cell-2 .slots tbody tr').length") == treatments
    page.execute_script("document.querySelector('#cell-2 .picker button:last-child').click()")
    wait_for(page, "document.querySelector('#cell-2 select').value === '1'")


def test_in_a_browser_arrow_keys_walk_the_matrix(page):
    first = page.find_element("css selector", "a.cell")
    first.send_keys("\ue014")
    assert page.execute_script("return document.activeElement.getAttribute('href')") == "#cell-2"


def test_a_browser_reports_no_error_and_makes_no_request_but_for_the_file(page):
    page.execute_script("document.querySelectorAll('.panel').forEach(panel => panel.classList.add('open'))")
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    wait_for(page, "[...document.querySelectorAll('.chart')].every(c => !c.offsetParent || c.querySelector('svg'))")
    assert page.get_log("browser") == []
    assert {url.split(":", 1)[0] for url in requests_of(page)} <= {"file", "data"}


def test_in_a_browser_nothing_sticks_out_of_a_narrow_page(page):
    page.set_window_size(500, 900)
    assert page.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.long
def test_the_commands_that_do_it_again_name_the_run_itself(run):
    findings, evidence = run
    page = html.render(findings, replace(evidence, directory="runs/my demo"))
    plain = escaping.unescape(page)
    assert "partywall run 'runs/my demo/scenario.yaml' --seed 42 --budget 120s --precision 1%  #" in plain
    assert "partywall report 'runs/my demo'" in plain
    assert "partywall compare NEW_RUN 'runs/my demo'" in plain


@pytest.mark.parametrize("width", [1280, 800, 400])
def test_the_page_never_scrolls_sideways(page, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.execute_script("document.querySelectorAll('.panel').forEach(panel => panel.classList.add('open'))")
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_figure_its_interval_and_its_unit_stay_on_one_line():
    assert (
        html.unbroken("between 21 % ± 9 and 50 % ± 6") == "between 21\u00a0%\u00a0±\u00a09 and 50\u00a0%\u00a0±\u00a06"
    )


@pytest.mark.long
def test_a_victim_that_tells_no_latency_has_a_page_without_its_chart(run):
    result, evidence = run
    every = itertools.chain.from_iterable(evidence.observations.values())
    silent = by_trial(replace(o, latency=Histogram({})) for o in every)
    page = html.render(result, replace(evidence, observations=silent))
    assert "Latency percentiles" not in page
    assert "Effect over time" in page
