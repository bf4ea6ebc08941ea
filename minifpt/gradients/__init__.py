"""Gradient checks: the check (``check``), the diagnosis of a wrong gradient (``diagnosis``) and the
examples on which operations are checked (``examples``)."""

from . import examples
from .check import GradcheckReport, assert_gradients, gradcheck

__all__ = ["GradcheckReport", "assert_gradients", "examples", "gradcheck"]
