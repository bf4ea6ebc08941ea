"""Where a wrong gradient is wrong, and of which kind: for reports of ``minifpt.gradcheck``."""

import numpy as np

MOST_ENTRIES = 256                                        # of one input that are looked at


class Fault:
    """A wrong gradient beside central differences, entry by entry.

    worst                 (index, analytical, numerical) of the worst entry.
    is_right_beside_kinks whether each wrong entry is a kink, with a value between both slopes."""

    def __init__(self, pair, name, grads):
        self.pair, self.name, self.grads = pair, name, grads
        self.x, self.grad = pair.checked[name], grads[name]
        self.base = pair.loss()[0]
        self.h = self.step()
        entries = np.arange(self.x.size)
        if self.x.size > MOST_ENTRIES:
            entries = np.union1d(self.narrowed(entries), pair.rng.choice(entries, MOST_ENTRIES))
        self.entries, self.a = entries, self.grad.flat[entries]
        self.left, self.right = np.array([self.slopes(i, self.h) for i in entries]).T
        self.n = (self.left + self.right) / 2
        self.size = np.sqrt(np.mean(self.n ** 2))
        scale = np.maximum(np.maximum(abs(self.a), abs(self.n)), max(self.size, 1e-12))
        error = np.nan_to_num(abs(self.a - self.n) / scale, nan=np.inf)
        self.wrong = error > 3 * pair.tolerance
        self.wrong[error.argmax()] = True
        i = error.argmax()
        self.worst = self.index(entries[i]), float(self.a[i]), float(self.n[i])
        self.is_kink = self.wrong & [
            wrong and self.has_kink(k) for k, wrong in zip(entries, self.wrong, strict=True)]
        low, high = np.sort([self.left, self.right], axis=0)
        between = (low - 1e-3 * scale <= self.a) & (self.a <= high + 1e-3 * scale)
        self.is_right_beside_kinks = bool((self.is_kink & between)[self.wrong].all())

    def index(self, entry):
        return tuple(map(int, np.unravel_index(entry, self.x.shape)))

    def step(self):
        """Return the step at which a slope changes least from a step to the next."""
        d = self.pair.rng.choice([-1.0, 1.0], self.x.shape)
        hs = sorted(self.pair.steps(self.x, d))
        slopes = np.array([self.pair.slope(self.x, d, h)[0] for h in hs])
        change = np.nan_to_num(abs(np.diff(slopes)), nan=np.inf)
        return hs[int(change.argmin())]

    def narrowed(self, entries):
        """Return a few neighbouring entries, among them one of the worst, by halving."""
        while len(entries) > 8:
            halves, differences = np.array_split(entries, 2), []
            for half in halves:
                d = np.zeros(self.x.shape)
                d.flat[half] = self.pair.rng.choice([-1.0, 1.0], len(half))
                n, _ = self.pair.slope(self.x, d, self.h)
                differences.append(abs(np.sum(self.grad * d) - n))
            entries = halves[int(np.argmax(np.nan_to_num(differences, nan=np.inf)))]
        return entries

    def slopes(self, entry, h):
        """Return the slopes below and above an entry."""
        d = np.zeros(self.x.shape)
        d.flat[entry] = 1.0
        return [(self.pair.loss_at(self.x, d, sign * h)[0] - self.base) / (sign * h)
                for sign in (-1, 1)]

    def has_kink(self, entry):
        """Return whether the slopes on both sides stay apart at a smaller step."""
        gaps = [abs(np.subtract(*self.slopes(entry, h))) for h in (self.h, self.h / 30)]
        return gaps[1] > max(0.5 * gaps[0], 1e-3 * self.size)

    def kinks(self):
        """Return a line of text if wrong entries are at a kink, in a list."""
        if not self.is_kink.any():
            return []
        i = int(self.is_kink.argmax())
        return [f"{at(self.name, self.index(self.entries[i]))} is at a kink: below it the slope is "
                f"{self.left[i]:.4g}, above it {self.right[i]:.4g}" + (
                    ", so the inputs were moved a little" if self.is_right_beside_kinks else "")]

    def describe(self):
        """Return text: how many entries are wrong, the worst, and what the fault looks like."""
        index, a, n = self.worst
        count, total = int(self.wrong.sum()), len(self.wrong)
        of = f"{total:,}" if total == self.x.size else f"{total:,} looked at, of {self.x.size:,},"
        kind = "; ".join(filter(None, [self.factor() or self.form(), self.place(), self.of_dy()])
                         if np.isfinite([*self.a, *self.n]).all() else ["not all are finite"])
        return (f"{count:,} of {of} entries wrong, the worst {at(self.name, index)}, ratio "
                f"{a / n if n else np.nan:.6g}" + (f"; {kind}" if kind else ""))

    def factor(self):
        """Return the factor that all wrong entries have in common, as text."""
        a, n = self.a[self.wrong], self.n[self.wrong]
        if (abs(a) <= 1e-6 * self.size).all():
            return "they are 0: a term is missing"
        large = abs(n) > 1e-3 * self.size
        factors = a[large] / n[large]
        if len(factors) < 2 or not np.ptp(factors) <= 1e-4 * abs(factors).max():
            return ""
        c = float(np.median(factors))
        return "they have the wrong sign" if abs(c + 1) < 1e-4 else (
            f"they are {c:.6g} times what they should be")

    def form(self):
        """Return which other arrangement of the numbers would be right, as text."""
        forms = {"it is transposed": self.grad.T if self.x.ndim == 2 else self.grad[..., None]}
        forms |= {f"it is reversed along axis {k}": np.flip(self.grad, k)
                  for k in range(self.x.ndim)}
        forms |= {f"it is the gradient of {self.name}, so the order is wrong": grad
                  for name, grad in self.grads.items() if name != self.name}
        for text, grad in forms.items():
            if grad.shape == self.x.shape and np.allclose(
                    grad.flat[self.entries], self.n, 1e-4, 1e-4 * self.size):
                return text
        if len(self.entries) == self.x.size:
            rest = (self.a - self.n).reshape(self.x.shape)
            for k, length in enumerate(self.x.shape):
                if length > 1 and (np.ptp(rest, axis=k) <= 1e-4 * abs(rest).max()).all():
                    return (f"they differ by one number along axis {k}: a sum or a mean over it is "
                            "missing, or too much")
        return ""

    def place(self):
        """Return what wrong entries, and no other ones, have in common, as text."""
        wrong, right = self.entries[self.wrong], self.entries[~self.wrong]
        if len(wrong) < 2 or not len(right):
            return ""
        for k, values in enumerate(np.unravel_index(wrong, self.x.shape)):
            if self.x.shape[k] > 1 and np.ptp(values) == 0:
                place = [":"] * self.x.ndim
                place[k] = values[0]
                return f"all in {at(self.name, place)}"
        for text, sign, f in (("|x| >", 1, np.abs), ("x >", 1, np.copy), ("x <", -1, np.copy)):
            bound = (sign * f(self.x.flat[right])).max()
            if (sign * f(self.x.flat[wrong])).min() > bound:
                return f"all where {text} {sign * bound:.3g}".replace("x", self.name)
        return ""

    def of_dy(self):
        """Return whether the gradient does not follow dy, as text."""
        y, cache = self.pair.forward()
        doubled = dict(zip(self.pair.checked, self.pair.backward(y, cache, 2.0), strict=True))
        same = np.allclose(doubled[self.name], 2 * self.grad, 1e-6, 1e-9, equal_nan=True)
        return "" if same else "it is not proportional to dy"


def at(name, place):
    """Return an entry as text, ``x[0, 3]``, or a direction."""
    return f"{name} {place}" if isinstance(place, str) else (
        f"{name}[{', '.join(map(str, place))}]" if place else name)
