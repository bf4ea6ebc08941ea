"""Adam, gradient clipping, learning-rate schedules."""

import math
from collections.abc import Iterable

import numpy as np

from .checks import brief, gradient, number, whole
from .machine import share

MAX_JOINED = 1 << 15         # smaller parameters are updated together, as one array
BLOCK = 1 << 18              # numbers updated at once: they fit into a core's cache


class Adam:
    """Adam (Kingma, Ba 2014, arXiv 1412.6980).  At step t = 1, 2, ... with the gradient g::

        m = b1 * m + (1 - b1) * g                         a running mean of the gradients
        v = b2 * v + (1 - b2) * g^2                       and of their squares
        x = x - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    m and v start at 0, so at step t they have ``1 - b1^t`` and ``1 - b2^t`` of their size.  With
    decoupled weight decay (AdamW; Loshchilov, Hutter 2017, arXiv 1711.05101) a step also subtracts
    ``lr * weight_decay * x``.

    ``parameters`` is a list of ``Parameter``; those without a gradient are skipped.  t counts the
    steps of all: after a change of the mask make a new Adam.  Weight decay applies to matrices
    only, not to scales and biases.  Raises ``ValueError`` for settings out of range.
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
        small, pieces = [], []                            # updated as one array, and on all cores
        for i, p in enumerate(self.parameters):
            if p.grad is None:
                continue
            if self.m[i] is None:
                self.m[i], self.v[i] = np.zeros_like(p.data), np.zeros_like(p.data)
            if getattr(p.grad, "shape", None) != p.data.shape or p.grad.dtype != p.data.dtype:
                gradient("Adam", p.grad, p.data.shape)
            shrink = 1 - self.lr * self.weight_decay if p.data.ndim > 1 else 1.0
            arrays = p.data, p.grad, self.m[i], self.v[i]
            if p.data.size < MAX_JOINED and shrink == 1:
                small.append(i)
            elif not all(a.flags.c_contiguous for a in arrays):
                pieces.append((arrays, shrink))
            else:
                flat = [a.reshape(-1) for a in arrays]
                pieces += [([a[n:n + BLOCK] for a in flat], shrink)
                           for n in range(0, p.data.size, BLOCK)]
        self.t += 1                                       # not of a step that was refused
        self._update_joined(small)
        share(lambda piece: self._update(*piece), pieces)

    def _update_joined(self, small):
        """Update small parameters as one flat array.

        Each update is a dozen calls of NumPy, and a call takes longer than its work on a few
        hundred numbers.
        """
        if not small:
            return
        parameters = [self.parameters[i] for i in small]
        x, g, m, v = (np.concatenate([a.reshape(-1) for a in arrays]) for arrays in (
            [p.data for p in parameters], [p.grad for p in parameters],
            [self.m[i] for i in small], [self.v[i] for i in small]))
        self._update((x, g, m, v))
        start = 0
        for i, p in zip(small, parameters, strict=True):
            here, shape = slice(start, start + p.data.size), p.data.shape
            p.data[...] = x[here].reshape(shape)
            self.m[i], self.v[i] = m[here].reshape(shape), v[here].reshape(shape)
            start += p.data.size

    def _update(self, arrays, shrink=1.0):
        """Apply the formula in place, to arrays that fit into a core's cache; x is multiplied by
        ``shrink`` first."""
        x, g, m, v = arrays
        b1, b2 = self.betas
        m *= b1
        m += (1 - b1) * g
        v *= b2
        update = (1 - b2) * g
        update *= g
        v += update
        if shrink != 1.0:                                 # weight decay
            x *= shrink
        np.sqrt(v, out=update)
        update *= 1 / math.sqrt(1 - b2 ** self.t)
        update += self.eps
        np.divide(m, update, out=update)
        update *= self.lr / (1 - b1 ** self.t)
        x -= update


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
