"""`partywall serve` and `partywall publish`: the web page, and static pages."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partywall import units
from partywall.cli.live import Steps
from partywall.errors import Exit, Problem, UsageError


def serve(
    runs: Annotated[Path, typer.Argument(help="The folder of records.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port. 0: any free one.", min=0, max=65535)] = 8733,
    address: Annotated[str, typer.Option(help="Address to listen on. Others than 127.0.0.1 need TLS.")] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Sessions may look, but change nothing.")] = False,
    share_view: Annotated[
        bool, typer.Option("--share-view", help="Also print a link to share. Who opens it may only look.")
    ] = False,
    allow_commands: Annotated[
        bool,
        typer.Option("--allow-commands", help="Documents from the page may run commands and name files of this host."),
    ] = False,
    certificate: Annotated[Path | None, typer.Option(help="Certificate for TLS, in PEM.")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="Its private key, in PEM.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="A further host name of this server; may be repeated.")] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Serve the page as this account. Measurements keep the rights of who starts it, such as root."
        ),
    ] = None,
    insecure: Annotated[
        int,
        typer.Option(
            "--insecure",
            count=True,
            help="Give it twice to listen on other addresses without TLS. Others can listen in.",
        ),
    ] = 0,
    token: Annotated[
        bool, typer.Option("--token", help="Print the token for programs, and end. See docs/web.md.")
    ] = False,
) -> int:
    """Serve a page to start, watch, control and compare measurements in a browser.

    partywall serve

    Prints a link that works once. Measurements continue if the server ends. Another computer reaches the page through
    an SSH tunnel: ssh -L 8733:127.0.0.1:8733 HOST
    """
    from partywall.web import server

    if token:
        typer.echo(server.bearer(runs, read_only=read_only))
        return Exit.HOLDS
    settings = server.Settings(
        root=runs,
        address=address,
        port=port,
        read_only=read_only,
        share_view=share_view,
        allow_commands=allow_commands,
        insecure=insecure > 1,
        certificate=certificate,
        certificate_key=certificate_key,
        names=tuple(name or ()),
        user=user,
    )
    with contextlib.suppress(KeyboardInterrupt):
        server.serve(settings, typer.echo)
    return Exit.HOLDS


def publish(
    runs: Annotated[Path, typer.Argument(help="The folder of records.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder to create, or to update if publish made it.")] = Path("published"),
) -> int:
    """Write the reports of a folder of records as static pages, with a page that lists them.

    partywall publish runs --out site

    Repeat it to update the pages, for example every night. Pages of records that are gone are removed.
    """
    from partywall.web.jobs import Folder
    from partywall.web.publish import write

    if not runs.is_dir():
        raise UsageError(Problem("is not a folder", "give a folder of records", str(runs)))
    with Steps(Console(stderr=True)) as steps:
        count = write(Folder(runs), out, steps.show)
    typer.echo(f"{units.counted(count, 'record')}: {out / 'index.html'}")
    return Exit.HOLDS
