"""What each address of the page answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from partywall import kinds
from partywall.agent.catalogue import shipped
from partywall.errors import PartywallError, Problem, UsageError
from partywall.kinds.journal import FILE
from partywall.plain import plain
from partywall.sandbox import measuring
from partywall.web import compared, deleted, documents, made, pages, publish, records, stream
from partywall.web.forms import body_of, form, order_of, unsigned_form
from partywall.web.jobs import Job, State
from partywall.web.runner import FIELDS
from partywall.web.security import RECORD_POLICY, Role
from partywall.web.simple import BACKENDS, Simple
from partywall.web.simple import FIELDS as FIELDS_OF_SIMPLE
from partywall.web.site import Server

JOB_ACTIONS = ("stop", "pause", "resume", "extend", "adjust")
RECORD_ACTIONS = ("annotate", "delete", "restore", "report")


async def threaded(call: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
    """Calls a function that waits for files or the runner, without holding up other requests."""
    return await anyio.to_thread.run_sync(partial(call, *arguments, **fields))


def _session(pid: int) -> int:
    """The session of a process; 0 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


class Handlers:
    """The answers of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def _page(self, template: str, request: Request, status: int = 200, **content: Any) -> HTMLResponse:
        role = request.state.role
        common = {
            "role": role,
            "may_change": role is Role.FULL,
            "host": pages.host_line(),
            "path": request.url.path,
            "key": self._server.secrets.key,
            "allow_commands": self._server.allow_commands,
        }
        return HTMLResponse(pages.render(template, **common | content), status)

    def _wrong(self, request: Request, error: PartywallError, status: int = 400) -> HTMLResponse:
        return self._page("wrong.html.j2", request, status, problems=pages.problems_of(error))

    async def home(self, request: Request) -> Response:
        query = request.query_params.get("q", "")[:200]
        number = _number(request.query_params.get("page"), 1)
        named = await threaded(records.named, self._server.folder.root)
        matching = await threaded(records.matching, named, query, self._server.folder)
        shown = matching[(number - 1) * records.PAGE : number * records.PAGE]
        rows = await threaded(lambda: [records.row(self._server.folder, named_record) for named_record in shown])
        every = await threaded(self._server.folder.all)
        jobs = [job for job in every if job.state in (State.RUNNING, State.QUEUED, State.PAUSED)]
        gone = await threaded(deleted.entries, self._server.folder)
        name = request.query_params.get("deleted", "")
        return self._page(
            "home.html.j2", request, rows=rows, query=query, number=number, total=len(named), matching=len(matching),
            pages=max(1, -(-len(matching) // records.PAGE)), jobs=jobs,
            live=await threaded(lambda: {job.id: self._server.watched(job.record).state for job in jobs}),
            deleted=name if any(each.name == name for each in gone) else "", doctor=self._server.known_doctor,
            in_bin=len(gone), disk=shutil.disk_usage(self._server.folder.root), others=await self._others(request),
        )  # fmt: skip

    async def _others(self, request: Request) -> list[measuring.Other]:
        """The measurements that no job of this folder makes. Viewers see none, as they name files of the host."""
        if request.state.role is not Role.FULL:
            return []
        # A job's command runs in a session whose leader is the job's process.
        jobs = {job.pid for job in await threaded(self._server.folder.all)}
        return [other for other in await threaded(measuring.others) if _session(other.pid) not in jobs]

    async def bin(self, request: Request) -> Response:
        """The deleted records, and what the folder takes of the disk."""
        root = self._server.folder.root
        named = await threaded(records.named, root)
        used = await threaded(lambda: sum(records.size_of(root / record.name) for record in named))
        rows = await threaded(deleted.rows, self._server.folder)
        return self._page(
            "bin.html.j2", request, rows=rows, used=used, taken={record.name for record in named},
            disk=shutil.disk_usage(root), days=deleted.KEPT_DAYS,
        )  # fmt: skip

    async def empty_bin(self, request: Request) -> Response:
        sent = await form(self._server.secrets, request)
        if sent.get("sure") != "on":
            problem = Problem("`sure` is missing, so the bin was not emptied", "confirm the removal")
            return self._wrong(request, UsageError(problem))
        try:
            await threaded(self._server.act, "empty", key=sent.get("key"), before=sent.get("before") or None)
        except PartywallError as error:
            return self._wrong(request, error)
        return RedirectResponse("/bin", 303)

    async def host_page(self, request: Request) -> Response:
        again = request.query_params.get("again") == "1" and request.state.role is Role.FULL
        checks = await threaded(self._server.doctor, again=again)
        return self._page("host.html.j2", request, checks=checks["checks"])

    async def start_page(self, request: Request) -> Response:
        kind, name = request.query_params.get("kind", "run"), request.query_params.get("shipped", "")
        text = ""
        if name:
            try:
                text = await threaded(documents.text_of, kind, name)
            except PartywallError as error:
                return self._wrong(request, error, 404)
        return self._page("start.html.j2", request, **await self._editor(text, kind, []) | {"shipped": name})

    async def check(self, request: Request) -> Response:
        """The mistakes of a document, as an editor needs them while a person types."""
        text = (await body_of(request)).decode("utf-8", "replace")
        problems = await threaded(documents.check, text, allow_files=self._server.allow_commands)
        running = self._server.folder.record(request.query_params.get("guard", ""))
        if running is not None and not problems:
            problems = await threaded(documents.check_change, running, text)
        return JSONResponse({"problems": [plain(problem) for problem in problems]})

    async def simple(self, request: Request) -> Response:
        """The document for the common case, in the editor."""
        sent = await form(self._server.secrets, request)
        filled = Simple({name: sent.get(name) for name in FIELDS_OF_SIMPLE}, tuple(sent.list("neighbour")))
        if wrong := await threaded(filled.problems):
            content = await self._editor("", "run", []) | {"simple": filled, "wrong": wrong}
            return self._page("start.html.j2", request, 400, **content)
        return self._page("start.html.j2", request, **await self._editor(filled.text, "run", []) | {"simple": filled})

    async def _editor(self, text: str, kind: str, problems: list[Problem]) -> dict[str, Any]:
        kernels = shipped()
        return {
            "offered": await threaded(pages.offered),
            "document": text,
            "kind": kind,
            "shipped": "",
            "problems": problems,
            "probes": [name for name in kernels.names("probe") if name != "null"],
            "stressors": [name for name in kernels.names("stressor") if name != "null"],
            "simple": Simple(),
            "wrong": {},
            "backends": BACKENDS,
            "job_forms": await threaded(made.forms),
        }

    async def dry_run(self, request: Request) -> Response:
        sent = await form(self._server.secrets, request)
        try:
            order = order_of(sent)
            forecast = await threaded(self._server.forecast, order)
        except PartywallError as error:
            problems = pages.problems_of(error)
            if sent.document.strip():
                return self._page("start.html.j2", request, 400, **await self._editor(sent.document, "run", problems))
            return self._wrong(request, error)
        queue = await threaded(self._server.folder.waiting)
        others = await self._others(request)
        return self._page("dry_run.html.j2", request, order=order, forecast=forecast, queue=queue, others=others)

    async def start(self, request: Request) -> Response:
        sent = await form(self._server.secrets, request)
        try:
            order = order_of(sent)
            done = await threaded(self._server.act, "start", key=sent.get("key"), order=order.model_dump(mode="json"))
        except PartywallError as error:
            return self._wrong(request, error)
        return RedirectResponse(f"/records/{quote(done['record'])}", 303)

    async def record(self, request: Request) -> Response:
        name = request.path_params["name"]
        path, job = self._server.folder.record(name), await threaded(self._server.folder.of_record, name)
        if (path is None or records.kind_of(path) is None) and job is None:
            raise HTTPException(404, f"There is no record {name[:100]!r}.")
        note, tags = records.annotation(self._server.folder, name)
        version, parts = (await threaded(self._server.look, name)).after(0)
        kind = records.kind_of(path) if path else None
        return self._page(
            "record.html.j2", request, name=name, kind=kind or (job.order.kind if job else ""), job=job,
            parts=parts, matrix=await threaded(self._server.matrix, name), token=self._server.token(version),
            files=await threaded(records.files, self._server.folder, name), note=note, tags=tags,
            has_page=path is not None and (path / "report.html").is_file(),
            formats=await threaded(records.formats, path) if path and kind else (),
            watching=await threaded(self._server.is_open, name),
            headline=(await threaded(records.summary, path))[0] if path else "",
        )  # fmt: skip

    async def policy(self, request: Request) -> Response:
        """The policy of a running guard, to be changed."""
        name = request.path_params["name"]
        path, job = self._server.folder.record(name), await threaded(self._server.folder.of_record, name)
        if request.state.role is not Role.FULL or path is None or job is None or not pages.buttons(job).policy:
            raise HTTPException(404, f"No guard of this page runs as {name[:100]!r}.")
        try:
            record = kinds.opened(path)
            current = kinds.made(record.KIND).adjustable(record)
        except PartywallError as error:
            return self._wrong(request, error)
        return self._policy(request, job, current, [])

    def _policy(self, request: Request, job: Job, text: str, problems: list[Problem]) -> Response:
        """The editor of a policy, with the problems for which it was refused."""
        content = {"name": job.record, "job": job, "policy": text, "problems": problems}
        return self._page("policy.html.j2", request, 400 if problems else 200, **content)

    async def live(self, request: Request) -> Response:
        name = request.path_params["name"]
        if self._server.folder.record(name) is None and await threaded(self._server.folder.of_record, name) is None:
            raise HTTPException(404, f"There is no record {name[:100]!r}.")
        token = request.headers.get("last-event-id") or request.query_params.get("from", "")
        may_change = request.state.role is Role.FULL
        return stream.answer(self._server, stream.panels(self._server, name, token, may_change=may_change))

    async def raw_events(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = self._server.folder.record(name)
        if path is None:
            raise HTTPException(404, f"There is no record {name[:100]!r}.")
        last = request.headers.get("last-event-id") or request.query_params.get("from", "0")
        return stream.answer(self._server, stream.events(path / FILE, _number(last, 0)))

    async def record_file(self, request: Request) -> Response:
        name, relative = request.path_params["name"], request.path_params["path"]
        file = records.file_in(self._server.folder, name, relative)
        if file is None:
            raise HTTPException(404, "There is no such file.")
        shown = relative == "report.html" and request.query_params.get("download") is None
        headers = {"content-security-policy": RECORD_POLICY}
        if shown:
            return FileResponse(file, media_type="text/html; charset=utf-8", headers=headers)
        return FileResponse(
            file, media_type="application/octet-stream", headers=headers, filename=relative.rpartition("/")[2]
        )

    async def job_action(self, request: Request) -> Response:
        identity, action = request.path_params["id"], request.path_params["action"]
        sent, job = await form(self._server.secrets, request), self._server.folder.job(identity)
        if action not in JOB_ACTIONS or job is None:
            raise HTTPException(404, "There is no such job or action.")
        fields = {name: sent.get(name) or None for name in FIELDS.get(action, ())}
        if sent.text("policy"):
            fields |= {"policy": sent.text("policy")}
        try:
            await threaded(self._server.act, action, key=sent.get("key"), job=identity, **fields)
        except PartywallError as error:
            if sent.text("policy"):
                return self._policy(request, job, sent.text("policy"), pages.problems_of(error))
            return self._wrong(request, error)
        return RedirectResponse(f"/records/{quote(job.record)}", 303)

    async def record_action(self, request: Request) -> Response:
        name, action = request.path_params["name"], request.path_params["action"]
        sent = await form(self._server.secrets, request)
        if action not in RECORD_ACTIONS:
            raise HTTPException(404, "There is no such action.")
        fields: dict[str, Any] = {}
        if action == "annotate":
            fields = {"note": sent.get("note"), "tags": sent.get("tags").replace(",", " ").split()}
        if action == "report":
            fields = {"formats": sent.list("format")}
        if action == "restore":
            fields = {"entry": sent.get("entry") or None}
        try:
            await threaded(self._server.act, action, key=sent.get("key"), record=name, **fields)
        except PartywallError as error:
            return self._wrong(request, error)
        return RedirectResponse(f"/?deleted={quote(name)}" if action == "delete" else f"/records/{quote(name)}", 303)

    async def compare(self, request: Request) -> Response:
        wanted = [name for name in request.query_params.getlist("record") if name]
        records_named = (await threaded(records.named, self._server.folder.root))[:200]
        view = None
        if len(wanted) > 1:
            paths = [self._server.folder.record(name) for name in wanted]
            if None in paths:
                raise HTTPException(404, "One of the records does not exist.")
            try:
                view = await threaded(compared.several, *(path for path in paths if path is not None))
            except PartywallError as error:
                return self._wrong(request, error)
        return self._page("compare.html.j2", request, comparison=view, records_named=records_named, wanted=wanted)

    async def history(self, request: Request) -> Response:
        wanted = request.query_params.get("scenario", "")[:200]
        histories = await threaded(compared.histories, self._server.folder)
        chosen = wanted if wanted in histories else next(iter(histories), "")
        lines_ = await threaded(compared.lines, histories.get(chosen, []))
        return self._page("history.html.j2", request, names=list(histories), chosen=chosen, lines=lines_)

    async def published(self, request: Request) -> Response:
        del request
        headers = {"content-disposition": 'attachment; filename="partywall-records.zip"'}
        return StreamingResponse(publish.packed(self._server.folder), media_type="application/zip", headers=headers)

    async def login(self, request: Request) -> Response:
        if request.method == "POST":
            token = (await unsigned_form(request)).get("token")
        else:
            token = request.query_params.get("token", "")
        if token and (cookie := self._server.secrets.redeem(token)):
            # A redirect with status 303 would still count as coming from the other site, which withholds the cookie.
            answer = HTMLResponse(pages.render("entered.html.j2", role=None, path="/login"))
            answer.set_cookie(
                self._server.site.cookie, cookie, max_age=30 * 86400, httponly=True, samesite="strict",
                secure=self._server.site.scheme == "https",
            )  # fmt: skip
            return answer
        return self._page("login.html.j2", request, 401 if token else 200, tried=bool(token))

    async def asset(self, request: Request) -> Response:
        content = pages.asset(request.path_params["path"])
        if content is None:
            raise HTTPException(404, "There is no such file.")
        kind = "text/css" if request.path_params["path"].endswith(".css") else "text/javascript"
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": "max-age=3600"})

    async def refused(self, request: Request, error: Exception) -> Response:
        """Wrong input that no page shows in a place of its own."""
        problems = pages.problems_of(error) if isinstance(error, PartywallError) else [Problem(str(error))]
        if request.url.path.startswith("/api/"):
            return JSONResponse({"problems": [plain(problem) for problem in problems]}, 400)
        return self._page("wrong.html.j2", request, 400, problems=problems)

    async def failed(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = str(error.detail) if isinstance(error, HTTPException) else "This is a bug of the server; see its output."
        if request.url.path.startswith("/api/"):
            return JSONResponse({"problems": [{"message": text}]}, status)
        if status == 404 and text == "Not Found":
            text = "There is no such page."
        if status == 405:
            text = "This address does not take that method."
        return self._page("wrong.html.j2", request, status, problems=[Problem(text)])


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else otherwise
