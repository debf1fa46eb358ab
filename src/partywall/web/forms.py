"""What browsers send: bodies within bounds, forms with a signed key, and the order that a form describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from partywall.errors import Problem, UsageError
from partywall.web import documents, made
from partywall.web.jobs import Order
from partywall.web.security import Secrets, form_of

BODY_BYTES_MAX = 1 << 20
BODY_S = 10.0


async def body_of(request: Request) -> bytes:
    """The body of a request. HTTPException if it is too large, or comes too slowly."""
    body = bytearray()
    try:
        with anyio.fail_after(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise HTTPException(413, f"The request is larger than {BODY_BYTES_MAX >> 20} MiB.")
    except TimeoutError:
        raise HTTPException(408, "The request came too slowly.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The connection was lost.") from None
    return bytes(body)


class Form:
    """The fields of a form. Its key is signed, so it came from a page of this server."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        return self._fields.get(name, [""])[-1].strip()

    def list(self, name: str) -> list[str]:
        return [value.strip() for value in self._fields.get(name, []) if value.strip()]

    def text(self, name: str) -> str:
        """The text of an editor; empty if it is blank. Browsers send line ends of two characters."""
        text = self._fields.get(name, [""])[-1].replace("\r\n", "\n")
        return text if text.strip() else ""

    @property
    def document(self) -> str:
        """The text of the editor of documents."""
        return self.text("document")


async def form(secrets: Secrets, request: Request) -> Form:
    """The form of a request. HTTPException if its key was not signed here."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(415, "This is not a form.")
    checked = await unsigned_form(request)
    if not secrets.is_ours(checked.get("key")):
        raise HTTPException(403, "This form did not come from a page of this server. Reload the page.")
    return checked


async def unsigned_form(request: Request) -> Form:
    """The fields that somebody sent, who may not have logged in. HTTPException if they are too many."""
    try:
        return Form(form_of(await body_of(request)))
    except ValueError:
        raise HTTPException(400, "The form has too many fields.") from None


def order_of(form: Form) -> Order:
    """The order of a form. UsageError that names each field with a mistake."""
    numbers = {"users": int, "seed": int, "rate": float}
    content: dict[str, Any] = {"kind": form.get("kind") or "run", "long": form.get("long") == "on"}
    if made.is_made(content["kind"]) and not (form.document or form.get("shipped")):
        verb = form.get("verb")
        options = made.given(content["kind"], verb, form.get, lambda name: form.get(name).split())
        return checked_order({"kind": content["kind"], "verb": verb or None, "options": options})
    for name in ("shipped", "budget", "precision", "url", "duration", *numbers):
        if text := form.get(name):
            content[name] = text
    if form.document.strip() and not _is_shipped(form):
        content["document"] = form.document
        content["kind"] = documents.kind_of(form.document)
        content.pop("shipped", None)
    return checked_order(content)


def _is_shipped(form: Form) -> bool:
    """True if the editor has the unchanged text of something shipped, whose other files are then found beside it."""
    kind, name = form.get("kind") or "run", form.get("shipped")
    return name in documents.shipped_names(kind) and form.document.strip() == documents.text_of(kind, name).strip()


def checked_order(content: Mapping[str, Any]) -> Order:
    """An order from plain values. UsageError that names each value with a mistake."""
    try:
        return Order.model_validate(content)
    except ValidationError as error:
        problems = [
            Problem(
                f"{str(each.get('input'))[:80]!r} cannot be used", "see the example beside it", key=str(each["loc"][0])
            )
            for each in error.errors(include_url=False)
            if each["loc"]
        ]
        raise UsageError(
            *(problems or [Problem("this order has no known `kind`", "send for example kind=run")])
        ) from None
