"""Which keys of a document name something of the host that carries it out, as the documents' own types say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel


class OfHost:
    """Marks a text as the path of a file, folder, socket or device."""


HostPath = Annotated[str, OfHost()]


def host_path_keys(*models: type[BaseModel]) -> frozenset[str]:
    """The keys of documents, at any depth, whose values are paths of the host."""
    seen: set[type[BaseModel]] = set()
    return frozenset(key for model in models for key in _keys(model, seen))


def _keys(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        inside = list(_parts(field.annotation))
        if any(isinstance(mark, OfHost) for mark in (*field.metadata, *inside)):
            yield field.alias or name
        for part in inside:
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _keys(part, seen)


def _parts(annotation: Any) -> Iterator[Any]:
    """Every type in an annotation, and every mark."""
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    if get_origin(annotation) is None:
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)
