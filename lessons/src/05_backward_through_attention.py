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
# You need [lesson 4](04_self_attention.ipynb). It takes about an
# hour: 25 minutes to read and run, 20 for your own file, 15 for two exercises. What follows under
# *Going further* is not needed later.

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
    matrix(ax, values, f"how fast y moves with a {name}", f"{name} of token", limit=1.5)
axes[0].set_ylabel("row of y")
picture(fig)

# %% [markdown]
# A query is read by its own row only. A key and a value are read by every row that may look at
# them: a *column* of the picture. The chain rule adds over all paths, so $dk$ and $dv$ of a token
# must be sums over this token and later ones, and $dq$ must not.
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
# | | $dk = dS^\top q / \sqrt D$ | $d(k^\top) = q^\top dS / \sqrt D$, with both sides transposed |
#
# The sum in the bracket is the *weighted* mean of a row of $dA$, with the row of $A$ as weights.
# The two transposes belong to the two right panels of the picture: $dv_s = \sum_t A_{ts}\, dy_t$
# collects from every token $t$ that looked at $s$.
#
# *On paper, 2 minutes.* A row of $A$ is $(\tfrac12, \tfrac12)$ and the same row of $dA$ is
# $(1, 0)$. What is $dS$? And if the row of $A$ is $(1, 0)$?
#
# <details><summary>Answer</summary>The weighted mean is 1/2, so dS = (1/4, -1/4). With (1, 0) the
# mean is 1 and dS = (0, 0): a head that is sure learns nothing about where to look.</details>
#
# Where is the mask? It hides all that is above the diagonal. Before you run the cell: how many of
# the 15 entries above the diagonal of $dA$ are not 0?

# %%
guess = ...                                               # of dA

# %%
y, A = attend(q, k, v)
dy = rng.standard_normal((T, D))

dA = dy @ v.T                                             # (T, T)
dv = A.T @ dy                                             # (T, D)
dS = A * (dA - (A * dA).sum(axis=1, keepdims=True))       # (T, T)
dq = dS @ k / math.sqrt(D)                                # (T, D)
dk = dS.T @ q / math.sqrt(D)                              # (T, D)

above = np.triu_indices(T, 1)
reveal(guess, int((dA[above] != 0).sum()))
print("above the diagonal of dS:", int((dS[above] != 0).sum()))


# %% [markdown]
# $dA$ knows nothing of the mask: it says what *would* help if the token could look there. But
# $A_{ts} = 0$ multiplies the bracket, so nothing gets through. The backward pass needs no line for
# the mask, as long as it reads the $A$ of the forward pass.
#
# To go back through a product you need its *other* matrix of the forward pass; to go back through
# the softmax you need $A$, its result. That is why there is a cache.
#
# The library does the same for all heads and sequences at once; in its cache $A$ is called
# `probabilities`. Dropout, where it is on, multiplies $A$ by a mask of 0 and $1/(1-p)$ before the
# product with $v$; an entry that was dropped gets no gradient. The library computes $dS$ by lesson
# 2's function. Is all of it right? `gradcheck` moves each number up and down, as in lesson 1.

# %%
show(F.softmax_backward)
_, cache = F.attention(np.concatenate([q, k, v], axis=-1)[None], 1)           # one head
library = F.attention_backward(dy[None], cache)[0]
print(f"ours against the library's: {np.abs(np.hstack([dq, dk, dv]) - library).max():.0e}")
qkv = rng.standard_normal((2, 5, 3 * 6))                  # (B, T, 3C), H = 2, D = 3
print(minifpt.gradcheck(F.attention, F.attention_backward, (qkv,), n_head=2))

# %% [markdown]
# ("qkv direction 7": an array of more than 64 numbers is checked at a few entries and along eight
# random directions, in which all entries move at once.)
#
# ## What gets through
#
# The scores are where attention learns *where* to look; the values are *what* it brings. Both
# depend on the same $dy$. We make the queries longer and longer, so that each row of $A$ goes from
# equal shares to a single token. What do you expect of the size of $dS$, from the first to the
# last: `"up"`, `"down"`, or `"up, then down"`? (The length of a matrix is the root of the sum of
# its squares.)

# %%
guess = ...

# %%
def lengths(size, T=32, D=16, H=8):
    """Largest share, length of dS and of dv, with queries of a given size."""
    rng = np.random.default_rng(0)
    q, k, v, dy = rng.standard_normal((4, 1, T, H * D))
    _, cache = F.attention(np.concatenate([size * q, k, v], axis=-1), H)
    A = cache.probabilities
    dA = dy.reshape(1, T, H, D).swapaxes(1, 2) @ cache.v.swapaxes(-1, -2)
    dv = F.attention_backward(dy, cache)[..., 2 * H * D:]
    return (A.max(axis=-1).mean(), np.linalg.norm(F.softmax_backward(dA, F.SoftmaxCache(A))),
            np.linalg.norm(dv))


query_sizes = np.geomspace(0.1, 100, 16)
share, length_S, length_v = np.array([lengths(size) for size in query_sizes]).T
peak = int(length_S.argmax())
down = length_S[-1] < length_S[peak]
reveal(guess, ("up, then down" if 0 < peak and down else "down" if down else "up"))
print(f"largest share: {share[0]:.2f} at first, {share[peak]:.2f} where dS is longest, "
      f"{share[-1]:.2f} at last")
curves({"dv": length_v / length_v[0], "dS": length_S / length_S[0]}, "Sharper and sharper",
       "size of the queries", "length, relative to the first", x=query_sizes, log="x",
       inks=(color.grey, color.teal), styles=("--", "-"), ylim=(0, None))

# %% [markdown]
# Up, then down. A head with equal shares passes some gradient to its scores. A head that prefers a
# few tokens passes a little more. A head that is sure passes little: $A_{ts}$ is nearly 0 for all
# tokens but one, and for that one the bracket is nearly 0. $dv$ goes the other way: a value that
# one token takes whole gets its gradient whole. (One draw, eight heads of 32 tokens.) So a head
# that is sure of where to look still learns what to bring.
#
# ## One head recalls, on your own gradient
#
# Write `attention_backward` in `mine.py`. It is the longest function of these lessons (20 minutes).
# Then the head of lesson 4 trains again: five strings of 20 bits, and one of them with half of it
# hidden. Now the gradient that turns its queries and keys is yours as well.

# %%
task = minifpt.tasks.get("bit-memory", bits=20, patch=20)


def recall(seed, steps=150):
    """-> the bits right (%), every 25 steps"""
    model = minifpt.FPT.for_task(task, "random:1x1x64@1.41", seed=seed, dropout=0.0)
    history = minifpt.train(model, task, steps, batch_size=16, lr=1e-2, seed=seed, warmup=0,
                            schedule="constant", eval_every=25, test_examples=256,
                            progress=False)
    return 100 * history["test_accuracy"]


with written("mine.py", "linear_backward", "layer_norm_backward", "positions_backward",
             "attention", "attention_backward") as whose:
    runs = [recall(seed) for seed in range(5)]
curves({"": runs}, f"One frozen random head, five seeds (dotted: copy and guess)\n{whose}",
       ylabel="bits right (%)", x=range(25, 151, 25), inks=[color.random], level=75)

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
# **3.** Instead of position embeddings, some models add a learned number for each *distance* to
# the scores: $S_{ts} = q_t \cdot k_s / \sqrt D + b_{t-s}$, with $b$ `(T,)` shared by all heads.
# What is $db$? How many paths does $b_0$ have?

# %%
def distance_gradient(dA, A):
    """dA, A (H, T, T), A causal -> db (T,)"""
    return ...


check("distance_gradient", distance_gradient)


# %% [markdown]
# ## Going further
#
# **Which data shows a mistake?** Here is the backward pass with a switch for five mistakes that
# people make: the weighted mean left out of $dS$, $dk = dS\,q$ without its transpose, no $\sqrt D$
# on the way back, the dropout mask forgotten, and the heads put side by side without being moved
# back. On rich data `gradcheck` finds all five. A favourite is a single token, because it is so
# easy to do by hand. With $T = 1$, how many of the five does the check still find?

# %%
guess = ...                                               # of 5

# %%
def backward(dy, cache, mistake=None):
    """F.attention_backward, and what can go wrong in it"""
    q, k, v, A, dropped = cache.q, cache.k, cache.v, cache.probabilities, cache.mask
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).swapaxes(1, 2)            # (B, H, T, D)
    if dropped is None or mistake == "no dropout mask":
        dropped = np.ones_like(A)
    dA = dropped * (dy @ v.swapaxes(-1, -2))
    mean = 0 if mistake == "no weighted mean" else (A * dA).sum(axis=-1, keepdims=True)
    dS = A * (dA - mean)
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


mistakes = [None, "no weighted mean", "no transpose", "no √D", "no dropout mask",
            "heads not moved back"]
data = {"T = 1": {"T": 1}, "D = 1": {"D": 1}, "H = 1": {"H": 1}, "p = 0": {"p": 0},
        "all of it": {}}
errors = np.array([[check_backward(mistake, **sizes).max_relative_error
                    for sizes in data.values()] for mistake in mistakes])
reveal(guess, int((errors[1:, 0] > 1e-6).sum()))

fig, (ax,) = figure(width=6.2, height=3.2)
digits = np.clip(-np.log10(errors), 0, None)
matrix(ax, digits, "Digits that agree: 6 or more, and it passes", "test data", limit=14,
       digits=0, columns=list(data), rows=["as it is", *mistakes[1:]])
picture(fig)

# %% [markdown]
# Read a column from the second row on: each dark cell is a mistake that this data does not show.
# With one token the share is always 1, so the right $dS$ is 0; transposed or not, with its factor
# or without, it stays 0. With one channel a head $\sqrt D = 1$. With one token, or one head, there
# is nothing to move. Only the last column is light all the way down: the *shape* of test data has
# to be more than one of everything.
#
# **Heads that have learned to look.** We let the shipped language model predict a text, carry the
# loss back, and record both passes with `minifpt.trace`. Inside each attention layer it finds the
# softmax, with the $dA$ that came in and the $dS$ that went out. For each head: which share of its
# $dA$ is left in $dS$? (Of $dA$ only the entries that the mask leaves count, and of the rows only
# those from the ninth on, where there is a choice.)

# %%
text = ("The door stood open, and there was no light in the hall.\n"
        '"Somebody has been here," said the old man, and he put his\n'
        "hand upon the table, where the dust of a whole winter lay.\n"
        "There were the marks of five fingers in it, and they were\n"
        "not his own.")
ids = np.array([Bytes().encode(text)])                    # (1, T + 1)
lm = minifpt.LanguageModel.from_pretrained("minigpt-language", dtype=np.float64)
with minifpt.trace(lm) as t:
    logits, cache = lm.forward(ids[:, :-1])
    loss, cache_loss = F.cross_entropy(logits, ids[:, 1:])
    lm.backward(F.cross_entropy_backward(1.0, cache_loss), cache)

largest, passed = {}, {}                                  # layer -> (H,)
for step in t.steps:
    if step.op == "softmax" and step.backward:
        A, dA, dS = (a[0, :, 8:] for a in (t.attention[step.layer],
                                           np.tril(step.inputs["dy"]), step.output))
        largest[step.layer] = A.max(axis=-1).mean(axis=-1)
        passed[step.layer] = 100 * (np.linalg.norm(dS, axis=(1, 2))
                                    / np.linalg.norm(dA, axis=(1, 2)))

first = "trunk.h.0.attn"
fig, (ax,) = figure(width=5, height=3.1)
for layer in largest:
    ax.plot(largest[layer], passed[layer], "s" if layer == first else "o",
            color=color.language if layer == first else color.grey)
for h, spot in enumerate(zip(largest[first], passed[first], strict=True)):
    ax.annotate(f"head {h}", spot, (-3, -16) if h == 2 else (6, 4), fontsize=8,
                textcoords="offset points", ha="center" if h == 2 else "left")
ax.set(title="The language model's 24 heads, one text (squares: block 0)", xlim=(0, 1.1),
       xlabel="largest share of a row, mean over rows", ylabel="length of dS, % of dA's",
       ylim=(0, None))
picture(fig)

# %% [markdown]
# The sharpest one, head 3 of block 0, which looks at the byte before (lesson 4), is among those
# that pass least. But the points are widely scattered: what a head passes depends on its $dA$ as
# well.
#
# **A whole step.** Here is every operation of a step of a small model on bit XOR: the way forward
# above, and below it the gradients on the way back, which starts at the loss on the right. Pink
# operations have weights that are trained, hatched ones have frozen weights, for which no $dw$ is
# computed.

# %%
bits = minifpt.tasks.get("bit-xor")
small = minifpt.FPT.for_task(bits, "random:2x4x32@0.11", seed=0, dropout=0.0)
small.freeze(minifpt.FreezeMask.fpt())
whole = minifpt.steps(small, bits, progress=False)
picture(whole.figure())

# %% [markdown]
# Run the next cell: it shows the same step as a page, to be stepped through with the arrow keys.
# (The stored notebook is without it, because it is large.) A click on a number of a gradient shows
# its formula beside a finite difference. The third of five switches puts in a backward pass that
# does not keep $A$: it computes $A$ anew from $q$ and $k$, and forgets the mask there. Which number
# of the backward pass changes first?

# %%
whole

# %% [markdown]
# **4.** *Open.* Most entries of $dS$ are close to 0. If we knew which, we could skip them. But we
# want to know *before* $dA$ is computed, from $A$ alone. Choose $n$ entries, and keep nearly as
# much of $\lVert dS \rVert^2$, on average over random $dA$, as $n$ entries can hold. Some rows of
# $A$ have nearly equal shares, some give all to one token. Then measure it on the language model's
# maps and its own $dA$ with the cell below, where $n$ is the number of tokens. How many entries do
# you need for 95 %? Does it help to know which block you are in?

# %%
def worth_computing(A, n):
    """A (T, T) causal, n -> (T, T) of True and False, True n times"""
    return ...


check("worth_computing", worth_computing)

# %%
n = A.shape[-1]                                           # as many entries as tokens
for step in t.steps[::-1]:
    if step.op == "softmax" and step.backward and step.layer in (first, "trunk.h.5.attn"):
        for h, (A, dS) in enumerate(zip(t.attention[step.layer][0], step.output[0], strict=True)):
            square = dS ** 2
            best = np.sort(square, axis=None)[-n:].sum() / square.sum()
            mine = worth_computing(A, n)
            kept = "" if mine is ... else f", yours {square[mine].sum() / square.sum():.0%}"
            print(f"{step.layer} head {h}: the best {n} of {n * n} entries hold {best:.0%}{kept}")

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
