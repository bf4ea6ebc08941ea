# %% [markdown]
# # 5. Backward through attention
#
# **You know what the gradient says to queries, keys and values. Now you write it. Would you notice
# a mistake?**
#
# After this lesson you can
#
# - write the way back through attention, for one head and for all heads at once;
# - choose test data on which no mistake can hide;
# - say what a wrong gradient costs, and why a falling loss proves little.
#
# **What we know by now.** A query moves its own row, a key and a value move a column. A head that
# is sure hands hardly any gradient to its scores ([lesson 24](24_who_gets_the_gradient.ipynb)).
#
# **The question:** Is my gradient right?
#
# You need lesson [24](24_who_gets_the_gradient.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
import math

import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, model_map, reveal, show
from minifpt.exercises.track import written
from minifpt.fast import standing_in

model_map("attention", gradient=True)

# %% [markdown]
# ## Five lines
#
# This is the table of lesson 24, line by line. The cache holds what the way back reads: $q$, $k$,
# $v$ and the map $A$ of the forward pass.
#
# $$ dA = dy\,v^\top \qquad dS = A \cdot \big(dA - \text{weighted mean}\big) \qquad
#    dq = \frac{dS\,k}{\sqrt D} \qquad dk = \frac{dS^\top q}{\sqrt D} \qquad dv = A^\top dy $$

# %%
def attend(q, k, v):
    """One head: q, k, v (T, D) -> y (T, D), and a cache with A (T, T)"""
    S = q @ k.T / math.sqrt(q.shape[1]) + F.causal_mask(len(q), len(k), q.dtype)
    A, _ = F.softmax(S)
    return A @ v, (q, k, v, A)


def attend_backward(dy, cache, mistake=""):
    q, k, v, A = cache
    root = 1 if mistake == "no √D" else math.sqrt(q.shape[-1])
    dA = dy @ v.swapaxes(-1, -2)
    mean = 0 if mistake == "no weighted mean" else (A * dA).sum(axis=-1, keepdims=True)
    dS = A * (dA - mean)
    dk = (dS if mistake == "no transpose" else dS.swapaxes(-1, -2)) @ q / root
    return dS @ k / root, dk, A.swapaxes(-1, -2) @ dy


print(minifpt.gradcheck(attend, attend_backward, tuple(
    np.random.default_rng(0).standard_normal((3, 6, 2)))))

# %% [markdown]
# ## On which data does a mistake show?
#
# Many of us have made one of these three mistakes: we leave out the weighted mean, we do not
# transpose $dS$ for $dk$, or we leave out the factor $1/\sqrt D$. `attend_backward` makes each on
# request. You want to test it on something that you can follow by hand, so you take a single token.
# How many of the three mistakes does `gradcheck` find with $T = 1$?

# %%
guess = ...                                               # of 3


# %%
def finds(mistake, T, D):
    """Whether gradcheck refuses this backward pass on random data of this shape"""
    inputs = np.random.default_rng(1).standard_normal((3, T, D))
    return not minifpt.gradcheck(
        attend, lambda dy, cache: attend_backward(dy, cache, mistake), tuple(inputs))


MISTAKES = "no weighted mean", "no transpose", "no √D"
reveal(guess, sum(finds(mistake, 1, 3) for mistake in MISTAKES), "of 3")
for mistake in ("", *MISTAKES):
    print(f"{mistake or 'no mistake':17}", *(
        f"T = {T}, D = {D}: {'found' if finds(mistake, T, D) else 'passes':8}"
        for T, D in ((1, 3), (6, 1), (6, 3))))

# %% [markdown]
# With one token the share is 1, and the right $dS$ is 0. Transposed or not, with its factor or
# without, it stays 0. Only a missing mean changes it. With one channel, $\sqrt D$ is 1, and leaving
# it out changes nothing. So each axis of your test data must be longer than 1, and no two may be
# equal, or else two exchanged axes do not show.
#
# ## All heads at once, on your own file
#
# The library passes `(B, H, T, D)`, so a transpose is `swapaxes(-1, -2)`. Write
# `attention_backward` in `mine.py`. It returns `dq`, `dk`, `dv` and `dbias`, the gradient of a bias
# that can be added to the scores. GPT-2 has none, and then `dbias` is `None`. In the cache, `mask`
# is dropout's mask, not the causal one: the forward pass multiplied $v$ by `A * mask`, or by `A`
# where `mask` is `None`. You may call `softmax_backward`, yours or this one:

# %%
show(F.softmax_backward)
BEGIN = False                                             # True: appends the stub to mine.py
if BEGIN:
    print("new in mine.py:", *minifpt.new("mine.py", lesson=5))

# %% [markdown]
# Now the frozen head of lesson 4 trains again. The gradient that reaches the layers before it comes
# from your function. (`warmup=0` and `schedule="constant"` keep the learning rate the same at every
# step: [lesson 12](12_optimisers.ipynb).)

# %%
task = minifpt.tasks.get("bit-memory", bits=20, patch=20)


def recall(seed):
    """-> the bits right (%), every 25 steps"""
    model = minifpt.FPT.for_task(task, "random:1x1x64@1.41", seed=seed, dropout=0.0)
    history = minifpt.train(model, task, 150, batch_size=16, lr=1e-2, seed=seed, warmup=0,
                            schedule="constant", eval_every=25, test_examples=256, progress=False)
    return 100 * history["test_accuracy"]


with written("mine.py", "attention_backward", "attention", "linear_backward",
             "layer_norm_backward", "positions_backward") as whose:
    runs = [recall(seed) for seed in range(5)]
curves({"": runs}, f"One frozen random head, five seeds\n{whose}", ylabel="bits right (%)",
       x=range(25, 151, 25), inks=[color.random], level=75, note="copy and guess")

# %% [markdown]
# ## What does a wrong gradient cost?
#
# Suppose that you had not checked. You would have seen the loss fall, and been content. We train
# with each of the three mistakes, five seeds each. As a control, we train once with $dS = 0$: no
# gradient reaches the scores. How many of the three wrong gradients bring the head beyond 85 %, on
# average over the seeds?

# %%
guess = ...                                               # of 3


# %%
def stand_in(mistake):
    """An attention_backward for the library, with a mistake"""
    def backward(dy, cache):
        dq, dk, dv = attend_backward(dy, cache[:4], mistake)
        return (0 * dq, 0 * dk, dv, None) if mistake == "dS = 0" else (dq, dk, dv, None)
    return backward


arms = {"right": runs}
for mistake in tqdm((*MISTAKES, "dS = 0")):
    with standing_in({F.attention_backward: stand_in(mistake)}):
        arms[mistake] = [recall(seed) for seed in range(5)]
means = {name: np.mean(rows, axis=0) for name, rows in arms.items()}
reveal(guess, sum(means[mistake][-1] > 85 for mistake in MISTAKES), "of 3")
for name, rows in arms.items():
    print(f"{name:17}", *(f"{row[-1]:3.0f}" for row in rows), " % at the end, five seeds")
curves(means, "Two of three wrong gradients learn all the same", ylabel="bits right (%)",
       x=range(25, 151, 25), inks=(color.random, *3 * [color.ochre], color.grey), level=75,
       note="copy and guess", styles=("-", "--", "-.", ":", "-"))

# %% [markdown]
# **This is the picture to keep.** You might expect that a wrong gradient leads nowhere. But without
# the $\sqrt D$ or the transpose, much of the direction is still right, and the head learns nearly
# as well. Without the weighted mean some seeds fail and some do not, so you might blame the seed.
# The control shows that the gradient of the scores does matter: without it, the head stays near
# copy and guess, and never finds the string.
#
# So a falling loss shows that *some* of your gradient is right. Only a check says that all of it
# is.
#
# ## Exercises
#
# **1.** To save memory, many models give all heads *one* set of keys and values (**multi-query
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
# **2.** How wrong may a gradient be? Its direction decides. Take all of its arrays as one long
# vector, and compute the cosine of the angle between the wrong gradient and the right one. Then
# change `attend_backward`: flip a sign, forget a head, add noise. Train as above. Can the cosine
# predict which mistakes cost nothing, which cost time and which cost everything? ([Lesson
# 18](18_your_own.ipynb) goes on.)

# %%
def alignment(wrong, right):
    """Two lists of arrays, of the same shapes -> the cosine of the angle between them, a number"""
    return ...


check("alignment", alignment)


# %% [markdown]
# **3.** *Open.* You want to follow a test by hand, so most of its numbers should be 0. Given a $dy$
# with one number that is not 0, choose $q$, $k$ and $v$. At most three of their numbers, counted
# together, may differ from 0, and each of the three mistakes must change $dq$ or $dk$. Then run
# `attend_backward` on your data, with each mistake. With how few numbers can you do it?

# %%
def revealing_data(dy):
    """dy (T, D), one number is not 0 -> q, k, v, each (T, D)"""
    return ...


check("revealing_data", revealing_data)

# %% [markdown]
#
# **The picture to keep:** bits right against steps, with the right gradient and with wrong ones:
# two of three wrong ones learn all the same.
#
# **The sentence to remember:** *A falling loss shows that some of the gradient is right; only a
# check, on data whose axes are all different and longer than one, shows that all of it is.*
#
# **What we do not know yet.** We have the parts of a block. What holds twelve of them together, and
# how does a gradient get through all of them?
#
# **Next**: [lesson 6](06_gpt2_whole.ipynb), the whole of GPT-2.
