"""The step page: one training step to step through."""

from .page import Steps, of_task, steps

__all__ = ["Steps", "of_task", "steps"]
