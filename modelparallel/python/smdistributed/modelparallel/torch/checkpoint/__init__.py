"""Checkpoints: single files (save, load), and folders of a whole job (save_checkpoint, resume_from_checkpoint)."""

from __future__ import annotations

from .files import load, save
from .resuming import resume_from_checkpoint
from .saving import save_checkpoint

__all__ = ["load", "resume_from_checkpoint", "save", "save_checkpoint"]
