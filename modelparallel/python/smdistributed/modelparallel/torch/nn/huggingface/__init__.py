"""The transformers of Hugging Face as distributed modules; transformers itself is imported only when one is met."""

from __future__ import annotations

from . import bert, gpt2, gptj, gptneo, gptneox, roberta, t5, vit
from .hooks import Family, encoder_hooks, layer_hooks, model_hooks
from .keys import Translations, in_place

FAMILIES: tuple[tuple[Family, Translations], ...] = (
    (bert.FAMILY, (bert.translate_state_dict_to_hf_bert, bert.translate_hf_state_dict_to_smdistributed_bert)),
    (
        roberta.FAMILY,
        (roberta.translate_state_dict_to_hf_roberta, roberta.translate_hf_state_dict_to_smdistributed_roberta),
    ),
    (gpt2.FAMILY, (gpt2.translate_state_dict_to_hf_gpt2, gpt2.translate_hf_state_dict_to_smdistributed_gpt2)),
    (gptj.FAMILY, (gptj.translate_state_dict_to_hf_gptj, gptj.translate_hf_state_dict_to_smdistributed_gptj)),
    (gptneo.FAMILY, (gptneo.translate_state_dict_to_hf_gptneo, gptneo.translate_hf_state_dict_to_smdistributed_gptneo)),
    (
        gptneox.FAMILY,
        (gptneox.translate_state_dict_to_hf_gptneox, gptneox.translate_hf_state_dict_to_smdistributed_gptneox),
    ),
    (vit.FAMILY, (vit.translate_state_dict_to_hf_vit, vit.translate_hf_state_dict_to_smdistributed_vit)),
)
_OF_LAYERS: dict[str, Translations] = {
    bert.FAMILY.module: in_place(lambda: bert.NAMES),
    roberta.FAMILY.module: in_place(lambda: bert.NAMES),
    gpt2.FAMILY.module: (
        gpt2.translate_layer_state_dict_to_hf_gpt2_block,
        gpt2.translate_hf_block_state_dict_to_smdistributed,
    ),
    gptj.FAMILY.module: in_place(lambda: gptj.NAMES),
    gptneo.FAMILY.module: in_place(lambda: gptneo.NAMES),
    gptneox.FAMILY.module: in_place(lambda: gptneox.NAMES, gptneox.heads_of_model),
    vit.FAMILY.module: in_place(vit.names_of_installed),
}

__all__ = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "register", "roberta", "t5", "translations_of", "vit"]


def register(module_cls: type) -> None:
    """Registers the counterpart of this class of transformers, if the library has one."""
    from ...tp.registry import Counterpart, add
    from ..lm_head import DistributedTransformerLMHead
    from ..transformer import DistributedTransformer, DistributedTransformerLayer

    for family, _ in FAMILIES:
        if family.module != module_cls.__module__:
            continue
        if module_cls.__name__ == family.layer:
            add(module_cls, Counterpart(DistributedTransformerLayer, *layer_hooks(family)))
        elif module_cls.__name__ == family.encoder:
            add(module_cls, Counterpart(DistributedTransformer, *encoder_hooks(family)))
        elif module_cls.__name__ == family.model:
            counterpart = Counterpart(DistributedTransformerLMHead, *model_hooks(family), return_hook_takes_inputs=True)
            add(module_cls, counterpart)


def translations_of(module_cls: type) -> Translations | None:
    """The state_dict translations, to and from Hugging Face, of a model in which this class is distributed."""
    for family, functions in FAMILIES:
        if family.module == module_cls.__module__:
            if module_cls.__name__ in (family.model, family.encoder):
                return functions
            if module_cls.__name__ == family.layer:
                return _OF_LAYERS[family.module]
    return None
