"""The JSON schema of a job file, for editors: made from the service's own model, as `shoal validate` checks by it.

An editor with it completes names and marks what is wrong while one types. `shoal validate` remains the judge: rules
that span several fields, and patterns that not every editor can read, are in the latter only.
"""

from typing import Any

from shoal.job import distribution
from shoal.job.shape import Rules
from shoal.job.spec import RULES, operation_shape

_TYPES = {
    "string": "string",
    "integer": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "boolean": "boolean",
    "timestamp": "string",
}
_LENGTHS = {
    "string": ("minLength", "maxLength"),
    "list": ("minItems", "maxItems"),
    "map": ("minProperties", "maxProperties"),
}
_RANGE = ("minimum", "maximum")


def job_schema() -> dict[str, Any]:
    """Return the schema (draft 07) of a job file."""
    definitions: dict[str, Any] = {}
    root = operation_shape("CreateTrainingJob", "input")
    _define(root, RULES, definitions)
    top = definitions.pop(root.name)
    top["properties"][distribution.FIELD] = distribution.schema()
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A CreateTrainingJob request, as `shoal run` takes it",
        **top,
        "definitions": dict(sorted(definitions.items())),
    }


def _define(shape: Any, rules: Rules, definitions: dict[str, Any]) -> dict[str, str]:
    """Put a shape's schema among the definitions; return the reference to it."""
    if shape.name not in definitions:
        definitions[shape.name] = {}  # a shape may contain itself
        definitions[shape.name] = _schema(shape, rules, definitions)
    return {"$ref": f"#/definitions/{shape.name}"}


def _schema(shape: Any, rules: Rules, definitions: dict[str, Any]) -> dict[str, Any]:
    bounds = _bounds(shape, rules)
    if shape.type_name == "structure":
        return {
            "type": "object",
            "properties": {name: _define(member, rules, definitions) for name, member in shape.members.items()},
            **({"required": list(shape.required_members)} if shape.required_members else {}),
            "additionalProperties": False,
        }
    if shape.type_name == "map":
        keys = _define(shape.key, rules, definitions)
        values = _define(shape.value, rules, definitions)
        return {"type": "object", "propertyNames": keys, "additionalProperties": values, **bounds}
    if shape.type_name == "list":
        return {"type": "array", "items": _define(shape.member, rules, definitions), **bounds}
    schema = {"type": _TYPES[shape.type_name], **bounds}
    if choices := shape.metadata.get("enum"):
        schema["enum"] = list(choices)
    elif pattern := _pattern(shape):
        schema["pattern"] = pattern
    return schema


def _bounds(shape: Any, rules: Rules) -> dict[str, int]:
    names = _LENGTHS.get(shape.type_name, _RANGE)
    bounds = zip(names, (rules.minimum(shape), shape.metadata.get("max")), strict=True)
    return {name: bound for name, bound in bounds if bound is not None}


def _pattern(shape: Any) -> str | None:
    """Return a shape's pattern in JavaScript's words; none where it has none or cannot be said in them."""
    pattern = shape.metadata.get("pattern")
    if shape.name == "S3Uri":
        return f"^(?:{pattern}|file://.*)$"
    if pattern is None:
        return None
    pattern = pattern.replace(r"\p{Alnum}", "a-zA-Z0-9")
    return None if r"\p{" in pattern else f"^(?:{pattern})$"
