"""`partywall load record` and `load import`: a browser's session becomes a load plan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from partywall import units
from partywall.cli import output
from partywall.cli.arguments import WorkDir, duration_ns
from partywall.errors import Exit, Problem, UsageError
from partywall.files import write_whole
from partywall.host.label import WORK_ROOT
from partywall.load.urls import wrong_with


def import_har(
    recording: Annotated[
        Path, typer.Argument(help="A HAR file, as saved by a browser's network panel.", metavar="HAR")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The plan to write.")],
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", help="A host to leave out, e.g. '*.ads.test'; may be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing plan.")] = False,
) -> int:
    """Convert a browser's recording to a plan, including thinking times.

    Cookies are handled by each user's cookie jar, and redirects by the generator. A value that came from an earlier
    response will probably differ next time. Such values are marked by comments that begin with 'dynamic'.
    """
    _refuse_existing(out, force=force)
    with _files():
        content = recording.read_bytes()
    return _write_plan(content, str(recording), out, leave_out or ())


def record(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="The page to begin with.", metavar="URL")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The plan to write.")],
    browser: Annotated[
        str | None,
        typer.Option(
            help="A Chromium-based browser; default: the first one found. none: use your own, with the proxy that is "
            "shown."
        ),
    ] = None,
    browser_option: Annotated[
        list[str] | None,
        typer.Option(help="Option for the browser, e.g. --browser-option=--headless=new; may be repeated."),
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", help="Finish after this time, e.g. 5min.")] = None,
    port: Annotated[int, typer.Option(help="Port of the proxy; default: a free one.", min=0, max=65535)] = 0,
    har: Annotated[Path | None, typer.Option(help="Keep the recording itself, as a HAR file.")] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", help="A host to leave out, e.g. '*.ads.test'; may be repeated.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not verify certificates of servers.")] = False,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust instead of the host's, in PEM.", exists=True)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    work_dir: WorkDir = WORK_ROOT,
) -> int:
    """Record a session in a browser, and write it as a plan.

    A browser starts with a proxy on this host (mitmproxy), which records HTTP and HTTPS. Do what a user does, and close
    the browser. The plan has the pages as transactions, the user's pauses, values that change from session to session
    as variables, and a page's images, scripts and styles as a group. The recording contains what was typed, passwords
    too.

      partywall load record https://shop.example/ -o shop.yaml
    """
    from partywall.cli import leftovers
    from partywall.cli.live import Live
    from partywall.core import execution, here
    from partywall.load.recorder.recording import OWN_HOSTS, Recording
    from partywall.load.recorder.recording import record as recorded

    for file in (out, har):
        _refuse_existing(file, force=force)
    if wrong := wrong_with(url):
        raise UsageError(Problem(*wrong, key="URL"))
    length_ns = None if for_ is None else duration_ns("--for", for_, "5min")
    job = Recording(
        url=url,
        browser=browser,
        options=tuple(browser_option or ()),
        port=port,
        length_s=None if length_ns is None else length_ns / 1e9,
        insecure=insecure,
        authorities=ca_file,
    )
    here.check_folder(work_dir)
    leftovers.clean_up()
    with Live(output.console(output.Format.TEXT)) as live, execution.terminated_as_interrupt():
        content = recorded(job, context.obj(), work_dir, live)
    if har is not None:
        with _files():
            write_whole(har, content)
    tls = {"verify": False} if insecure else {"authorities": str(ca_file.resolve())} if ca_file else {}
    return _write_plan(content, url, out, (*OWN_HOSTS, *(leave_out or ())), tls)


def _refuse_existing(file: Path | None, *, force: bool) -> None:
    if file is not None and file.exists() and not force:
        raise UsageError(Problem(f"{file} exists already", "give another path, or --force", key="--out"))


@contextlib.contextmanager
def _files() -> Iterator[None]:
    """UsageError for a file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            Problem(f"{error.strerror}", "check the path and its permissions", str(error.filename))
        ) from None


def _write_plan(
    content: str | bytes, source: str, out: Path, leave_out: Sequence[str], tls: Mapping[str, Any] | None = None
) -> int:
    """Writes the plan of a recording, and shows what is in it."""
    from partywall.core.document.decode import Document
    from partywall.load import check as plans
    from partywall.load.recorder.plan import plan_of

    imported = plan_of(content, source, leave_out, tls)
    plans.of_document(Document(imported.plan, {}), str(out), out.resolve().parent)
    with _files():
        write_whole(out, imported.text)
    console = output.console(output.Format.TEXT)
    for host, count in imported.hosts.items():
        output.say(console, f"{host}: {units.counted(count, 'request')}")
    for note in imported.notes:
        output.say(console, f"note: {note}")
    then = f"look at its comments, set the number of users, then: partywall load check {out}"
    output.say(console, f"written to {out}; {then}")
    return Exit.HOLDS
