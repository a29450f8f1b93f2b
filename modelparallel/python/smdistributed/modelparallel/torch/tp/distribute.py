"""Replaces the modules of a model that a script asked to distribute by their counterparts; smp.DistributedModel
calls it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import Any, ContextManager, Iterator

import torch
from torch import nn

from ..log import logger
from ..state import state
from . import births, initialize, registry
from .registry import CannotDistribute, Counterpart


def distribute(module: nn.Module) -> nn.Module:
    """`module` with its supported modules replaced, outermost first; a new module if it is supported itself.

    The weights of the new modules are drawn anew. All ranks of the tensor-parallel group must call. What is left as
    it is although it was asked for is logged, with the reason.
    """
    wished = [each for each in module.modules() if births.wish_of(each) is not None]
    if any(births.wish_of(each).enabled for each in wished):  # type: ignore[union-attr]
        with initialize.one_stream():
            work = _Distribution(module)
            module = work.visit(module, "")
        for kind in work.replaced:
            _note_translations(kind)
    births.forget(module)
    return module


class _Distribution:
    """One walk over a model."""

    def __init__(self, root: nn.Module) -> None:
        self.replaced: list[type] = []
        self._done: dict[int, nn.Module] = {}
        # Replaced modules are kept until the end: ids of what was freed could come again.
        self._originals: dict[int, nn.Module] = {}
        self._holders: dict[int, set[int]] = {}
        for each in root.modules():
            for parameter in each.parameters(recurse=False):
                self._holders.setdefault(id(parameter), set()).add(id(each))

    def visit(self, module: nn.Module, name: str) -> nn.Module:
        """What stands in the place of `module`; a module used in several places is replaced by one in all of them."""
        if id(module) in self._done:
            return self._done[id(module)]
        self._originals[id(module)] = module
        found = self._replacement(module, name)
        if found is None:
            found = self._done[id(module)] = module
            if not isinstance(module, _distributed()):
                for key, child in list(module._modules.items()):
                    if child is not None:
                        module._modules[key] = self.visit(child, f"{name}.{key}" if name else key)
        self._done[id(module)] = found
        return found

    def _replacement(self, module: nn.Module, name: str) -> nn.Module | None:
        wish = births.wish_of(module)
        if wish is None or not wish.enabled:
            return None
        counterpart = registry.find(type(module))
        if counterpart is None:
            return None
        try:
            arguments = self._arguments(module, counterpart, wish.arguments)
            self._check_whole(module)
        except CannotDistribute as reason:
            logger.info("smp: %s (%s) is not distributed: %s", name or "the model", type(module).__name__, reason)
            return None
        with _as_original(module):
            made = counterpart.dist_module(**arguments)
        _take_over(made, module, counterpart)
        self.replaced.append(type(module))
        return made

    def _arguments(self, module: nn.Module, counterpart: Counterpart, wished: dict[str, Any]) -> dict[str, Any]:
        args, kwargs = counterpart.arguments(module)
        signature = inspect.signature(counterpart.dist_module)
        bound = signature.bind(*args, **kwargs)
        arguments = dict(bound.arguments)
        more = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        if more is not None:
            arguments.update(arguments.pop(more, {}))
        arguments.update({key: value for key, value in wished.items() if _takes(signature, more, key)})
        reason = counterpart.dist_module.obstacle(**arguments)  # type: ignore[attr-defined]
        if reason:
            raise CannotDistribute(reason)
        return arguments

    def _check_whole(self, module: nn.Module) -> None:
        inside = {id(each) for each in module.modules()}
        for key, parameter in module.named_parameters():
            if not self._holders[id(parameter)] <= inside:
                raise CannotDistribute(f"it shares {key!r} with a module outside it")


def _takes(signature: inspect.Signature, more: str | None, name: str) -> bool:
    from ..nn.options import OPTION_NAMES

    return name in signature.parameters or (more is not None and name in OPTION_NAMES)


def _distributed() -> type:
    from ..nn.module import DistributedModule

    return DistributedModule


def _note_translations(kind: type) -> None:
    if kind.__module__.startswith("transformers.models."):
        from ..nn import huggingface

        known = state.module_manager.translate_functions
        found = huggingface.translations_of(kind)
        if found is not None and found not in known:
            known.append(found)


@contextlib.contextmanager
def _as_original(module: nn.Module) -> Iterator[None]:
    """Within, parameters are created of the original's type, and delayed if the original's are; with fp16_params of
    float16."""
    parameters = [one for one in module.parameters() if one.is_floating_point()]
    delay: ContextManager[Any] = contextlib.nullcontext()
    if any(one.is_meta for one in parameters):
        delay = importlib.import_module("..partition.delayed_init", __package__).delay_param_initialization()
    before = torch.get_default_dtype()
    if parameters:
        torch.set_default_dtype(torch.float16 if state.cfg.fp16_params else parameters[0].dtype)
    try:
        with delay:
            yield
    finally:
        torch.set_default_dtype(before)


def _take_over(made: nn.Module, original: nn.Module, counterpart: Counterpart) -> None:
    """Gives the new module what the original was otherwise: mode, device, placement, frozen or not, and its
    interface."""
    made.train(original.training)
    parameters = list(original.parameters())
    if parameters and not any(one.is_meta for one in parameters):
        made.to(parameters[0].device)
    if parameters and not any(one.requires_grad for one in parameters):
        made.requires_grad_(False)
    if "_smp_partition" in original.__dict__:
        for each in made.modules():
            each.__dict__["_smp_partition"] = original.__dict__["_smp_partition"]
    if hasattr(original, "config"):
        made.config = original.config  # clients of transformers read it
    forward_hook, return_hook = counterpart.forward_hook, counterpart.return_hook
    if forward_hook is not None:
        made.register_forward_pre_hook(
            lambda _, args, kwargs: registry.translated(forward_hook, "forward_hook", args, kwargs), with_kwargs=True
        )
    if return_hook is not None:
        more = counterpart.return_hook_takes_inputs
        made.register_forward_hook(lambda _, args, output: return_hook(output, *args if more else ()))
