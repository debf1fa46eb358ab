"""The application: its addresses, behind the checks of every request.

The same actions exist for pages (forms) and for programs (JSON below /api/, see `web.interface`).
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route

from partywall.errors import PartywallError
from partywall.web import interface
from partywall.web.handlers import Handlers
from partywall.web.security import Checks
from partywall.web.site import Server


def build(server: Server) -> Checks:
    """The application of a server."""
    on = Handlers(server)
    gets = {
        "/": on.home,
        "/host": on.host_page,
        "/bin": on.bin,
        "/start": on.start_page,
        "/compare": on.compare,
        "/history": on.history,
        "/published.zip": on.published,
        "/records/{name}": on.record,
        "/records/{name}/live": on.live,
        "/records/{name}/policy": on.policy,
        "/records/{name}/files/{path:path}": on.record_file,
        "/assets/{path:path}": on.asset,
    }
    posts = {
        "/check": on.check,
        "/start/simple": on.simple,
        "/dry-run": on.dry_run,
        "/bin/empty": on.empty_bin,
        "/jobs": on.start,
        "/jobs/{id}/{action}": on.job_action,
        "/records/{name}/{action}": on.record_action,
    }
    routes = [
        Route("/login", on.login, methods=["GET", "POST"]),
        *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
        *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
        Route("/api/records/{name}/events", on.raw_events, methods=["GET"]),
        Mount("/api", routes=interface.routes(server)),
    ]
    handlers = {HTTPException: on.failed, PartywallError: on.refused, Exception: on.failed}
    return Checks(Starlette(routes=routes, exception_handlers=handlers), server.site, server.secrets)
