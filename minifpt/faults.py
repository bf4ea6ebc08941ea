"""Where a wrong gradient is wrong, and how: for reports of ``minifpt.gradcheck``."""

import numpy as np

MOST_ENTRIES = 256                                        # of one input that are looked at


class Fault:
    """A wrong gradient ``a`` beside central differences ``n``, entry by entry; ``worst`` is the
    worst entry's (index, analytical, numerical value)."""

    @np.errstate(all="ignore")
    def __init__(self, pair, name, grads):
        self.pair, self.name, self.grads, self.x = pair, name, grads, pair.checked[name]
        d = pair.rng.choice([-1.0, 1.0], self.x.shape)
        steps = sorted(pair.steps(self.x, d))             # the slope changes least at this step
        changes = np.abs(np.diff([pair.slope(self.x, d, h)[0] for h in steps]))
        self.h = steps[int(np.nan_to_num(changes, nan=np.inf).argmin())]
        self.entries = np.arange(self.x.size)
        if self.x.size > MOST_ENTRIES:
            self.entries = np.union1d(self.narrowed(), pair.rng.choice(self.x.size, MOST_ENTRIES))
        self.below, self.above = np.transpose([self.slopes(i, self.h) for i in self.entries])
        self.a, self.n = grads[name].flat[self.entries], (self.below + self.above) / 2
        self.size = max(rms(self.n), 1e-12)
        scale = np.maximum(np.maximum(abs(self.a), abs(self.n)), self.size)
        error = np.nan_to_num(abs(self.a - self.n) / scale, nan=np.inf)
        i = int(error.argmax())
        self.wrong = (error > 3 * pair.tolerance) | (error == error[i])
        self.worst = index(self.x, self.entries[i]), float(self.a[i]), float(self.n[i])
        low, high = np.sort([self.below, self.above], axis=0)
        self.is_kink = np.array([w and self.has_kink(i) for w, i in zip(
            self.wrong, self.entries, strict=True)])
        between = (low - 1e-3 * scale <= self.a) & (self.a <= high + 1e-3 * scale)
        self.is_right_beside_kinks = bool((self.is_kink & between)[self.wrong].all())

    def narrowed(self):
        """Return a few neighbouring entries, among them one of the worst, by halving."""
        entries, grad = np.arange(self.x.size), self.grads[self.name]
        while len(entries) > 8:
            halves, errors = np.array_split(entries, 2), []
            for half in halves:
                d = np.zeros(self.x.shape)
                d.flat[half] = self.pair.rng.choice([-1.0, 1.0], len(half))
                errors.append(abs(np.sum(grad * d) - self.pair.slope(self.x, d, self.h)[0]))
            entries = halves[int(np.argmax(np.nan_to_num(errors, nan=np.inf)))]
        return entries

    def slopes(self, entry, h):
        """Return the slopes below and above an entry."""
        down, here, up = (self.pair.loss(self.x, unit(self.x, entry), step)[0]
                          for step in (-h, 0.0, h))
        return (here - down) / h, (up - here) / h

    def has_kink(self, entry):
        """Return whether the slopes on both sides stay apart at a smaller step."""
        gap, smaller = (abs(np.subtract(*self.slopes(entry, h))) for h in (self.h, self.h / 30))
        return smaller > max(0.5 * gap, 1e-3 * self.size)

    def kinks(self):
        """Return a line of text on the first kink among wrong entries, in a list."""
        return [f"{at(self.name, index(self.x, self.entries[i]))} is at a kink: below it the slope "
                f"is {self.below[i]:.4g}, above it {self.above[i]:.4g}" +
                ", so the inputs were moved a little" * self.is_right_beside_kinks
                for i in np.flatnonzero(self.is_kink)[:1]]

    @np.errstate(all="ignore")
    def describe(self):
        """Return text: how many entries are wrong, the worst, and what they have in common."""
        (place, a, n), total = self.worst, f"{len(self.entries):,}"
        if len(self.entries) < self.x.size:
            total += f" looked at, of {self.x.size:,},"
        kinds = [self.kind(), self.place()] if np.isfinite(
            [self.a, self.n]).all() else ["not all are finite"]
        return "; ".join(filter(None, [
            f"{int(self.wrong.sum()):,} of {total} entries wrong, the worst "
            f"{at(self.name, place)}, ratio {a / n if n else np.nan:.6g}", *kinds]))

    def kind(self):
        """Return what the wrong entries are instead of the right ones, as text."""
        grad, wrong = self.grads[self.name], self.wrong
        if (abs(self.a[wrong]) <= 1e-6 * self.size).all():
            return "they are 0: a term is missing"
        i = int(np.where(wrong, abs(self.n), -1.0).argmax())
        ratio = self.a[i] / self.n[i] if self.n[i] else np.nan
        forms = {"they have the wrong sign": -grad,
                 f"they are {ratio:.6g} times what they should be": grad / ratio,
                 "it is transposed": grad.T,
                 **{f"it is reversed along axis {k}": np.flip(grad, k) for k in range(grad.ndim)},
                 **{f"it is the gradient of {name}, so the order is wrong": other
                    for name, other in self.grads.items() if name != self.name}}
        for text, other in forms.items():
            if np.shape(other) == grad.shape and wrong.sum() > 1 and np.allclose(
                    other.flat[self.entries[wrong]], self.n[wrong], 1e-4, 1e-4 * self.size):
                return text
        rest = self.a - self.n
        for k, length in enumerate(grad.shape if rest.size == grad.size else ()):
            spread = np.ptp(rest.reshape(grad.shape), axis=k)
            if length > 1 and (spread <= 1e-4 * abs(rest).max()).all():
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


def rms(a):
    """Return the root mean square."""
    return float(np.sqrt(np.mean(a * a))) if a.size else 0.0


def unit(x, entry):
    """Return the direction of one entry of x, by its number."""
    d = np.zeros_like(x)
    d.flat[entry] = 1.0
    return d


def index(x, entry):
    """Return the index of an entry of x, by its number."""
    return tuple(map(int, np.unravel_index(entry, x.shape)))


def at(name, place):
    """Return an entry as text, ``x[0, 3]``, or a direction."""
    return f"{name} {place}" if isinstance(place, str) else (
        f"{name}[{', '.join(map(str, place))}]" if place else name)
