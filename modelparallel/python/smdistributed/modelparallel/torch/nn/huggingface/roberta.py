"""RoBERTa: its layers and its encoder as distributed modules, and its state_dicts. Its layers are those of BERT."""

from __future__ import annotations

from .bert import NAMES, layer_options
from .hooks import Family, Hooks, encoder_hooks, layer_hooks
from .keys import StateDict

FAMILY = Family("transformers.models.roberta.modeling_roberta", "RobertaLayer", layer_options, encoder="RobertaEncoder")


def get_hf_roberta_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register RobertaLayer with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_roberta_transformer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register RobertaEncoder with DistributedTransformer."""
    return encoder_hooks(FAMILY)


def translate_state_dict_to_hf_roberta(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a RoBERTa with a distributed encoder as one of the plain model. max_seq_len: of no
    effect."""
    del max_seq_len
    return NAMES.to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_roberta(
    state_dict: StateDict, max_seq_len: int | None = None
) -> StateDict:
    """A state_dict of a plain RoBERTa as one that the model with a distributed encoder loads."""
    del max_seq_len
    return NAMES.to_ours(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_roberta
translate_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_roberta
