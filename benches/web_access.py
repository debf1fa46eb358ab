"""Every page is examined with axe-core, in light and dark, at 1280 and 360 pixels, and with the text at 200 %.

A page must not be wider than the window at 360 pixels, nor at 200 % zoom of 1280 pixels, except tables in their own
scrolling region. axe-core comes from npm (`npm install axe-core@4.14.1`, see `make bench-setup`); AXE names its file.

--quick: light at 1280 pixels and dark at 360.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from common import until
from frame import PEERS, NotMeasured, Options, Outcome, bench
from web_site import SCENARIO, Site, browser, site

AXE = Path(os.environ.get("AXE", PEERS / "node_modules" / "axe-core" / "axe.min.js"))
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = """
const done = arguments[arguments.length - 1];
const shown = node => node.target.join(' ') + ' ' + node.html.slice(0, 90);
axe.run(document, {runOnly: arguments[0], iframes: false}).then(found => done(found.violations.map(
  each => each.id + ': ' + each.nodes.slice(0, 3).map(shown).join(' | '))));
"""
PLANT = """
const image = document.createElement('img'); image.src = '/assets/web.css';
document.querySelector('main').append(image);
const text = document.createElement('p'); text.textContent = 'grey'; text.style.color = '#bbb';
text.style.background = '#ccc'; document.querySelector('main').append(text);
"""


def filled(where: Site) -> list[str]:
    """Measures two short runs, and returns the pages to examine."""
    where.login()
    for number in range(2):
        where.api("POST", "/api/jobs", {"kind": "run", "document": SCENARIO.format(budget="3s")}, f"job-0000{number}")
    until(lambda: all(job["state"] == "ended" for job in where.jobs()), 180, "the runs did not end")
    first, second = (job["record"] for job in where.jobs())
    where.api("POST", f"/api/records/{first}/annotate", {"note": "a note", "tags": ["night"]}, "note-0001")
    where.api("POST", "/api/jobs", {"kind": "run", "document": SCENARIO.format(budget="1min")}, "job-00009")
    where.api("POST", "/api/jobs", {"kind": "run", "shipped": "demo"}, "job-00010")
    watched = until(lambda: next((job["record"] for job in where.jobs() if job["state"] == "running"), ""), 60)
    until(lambda: "±" in where.get(f"/records/{watched}")[2], 120, "the matrix did not fill")
    # Paused, so that the examination has the machine for itself.
    for job in ("job-00010", "job-00009"):
        where.api("POST", f"/api/jobs/{job}/pause", {}, f"pause-{job}")
    until(lambda: not any(job["state"] in ("running", "queued") for job in where.jobs()), 60, "not paused")
    # One for the bin.
    shutil.copytree(where.root / first, where.root / "deleted-1")
    where.api("POST", "/api/records/deleted-1/delete", {}, "delete-001")
    return [
        "/", "/bin", "/start", "/start?kind=run&shipped=demo", "/host", "/history", "/compare",
        f"/compare?record={first}&record={second}", f"/records/{first}", f"/records/{watched}",
        f"/records/{where.jobs()[-1]['record']}", "/?deleted=x&q=nothing", "/nothing", "/login",
    ]  # fmt: skip


def examined(driver: Any, address: str, width: int, *, plant: bool) -> list[str]:
    """What is wrong with a page."""
    driver.get(address)
    until(lambda: driver.execute_script("return document.readyState") == "complete", 60)
    time.sleep(0.5)
    if plant:
        driver.execute_script(PLANT)
    driver.execute_script(AXE.read_text())
    violations = list(driver.execute_async_script(RUN, TAGS))
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    return violations + ([f"the page is {wide} pixels wide in a window of {width}"] if wide > width else [])


@bench(
    plants={"faults": "a picture without a text, and grey text on grey"},
    more={"--pictures": {"type": Path, "help": "folder for a picture of each page"}},
)
def main(given: Options) -> Outcome:
    if not AXE.is_file():
        raise NotMeasured(f"axe-core is missing at {AXE}; run: make bench-setup")
    views = (
        [(1280, False), (360, True)]
        if given.quick
        else [(1280, False), (1280, True), (640, False), (360, False), (360, True)]
    )
    count, findings = 0, list[str]()
    with site() as where:
        paths = filled(where)
        for width, dark in views:
            with browser(width, dark=dark) as driver:
                driver.set_script_timeout(120)
                where.let_in(driver)
                for number, path in enumerate(paths):
                    count += 1
                    for wrong in examined(driver, where.origin + path, width, plant=bool(given.plant)):
                        findings.append(wrong)
                        print(f"{path} at {width}, {'dark' if dark else 'light'}: {wrong}")
                    if given.pictures:
                        given.pictures.mkdir(exist_ok=True)
                        picture(driver, given.pictures / f"{number:02}-{width}-{'dark' if dark else 'light'}.png")
    return Outcome(f"{count} views of {len(paths)} pages, {len(findings)} findings", not findings)


def picture(driver: Any, file: Path) -> None:
    """Takes a picture of a whole page."""
    import base64  # noqa: PLC0415 - of this function alone

    size = driver.execute_script("return [innerWidth, Math.min(document.documentElement.scrollHeight, 2400)]")
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    content = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    file.write_bytes(base64.b64decode(content["data"]))


if __name__ == "__main__":
    main()
