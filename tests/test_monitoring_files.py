"""What monitors hosts: units, manifests, alerts and dashboards fit what `partywall-watch` and the guard serve."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from labs.release import packages
from labs.release.target import CLONE, DISTRIBUTIONS, Release
from partywall import __version__
from partywall.guard.check import loads
from partywall.guard.findings import Means, SoFar
from partywall.guard.prometheus import Totals as GuardTotals
from partywall.watch.stalls.detect import Stall
from partywall.watch.stalls.reading import HostCount
from partywall.watch.stalls.resident import parsed
from partywall.watch.stalls.rule import Pair
from partywall.watch.stalls.totals import OWN, Totals
from tests.guard.test_links import TEXT, reported

PACKAGING = Path(__file__).parents[1] / "packaging"
UNIT = PACKAGING / "systemd/partywall-watch.service"
METRIC = re.compile(r"\bpartywall_[a-z_]+\b")
LABEL = re.compile(r"[{,(\s]([a-z_]+)\s*(?:=~|!=|!~|=)\s*\"")
BY = re.compile(r"\bby \(([^)]*)\)")
GIVEN_BY_PROMETHEUS = {"instance", "job", "file"}
OF_OTHERS = re.compile(r"\b(up|node_textfile_mtime_seconds)\{")


def of_watch(*, is_open: bool = True) -> str:
    totals = Totals()
    totals.add("cpu", Pair("one", "two", 1), 0)
    now, own = [Stall("one", "cpu", 0)], dict.fromkeys(OWN, 1)
    return "\n".join(totals.lines(totals.families(HostCount(), now, own, ["ring"]), is_open=is_open))


def of_guard() -> str:
    totals, report = GuardTotals(), reported()
    rows = {vif: row | {"delay_ns": 1, "jitter_ns": 1, "granted_pps": 1} for vif, row in report.rows.items()}
    totals.add(SoFar(loads(TEXT), replace(report, rows=rows, notes=(("right", "less", "x"),)), Means()))
    return totals.text()


@pytest.fixture(params=[("watch", of_watch), ("guard", of_guard)], ids=lambda each: each[0])
def served(request):
    """Who serves, the names of all metrics that it serves, and of their labels."""
    name, text = request.param
    samples = [line for line in text().splitlines() if line and not line.startswith("#")]
    labels = {label for line in samples for label in re.findall(r'(\w+)="', line)}
    return name, {line.partition("{")[0] for line in samples}, labels | GIVEN_BY_PROMETHEUS


def expect_known(expression, served):
    _, metrics, labels = served
    assert set(METRIC.findall(expression)) <= metrics
    assert METRIC.search(expression) or OF_OTHERS.search(expression)
    used = {
        *LABEL.findall(expression),
        *(label.strip() for found in BY.findall(expression) for label in found.split(",")),
    }
    assert used <= labels
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


def unit():
    read = configparser.RawConfigParser(strict=False, delimiters=("=",))
    read.optionxform = str
    read.read_string(UNIT.read_text())
    return read


def options(words):
    """Checks them by the program's own rules."""
    assert words[0].rpartition("/")[2] == "partywall-watch"
    return parsed(words[1:])


def test_the_unit_starts_the_program_without_root_and_without_capabilities():
    service = unit()["Service"]
    given = options(service["ExecStart"].replace("%S", "/var/lib").split())
    assert given.address == "127.0.0.1"
    assert given.ring == Path("/var/lib") / service["StateDirectory"], "no other folder can be written to"
    assert service["DynamicUser"] == "yes"
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == ""
    assert set(service["RestartPreventExitStatus"].split()) == {"2", "4"}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_the_unit_is_hardened():
    argv = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_the_pod_is_small_reads_only_and_has_no_right_of_the_node():
    documents = list(YAML(typ="safe").load_all(PACKAGING / "kubernetes/partywall-watch.yaml"))
    assert [each["kind"] for each in documents] == ["Namespace", "ServiceAccount", "DaemonSet"]
    template = documents[-1]["spec"]["template"]
    assert documents[-1]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    given = options(container["command"])
    (port,) = container["ports"]
    assert port["containerPort"] == given.port
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": port["name"]}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} == container["resources"].keys()
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        assert mount.get("readOnly") or "emptyDir" in volumes[mount["name"]], "nothing of the node is written to"
    assert str(given.ring) in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_role_installs_the_file_of_the_release_that_fits_the_host():
    role = PACKAGING / "ansible/partywall"
    tasks = YAML(typ="safe").load(role / "tasks/main.yml")
    defaults = YAML(typ="safe").load(role / "defaults/main.yml")
    assert all(task["name"] for task in tasks)
    text = (role / "tasks/main.yml").read_text()
    used = set(re.findall(r"\bpartywall_[a-z_]*[a-z]\b", text)) - {"partywall_file", "partywall_policies"}
    assert used == defaults.keys()
    assert defaults["partywall_version"] == __version__
    release = Release(__version__, 0, CLONE, CLONE)
    for distribution in DISTRIBUTIONS:
        number = packages._number(release, distribution).removeprefix(__version__)
        assert re.sub(r"deb\d+$", "deb%s", number) in text, distribution


def test_alerts_ask_for_metrics_that_are_served(served):
    content = YAML(typ="safe").load(PACKAGING / f"prometheus/partywall-{served[0]}.rules.yml")
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in ("info", "warning")
        assert rule["annotations"]["summary"]
        expect_known(rule["expr"], served)
        said = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        kept = {label.strip() for found in BY.findall(rule["expr"]) for label in found.split(",")}
        matched = set(LABEL.findall(rule["expr"]))
        assert said <= (kept or GIVEN_BY_PROMETHEUS | matched), "a label that the expression drops is empty in the text"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_promtool_accepts_the_alerts():
    argv = ["promtool", "check", "rules", *map(str, (PACKAGING / "prometheus").glob("*.rules.yml"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dashboard_asks_for_metrics_that_are_served(served):
    board = json.loads((PACKAGING / f"grafana/partywall-{served[0]}.json").read_text())
    assert board["uid"] == f"partywall-{served[0]}"
    assert "id" not in board, "Grafana gives numbers to boards that are imported"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 0
    variables = {variable["name"] for variable in board["templating"]["list"]}
    taken = set()
    for panel in panels:
        assert panel["type"] in ("timeseries", "table", "stat")
        assert panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(cell[0] for cell in cells) < 24
        assert not cells & taken, "no panel covers another"
        taken |= cells
        for target in panel["targets"]:
            expect_known(target["expr"], served)
            assert set(re.findall(r"\$([a-z]\w*)", target["expr"])) <= variables
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert set(METRIC.findall(variable["query"]["query"])) <= served[1]
