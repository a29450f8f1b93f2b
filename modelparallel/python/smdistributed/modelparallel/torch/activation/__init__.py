"""Activation checkpointing and offload: recompute activations in the backward pass, keep what they need on the host."""

from __future__ import annotations

from .placement import after_partition
from .remote import resolve
from .settings import set_activation_checkpointing

__all__ = ["after_partition", "resolve", "set_activation_checkpointing"]
