"""T5: distributed by its linear maps and embeddings, so its state_dicts have the names of the plain model.

Its blocks have relative position biases and normalizations that the transformer layers of smp.nn do not.
"""

from __future__ import annotations

from .keys import StateDict


def translate_state_dict_to_hf_t5(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a distributed T5 as one of the plain model: the same keys. max_seq_len: of no effect."""
    del max_seq_len
    return dict(state_dict)


def translate_hf_state_dict_to_smdistributed_t5(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A state_dict of a plain T5 as one that the distributed model loads: the same keys."""
    del max_seq_len
    return dict(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_t5
