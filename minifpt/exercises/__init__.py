"""Exercises that check themselves: ``check("softmax_backward", my_function)``; see ``engine``."""

from .engine import (
    EXERCISES,
    Case,
    as_mask,
    check,
    check_solutions,
    close_to,
    either,
    exercise,
    fails,
    load_exercises,
    require,
)

__all__ = ["EXERCISES", "Case", "as_mask", "check", "check_solutions", "close_to", "either",
           "exercise", "fails", "load_exercises", "require"]
