"""Where a wrong gradient is wrong, and how: for reports of ``minifpt.gradcheck``."""

from collections import namedtuple
from contextlib import suppress
from itertools import chain, combinations

import numpy as np

MOST_ENTRIES = 256                                        # of one input that are looked at,
MOST_WORK = 1 << 28                                       # or, in a large one, entries times size
MOST_FORMULAS = 1 << 20                                   # entries of a gradient with formulas


# x: an input's flat view.  part: a slice or numbers of its entries.  d: by how much they move.
Direction = namedtuple("Direction", "x part d")


class Fault:
    """A wrong gradient ``a`` beside central differences ``n``, entry by entry; ``worst`` is the
    worst entry's (index, analytical, numerical value).  ``is_small`` says that it is right, and
    only a direction of all entries is wrong."""

    @np.errstate(all="ignore")
    def __init__(self, check, name, grads):
        self.check, self.name, self.grads, self.x = check, name, grads, check.checked[name]
        self.entries = np.arange(self.x.size)
        if self.x.size > MOST_ENTRIES:
            most = max(32, min(MOST_ENTRIES, MOST_WORK // self.x.size))
            self.entries = np.unique(check.rng.choice(self.entries, most))
        d = check.signs(name, self.entries)
        steps = sorted(check.steps(d))                    # the slope changes least at this step
        changes = abs(np.diff([check.slope(d, h)[0] for h in steps]))
        self.h = steps[int(np.nan_to_num(changes, nan=np.inf).argmin())]
        if self.x.size > MOST_ENTRIES:
            self.entries = np.union1d(self.entries, self.narrowed())
        tiny, here = self.h / 30, check.loss(0.0)[0]      # only at a kink it shows two slopes
        far, below, above, beyond = np.transpose([
            [check.loss(step, unit(self.x, i))[0] for step in (-self.h, -tiny, tiny, self.h)]
            for i in self.entries])
        self.below, self.above = (here - below) / tiny, (above - here) / tiny
        self.a, self.n = grads[name].flat[self.entries], (beyond - far) / (2 * self.h)
        self.size = max(rms(self.n), SMALLEST)
        scale = np.maximum(np.maximum(abs(self.a), abs(self.n)), self.size)
        error = np.nan_to_num(abs(self.a - self.n) / scale, nan=np.inf)
        top = error >= 0.999 * error.max()                # not one of equals by its rounding
        self.is_small = len(error) < self.x.size and error.max() <= 3 * check.tolerance
        self.is_wrong = (error > 3 * check.tolerance) | top
        i = int(np.where(top, abs(self.a - self.n), -1.0).argmax())
        self.worst = index(self.x, self.entries[i]), float(self.a[i]), float(self.n[i])
        low, high = np.sort([self.below, self.above], axis=0)
        self.at_kink = high - low > 1e-3 * scale
        self.kinks = self.is_wrong & self.at_kink
        is_between = (low - 1e-3 * scale <= self.a) & (self.a <= high + 1e-3 * scale)
        self.is_right_beside_kinks = bool((self.kinks & is_between)[self.is_wrong].all())

    def narrowed(self):
        """Return a few neighbouring entries, among them one of the worst, by halving."""
        low, high = 0, self.x.size
        while high - low > 8:
            middle, errors = (low + high) // 2, []
            for part in (slice(low, middle), slice(middle, high)):
                d = self.check.signs(self.name, part)
                a = np.vdot(self.grads[self.name].reshape(-1)[part], d.d)
                errors.append(abs(a - self.check.slope(d, self.h)[0]))
            is_first = np.nan_to_num(errors, nan=np.inf).argmax() == 0
            low, high = (low, middle) if is_first else (middle, high)
        return np.arange(low, high)

    @np.errstate(all="ignore")
    def describe(self):
        """Return text: how many entries are wrong, the worst, and what they have in common."""
        (place, a, n), total = self.worst, f"{len(self.entries)} entries wrong"
        if len(self.entries) < self.x.size:
            total = f"{len(self.entries)} sampled entries wrong (it has {self.x.size:,})"
        if self.is_small:
            return (f"{self.name}: none of {len(self.entries)} sampled entries (it has "
                    f"{self.x.size:,}) is wrong by itself, but along a direction of all entries "
                    "their errors add up, as those of float32 do")
        kinds = [self.kind(), self.place(), self.kink()] if np.isfinite(
            [self.a, self.n]).all() else [
                self.check.failure if np.isfinite(a) else "the backward pass is not finite there"]
        return "; ".join(filter(None, [
            f"{self.name}: {self.is_wrong.sum()} of {total}, the worst {at(self.name, place)}"
            + (f", ratio {a / n:.7g}" if n else ""), *kinds]))

    def kink(self):
        """Return text on the first kink among wrong entries."""
        for i in np.flatnonzero(self.kinks)[:1]:
            return (f"{at(self.name, index(self.x, self.entries[i]))} is at a kink: below it the "
                    f"slope is {self.below[i]:.4g}, above it {self.above[i]:.4g}")

    def kind(self):
        """Return text: what the wrong entries are instead of the right ones."""
        grad, is_wrong = self.grads[self.name], self.is_wrong
        if (abs(self.a[is_wrong]) <= 1e-6 * self.size).all():
            return "they are 0: a term is missing"
        if (abs(self.n[is_wrong]) <= 1e-6 * rms(self.a)).all():
            return "they should be 0: the output does not change with these inputs"
        i = int(np.where(is_wrong, abs(self.n), -1.0).argmax())
        ratio = self.a[i] / self.n[i] if self.n[i] else np.nan
        forms = {"they have the wrong sign": -grad,
                 f"they are {ratio:.7g} times what they should be": grad / ratio,
                 "it is transposed": grad.T,
                 **{f"it is reversed along axis {k}": np.flip(grad, k) for k in range(grad.ndim)},
                 **{f"it is the gradient of {name}, so the order is wrong": other
                    for name, other in self.grads.items() if name != self.name},
                 **{f"its axes {k} and {j} are exchanged": grad.swapaxes(k, j)
                    for k, j in combinations(range(grad.ndim), 2)},
                 **{f"it is shifted along axis {k} by {j}": np.roll(grad, -j, k)
                    for k in range(grad.ndim) for j in (1, -1)},
                 **{f"it is reversed along axes {k} and {j}": np.flip(grad, (k, j))
                    for k, j in combinations(range(grad.ndim), 2)},
                 "it is reversed along all axes": np.flip(grad)}
        for text, other in forms.items():
            if np.shape(other) == grad.shape and is_wrong.sum() > 1 and np.allclose(
                    other.flat[self.entries[is_wrong]], self.n[is_wrong], 1e-4, 1e-4 * self.size):
                return text
        return self.difference()

    def difference(self):
        """Return text: by which formula the wrong entries, or what they lack, can be computed."""
        grad, rest = self.grads[self.name], self.a - self.n
        is_whole = rest.size == grad.size and np.isfinite(rest).all()
        for k, length in enumerate(grad.shape if is_whole else ()):
            spread = np.ptp(rest.reshape(grad.shape), axis=k)
            if length > 1 and (spread <= 1e-4 * abs(rest).max()).all():
                return f"they differ by one number along axis {k}: a sum or mean over it is wrong"
        terms = Terms(self) if grad.size <= MOST_FORMULAS else None
        a, n, lack = (terms and terms.formula(values) for values in (self.a, self.n, -rest))
        if a and n:
            return f"they are {a}, and should be {n}"
        if n or lack:
            return f"they should be {n}" if n else f"they lack the term {lack}"
        if terms and (name := terms.factor(self.a, self.n)):
            return f"they lack the factor {name}"
        if terms and (name := terms.factor(self.n, self.a)):
            return f"they have the factor {name}, and should not, or once less"
        if a:
            return f"they are {a}: a term or a factor is missing"
        if is_whole and terms and (text := terms.sum_along(rest.reshape(grad.shape))):
            return text
        for k, length in enumerate(grad.shape if is_whole else ()):
            rows, right = (np.moveaxis(values.reshape(grad.shape), k, 0).reshape(length, -1)
                           for values in (self.a, self.n))
            near = (abs(rows[:, None] - right) <= 1e-4 * self.size).all(axis=-1)
            if (near.sum(axis=0) == 1).all() and near.any(axis=1).all():
                return f"it is right in another order along axis {k}"
        if is_whole and grad.ndim > 1:
            values = np.linalg.svd(rest.reshape(len(grad), -1), compute_uv=False)
            if len(values) > 2 and values[1] <= 1e-4 * values[0]:
                return "they differ by a matrix of rank 1, an outer product"
        low, high = np.sort(abs(self.a[self.is_wrong]))[[0, -1]]
        if self.is_wrong.sum() > 1 and high - low <= 1e-6 * high < abs(self.n[self.is_wrong]).min():
            return f"their size is {high:.4g}, and should be more: they are clipped"

    def place(self):
        """Return text: where wrong entries, and no other ones, are."""
        wrong_entries, right_entries = self.entries[self.is_wrong], self.entries[~self.is_wrong]
        if len(wrong_entries) < 2 or not len(right_entries):
            return None
        for k, values in enumerate(np.unravel_index(wrong_entries, self.x.shape)):
            rows, place = np.unique(values).tolist(), [":"] * self.x.ndim
            size = len(rows) * self.x.size // self.x.shape[k]             # entries in these rows
            if len(rows) < self.x.shape[k] and (len(rows) == 1 or len(wrong_entries) == size):
                place[k] = rows[0] if len(rows) == 1 else rows
                return f"all in {at(self.name, place)}"
        for form, sign, f in (("|{}| >", 1, np.abs), ("{} >", 1, np.copy), ("{} <", -1, np.copy)):
            bound = (sign * f(self.x.flat[right_entries])).max()
            if (sign * f(self.x.flat[wrong_entries])).min() > bound:
                return f"all where {form.format(self.name)} {sign * bound:.3g}"


class Terms:
    """Formulas of dy and of what the forward pass got, returned or kept, for a wrong gradient."""

    def __init__(self, fault):
        self.fault, self.shape = fault, fault.x.shape
        self.factors = {}
        for name, a in fault.check.arrays():
            if a.dtype.kind in "fb" and a.size and not any(
                    np.array_equal(a, b) for b in self.factors.values()):
                self.factors[name] = a.astype(np.float64)
        self.formulas = {}
        for i, r in enumerate(fault.check.r):
            self.add(f"dy[{i}]" if len(fault.check.r) > 1 else "dy", r)
        for text, a in self.factors.items():
            self.add_fitting(text, a)

    def add(self, dy, r):
        """Add the formulas with the gradient dy of an output, the simplest first."""
        self.add_fitting(dy, r)
        for name, a in self.factors.items():
            with suppress(ValueError):                    # of shapes that do not fit
                self.add_fitting(f"{dy} * {name}", r * a)
        rows = r.reshape(-1, r.shape[-1]) if r.ndim > 1 else r
        for name, a in self.factors.items():
            a = a.reshape(-1, a.shape[-1]) if a.ndim > 1 else a
            for text, left, right in ((f"{dy} @ {name}", rows, a), (f"{dy} @ {name}.T", rows, a.T),
                                      (f"{name}.T @ {dy}", a.T, rows), (f"{name} @ {dy}", a, rows)):
                with suppress(ValueError):
                    self.add_fitting(text, (left @ right).reshape(self.shape))

    def add_fitting(self, text, a):
        """Add an array, and sums of it, that have the gradient's shape."""
        for axes in chain(*(combinations(range(a.ndim), n) for n in range(a.ndim + 1))):
            text_of = f"({text})" if " " in text else text
            over = f"{text_of} summed over axis {', '.join(map(str, axes))}" if axes else text
            for keep in (False, True):
                total = a.sum(axis=axes, keepdims=keep) if axes else a
                if total.shape == self.shape:
                    self.formulas.setdefault(over, total.flat[self.fault.entries])

    def formula(self, values):
        """Return the formula that the wrong entries of some values follow, up to one factor."""
        values, is_wrong = values[self.fault.is_wrong], self.fault.is_wrong
        for text, a in self.formulas.items() if len(values) > 2 else ():
            term = a[is_wrong]
            factor = term @ values / (term @ term)
            if factor and np.allclose(factor * term, values, 1e-4, 1e-5 * self.fault.size):
                return text if abs(factor - 1) < 1e-4 else f"{factor:.4g} * {text}"

    def factor(self, values, product):
        """Return the name of the factor between some values and a product, at the wrong entries."""
        for name, a in self.factors.items():
            with suppress(ValueError):                    # of shapes that do not fit
                a = np.broadcast_to(a, self.shape).flat[self.fault.entries]
                if np.allclose(a * values, product, 1e-4, 1e-5 * self.fault.size):
                    return name

    def sum_along(self, rest):
        """Return text if ``rest`` is one of the factors times one number along an axis."""
        for name, a in self.factors.items():
            for k, length in enumerate(rest.shape if a.shape == rest.shape else ()):
                factor = (rest * a).sum(k, keepdims=True) / (a * a).sum(k, keepdims=True)
                if length > 2 and np.allclose(factor * a, rest, 1e-4, 1e-4 * abs(rest).max()):
                    return (f"they differ by {name} times one number along axis {k}: a sum or mean "
                            "over it is wrong")


SMALLEST = 1e-200                                         # of what an error is divided by


def rms(a):
    """Return the root mean square of an array, with which the error of an entry is compared;
    squares that are not finite are left out."""
    squares = np.square(a, dtype=np.float64)
    squares = squares[np.isfinite(squares)]
    return float(np.sqrt(np.mean(squares))) if squares.size else 0.0


def unit(x, entry):
    """Return the direction of one entry of x, by its number."""
    return Direction(x.reshape(-1), slice(entry, entry + 1), np.ones(1))


def index(x, entry):
    """Return the index of an entry of x, by its number."""
    return tuple(map(int, np.unravel_index(entry, x.shape)))


def at(name, place):
    """Return an entry as text, ``x[0, 3]``, or a direction."""
    return f"{name} {place}" if isinstance(place, str) else (
        f"{name}[{', '.join(map(str, place))}]" if place else name)
