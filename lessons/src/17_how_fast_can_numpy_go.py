# %% [markdown]
# # 17. How fast can NumPy go?
#
# **An operation takes its time. What limits it: the arithmetic, the way to memory, or the calls?**
#
# After this lesson you can
#
# - count the arithmetic and the bytes of an operation;
# - measure your machine's limits and draw its *roofline*;
# - write a fast form of an operation, and a test that reaches it.
#
# You need lesson [6](06_gpt2_whole.ipynb). **The stored times are from one machine; run the
# notebook for your own.** Counts are the same everywhere. The text says what to look for, not what
# you will see. If a curve looks strange, run its cell again.

# %%
import time

import numpy as np

from minifpt import functional as F
from minifpt import machine
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, picture, reveal, show

# %% [markdown]
# ## Count before you time
#
# A product of an `(M, K)` with a `(K, N)` matrix takes $2 M K N$ **floating-point operations**: for
# each of the $M N$ results, $K$ multiplications and $K$ additions. It reads $M K + K N$ numbers and
# writes $M N$, each of 4 bytes in float32. In $y = 2x$ each number takes one operation and moves 8
# bytes.
#
# Operations divided by bytes is the **intensity**: 1/8 for $y = 2x$. What is it for a product of
# two square matrices of 256?

# %%
guess = ...                                               # operations for each byte


# %%
def product_counts(M, K, N):
    """Operations and least bytes of an (M, K) by (K, N) product in float32."""
    return 2 * M * K * N, 4 * (M * K + K * N + M * N)


operations, moved = product_counts(256, 256, 256)
reveal(guess, operations / moved)
for n in (8, 64, 256, 1024):
    operations, moved = product_counts(n, n, n)
    print(f"{n:4} x {n:4}: {operations:13,} operations, {moved:10,} bytes, "
          f"intensity {operations / moved:.1f}")

# %% [markdown]
# In a product each number that is read is used $n$ times, in an elementwise operation once.
#
# ## What this machine can do
#
# Now the clock, with one thread. We run each thing often and take the fastest run, since a
# disturbance only makes it slower. How many times as many operations does the best product do in a
# second as $y = 2x$ on a large array? Guess for your machine.

# %%
guess = ...


# %%
def fastest(work, seconds=0.04):
    """The seconds of one call of ``work``, the least of many; the first call only warms up."""
    work()
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def product_seconds(n):
    a, b = np.random.default_rng(n).standard_normal((2, n, n)).astype(np.float32)
    out = np.empty((n, n), np.float32)
    return fastest(lambda: np.matmul(a, b, out=out), 0.3)


def doubling_seconds(n):
    x, y = np.ones(n, np.float32), np.ones(n, np.float32)
    return fastest(lambda: np.multiply(x, 2, out=y))


widths, lengths = 2 ** np.arange(3, 10), 2 ** np.arange(2, 25)
with machine.single_threaded_blas:
    rate = np.array([2 * n ** 3 / product_seconds(n) for n in widths])       # operations a second
speed = np.array([8 * n / doubling_seconds(n) for n in lengths])             # bytes a second
call, peak, memory, cached = doubling_seconds(1), rate.max(), speed[-1], speed.max()
reveal(guess, float(peak / (memory / 8)))

fig, axes = figure(2, width=4.2, height=3.1)
curves({"": rate / 1e9}, "Products of (n, n) matrices", "n", "10⁹ operations a second",
       x=widths, styles=["o-"], log="xy", ax=axes[0])
curves({"": speed / 1e9}, "y = 2x", "kilobytes of x and y together", "10⁹ bytes a second",
       x=8 * lengths / 1024, styles=["o-"], log="xy", ax=axes[1])
picture(fig)
print(f"{peak / 1e9:.1f} billion operations a second; {cached / 1e9:.1f} billion bytes a second at "
      f"best, {memory / 1e9:.1f} from the memory; a call takes {1e6 * call:.2f} microseconds")

# %% [markdown]
# What to look for in your own two curves:
#
# - How far does the left one rise? Small products do not get what the machine can do.
# - The steep part of the right picture, for small arrays, is the cost of a **call**: NumPy looks at
#   its arguments before it computes anything, which takes as long for one number as for a hundred.
# - Where does the right one fall for large arrays? A **cache** is a small memory near the core.
#   Arrays that fit into it are read and written faster. (It is not the cache of a forward pass.)
#
# ## The roof
#
# An operation that needs $f$ floating-point operations and moves $b$ bytes takes at least $f / p$
# seconds for its arithmetic, $p$ being the most operations a second, and $b / w$ for its bytes,
# $w$ being the bytes a second. Both go on at the same time:
#
# $$ \text{seconds} \;\ge\; \max\Big(\frac{f}{p},\; \frac{b}{w}\Big), \qquad
#    \text{operations a second} \;\le\; \min\Big(p,\; w \cdot \frac{f}{b}\Big) $$
#
# Drawn against the intensity $f / b$ this is a slope and a flat part, the **roofline**: one slope
# for arrays that come from the memory, one for arrays in a cache. We time four operations of the
# model, with the rows of 4 strings of 10 bits (40) and of 16 pictures of 49 patches (784). Which
# come near the roof?

# %%
rng, measured = np.random.default_rng(0), {}              # name: (operations, bytes, seconds)
w, b, scale = rng.standard_normal((128, 512)).astype(np.float32), *np.ones((2, 512), np.float32)
with machine.single_threaded_blas:
    for rows in (40, 784):
        x, wide = (rng.standard_normal((rows, n)).astype(np.float32) for n in (128, 512))
        n = wide.size                                     # operations: those of the formula
        for name, operations, moved, work in (
                ("linear", *product_counts(rows, 128, 512), lambda x=x: F.linear(x, w, b)),
                ("gelu", 9 * n, 8 * n, lambda x=wide: F.gelu(x)),
                ("layer norm", 7 * n, 8 * n, lambda x=wide: F.layer_norm(x, scale, b)),
                ("addition", n, 12 * n, lambda x=wide, y=wide + 1: x + y)):
            measured[f"{name}, {rows} rows"] = operations, moved, fastest(work)

fig, (ax,) = figure(width=6.4, height=3.8)
intensity = np.geomspace(0.05, 300, 100)
curves({f"roof, from the {where}": np.minimum(peak, speed_of * intensity) / 1e9
        for where, speed_of in (("cache", cached), ("memory", memory))},
       "The roofline of this machine", "intensity: operations for each byte",
       "10⁹ operations a second", x=intensity, inks=[color.ink], log="xy", ax=ax)
for name, (operations, moved, seconds) in measured.items():
    spot, (operation, rows) = (operations / moved, operations / seconds / 1e9), name.split(", ")
    mark, ink = ("o", color.ochre) if rows == "40 rows" else ("s", color.teal)
    ax.plot(*spot, mark, color=ink, markersize=5, label=rows if operation == "linear" else None)
    side = -1 if operation == "layer norm" else 1
    ax.annotate(operation, spot, (7 * side, -4), fontsize=9, textcoords="offset points",
                ha="left" if side > 0 else "right")
ax.legend()
picture(fig)
for name, (operations, moved, seconds) in measured.items():
    print(f"{name:20} {1e6 * seconds:8.1f} µs, at the roof "
          f"{1e6 * max(operations / peak, moved / cached):7.1f} µs")

# %% [markdown]
# If a circle is much lower than the square of its name, the operation has too little to do for its
# calls: a third limit, which a roofline does not show. And if GELU's square is far below both
# slopes, look at how it is written.
#
# ## Fewer passes

# %%
show(F.gelu)

# %% [markdown]
# Each operator is a call of NumPy, goes over all numbers, and makes a new array. How many calls
# does one `F.gelu` make?

# %%
guess = ...


# %%
class Counted(np.ndarray):
    """An array that writes down each elementwise operation that it takes part in."""

    calls = []

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        Counted.calls.append(ufunc.__name__)
        plain = [np.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
        return getattr(ufunc, method)(*plain, **options).view(Counted)


F.gelu(wide.view(Counted))
reveal(guess, len(Counted.calls))
print(", ".join(Counted.calls))

# %% [markdown]
# So 8 bytes a number became many times as many. Two remedies need no other formula. **In place**:
# write over an array that is no longer needed. **In pieces**: do all of it for one piece of the
# array before the next, so that a number that was just written is still in the processor's cache.
# Where one piece is enough, the simple form runs.

# %%
PIECE = 32_768                                            # numbers


def all_pieces(size):
    return [slice(i, i + PIECE) for i in range(0, size, PIECE)]


def fast_gelu(x, pieces=all_pieces):
    if x.size <= PIECE:
        return F.gelu(x)[0]
    result = x.copy()
    for piece in pieces(x.size):
        x_piece, y = x.reshape(-1)[piece], result.reshape(-1)[piece]
        np.multiply(x_piece, x_piece, out=y)              # y = x/2 (1 + tanh(x (a + a b x²)))
        y *= F.GELU_A * F.GELU_B
        y += F.GELU_A
        y *= x_piece
        np.tanh(y, out=y)
        y += 1
        y *= x_piece
        y *= 0.5
    return result


def largest_error(rows, pieces=all_pieces):
    x = np.random.default_rng(rows).standard_normal((rows, 512)).astype(np.float32)
    return np.abs(fast_gelu(x, pieces) - F.gelu(x)[0]).max()


print(f"largest difference {largest_error(784):.0e}")
many = np.tile(wide, (8, 1))                              # of 128 pictures
for name, gelu in (("simple", F.gelu), ("fast", fast_gelu)):
    print(f"{name:6} {1e3 * fastest(lambda gelu=gelu: gelu(many), 0.3):6.1f} ms for 128 pictures")

# %% [markdown]
# Only where both agree is the time of interest. Is this comparison a test that could fail? We break
# the fast form: it leaves the end as it is if that is shorter than a piece. We test it on 16, 128
# and 784 rows of 512 numbers. How many of the three tests see it?

# %%
guess = ...                                               # 0 to 3

# %%
def whole_pieces(size):
    return [slice(i, i + PIECE) for i in range(0, size - PIECE + 1, PIECE)]


errors = {rows: largest_error(rows, whole_pieces) for rows in (16, 128, 784)}
reveal(guess, sum(error > 1e-3 for error in errors.values()))
for rows, error in errors.items():
    print(f"{rows:3} rows, {rows * 512 / PIECE:4.1f} pieces: largest difference {error:.0e}")

# %% [markdown]
# On 16 rows the simple form runs, and 128 rows are whole pieces. A test of a fast form
# must reach the fast form, with sizes that do not suit it. The library's own are in
# `minifpt/fast.py`; they share pieces among the cores, and leave out what need not be computed, as
# half of the scores under a causal mask.
#
# ## Exercises
#
# The checks judge counts, not times. Solutions are in `solutions/17_how_fast_can_numpy_go.py`.
#
# **1.** A layer norm's scale is applied to a batch: $y = x \cdot w$ with $x$ `(N, C)` and $w$
# `(C,)`, into a new array. How many floating-point operations for each byte?

# %%
def scale_intensity(N, C, bytes_each):
    """each number has bytes_each bytes -> operations / bytes, everything moved once"""
    return ...


check("scale_intensity", scale_intensity)


# %% [markdown]
# **2.** Three matrices are to be multiplied: $A$ `(a, b)`, $B$ `(b, c)`, $C$ `(c, d)`. $(A B)\,C$
# and $A\,(B C)$ are equal, but not equally cheap. Return the fewest floating-point operations.
# (Then think of attention without a softmax, $q\,k^\top v$, with many tokens.)

# %%
def fewest_operations(a, b, c, d):
    """sizes -> the operations of the cheaper order"""
    return ...


check("fewest_operations", fewest_operations)


# %% [markdown]
# **3.** *Open.* Predict times from counts. A prediction may not be below what the slowest of the
# three limits alone needs (arithmetic, bytes, calls), nor above the sum of the three. Which
# operation is furthest from yours, and what does it do that you did not count?

# %%
def predict(operations, moved, calls, peak, bandwidth, call):
    """operations, moved, calls (N,): floating-point operations, bytes and calls of N operations;
    peak and bandwidth a second, call: seconds for each call -> seconds (N,)"""
    return ...


check("predict", predict)

# %%
counts = np.array([(operations, moved, 1) for operations, moved, _ in measured.values()], float).T
predicted = predict(*counts, peak, cached, call)
if predicted is not ...:
    for (name, (*_, seconds)), mine in zip(measured.items(), predicted, strict=True):
        print(f"{name:20} predicted {1e6 * mine:8.1f} µs, measured {1e6 * seconds:8.1f} µs")

# %% [markdown]
# **Next**: [lesson 18](18_your_own.ipynb), a GPT-2 of your own from an empty file.
