"""The interface for programs: the page's actions as JSON below /api/, described by an OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from partywall import __version__
from partywall.errors import PartywallError
from partywall.plain import plain
from partywall.web import deleted, made, pages, records
from partywall.web.forms import body_of
from partywall.web.handlers import threaded
from partywall.web.jobs import KEY, Order
from partywall.web.runner import FIELDS, Adjust, Annotate, Empty, Extend, Report, Restore
from partywall.web.security import is_key
from partywall.web.site import Server


def routes(server: Server) -> list[Route]:
    """The addresses of the interface."""
    on = Interface(server)
    return [
        Route("/openapi.json", on.described),
        Route("/scenario.schema.json", on.schema),
        Route("/policy.schema.json", on.policy_schema),
        Route("/records", on.listed),
        Route("/records/{name}", on.shown),
        Route("/jobs", on.jobs, methods=["GET"]),
        Route("/jobs", on.start, methods=["POST"]),
        Route("/plan", on.plan, methods=["POST"]),
        Route("/bin", on.bin, methods=["GET"]),
        Route("/bin/empty", on.empty_bin, methods=["POST"]),
        Route("/jobs/{id}", on.job, methods=["GET"]),
        *(Route(f"/jobs/{{id}}/{name}", on.on_job(name), methods=["POST"]) for name in JOB_ACTIONS),
        *(Route(f"/records/{{name}}/{action}", on.on_record(action), methods=["POST"]) for action in RECORD_ACTIONS),
    ]


class Interface:
    """The answers of the interface."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def _content(self, request: Request) -> dict[str, Any]:
        raw = await body_of(request)
        try:
            content = json.loads(raw or b"{}")
        except (ValueError, RecursionError):
            raise HTTPException(400, "The body is not JSON.") from None
        if not isinstance(content, dict):
            raise HTTPException(400, "The body is not a JSON object.")
        return content

    def _key_of(self, request: Request) -> str:
        key = request.headers.get("idempotency-key", "")
        if not is_key(key):
            raise HTTPException(400, "Idempotency-Key is missing, or is not 8 to 64 letters, digits, - or _.")
        if not request.state.bearer and not self._server.secrets.is_ours(key):
            raise HTTPException(403, "A browser's key must come from a page of this server.")
        return key

    async def _act(self, action: str, **fields: Any) -> Response:
        try:
            return JSONResponse(await threaded(self._server.act, action, **fields))
        except PartywallError as error:
            return _refused(error)

    async def listed(self, request: Request) -> Response:
        query = request.query_params.get("q", "")[:200]
        named = await threaded(records.named, self._server.folder.root)
        matching = await threaded(records.matching, named, query, self._server.folder)
        return JSONResponse({"records": [asdict(record) for record in matching]})

    async def shown(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = self._server.folder.record(name)
        if path is None or (kind := records.kind_of(path)) is None:
            raise HTTPException(404, "There is no such record.")
        row = await threaded(records.row, self._server.folder, records.Named(name, kind, path.stat().st_mtime))
        listed = await threaded(records.files, self._server.folder, name)
        files = [{"path": file, "bytes": size} for file, size in listed]
        return JSONResponse(plain(asdict(row)) | {"files": files})

    async def jobs(self, request: Request) -> Response:
        del request
        jobs = await threaded(self._server.folder.all)
        return JSONResponse({"jobs": [job.model_dump(mode="json", exclude={"done"}) for job in jobs]})

    async def job(self, request: Request) -> Response:
        job = self._server.folder.job(request.path_params["id"])
        if job is None:
            raise HTTPException(404, "There is no such job.")
        return JSONResponse(job.model_dump(mode="json", exclude={"done"}))

    async def start(self, request: Request) -> Response:
        key, order = self._key_of(request), await self._content(request)
        try:
            checked = Order.model_validate(order)
        except ValidationError as error:
            problems = [
                {"key": ".".join(map(str, e["loc"])), "message": e["msg"]} for e in error.errors(include_url=False)
            ]
            return JSONResponse({"problems": problems}, 400)
        return await self._act("start", key=key, order=checked.model_dump(mode="json"))

    async def plan(self, request: Request) -> Response:
        try:
            order = Order.model_validate(await self._content(request))
            forecast = await threaded(self._server.forecast, order)
        except ValidationError as error:
            return JSONResponse({"problems": [{"message": str(error)}]}, 400)
        except PartywallError as error:
            return _refused(error)
        lacking = [plain(problem) for problem in forecast.lacking]
        return JSONResponse({"lines": forecast.lines, "seconds": forecast.seconds, "lacking": lacking})

    async def bin(self, request: Request) -> Response:
        del request
        return JSONResponse({"deleted": [asdict(row) for row in await threaded(deleted.rows, self._server.folder)]})

    async def empty_bin(self, request: Request) -> Response:
        given = await self._content(request)
        return await self._act("empty", key=self._key_of(request), before=given.get("before"))

    def on_job(self, action: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            given = await self._content(request)
            fields = {name: given.get(name) for name in FIELDS.get(action, ())}
            return await self._act(action, key=self._key_of(request), job=request.path_params["id"], **fields)

        return handle

    def on_record(self, action: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            given = await self._content(request)
            fields = {name: given[name] for name in RECORD_FIELDS.get(action, ()) if name in given}
            return await self._act(action, key=self._key_of(request), record=request.path_params["name"], **fields)

        return handle

    async def described(self, request: Request) -> Response:
        del request
        return JSONResponse(openapi())

    async def schema(self, request: Request) -> Response:
        del request
        from partywall.run.document.schema import json_schema  # noqa: PLC0415 - of the editor alone

        return JSONResponse(json_schema(), headers={"cache-control": "max-age=3600"})

    async def policy_schema(self, request: Request) -> Response:
        del request
        from partywall.core.document.schema import schema_of  # noqa: PLC0415 - of the editor alone

        schema = schema_of(made.model_of("guard"), "Partywall policy of the guard")
        return JSONResponse(schema, headers={"cache-control": "max-age=3600"})


JOB_ACTIONS = {
    "stop": "Ends a job. What it has measured is kept and reported. A second stop, with another key, ends it by force.",
    "pause": "Ends a run or study between two blocks. It can be resumed.",
    "resume": "Continues a paused, stopped or failed run or study.",
    "extend": "Gives a run a larger budget or another precision.",
    "adjust": "Changes the users or requests a second of a running load, or the policy of a running guard.",
}
RECORD_FIELDS = {"annotate": ("note", "tags"), "report": ("formats",), "restore": ("entry",)}
RECORD_ACTIONS = {
    "annotate": "Stores a note and tags.",
    "delete": "Moves a record to the bin. It can be restored for 30 days.",
    "restore": "Restores a deleted record: its latest deletion, or that of an entry of the bin.",
    "report": "Derives the findings again and writes the report, also as CSV, Parquet, PNG or SVG.",
}


def _fields(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema["properties"][name] for name in names}}


BODIES = {
    "extend": _fields(Extend.model_json_schema(), *FIELDS["extend"]),
    "adjust": _fields(Adjust.model_json_schema(), *FIELDS["adjust"]),
    "annotate": _fields(Annotate.model_json_schema(), *RECORD_FIELDS["annotate"]),
    "restore": _fields(Restore.model_json_schema(), *RECORD_FIELDS["restore"]),
    "report": _fields(Report.model_json_schema(), *RECORD_FIELDS["report"]),
}


def _refused(error: PartywallError) -> Response:
    return JSONResponse({"problems": [plain(problem) for problem in pages.problems_of(error)]}, 400)


def openapi() -> dict[str, Any]:
    """The description of the interface."""
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": True,
        "description": "A repeated request with the same key has no further effect.",
        "schema": {"type": "string", "pattern": f"^{KEY}$"},
    }
    refusals = {"400": {"description": "problems: what is wrong, and the remedy"}, "401": {"description": "no token"}}

    def operation(
        summary: str, *, body: dict[str, Any] | None = None, keyed: bool = False, at: str = ""
    ) -> dict[str, Any]:
        place = [{"name": at, "in": "path", "required": True, "schema": {"type": "string"}}] if at else []
        described: dict[str, Any] = {
            "summary": summary,
            "parameters": [*place, *([key] if keyed else [])],
            "responses": {"200": {"description": "done"}} | refusals,
        }
        if body is not None:
            described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        return described

    order = {"$ref": "#/components/schemas/Order"}
    paths: dict[str, Any] = {
        "/api/records": {"get": operation("All records, newest first. q: words to search for.")},
        "/api/records/{name}": {"get": operation("A record and its files.", at="name")},
        "/api/records/{name}/events": {
            "get": operation(
                "The events of a record as server-sent events, from the start or from a byte offset (from=, or "
                "Last-Event-ID).",
                at="name",
            )
        },
        "/api/jobs": {
            "get": operation("All jobs, oldest first."),
            "post": operation("Puts a job in the queue. The key is its identity.", body=order, keyed=True),
        },
        "/api/jobs/{id}": {"get": operation("A job.", at="id")},
        "/api/bin": {"get": operation("Deleted records: entry, name, size, and until when they are kept.")},
        "/api/bin/empty": {
            "post": operation(
                "Removes deleted records for good: all, or those deleted until a time (before, in seconds).",
                body=_fields(Empty.model_json_schema(), "before"),
                keyed=True,
            )
        },
        "/api/plan": {"post": operation("What an order would do on this host. Changes nothing.", body=order)},
    }
    for name, summary in JOB_ACTIONS.items():
        body = BODIES.get(name)
        paths[f"/api/jobs/{{id}}/{name}"] = {"post": operation(summary, body=body, keyed=True, at="id")}
    for name, summary in RECORD_ACTIONS.items():
        body = BODIES.get(name)
        paths[f"/api/records/{{name}}/{name}"] = {"post": operation(summary, body=body, keyed=True, at="name")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Partywall", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Order": Order.model_json_schema()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
