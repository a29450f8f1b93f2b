"""What an API server would have against an object: native kinds by kubernetes-validate, operators' by their own CRDs.

The CRDs (Apache-2.0) are in no package: they are read from a folder beside this checkout, or the one that
SHOAL_CRD_SCHEMAS names.
"""

import functools
import os
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

_FOLDER = Path(os.environ.get("SHOAL_CRD_SCHEMAS", str(Path(__file__).parents[4] / "shared" / "schemas")))
_FILES = {"MPIJob": "crd-mpijobs.yaml", "PyTorchJob": "crd-pytorchjobs.yaml", "TrainJob": "crd-trainjobs.yaml"}
_KUBERNETES = "1.34"


def has(kind: str) -> bool:
    """Whether objects of a kind can be checked here."""
    return kind not in _FILES or (_FOLDER / _FILES[kind]).is_file()


def problem(value: dict[str, Any]) -> str | None:
    """Return what is wrong with an object, if anything is."""
    kind = value["kind"]
    try:
        if kind not in _FILES:
            kubernetes_validate.validate(value, _KUBERNETES, strict=True)
        else:
            jsonschema.Draft7Validator(_schema(kind, value["apiVersion"])).validate(value)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        return f"{kind}: {'.'.join(map(str, error.path))}: {error.message}"
    return None


@functools.cache
def _schema(kind: str, version: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd = yaml.load((_FOLDER / _FILES[kind]).read_text(), Loader=loader)
    group = crd["spec"]["group"]
    found = [each for each in crd["spec"]["versions"] if version == f"{group}/{each['name']}"]
    assert found, f"{kind} has no version {version}"
    schema: dict[str, Any] = _strict(found[0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # the API server's own, not in the CRD
    return schema


def _strict(schema: Any) -> Any:
    """As JSON Schema: unknown fields are refused, and Kubernetes' extensions are said in its words."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _strict(value) for key, value in schema.items()}
    if changed.get("x-kubernetes-int-or-string"):
        changed.pop("type", None)
        changed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    closed = isinstance(changed.get("properties"), dict) and changed.get("type") == "object"
    if closed and not changed.get("x-kubernetes-preserve-unknown-fields"):
        changed.setdefault("additionalProperties", False)
    return changed
