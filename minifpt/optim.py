"""Adam, gradient clipping, learning-rate schedules."""

import math

import numpy as np


class Adam:
    """Adam (Kingma, Ba 2014, arXiv 1412.6980), with decoupled weight decay when asked
    (AdamW; Loshchilov, Hutter 2017, arXiv 1711.05101)::

        m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
        x = x - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) - lr * weight_decay * x

    parameters is a list of ``Parameter``; one without a gradient is skipped.  Weight decay
    applies to matrices only, not to scales and offsets.
    """

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        self.parameters = list(parameters)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.t = 0
        self.m = [None] * len(self.parameters)
        self.v = [None] * len(self.parameters)

    def step(self):
        """Update every parameter that has a gradient, in place."""
        self.t += 1
        b1, b2 = self.betas
        size = self.lr / (1 - b1 ** self.t)
        root = 1 / math.sqrt(1 - b2 ** self.t)
        for i, p in enumerate(self.parameters):
            if p.grad is None:
                continue
            if self.m[i] is None:
                self.m[i] = np.zeros_like(p.data)
                self.v[i] = np.zeros_like(p.data)
            g, m, v = p.grad, self.m[i], self.v[i]
            m *= b1
            m += (1 - b1) * g
            v *= b2
            v += (1 - b2) * g * g
            if self.weight_decay and p.data.ndim > 1:
                p.data *= 1 - self.lr * self.weight_decay
            update = np.sqrt(v)
            update *= root
            update += self.eps
            np.divide(m, update, out=update)
            update *= size
            p.data -= update


def clip_grad_norm(parameters, max_norm):
    """Scale all gradients so that their common norm is at most ``max_norm``.

    Returns the norm before, ``sqrt(sum of all squares)``, a float.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(float(np.vdot(g, g)) for g in grads))
    if norm > max_norm:
        for g in grads:
            g *= max_norm / norm
    return norm


def cosine(step, steps, warmup=0, floor=0.1):
    """Factor on the learning rate at ``step`` of ``steps``: linear warm-up, then half a
    cosine from 1 down to ``floor`` (Loshchilov, Hutter 2016, arXiv 1608.03983)."""
    if step < warmup:
        return (step + 1) / warmup
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
