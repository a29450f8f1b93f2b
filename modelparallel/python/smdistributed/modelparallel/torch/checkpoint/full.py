"""A full checkpoint: one file with the whole model, as the plain module's state_dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from ..exceptions import CheckpointError
from ..state import state
from . import names, optimizer_state
from .reading import read_object

# What the Hugging Face Trainer asks for, and what it writes in its place by default.
_SAFETENSORS = {"pytorch_model.bin": "model.safetensors"}


def read(
    path: Path, name: str, translate_function: Callable[[dict[str, Any]], dict[str, Any]] | None
) -> tuple[dict[str, Any], Any]:
    """The state_dict in the full checkpoint `name`, translated to this model's keys, and its user_content (or None)."""
    whole = _read(path, name)
    if translate_function is not None:
        whole = translate_function(whole)
    else:
        for _, theirs_to_ours in reversed(state.module_manager.translate_functions):
            whole = theirs_to_ours(whole)
    content = path / names.user_content_of_full(name)
    return whole, read_object(content, map_location="cpu", weights_only=False) if content.exists() else None


def _read(path: Path, name: str) -> dict[str, Any]:
    file = path / name
    other = path / _SAFETENSORS.get(name, name)
    if not file.exists() and other.exists() and other != file:
        from safetensors.torch import load_file

        found: dict[str, Any] = load_file(str(other))
        return found
    if file.is_dir() or (not file.exists() and (path / (name + names.PARTIAL)).exists()):
        raise CheckpointError(f"{file} is not a full checkpoint, which is one file: pass partial=True, or another tag")
    found = read_object(file, map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds a {type(found).__name__}, not the state_dict of a model")
    return {key: value for key, value in found.items() if key != optimizer_state.PARTIAL}


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole state_dict from the parts of all pipeline ranks."""
    return {key: value for one in states for key, value in one.items() if key != optimizer_state.PARTIAL}


def with_tied(whole: dict[str, Any], module: Any) -> dict[str, Any]:
    """The state_dict with every name of a parameter that has several: some writers keep only one of them."""
    named: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        named.setdefault(id(parameter), []).append(name)
    result = dict(whole)
    for aliases in named.values():
        known = next((name for name in aliases if name in whole), None)
        if known is not None:
            result.update({name: whole[known] for name in aliases if name not in whole})
    return result
