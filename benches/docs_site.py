"""The site of docs/: it builds without a network and without a warning, no link is dead, and its search finds answers.

The site is built where there is no network. Each link of each page must lead to a file and an anchor that exist, and
whatever a page loads must be in the site. Then a browser opens it from the disk and asks the search 40 questions of
users (docs_questions.yaml). The page that answers, or the part of "Which question do you have?" that links to it, must
be among the first five.

--quick is the same: it takes half a minute.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from ruamel.yaml import YAML

from common import until
from frame import PROGRAMS, Options, Outcome, bench

CLONE = Path(__file__).parents[1]
MKDOCS = CLONE / "packaging/.tools/bin/mkdocs"
QUESTIONS = YAML(typ="safe").load(Path(__file__).with_name("docs_questions.yaml"))
FIRST = 5
ASK = """
const field = document.querySelector(".md-search__input");
field.focus();
field.value = arguments[0];
field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
"""
RESULTS = """
return [...document.querySelectorAll(".md-search-result__item > a")].map(each => each.href)
"""


class Page(HTMLParser):
    """A page's anchors, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        elif tag in ("img", "script") and "src" in of:
            self.loads.append(of["src"])
        elif tag == "link" and of.get("rel") in ("stylesheet", "icon"):
            self.loads.append(of["href"])


def built(site: Path) -> list[str]:
    """Builds the site without a network, and returns what was said."""
    argv = [str(MKDOCS), "build", "--strict", "--quiet", "-f", "packaging/site/mkdocs.yml", "-d", str(site)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    own = ["unshare", "--net", "--map-root-user"]
    done = subprocess.run([*own, *argv], cwd=CLONE, env=env, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said or ([f"mkdocs ended with {done.returncode}"] if done.returncode else [])


def dead(site: Path) -> list[str]:
    """Links and loads of all pages that lead nowhere, or that load something from another host."""
    pages = {file: Page(file.read_text("utf-8")) for file in site.rglob("*.html")}
    faults = []
    for file, page in pages.items():
        for link in (*page.links, *page.loads):
            path, anchor = urldefrag(link)
            if urlsplit(path).scheme or path.startswith("//"):
                faults += [f"{file.name} loads {link}"] if link in page.loads else []
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            # The root is a link of the page for unknown addresses, which only a server shows.
            missing = not target.exists() and file.name != "404.html"
            if missing or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                faults.append(f"{file.name}: {link}")
    return faults


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    from selenium import webdriver  # noqa: PLC0415 - of this benchmark's last part alone

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium", path=PROGRAMS) or ""
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield opened
    finally:
        opened.quit()


def unanswered(site: Path) -> list[str]:
    """The questions whose answer is not among the first pages that the search shows."""
    wrong = []
    with browser() as page:
        page.get(f"file://{site}/index.html")
        shown: list[str] = []
        for question in QUESTIONS:
            page.execute_script(ASK, question["ask"])
            shown = until(lambda before=shown: _settled(page, before), 10, otherwise="the search shows nothing")
            first = list(dict.fromkeys(urldefrag(link)[0].partition("?")[0] for link in shown))[:FIRST]
            links = [link for link in shown if link.partition("#")[0].partition("?")[0] in first]
            if not any(_answers(site, link, question["page"]) for link in links):
                wrong.append(f"{question['ask']}: {', '.join(Path(urlsplit(link).path).stem for link in first)}")
    return wrong


def _settled(page: Any, before: list[str]) -> list[str]:
    """What the search shows, once it differs from before and shows it twice."""
    first, second = (page.execute_async_script(f"setTimeout(() => arguments[0]((() => {{{RESULTS}}})()), 150)")
                     for _ in range(2))  # fmt: skip
    return first if first == second != before else []


def _answers(site: Path, link: str, page: str) -> bool:
    """Whether a result is the page, or a part of the page of questions that links to it."""
    path = Path(unquote(urlsplit(link).path))
    if path == site / f"{page}.html":
        return True
    return path.stem == "questions" and f"{page}.html" in _part(path, urlsplit(link).fragment)


@cache
def _part(path: Path, anchor: str) -> str:
    """The part of a page under the heading with this anchor; nothing without one."""
    part = re.search(rf'<h2 id="{re.escape(anchor)}">(.*?)(?=<h2 |</article>)', path.read_text("utf-8"), re.DOTALL)
    return part[1] if anchor and part else ""


def lacking() -> str:
    return "" if MKDOCS.exists() else "mkdocs is missing; run make docs-site"


@bench(
    plants={
        "link": "a page is missing",
        "index": "the search does not know the pages of commands",
        "host": "a page loads a script from another host",
    },
    needs=("chromium", "chromedriver", "unshare"),
    lacking=lacking,
)
def main(options: Options) -> Outcome:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        site = Path(name) / "site"
        said = built(site)
        if options.plant == "link":
            (site / "guard.html").unlink()
        elif options.plant == "index":
            index = site / "search/search_index.js"
            index.write_text(
                re.sub(r'"location":"(guard|load|watch)\.html', '"location":"index.html', index.read_text())
            )
        elif options.plant == "host":
            page = site / "load.html"
            page.write_text(
                page.read_text().replace("</head>", '<script src="https://example.org/x.js"></script></head>')
            )
        pages, links, wrong = len(list(site.rglob("*.html"))), dead(site), unanswered(site)
    for fault in (*said, *links, *wrong):
        print(fault, flush=True)
    figure = (
        f"{pages} pages, {len(said)} warnings, {len(links)} dead links or foreign loads; the search answers "
        f"{len(QUESTIONS) - len(wrong)} of {len(QUESTIONS)} questions"
    )
    return Outcome(figure, not (said or links or wrong))


if __name__ == "__main__":
    main()
