"""Types of values in documents: sizes, rates, durations, shares, names. They parse what people write, and check it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from partywall import units

Bytes = Annotated[int, BeforeValidator(units.parse_bytes), Field(ge=0)]
BytesPerSecond = Annotated[int, BeforeValidator(units.parse_bps), Field(gt=0)]
BitRate = Annotated[int, BeforeValidator(units.parse_bit_rate), Field(gt=0)]
# Serialised with its unit, as durations are below.
Rate = Annotated[BitRate, PlainSerializer(lambda rate: f"{rate}bit/s", return_type=str, when_used="json-unless-none")]
# Serialised with its unit, because a number without one is refused when it is read.
DurationNs = Annotated[
    int,
    BeforeValidator(units.parse_duration_ns),
    PlainSerializer(lambda ns: f"{ns}ns", return_type=str, when_used="json"),
    Field(ge=0),
]
Ratio = Annotated[float, BeforeValidator(units.parse_share)]
# A bound before the conversion is one of the number, which editors see.
Share = Annotated[float, Field(gt=0, le=1), BeforeValidator(units.parse_share)]
# Convert a number or a list of numbers to text.
Cpus = BeforeValidator(units.cpus_as_text)
Nodes = BeforeValidator(units.nodes_as_text)
LISTS = {"cpus": units.cpus_as_text, "memory_nodes": units.nodes_as_text}
"""Keys, or their endings, whose values may be lists of numbers, with the conversion to text."""
Switch = Annotated[Literal["on", "off"], BeforeValidator(units.switch_as_text)]
Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$", max_length=100)]
Level = str | float | int | bool
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Frozen(BaseModel):
    """An immutable model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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
