"""Does a recorded session become a plan that other sessions can carry out?

A headless Chromium uses a shop over HTTPS through the recording proxy: it logs in with a form, waits, adds an item,
waits, and pays. The shop gives every session its own cookie, tokens, item number and order number, and refuses others.
The plan is then carried out by 50 users.

Bar: the four changing values (the form's token, the page's token, the item, the order) are variables, each from the
response that has it and in the places that send it; each pause of the plan is the one that the shop saw, within 0.5 s;
the static files of each page are one group; 50 users meet no error, the shop refuses nothing, and each user pays.

--quick: 12 s of load instead of 30 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

from common import PARTYWALL, until
from frame import PEERS, Options, Outcome, bench
from generators import is_open
from partywall.host import free_port
from web_shop import Shop, shop

USERS = 50
HOLD_S, HOLD_QUICK_S = 30, 12
PAUSE_S = 1.5
PAUSE_ERROR_S = 0.5
WAIT_S = 40
VARIABLE = re.compile(r"\$\{\w+\}")
CHANGING = {
    "the form's token": ("GET /", {("POST /login", "body.form.csrf")}),
    "the page's token": (
        "POST /login",
        {("POST /api/cart", "headers.x-csrf-token"), ("POST /api/orders/{}/pay", "headers.x-csrf-token")},
    ),
    "the item": ("GET /api/items", {("POST /api/cart", "body.text")}),
    "the order": ("POST /api/cart", {("POST /api/orders/{}/pay", "url")}),
}
"""The request whose response has a value, and where it is sent: (request, key of the plan's step)."""


def record(shop_: Shop, folder: Path) -> Path:
    """The plan of a session in a real browser."""
    plan, debugging = folder / "plan.yaml", free_port()
    command = [*PARTYWALL, "load", "record", f"{shop_.url}/", "-o", str(plan)]
    command += ["--ca-file", str(shop_.authority), "--har", str(folder / "session.har")]
    command += ["--browser-option=--headless=new", f"--browser-option=--remote-debugging-port={debugging}"]
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            _shop(debugging)
        except BaseException:
            process.terminate()
            raise
        if process.wait(WAIT_S):
            raise SystemExit(f"the recorder ended with {process.returncode}")
    return plan


def _shop(debugging: int) -> None:
    """Does what a customer does, and closes the browser."""
    options = webdriver.ChromeOptions()
    options.debugger_address = f"127.0.0.1:{debugging}"
    until(lambda: is_open(debugging), WAIT_S, "the browser did not start")
    driver = webdriver.Chrome(options=options)
    _titled(driver, "Log in")
    time.sleep(PAUSE_S)
    driver.find_element(By.NAME, "user").send_keys("ada")
    driver.find_element(By.NAME, "password").send_keys("secret")
    driver.find_element(By.ID, "go").click()
    _titled(driver, "Ready")
    for button, title in (("add", "Added"), ("pay", "Paid")):
        time.sleep(PAUSE_S)
        driver.find_element(By.ID, button).click()
        _titled(driver, title)
    # The driver loses its browser while it waits for the answer.
    with contextlib.suppress(WebDriverException):
        driver.execute_cdp_cmd("Browser.close", {})
    driver.service.stop()


def _titled(driver: WebDriver, title: str) -> None:
    WebDriverWait(driver, WAIT_S).until(lambda seen: seen.title == title)


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """All steps of a plan, in order."""
    for step in part:
        yield step
        yield from steps_of(step.get("transaction", {}).get("steps", ()))


def seen(service: Shop) -> list[float]:
    """The session's pauses in s, as the shop saw them: before each request that the user's hand caused."""
    requests, until = [], 0.0
    for path, arrived, ended in service.log:
        if path in ("/login", "/api/cart") or path.endswith("/pay"):
            requests.append(arrived - until)
        until = max(until, ended)
    return requests


def problems(plan: dict[str, Any], pauses: list[float]) -> Iterator[str]:
    """What the plan lacks. pauses: those of the session."""
    actions = plan["users"]["visitor"]["actions"]
    steps = list(steps_of(actions))
    known = list(changing([step["http"] for step in steps if "http" in step]))
    yield from (f"{value} is no variable in its places" for value, places in CHANGING.items() if places not in known)
    others = [places for places in known if places not in CHANGING.values()]
    yield from (f"a variable from the response to {source} is in {sorted(uses)}" for source, uses in others)
    planned = [float(step["think"].removesuffix("ms")) / 1e3 for step in actions if "think" in step]
    wrong = [abs(expected - other) > PAUSE_ERROR_S for expected, other in zip(planned, pauses, strict=False)]
    if len(planned) != len(pauses) or any(wrong):
        yield f"pauses of {planned} s; the shop saw {[round(pause, 3) for pause in pauses]}"
    groups = [step["transaction"] for step in steps if step.get("transaction", {}).get("name", "").endswith("-static")]
    files = sorted(step["http"]["url"] for group in groups for step in group["steps"])
    if not {"/logo.svg", "/shop.js", "/style.css"} <= set(files):
        yield f"static files in groups: {', '.join(files)}"


def changing(requests: list[dict[str, Any]]) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """The response that each variable is extracted from, and where the variable is."""
    for source in requests:
        for name in source.get("extract", {}):
            uses = {
                (_called(request), key)
                for request in requests
                for key, text in _texts({key: request.get(key) for key in ("url", "headers", "body")})
                if f"${{{name}}}" in text
            }
            yield _called(source), uses


def _called(request: dict[str, Any]) -> str:
    url = VARIABLE.sub("{}", request["url"])
    return f"{request.get('method', 'GET')} {url}"


def _texts(part: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The texts of a part of a step, by key."""
    if isinstance(part, str):
        yield key, part
    elif isinstance(part, dict):
        for name, below in part.items():
            yield from _texts(below, f"{key}.{name}".lstrip("."))


def replay(plan: dict[str, Any], folder: Path, hold_s: int) -> dict[str, Any]:
    """The findings of 50 users who carry out the plan."""
    plan["closed"] = {"users": USERS, "ramp_up": "2s", "hold": f"{hold_s}s"}
    file = folder / "fifty.yaml"
    YAML().dump(plan, file)
    out = folder / "load"
    subprocess.run([*PARTYWALL, "load", str(file), "--out", str(out)], stdout=sys.stderr, check=False)
    subprocess.run([*PARTYWALL, "report", str(out)], stdout=subprocess.DEVNULL, check=False)
    document: dict[str, Any] = json.loads((out / "findings.json").read_text())
    return document


@bench(plants={"fixed": "recorded values instead of variables"})
def main(given: Options) -> Outcome:
    os.environ.pop("http_proxy", None)
    os.environ["PATH"] = f"{PEERS / 'proxy' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work, shop(Path(work)) as service:
        folder = Path(work)
        plan: dict[str, Any] = YAML(typ="safe").load(record(service, folder).read_text())
        print((folder / "plan.yaml").read_text(), file=sys.stderr)
        lacking = list(problems(plan, seen(service)))
        if given.plant:
            plan = _planted(plan)
        service.paid = service.refused = 0
        replayed = replay(plan, folder, HOLD_QUICK_S if given.quick else HOLD_S)
        errors = sum(count for _, _, count in replayed["errors"])
        for problem in lacking:
            print(f"problem: {problem}")
        met = not lacking and not errors and not service.refused and service.paid >= USERS
        figure = (
            f"{len(CHANGING) if not lacking else 'not all'} changing values, {service.paid} paid by {USERS} users, "
        )
        return Outcome(f"{figure}{errors} errors, {service.refused} refused", met)


def _planted(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with fixed values, as if no changing value had been found. The shop refuses any of them."""
    planted: dict[str, Any] = json.loads(VARIABLE.sub("recorded-12345678", json.dumps(plan)))
    return planted


if __name__ == "__main__":
    main()
