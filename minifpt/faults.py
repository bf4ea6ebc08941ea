"""Where a wrong gradient is wrong, and how: for reports of ``minifpt.gradcheck``."""

import numpy as np

MOST_ENTRIES = 256                                        # of one input that are looked at


class Fault:
    """A wrong gradient ``a`` beside central differences ``n``, entry by entry; ``worst`` is the
    worst entry's (index, analytical, numerical value)."""

    @np.errstate(all="ignore")
    def __init__(self, pair, name, grads):
        self.pair, self.name, self.grads = pair, name, grads
        self.x, self.grad, self.base = pair.checked[name], grads[name], pair.loss()[0]
        d = pair.rng.choice([-1.0, 1.0], self.x.shape)
        hs = sorted(pair.steps(self.x, d))                # the slope changes least at this step
        changes = abs(np.diff([pair.slope(self.x, d, h)[0] for h in hs]))
        self.h = hs[int(np.nan_to_num(changes, nan=np.inf).argmin())]
        self.entries = np.arange(self.x.size)
        if self.x.size > MOST_ENTRIES:
            self.entries = np.union1d(self.narrowed(), pair.rng.choice(self.x.size, MOST_ENTRIES))
        self.below, self.above = np.array([self.slopes(i, self.h) for i in self.entries]).T
        self.a, self.n = self.grad.flat[self.entries], (self.below + self.above) / 2
        self.size = max(rms(self.n), 1e-12)
        scale = np.maximum(np.maximum(abs(self.a), abs(self.n)), self.size)
        error = np.nan_to_num(abs(self.a - self.n) / scale, nan=np.inf)
        i = int(error.argmax())
        self.wrong = (error > 3 * pair.tolerance) | (error == error[i])
        self.worst = self.index(self.entries[i]), float(self.a[i]), float(self.n[i])
        self.is_kink = np.array([w and self.has_kink(k) for w, k in zip(
            self.wrong, self.entries, strict=True)])
        low, high = np.sort([self.below, self.above], axis=0)
        between = (low - 1e-3 * scale <= self.a) & (self.a <= high + 1e-3 * scale)
        self.is_right_beside_kinks = bool((self.is_kink & between)[self.wrong].all())

    def index(self, entry):
        return tuple(map(int, np.unravel_index(entry, self.x.shape)))

    def narrowed(self):
        """Return a few neighbouring entries, among them one of the worst, by halving."""
        entries = np.arange(self.x.size)
        while len(entries) > 8:
            halves, errors = np.array_split(entries, 2), []
            for half in halves:
                d = np.zeros(self.x.shape)
                d.flat[half] = self.pair.rng.choice([-1.0, 1.0], len(half))
                errors.append(abs(np.sum(self.grad * d) - self.pair.slope(self.x, d, self.h)[0]))
            entries = halves[int(np.argmax(np.nan_to_num(errors, nan=np.inf)))]
        return entries

    def slopes(self, entry, h):
        """Return the slopes below and above an entry."""
        d = np.zeros(self.x.shape)
        d.flat[entry] = 1.0
        return [(self.pair.loss_at(self.x, d, s * h)[0] - self.base) / (s * h) for s in (-1, 1)]

    def has_kink(self, entry):
        """Return whether the slopes on both sides stay apart at a smaller step."""
        gap, smaller = (abs(np.subtract(*self.slopes(entry, h))) for h in (self.h, self.h / 30))
        return smaller > max(0.5 * gap, 1e-3 * self.size)

    def kinks(self):
        """Return a line of text on the first kink among wrong entries, in a list."""
        return [f"{at(self.name, self.index(self.entries[i]))} is at a kink: below it the slope is "
                f"{self.below[i]:.4g}, above it {self.above[i]:.4g}" +
                ", so the inputs were moved a little" * self.is_right_beside_kinks
                for i in np.flatnonzero(self.is_kink)[:1]]

    @np.errstate(all="ignore")
    def describe(self):
        """Return text: how many entries are wrong, the worst, and what they have in common."""
        (index, a, n), total = self.worst, f"{len(self.entries):,}"
        if len(self.entries) < self.x.size:
            total += f" looked at, of {self.x.size:,},"
        kind = [self.factor() or self.form(), self.place(), self.of_dy()] if np.isfinite(
            [self.a, self.n]).all() else ["not all are finite"]
        return "; ".join(filter(None, [
            f"{int(self.wrong.sum()):,} of {total} entries wrong, the worst "
            f"{at(self.name, index)}, ratio {a / n if n else np.nan:.6g}", *kind]))

    def factor(self):
        """Return the factor that all wrong entries have in common, as text."""
        a, n = self.a[self.wrong], self.n[self.wrong]
        if (abs(a) <= 1e-6 * self.size).all():
            return "they are 0: a term is missing"
        c = (a / n)[abs(n) > 1e-3 * self.size]
        if len(c) < 2 or np.ptp(c) > 1e-4 * abs(c).max():
            return ""
        return "they have the wrong sign" if abs(c[0] + 1) < 1e-4 else (
            f"they are {np.median(c):.6g} times what they should be")

    def form(self):
        """Return which other arrangement of the numbers would be right, as text."""
        forms = {"it is transposed": self.grad.T,
                 **{f"it is reversed along axis {k}": np.flip(self.grad, k)
                    for k in range(self.x.ndim)},
                 **{f"it is the gradient of {self.name}, so the order is wrong": grad
                    for name, grad in self.grads.items() if name != self.name}}
        for text, grad in forms.items():
            if grad.shape == self.x.shape and np.allclose(
                    grad.flat[self.entries], self.n, 1e-4, 1e-4 * self.size):
                return text
        rest = self.a - self.n
        for k, length in enumerate(self.x.shape if rest.size == self.x.size else ()):
            if length > 1 and (np.ptp(rest.reshape(self.x.shape), k) <= 1e-4 * abs(rest).max()
                               ).all():
                return f"they differ by one number along axis {k}: a sum or mean over it is wrong"
        return ""

    def place(self):
        """Return what wrong entries, and no other ones, have in common, as text."""
        wrong, right = self.entries[self.wrong], self.entries[~self.wrong]
        if len(wrong) < 2 or not len(right):
            return ""
        for k, values in enumerate(np.unravel_index(wrong, self.x.shape)):
            rows, place = np.unique(values).tolist(), [":"] * self.x.ndim
            if len(rows) < self.x.shape[k] and (
                    len(rows) == 1 or len(wrong) * self.x.shape[k] == len(rows) * self.x.size):
                place[k] = rows[0] if len(rows) == 1 else rows
                return f"all in {at(self.name, place)}"
        for left, sign, f in (("|{}| >", 1, np.abs), ("{} >", 1, np.copy), ("{} <", -1, np.copy)):
            bound = (sign * f(self.x.flat[right])).max()
            if (sign * f(self.x.flat[wrong])).min() > bound:
                return f"all where {left.format(self.name)} {sign * bound:.3g}"
        return ""

    def of_dy(self):
        """Return whether the gradient does not follow dy, as text."""
        doubled = self.pair.backward(*self.pair.forward(), 2.0)
        same = np.allclose(doubled[[*self.pair.checked].index(self.name)], 2 * self.grad, 1e-6,
                           1e-9)
        return "it is not proportional to dy" * (not same)


def rms(a):
    """Return the root mean square."""
    return float(np.sqrt(np.mean(a * a))) if a.size else 0.0


def at(name, place):
    """Return an entry as text, ``x[0, 3]``, or a direction."""
    return f"{name} {place}" if isinstance(place, str) else (
        f"{name}[{', '.join(map(str, place))}]" if place else name)
