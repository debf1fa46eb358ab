"""From an empty folder to a published report in a real browser, by keyboard alone, with real measurements.

Open the launch link, write a scenario with a mistake (it must be shown at its line), correct it, dry run, start, watch
until the matrix has figures, pause, resume, extend, stop, look at the report, measure again, compare the two, publish.
Then a load. The long form adds a trace and a guard of a path between two namespaces, and starts and stops a study and
a migration: it needs root and QEMU. No page may violate its policy.

--quick: a run and a load.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from common import served, until
from frame import Options, Outcome, bench
from web_site import SCENARIO, Site, browser, site

TABS_MAX = 120


class Keyboard:
    """A person without a mouse."""

    def __init__(self, driver: Any, where: Site) -> None:
        from selenium.webdriver.common.keys import Keys  # noqa: PLC0415 - only where a browser is

        self.driver, self.site, self.keys = driver, where, Keys

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains  # noqa: PLC0415

        ActionChains(self.driver).send_keys(*keys).perform()

    def reach(self, test: str) -> None:
        """Presses Tab until a test on the focused element (`e`, in JavaScript) is true."""
        for _ in range(TABS_MAX):
            if self.driver.execute_script(f"const e = document.activeElement; return !!e && ({test})"):
                return
            self.press(self.keys.TAB)
        raise RuntimeError(f"no element that can be reached by keyboard fulfils {test}")

    def push(self, text: str) -> None:
        """Reaches a link or button by its text and presses Enter."""
        self.reach(f"['A', 'BUTTON'].includes(e.tagName) && e.textContent.trim().startsWith({text!r})")
        before = self.page()
        self.press(self.keys.ENTER)
        until(lambda: self.page() not in ("", before), 60, f"{text} had no effect")
        self.loaded()

    def page(self) -> str:
        """Differs after each navigation; empty while the browser has no page."""
        return next((str(each.id) for each in self.driver.find_elements("tag name", "html")), "")

    def loaded(self) -> None:
        until(lambda: self.driver.execute_script("return document.readyState") == "complete")

    def write(self, text: str) -> None:
        """Replaces the text of the editor by typing."""
        until(lambda: self.driver.execute_script("return !!window.partywallView"))
        self.reach("e.id === 'editor'")
        self.driver.execute_cdp_cmd(
            "Input.dispatchKeyEvent",
            {"type": "keyDown", "key": "a", "code": "KeyA", "modifiers": 2, "commands": ["selectAll"]},
        )
        self.press(self.keys.DELETE)
        for line in text.splitlines():
            self.type(line)
            self.press(self.keys.ESCAPE, self.keys.ENTER)

    def type(self, text: str) -> None:
        """Types a text where the focus is, in one event."""
        self.driver.execute_cdp_cmd("Input.insertText", {"text": text})

    def text(self, place: str) -> str:
        return str(
            self.driver.execute_script(f"const e = document.querySelector({place!r}); return e ? e.innerText : ''")
        )


def run(person: Keyboard, *, budget: str, mistake: bool) -> str:
    """Writes a scenario, and starts it. Returns the name of its record."""
    right = SCENARIO.format(budget=budget)
    person.push("Start a measurement")
    person.write(right.replace("probe: pipe", "probe: pipes") if mistake else right)
    if mistake:
        until(lambda: "line 6" in person.text("#mistakes"), 20, "the mistake was not shown at its line")
        print("a mistake is shown at its line:", person.text("#mistakes").replace("\n", " — "))
    person.press(person.keys.ESCAPE)
    return right


def start(person: Keyboard) -> str:
    person.push("Show what would be measured")
    person.push("Start")
    name = person.driver.current_url.rpartition("/")[2]
    print(f"started {name}")
    return str(name)


def state(where: Site, name: str) -> str:
    return next((job["state"] for job in where.jobs() if job["record"] == name), "")


def isolation(person: Keyboard, where: Site, *, plant: bool) -> None:
    right = run(person, budget="30s", mistake=True)
    if not plant:
        person.write(right)
        until(lambda: not person.text("#mistakes"), 20, "the corrected document still has mistakes")
        person.press(person.keys.ESCAPE)
    first = start(person)
    until(lambda: "±" in person.text("table.live td"), 60, "the matrix did not fill")
    print("the matrix fills:", person.text("table.live tbody").replace("\n", " "))
    for action, wanted in (("Pause", "paused"), ("Resume", "running")):
        person.push(action)
        until(lambda w=wanted: state(where, first) == w, 60, f"{action} had no effect")
        until(
            lambda w=wanted: person.text("#status").startswith(
                ("paused",) if w == "paused" else ("measuring", "running")
            )
        )
        print(f"{action}: {person.text('#status .doing')}")
    attempts = where.jobs()[0]["attempt"]
    person.reach("e.name === 'budget'")
    person.type("2min")
    person.push("Extend")
    until(lambda: where.jobs()[0]["attempt"] > attempts and state(where, first) == "running", 60, "not extended")
    until(lambda: "extended" in (where.root / first / "events.jsonl").read_text(), 60, "the run has no more budget")
    print("extended while it ran")
    until(lambda: person.text("#status").startswith("measuring"), 60)
    person.push("Stop")
    report(person, where, first)
    person.push("Records")
    run(person, budget="8s", mistake=False)
    second = start(person)
    report(person, where, second)
    person.push("Records")
    for _ in range(2):
        person.reach("e.type === 'checkbox' && !e.checked")
        person.press(person.keys.SPACE)
    person.push("Compare the selected")
    assert "Differences beyond noise" in person.text("main"), person.text("main")
    print("compared:", person.text("h1"))
    status, _, _ = where.get("/published.zip")
    assert status == 200
    archive = zipfile.ZipFile(io.BytesIO(_raw(where, "/published.zip")))
    names = archive.namelist()
    assert {f"partywall/{name}/report.html" for name in (first, second)} <= set(names), names
    print(f"published: {len(names)} files")
    person.push("Records")


def _raw(where: Site, path: str) -> bytes:
    import urllib.request  # noqa: PLC0415 - of this function alone

    request = urllib.request.Request(where.origin + path, headers={"cookie": where.cookie})  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return bytes(answer.read())


def report(person: Keyboard, where: Site, name: str) -> None:
    """Waits until a record has ended and its report is in the page."""
    until(lambda: state(where, name) == "ended", 240, f"{name} did not end")
    until(lambda: person.driver.find_elements("tag name", "iframe"), 60, "the report did not appear")
    frame = person.driver.find_element("tag name", "iframe")
    person.driver.switch_to.frame(frame)
    try:
        until(lambda: person.driver.find_elements("css selector", "h1"), 60, "the report is empty")
        print("report:", person.driver.find_element("css selector", "h1").text[:100])
    finally:
        person.driver.switch_to.default_content()


def load(person: Keyboard, where: Site) -> None:
    with served() as url:
        person.push("Start a measurement")
        person.reach("e.name === 'url'")
        person.type(url)
        person.reach("e.name === 'duration' && e.form.querySelector('[name=url]')")
        person.press(*[person.keys.BACKSPACE] * 5)
        person.type("6s")
        name = start(person)
        until(lambda: "req" in person.text("#figures").lower() and "p99" in person.text("#figures"), 60, "no seconds")
        print("a load's seconds:", person.text("#figures tbody tr"))
        report(person, where, name)
    person.push("Records")


@contextlib.contextmanager
def two_namespaces() -> Iterator[None]:
    """Two network namespaces joined by a veth pair, and datagrams from one to the other."""
    setup = (
        "netns add pww-a", "netns add pww-b", "link add pww0 netns pww-a type veth peer name pww1 netns pww-b",
        "-n pww-a addr add 10.77.1.1/24 dev pww0", "-n pww-b addr add 10.77.1.2/24 dev pww1",
        "-n pww-a link set pww0 up", "-n pww-b link set pww1 up",
    )  # fmt: skip
    send = "s.sendto(b'x' * 500, ('10.77.1.2', 9)); time.sleep(.005)"
    sender = f"import socket, time\ns = socket.socket(2, 2)\nwhile True: {send}"
    process = None
    try:
        for words in setup:
            subprocess.run(["ip", *words.split()], check=True)
        process = subprocess.Popen(
            ["ip", "netns", "exec", "pww-a", sys.executable, "-c", sender], stderr=subprocess.DEVNULL
        )
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()
        for name in ("pww-a", "pww-b"):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


POLICY = """partywall_guard: 1
name: edge
link: {capacity: 100Mbit/s}
vifs: {web: {interface: pww0, namespace: pww-a, send: {guarantee: 10Mbit/s, ceiling: 50Mbit/s}}}
"""


def packets(person: Keyboard, where: Site) -> None:
    """A trace and a guard of the same path."""
    with two_namespaces():
        person.push("Start a measurement")
        person.reach("e.name === 'hops'")
        person.type("pww-a/pww0 pww-b/pww1")
        figures(person, where, "pww-b/pww1", "a trace's hops")
        person.push("Start a measurement")
        person.write(POLICY)
        person.press(person.keys.ESCAPE)
        person.reach("e.name === 'duration'")
        person.type("10s")
        figures(person, where, "bit/s", "a guard's guarantees")


def figures(person: Keyboard, where: Site, wanted: str, what: str) -> None:
    """Starts what the form says, until a text is among its figures, and looks at its report."""
    name = start(person)
    until(lambda: wanted in person.text("#figures"), 60, f"nothing of {what}")
    print(f"{what}:", person.text("#figures tbody tr"))
    report(person, where, name)
    person.push("Records")


def command_record(person: Keyboard, where: Site, kind: str, name: str) -> None:
    """Starts something that ships with Partywall, waits until it is measured, and stops it."""
    person.driver.get(f"{where.origin}/start?kind={kind}&shipped={name}")
    person.loaded()
    record = start(person)
    until(lambda: (where.root / record / "journal.jsonl").is_file(), 300, f"the {kind} did not begin")
    until(lambda: person.text("#status").startswith("measuring"), 60)
    person.push("Stop")
    until(lambda: state(where, record) == "ended", 300, f"the {kind} did not end")
    print(f"a {kind} was started and stopped: {person.text('#status .doing')}")
    person.push("Records")


QUICK = ("run", "load")
ALL = (*QUICK, "packets", "study", "migration")


def journeys(person: Keyboard, where: Site, *, plant: bool) -> dict[str, Callable[[], None]]:
    return {
        "run": lambda: isolation(person, where, plant=plant),
        "load": lambda: load(person, where),
        "packets": lambda: packets(person, where),
        "study": lambda: command_record(person, where, "study", "papers/vits"),
        "migration": lambda: command_record(person, where, "migration", "migration"),
    }


@bench(
    plants={"mistake": "the scenario keeps its mistake"},
    parts=ALL,
)
def main(given: Options) -> Outcome:
    began = time.monotonic()
    steps: list[str] = []
    with site() as where, browser() as driver:
        driver.get(where.origin + where.link)
        until(lambda: driver.current_url == f"{where.origin}/", 30, "the launch link did not open the page")
        where.cookie = "; ".join(f"{each['name']}={each['value']}" for each in driver.get_cookies())
        person = Keyboard(driver, where)
        wrong = ""
        try:
            for name, step in journeys(person, where, plant=bool(given.plant)).items():
                if name in (given.only or (QUICK if given.quick else ALL)):
                    step()
                    steps.append(name)
        except (RuntimeError, TimeoutError, AssertionError) as error:
            wrong = f"{type(error).__name__}: {error}"
            print(driver.current_url, person.text("body")[:1500])
        refused = [
            entry["message"] for entry in driver.get_log("browser") if "Content Security Policy" in entry["message"]
        ]
    print(*refused, sep="\n")
    spent_s = time.monotonic() - began
    figure = (
        f"{len(steps)} journeys ({', '.join(steps)}) by keyboard alone in {spent_s:.0f} s; {wrong or 'no step failed'}"
    )
    return Outcome(f"{figure}; {len(refused)} violations of the policy", not wrong and not refused)


if __name__ == "__main__":
    main()
