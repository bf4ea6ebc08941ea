"""Lesson 12, optimisers."""

import math

import numpy as np

from . import Case, close_to, either, exercise, part


@exercise
def largest_rate(rng):
    def case(n):
        Q, _ = np.linalg.qr(rng.standard_normal((n, n)))
        curvature = np.cumsum(rng.uniform(0.5, 3, n)) * rng.uniform(0.5, 5)
        H = Q * curvature @ Q.T
        H = (H + H.T) / 2
        top = curvature[-1]
        return Case((H,), 2 / top, {
            "at that rate one step lands on the minimum along the steepest direction; with twice "
            "as much the steps only just do not grow": 1 / top,
            "that is for the flattest direction; the steepest one diverges first":
                2 / curvature[0],
            "the diagonal holds the curvatures only where the valley lies along the axes: turn to "
            "the eigenvalues": close_to(
                *(2 / reduce(np.diag(H)) for reduce in (np.max, np.min, np.mean))),
            "that is the sum of all curvatures; each direction moves alone": 2 / np.trace(H),
            "that is the length of the whole matrix; the largest eigenvalue decides":
                2 / np.linalg.norm(H),
            "no entry of H is a curvature: turn to the eigenvalues": 2 / np.abs(H).max(),
            "that is a mean curvature; the steepest direction diverges first":
                2 / curvature.mean(),
            "that is the curvature; the rate is 2 divided by it":
                close_to(top / 2, top, 2 * top),
            "the best rate of all is smaller; where does it begin to diverge?":
                2 / (top + curvature[0]),
        }, about="Along an eigenvector of H with eigenvalue h, a step multiplies x by 1 - lr h.",
            rtol=1e-5)

    for n in rng.permutation([3, 4, 5]):
        yield case(n)


@exercise
def adamw_step(rng):
    n = int(rng.integers(4, 7))
    x, g, m = rng.standard_normal((3, n))
    g[0] = rng.choice([-1, 1]) * rng.uniform(0.005, 0.02)  # where eps matters
    v = rng.uniform(0.1, 2, n) * g ** 2
    lr, decay, eps = rng.uniform(0.05, 0.2), rng.uniform(0.2, 0.6), rng.uniform(0.02, 0.05)
    b1, b2 = rng.uniform(0.7, 0.85), rng.uniform(0.9, 0.97)

    def case(t):
        m0, v0 = (0 * m, 0 * v) if t == 1 else (m, v)

        def new(m=m0, v=v0, *, t=t, b1=b1, b2=b2, g=g, c1=True, c2=True, root=np.sqrt, eps=eps,
                inside=0.0, decay=decay, rate=1.0, sign=1, old=None):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            top = (m if old is None else old) / (1 - b1 ** t if c1 else 1)
            below = root(v / (1 - b2 ** t if c2 else 1) + inside) + eps
            return x - sign * lr * top / below - lr * rate * decay * x, m, v

        new_x, new_m, new_v = new()
        shrink = lr * decay * x
        step = (x - shrink - new_x) / lr                  # Adam's, without the rate

        def not_the(i, right):
            return lambda out: len(out) == 3 and np.shape(out[i]) == (n,) and not np.allclose(
                out[i], right, rtol=1e-5)

        coupled = new(g=g + decay * x, decay=0.0)
        return Case((x, g, m0, v0, t, lr, b1, b2, eps, decay), (new_x, new_m, new_v), {
            "neither m nor v is corrected for its start at 0": new(c1=False, c2=False),
            "m is not corrected for its start at 0: divide by 1 - b1^t": new(c1=False),
            "v is not corrected for its start at 0: divide by 1 - b2^t": new(c2=False),
            "the corrected m and v are for the step only; return those without correction":
                either(part(1, new_m / (1 - b1 ** t)), part(2, new_v / (1 - b2 ** t))),
            "the correction counts from t = 1 at the first step; yours is one step late":
                new(t=t + 1),
            "the correction fades with t: 1 - b1^t, not 1 - b1": new(t=1),
            "b1 and b2 are exchanged": new(b1=b2, b2=b1),
            "the decay went into the gradient, so that m and v see it, and it is divided by the "
            "root as well; here it acts on x alone": coupled,
            "the decay is multiplied by the learning rate, too": new(rate=1 / lr),
            "the decay is missing": new(decay=0.0),
            "the decay takes the same share of each x, not the same amount": (
                new_x + shrink - lr * decay, new_m, new_v),
            "the learning rate is missing in Adam's step": (x - step - shrink, new_m, new_v),
            "the decay has the wrong sign: it makes x smaller": new(rate=-1.0),
            "the decay acts on the x that the step has moved already; take both from the old x":
                ((new_x + lr * decay * x) * (1 - lr * decay), new_m, new_v),
            "eps is added to the root, not inside of it": new(eps=0.0, inside=eps),
            "eps is missing, and one gradient is so small that it counts": close_to(
                new(eps=0.0), rtol=1e-3),
            "the root of v is missing": new(root=lambda v: v),
            "the gradient is divided by the root; divide m, which remembers":
                new(old=g * (1 - b1 ** t)),
            "the step takes the old m: update it first": new(old=m0),
            "the step goes uphill": new(sign=-1),
            "v is the mean of the squares of g": lambda out: (
                part(1, new_m)(out) and part(2, b2 * v0 + (1 - b2) * g)(out)),
            "m must be a mean: the new gradient counts 1 - b1": part(1, b1 * m0 + g),
            "m: old and new are exchanged: the old one counts b1":
                part(1, (1 - b1) * m0 + b1 * g),
            "m is not b1 m + (1 - b1) g": not_the(1, new_m),
            "v is not b2 v + (1 - b2) g^2": not_the(2, new_v),
            "m and v are right, and the new x is not": not_the(0, new_x),
        }, rtol=1e-5)

    yield case(int(rng.integers(3, 9)))
    yield case(1)


@exercise
def trapezoid(rng):
    warmup, hold, cooldown = (int(n) for n in rng.permutation([4, 7, 9]) + rng.integers(0, 3))
    steps = warmup + hold + cooldown
    inside = int(rng.integers(1, cooldown - 1))

    def case(step, where):
        to_go = steps - step
        right = min(1.0, (step + 1) / warmup, to_go / (cooldown + 1))

        def near(value):
            """A known mistake's value, where it is not the right one by chance."""
            return lambda out: abs(value - right) > 1e-9 and np.isclose(out, value, atol=1e-9)

        return Case((step, steps, warmup, cooldown), right, {
            "the first step would not move at all: step 0 has the factor 1 / warmup":
                near(min(1.0, step / warmup, to_go / (cooldown + 1))),
            "the warm-up is missing": near(min(1.0, to_go / (cooldown + 1))),
            "the cool-down is missing": near(min(1.0, (step + 1) / warmup)),
            "the cool-down reaches 0 at the last step, which then moves nothing: it would be 0 one "
            "step later": near(min(1.0, (step + 1) / warmup, (to_go - 1) / cooldown)),
            "the cool-down begins one step late: its first step is below 1 already":
                near(min(1.0, (step + 1) / warmup, to_go / cooldown)),
            "the factor falls from the end of the warm-up on; it stays at 1 until the cool-down":
                near(min(1.0, (step + 1) / warmup, to_go / (steps - warmup + 1))),
            "warm-up and cool-down are exchanged":
                near(min(1.0, (step + 1) / cooldown, to_go / (warmup + 1))),
            "the factor never exceeds 1": lambda out: np.ndim(out) == 0 and out > 1 + 1e-9,
            "the factor is never negative": lambda out: np.ndim(out) == 0 and out < 0,
            "that is one cosine; here the cool-down is a straight line": near(
                min((step + 1) / warmup, 0.5 + 0.5 * math.cos(
                    math.pi * max(0, step - warmup) / (steps - warmup)))),
        }, about=f"It is wrong at {where}: step {step} of {steps}, {warmup} of warm-up and "
                 f"{cooldown} of cool-down.")

    for step, where in ((0, "the first step"), (warmup - 1, "the last step of the warm-up"),
                        (warmup // 2, "a step of the warm-up"), (warmup, "the first step at 1"),
                        (warmup + hold - 1, "the last step at 1"),
                        (steps - cooldown + inside, "a step of the cool-down"),
                        (steps - cooldown, "the first step of the cool-down"),
                        (steps - 1, "the last step")):
        yield case(step, where)


@exercise
def best_rate(rng):
    def case(edge, diverged):
        n = 5
        rates = np.sort(np.exp(rng.uniform(-8, -1, n)))
        best = {0: int(rng.integers(1, n - 1)), 1: n - 1, -1: 0}[edge]
        if diverged:                                      # then the best is not at an edge
            best = n - 2
        accuracy = rng.uniform(0.2, 0.4, (n, 1)) + rng.uniform(-0.02, 0.02, (n, 3))
        # The best mean, 0.62, has neither the best run nor the best worst or middle run.
        accuracy[best] = rng.permutation([0.9, 0.5, 0.46]) + rng.uniform(-0.02, 0.02, 3)
        lucky, steady = (int(i) for i in rng.permutation([
            i for i in range(n) if i != best and not (diverged and i == n - 1)])[:2])
        accuracy[lucky] = rng.permutation([0.95, 0.3, 0.1]) + rng.uniform(-0.02, 0.02, 3)
        accuracy[steady] = 0.56 + rng.uniform(-0.02, 0.02, 3)
        if diverged:                                      # 0.66 if NaN is taken for 0
            accuracy[n - 1] = rng.permutation([np.nan, 0.98, 0.99])
        order = rng.permutation(n)
        while order[0] == best or order[-1] == best:      # in no order, the best not at an end
            order = rng.permutation(n)
        rates, accuracy = rates[order], accuracy[order]
        at = [float(rates[list(order).index(i)]) for i in range(n)]      # by size

        def first(value):
            return lambda out: np.isclose(float(out[0]), value)

        def second(out):
            return bool(out[1]) != bool(edge)

        return Case((rates, accuracy), (at[best], bool(edge)), {
            "return the rate and whether it lies at the edge of the sweep":
                lambda out: len(out) != 2,
            "a rate at which a run diverged does not count, however good the others are":
                lambda out: bool(diverged) and first(at[n - 1])(out),
            "that rate has the best single run, but not the best mean over the seeds":
                first(at[lucky]),
            "that rate has the best worst run, or the best middle one, but not the best mean over "
            "the seeds": first(at[steady]),
            "return the rate itself, not its number in the list":
                lambda out: not np.isclose(rates, float(out[0])).any(),
            "the edge: a larger rate was tried and diverged, so the best one is not at the edge":
                lambda out: bool(diverged) and first(at[best])(out) and second(out),
            "the edge: the rates come in no order; compare with the smallest and the largest":
                lambda out: first(at[best])(out) and second(out),
        }, about="Take the rate with the highest mean over the seeds.")

    for edge, diverged in ((0, 0), (0, 1), (1, 0), (-1, 0)):
        yield case(edge, diverged)
