"""Splits PyTorch models over devices by itself and trains them as a pipeline."""

import torch  # noqa: F401  (before _core, which links to its libraries)

from ._core import __version__
from .capture_model import capture
from .captured_model import CapturedModel
from .executor import Executor, StepResult
from .plan import Plan, load_plan, plan
from .save import save
from .trace import CaptureError

__all__ = [
    "CaptureError",
    "CapturedModel",
    "Executor",
    "Plan",
    "StepResult",
    "__version__",
    "capture",
    "load_plan",
    "plan",
    "save",
]
