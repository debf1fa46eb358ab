"""The page of `partywall-watch` leads to what works: manifests, scrape jobs, alerts, metrics and command lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
from ruamel.yaml import YAML

from partywall import __version__
from tests.test_monitoring_files import METRIC, PACKAGING, of_watch, options

RULES = PACKAGING / "prometheus/partywall-watch.rules.yml"
PAGE = PACKAGING.parent / "docs/watch-always.md"
BEGIN, END = "<!-- metrics: written by make generate -->\n", "<!-- end of metrics -->"


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


def test_the_table_of_metrics_is_generated():
    """UPDATE_DOCS=1 writes them anew."""
    rows, lines = ["| metric | labels | type | meaning |", "|---|---|---|---|"], of_watch(is_open=False).splitlines()
    for at, line in enumerate(lines):
        if line.startswith("# HELP "):
            name, about = line.removeprefix("# HELP ").split(" ", 1)
            labels = ", ".join(f"`{label}`" for label in re.findall(r'(\w+)="', lines[at + 2]))
            rows.append(f"| `{name}` | {labels} | {lines[at + 1].rsplit(' ', 1)[1]} | {about} |")
    samples = {line.partition("{")[0] for line in lines if not line.startswith("#")}
    assert set(METRIC.findall("\n".join(rows))) == samples
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


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_promtool_accepts_the_job():
    argv = ["promtool", "check", "config", str(RULES.with_name("scrape.yml"))]
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
