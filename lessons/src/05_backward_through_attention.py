# %% [markdown]
# # 5. Backward through attention
#
# **Attention multiplies activations by activations, with a softmax in between. A gradient
# arrives at its output. How much of it goes to the queries, how much to the keys, how much to
# the values?**
#
# After this lesson you can
#
# - say which outputs a query, a key and a value reach, and read the backward pass off that;
# - derive all of it from two rules that you know, and write it in five lines;
# - say when attention learns where to look, and when it cannot.
#
# **What we know by now.** A token asks with its query, is found by its key, and hands over its
# value. One head with frozen random weights recalled a string, on the library's gradient.
#
# **The question:** Who gets the gradient?
#
# You need [lesson 4](04_self_attention.ipynb).

# %%
import math

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.files.tokenizer import Bytes

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
q, k, v = qkv = rng.standard_normal((3, T, D))


def attend(q, k, v):
    """One head -> y (T, D), and a cache with A (T, T)"""
    S = q @ k.T / math.sqrt(q.shape[1]) + F.causal_mask(len(q), len(k), q.dtype)
    A, _ = F.softmax(S)
    return A @ v, (q, k, v, A)


def rates(part, h=1e-5):
    """(T, T): how fast row t of y moves with row s of q (part 0), k (1) or v (2)"""
    squares = np.zeros((T, T))
    for s, d in np.ndindex(T, D):
        step = np.zeros((3, T, D))
        step[part, s, d] = h
        move = (attend(*(qkv + step))[0] - attend(*(qkv - step))[0]) / (2 * h)
        squares[:, s] += (move ** 2).sum(axis=1)
    return np.sqrt(squares)


measured = [rates(part) for part in range(3)]
reveal(guess, int((measured[1][:, 2] > 0).sum()))

fig, axes = figure(3, width=2.9, height=2.8)
for ax, name, values in zip(axes, ("query", "key", "value"), measured, strict=True):
    matrix(ax, values, f"how fast y moves with a {name}", f"{name} of token", limit=1.5)
axes[0].set_ylabel("row of y")
picture(fig)

# %% [markdown]
# **This is the picture to keep.** A query is read by its own row only. A key and a value are read
# by every row that may look at them: a *column* of the picture. The chain rule adds over all paths,
# so $dk$ and $dv$ of a token must be sums over this token and later ones, and $dq$ must not.
#
# Look at token 0 as well. Its value moves row 0. Its query and its key do not: it has only one
# token to look at, the share is 1, and nothing can change that.
#
# ## Three steps back
#
# $dy$ `(T, D)` arrives. Nothing here is new. There are two matrix products, as in lesson 1, where
# $y = x\,w$ gave $dx = dy\,w^\top$ and $dw = x^\top dy$; between them is the softmax of lesson 2.
#
# | forward | backward | why |
# |---|---|---|
# | $y = A\,v$ | $dA = dy\,v^\top$ | a product: $A$ stands where $x$ stood |
# | | $dv = A^\top dy$ | and $v$ where $w$ stood |
# | $A = \text{softmax}(S)$ | $dS_{ts} = A_{ts} (dA_{ts} - \sum_r A_{tr}\, dA_{tr})$ | lesson 2 |
# | $S = q\,k^\top / \sqrt D$ | $dq = dS\,k / \sqrt D$ | a product, and a factor |
# | | $dk = dS^\top q / \sqrt D$ | $k$ came in transposed, and so does $dS$ |
#
# The sum in the bracket is the *weighted* mean of a row of $dA$, with the row of $A$ as weights.
# The two transposes belong to the two right panels of the picture: $dv_s = \sum_t A_{ts}\, dy_t$
# collects from every token $t$ that looked at $s$.
#
# *On paper.* A row of $A$ is $(\tfrac12, \tfrac12)$ and the same row of $dA$ is $(1, 0)$. What is
# $dS$? And if the row of $A$ is $(1, 0)$?
#
# <details><summary>Answer</summary>The weighted mean is 1/2, so dS = (1/4, -1/4). With (1, 0) the
# mean is 1 and dS = (0, 0).</details>
#
# Where is the mask? It hides the 15 entries above the diagonal. How many of these 15 are not 0 in
# $dA$?

# %%
guess = ...                                               # of dA

# %%
y, (_, _, _, A) = attend(q, k, v)
dy = rng.standard_normal((T, D))

dA = dy @ v.T                                             # (T, T)
dv = A.T @ dy                                             # (T, D)
dS = A * (dA - (A * dA).sum(axis=1, keepdims=True))       # (T, T)
dq = dS @ k / math.sqrt(D)                                # (T, D)
dk = dS.T @ q / math.sqrt(D)                              # (T, D)

above = np.triu_indices(T, 1)
reveal(guess, int((dA[above] != 0).sum()))
print("above the diagonal of dS:", int((dS[above] != 0).sum()))
show(F.softmax_backward)

# %% [markdown]
# $dA$ knows nothing of the mask: it says what *would* help if the token could look there. But
# $A_{ts} = 0$ multiplies the bracket, so nothing gets through. The backward pass needs no line for
# the mask, as long as it reads the $A$ of the forward pass. That is why there is a cache.
#
# ## Which data shows a mistake?
#
# Three mistakes are common: the weighted mean is left out, $dS$ is not transposed for $dk$, or the
# factor $1/\sqrt D$ is left out. `gradcheck` moves each number up and down, as in lesson 1. A
# favourite for such a test is a single token, which is easy to do by hand. How many of the three
# does the check find with $T = 1$?

# %%
guess = ...                                               # of 3


# %%
def attend_backward(dy, cache, mistake):
    q, k, v, A = cache
    root = 1 if mistake == "no √D" else math.sqrt(q.shape[1])
    dA = dy @ v.T
    mean = 0 if mistake == "no weighted mean" else (A * dA).sum(axis=1, keepdims=True)
    dS = A * (dA - mean)
    dk = (dS if mistake == "no transpose" else dS.T) @ q / root
    return dS @ k / root, dk, A.T @ dy


def finds(mistake, T, D):
    """Whether gradcheck refuses this backward pass on random data of this shape"""
    inputs = np.random.default_rng(1).standard_normal((3, T, D))
    return not minifpt.gradcheck(
        attend, lambda dy, cache: attend_backward(dy, cache, mistake), tuple(inputs))


MISTAKES = "no weighted mean", "no transpose", "no √D"
reveal(guess, sum(finds(mistake, 1, 3) for mistake in MISTAKES), "of 3")
for mistake in ("none", *MISTAKES):
    print(f"{mistake:17}", *(f"T = {T}, D = {D}: {'found' if finds(mistake, T, D) else 'passes':8}"
                             for T, D in ((1, 3), (6, 1), (6, 3))))

# %% [markdown]
# With one token the share is 1 and the right $dS$ is 0: transposed or not, with its factor or
# without, it stays 0. With one channel $\sqrt D = 1$. Every axis of test data must be longer than
# 1.
#
# ## What gets through
#
# The scores are where attention learns *where* to look; the values are *what* it brings. Both
# depend on the same $dy$. We make the queries longer and longer, so that each row of $A$ goes from
# equal shares to a single token. What do you expect of the length of $dS$, from the first to the
# last: `"up"`, `"down"`, or `"up, then down"`? (The length of a matrix is the root of the sum of
# its squares.)

# %%
guess = ...

# %%
def lengths(size, T=32, D=16, H=8):
    """Lengths of dS and of dv, with queries of a given size."""
    rng = np.random.default_rng(0)
    q, k, v, dy = rng.standard_normal((4, 1, H, T, D))
    _, cache = F.attention(size * q, k, v)
    dA = dy @ v.swapaxes(-1, -2)
    _, _, dv, _ = F.attention_backward(dy, cache)
    dS = F.softmax_backward(dA, F.SoftmaxCache(cache.probabilities))
    return np.linalg.norm(dS), np.linalg.norm(dv)


query_sizes = np.geomspace(0.1, 100, 16)
length_S, length_v = np.array([lengths(size) for size in query_sizes]).T
peak = int(length_S.argmax())
reveal(guess, "down" if peak == 0 else "up, then down" if peak < 15 else "up")
curves({"dv": length_v / length_v[0], "dS": length_S / length_S[0]}, "Sharper and sharper",
       "size of the queries", "length, relative to the first", x=query_sizes, log="x",
       inks=(color.grey, color.teal), styles=("--", "-"), ylim=(0, None))

# %% [markdown]
# Up, then down. A head that is sure passes little: $A_{ts}$ is nearly 0 for all tokens but one, and
# for that one the bracket is nearly 0. $dv$ goes the other way: a value that one token takes whole
# gets its gradient whole. (One draw, eight heads of 32 tokens.)
#
# ## One head recalls, on your own gradient
#
# Write `attention_backward` in `mine.py`. It returns `dq`, `dk`, `dv` and `dbias`, which is `None`
# where there was no bias. `mask` in its cache is dropout's, not the causal mask: $v$ met
# `A * mask`, or `A` where `mask` is `None`. Then the head of lesson 4 trains again: the
# gradient that reaches the layers below it is now yours as well.

# %%
task = minifpt.tasks.get("bit-memory", bits=20, patch=20)
model = minifpt.FPT.for_task(task, "random:1x1x64@1.41", seed=0, dropout=0.0)
with written("mine.py", "linear_backward", "layer_norm_backward", "positions_backward",
             "attention", "attention_backward") as whose:
    history = minifpt.train(model, task, 150, batch_size=16, lr=1e-2, seed=0, warmup=0,
                            schedule="constant", eval_every=25, test_examples=256)
curves({"": 100 * history["test_accuracy"]}, "One frozen random head (dotted: copy and guess)\n"
       f"{whose}", ylabel="bits right (%)", x=history["step"], inks=[color.random], level=75)

# %% [markdown]
# ## Exercises
#
# **1.** One head in which only the last $n$ of the $T$ tokens have a query; all $T$ have a key and
# a value. What is the gradient of the values?

# %%
def value_gradient(dy, A):
    """dy (n, D), A (n, T) -> dv (T, D)"""
    return ...


check("value_gradient", value_gradient)


# %% [markdown]
# **2.** To save memory, many models give all heads *one* set of keys and values (**multi-query
# attention**): $q$ `(H, T, D)`, but $k$ and $v$ `(T, D)`. Write its backward pass.

# %%
def multi_query_backward(dy, q, k, v, A):
    """dy, q (H, T, D), k, v (T, D), A (H, T, T) -> dq (H, T, D), dk, dv (T, D)"""
    dq = ...
    dk = ...
    dv = ...
    return dq, dk, dv


check("multi_query_backward", multi_query_backward)


# %% [markdown]
# ## Going further
#
# **A whole step** of a small model on bit XOR is a page: `whole` in a cell of its own shows every
# operation, forward and then back, with its numbers. Here is one of its matrices: $dS$ of one head
# in the last block, for one example. The first five rows are 0: the loss reads the answers of the
# last five tokens only. Each row adds up to 0: moving all scores of a row together changes no
# share.

# %%
bits = minifpt.tasks.get("bit-xor")
small = minifpt.FPT.for_task(bits, "random:2x4x32", seed=0, dropout=0.0)
small.freeze(minifpt.FreezeMask.fpt())
whole = minifpt.steps(small, bits, progress=False)
back = next(s for s in whole.data["steps"] if s["back"] and s["name"].endswith("attn.softmax"))
dS = whole.array(back["out"][0]["array"])[0, 0]           # of the first example and head
fig, (ax,) = figure(1, width=3.4, height=3.2)
matrix(ax, dS, "dS", "key of token", digits=None)
ax.set_ylabel("query of token")
picture(fig)

# %% [markdown]
# **3.** *Open.* Most entries of $dS$ are close to 0. If we knew which, we could skip them. But we
# want to know *before* $dA$ is computed, from $A$ alone. Choose $n$ entries, and keep nearly as
# much of $\lVert dS \rVert^2$, on average over random $dA$, as $n$ entries can hold. Some rows of
# $A$ have nearly equal shares, some give all to one token. Then measure it with the cell below: the
# maps of the first and the last block of the language model that ships, and its own $dS$. Does it
# help to know which block you are in?

# %%
def worth_computing(A, n):
    """A (T, T) causal, n -> (T, T) of True and False, True n times"""
    return ...


check("worth_computing", worth_computing)

# %%
ids = np.array([Bytes().encode("The door stood open, and there was no light in the hall.\n")])
model = minifpt.LanguageModel.from_pretrained("minigpt-language")
with minifpt.trace(model) as t:
    logits, cache = model.forward(ids[:, :-1])
    _, cache_loss = F.cross_entropy(logits, ids[:, 1:])
    model.backward(F.cross_entropy_backward(1.0, cache_loss), cache)

for step in t.steps[::-1]:
    if step.op == "softmax" and step.backward and step.layer in ("trunk.h.0.attn",
                                                                 "trunk.h.5.attn"):
        for h, (A, dS) in enumerate(zip(t.attention[step.layer][0], step.output[0], strict=True)):
            square, n = dS ** 2, len(A)                   # as many entries as tokens
            best = np.sort(square, axis=None)[-n:].sum() / square.sum()
            mine = worth_computing(A, n)
            held = "" if mine is ... else f", yours {square[mine].sum() / square.sum():.0%}"
            print(f"{step.layer} head {h}: the best {n} of {n * n} entries hold {best:.0%}{held}")

# %% [markdown]
# **The picture to keep:** how fast each row of y moves with each token's query, key or value: a
# query moves its row, a key and a value move a column.
#
# **The sentence to remember:** *A head that is sure learns what to bring, and no longer where to
# look.*
#
# **What we do not know yet.** We have the parts of a block. What holds twelve of them together, and
# how does a gradient get through all of them?
#
# **Next**: [lesson 6](06_gpt2_whole.ipynb), the whole of GPT-2: where attention sits in it, and
# what is around it.
