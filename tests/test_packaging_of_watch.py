"""What is installed with `partywall-watch`: the unit, the manifests, the alerts and the dashboard fit the program."""

import configparser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from partywall import __version__
from partywall.watch.stalls.detect import Stall
from partywall.watch.stalls.reading import HostCount
from partywall.watch.stalls.resident import parsed
from partywall.watch.stalls.rule import Pair
from partywall.watch.stalls.totals import OWN, Totals

PACKAGING = Path(__file__).parents[1] / "packaging"
UNIT = PACKAGING / "systemd/partywall-watch.service"
METRIC = re.compile(r"\bpartywall_[a-z_]+\b")
LABEL = re.compile(r"[{,(\s]([a-z_]+)\s*(?:=~|!=|!~|=)\s*\"")
BY = re.compile(r"\bby \(([^)]*)\)")
GIVEN_BY_PROMETHEUS = {"instance", "job", "file"}
OF_OTHERS = re.compile(r"\b(up|node_textfile_mtime_seconds)\{")
RULES = PACKAGING / "prometheus/partywall-watch.rules.yml"
PAGE = PACKAGING.parent / "docs/watch-always.md"
BEGIN, END = "<!-- metrics: written by make generate -->\n", "<!-- end of metrics -->"


def all_lines(*, is_open):
    totals = Totals()
    totals.add("cpu", Pair("one", "two", 1), 0)
    return [*totals.lines(HostCount(), [Stall("one", "cpu", 0)], dict.fromkeys(OWN, 1), ["ring"], is_open=is_open)]


@pytest.fixture(scope="module")
def served():
    """The names of all metrics that are served, and of their labels."""
    samples = [line for line in all_lines(is_open=True) if not line.startswith("#")]
    labels = {name for line in samples for name in re.findall(r'(\w+)="', line)}
    return {line.partition("{")[0] for line in samples}, labels | GIVEN_BY_PROMETHEUS


def expect_known(expression, served):
    metrics, labels = served
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


def documents(place):
    return list(YAML(typ="safe").load_all(PACKAGING / place))


def test_what_is_applied_exists_and_takes_the_image_from_one_place():
    (kustomization,) = documents("kubernetes/kustomization.yaml")
    assert [name for name in kustomization["resources"] if not (PACKAGING / "kubernetes" / name).is_file()] == []
    (image,) = kustomization["images"]
    container = documents("kubernetes/partywall-watch.yaml")[-1]["spec"]["template"]["spec"]["containers"][0]
    assert image["name"] == container["image"], "no tag, so that only kustomization.yaml states one"
    assert image["newTag"] == __version__
    assert re.search(r"\) build -t (\S+)", (PACKAGING.parent / "Makefile").read_text())[1] == container["image"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing")
def test_kubectl_makes_manifests_with_an_image_that_can_be_pulled():
    argv = ["kubectl", "kustomize", str(PACKAGING / "kubernetes")]
    made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert f"image: registry.example/partywall:{__version__}\n" in made


def test_both_ways_to_scrape_pods_find_them_and_name_their_node():
    namespace, _, daemons = documents("kubernetes/partywall-watch.yaml")
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    (port,) = daemons["spec"]["template"]["spec"]["containers"][0]["ports"]
    (monitor,) = documents("kubernetes/podmonitor.yaml")
    assert monitor["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    (job,) = documents("kubernetes/scrape.yml")[0]["scrape_configs"]
    (found,) = job["kubernetes_sd_configs"]
    assert found["namespaces"]["names"] == [namespace["metadata"]["name"]]
    kept = {rule["source_labels"][0]: rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep"}
    assert kept == {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": labels["app.kubernetes.io/name"],
        "__meta_kubernetes_pod_container_port_name": port["name"],
    }
    node = "__meta_kubernetes_pod_node_name"
    assert {"source_labels": [node], "target_label": "instance"} in job["relabel_configs"]
    assert {"sourceLabels": [node], "targetLabel": "instance"} in endpoint["relabelings"]


def test_jobs_have_names_by_which_the_alert_knows_that_the_watch_is_gone():
    (gone,) = (rule for rule in rules() if rule["alert"] == "PartywallWatchGone")
    pattern = re.search(r'up\{job=~"([^"]*)"\}', gone["expr"])[1]
    jobs = [
        job for place in ("prometheus", "kubernetes") for job in documents(f"{place}/scrape.yml")[0]["scrape_configs"]
    ]
    assert len(jobs) == 2
    # That of the Prometheus Operator has the namespace and the monitor in its name.
    assert all(
        re.fullmatch(pattern, name) for name in [*(job["job_name"] for job in jobs), "partywall/partywall-watch"]
    )


def rules():
    content = YAML(typ="safe").load(RULES)
    return [rule for group in content["groups"] for rule in group["rules"]]


def test_the_page_has_a_first_step_for_each_alert():
    text = PAGE.read_text()
    assert re.findall(r"^\| `(Partywall\w+)` \|", text, re.MULTILINE) == [rule["alert"] for rule in rules()]


def test_the_page_has_all_metrics(served):
    """UPDATE_DOCS=1 writes them anew."""
    rows, lines = ["| metric | labels | type | meaning |", "|---|---|---|---|"], all_lines(is_open=False)
    for at, line in enumerate(lines):
        if line.startswith("# HELP "):
            name, about = line.removeprefix("# HELP ").split(" ", 1)
            labels = ", ".join(f"`{label}`" for label in re.findall(r'(\w+)="', lines[at + 2]))
            rows.append(f"| `{name}` | {labels} | {lines[at + 1].rsplit(' ', 1)[1]} | {about} |")
    assert set(METRIC.findall("\n".join(rows))) == served[0]
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    fresh = head + BEGIN + "\n".join([*rows, END]) + rest.partition(END)[2]
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(fresh)
    elif text != fresh:
        pytest.fail(f"{PAGE} does not fit the metrics; run make generate")


def test_command_lines_of_the_page_are_accepted_and_its_job_is_the_file():
    text = PAGE.read_text()
    words = [
        line.split("#")[0].removeprefix("ExecStart=")
        for line in re.findall(r"^(?:ExecStart=\S*|)partywall-watch --.*$", text, re.MULTILINE)
    ]
    given = [options(line.replace("%S", "/var/lib").split()) for line in words]
    assert {option for each in given for option in ("port", "file") if getattr(each, option) is not None} == {
        "port",
        "file",
    }
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (job,) = documents("prometheus/scrape.yml")[0]["scrape_configs"]
    assert YAML(typ="safe").load(shown)["scrape_configs"] == [job]


def test_alerts_ask_for_metrics_that_are_served(served):
    every = rules()
    assert len({rule["alert"] for rule in every}) == len(every) > 0
    for rule in every:
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
    for what, file in (("rules", RULES), ("config", RULES.with_name("scrape.yml"))):
        argv = ["promtool", "check", what, str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


STALLED = 'partywall_stalled_seconds_total{{instance="n1",victim="{}",suspect="{}",resource="{}"}}'
GOES_ON = {
    STALLED.format('web \\"a\\"', "batch", "cpu"): "0+6x120",
    STALLED.format('web \\"a\\"', "other", "cpu"): "0+1.5x120",
    STALLED.format('web \\"a\\"', "itself", "cpu"): "0+1x120",
    STALLED.format("db", "unknown", "disk"): "0+9x120",
    'up{job="partywall-watch",instance="n2"}': "0x120",
    'up{job="partywall-watch",instance="n1"}': "1x120",
    'up{job="other",instance="n3"}': "0x120",
    'partywall_watch_lacks{instance="n1",what="psi_cpu"}': "1x120",
    'partywall_watch_lacks{instance="n1",what="ring"}': "1x120",
}
"""What four hosts show for half an hour, each 15 s."""
FIRES = [
    (
        "PartywallWaitsForOthers",
        {"instance": "n1", "victim": 'web "a"', "resource": "cpu", "severity": "warning"},
        'web "a" waits for cpu because of others',
        "For 50% of the time. By use, because of: batch 40%, other 10%. To prove who it is: partywall blame.",
    ),
    (
        "PartywallWaitsForUnknown",
        {"instance": "n1", "victim": "db", "resource": "disk", "severity": "info"},
        "db waits for disk, and why is not known",
        "For 60% of the time. Use is not counted on this host, or the group has a disk limit of its own; see its "
        "limits.",
    ),
    (
        "PartywallWatchGone",
        {"instance": "n2", "job": "partywall-watch", "severity": "warning"},
        "The watch of n2 does not answer, or has not written its file for two minutes",
        None,
    ),
    (
        "PartywallWatchCannotWrite",
        {"instance": "n1", "what": "ring", "severity": "info"},
        "The watch of n1 cannot write its ring; /ready says why",
        None,
    ),
    ("PartywallWatchNotReady", None, None, None),
    ("PartywallStoppedByItsOwnLimit", None, None, None),
]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_alerts_fire_for_what_they_name_and_for_nothing_else(tmp_path):
    expected = []
    for alert, labels, summary, description in FIRES:
        annotations = {"summary": summary} | ({"description": description} if description else {})
        fired = [{"exp_labels": labels, "exp_annotations": annotations}] if labels else []
        expected.append({"eval_time": "29m", "alertname": alert, "exp_alerts": fired})
    series = [{"series": name, "values": values} for name, values in GOES_ON.items()]
    tests = [{"interval": "15s", "input_series": series, "alert_rule_test": expected}]
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    argv = ["promtool", "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_for_metrics_that_are_served(served):
    board = json.loads((PACKAGING / "grafana/partywall-watch.json").read_text())
    assert board["uid"] == "partywall-watch"
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
            assert set(METRIC.findall(variable["query"]["query"])) <= served[0]
