"""Splits PyTorch models over devices by itself and trains them as a pipeline."""

import torch  # noqa: F401  (before _core, which links to its libraries)

from ._core import __version__
from .capture import CaptureError
from .executor import Executor, StepResult
from .plan import Plan, load_plan, plan
from .save import save

__all__ = [
    "CaptureError",
    "Executor",
    "Plan",
    "StepResult",
    "__version__",
    "load_plan",
    "plan",
    "save",
]
