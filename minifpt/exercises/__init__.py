"""Exercises that check themselves: ``check("softmax_backward", my_function)``; see ``engine``."""

from .engine import (
    EXERCISES,
    Case,
    Wrong,
    check,
    check_solutions,
    close_to,
    either,
    exercise,
    load_exercises,
    require,
)

__all__ = ["EXERCISES", "Case", "Wrong", "check", "check_solutions", "close_to", "either",
           "exercise", "load_exercises", "require"]
