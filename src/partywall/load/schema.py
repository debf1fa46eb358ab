"""JSON Schema of load plans for editors, from the model. It helps editors; the checks are in `load.check`."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from partywall.core.document.schema import AsWritten, schema_of
from partywall.load.document import LoadPlan, as_text

# The meaning of a plain value where keys are expected.
_BARE = {
    "Http": {"type": "string", "description": "the URL to request"},
    "Think": {"type": "string", "description": "a constant pause, e.g. 2s"},
    "Compress": {"type": ["string", "integer"], "description": "the file's size, e.g. 5MB"},
    "Body": {"type": "string", "description": "text"},
    "Part": {"type": "string", "description": "text"},
    "HeaderCheck": {"type": "string", "description": "a header that must exist"},
}


class _AsWritten(AsWritten):
    """Allows numbers and booleans where text is sent."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        if schema["function"]["function"] is as_text:
            return {"type": ["string", "number", "boolean"]}
        return super().function_before_schema(schema)


def json_schema() -> dict[str, Any]:
    """The schema as a value. `schema/load-plan.schema.json` is a checked-in copy."""
    schema = schema_of(LoadPlan, "Partywall load plan", _AsWritten)
    for name, bare in _BARE.items():
        schema["$defs"][name] = {"anyOf": [bare, schema["$defs"][name]]}
    schema["$defs"]["Step"] |= {"minProperties": 1, "maxProperties": 1}
    schema["oneOf"] = [{"required": ["closed"]}, {"required": ["open"]}]
    return schema
