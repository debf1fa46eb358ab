"""The page in a real Chromium: live updates, the editor, and the policy of every page."""

import json
import os
import socket
import threading
import time

import pytest
import uvicorn
from selenium.common.exceptions import ElementNotInteractableException, StaleElementReferenceException
from selenium.webdriver.support.ui import WebDriverWait

from partywall.host.label import start_ticks
from partywall.web import app
from partywall.web.jobs import Order, State
from partywall.web.parts import REDRAWN
from partywall.web.runner import Runner
from partywall.web.security import Secrets, Site
from tests.guard.records import guard_record
from tests.web.web_site import Direct, record

pytestmark = [pytest.mark.long]

MISTAKEN = r"partywall: 1\nname: tiny\nvictims:\n  a: {probe: pipes}\naggressors:\n  b: {stressor: cache}\n"
POLICY = """partywall_guard: 1
name: edge
link: {capacity: 1Gbit/s}
vifs:
  vm1: {interface: eth1, send: {guarantee: 10Mbit/s}}
"""
SECOND = {"event": "second", "users": 3, "rate": 1234.0, "p50_ns": 1e6, "p90_ns": 2e6, "p99_ns": 3e6, "errors": 0}


@pytest.fixture
def served(folder):
    """A server that listens, and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = Direct(folder, Site(port, ("127.0.0.1",)), Secrets(folder.own))
    server.runner = Runner(folder)
    config = uvicorn.Config(app.build(server), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    serving = uvicorn.Server(config)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]})
    thread.start()
    server.origin = f"http://127.0.0.1:{port}"
    yield server
    serving.should_exit = True
    thread.join(20)


@pytest.fixture
def opened(browser, served):
    """The browser after the launch link was opened. No page may have violated its policy at the end."""
    browser.get_log("browser")
    browser.get(f"{served.origin}/login?token={served.secrets.launch_token}")
    wait(browser, lambda: browser.current_url == f"{served.origin}/")
    yield browser
    # So that no connection holds the server up.
    browser.get("about:blank")
    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert [text for text in messages if "Content Security Policy" in text] == []


def wait(browser, condition):
    return WebDriverWait(browser, 60).until(lambda _: condition())


def type_into(browser, name, text):
    """Type into a field as soon as it takes keys. The part of the page with the field may be replaced meanwhile."""
    replaced = (ElementNotInteractableException, StaleElementReferenceException)
    waiting = WebDriverWait(browser, 60, ignored_exceptions=replaced)
    waiting.until(lambda _: [field.send_keys(text) for field in browser.find_elements("name", name)])


def text_of(browser, place):
    return browser.execute_script(f"const e = document.querySelector({place!r}); return e ? e.innerText : ''")


def running(folder, *events):
    """A record whose execution is this process, and a function that adds an event to its journal."""
    path = record(folder, "load-1")
    journal = path / "journal.jsonl"
    started = {"event": "started", "pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}

    def add(**event):
        with journal.open("ab") as stream:
            stream.write(json.dumps({"at": time.time()} | event).encode() + b"\n")

    journal.write_text("")
    for event in (started, *events):
        add(**event)
    return add


def test_a_record_that_is_measured_is_followed_without_a_reload(opened, served, folder):
    add = running(folder, SECOND)
    opened.get(f"{served.origin}/records/load-1")
    opened.execute_script("window.kept = true")
    wait(opened, lambda: text_of(opened, "#figures tbody").split()[:2] == ["1", "3"])
    add(**SECOND | {"users": 77})
    wait(opened, lambda: text_of(opened, "#figures tbody").split()[:2] == ["2", "77"])
    add(event="note", text="the load was changed", is_warning=False)
    wait(opened, lambda: "the load was changed" in text_of(opened, "#notes"))
    assert opened.execute_script("return window.kept === true")


def test_monitors_are_drawn_while_a_record_is_measured(opened, served, folder):
    figures = [["CPU of the host", "programs and kernel", "cores", 0.5]]
    add = running(folder, SECOND, {"event": "counters", "figures": figures})
    opened.get(f"{served.origin}/records/load-1")
    wait(opened, lambda: "0.500 cores" in text_of(opened, "#monitors"))
    opened.execute_script("window.kept = true")
    figures[0][3] = 1.5
    for _ in range(REDRAWN):
        add(event="counters", figures=figures)
    wait(opened, lambda: "1.50 cores" in text_of(opened, "#monitors"))
    drawn = "return document.querySelector('#monitors polyline').getBoundingClientRect().height > 10"
    assert opened.execute_script(drawn)
    assert opened.execute_script("return window.kept === true")


def test_a_mistake_is_shown_at_its_line_while_a_person_types(opened, served):
    opened.get(f"{served.origin}/start")
    wait(opened, lambda: opened.execute_script("return !!window.partywallView"))
    opened.execute_script(
        "const view = window.partywallView;"
        f"view.dispatch({{changes: {{from: 0, to: view.state.doc.length, insert: '{MISTAKEN}'}}}});"
    )
    wait(opened, lambda: "line 4" in text_of(opened, "#mistakes"))
    assert "pipe" in text_of(opened, "#mistakes")


def test_every_page_keeps_its_policy(opened, served, folder):
    running(folder, SECOND)
    for path in ("/", "/start?kind=run&shipped=demo", "/compare", "/history", "/records/load-1"):
        opened.get(served.origin + path)
        wait(opened, lambda: opened.execute_script("return document.readyState") == "complete")
        assert text_of(opened, "h1")


def test_a_number_of_users_that_is_being_typed_survives_an_update(opened, served, folder):
    """The part of the page with the form is replaced whenever the journal grows."""
    served.act("start", key="key-00001", order=Order(kind="load", url="http://127.0.0.1/").model_dump(mode="json"))
    job = folder.job("key-00001")
    folder.put(job.model_copy(update={"state": State.RUNNING, "record": "load-1"}))
    add = running(folder, SECOND)
    opened.get(f"{served.origin}/records/load-1")
    type_into(opened, "level", "250")
    add(event="doing", text="still sending requests")
    wait(opened, lambda: "still sending requests" in text_of(opened, "#status"))
    assert opened.execute_script("return document.querySelector('[name=level]').value") == "250"
    opened.execute_script("document.querySelector('[name=level]').form.requestSubmit()")
    control = folder.root / "load-1" / "control.jsonl"
    wait(opened, control.is_file)
    assert json.loads(control.read_text()) == {"level": 250.0}


def test_the_policy_of_a_running_guard_is_changed_from_its_page(opened, served, folder):
    """The check refuses a vif that the guard does not have; a changed promise reaches the guard."""
    order = Order(kind="guard", document=POLICY, duration="1h").model_dump(mode="json")
    served.act("start", key="key-00001", order=order)
    job = folder.job("key-00001")
    folder.put(job.model_copy(update={"state": State.RUNNING, "record": "guard-1"}))
    guard = guard_record(folder.root / "guard-1", POLICY)
    table = {"title": "edge: now", "columns": ["vif", "granted"], "rows": [["vm1", "10 Mbit/s"]]}
    seen = {"event": "seen", "headline": "Kept for 1 s: no problem was found", "tables": [table]}
    started = {"event": "started", "pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    lines = [json.dumps({"at": time.time()} | event) for event in (started, seen)]
    (guard.path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    opened.get(f"{served.origin}/records/guard-1")
    wait(opened, lambda: "10 Mbit/s" in text_of(opened, "#figures tbody"))

    def submit(old, new):
        opened.get(f"{served.origin}/records/guard-1")
        # The part of the page with the link is replaced whenever the journal grows.
        wait(opened, lambda: "Change the policy" in text_of(opened, "#status"))
        opened.execute_script("document.querySelector('#status a[href$=\"/policy\"]').click()")
        wait(opened, lambda: opened.execute_script("return !!window.partywallView"))
        opened.execute_script(
            "const view = window.partywallView, text = view.state.doc.toString();"
            "view.dispatch({changes: {from: 0, to: text.length, insert: text.replace(arguments[0], arguments[1])}});"
            "document.getElementById('document-form').requestSubmit();",
            old,
            new,
        )

    submit("vm1", "vm2")
    wait(opened, lambda: "'vm2' is not in the running policy" in text_of(opened, "body"))
    control = guard.path / "control.jsonl"
    assert not control.exists()
    assert "line 5" in text_of(opened, "#mistakes")
    assert "This policy was refused" in text_of(opened, "h2")
    # The editor checks what it was opened with, also against the running policy.
    editor = "return window.partywallView ? window.partywallView.dom.querySelectorAll('.cm-lint-marker').length : 0"
    wait(opened, lambda: opened.execute_script(editor) == 2)
    assert "'vm2' is not in the running policy" in text_of(opened, "#mistakes")
    assert (
        opened.execute_script("return window.partywallView.state.doc.toString()").strip()
        == POLICY.replace("vm1", "vm2").strip()
    )
    submit("10Mbit/s", "20Mbit/s")
    wait(opened, control.is_file)
    sent = json.loads(control.read_text())["policy"].replace("\r", "")
    assert sent.strip() == POLICY.replace("10Mbit/s", "20Mbit/s").strip()
