"""Splits PyTorch models over devices by itself and trains them as a pipeline."""

from .capture import CaptureError
from .save import save

__all__ = ["CaptureError", "save"]
