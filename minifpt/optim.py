"""Adam, gradient clipping, learning-rate schedules."""

import math
from collections.abc import Iterable

import numpy as np

from . import fast
from .checks import brief, gradient, number, whole


class Adam:
    """Adam (Kingma, Ba 2014, arXiv 1412.6980), whose formula is :func:`minifpt.functional.adam`.

    With decoupled weight decay (AdamW; Loshchilov, Hutter 2017, arXiv 1711.05101) a step also
    subtracts ``lr * weight_decay * x``.

    ``parameters`` is a list of ``Parameter``; those without a gradient are skipped.  All share t,
    so one that is unfrozen later would be corrected wrongly: make a new Adam then.  Weight decay
    applies to matrices only, not to scales and biases.  Raises ``ValueError`` for settings out of
    range.
    """

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        self.parameters = _distinct("Adam", parameters)
        if not (isinstance(betas, (tuple, list)) and len(betas) == 2):
            raise ValueError(f"Adam: the betas are {brief(betas)}, expected two below 1")
        self.betas = tuple(number("Adam", "a beta", b, zero=True, most=1 - 1e-9) for b in betas)
        self.lr, self.eps = number("Adam", "lr", lr), number("Adam", "eps", eps)
        self.weight_decay = number("Adam", "weight_decay", weight_decay, zero=True)
        self.t = 0
        self.m = [None] * len(self.parameters)
        self.v = [None] * len(self.parameters)

    def step(self):
        """Update every parameter that has a gradient, in place."""
        if self.weight_decay and any(getattr(p, "frozen_columns", ()) for p in self.parameters):
            raise ValueError("Adam: weight decay would change frozen columns, expected "
                             "weight_decay=0 or a mask of whole parameters")
        states = []
        for i, p in enumerate(self.parameters):
            if p.grad is None:
                continue
            if self.m[i] is None:
                self.m[i], self.v[i] = np.zeros_like(p.data), np.zeros_like(p.data)
            if getattr(p.grad, "shape", None) != p.data.shape or p.grad.dtype != p.data.dtype:
                gradient("Adam", p.grad, p.data.shape)
            states.append((p.data, p.grad, self.m[i], self.v[i]))
        self.t += 1                                       # not of a step that was refused
        self.update(states)

    def update(self, states):
        """Update arrays x in place: ``states`` is a list of (x, its gradient, m, v)."""
        fast.adam(states, self.t, self.lr, self.betas, self.eps,
                  shrink=1 - self.lr * self.weight_decay)


def _distinct(where, parameters):
    """Return the parameters as a list without repetitions.  Raises ``ValueError`` for others."""
    distinct = list({id(p): p for p in (
        parameters if isinstance(parameters, Iterable) else [parameters])}.values())
    if not all([hasattr(p, "grad") for p in distinct]):
        raise ValueError(f"{where}: the parameters are {brief(parameters)}, expected a list of "
                         "Parameter, such as model.parameters()")
    return distinct


def clip_grad_norm(parameters, max_norm):
    """Scale all gradients so that their joint norm is at most ``max_norm``.

    Returns the norm before scaling, ``sqrt(sum of all squares)``, as a float.
    """
    if not isinstance(max_norm, float) or max_norm != math.inf:     # infinity only measures
        max_norm = number("clip_grad_norm", "max_norm", max_norm)
    parameters = [p for p in _distinct("clip_grad_norm", parameters) if p.grad is not None]
    for p in parameters:
        if getattr(p.grad, "shape", None) != p.data.shape or p.grad.dtype != p.data.dtype:
            gradient("clip_grad_norm", p.grad, p.data.shape)
    squares = [float(np.vdot(p.grad, p.grad)) for p in parameters]
    # Again in float64 where float32 overflows or loses small numbers.
    squares = [s if 1e-30 < s < math.inf else float(np.vdot(p.grad, p.grad.astype(np.float64)))
               for s, p in zip(squares, parameters, strict=True)]
    norm = math.sqrt(sum(squares))
    if norm > max_norm:
        for p in parameters:                              # not in place: two may share an array
            p.grad = p.grad * (max_norm / norm)
    return norm


def cosine(step, steps, warmup=0, floor=0.1):
    """Return the factor on the learning rate at ``step`` of ``steps``: linear warm-up, then half
    a cosine from 1 down to ``floor`` (Loshchilov, Hutter 2016, arXiv 1608.03983)."""
    steps, warmup = whole("cosine", "steps", steps, 0), whole("cosine", "warmup", warmup, 0)
    step, floor = whole("cosine", "step", step, 0, steps), number("cosine", "floor", floor, True)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)   # from 0 at the warm-up's end to 1
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
