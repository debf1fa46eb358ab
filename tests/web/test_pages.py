"""Every address: what it shows, what it refuses, and what it never serves."""

import asyncio
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from partywall.errors import UsageError
from partywall.run.check import loads
from partywall.web import deleted, documents, live, publish, records, security, stream
from partywall.web.interface import openapi
from partywall.web.jobs import Job, Order, State
from partywall.web.runner import command
from partywall.web.security import Role, Secrets
from tests.web.web_site import ORIGIN, Page, record

NASTY = "<script>document.title='x'</script>\u202e\" onload=alert(1) '{{7*7}}"
DOCUMENT = "partywall: 1\nname: tiny\nvictims:\n  a: {probe: pipes}\naggressors:\n  b: {stressor: cache}\n"
PAGES = ("/", "/bin", "/start", "/start?kind=run&shipped=demo", "/compare", "/history", "/?q=x", "/records/load-1")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_a_session_and_has_a_strict_policy(server, page, folder, path):
    record(folder, "load-1")
    answer = page.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "'unsafe" not in policy
    assert "script-src 'self'" in policy
    assert " style=" not in answer.text
    assert " onclick=" not in answer.text
    assert Page(server, login=False).get(path).status_code == 401


@pytest.mark.parametrize(
    ("state", "report", "watched"),
    [
        (State.RUNNING, False, True),
        (State.PAUSED, True, True),
        (State.ENDED, False, True),
        (State.ENDED, True, False),
        (State.CANCELLED, False, False),
    ],
)
def test_a_page_holds_a_stream_only_while_it_may_change(page, folder, state, report, watched):
    record(folder, "load-1", **({"report_html": "x"} if report else {}))
    order = Order(kind="load", url="http://127.0.0.1/", users=1, duration="1s")
    folder.put(Job(id="job-00001", order=order, record="load-1", created=1.0, state=state))
    assert ("sse-connect" in page.get("/records/load-1").text) == watched


def test_a_record_offers_its_report_for_other_programs(page, folder):
    record(folder, "load-1")
    offered = re.findall(r'name="format" value="(\w+)"', page.get("/records/load-1").text)
    assert {"csv", "parquet", "png", "svg"} <= set(offered)
    assert "html" not in offered


def test_the_launch_link_works_once(server):
    token = server.secrets.launch_token
    first = Page(server, login=False).get(f"/login?token={token}")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "set-cookie" not in Page(server, login=False).get(f"/login?token={token}").headers


def test_a_record_with_nasty_text_is_shown_as_text(page, folder):
    note = {"at": 1.0, "event": "note", "text": NASTY}
    record(folder, "load-1", [note], findings_json=json.dumps({"headline": NASTY}))
    page.submit("/records/load-1/annotate", note=NASTY, tags=NASTY)
    for path in ("/", "/records/load-1"):
        text = page.get(path).text
        assert "&lt;script&gt;" in text
        assert "<script>document" not in text
        assert "49" not in text.partition("onload")[2][:40]


@pytest.mark.parametrize(
    "path",
    [
        "/records/load-1/files/../../secret",
        "/records/load-1/files/%2e%2e/%2e%2e/secret",
        "/records/load-1/files/..%2f..%2fsecret",
        "/records/../secret",
        "/records/load-1/files//etc/passwd",
        "/records/load-1/files/link",
        "/records/load-1/files/folder/secret",
        "/records/linked/files/secret",
        "/records/.partywall/files/session-secret",
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/assets/vendor/../../app.py",
    ],
)
def test_no_file_outside_a_record_is_served(page, folder, path, tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    made = record(folder, "load-1")
    (made / "link").symlink_to(tmp_path / "secret")
    (made / "folder").symlink_to(tmp_path)
    (folder.root / "linked").symlink_to(tmp_path)
    answer = page.get(path)
    assert answer.status_code in (307, 308, 404)
    assert "SECRET" not in answer.text


@pytest.mark.parametrize("kind", ["run", "study", "migration", "load", "x"])
@pytest.mark.parametrize("name", ["SECRET", "../../../etc/passwd", "papers/../../../pyproject", ".", "a%00b"])
def test_only_shipped_documents_are_opened_in_the_editor(page, kind, name, tmp_path):
    (tmp_path / "secret.yaml").write_text("study: SECRET-CONTENT")
    answer = page.get(f"/start?kind={kind}&shipped={name.replace('SECRET', str(tmp_path / 'secret.yaml'))}")
    assert answer.status_code == 404
    assert "SECRET-CONTENT" not in answer.text


def test_files_of_a_record_have_no_origin(page, folder):
    record(folder, "load-1", report_html="<script>1</script>")
    shown = page.get("/records/load-1/files/report.html")
    assert "sandbox" in shown.headers["content-security-policy"]
    assert "allow-same-origin" not in shown.headers["content-security-policy"]
    other = page.get("/records/load-1/files/load.json")
    assert other.headers["content-disposition"].startswith("attachment")


CHANGES = ("/jobs", "/dry-run", "/start/simple", "/check", "/records/load-1/delete", "/jobs/job-00001/stop")


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.test", "http://127.0.0.1:9999", "https://127.0.0.1:8733", f"{ORIGIN}.evil.test"],
)
def test_a_change_from_another_origin_is_refused(page, folder, path, origin):
    record(folder, "load-1")
    assert page.submit(path, origin=origin, kind="run", shipped="demo").status_code == 403
    assert folder.all() == []
    assert folder.record("load-1")


@pytest.mark.parametrize("key", ["", "x", "0123456789abcdef-0123456789abcdef01234567"])
def test_a_form_without_a_key_of_this_server_is_refused(page, folder, key):
    assert page.submit("/jobs", kind="run", shipped="demo", key=key).status_code == 403
    assert folder.all() == []


def test_a_key_that_no_page_of_this_server_gave_is_refused_in_plain_words(page, folder):
    headers = {"origin": ORIGIN, "idempotency-key": "0123456789abcdef-0123456789abcdef01234567"}
    answer = page.post("/api/jobs", json={"kind": "run", "shipped": "demo"}, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["problems"][0]["message"] == "A browser's key must come from a page of this server."
    assert folder.all() == []


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:8733", "127.0.0.1", "127.0.0.1:80", "", "[::1", "localhost:8733.evil"]
)
def test_a_rebound_name_is_refused(page, host):
    assert page.get("/", headers={"host": host}).status_code == 421


def test_a_proxy_passes_on_a_whole_host_name_and_no_path(page):
    proxied = {"x-forwarded-prefix": "/partywall", "x-forwarded-host": "example.org", "x-script-name": "/partywall"}
    answer = page.get("/", headers=proxied)
    assert answer.status_code == 200
    assert "/partywall/" not in answer.text
    assert 'href="/start' in answer.text
    assert page.get("/partywall/").status_code == 404


def test_a_viewer_changes_nothing(viewer, folder):
    record(folder, "load-1")
    assert viewer.get("/records/load-1").status_code == 200
    for path in CHANGES:
        assert viewer.submit(path, kind="run", shipped="demo").status_code == 403
    assert folder.all() == []
    assert "/start" not in viewer.get("/").text


def test_a_cookie_of_a_full_session_only_looks_on_a_read_only_server(server, viewer):
    cookie = server.secrets.redeem(server.secrets.launch_token)
    viewer.cookies.clear()
    viewer.cookies.set(server.site.cookie, cookie)
    assert viewer.submit("/jobs", kind="run", shipped="demo").status_code == 403


def test_who_opens_a_shared_link_may_only_look(shared, folder):
    """Every address that takes a change is refused, for a browser and for a program."""
    record(folder, "load-1")
    order = Order(kind="load", url="http://127.0.0.1/", users=1, duration="1s")
    folder.put(Job(id="job-00001", order=order, record="load-1", created=1.0, state=State.RUNNING, want=None))
    seen = shared.get("/records/load-1").text
    assert "<form" not in seen
    assert "/start" not in shared.get("/").text
    full = Page(shared.server)
    assert "Stop and report" in full.get("/records/load-1").text
    program = Page(shared.server, login=False)
    token = Secrets(folder.own, Role.LOOK).bearer
    before = [folder.all(), sorted(folder.root.rglob("*"))]
    places = [route.path for route in shared.app.app.routes if "POST" in (getattr(route, "methods", None) or ())]
    places += [path for path, ways in openapi()["paths"].items() if "post" in ways]
    assert len(places) > 15
    for place in places:
        action = {"/jobs/{id}/{action}": "stop", "/records/{name}/{action}": "delete"}.get(place, "")
        path = place.replace("{id}", "job-00001").replace("{name}", "load-1").replace("{action}", action)
        if path != "/login":
            assert shared.submit(path, kind="run", shipped="demo").status_code == 403, path
            headers = {"authorization": f"Bearer {token}", "idempotency-key": "nightly-1"}
            assert program.post(path, json={}, headers=headers).status_code == 403, path
    assert program.get("/api/records", headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert before == [folder.all(), sorted(folder.root.rglob("*"))]


def test_a_shared_link_opens_often_and_ends_when_it_is_no_longer_shared(shared, server):
    token, site = shared.server.secrets.view_token, shared.server.site
    for _ in range(2):
        assert Page(shared.server, login=False).get(f"/login?token={token}").status_code == 200
    alone = Page(server, login=False)
    assert alone.get(f"/login?token={token}").status_code == 401
    alone.cookies.set(site.cookie, shared.cookies[site.cookie])
    assert alone.get("/").status_code == 401
    headers = {"authorization": f"Bearer {Secrets(server.folder.own, Role.LOOK).bearer}"}
    assert Page(server, login=False).get("/api/records", headers=headers).status_code == 401


def test_the_stream_of_a_shared_page_has_no_controls(shared, folder):
    async def first(*, may_change):
        return await anext(stream.panels(shared.server, "load-1", "", may_change=may_change))

    record(folder, "load-1", [{"at": 1.0, "event": "doing", "text": "x"}])
    assert b"event: controls" in asyncio.run(first(may_change=True))
    seen = asyncio.run(first(may_change=False))
    assert b"event: status" in seen
    assert b"event: controls" not in seen


def test_mistakes_are_reported_at_their_line(page):
    answer = page.post("/check", content=DOCUMENT, headers={"origin": ORIGIN})
    (problem,) = answer.json()["problems"]
    assert problem["line"] == 4
    assert "pipe" in problem["remedy"]


def test_a_dry_run_with_mistakes_returns_to_the_editor_with_the_text(page):
    answer = page.submit("/dry-run", document=DOCUMENT.replace("\n", "\r\n"))
    assert answer.status_code == 400
    assert "<b>line 4</b>" in answer.text
    assert "probe: pipes" in answer.text


@pytest.mark.parametrize("change", ["", "# changed\n"])
@pytest.mark.parametrize(("kind", "name"), [("run", "demo"), ("migration", "migration")])
def test_an_unchanged_shipped_document_is_started_by_its_name(page, folder, kind, name, change):
    text = documents.text_of(kind, name) + change
    page.submit("/jobs", kind=kind, shipped=name, document=text.replace("\n", "\r\n"))
    (job,) = folder.all()
    assert job.order.kind == kind
    assert job.order.shipped == (None if change else name)
    assert (job.order.document is None) is not bool(change)
    assert ("document" if change else name) in command(job.order, Path("document"), Path("record"))


MEASURES = """
import sys
from pathlib import Path
from partywall.events import Started, silent
from partywall.sandbox.measuring import measuring
with measuring("'partywall run demo'", silent) as mark:
    mark(Started(Path("elsewhere/demo-1")))
    print("measures", flush=True)
    sys.stdin.readline()
"""


def test_a_queued_job_names_the_measurement_that_it_waits_for(page, shared, tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "states"))
    page.submit("/jobs", kind="run", shipped="demo")
    assert "waits until no other measurement runs on this host" in page.get("/").text
    with subprocess.Popen([sys.executable, "-c", MEASURES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"measures\n"
        assert f"waits for &#39;partywall run demo&#39; (process {other.pid}, elsewhere/demo-1)" in page.get("/").text
        assert f"process {other.pid}" in page.submit("/dry-run", kind="run", shipped="demo").text
        assert f"process {other.pid}" not in shared.get("/").text
        other.stdin.close()


def test_a_job_is_started_once_however_often_the_form_is_sent(page, folder):
    key = page.server.secrets.key()
    places = {page.submit("/jobs", key=key, kind="run", shipped="demo").headers["location"] for _ in range(3)}
    assert len(places) == 1
    assert len(folder.all()) == 1
    assert page.get(places.pop()).status_code == 200


def test_the_page_says_who_is_next_and_why(page, folder):
    for number in range(2):
        order = Order(kind="run", shipped="demo")
        folder.put(Job(id=f"job-0000{number}", order=order, record=f"r-{number}", created=number))
    assert "next: it starts as soon as" in page.get("/records/r-0").text
    assert "two measurements would spoil each other" in page.get("/records/r-1").text


def test_a_deleted_record_can_be_restored_from_the_page(page, folder):
    record(folder, "load-1")
    place = page.submit("/records/load-1/delete").headers["location"]
    assert "Undo" in page.get(place).text
    assert "load-1" not in page.get("/").text
    page.submit("/records/load-1/restore")
    assert "load-1" in page.get("/").text


def test_the_bin_lists_restores_and_is_emptied_after_a_confirmation(page, folder):
    for _ in range(2):
        record(folder, "load-1")
        page.submit("/records/load-1/delete")
    assert "2 deleted records" in page.get("/").text
    shown = page.get("/bin").text
    first, second = re.findall(r'name="entry" value="([^"]+)"', shown)
    assert "kept until" in shown
    assert page.submit("/records/load-1/restore", entry=second).status_code == 303
    assert "a record has this name" in page.get("/bin").text
    assert page.submit("/bin/empty", before="1e10").status_code == 400
    assert [each.id for each in deleted.entries(folder)] == [first]
    assert page.submit("/bin/empty", before="1e10", sure="on").status_code == 303
    assert "No deleted records" in page.get("/bin").text
    assert page.get("/api/bin").json() == {"deleted": []}


def test_records_are_found_by_name_tag_and_note(page, folder):
    record(folder, "load-1")
    record(folder, "load-2")
    page.submit("/records/load-1/annotate", note="before the new kernel", tags="night, edge")
    for query, there in (("edge", True), ("new kernel", True), ("load-1", True), ("nothing", False)):
        assert ("/records/load-1" in page.get(f"/?q={query}").text) is there
        assert "/records/load-2" not in page.get(f"/?q={query}").text


def test_large_and_odd_requests_are_refused(page):
    assert page.post("/check", content=b"x" * (2 << 20), headers={"origin": ORIGIN}).status_code == 413
    assert page.get("/?q=" + "x" * 9000).status_code == 414
    assert page.submit("/jobs", **{f"f{n}": "x" for n in range(300)}).status_code == 400
    assert page.request("TRACE", "/").status_code in (403, 405)
    assert page.get("/nothing").status_code == 404


LIMITED = {
    "victim": "pipe", "neighbour": ["cache"], "budget": "5min", "precision": "1%", "copies": "3", "backend": "",
    "cpu_limit": "50%", "cpu_weight": "200", "memory": "256MiB", "read_bps": "20MB/s", "write_iops": "500",
    "neighbour_backend": "container", "neighbour_cpu_limit": "25%", "neighbour_write_bps": "5 MB/s",
}  # fmt: skip


def test_the_simple_form_writes_a_scenario_with_limits_of_both_sides_and_several_neighbours(page):
    answer = page.submit("/start/simple", **LIMITED)
    assert answer.status_code == 200
    text = html.unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", answer.text, re.DOTALL).group(1))
    scenario = loads(text)
    victim, cache = scenario.victims["pipe"].sandbox, scenario.aggressors["cache"]
    assert (victim.backend, victim.cpu_limit, victim.cpu_weight, victim.memory) == ("container", 0.5, 200, 256 << 20)
    assert (victim.disk.read_bps, victim.disk.write_iops) == (20_000_000, 500)
    assert cache.together == ("cache-2", "cache-3")
    assert {a.sandbox.cpu_limit for a in scenario.aggressors.values()} == {0.25}
    assert cache.sandbox.disk.write_bps == 5_000_000


def test_all_mistakes_of_the_simple_form_are_at_their_fields_and_the_rest_is_kept(page):
    wrong = {
        "budget": "-x!", "cpu_limit": "a: b", "cpu_weight": "0", "memory": "]", "read_bps": "fast",
        "neighbour_memory": '"', "precision": "{{7*7}}",
    }  # fmt: skip
    answer = page.submit("/start/simple", **LIMITED | wrong)
    assert answer.status_code == 400
    for name in wrong:
        assert f'id="{name}-wrong-1"' in answer.text, name
    assert 'name="write_iops" value="500"' in answer.text
    assert "7 mistakes" in answer.text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"victim": "x"}, "victim"),
        ({"neighbour": []}, "neighbour"),
        ({"neighbour": ["x"]}, "neighbour"),
        ({"copies": "99"}, "copies"),
        ({"copies": "x"}, "copies"),
        ({"backend": "ssh"}, "backend"),
        ({"backend": "process"}, "cpu_limit"),
    ],
)
def test_a_wrong_choice_in_the_simple_form_is_shown_at_its_field(page, change, field):
    answer = page.submit("/start/simple", **LIMITED | change)
    assert answer.status_code == 400
    assert f'id="{field}-wrong-1"' in answer.text


def test_every_address_of_the_interface_is_described(page):
    described = page.get("/api/openapi.json").json()
    assert described == openapi()
    for path, operations in described["paths"].items():
        for method in operations:
            url = path.replace("{name}", "no-such").replace("{id}", "no-such-1")
            answer = page.request(method, url, headers={"origin": ORIGIN}, content="{}")
            assert answer.status_code != 405, (method, path)
            assert answer.headers["content-type"].startswith("application/json"), (method, path, answer.text)


def test_the_schema_of_the_policies_editor_takes_values_as_people_write_them(page):
    schema = page.get("/api/policy.schema.json").json()
    shipped = Path(__file__).parents[2] / "docs/examples/edge.yaml"
    policy = YAML(typ="safe", pure=True).load(shipped.read_text("utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(policy)] == []


def test_a_program_starts_a_job_once_with_its_own_key(server, folder):
    program = Page(server, login=False)
    headers = {"authorization": f"Bearer {server.secrets.bearer}", "idempotency-key": "nightly-1"}
    order = {"kind": "run", "shipped": "demo", "budget": "3min"}
    answers = [program.post("/api/jobs", json=order, headers=headers).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert [job.order.budget for job in folder.all()] == ["3min"]
    assert program.get("/api/jobs/nightly-1", headers=headers).json()["state"] == State.QUEUED
    wrong = headers | {"authorization": "Bearer x"}
    assert program.post("/api/jobs", json=order, headers=wrong).status_code == 401


def test_histories_of_comparable_runs_name_a_shift():
    from partywall.web.compared import _shift  # noqa: PLC0415 - of this test alone

    def run(name, value):
        return (name, value, value - 0.02, value + 0.02)

    assert _shift([run(f"a{n}", 1.0) for n in range(4)] + [run(f"b{n}", 0.9) for n in range(3)]) == "b0"
    assert _shift([run(f"a{n}", 1.0 - 0.01 * (n % 2)) for n in range(9)]) == ""
    assert _shift([run("a", 1.0), run("b", 0.5)]) == ""


def test_the_button_that_compares_is_above_the_list(page, folder):
    record(folder, "load-1")
    assert "Compare the selected" not in page.get("/").text
    record(folder, "load-2")
    text = page.get("/").text
    assert text.count("Compare the selected") == 1
    assert text.index("Compare the selected") < text.index("<table")


def test_published_pages_are_updated_and_other_folders_left_alone(folder, tmp_path):
    site = tmp_path / "site"
    record(folder, "load-1", report_html="one", findings_json="{}")
    record(folder, "load-2", report_html="two", findings_json="{}")
    assert publish.write(folder, site) == 2
    (site / "CNAME").write_text("mine")
    shutil.rmtree(folder.root / "load-1")
    (folder.root / "load-2" / "report.html").write_text("changed")
    record(folder, "load-3", report_html="three")
    assert publish.write(folder, site) == 2
    assert not (site / "load-1").exists()
    assert (site / "load-2" / "report.html").read_text() == "changed"
    assert (site / "load-3" / "report.html").read_text() == "three"
    assert "load-1" not in (site / "index.html").read_text()
    assert (site / "CNAME").read_text() == "mine"
    assert not list(site.rglob("*.new"))


def test_the_reports_of_a_fleets_hosts_are_published_beside_its_own_and_removed_with_it(folder, tmp_path):
    site = tmp_path / "site"
    record(folder, "fleet-1", report_html="fleet")
    own = folder.root / "fleet-1" / "hosts" / "a b" / "record-1"
    own.mkdir(parents=True)
    (own / "report.html").write_text("host")
    (own / "events.jsonl").write_text("{}")
    assert publish.write(folder, site) == 1
    there = site / "fleet-1" / "hosts"
    assert [str(file.relative_to(there)) for file in there.rglob("*") if file.is_file()] == ["a b/record-1/report.html"]
    shutil.rmtree(folder.root / "fleet-1")
    assert publish.write(folder, site) == 0
    assert not (site / "fleet-1").exists()


def test_a_folder_that_publish_did_not_make_is_not_written_to(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.html").write_text("mine")
    with pytest.raises(UsageError, match=r"files that publish did not write — give another --out"):
        publish.write(folder, other)
    with pytest.raises(UsageError, match="is a file"):
        publish.write(folder, other / "index.html")
    assert (other / "index.html").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert publish.write(folder, tmp_path / "empty") == 0


def test_a_changed_list_of_published_files_removes_nothing_elsewhere(folder, tmp_path):
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    publish.write(folder, tmp_path / "site")
    (tmp_path / "site" / publish.LIST).write_text("../kept.txt\n/etc/no-such\n")
    publish.write(folder, tmp_path / "site")
    assert kept.read_text() == "mine"


def test_published_records_are_an_archive_of_reports_without_hidden_files(page, folder):
    record(folder, "load-1", report_html="<p>one", findings_json="{}", other_txt="x")
    answer = page.get("/published.zip")
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    assert archive.namelist() == [
        f"partywall/{name}" for name in ("index.html", "load-1/report.html", "load-1/findings.json")
    ]
    assert archive.read("partywall/load-1/report.html") == b"<p>one"


def test_an_archive_is_sent_in_pieces_and_never_held_in_memory(folder):
    for number in range(8):
        made = record(folder, f"load-{number}")
        (made / "report.html").write_bytes(os.urandom(4 << 20))
    next(publish.packed(folder))
    tracemalloc.start()
    sizes = [len(piece) for piece in publish.packed(folder)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(sizes) > 32 << 20
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("mark", "findings", "badge"),
    [
        ("load.json", {"headline": "", "goals": 0, "evidence": {"goals": 1}}, "✓ measured"),
        ("load.json", {"headline": "", "goals": 1}, "✓ holds"),
        ("plan.json", {"headline": "", "goals": 2}, "✓ holds"),
        ("migration.json", {"headline": "", "goals": 0}, "✓ measured"),
        ("guard.jsonl", {"headline": "", "goals": 12}, "✓ holds"),
        ("guard.jsonl", {}, "✓ measured"),
        ("load.json", [1], "✓ measured"),
        ("load.json", None, "✓ measured"),
    ],
)
def test_a_record_holds_only_if_it_had_a_goal(tmp_path, mark, findings, badge):
    (tmp_path / mark).write_text("{}")
    if findings is not None:
        (tmp_path / "findings.json").write_text(json.dumps(findings, indent=1))
    assert records.kind_of(tmp_path) is not None
    assert records.outcome(tmp_path, 0) == ("holds" if "holds" in badge else "done", badge)


def test_a_login_with_too_many_fields_is_bad_input(server):
    page = Page(server, login=False)
    answer = page.post("/login", data={f"f{number}": "x" for number in range(300)}, headers={"origin": ORIGIN})
    assert answer.status_code == 400
    assert "too many fields" in answer.text


def test_a_secret_is_made_whole_and_two_servers_that_start_at_once_share_it(tmp_path, monkeypatch):
    file = tmp_path / "secret"
    first = security._kept(file)
    assert (len(first), file.stat().st_mode & 0o777) == (32, 0o600)
    # The other server finds none, and is then too late.
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert security._kept(file) == first
    monkeypatch.undo()
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]
    file.unlink()
    monkeypatch.setattr(security.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        security._kept(file)
    assert list(tmp_path.iterdir()) == []


def test_pages_do_not_read_records_on_the_event_loop(page, folder, monkeypatch):
    """A record with many files, or a lock that another page holds, must not stop all pages."""
    record(folder, "load-1")
    put = Job(
        id="job-00001", order=Order(kind="load", url="http://x"), record="load-1", created=1.0, state=State.RUNNING
    )
    folder.put(put)
    loops = []

    def watched(owner, name):
        call = getattr(owner, name)

        def wrapped(*arguments, **fields):
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                loops.append(name)
            return call(*arguments, **fields)

        monkeypatch.setattr(owner, name, wrapped)

    for owner, name in ((records, "files"), (records, "named"), (records, "row"), (records, "summary"),
                        (page.server, "matrix"), (page.server, "watched"), (type(folder), "all")):  # fmt: skip
        watched(owner, name)
    for path in ("/", "/records/load-1", "/api/records/load-1", "/api/jobs", "/api/records"):
        assert page.get(path).status_code == 200, path
    assert loops == []


def test_the_lines_of_a_journal_are_not_read_on_the_event_loop(tmp_path, monkeypatch):
    (tmp_path / "journal.jsonl").write_text('{"at":1,"event":"note","text":"x"}\n')
    read = []

    def lines(file, offset):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        read.append(offset)
        return live.lines(file, offset)

    monkeypatch.setattr(stream, "lines", lines)

    async def first():
        events = stream.events(tmp_path / "journal.jsonl", 0)
        try:
            return await anext(events)
        finally:
            await events.aclose()

    assert b'"event": "note"' in asyncio.run(first())
    assert read == [0]
