# %% [markdown]
# # 17. How fast can NumPy go?
#
# **A training step of the small model is nearly two hundred operations of the library, and most of
# them are several calls of NumPy. What slows it down: the arithmetic, the way to memory, or the
# calls themselves?**
#
# After this lesson you can
#
# - count the arithmetic and the bytes of an operation, and say which of the two is its limit;
# - measure your own machine's limits and draw its *roofline*;
# - read where a step's time goes, and how far each part is from what the machine could do;
# - say what a fast form saves, and test it where it really runs;
# - say what `loss.backward()` does in PyTorch, and write it with the library's pairs.
#
# You need lessons [1](01_gradients_by_hand.ipynb), [5](05_backward_through_attention.ipynb) and
# [6](06_gpt2_whole.ipynb). It takes about an hour. **The times in the stored outputs are from one
# machine: read them as examples, and run the notebook for your own.** Counts are the same
# everywhere. The text says what to look for in your own output, not what you will see. If a curve
# looks strange, run its cell again.

# %%
import cProfile
import statistics
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

import minifpt
from minifpt import fast, machine, training
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, picture, reveal, show

# %% [markdown]
# ## Count before you time
#
# A product of an `(M, K)` with a `(K, N)` matrix takes $2 M K N$ **floating-point operations**: for
# each of the $M N$ results, $K$ multiplications and $K$ additions. It has to read $M K + K N$
# numbers and write $M N$, each of 4 bytes in float32. An elementwise operation such as $y = 2x$
# takes one operation a number, and moves 8 bytes for it.
#
# Operations divided by bytes is the **intensity**. What is it for a product of two square matrices
# of 256 in float32? ($y = 2x$ has an intensity of 1/8.)

# %%
guess = ...                                               # operations for each byte


# %%
def product_counts(M, K, N, bytes_each=4):
    """Operations and least bytes of an (M, K) by (K, N) product."""
    return 2 * M * K * N, bytes_each * (M * K + K * N + M * N)


operations, moved = product_counts(256, 256, 256)
reveal(guess, operations / moved)
for n in (8, 64, 256, 1024):
    operations, moved = product_counts(n, n, n)
    print(f"({n}, {n}) by ({n}, {n}): {operations:13,} operations, {moved:10,} bytes, "
          f"intensity {operations / moved:.1f}")

# %% [markdown]
# The intensity of a square product grows with its size: each number that is read is used $n$ times.
# In an elementwise operation each number is used once, whatever the size.
#
# ## What this machine can do
#
# Now the clock. We run each thing often and take the fastest run: whatever disturbs a run makes it
# slower, never faster. Compare the best matrix product with $y = 2x$ on a large array: how many
# times as many operations does it do in a second? Guess for your own machine.

# %%
guess = ...


# %%
def fastest(work, seconds=0.04):
    """The seconds of one call of ``work``, the least of many; the first call only warms up."""
    work()
    found, begin = [], time.perf_counter()
    while len(found) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def product_seconds(n):
    a, b = np.random.default_rng(n).standard_normal((2, n, n)).astype(np.float32)
    out = np.empty((n, n), np.float32)
    return fastest(lambda: np.matmul(a, b, out=out))


def doubling_seconds(n):
    x, y = np.ones(n, np.float32), np.ones(n, np.float32)
    return fastest(lambda: np.multiply(x, 2, out=y))


widths = np.array([8, 16, 32, 64, 128, 256, 512, 1024])
lengths = 2 ** np.arange(2, 25)
with machine.one_core:
    rate = np.array([2 * n ** 3 / product_seconds(n) for n in widths])       # operations a second
speed = np.array([8 * n / doubling_seconds(n) for n in lengths])             # bytes a second
call, peak, memory, cached = doubling_seconds(1), rate.max(), speed[-1], speed.max()
reveal(guess, float(peak / (memory / 8)))

fig, axes = figure(2, width=4.2, height=3.1)
curves({"": rate / 1e9}, "Products of (n, n) matrices, one thread", "n", "10⁹ operations a second",
       x=widths, styles=["o-"], log="xy", ax=axes[0])
curves({"": speed / 1e9}, "y = 2x", "kilobytes of x and y together", "10⁹ bytes a second",
       x=8 * lengths / 1024, styles=["o-"], log="xy", ax=axes[1])
picture(fig)
print(f"the best product:     {peak / 1e9:.1f} billion operations a second")
print(f"y = 2x, large arrays: {memory / 1e9:.1f} billion bytes a second, "
      f"{memory / 8e9:.1f} billion operations")
print(f"y = 2x at its best:   {cached / 1e9:.1f} billion bytes a second")
print(f"one call of np.multiply on a single number: {1e6 * call:.2f} microseconds, in which the "
      f"best product does {call * peak:,.0f} operations")

# %% [markdown]
# What to look for in your own two curves:
#
# - Left: how far does the curve rise? Small products do not get what the machine can do.
# - Right: the steep part at the left end is the cost of a **call**: NumPy looks at its arguments
#   before it computes anything, and that takes the same time for one number as for a hundred.
# - Right: where does the curve fall, and how often? A **cache** is a small memory near the core.
#   Arrays that fit into it are read and written faster. (It is not the cache of a forward pass.)
#
# ## The roof
#
# An operation that needs $f$ floating-point operations and moves $b$ bytes takes at least $f / p$
# seconds for its arithmetic, $p$ being the most operations a second, and at least $b / w$ seconds
# for its bytes, $w$ being the bytes a second. Both go on at the same time, so
#
# $$ \text{seconds} \;\ge\; \max\Big(\frac{f}{p},\; \frac{b}{w}\Big) $$
#
# Divide $f$ by this bound, and you have the most operations a second at intensity $f / b$:
# $\min(p,\, w \cdot f/b)$. Drawn against the intensity it is a slope and then a flat part, the
# **roofline**. Operations below the slope wait for their bytes, those below the flat part for
# arithmetic. There are two slopes: one for arrays that come from the memory, one for arrays that
# are in a cache (our curve at its highest). Here are some that the model needs, with the shapes of
# a batch of 4 strings of 10 bits (40 rows) and of 16 pictures of 49 patches (784 rows), 128
# channels. Which of them come near the roof?

# %%
def measured_operations():
    """{name: (operations, bytes, seconds)}, float32."""
    rng, found = np.random.default_rng(0), {}
    for rows in (40, 784):
        x, wide = (rng.standard_normal((rows, n)).astype(np.float32) for n in (128, 512))
        w = rng.standard_normal((128, 512)).astype(np.float32)
        scale, bias, other = np.ones(128, np.float32), np.zeros(128, np.float32), x.copy()
        b = np.zeros(512, np.float32)
        found[f"linear, {rows} rows"] = (
            *product_counts(rows, 128, 512), fastest(lambda x=x, w=w, b=b: F.linear(x, w, b)))
        # Elementwise: the operations of the formula, x read once and y written once.  Layer norm:
        # mean 1, centre 1, variance 2, divide 1, scale 1, shift 1.
        found[f"gelu, {rows} rows"] = (
            9 * wide.size, 8 * wide.size, fastest(lambda wide=wide: F.gelu(wide)))
        found[f"layer norm, {rows} rows"] = (
            7 * x.size, 8 * x.size,
            fastest(lambda x=x, s=scale, b=bias: F.layer_norm(x, s, b)))
        found[f"residual, {rows} rows"] = (
            x.size, 12 * x.size, fastest(lambda x=x, y=other: F.residual(x, y)))
    return found


with machine.one_core:
    found = measured_operations()
fig, (ax,) = figure(width=6.4, height=3.8)
intensity = np.geomspace(0.05, 300, 100)
curves({f"roof, from the {where}": np.minimum(peak, speed_of * intensity) / 1e9
        for where, speed_of in (("cache", cached), ("memory", memory))},
       "The roofline of this machine", "intensity: operations for each byte",
       "10⁹ operations a second", x=intensity, inks=[color.ink], log="xy", ax=ax)
for name, (operations, moved, seconds) in found.items():
    spot, (operation, rows) = (operations / moved, operations / seconds / 1e9), name.split(", ")
    mark, ink = ("o", color.ochre) if rows == "40 rows" else ("s", color.teal)
    ax.plot(*spot, mark, color=ink, markersize=5, label=rows if operation == "linear" else None)
    ax.annotate(operation, spot, (6, -8 if rows == "40 rows" else 2), fontsize=9,
                textcoords="offset points")
ax.legend()
picture(fig)
for name, (operations, moved, seconds) in found.items():
    arithmetic, bytes_ = operations / peak, moved / cached
    print(f"{name:20} {1e6 * seconds:8.1f} µs, at the roof "
          f"{1e6 * max(arithmetic, bytes_):7.1f} µs, "
          f"limit: {'arithmetic' if arithmetic > bytes_ else 'bytes'}")

# %% [markdown]
# Compare each circle with the square of the same name. If the circle is much lower, its operation
# has too little to do for the calls that it takes: that is a third limit, which a roofline does not
# show. A point between the two slopes has its arrays in a cache. A point above a roof says that we
# counted more bytes than were moved, or that the roof was measured at a busier moment. And if
# GELU's square is far below both, look at how it is written, as we do soon: it goes over its
# numbers more than once.
#
# ## A step, operation by operation
#
# `minifpt.trace` records every operation of a step. From the shapes of its arrays we count the
# arithmetic of all products, forward and backward, under FPT's mask (lesson 7). At the machine's
# best, how long would they take, in percent of the measured step, with 4 examples of bit XOR?

# %%
guess = ...

# %%
task = minifpt.tasks.get("bit-xor")
trunk = minifpt.GPT2.from_pretrained("minigpt-language")
model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
model.freeze(minifpt.FreezeMask.fpt())


def product_operations(step):
    """Floating-point operations of a step's matrix products; 0 where it has none."""
    if step.op == "linear":
        forward = step.partner if step.backward else step
        one = 2 * forward.inputs["x"].size * forward.inputs["w"].shape[1]
        gradients = [forward.gradients.get(name) for name in ("x", "w")]
        return one * (sum(g is not None for g in gradients) if step.backward else 1)
    if step.op == "attention":                            # q kᵀ and A v; four on the way back
        forward = step.partner if step.backward else step
        B, T, three_C = forward.inputs["qkv"].shape
        return (4 if step.backward else 2) * 2 * B * T * T * three_C // 3
    return 0


def count_step(batch):
    """(operations of all products, number of operations of the library) in a step."""
    x, y = task.batch(np.random.default_rng(0), batch)
    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=np.random.default_rng(0))
        _, dlogits = task.loss(logits, y)
        model.backward(dlogits, cache)
    return sum(product_operations(step) for step in t.steps), len(t.steps)


GROUPS = {"linear": "linear", "attention": "attention", "softmax": "attention", "gelu": "GELU",
          "layer_norm": "layer norm", "dropout": "dropout", "step": "Adam, clipping",
          "clip_grad_norm": "Adam, clipping"}


def group(entry):
    """The group of a function in a profile; None where it has none."""
    if Path(entry.code.co_filename).stem in ("functional", "fast", "optim"):
        return GROUPS.get(entry.code.co_name.removesuffix("_backward"))


def time_step(batch, repeats=20):
    """(seconds of a training step, {group: % of the step, without other groups that it calls})."""
    rng = np.random.default_rng(0)
    optimizer = minifpt.optim.Adam([p for p in model.parameters() if p.trainable], lr=1e-3)
    x, y = task.batch(rng, batch)

    def step():
        training.step(model, task, optimizer, x, y, 1.0, rng)
    seconds = fastest(step, 1.0)
    profile = cProfile.Profile(builtins=False)            # Python's own: the time of each function
    start = time.perf_counter()
    for _ in range(repeats):
        profile.runcall(step)
    whole, shares = time.perf_counter() - start, dict.fromkeys(GROUPS.values(), 0.0)
    for entry in profile.getstats():
        if group(entry):
            inner = sum(call.totaltime for call in entry.calls or () if group(call))
            shares[group(entry)] += 100 * (entry.totaltime - inner) / whole
    return seconds, shares


batches = (4, 16, 64)
counted = {batch: count_step(batch) for batch in batches}
with machine.one_core, machine.kept_memory:               # as in training
    timed = {batch: time_step(batch) for batch in batches}
reveal(guess, 100 * counted[4][0] / peak / timed[4][0], "%")

curves({f"batch of {batch}": list(shares.values()) for batch, (_, shares) in timed.items()},
       "Where a step's time goes", "", "% of the step", x=list(timed[4][1]),
       styles=("o", "s", "^"), ylim=(0, None), width=6)
for batch, (operations, steps) in counted.items():
    print(f"batch of {batch:2}: {operations / 1e6:7.1f} million operations in products, {steps} "
          f"operations of the library, {1e3 * timed[batch][0]:6.1f} ms; at the best "
          f"{1e3 * operations / peak:5.1f} ms")

# %% [markdown]
# The counts do not depend on the machine: sixteen times the batch has sixteen times the arithmetic
# and just as many operations of the library. So what the calls cost is shared by more examples. No
# code that does all the counted work can exceed 100 %. A form that leaves work out can, and we will
# see one. In the picture compare the batches: which parts have a smaller share in the larger one,
# and which a larger? (What is missing to 100 % are small operations and Python itself.)
#
# ## Fewer passes
#
# Here is GELU as the textbook has it:

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

    calls, moved = [], 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        plain = [np.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
        target = tuple(np.asarray(o) for o in out) if out else None
        result = getattr(ufunc, method)(*plain, out=target, **options)
        Counted.calls.append(ufunc.__name__)
        Counted.moved += sum(a.nbytes for a in [*plain, result] if isinstance(a, np.ndarray))
        return result.view(Counted)


x = np.random.default_rng(0).standard_normal((784, 512)).astype(np.float32)
F.gelu(x.view(Counted))
reveal(guess, len(Counted.calls))
print(", ".join(Counted.calls))
print(f"bytes moved: {Counted.moved:,}; x read once and y written once: {2 * x.nbytes:,}")

# %% [markdown]
# So the formula's $8$ bytes a number became many times as many. Two remedies need no other formula.
# **In place**: write the result over an array that is no longer needed, `t *= x` instead of
# `t = t * x`; no new memory is asked for. **In pieces**: do all of it for one piece of the array
# before the next piece, so that a number that was just written is still in the processor's cache
# when it is read. The library's fast form does both, and computes the derivative on the way, from
# $v = a\,(x + b\,x^3)$ and $t = (1 + \tanh v) / 2$: with $y = x\,t$ and
# $t' = 2\,t\,(1 - t)\,v'$ it is $y' = t + 2\,y\,(1 - t)\,v'$.

# %%
show(fast.gelu)

# %%
rng = np.random.default_rng(1)
x, dy = rng.standard_normal((2, 784, 512)).astype(np.float32) * 3


def gelu_step(module):
    y, cache = module.gelu(x)
    return y, module.gelu_backward(dy.copy(), cache)      # the fast one writes over dy


(y, dx), (fast_y, fast_dx) = gelu_step(F), gelu_step(fast)
print(f"largest difference of y {np.abs(y - fast_y).max():.1e}, "
      f"of dx {np.abs(dx - fast_dx).max():.1e}")
for module, name in ((F, "simple"), (fast, "fast")):
    with machine.one_core:
        print(f"{name:7} {1e3 * fastest(lambda m=module: gelu_step(m), 0.3):6.2f} ms")

# %% [markdown]
# The two agree to what float32 can hold; only then is the time of interest. (It is that of forward
# and backward together. In the roofline GELU's time was that of the forward pass alone. Two things
# are saved, passes over memory and the backward pass's own tanh; this time does not separate them.)
#
# ## What need not be computed
#
# Work can also be left out, on long texts. In causal attention half of the scores are masked.
# The library's tiled form takes 64 queries at a time, a **tile**, with only the keys that they may
# see. Of the $T^2$ scores it computes
#
# $$ \sum_{\text{tiles } i \ldots j} (j - i) \cdot j $$
#
# where a tile holds the queries from $i$ up to, but not including, $j$, and so sees $j$ keys.
#
# For $T = 512$, which share of the $T^2$ scores is that, in percent?

# %%
guess = ...

# %%
T = 512
tiles = fast._tiles(T, causal=True)
reveal(guess, 100 * sum((j - i) * seen for i, j, seen in tiles) / T ** 2, "%")


def attention_error(T, module=fast):
    """The largest difference between the tiled and the simple form, forward and backward."""
    rng = np.random.default_rng(T)
    qkv, dy = rng.standard_normal((1, T, 3 * 32)), rng.standard_normal((1, T, 32))
    found = []
    for m in (module, F):
        y, cache = m.attention(qkv, 2)
        found.append((y, m.attention_backward(dy, cache)))
    return max(np.abs(a - b).max() for a, b in zip(*found, strict=True))


print(f"tiled against simple, T = {T}: largest difference {attention_error(T):.1e}")

# %% [markdown]
# Is this comparison a test that could fail? We break the tiled form: it forgets the causal mask.
# And we test it on 10 tokens, as bit XOR has. How large is the difference? (`fast.attention` uses
# tiles only where one tile is not enough.)

# %%
guess = ...

# %%
def no_mask(qs, kt, i, j, n_keys, *_):
    return qs[..., i:j, :] @ kt[..., :n_keys]


def broken_error(T):
    with patch.object(fast, "_scores", no_mask):
        return attention_error(T)


reveal(guess, float(broken_error(10)))
for T in (10, 64, 65, 200):
    print(f"T = {T:3}: broken {broken_error(T):.1e}, as it is {attention_error(T):.1e}")

# %% [markdown]
# At 10 tokens the broken form passes, and at 64 too: where one small tile is enough,
# `fast.attention` calls the simple form, and the broken line never runs. A test of a fast form must
# reach the fast form. With one token more than a tile has, this one does.
#
# ## A second thread
#
# Your machine has more than one core. OpenBLAS, which does NumPy's products, can share one product
# among several. With two threads instead of one, how many times as fast is a product of `(40,
# 128)` by `(128, 512)`, as in our step? (It takes some tens of microseconds, and to hand a half to
# another thread takes some.)

# %%
guess = ...


# %%
def three_forms(shape, repeats=9):
    """Median seconds of a product with two threads, with one, and cut into pieces, in turn."""
    M, K, N = shape
    a, b = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    forms = [(2, np.matmul), (1, np.matmul), (1, fast.product)]
    before, times = machine.blas_threads(), [[] for _ in forms]
    inner = max(1, int(2e8 / (M * K * N)))
    for _ in range(repeats):
        for (threads, product), seconds in zip(forms, times, strict=True):
            machine.blas_threads(threads)
            end = time.perf_counter() + 0.15              # not timed: BLAS's second thread still
            while time.perf_counter() < end:              # waits, busy, for a tenth of a second
                product(a, b)
            start = time.perf_counter()
            for _ in range(inner):
                product(a, b)
            seconds.append((time.perf_counter() - start) / inner)
    machine.blas_threads(before)
    return [statistics.median(seconds) for seconds in times]


shapes = {"40 rows": (40, 128, 512), "784 rows": (784, 128, 512), "1024²": (1024, 1024, 1024)}
if machine.blas_threads() is None:
    print("This NumPy has no OpenBLAS whose threads can be set.")
else:
    times = {name: three_forms(shape) for name, shape in shapes.items()}
    two, one, _ = times["40 rows"]
    reveal(guess, one / two, "times")
    for name, (two, one, cut) in times.items():
        print(f"{name:9} one thread {1e3 * one:8.3g} ms, times as fast: two threads "
              f"{one / two:.3g}, cut {one / cut:.3g}")
    print(f"cores that minifpt uses here: {machine.cores()}")

# %% [markdown]
# Below 1 the second thread does harm. On an idle machine BLAS's threads are often the faster ones.
# But a shared product is finished when its *slower* half is: if one of two threads has to wait for
# a core that is busy with something else, the other waits with it. Beside one busy process a step
# of the small model took 32 ms with BLAS's threads and 6.7 with the library's pieces
# (`docs/performance.md`). This is why the library lets BLAS have one thread
# (`single_threaded_blas`) and shares the work itself. It cuts a large product into more pieces than
# there are cores, and a core that is free takes the next one. A small product is not cut.

# %%
show(machine.shared)

# %% [markdown]
# ## A bridge to PyTorch
#
# (This part can be left out; it is about other libraries and takes a quarter of an hour.) In
# PyTorch the step that we have timed reads like this, for a `model` of the same layers:
#
# ```python
# logits = model(x)
# loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), y.reshape(-1))
# optimizer.zero_grad()
# loss.backward()
# torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
# optimizer.step()
# ```
#
# Nobody calls a backward pass there, and nobody holds a cache. Where are they? Each operation, when
# it runs forward, leaves a note on its result: the inputs, and its own backward pass with its
# cache. The notes form a **graph**, from the loss back to the parameters. `loss.backward()` goes
# through it from the end and calls what the notes say. Such a program is an **autograd**. All that
# it needs is pairs `op`, `op_backward`, and these we have. Here is one. Look for the mathematics of
# a gradient in it.

# %%
class Value:
    """An array, and the note of how it was made"""

    def __init__(self, data, inputs=(), back=None):
        self.data, self.inputs, self.back, self.grad = data, inputs, back, None

    def __add__(self, other):                             # the residual connection
        return Value(self.data + other.data, (self, other), lambda dy: (dy, dy))

    def backward(self):
        """Fill ``grad`` of everything that led here"""
        order, seen = [], set()

        def visit(value):                                 # inputs before what is made of them
            if isinstance(value, Value) and id(value) not in seen:
                seen.add(id(value))
                for one in value.inputs:
                    visit(one)
                order.append(value)

        visit(self)
        self.grad = np.ones_like(self.data)
        for value in reversed(order):
            if value.back is None:                        # a parameter, or the input
                continue
            grads = value.back(value.grad)
            grads = grads if isinstance(grads, tuple) else (grads,)
            for one, grad in zip(value.inputs, grads, strict=False):
                if isinstance(one, Value):                # used twice, it gets both
                    one.grad = grad if one.grad is None else one.grad + grad


class Ops:
    """``ops.linear(x, w, b)`` on Values, of the library's pair ``linear``, ``linear_backward``"""

    def __getattr__(self, name):
        forward, backward = getattr(F, name), getattr(F, f"{name}_backward")

        def call(*inputs, **options):
            y, cache = forward(*(one.data if isinstance(one, Value) else one for one in inputs),
                               **options)
            return Value(np.asarray(y), inputs, lambda dy: backward(dy, cache))
        return call


ops = Ops()

# %% [markdown]
# It has no gradient of any layer. Its only two rules are that a sum passes `dy` to both inputs, and
# that the gradients of a value that is used twice add up. Now the whole model, with nothing frozen:
# only the forward pass, as one would write it in PyTorch. We compare the gradients of all its
# parameters with those of `model.backward`, in float64.

# %%
trunk = minifpt.GPT2(minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=16,
                                        dropout=0.0), seed=0, dtype=np.float64)
ours = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
p = {name: Value(parameter.data) for name, parameter in ours.named_parameters()}


def linear(x, name):
    return ops.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def norm(x, name):
    return ops.layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"])


def forward(x):
    x = ops.positions(linear(x, "input"), p["trunk.wpe.weight"])
    for block in ("trunk.h.0", "trunk.h.1"):
        heads = ops.attention(linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn"), n_head=2)
        x = x + linear(heads, f"{block}.attn.c_proj")
        wide = ops.gelu(linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc"))
        x = x + linear(wide, f"{block}.mlp.c_proj")
    return linear(ops.last_tokens(norm(x, "trunk.ln_f"), n=task.output_tokens), "output")


x, y = task.batch(np.random.default_rng(0), 4)
x = x.astype(np.float64)
loss = ops.cross_entropy(forward(x), y)
loss.backward()

logits, cache = ours.forward(x, train=True, rng=np.random.default_rng(0))
library_loss, dlogits = task.loss(logits, y)
ours.backward(dlogits, cache)
worst = max(np.abs(p[name].grad - parameter.grad).max()
            for name, parameter in ours.named_parameters())
print(f"{len(p)} parameters; loss {float(loss.data):.6f}, the library's {library_loss:.6f}; "
      f"largest difference of a gradient {worst:.0e}")

# %% [markdown]
# The same gradients. What does the library have, then, that this does not? It computes no gradient
# of what is frozen, keeps no cache below the lowest layer that learns (lesson 7), and runs the
# forms of this lesson. And PyTorch has the graph, so that nobody has to write a model's backward
# pass, thousands of such pairs, and graphics cards.
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
# **3.** A tile of attention as above, but the model has a window: each token sees itself and the
# $w - 1$ tokens before it. A tile takes only the keys that at least one of its queries may see. How
# many scores are computed?

# %%
def windowed_scores(T, tile, w):
    """T tokens, tiles of so many queries (the last may have fewer), window w -> scores"""
    return ...


check("windowed_scores", windowed_scores)


# %% [markdown]
# **4.** *Open.* Predict the times of operations from counts. There is no single right answer, but a
# prediction may not be below what the slowest of the three limits alone needs (arithmetic, bytes,
# calls), nor above the sum of the three. Then compare it with the measured times in the cell below.
# Which operation is furthest from your prediction, and what does it do that you did not count?

# %%
def predict(operations, moved, calls, peak, bandwidth, call):
    """operations, moved, calls (N,): floating-point operations, bytes and calls of N operations;
    peak and bandwidth a second, call: seconds for each call -> seconds (N,)"""
    return ...


check("predict", predict)

# %%
table = np.array([(operations, moved, 1) for operations, moved, _ in found.values()], float).T
seconds = predict(*table, peak, cached, call)
if seconds is not ...:
    for (name, (_, _, measured)), mine in zip(found.items(), seconds, strict=True):
        print(f"{name:20} predicted {1e6 * mine:8.1f} µs, measured {1e6 * measured:8.1f} µs")

# %% [markdown]
# **Next**: [lesson 18](18_your_own.ipynb), a GPT-2 of your own from an empty file.
