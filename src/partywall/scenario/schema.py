"""JSON Schema of the scenario format for editors, from the model, with the kernels' names and parameters.

It helps editors. `partywall.scenario.load` checks more, such as goals that match nothing and budgets that are too
small.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from partywall import units
from partywall.agent.catalogue import Catalogue, Role, shipped
from partywall.model.scenario import Scenario, url_or_plan
from partywall.sandbox.document import path_or_file
from partywall.values import LISTS

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


def json_schema(catalogue: Catalogue | None = None) -> dict[str, Any]:
    """The schema as a value. `schema/scenario.schema.json` is a checked-in copy."""
    kernels = catalogue or shipped()
    schema = Scenario.model_json_schema(by_alias=True, schema_generator=AsWritten)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Partywall scenario"
    _add_kernels(schema["$defs"]["Victim"], "probe", kernels)
    _add_lists_as_levels(schema["properties"]["factors"])
    _add_kernels(schema["$defs"]["Aggressor"], "stressor", kernels)
    return schema


class AsWritten(GenerateJsonSchema):
    """Shows durations, sizes and shares as people write them, instead of as numbers."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        number = super().function_before_schema(schema)
        parse = schema["function"]["function"]
        if parse is url_or_plan:
            return {"anyOf": [number, {"type": "string", "description": "a URL, or a load plan"}]}
        if parse is path_or_file:
            return {"anyOf": [number, {"type": "string", "description": "a path, relative to the scenario"}]}
        if parse in UNITS_NEEDED:
            return UNITS_NEEDED[parse]
        return {"anyOf": [number, WRITTEN[parse]]} if parse in WRITTEN else number

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


def _add_kernels(workload: dict[str, Any], role: Role, catalogue: Catalogue) -> None:
    """Adds kernel names as an enum, and each kernel's parameters."""
    names = [name for name in catalogue.names(role) if name != "null"]
    said = {name: info.summary for name in names if (info := catalogue.kernel(name))}
    workload["properties"][role] = {
        "enum": names,
        "markdownDescription": "\n".join(f"* `{name}`: {summary}" for name, summary in said.items()),
        "description": "kernel, or use command or load",
    }
    sources = (role, "command", "load", *(("migration",) if role == "stressor" else ()))
    workload["oneOf"] = [{"required": [source]} for source in sources]
    workload["allOf"] = [_when(role, name, catalogue) for name in names]


def _add_lists_as_levels(factors: dict[str, Any]) -> None:
    """Allows lists as levels of CPUs and NUMA nodes."""
    levels: dict[str, Any] = dict(factors["additionalProperties"])
    factors["patternProperties"] = {
        f"{ending}$": levels | {"items": {"anyOf": [levels["items"], WRITTEN[as_text]]}}
        for ending, as_text in LISTS.items()
    }


def _when(role: Role, name: str, catalogue: Catalogue) -> dict[str, Any]:
    info = catalogue.kernel(name)
    params = _params(info.params) if info else {}
    condition = {"properties": {role: {"const": name}}, "required": [role]}
    return {"if": condition, "then": {"properties": {"params": params}}}


def _params(schema: dict[str, Any]) -> dict[str, Any]:
    """A kernel's own schema without references. Sizes and durations may be text if the name ends in their unit."""
    plain = _inline(
        {key: value for key, value in schema.items() if key not in ("$schema", "$defs", "title")},
        schema.get("$defs", {}),
    )
    for key, value in plain.get("properties", {}).items():
        written = {"bytes": BYTES, "ns": DURATION}.get(key.rpartition("_")[2])
        if written:
            plain["properties"][key] = {"anyOf": [value, written]} | {
                k: value[k] for k in ("description", "default") if k in value
            }
    return dict(plain)


def _inline(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    reference = str(value.get("$ref", "")).removeprefix("#/$defs/")
    here = {key: _inline(item, definitions) for key, item in value.items() if key != "$ref"}
    return {**_inline(definitions[reference], definitions), **here} if reference in definitions else here
