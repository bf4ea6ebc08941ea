# %% [markdown]
# # 24. Who gets the gradient?
#
# **Attention multiplies activations by activations, with a softmax in between. A gradient arrives
# at its output. How much of it goes to the queries, how much to the keys, how much to the values?**
#
# After this lesson you can
#
# - say which outputs a query, a key and a value reach;
# - derive the way back through attention from two rules that you know;
# - say when attention learns where to look, and when it cannot.
#
# **What we know by now.** A token asks with its query, others find it by its key, and it hands over
# its value. A model with one frozen random head learned to recall a string, and the library
# computed its gradient.
#
# **The question:** Who gets the gradient?
#
# You need [lesson 4](04_self_attention.ipynb). In the spine this lesson stands between 4 and 5.

# %%
# Not to be read: imports, and a picture of the whole model.
import math

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, model_map, picture, reveal, show
from minifpt.files.tokenizer import Bytes

model_map("attention", gradient=True)

# %% [markdown]
# ## Who moves whom?
#
# We take one head with queries $q$, keys $k$ and values $v$, each `(T, D)`. Its output is $y$
# `(T, D)`.
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
    """One head -> y (T, D), and A (T, T)"""
    S = q @ k.T / math.sqrt(q.shape[1]) + F.causal_mask(len(q), len(k), q.dtype)
    A, _ = F.softmax(S)
    return A @ v, A


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

# %%
# Not to be read: a picture.
fig, axes = figure(3, width=2.9, height=2.8)
for ax, name, values in zip(axes, ("query", "key", "value"), measured, strict=True):
    matrix(ax, values, f"how fast y moves with a {name}", f"{name} of token", limit=1.5)
axes[0].set_ylabel("row of y")
picture(fig)

# %% [markdown]
# **This is the picture to keep.** Only a token's own row reads its query: the left panel is a
# diagonal. But every token that may look at token 2 reads its key, and these are the tokens 2 to 5.
# A key and a value move a *column*. The chain rule adds over all paths. So $dk$ and $dv$ of a token
# are sums over this token and later ones, and $dq$ is not.
#
# Look at token 0 as well. Its value moves row 0. Why do its query and its key not? It can look at
# one token only, so the share is 1, and nothing can change that.
#
# ## Three steps back
#
# Now $dy$ `(T, D)` arrives. We know everything that we need. There are two matrix products: in
# lesson 1, $y = x\,w$ gave $dx = dy\,w^\top$ and $dw = x^\top dy$. Between them stands the softmax
# of lesson 2.
#
# | forward | backward | why |
# |---|---|---|
# | $y = A\,v$ | $dA = dy\,v^\top$ | a product: $A$ stands where $x$ stood |
# | | $dv = A^\top dy$ | and $v$ where $w$ stood |
# | $A = \text{softmax}(S)$ | $dS_{ts} = A_{ts} (dA_{ts} - \sum_r A_{tr}\, dA_{tr})$ | lesson 2 |
# | $S = q\,k^\top / \sqrt D$ | $dq = dS\,k / \sqrt D$ | a product, and a factor |
# | | $dk = dS^\top q / \sqrt D$ | $k$ came in transposed, and so does $dS$ |
#
# The sum in the bracket is the *weighted mean* of a row of $dA$: the row of $A$ holds the weights.
# So the bracket asks whether looking at this token raises the loss more than looking at an average
# token of the row. If it does, its score must fall. The two transposes are the columns of the
# picture: $dv_s = \sum_t A_{ts}\, dy_t$ collects from every token $t$ that looked at $s$.
#
# *On paper.* A row of $A$ is $(\tfrac12, \tfrac12)$, and the same row of $dA$ is $(1, 0)$. What is
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
y, A = attend(q, k, v)
dy = rng.standard_normal((T, D))
dA = dy @ v.T                                             # (T, T)
dS = A * (dA - (A * dA).sum(axis=1, keepdims=True))       # (T, T)
above = np.triu_indices(T, 1)
reveal(guess, int((dA[above] != 0).sum()))
print("not 0 above the diagonal of dS:", int((dS[above] != 0).sum()))

# %% [markdown]
# None of them is 0, although the mask hides them. $dA = dy\,v^\top$ knows nothing of the mask: it
# says what *would* help if the token could look there. But $A_{ts} = 0$ multiplies the bracket, so
# nothing gets through to $dS$. The backward pass needs no line for the mask, as long as it reads
# the $A$ of the forward pass. That is why we keep a cache. The library's lines are those of lesson
# 2:

# %%
show(F.softmax_backward)

# %% [markdown]
# ## What gets through
#
# Through its scores, attention learns *where* to look. Through its values it learns *what* to
# bring. Both depend on the same $dy$. Now we make the queries longer and longer, so that each row
# of $A$ goes from equal shares to a single token. What happens to the length of $dS$: `"up"`,
# `"down"`, or `"up, then down"`? (The length of a matrix is the root of the sum of its squares.)

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
curves({"dv": length_v / length_v[0], "dS": length_S / length_S[0]},
       "A sure head gets much gradient for its values, little for its scores",
       "size of the queries", "length, relative to the first", x=query_sizes, log="x",
       inks=(color.grey, color.teal), styles=("--", "-"), ylim=(0, None))

# %% [markdown]
# Why up at first? With equal shares over $n$ tokens every factor $A_{ts}$ is $1/n$, which is small.
# As shares grow, so does $dS$. Why down in the end? Once a head is sure where to look, hardly any
# gradient reaches its scores: $A_{ts}$ is nearly 0 for all tokens but one, and for that one the
# bracket is nearly 0, as you saw on paper. $dv$ goes the other way: if a token takes one value
# whole, that value gets the whole of the token's gradient. (One draw, eight heads of 32 tokens.)
#
# So a head must learn where to look while it is still unsure.
#
# ## Exercises
#
# **1.** In one head only the last $n$ of the $T$ tokens have a query; all $T$ have a key and a
# value. What is the gradient of the values?

# %%
def value_gradient(dy, A):
    """dy (n, D), A (n, T) -> dv (T, D)"""
    return ...


check("value_gradient", value_gradient)


# %% [markdown]
# **2.** Each row of $dS$ needs a weighted mean, $\sum_r A_{tr}\, dA_{tr}$. Put in $dA =
# dy\,v^\top$, and you will see that you need neither $A$ nor $dA$. Compute the mean from $dy$ and
# the output $y$ alone. (FlashAttention, the fast attention of today's models, saves its memory by
# this line.)

# %%
def weighted_means(dy, y):
    """dy, y (T, D), for y = A v and dA = dy v^T -> the weighted mean of each row of dA, (T,)"""
    return ...


check("weighted_means", weighted_means)


# %% [markdown]
# ## Going further
#
# **A whole step** of a small model on bit XOR fills a page. Put `whole` in a cell of its own, and
# it shows every operation, forward and then back, with its numbers. Here is one of its matrices:
# $dS$ of one head in the last block, for one example. The first five rows are 0, because the loss
# reads the answers of the last five tokens only. Each row adds up to 0, because no share changes if
# all scores of a row move together.

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
# want to know *before* we compute $dA$, from $A$ alone. Choose $n$ entries of $dS$. On average over
# random $dA$ they should hold nearly as much of $\lVert dS \rVert^2$ as the best $n$ do. Some rows
# of $A$ have nearly equal shares, some give all to one token. Then measure it with the cell below,
# on the first and the last block of the trunk *language* and its own $dS$. Does it help to know
# which block you are in?

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
# query moves its own row, a diagonal; a key and a value move a column.
#
# **The sentence to remember:** *A head that is sure learns what to bring, and no longer where to
# look.*
#
# **What we do not know yet.** We can say what the gradient does. Can you write it, and would you
# notice a mistake in it?
#
# **Next**: [lesson 5](05_backward_through_attention.ipynb), backward through attention, on your own
# file.
