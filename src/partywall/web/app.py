"""The server: addresses, and what each answers. Reads the folder of records; changes go to the runner.

The same actions exist for pages (forms) and for programs (JSON below /api/, see `web.interface`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from partywall import pipeline
from partywall.errors import PartywallError, Problem, UsageError
from partywall.host import Host
from partywall.kinds.journal import FILE
from partywall.plain import plain
from partywall.store import RunDirectory
from partywall.web import compared, documents, interface, pages, publish, records, runner
from partywall.web.jobs import Folder, Job, Order, State
from partywall.web.live import Watched, lines
from partywall.web.security import RECORD_POLICY, Checks, Role, Secrets, Site, form_of, is_key

BODY_BYTES_MAX = 1 << 20
BODY_S = 10.0
POLL_S = 0.1
PING_S = 15.0
REFRESH_S = 2.0
"""The longest time after which a change is noticed that no event tells of, such as a killed process."""
WATCHERS_MAX = 64
JOB_ACTIONS = ("stop", "pause", "resume", "extend")
RECORD_ACTIONS = ("annotate", "delete", "restore", "report")

Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """The state of a server: its folder, its sessions, and what it has read so far."""

    def __init__(
        self,
        folder: Folder,
        site: Site,
        secrets: Secrets,
        *,
        read_host: Callable[[], Host] = pipeline.this_host,
        start_runner: Callable[[], None] = lambda: None,
        allow_commands: bool = False,
    ) -> None:
        self.folder = folder
        self.site = site
        self.secrets = secrets
        self.allow_commands = allow_commands
        self._read_host = read_host
        self._start_runner = start_runner
        self._host: Host | None = None
        self._doctor: Mapping[str, Any] | None = None
        self._watched: dict[str, Watched] = {}
        self._plans: dict[str, Any] = {}
        self.watchers = 0

    def host(self) -> Host:
        """This host, read once."""
        if self._host is None:
            self._host = self._read_host()
        return self._host

    def doctor(self, *, again: bool = False) -> Mapping[str, Any]:
        """What `partywall doctor` says of this host, asked once."""
        if self._doctor is None or again:
            words = [sys.executable, "-P", "-m", "partywall", "doctor", "--format", "json"]
            done = subprocess.run(words, capture_output=True, check=False, timeout=120)
            try:
                self._doctor = json.loads(done.stdout)["result"] or {"checks": []}
            except (ValueError, KeyError, TypeError):
                self._doctor = {"checks": []}
        return self._doctor

    def act(self, action: str, **fields: Any) -> dict[str, Any]:
        """Has the runner carry out an action. Starts a runner if there is none."""
        try:
            return runner.request(self.folder, action, **fields)
        except ConnectionError:
            self._start_runner()
            return runner.request(self.folder, action, **fields)

    def watched(self, name: str) -> Watched:
        """The journal of a record, shared by all that watch it."""
        if name not in self._watched:
            self._watched[name] = Watched(self.folder.root / name)
            # The oldest is read again if it is needed.
            while len(self._watched) > WATCHERS_MAX:
                del self._watched[next(iter(self._watched))]
        found = self._watched[name]
        found.advance()
        return found

    def plan(self, name: str) -> Any:
        """The plan of a run, read again if it was extended. None if it cannot be read."""
        file = self.folder.root / name / RunDirectory.MARK
        try:
            stamp = file.stat().st_mtime_ns
            if self._plans.get(name, (0, None))[0] != stamp:
                self._plans[name] = stamp, RunDirectory(file.parent).plan
        except (OSError, PartywallError):
            return None
        return self._plans[name][1]

    def panels(self, name: str) -> dict[str, str]:
        """The parts of the watching page that change, as HTML by their names."""
        job = self.folder.of_record(name)
        path = self.folder.record(name)
        watched = self.watched(name)
        live = watched.state
        running = live.running
        waiting = [one for one in self.folder.all() if one.state in (State.QUEUED, State.RUNNING)]
        plan = self.plan(name)
        content = {
            "name": name,
            "job": job,
            "live": live,
            "running": running,
            "ended": not running and (job is None or job.state in (State.ENDED, State.CANCELLED)),
            "status": pages.status(job, live, waiting, running=running),
            "left": pages.left(live, running=running),
            "buttons": pages.buttons(job) if self.secrets.role is Role.FULL else pages.Buttons(),
            "key": partial(self.secrets.key, name, job.attempt if job else 0, job.state if job else ""),
            "matrix": pages.matrix(plan, live) if plan is not None else None,
            "plan": plan,
            "seconds": list(pages.seconds_of(live))[:10],
            "chart": pages.chart(live),
            "output": pages.tail_of(self.folder.output(job.id)) if job and (path is None or not running) else "",
            "has_page": path is not None and (path / "report.html").is_file(),
            "outcome": records.outcome(path, job.exit if job and job.exit is not None else live.exit),
        }
        return {part: pages.render(f"live_{part}.html.j2", **content) for part in ("status", "figures", "notes")}


async def body_of(request: Request) -> bytes:
    """The body of a request. HTTPException if it is too large, or comes too slowly."""
    found = bytearray()
    try:
        with anyio.fail_after(BODY_S):
            async for piece in request.stream():
                found += piece
                if len(found) > BODY_BYTES_MAX:
                    raise HTTPException(413, f"The request is larger than {BODY_BYTES_MAX >> 20} MiB.")
    except TimeoutError:
        raise HTTPException(408, "The request came too slowly.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The connection was lost.") from None
    return bytes(found)


class Form:
    """The fields of a form. Its key is signed, so it came from a page of this server."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        return self._fields.get(name, [""])[-1].strip()

    def list(self, name: str) -> list[str]:
        return [value.strip() for value in self._fields.get(name, []) if value.strip()]

    @property
    def document(self) -> str:
        """The text of the editor. Browsers send line ends of two characters."""
        return self._fields.get("document", [""])[-1].replace("\r\n", "\n")


async def form(server: Server, request: Request) -> Form:
    """The form of a request. HTTPException if its key was not signed here."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(415, "This is not a form.")
    try:
        found = Form(form_of(await body_of(request)))
    except ValueError:
        raise HTTPException(400, "The form has too many fields.") from None
    if not server.secrets.is_ours(found.get("key")):
        raise HTTPException(403, "This form did not come from a page of this server. Reload the page.")
    return found


def order_of(found: Form) -> Order:
    """The order of a form. UsageError that names each field with a mistake."""
    numbers = {"users": int, "seed": int, "rate": float}
    content: dict[str, Any] = {"kind": found.get("kind") or "run", "long": found.get("long") == "on"}
    for name in ("shipped", "budget", "precision", "url", "duration", *numbers):
        if text := found.get(name):
            content[name] = text
    if found.document.strip():
        content["document"] = found.document
        content["kind"] = documents.kind_of(found.document)
        content.pop("shipped", None)
    if hops := found.get("hops").split():
        content["hops"] = hops
    return checked_order(content)


def checked_order(content: Mapping[str, Any]) -> Order:
    """An order from plain values. UsageError that names each value with a mistake."""
    try:
        return Order.model_validate(content)
    except ValidationError as error:
        found = [
            Problem(f"{str(each.get('input'))[:80]!r} cannot be used", "see the example beside it", key=str(each["loc"][0]))
            for each in error.errors(include_url=False)
            if each["loc"]
        ]
        raise UsageError(*(found or [Problem("this is not an order")])) from None


def build(server: Server) -> Checks:
    """The application, behind its checks."""

    def page(template: str, request: Request, status: int = 200, **content: Any) -> HTMLResponse:
        role = request.state.role
        common = {
            "role": role,
            "may_change": role is Role.FULL,
            "host": pages.host_line(),
            "path": request.url.path,
            "key": server.secrets.key,
            "allow_commands": server.allow_commands,
        }
        return HTMLResponse(pages.render(template, **common | content), status)

    def wrong(request: Request, error: PartywallError, status: int = 400) -> HTMLResponse:
        return page("wrong.html.j2", request, status, problems=pages.problems_of(error))

    async def threaded(call: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(call, *arguments, **fields))

    async def home(request: Request) -> Response:
        query = request.query_params.get("q", "")[:200]
        number = _number(request.query_params.get("page"), 1)
        found = await threaded(records.named, server.folder.root)
        matching = await threaded(records.matching, found, query, server.folder)
        shown = matching[(number - 1) * records.PAGE : number * records.PAGE]
        rows = await threaded(lambda: [records.row(server.folder, one) for one in shown])
        jobs = [job for job in server.folder.all() if job.state in (State.RUNNING, State.QUEUED, State.PAUSED)]
        deleted = request.query_params.get("deleted", "")
        can_restore = (server.folder.trash / deleted).is_dir() if records.is_name(deleted) else False
        return page(
            "home.html.j2", request, rows=rows, query=query, number=number, total=len(found), matching=len(matching),
            pages=max(1, -(-len(matching) // records.PAGE)), jobs=jobs, live={job.id: server.watched(job.record).state for job in jobs},
            deleted=deleted if can_restore else "", doctor=server._doctor,  # noqa: SLF001
        )  # fmt: skip

    async def host_page(request: Request) -> Response:
        found = await threaded(server.doctor, again=request.query_params.get("again") == "1")
        return page("host.html.j2", request, checks=found["checks"])

    async def start_page(request: Request) -> Response:
        kind, name = request.query_params.get("kind", "run"), request.query_params.get("shipped", "")
        text = ""
        if name:
            try:
                text = await threaded(pages.text_of, kind, name)
            except PartywallError as error:
                return wrong(request, error, 404)
        offered = await threaded(pages.offered)
        kernels = pipeline.catalogue()
        return page(
            "start.html.j2", request, offered=offered, document=text, kind=kind, shipped=name, problems=[],
            probes=[name for name in kernels.names("probe") if name != "null"],
            stressors=[name for name in kernels.names("stressor") if name != "null"],
        )  # fmt: skip

    async def check(request: Request) -> Response:
        """The mistakes of a document, as an editor needs them while a person types."""
        text = (await body_of(request)).decode("utf-8", "replace")
        problems = await threaded(documents.check, text, allow_files=server.allow_commands)
        return JSONResponse({"problems": [plain(problem) for problem in problems]})

    async def simple(request: Request) -> Response:
        """The document for the common case, in the editor."""
        found = await form(server, request)
        names = pipeline.catalogue()
        victim = found.get("victim")
        neighbours = [name for name in found.list("neighbour") if name in names.names("stressor")]
        if victim not in names.names("probe") or not neighbours:
            return wrong(request, UsageError(Problem("a victim or its neighbours are missing", "choose both")))
        checked = checked_order({"kind": "run", **{k: v for k in ("budget", "precision") if (v := found.get(k))}})
        limit = checked_order({"kind": "run", "budget": found.get("cpu_limit") or None}).budget or ""
        text = documents.simple_scenario(
            victim, neighbours, cpu_limit=limit, budget=checked.budget or "", precision=checked.precision or ""
        )
        return page("start.html.j2", request, **await _editor(text, "run", []))

    async def _editor(text: str, kind: str, problems: list[Problem]) -> dict[str, Any]:
        kernels = pipeline.catalogue()
        return {
            "offered": await threaded(pages.offered),
            "document": text,
            "kind": kind,
            "shipped": "",
            "problems": problems,
            "probes": [name for name in kernels.names("probe") if name != "null"],
            "stressors": [name for name in kernels.names("stressor") if name != "null"],
        }

    async def dry_run(request: Request) -> Response:
        found = await form(server, request)
        try:
            order = order_of(found)
            forecast = await threaded(
                documents.forecast, order, await threaded(server.host), allow_commands=server.allow_commands
            )
        except PartywallError as error:
            problems = pages.problems_of(error)
            if found.document.strip():
                return page("start.html.j2", request, 400, **await _editor(found.document, "run", problems))
            return wrong(request, error)
        queue = [job for job in server.folder.all() if job.state in (State.RUNNING, State.QUEUED)]
        return page("dry_run.html.j2", request, order=order, forecast=forecast, queue=queue)

    async def start(request: Request) -> Response:
        found = await form(server, request)
        try:
            order = order_of(found)
            done = await threaded(server.act, "start", key=found.get("key"), order=order.model_dump(mode="json"))
        except PartywallError as error:
            return wrong(request, error)
        return RedirectResponse(f"/records/{quote(done['record'])}", 303)

    async def record(request: Request) -> Response:
        name = request.path_params["name"]
        path, job = server.folder.record(name), server.folder.of_record(name)
        if (path is None or records.kind_of(path) is None) and job is None:
            raise HTTPException(404, f"There is no record {name[:100]!r}.")
        note, tags = records.annotation(server.folder, name)
        panels = await threaded(server.panels, name)
        kind = records.kind_of(path) if path else None
        return page(
            "record.html.j2", request, name=name, kind=kind or (job.order.kind if job else ""), job=job,
            panels=panels, offset=server.watched(name).offset, files=records.files(server.folder, name), note=note,
            tags=tags, has_page=path is not None and (path / "report.html").is_file(),
            watching=_is_open(server, name, job), headline=records.headline(path) if path else "",
        )  # fmt: skip

    async def live(request: Request) -> Response:
        name = request.path_params["name"]
        if server.folder.record(name) is None and server.folder.of_record(name) is None:
            raise HTTPException(404, f"There is no record {name[:100]!r}.")
        return _stream(server, _panels(server, name))

    async def raw_events(request: Request) -> Response:
        name = request.path_params["name"]
        path = server.folder.record(name)
        if path is None:
            raise HTTPException(404, f"There is no record {name[:100]!r}.")
        last = request.headers.get("last-event-id") or request.query_params.get("from", "0")
        return _stream(server, _events(path / FILE, _number(last, 0)))

    async def record_file(request: Request) -> Response:
        name, relative = request.path_params["name"], request.path_params["path"]
        file = records.file_in(server.folder, name, relative)
        if file is None:
            raise HTTPException(404, "There is no such file.")
        shown = relative == "report.html" and request.query_params.get("download") is None
        headers = {"content-security-policy": RECORD_POLICY}
        if shown:
            return FileResponse(file, media_type="text/html; charset=utf-8", headers=headers)
        return FileResponse(
            file, media_type="application/octet-stream", headers=headers, filename=relative.rpartition("/")[2]
        )

    async def job_action(request: Request) -> Response:
        identity, action = request.path_params["id"], request.path_params["action"]
        found, job = await form(server, request), server.folder.job(identity)
        if action not in JOB_ACTIONS or job is None:
            raise HTTPException(404, "There is no such job or action.")
        fields = {name: found.get(name) or None for name in ("budget", "precision")} if action == "extend" else {}
        try:
            await threaded(server.act, action, key=found.get("key"), job=identity, **fields)
        except PartywallError as error:
            return wrong(request, error)
        return RedirectResponse(f"/records/{quote(job.record)}", 303)

    async def record_action(request: Request) -> Response:
        name, action = request.path_params["name"], request.path_params["action"]
        found = await form(server, request)
        if action not in RECORD_ACTIONS:
            raise HTTPException(404, "There is no such action.")
        fields: dict[str, Any] = {}
        if action == "annotate":
            fields = {"note": found.get("note"), "tags": found.get("tags").replace(",", " ").split()}
        try:
            await threaded(server.act, action, key=found.get("key"), record=name, **fields)
        except PartywallError as error:
            return wrong(request, error)
        return RedirectResponse(f"/?deleted={quote(name)}" if action == "delete" else f"/records/{quote(name)}", 303)

    async def compare(request: Request) -> Response:
        wanted = request.query_params.getlist("record")[:2]
        found = await threaded(records.named, server.folder.root)
        if len(wanted) < 2:
            return page("compare.html.j2", request, comparison=None, found=found[:200], wanted=wanted, rows=[])
        paths = [server.folder.record(name) for name in wanted]
        if None in paths:
            raise HTTPException(404, "One of the records does not exist.")
        try:
            view = await threaded(compared.two, *(path for path in paths if path is not None))
        except PartywallError as error:
            return wrong(request, error)
        return page("compare.html.j2", request, comparison=view, found=found[:200], wanted=wanted)

    async def history(request: Request) -> Response:
        wanted = request.query_params.get("scenario", "")[:200]
        histories = await threaded(compared.histories, server.folder)
        chosen = wanted if wanted in histories else next(iter(histories), "")
        lines_ = await threaded(compared.lines, histories.get(chosen, []))
        return page("history.html.j2", request, names=list(histories), chosen=chosen, lines=lines_)

    async def published(request: Request) -> Response:
        del request
        content = await threaded(publish.packed, server.folder)
        headers = {"content-disposition": 'attachment; filename="partywall-records.zip"'}
        return Response(content, media_type="application/zip", headers=headers)

    async def login(request: Request) -> Response:
        if request.method == "POST":
            token = Form(form_of(await body_of(request))).get("token")
        else:
            token = request.query_params.get("token", "")
        if token and (cookie := server.secrets.redeem(token)):
            # A redirect with status 303 would still count as coming from the other site, which withholds the cookie.
            answer = HTMLResponse(pages.render("entered.html.j2", role=None, path="/login"))
            answer.set_cookie(
                server.site.cookie, cookie, max_age=30 * 86400, httponly=True, samesite="strict",
                secure=server.site.scheme == "https",
            )  # fmt: skip
            return answer
        return page("login.html.j2", request, 401 if token else 200, tried=bool(token))

    async def asset(request: Request) -> Response:
        content = pages.asset(request.path_params["path"])
        if content is None:
            raise HTTPException(404, "There is no such file.")
        kind = "text/css" if request.path_params["path"].endswith(".css") else "text/javascript"
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": "max-age=3600"})

    async def failed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = str(error.detail) if isinstance(error, HTTPException) else "This is a bug of the server; see its output."
        if request.url.path.startswith("/api/"):
            return JSONResponse({"problems": [{"message": text}]}, status)
        if status == 405:
            text = "This address does not take that method."
        return page("wrong.html.j2", request, status, problems=[Problem(text)])

    gets: dict[str, Handler] = {
        "/": home,
        "/host": host_page,
        "/start": start_page,
        "/compare": compare,
        "/history": history,
        "/published.zip": published,
        "/records/{name}": record,
        "/records/{name}/live": live,
        "/records/{name}/files/{path:path}": record_file,
        "/assets/{path:path}": asset,
    }
    posts: dict[str, Handler] = {
        "/check": check,
        "/start/simple": simple,
        "/dry-run": dry_run,
        "/jobs": start,
        "/jobs/{id}/{action}": job_action,
        "/records/{name}/{action}": record_action,
    }
    routes = [
        Route("/login", login, methods=["GET", "POST"]),
        *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
        *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
        Route("/api/records/{name}/events", raw_events, methods=["GET"]),
        Mount("/api", routes=interface.routes(server, body_of, threaded)),
    ]
    handlers = {HTTPException: failed, Exception: failed}
    return Checks(Starlette(routes=routes, exception_handlers=handlers), server.site, server.secrets)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else otherwise


def _is_open(server: Server, name: str, job: Job | None) -> bool:
    """True if the state of a record may still change by itself."""
    path = server.folder.record(name)
    running = path is not None and server.watched(name).state.running
    return running or (job is not None and job.state not in (State.CANCELLED,))


def _stream(server: Server, events: AsyncIterator[bytes]) -> Response:
    """An answer of server-sent events. Refused if too many are open."""
    if server.watchers >= WATCHERS_MAX:
        raise HTTPException(503, "Too many pages are being watched. Close some.")

    async def counted() -> AsyncIterator[bytes]:
        server.watchers += 1
        try:
            yield b"retry: 500\n\n"
            async for event in events:
                yield event
        finally:
            server.watchers -= 1

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(counted(), media_type="text/event-stream", headers=headers)


async def _panels(server: Server, name: str) -> AsyncIterator[bytes]:
    """The parts of the watching page that changed, as often as the journal or the job does."""
    sent: dict[str, str] = {}
    quiet_s = 0.0
    stamp: object = None
    while True:
        watched = server.watched(name)
        job = server.folder.of_record(name)
        now = (watched.offset, job, int(time.monotonic() / REFRESH_S))
        if now != stamp:
            stamp = now
            for part, text in server.panels(name).items():
                if sent.get(part) != text:
                    sent[part] = text
                    quiet_s = 0.0
                    yield _event(part, text, watched.offset)
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S
        if quiet_s >= PING_S:
            quiet_s = 0.0
            yield b": still here\n\n"


async def _events(file: Path, offset: int) -> AsyncIterator[bytes]:
    """The lines of a journal from an offset on. The identity of each is the offset after it."""
    quiet_s = 0.0
    with contextlib.suppress(OSError):
        if file.stat().st_size < offset:
            offset = 0
    while True:
        for offset, event in lines(file, offset):  # noqa: B020, PLR1704 - it goes on from there
            quiet_s = 0.0
            if event is not None:
                yield _event("line", json.dumps(event), offset)
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S
        if quiet_s >= PING_S:
            quiet_s = 0.0
            yield b": still here\n\n"


def _event(name: str, text: str, identity: int) -> bytes:
    data = "\n".join(f"data: {line}" for line in text.splitlines())
    return f"id: {identity}\nevent: {name}\n{data}\n\n".encode("utf-8", "replace")
