# %% [markdown]
# # 5. Backward through attention
#
# **Attention multiplies activations with activations, with a softmax in between. A gradient
# comes back to its output. How much of it belongs to the queries, how much to the keys, how much
# to the values?**
#
# After this lesson you can
#
# - say which outputs a query, a key and a value reach, and read the backward off that;
# - derive all of it from two rules that you have, and write it in five lines;
# - find each of five classic mistakes, and choose data on which none of them can hide;
# - say when attention learns where to look, and when it cannot.
#
# You need lessons [1](01_gradients_by_hand.ipynb), [2](02_softmax_and_cross_entropy.ipynb) and
# [4](04_self_attention.ipynb). It takes about an hour.

# %%
import math

import numpy as np

import minifpt
from minifpt import fast
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.lesson import color, figure, matrix, picture, reveal, show
from minifpt.tokenizer import Bytes

# %% [markdown]
# ## Who moves whom?
#
# One head: queries $q$, keys $k$, values $v$, each `(T, D)`, and the output $y$ `(T, D)`.
#
# $$ S = \frac{q\,k^\top}{\sqrt D} + \text{mask}, \qquad A = \text{softmax}(S), \qquad y = A\,v $$
#
# There are six tokens, 0 to 5. We move the *key* of token 2. How many rows of $y$ move?

# %%
guess = ...                                               # of 6

# %%
T, D = 6, 2
rng = np.random.default_rng(5)
q, k, v = rng.standard_normal((3, T, D))


def attend(q, k, v):
    """One head -> y (T, D), A (T, T)"""
    S = q @ k.T / math.sqrt(q.shape[1]) + F.causal_mask(len(q), len(k), q.dtype)
    A, _ = F.softmax(S)
    return A @ v, A


def rates(part, h=1e-5):
    """(T, T): how fast row t of y moves with row s of q (part 0), k (1) or v (2)"""
    found = np.zeros((T, T))
    for s in range(T):
        for d in range(D):
            up, down = np.stack([q, k, v]), np.stack([q, k, v])
            up[part, s, d] += h
            down[part, s, d] -= h
            move = (attend(*up)[0] - attend(*down)[0]) / (2 * h)
            found[:, s] += (move ** 2).sum(axis=1)
    return np.sqrt(found)


measured = [rates(part) for part in range(3)]
reveal(guess, int((measured[1][:, 2] > 0).sum()))

fig, axes = figure(3, width=2.9, height=2.8)
for ax, name, values in zip(axes, ("query", "key", "value"), measured, strict=True):
    matrix(ax, values, f"rate of y with a {name}", f"{name} of token", limit=1.5)
axes[0].set_ylabel("row of y")
picture(fig)

# %% [markdown]
# A query is read by its own row alone. A key and a value are read by every row that may look at
# them: a *column* of the picture. The chain rule adds over all paths, so $dk$ and $dv$ of a
# token must be sums over later tokens, and $dq$ must not.
#
# Look at token 0 as well. Its value moves row 0. Its query and its key do not: there is only one
# token to look at, the share is 1, and nothing can change that.
#
# ## Three steps back
#
# $dy$ `(T, D)` arrives. Nothing here is new: two matrix products as in lesson 1, where for
# $y = x\,w$ we had $dx = dy\,w^\top$ and $dw = x^\top dy$, and the softmax in the middle from
# lesson 2.
#
# | forward | backward | why |
# |---|---|---|
# | $y = A\,v$ | $dA = dy\,v^\top$ | a product: $A$ stands where $x$ stood |
# | | $dv = A^\top dy$ | and $v$ where $w$ stood |
# | $A = \text{softmax}(S)$ | $dS_{ts} = A_{ts} (dA_{ts} - \sum_r dA_{tr} A_{tr})$ | lesson 2 |
# | $S = q\,k^\top / \sqrt D$ | $dq = dS\,k / \sqrt D$ | a product, and a factor |
# | | $dk = dS^\top q / \sqrt D$ | $k$ went in transposed |
#
# The two transposes are the two columns in the picture: $dv_s = \sum_t A_{ts}\, dy_t$ collects
# from every token $t$ that looked at $s$.
#
# Where is the mask? It hides what stands above the diagonal. Before you run the cell: how many
# of the 15 entries above the diagonal of $dA$ are not 0? And of $dS$?

# %%
guess = ...                                               # of dA

# %%
y, A = attend(q, k, v)
dy = rng.standard_normal((T, D))

dA = dy @ v.T                                             # (T, T)
dv = A.T @ dy                                             # (T, D)
dS = A * (dA - (dA * A).sum(axis=1, keepdims=True))       # (T, T)
dq = dS @ k / math.sqrt(D)                                # (T, D)
dk = dS.T @ q / math.sqrt(D)                              # (T, D)

above = np.triu_indices(T, 1)
reveal(guess, int((dA[above] != 0).sum()))
print("above the diagonal of dS:", int((dS[above] != 0).sum()))


# %% [markdown]
# $dA$ knows nothing of the mask: it asks what *would* help. But $A_{ts} = 0$ stands in front of
# the bracket, so nothing gets through. The mask needs no line of its own on the way back.
#
# Here is the whole way as data flow. Each box has a matrix and, beside it in teal, its gradient.
# Black arrows run forward, teal ones back. A gradient arrow always needs the *other* matrix from
# the forward pass; that is why there is a cache.

# %%
CELL, ROW = 0.019, 0.27                                   # shares of the picture


def node(ax, x, y, name, value, gradient):
    """A matrix of the forward pass and, beside it, its gradient."""
    width = CELL * value.shape[1]
    for i, (title, values) in enumerate(((name, value), (f"d{name}", gradient))):
        part = ax.inset_axes([x + i * (width + 0.012), y, width, ROW])
        matrix(part, values, "", limit=1.2, signed=True, digits=None)
        part.set(xticks=[], yticks=[], aspect="auto")
        part.set_title(title, color=color.teal if i else color.ink, pad=3)


def arrows(ax, start, end, forward, back, lift=0.0, drop=0.0):
    """There and back between two points."""
    start, end, below = np.array(start), np.array(end), np.array([0, -0.055])
    for a, b, ink in ((start, end, color.ink),
                      (end + below, start + below, color.teal)):
        ax.annotate("", b, a, arrowprops={"arrowstyle": "-|>", "color": ink, "lw": 1.5})
    middle = (start + end) / 2
    ax.text(*middle + [0, 0.02 + lift], forward, ha="center", va="bottom", size=9)
    ax.text(*middle + [0, -0.075 - drop], back, ha="center", va="top", size=9,
            color=color.teal)


S = np.where(np.tri(T) > 0, q @ k.T / math.sqrt(D), 0)
fig, (ax,) = figure(width=11, height=4.7)
ax.set(xlim=(0, 1.01), ylim=(0, 1.03), title="Attention, forward and back")
ax.axis("off")
node(ax, 0.00, 0.71, "q", q, dq)
node(ax, 0.00, 0.36, "k", k, dk)
node(ax, 0.00, 0.01, "v", v, dv)
node(ax, 0.24, 0.52, "S", S, dS)
node(ax, 0.585, 0.52, "A", A, dA)
node(ax, 0.905, 0.24, "y", y, dy)
arrows(ax, (0.10, 0.87), (0.23, 0.75), "q kᵀ / √D", "dS k / √D", 0.06, 0.02)
arrows(ax, (0.10, 0.52), (0.23, 0.60), "", "dSᵀ q / √D", 0.0, 0.05)
arrows(ax, (0.485, 0.68), (0.58, 0.68), "softmax", "A (dA - mean)")
arrows(ax, (0.842, 0.62), (0.90, 0.48), "   A v", "")
ax.text(0.855, 0.46, "dy vᵀ", color=color.teal, size=9, ha="right", va="center")
arrows(ax, (0.10, 0.17), (0.895, 0.33), "", "Aᵀ dy", drop=0.02)
picture(fig)

# %% [markdown]
# Now your own check, as in lesson 1. The loss is $L = \sum y \cdot dy$ with $dy$ held fixed; then
# the gradient that arrives at $y$ is $dy$. We move every number of $q$, $k$ and $v$ up and down.

# %%
def numerical_gradients(h=1e-5):
    found = np.zeros((3, T, D))
    for i in np.ndindex(found.shape):
        up, down = np.stack([q, k, v]), np.stack([q, k, v])
        up[i] += h
        down[i] -= h
        found[i] = ((attend(*up)[0] - attend(*down)[0]) * dy).sum() / (2 * h)
    return found


def relative_error(gradient, numerical):
    return np.abs(gradient - numerical).max() / np.abs(numerical).max()


numerical = numerical_gradients()
for name, gradient, part in zip(("dq", "dk", "dv"), (dq, dk, dv), numerical,
                                strict=True):
    print(f"{name}: relative error {relative_error(gradient, part):.1e}")

# %% [markdown]
# The library does the same for all heads and sequences at once. `split_heads` gives views of
# `dqkv`, so each product is written to its place. Dropout, where it is on, multiplies the shares
# by a mask of 0 and $1/(1-p)$; what was dropped gets nothing back.

# %%
show(F.attention_backward)

# %%
qkv = rng.standard_normal((2, 5, 3 * 6))                  # (B, T, 3C), H = 2, D = 3
print(minifpt.gradcheck(F.attention, F.attention_backward, (qkv,), n_head=2))

# %% [markdown]
# This is the simple form. The layers run `fast.attention`. Up to 64 tokens it is the simple form
# itself; a longer text it takes in tiles of 64 queries, skips most of what is masked, and keeps no
# map of more than one tile. It must be the same function. Is it? Lengths around 64 are where it
# could go wrong.

# %%
for length in (1, 63, 64, 65, 150):
    qkv = rng.standard_normal((2, length, 3 * 12))
    dy_all = rng.standard_normal((2, length, 12))
    y_simple, cache = F.attention(qkv, 3)
    y_fast, cache_fast = fast.attention(qkv, 3)
    d_simple = F.attention_backward(dy_all, cache)
    d_fast = fast.attention_backward(dy_all, cache_fast)
    print(f"T = {length:3}: y differs by {np.abs(y_simple - y_fast).max():.0e}, "
          f"dqkv by {np.abs(d_simple - d_fast).max():.0e}")
lse = cache_fast[1][2]                                    # (B, H, T, 1)
q_all, k_all, _, A_all, _ = cache                         # (B, H, T, D), A (B, H, T, T)
S_all = q_all @ k_all.swapaxes(-1, -2) / math.sqrt(4)
S_all += F.causal_mask(150, 150, S_all.dtype)
print(f"A has {A_all.size} numbers; kept instead: {lse.size}. A comes back from them, "
      f"to {np.abs(np.exp(S_all - lse) - A_all).max():.0e}")

# %% [markdown]
# What it keeps of a longer text is the log-sum-exp of each row of scores (lesson 2), one number
# for each query: $A = e^{S - \text{lse}}$, computed once more on the way back.
#
# ## Broken in three ways
#
# Here is the backward again, with a switch for mistakes that happen. First three that concern
# the mathematics:
#
# - *no average*: the sum in the bracket of $dS$ is left out;
# - *no transpose*: $dk = dS\,q$, which has the right shape;
# - *no √D* on the way back.

# %%
def backward(dy, cache, mistake=None):
    """F.attention_backward, and what can go wrong in it"""
    q, k, v, A, dropped = cache
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).swapaxes(1, 2)            # (B, H, T, D)
    if dropped is None or mistake == "no dropout mask":
        dropped = np.ones_like(A)
    dA = dropped * (dy @ v.swapaxes(-1, -2))
    average = 0 if mistake == "no average" else (dA * A).sum(axis=-1, keepdims=True)
    dS = A * (dA - average)
    if mistake != "no √D":
        dS = dS / math.sqrt(D)
    dk = (dS if mistake == "no transpose" else dS.swapaxes(-1, -2)) @ q
    parts = [dS @ k, dk, (A * dropped).swapaxes(-1, -2) @ dy]
    if mistake != "heads not moved back":
        parts = [part.swapaxes(1, 2) for part in parts]   # (B, T, H, D)
    return np.concatenate([part.reshape(B, T, H * D) for part in parts], axis=-1)


def check_backward(mistake, B=2, T=6, H=2, D=3, p=0.3):
    """gradcheck of ``backward`` on random data of these sizes"""
    qkv = np.random.default_rng(1).standard_normal((B, T, 3 * H * D))

    def op(qkv):                                          # the same dropout each time
        return F.attention(qkv, H, p, np.random.default_rng(2))

    return minifpt.gradcheck(op, lambda dy, cache: backward(dy, cache, mistake), (qkv,))


for mistake in (None, "no average", "no transpose", "no √D"):
    report = check_backward(mistake)
    print(f"{mistake or 'as it is':14} error {report.max_relative_error:.1e}  "
          f"{'pass' if report else 'FAIL'}")

# %% [markdown]
# All three are found. Would they be on any data? We add two mistakes of bookkeeping: the dropout
# mask is forgotten, and the heads are put side by side without being moved back. And we make the
# test data poorer, one thing at a time. A favourite: a single token, because it is so easy to
# do by hand. With $T = 1$, how many of the five does the check still find?

# %%
guess = ...                                               # of 5

# %%
mistakes = [None, "no average", "no transpose", "no √D", "no dropout mask",
            "heads not moved back"]
data = {"T = 1": {"T": 1}, "D = 1": {"D": 1}, "H = 1": {"H": 1}, "p = 0": {"p": 0},
        "all of it": {}}
errors = np.array([[check_backward(mistake, **sizes).max_relative_error
                    for sizes in data.values()] for mistake in mistakes])
reveal(guess, int((errors[1:, 0] > 1e-6).sum()))

fig, (ax,) = figure(width=6.2, height=3.2)
digits = np.clip(-np.log10(errors), 0, None)
matrix(ax, digits, "Digits that agree: 6 or more, and it passes", limit=14, digits=0,
       columns=list(data), rows=["as it is", *mistakes[1:]])
picture(fig)

# %% [markdown]
# Read a column from the second row on: each dark cell is a mistake that this data lets through.
# With one token the share is always 1, so the right $dS$ is 0: transposed or not, with its factor
# or without, it stays 0. (The missing average is seen even there, because it makes something of
# nothing.) With one channel a head $\sqrt D = 1$. With one head there is nothing to move. Only
# the last column is light all the way down.
#
# In lesson 3 the data had to have what the missing term removes. Here the *shape* had to be rich
# enough: more than one of everything.
#
# ## What gets through
#
# The scores are where attention learns *where* to look; the values are *what* it brings. Both
# wait for the same $dy$. We make the queries longer and longer, so that each row of $A$ goes from
# an even look to a single token. What do you expect of $dS$, from the first to the last: `"up"`,
# `"down"`, or `"up, then down"`?

# %%
guess = ...

# %%
def lengths(size, T=32, D=16, H=8):
    """Largest share, length of dS and of dv, with queries of a given size."""
    rng = np.random.default_rng(0)
    q, k, v, dy = rng.standard_normal((4, 1, T, H * D))
    _, cache = F.attention(np.concatenate([size * q, k, v], axis=-1), H)
    v, A = cache[2:4]
    dA = dy.reshape(1, T, H, D).swapaxes(1, 2) @ v.swapaxes(-1, -2)
    dv = F.attention_backward(dy, cache)[..., 2 * H * D:]
    return (A.max(axis=-1).mean(), np.linalg.norm(F.softmax_backward(dA, A)),
            np.linalg.norm(dv))


query_sizes = np.geomspace(0.1, 100, 16)
share, length_S, length_v = np.array([lengths(size) for size in query_sizes]).T
peak = int(length_S.argmax())
down = length_S[-1] < length_S[peak]
reveal(guess, ("up, then down" if 0 < peak and down else "down" if down else "up"))

# the trunk's first heads, and all others, with a random dA
trunk = minifpt.GPT2.from_pretrained("minigpt-language", dtype=np.float64)
text = ("The door stood open, and there was no light in the hall.\n"
        '"Somebody has been here," said')
x = trunk.wte.weight.data[[Bytes().encode(text)]]
x = x + trunk.wpe.weight.data[:x.shape[1]]                # (1, T, C)
heads = []
for block in trunk.h:
    qkv, _ = block.attn.c_attn.forward(block.ln_1.forward(x)[0])
    A = F.attention(qkv, block.attn.n_head)[1][3][0]      # (H, T, T)
    dS = F.softmax_backward(rng.standard_normal((50, *A.shape)), A)
    late = slice(8, None)                                 # where there is a choice
    heads.append([A[:, late].max(axis=-1).mean(axis=-1),
                  np.linalg.norm(dS[:, :, late], axis=-1).mean(axis=(0, 2))])
    x, _ = block.forward(x)
heads = np.array(heads)                                   # (blocks, 2, H)

fig, axes = figure(2, width=4.4, height=3.1)
axes[0].semilogx(query_sizes, length_v / length_v[0], color=color.grey, label="dv")
axes[0].semilogx(query_sizes, length_S / length_S[0], color=color.teal, label="dS")
axes[0].set(title="Random head: sharper and sharper", xlabel="size of the queries",
            ylabel="length, relative to the first", ylim=(0, None))
axes[0].legend()
axes[1].plot(heads[1:, 0].ravel(), heads[1:, 1].ravel(), "o", color=color.grey,
             markersize=4, label="other blocks")
axes[1].plot(heads[0, 0], heads[0, 1], "o", color=color.language, label="block 0")
for h, (a, b) in enumerate(heads[0].T):
    axes[1].annotate(f"head {h}", (a, b), (5, 4), textcoords="offset points",
                     fontsize=8)
axes[1].set(title="The trunk's 24 heads", xlabel="largest share of a row, on average",
            ylabel="length of dS for a random dA", xlim=(0, 1.05), ylim=(0, 0.36))
axes[1].legend(loc="lower left", fontsize=8)
picture(fig)
print(f"largest share: {share[0]:.2f} at first, {share[peak]:.2f} where dS is longest, "
      f"{share[-1]:.2f} at last")

# %% [markdown]
# Up, then down. A head that is undecided passes a good part of the gradient on to its scores, and
# one that is sure passes almost none: $A_{ts}$ is 0 for all but one token, and for that one
# the bracket is 0. $dv$ goes the other way: a value that one token takes whole gets its gradient
# whole. So a head that is sure of where to look still learns what to bring.
#
# The trunk's heads agree as far as they can. The sharpest, the one of lesson 4 that looks at the
# byte before, passes least. These are real maps but a random $dA$: what this trunk's training
# really sent through them, we did not measure.
#
# ## Exercises
#
# Solutions are in `solutions/05_backward_through_attention.py`.
#
# **1.** One head, in which the last $n$ of $T$ tokens ask and all $T$ are looked at.

# %%
def value_gradient(dy, A):
    """dy (n, D), A (n, T) -> dv (T, D)"""
    return ...


check("value_gradient", value_gradient)


# %% [markdown]
# **2.** To save memory, many models give all heads *one* set of keys and values (**multi-query
# attention**): $q$ `(H, T, D)`, but $k$ and $v$ `(T, D)`. What becomes of the backward?

# %%
def multi_query_backward(dy, q, k, v, A):
    """dy, q (H, T, D), k, v (T, D), A (H, T, T) -> dq (H, T, D), dk, dv (T, D)"""
    dq = ...
    dk = ...
    dv = ...
    return dq, dk, dv


check("multi_query_backward", multi_query_backward)


# %% [markdown]
# **3.** Instead of position embeddings, some models add a learned number for each *distance* to
# the scores: $S_{ts} = q_t \cdot k_s / \sqrt D + b_{t-s}$, with $b$ `(T,)` shared by all heads.
# What is $db$? How many paths does $b_0$ have?

# %%
def distance_gradient(dA, A):
    """dA, A (H, T, T), A causal -> db (T,)"""
    return ...


check("distance_gradient", distance_gradient)


# %% [markdown]
# **4.** *Open.* Most entries of $dS$ are close to 0. If we knew which, we could skip them, but we
# want to know *before* $dA$ is computed, from $A$ alone. Choose $n$ entries. You are asked to
# keep nearly as much of $\lVert dS \rVert^2$, on average over random $dA$, as can be kept. Some
# rows are even, some are sure. Then measure it on the trunk's maps with the cell below. How few
# entries are enough for 95 %? Does it help to know in which block you are?

# %%
def worth_computing(A, n):
    """A (T, T) causal, n -> (T, T) of True and False, True n times"""
    return ...


check("worth_computing", worth_computing)

# %%
A_trunk = F.attention(qkv, 4)[1][3][0]                    # the last block's (H, T, T)
dS = F.softmax_backward(rng.standard_normal((200, *A_trunk.shape)), A_trunk)
squares = (dS ** 2).mean(axis=0)                          # (H, T, T)
for h, (A, square) in enumerate(zip(A_trunk, squares, strict=True)):
    n = A.size // 16
    best = np.sort(square, axis=None)[-n:].sum() / square.sum()
    mine = worth_computing(A, n)
    kept = "" if mine is ... else f", yours {square[mine].sum() / square.sum():.0%}"
    print(f"head {h}: the best {n} of {A.size} entries hold {best:.0%} of dS{kept}")

# %% [markdown]
# **Next**: [lesson 6](06_gpt2_whole.ipynb), the whole of GPT-2: where attention stands in it, and
# what stands around it.
