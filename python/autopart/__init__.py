"""Splits PyTorch models over devices by itself and trains them as a pipeline."""

from .capture import CaptureError
from .executor import Executor, StepResult
from .plan import Plan, load_plan, plan
from .save import save

__all__ = ["CaptureError", "Executor", "Plan", "StepResult", "load_plan", "plan", "save"]
