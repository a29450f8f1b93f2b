"""The container side of a training job: `train`. Standard library only; it never imports torch."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
