"""An optimizer's part of the state: of a distributed optimizer, or of any torch optimizer over this rank's parameters.

Every rank's optimizer has all parameters of the model, those of other ranks empty: so the numbers in a state_dict mean
the same on all ranks, and the state of the whole job is the union of the ranks' states.
"""

from __future__ import annotations

from typing import Any

PARTIAL = "_smp_is_partial"


def local(optimizer: Any, *, sharded: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """This rank's state_dict, and that of its FP16 machinery where it has some.

    sharded: replicas hold different pieces; each gives its own.
    """
    if not hasattr(optimizer, "local_state_dict"):
        return {**optimizer.state_dict(), PARTIAL: True}, None
    own = optimizer.local_state_dict(gather_if_shard=not sharded)
    has_fp16 = hasattr(optimizer, "local_fp16_state_dict")
    return own, optimizer.local_fp16_state_dict() if has_fp16 else None


def load(optimizer: Any, own: dict[str, Any] | None, fp16: dict[str, Any] | None) -> None:
    """Load what `local` gave; None for what is not to be loaded."""
    if own is not None:
        if hasattr(optimizer, "local_state_dict"):
            optimizer.load_state_dict(own)
        else:
            optimizer.load_state_dict({key: value for key, value in own.items() if key != PARTIAL})
    if fp16 is not None and hasattr(optimizer, "load_local_fp16_state_dict"):
        optimizer.load_local_fp16_state_dict(fp16)


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of the whole job from those of all its pipeline ranks."""
    whole = {key: value for key, value in states[0].items() if key != PARTIAL}
    whole["state"] = {}
    for one in states:
        whole["state"].update(one["state"])
    return whole
