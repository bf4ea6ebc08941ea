# %% [markdown]
# # 8. Bit XOR and bit memory, seen from inside
#
# **We show a frozen model five strings of bits, then one of them again with half of its bits
# missing. It fills the gaps. Where does it look, and is that why it is right?**
#
# After this lesson you can
#
# - say which scores a model reaches without having found anything;
# - say in one number where a head looks, and tell position from content;
# - mute a head, and choose what to compare it with.
#
# **What we know by now.** A frozen trunk learns while we train its norms, its positions and two
# thin layers, and so does a random one of the right size. We know what each part computes, but not
# which part does the work.
#
# **The question:** Does looking matter?
#
# In the live page: [stations 4 and 8](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(4)` in a cell here.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb) and [4](04_self_attention.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
from itertools import combinations

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, model_map, picture, reveal, show
from minifpt.exercises.records import recorded

model_map("attention")

# %% [markdown]
# ## Which string is it?
#
# **Bit memory**: five strings of 40 bits go in, then one of them again, with each bit hidden with
# probability one half. The model must return all of its bits. Here is one example. Which string is
# the sixth one, 0 to 4?

# %%
task = minifpt.tasks.get("bit-memory", strings=5, bits=40, patch=10)
x_one, y_one, which_one = task.sample(np.random.default_rng(2), 1)
fig, (ax,) = figure(width=8, height=1.7)
matrix(ax, x_one.reshape(6, 40),
       "five strings and one of them again: -1 is blue, 1 is red, hidden is white",
       rows=["0", "1", "2", "3", "4", "asked"], columns=[""] * 40, limit=1.8, digits=None)
picture(fig)

# %%
guess = ...                                               # 0, 1, 2, 3 or 4

# %%
reveal(guess, int(which_one[0]))

# %% [markdown]
# You compared the sixth row with each of the others. To the model, ten bits are a token. It has $6
# \cdot 4 = 24$ tokens, and we read the answer at the last four.
#
# You can score well without finding anything, in two ways. To **copy and guess** is to copy the
# visible half and guess the rest: 75 % are right. To **copy and vote** is to let the five strings
# vote on each hidden bit. The asked string votes right, so the vote is right if at least 2 of the 4
# others agree with it, with probability
#
# $$ 1 - \frac{1}{2^4}\left(\binom40 + \binom41\right) = \frac{11}{16} $$
#
# With the visible half, 84 % of all bits are right. Only above this level has a model found the
# string.
#
# We train two models that differ only in their frozen trunks. One is *language*. The other is new,
# *matched random*: its weights are random, and each array has the mean and the standard deviation
# that it has in *language*. How many of the two end above the vote?

# %%
guess = ...                                               # of 2

# %%
kinds = {"language": "minigpt-language", "matched random": "statistics:minigpt-language"}
inks = {"language": color.language, "matched random": color.statistics}
vote = 100 * (1 / 2 + 1 / 2 * 11 / 16)


@recorded("08", live=0)
def train(kind, steps=450, seed=0):
    """-> the model, its bits right (%), and their steps"""
    model = minifpt.FPT.for_task(task, kind, seed=seed, dropout=0.0)
    history = minifpt.train(model, task, steps, batch_size=8, lr=0.02, seed=seed, warmup=50,
                            schedule="cosine", eval_every=75, test_examples=64)
    return model, 100 * history["test_accuracy"], history["step"]


models, right, steps = zip(*map(train, kinds.values()), strict=True)
models, right = (dict(zip(kinds, each, strict=True)) for each in (models, right))
reveal(guess, sum(values[-1] > vote for values in right.values()), "of 2")
curves(right, "Both trunks find the string", ylabel="bits right (%)", x=steps[0], level=vote,
       note="copy and vote", ylim=(73, 101), inks=list(inks.values()))

# %% [markdown]
# Matched random has never read a word, and it finds the string, too. The two trunks share only the
# mean and the spread of each array. (Is *language* better? That depends on the learning rate. It
# leads with five of five seeds at 0.02, with three of five at 0.06: `python -m studies.inside
# rates`.)
#
# ## Where does it look?
#
# The trunk has 6 blocks with 4 heads each, and `minifpt.trace` collects the map $A$ of lesson 4
# from all of them. The four asked tokens attend to the five strings. For each head we ask: what
# share of this attention goes to the right string?

# %%
x, y, which = task.sample(np.random.default_rng(6), 64)


def share_by_string(model, x):
    """x (B, T, 10) -> (L, B, H, 5): the asked tokens' attention on each string"""
    with minifpt.trace(model) as t:
        model.predict(x)
    on = np.stack(list(t.attention.values()))[..., -4:, :20]             # (L, B, H, 4, 20)
    on = on.reshape(*on.shape[:4], 5, 4).sum(axis=-1).mean(axis=-2)
    return on / on.sum(axis=-1, keepdims=True)


untrained = minifpt.FPT.for_task(task, kinds["language"], seed=0, dropout=0.0)
shares = {name: share_by_string(model, x)[:, np.arange(64), :, which].mean(axis=0)
          for name, model in {"language, before": untrained, **models}.items()}   # (L, H)
fig, axes = figure(3, width=2.3, height=2.7)
for ax, (name, share) in zip(axes, shares.items(), strict=True):
    matrix(ax, share, name, "head", "block", limit=1)
picture(fig)

# %% [markdown]
# A head that does not care would give the right string a fifth, 0.20. Before training no head looks
# much at it; afterwards heads of the first block do. Their weights are frozen. So what has changed
# is what they read.
#
# Do they go by *what* the string looks like, or did they learn where it stands? We take the same
# examples and rotate the five strings, so that the right one comes first, then second, and so on.
# We take the head of *language* with the largest share. What does its attention do: `"stay"` or
# `"move along"`?

# %%
guess = ...

# %%
block, head = np.unravel_index(shares["language"].argmax(), shares["language"].shape)
strings = x.reshape(-1, 6, 4, 10)
moved = np.zeros((5, 5))                                  # [where the right one is, looked at]
for place in range(5):
    order = (np.arange(5) + which[:, None] - place) % 5   # (B, 5): now the right one is there
    turned = strings.copy()
    turned[:, :5] = np.take_along_axis(strings[:, :5], order[:, :, None, None], axis=1)
    moved[place] = share_by_string(models["language"], turned.reshape(x.shape))[
        block, :, head].mean(axis=0)
reveal(guess, "move along" if moved.argmax(axis=1).tolist() == list(range(5)) else "stay")

fig, (ax,) = figure(width=3.8, height=3.3)
matrix(ax, moved, f"share of block {block}, head {head}", "string", "the right one is", limit=1)
picture(fig)

# %% [markdown]
# It moves along. A head that goes by place would stay in one column. So this one finds the string
# by its content. (One model, 64 examples.)
#
# ## Is it these heads that do it?
#
# You have seen where a head looks, not whether the answer needs it. To find out, we change the
# model while it runs: `minifpt.trace(model, change={layer: function})` replaces the output of a
# layer. To **mute** a head is to set all its shares to 0, so that it brings nothing.
#
# But what do we compare with? If we muted heads of other blocks, looking would not be the only
# difference: block 0 reads the input first, so its heads may matter more, whatever they look at. A
# convincing control changes one thing only. So we mute *two* of block 0's four heads each time, and
# change only which two. If looking counts, the pairs that look at the right string most must cost
# most. Of the six pairs of *language*, how many cost more than five points?

# %%
guess = ...                                               # of 6


# %%
def accuracy(model, *heads):
    """Bits right in per cent while these heads of block 0 are mute"""
    def mute(A):                                          # (B, H, T, T)
        A[:, heads] = 0
        return A
    with minifpt.trace(model, change={"trunk.h.0.attn.softmax": mute}):
        return 100 * task.accuracy(model.predict(x[:32]), y[:32])


pairs = list(combinations(range(4), 2))
whole = {name: accuracy(model) for name, model in models.items()}
without = {name: np.array([accuracy(model, *heads) for heads in pairs])
           for name, model in models.items()}
reveal(guess, int((whole["language"] - without["language"] > 5).sum()), "of 6")

# %%
# Not to be read: a picture.
fig, axes = figure(2, width=3.9, height=3.3, sharey=True)
for ax, name in zip(axes, models, strict=True):
    ax.plot([shares[name][0][[i, j]].mean() for i, j in pairs], without[name], "o",
            color=inks[name])
    for level, note in ((whole[name], "none mute"), (75, "copy and guess")):
        ax.axhline(level, color=color.grey, linestyle=":")
        ax.text(0.98, level, note, fontsize=8.5, va="top", ha="right",
                transform=ax.get_yaxis_transform())
    ax.set(title=f"{name}: two heads of block 0 mute", xlim=(0.2, 0.75),
           xlabel="share on the right string, mean of the two",
           ylabel="bits right (%)" if name == "language" else "")
picture(fig)

# %% [markdown]
# **This is the picture to keep.** The more the two heads look at the right string, the more it
# costs to mute them. If every head did an equal part, all six pairs would cost the same. In
# *language*, without the pair that looks there most, the model is down near copy and guess. The
# pair that looks there least costs little, though it stands in the same block. In *matched random*
# more heads share the work. (One run each.)
#
# So here looking matters: the heads that look at the right string carry the answer. The frozen
# weights could already compare and copy, and training brought that out. Nothing that we measured
# needs language. But in the paper, whose GPT-2 is six times as wide, random weights fail at bit
# memory. (A likely reason is in `docs/results/why.md`.)
#
# In these lines, `mute` changed `probabilities`:

# %%
show(F.attention, lines=("scores = q", "y = dropped"))

# %% [markdown]
# ## Exercises
#
# **1.** Each string has P tokens, and the asked string comes last. A head that looks at the right
# string does not yet copy it: for that, asked token $p$ must look at token $p$ of the right string.
# How much attention does it give to just this token?

# %%
def copy_share(A, which, strings):
    """A (B, H, T, T), T = (strings + 1) P; which (B,), the right string's number -> (H,), the
    attention of asked token p to token p of the right string, a mean over examples and p"""
    return ...


check("copy_share", copy_share)


# %% [markdown]
# **2.** Muting is rough: the next layers have never seen zeros there. A gentler way replaces a
# head's output by its mean: for each of its channels the mean over all examples and tokens. That
# removes only what differs between examples and tokens. Write it for one head.

# %%
def say_the_mean(y, head, n_head):
    """y (B, T, C), the heads' outputs side by side, C / n_head channels each -> the same, with
    this head's channels replaced by their means over B and T"""
    return ...


check("say_the_mean", say_the_mean)


# %% [markdown]
# ## Going further
#
# **XOR: a map that misleads.** In bit XOR two strings of five bits go in, tokens 0 to 4 and 5 to 9,
# and we read the answer at tokens 5 to 9. Token $5 + i$ needs the bit at token $i$, five tokens
# back. Here are the 24 heads of a model that has learned it: how much each looks five back, and
# what it costs to mute it.

# %%
xor = minifpt.tasks.get("bit-xor")


@recorded("08", live=0)
def train_on_xor(steps):
    model = minifpt.FPT.for_task(xor, kinds["language"], seed=0, dropout=0.0)
    minifpt.train(model, xor, steps, batch_size=4, lr=2e-3, seed=0, eval_every=500)
    return model


model = train_on_xor(400)
x_xor, y_xor = xor.batch(np.random.default_rng(5), 32, "test")
with minifpt.trace(model) as t:
    model.predict(x_xor)
back = np.stack(list(t.attention.values())).mean(axis=1)[:, :, range(5, 10), range(5)].mean(axis=-1)
cost = np.full((6, 4), 100 * xor.accuracy(model.predict(x_xor), y_xor))
for i, j in np.ndindex(6, 4):
    def mute(A, head=j):
        A[:, head] = 0
        return A
    with minifpt.trace(model, change={f"trunk.h.{i}.attn.softmax": mute}):
        cost[i, j] -= 100 * xor.accuracy(model.predict(x_xor), y_xor)
fig, axes = figure(2, width=3.2, height=2.9)
matrix(axes[0], back, "share on the token five back", "head", "block", limit=1)
matrix(axes[1], cost, "points lost when it is mute", "head", "block", signed=True, digits=0)
picture(fig)

# %% [markdown]
# With five seeds (`python -m studies.inside looks`) the model always needs the look five back: if
# no head may look there, it gets 54 to 63 % of the bits right. But which head does it miss most?
# With three seeds of five, the one that looks there *most*; with the other two, and here, another
# one.
#
# **Who multiplies?** Write the bits as ±1. Then XOR is the product $a\,b$, up to its sign, and no
# weighted sum of $a$ and $b$ gives it. With all other bits fixed, any number inside the model has
# four values, one for each $(a, b)$, which fix four coefficients: it is $m + \alpha a + \beta b +
# \gamma\, a b$. We take $\gamma\,ab$ out of the output of all attention layers, or of all
# feed-forward layers, in *language*, in lesson 0's *random*, and in *matched random*:

# %%
# python -m studies.inside xor: five seeds, each (nothing, attention, feed-forward)
WITHOUT_PRODUCT = {
    "language": [(98, 82, 62), (99, 95, 52), (99, 83, 56), (100, 94, 55), (100, 100, 49)],
    "random": [
        (100, 100, 42), (100, 100, 57), (100, 100, 46), (100, 100, 50), (100, 100, 49)],
    "matched random": [
        (100, 100, 47), (100, 100, 50), (100, 100, 50), (100, 100, 52), (100, 100, 48)],
}
print("bits right (%), product taken from nothing / attention / feed-forward:")
for name, rows in WITHOUT_PRODUCT.items():
    print(f"{name:15}", "  ".join("/".join(f"{value:3.0f}" for value in row) for row in rows))

# %% [markdown]
# Without the products of the feed-forward layers every trunk is near guessing. With random weights
# the two divide the work cleanly: **attention carries the bit, and the feed-forward layers
# multiply.** Their nonlinear function acts on sums of $a$ and $b$, and its result contains the
# product, as in $(a + b)^2 = a^2 + 2ab + b^2$.
#
# **3.** *Open.* Language or size? Make several runs of two kinds of trunk, and ask whether the
# difference is larger than the spread. First a measure. Then set `RUN` to `True` and choose your
# question: fewer steps, harder strings, each kind at its own best learning rate.

# %%
def gap(a, b):
    """a (N,), b (M,): final accuracies of runs of two kinds -> the worst run of the kind with
    the higher mean minus the best run of the other; below 0 they overlap"""
    return ...


check("gap", gap)

# %%
RUN = False                                               # True: trains, with bars
if RUN:
    results = [[train(kind, 300, seed)[1][-1] for seed in range(3)] for kind in kinds.values()]
    print(results, gap(*map(np.array, results)))

# %% [markdown]
# **The picture to keep:** accuracy without a pair of heads, against their share of attention on the
# right string: the more they look there, the more it costs.
#
# **The sentence to remember:** *A picture of attention is a hypothesis, and muting the head is the
# test.*
#
# **What we do not know yet.** We compared two trunks with one run each. How sure is such a
# difference? ([Lesson 19](19_which_part_does_it.ipynb), a side road, follows a value from head to
# head.)
#
# **Next** on the spine: [lesson 13](13_transfer.ipynb). A side road: [lesson
# 9](09_pictures_as_tokens.ipynb) gives the same trunk pictures, cut into tokens.
