"""JSON Schema of documents for editors: durations, sizes and shares as people write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from partywall import units

_DURATIONS = (("min", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
_NUMBER = r"^\s*[0-9.][0-9_.]*([eE][+-]?[0-9]+)?\s*"
_UNITS = "|".join(units.BYTE_UNITS)

DURATION = {
    "type": "string",
    "pattern": f"{_NUMBER}({'|'.join(units.DURATION_UNITS)})\\s*$",
    "description": "a duration such as 100ms, 2s or 3min",
}
BYTES = {"type": "string", "pattern": f"{_NUMBER}({_UNITS})?\\s*$", "description": "a size such as 64MiB or 8kB"}
BIT_RATE = {
    "type": "string",
    "pattern": f"{_NUMBER}[kMGT]?bit/s\\s*$",
    "description": "a bit rate such as 1Gbit/s",
}
UNITS_NEEDED: dict[Any, dict[str, Any]] = {units.parse_duration_ns: DURATION, units.parse_bit_rate: BIT_RATE}
"""What is refused as a number."""
WRITTEN: dict[Any, dict[str, Any]] = {
    units.parse_bytes: BYTES,
    units.parse_bps: {
        "type": "string",
        "pattern": f"{_NUMBER}({_UNITS})?(/s)?\\s*$",
        "description": "a rate such as 5MB/s",
    },
    units.parse_packet_rate: {
        "type": "string",
        "pattern": f"{_NUMBER}[kMGT]?p?(/s|ps)?\\s*$",
        "description": "a packet rate such as 80k/s",
    },
    units.parse_share: {"type": "string", "pattern": f"{_NUMBER}%?\\s*$", "description": "a share such as 25% or 0.25"},
    units.switch_as_text: {"type": "boolean"},
    **{
        as_text: {
            "type": ["integer", "array"],
            "minimum": 0,
            "minItems": 1,
            "items": {"type": ["integer", "string"]},
            "description": f"{what} such as 0 or [0, 2]",
        }
        for as_text, what in ((units.cpus_as_text, "CPUs"), (units.nodes_as_text, "NUMA nodes"))
    },
}


class AsWritten(GenerateJsonSchema):
    """Shows durations, sizes and shares as people write them, instead of as numbers."""

    plain: ClassVar[Mapping[Any, JsonSchemaValue]] = {}
    """The form of a plain value, by the function that accepts one where keys are expected."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        number = super().function_before_schema(schema)
        parse = schema["function"]["function"]
        if parse in UNITS_NEEDED:
            return UNITS_NEEDED[parse]
        written = self.plain.get(parse) or WRITTEN.get(parse)
        return {"anyOf": [number, written]} if written else number

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        default = described.get("default")
        if isinstance(default, int) and "duration" in str(described):
            described["default"] = _duration(default)
        elif isinstance(default, int) and "bit rate" in str(described):
            described["default"] = f"{default}bit/s"
        if isinstance(default, dict):  # the keys below describe their own defaults
            del described["default"]
        return described


def _duration(ns: int) -> str:
    unit, size = next((unit, size) for unit, size in _DURATIONS if ns % size == 0)
    return f"{ns // size}{unit}"


def schema_of(model: type[BaseModel], title: str, generator: type[AsWritten] = AsWritten) -> dict[str, Any]:
    """The schema of a format. title: its name in editors."""
    schema = model.model_json_schema(by_alias=True, schema_generator=generator)
    return schema | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
