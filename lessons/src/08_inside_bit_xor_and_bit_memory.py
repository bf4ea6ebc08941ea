# %% [markdown]
# # 8. Bit XOR and bit memory, seen from inside
#
# **A frozen model is shown five strings of bits, then one of them again with half of it
# missing. It fills the gaps. Where does it look, is that why it is right, and was language
# needed for it?**
#
# After this lesson you can
#
# - draw where each head of a model looks, and say it in one number;
# - compute which scores a model reaches without having found anything;
# - tell looking by position from looking by content, and knock a head out;
# - compare a language trunk with two kinds of random ones, and say what that leaves open.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb) and
# [4](04_self_attention.ipynb). It takes about an hour.

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.experiments import make_trunk
from minifpt.lesson import color, figure, matrix, picture, reveal, show

# %% [markdown]
# ## XOR: does it look five places back?
#
# In bit XOR two strings of five bits come in, tokens 0 to 4 and 5 to 9. The answer is read at
# tokens 5 to 9. To give the XOR of its place, token $5 + i$ must learn the bit at token $i$,
# five places back. Only attention moves anything between tokens. The paper draws it: after
# training, the attention of the first block shows two diagonals, one on the token itself and
# one five places back. Do we see that?
#
# A **head** gives each token $t$ a row of weights over the tokens up to itself, which sum to 1:
# with queries $Q$ and keys $K$, both `(T, D)`,
#
# $$ A = \text{softmax}\big( Q K^\top / \sqrt{D} \big), \qquad A \text{ is } (T, T) $$
#
# The library keeps $A$ in the cache of this function. Our trunk has 6 blocks with 4 heads each;
# we walk through them and collect.

# %%
show(F.attention)


# %%
def attention_maps(model, x):
    """Where each head looks: x (B, T, input_dim) -> A (L, B, H, T, T), L blocks, H heads."""
    found = []
    with model.all_frozen():                              # nothing runs back
        h, _ = model.input.forward(x)
        h = h + model.trunk.wpe.weight.data[:x.shape[1]]
        for block in model.trunk.h:
            a, _ = block.ln_1.forward(h)
            qkv, _ = block.attn.c_attn.forward(a)
            _, (_, _, _, A, _) = F.attention(qkv, block.attn.n_head)
            found.append(A)
            h, _ = block.forward(h)
    return np.stack(found)


def make(kind, task, seed=0):
    """An FPT on a frozen trunk: "minigpt-language", "random" or "statistics:..."."""
    trunk = make_trunk(kind, seed=0, dropout=0.0)
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=seed)
    model.freeze(minifpt.FreezeMask.fpt())
    return model


xor = minifpt.tasks.get("bit-xor")
x_xor, y_xor = xor.batch(np.random.default_rng(5), 256, "test")
back = np.arange(5, 10), np.arange(5)                     # (t, t - 5) for t = 5 ... 9


def share_back(model):
    """(L, H): the share that tokens 5 to 9 give to the token five places back."""
    return attention_maps(model, x_xor).mean(axis=1)[:, :, *back].mean(axis=-1)


untrained = make("minigpt-language", xor)
evenly = np.mean([1 / (t + 1) for t in back[0]])
print(f"a head that looks at all tokens alike gives {100 * evenly:.0f} % to that token")
print(f"before training, the head that gives most gives {100 * share_back(untrained).max():.0f} %")

# %% [markdown]
# We train the language trunk on XOR, as in lesson 0, twice: the second run differs in the
# seed, so in the numbers that the input and output layers start from and in the examples. Now
# look for the head that gives most to the token five places back. How many percent does it give
# after the first run?

# %%
guess = ...                                               # a percentage

# %%
xor_models = [make("minigpt-language", xor, seed) for seed in (0, 1)]
for seed, model in enumerate(xor_models):
    minifpt.train(model, xor, steps=500, batch_size=4, lr=2e-3, seed=seed, eval_every=500)

# %%
reveal(guess, 100 * float(share_back(xor_models[0]).max()), "%")
for seed, model in enumerate(xor_models):
    share = share_back(model)
    block, head = np.unravel_index(share.argmax(), share.shape)
    print(f"run {seed}: most in block {block}, head {head}: {100 * share.max():.0f} %; "
          f"bits right: {100 * xor.accuracy(model.predict(x_xor), y_xor):.0f} %")

fig, axes = figure(4, 3, width=2.1, height=2.1)
rows = [("before", untrained), ("run 0", xor_models[0]), ("run 1", xor_models[1])]
for row, (name, model) in enumerate(rows):
    A = attention_maps(model, x_xor).mean(axis=1)[0]      # block 0: (H, T, T)
    for head in range(4):
        ax = axes[4 * row + head]
        matrix(ax, A[head], f"{name}, head {head}", digits=None, limit=0.6)
        ax.plot(back[1], back[0], "o", color=color.trained, markersize=2.5)
        ax.set(xticks=[0, 5, 9], yticks=[0, 5, 9])
        if head == 0:
            ax.set_ylabel("token looks")
        if row == 2:
            ax.set_xlabel("is looked at")
picture(fig)

# %% [markdown]
# These are the four heads of block 0, the mean over all examples. The pink dots mark where the
# second diagonal should be. Before training there *are* diagonals, which language left there:
# heads that look one, two or three places back. After training they are bent and broken, and
# none lies on the dots from end to end. The paper's two diagonals are not in our model.
# What is there is a lean: some head gives the right token more than an even look would, in one
# run much more than in the other.
#
# A map shows where a head looks, not what that is good for. So we take heads away. The output of
# head $h$ enters the block through $D$ rows of one weight, `c_proj` `(C, C)`. Set these rows to
# 0 and the head is mute. Will one head of 24 be missed?

# %%
class Without:
    """Within, the given heads, pairs (block, head), are mute."""

    def __init__(self, model, heads):
        self.rows = []
        for block, head in heads:
            attn = model.trunk.h[block].attn
            w = attn.c_proj.weight.data                   # (C, C)
            D = len(w) // attn.n_head
            self.rows.append(w[head * D:(head + 1) * D])  # a view: it writes into w

    def __enter__(self):
        self.kept = [rows.copy() for rows in self.rows]
        for rows in self.rows:
            rows[:] = 0

    def __exit__(self, *error):
        for rows, kept in zip(self.rows, self.kept, strict=True):
            rows[:] = kept


def accuracy_without(model, heads, task, x, y):
    with Without(model, heads):
        return 100 * task.accuracy(model.predict(x), y)


fig, axes = figure(2, width=3.4, height=3.0)
for seed, (ax, model) in enumerate(zip(axes, xor_models, strict=True)):
    left = [[accuracy_without(model, [(block, head)], xor, x_xor, y_xor) for head in range(4)]
            for block in range(6)]
    matrix(ax, left, f"XOR, run {seed}: bits right (%) without a head", "head", "block",
           limit=100, digits=0)
picture(fig)

# %% [markdown]
# Most heads can go, one at a time, and little happens. In both runs the first block is
# missed most of all blocks, which is a part of what the paper says. But which single head costs
# most differs from run to run. The trunk is the same; where training found a use for it is not.
#
# ## Memory: which string is it?
#
# **Bit memory**: five strings of 40 bits come in, then one of them once more, with each bit
# masked with probability one half. All of its bits shall come out. Here is one example. Which
# string is the sixth one, 0 to 4?

# %%
task = minifpt.tasks.get("bit-memory", strings=5, bits=40, patch=10)
x_one, y_one, which_one = task.sample(np.random.default_rng(2), 1)
fig, (ax,) = figure(width=8, height=1.7)
matrix(ax, x_one.reshape(6, 40), "five strings and one of them again: -1 blue, 1 red, masked white",
       rows=["0", "1", "2", "3", "4", "asked"], columns=[""] * 40, limit=1.8, digits=None)
ax.axhline(4.5, color="white", linewidth=5)
for edge in (9.5, 19.5, 29.5):
    ax.axvline(edge, color="white", linewidth=2)
picture(fig)

# %%
guess = ...                                               # 0, 1, 2, 3 or 4

# %%
reveal(guess, int(which_one[0]))

# %% [markdown]
# Ten bits make a token (the white gaps), so there are $6 \cdot 4 = 24$ tokens, and the answer is
# read at the last four.
#
# Before we train, a warning about scores. A model that found nothing at all can still copy the
# visible half and guess the rest:
#
# $$ \tfrac12 \cdot 1 + \tfrac12 \cdot \tfrac12 = 0.75 $$
#
# That is the floor. But there is a second way to find nothing: let the five strings *vote*, at
# each masked place, no matter which was asked for. The vote agrees with the asked string when at
# least 2 of the 4 others do. How many percent of all bits does a model get right that copies
# what is visible and votes on the rest?

# %%
guess = ...                                               # a percentage


# %%
def levels(x, y):
    """Bits right in per cent, of five who do not learn, x (B, 24, 10), y (B, 4, 10)."""
    strings = x.reshape(len(x), 6, 4, 10)                 # (B, string, patch, bit)
    asked, strings = strings[:, 5], strings[:, :5]
    right = 2 * y - 1                                     # (B, 4, 10)

    def score(rest):
        guessed = np.where(rest == 0, 0.5, rest == right)                # a tie is a guess
        return 100 * float(np.where(asked != 0, 1.0, guessed).mean())

    fits = ((strings == asked[:, None]) | (asked[:, None] == 0)).all(axis=-1)      # (B, 5, 4)
    whole = fits.all(axis=-1, keepdims=True) * np.ones(4)               # all visible bits fit
    so_far = np.minimum.accumulate(fits, axis=-1)                       # those up to this token

    def vote(counts):                                     # of the strings that count
        return score(np.sign((strings * counts[..., None]).sum(axis=1)))
    return {"copy and guess": score(0 * right), "copy and vote": vote(np.ones_like(fits)),
            "find, each token alone": vote(fits), "find, token by token": vote(so_far),
            "find, all at once": vote(whole)}


x, y, which = task.sample(np.random.default_rng(6), 256)
level = levels(*task.sample(np.random.default_rng(7), 4000)[:2])
reveal(guess, level["copy and vote"], "%")
for name, value in level.items():
    print(f"{value:5.1f} %   {name}")

# %% [markdown]
# In a formula:
#
# $$ \tfrac12 + \tfrac12 \Big( 1 - \frac{\binom40 + \binom41}{2^4} \Big) = \tfrac12 + \tfrac12
#    \cdot \tfrac{11}{16} $$
#
# So a score between the first two says nothing about finding. The next three find the string by
# its visible bits and let those vote that fit. They differ in what they compare: each asked token
# alone, with its five or so visible bits; or all asked tokens so far, which is the best that
# causal attention can do; or the whole string at once.
#
# ## Three trunks
#
# We train three FPTs that differ only in what is frozen inside:
#
# - *language*: the shipped trunk;
# - *random*: drawn as GPT-2 is before any training;
# - *statistics*: random as well, but each array with the mean and the spread of the language
#   trunk's. It knows how large the weights should be, and nothing else.

# %%
show(make_trunk)

# %% [markdown]
# All have the same steps, learning rate and examples. Which of them end above the vote?
# ("language", or "language, random", ...)

# %%
guess = ...

# %%
kinds = {"language": "minigpt-language", "random": "random",
         "statistics": "statistics:minigpt-language"}
models = {name: make(kind, task) for name, kind in kinds.items()}
before = attention_maps(models["language"], x)
histories = {}
for name, model in models.items():
    histories[name] = minifpt.train(model, task, steps=700, batch_size=8, lr=1e-2,
                                    schedule="cosine", warmup=50, eval_every=50)

# %%
final = {name: 100 * history[-1]["test_accuracy"] for name, history in histories.items()}
reveal(guess, ", ".join(name for name in final if final[name] > level["copy and vote"] + 1))

fig, (ax,) = figure(width=6.4, height=3.6)
for name, history in histories.items():
    ax.plot(history["step"], 100 * history["test_accuracy"], color=vars(color)[name],
            linewidth=2, label=name)
for name, value in level.items():
    ax.axhline(value, color=color.grey, linestyle=":", linewidth=1)
    ax.text(710, value, name, ha="left", fontsize=8, color=color.ink,
            va="bottom" if name == "find, all at once" else "center")
ax.set(xlabel="step", ylabel="bits right (%)", ylim=(73, 101), xlim=(0, 705),
       title="bit memory, 5 strings of 40 bits, three frozen trunks")
ax.legend(loc="center left")
picture(fig)
for name, value in final.items():
    print(f"{value:5.1f} %   {name}")

# %% [markdown]
# The random trunk stays near the floor. The language trunk finds the string. And so does
# *statistics*, which has never read a word; it only starts later. The paper says that better
# statistics do not explain what language brings. In our small model and on this task they
# explain most of it. What is it about the size of the weights?

# %%
print("spread of the weights that make queries and keys, and of their scores before training")
for name, kind in kinds.items():
    model = make(kind, task)
    spread, scores = [], []
    A = attention_maps(model, x[:64])
    for block in range(6):
        w = model.trunk.h[block].attn.c_attn.weight.data[:, :256]
        spread.append(w.std())
        scores.append(np.log(np.maximum(A[block, :, :, -1], 1e-12)).std())
    print(f"{name:12} weights {np.mean(spread):.3f}   log of attention {np.mean(scores):.3f}")

# %% [markdown]
# A score is a query times a key, so it grows with the *square* of these weights. GPT-2's first
# draw was made for more channels than our 128. With it every score is near 0, and every head
# looks at all tokens nearly alike; to change that, the layer norms' scales would have to grow a
# lot. A head that cannot choose cannot find. (Exercise 4 goes on from here.)
#
# ## Where does it look?
#
# Now from inside. For each head: of all the attention that the four asked tokens give to the
# five strings, which share goes to the right one, $k_n$ in example $n$?
#
# $$ s = \frac{1}{4B} \sum_n \sum_{t=20}^{23} \frac{\sum_{j \in \text{string } k_n} A_{ntj}}
#    {\sum_{j < 20} A_{ntj}} $$

# %%
def share_by_string(A):
    """A (L, B, H, T, T) -> (L, B, H, 5): the asked tokens' attention on each string."""
    on = A[..., -4:, :20].reshape(*A.shape[:3], 4, 5, 4).sum(axis=-1)    # (L, B, H, 4, string)
    return (on / on.sum(axis=-1, keepdims=True)).mean(axis=-2)


def share_on_right(A, which):
    """(L, H): the mean share of the right string."""
    return share_by_string(A)[:, np.arange(len(which)), :, which].mean(axis=0)


after = {name: attention_maps(model, x) for name, model in models.items()}
fig, axes = figure(4, width=2.3, height=2.7)
for ax, (title, A) in zip(axes, [("language, before", before), *after.items()], strict=True):
    matrix(ax, share_on_right(A, which), title, "head", "block", limit=1)
picture(fig)
share = share_on_right(after["language"], which)
top = [tuple(map(int, np.unravel_index(i, share.shape))) for i in np.argsort(-share, axis=None)]
print("an even look gives 0.20; the language trunk's first heads:",
      ", ".join(f"block {b} head {h}: {share[b, h]:.2f}" for b, h in top[:3]))

# %% [markdown]
# Two or three heads do it, all in the first block, with *statistics* as with *language*. Here is
# the first of them on three examples: the four asked tokens as rows, all tokens of the five
# strings as columns, the right string framed.

# %%
block, head = top[0]
fig, axes = figure(1, 3, width=7.5, height=1.35)
for ax, n in zip(axes, [int(np.flatnonzero(which == k)[0]) for k in (3, 0, 4)], strict=True):
    matrix(ax, after["language"][block, n, head, -4:, :20],
           f"block {block}, head {head}; the right string is {which[n]}", ylabel="asked token",
           rows=range(4), columns=[f"{j // 4}.{j % 4}" for j in range(20)], limit=0.6,
           digits=None)
    left = 4 * which[n] - 0.5
    ax.plot([left, left + 4, left + 4, left, left], [-0.5, -0.5, 3.5, 3.5, -0.5],
            color=color.trained, clip_on=False)
axes[-1].set_xlabel("string.token")
picture(fig)

# %% [markdown]
# Token $p$ of the asked string looks at token $p$ of the right string: a piece of a diagonal.
# Sometimes it looks at a token $p$ of another string, too. Is that a mistake? For each such look
# we ask whether the other token fits all of the visible bits.

# %%
strings = x.reshape(-1, 6, 4, 10)
fits = ((strings[:, :5] == strings[:, 5:]) | (strings[:, 5:] == 0)).all(axis=-1)   # (B, 5, 4)
A = after["language"][block, :, head, -4:, :20].reshape(-1, 4, 5, 4)
twins = np.einsum("npkp->nkp", A)                         # token p at token p of string k
wrong = np.arange(5)[:, None] != which[:, None, None]     # (B, 5, 1): not the right string
print(f"looked at, where it fits:           {twins[wrong & fits].mean():.2f}")
print(f"looked at, where it does not fit:   {twins[wrong & ~fits].mean():.2f}")
print(f"at its twin in the right string:    {twins[~wrong & fits].mean():.2f}")

# %% [markdown]
# So it looks wherever the visible bits of this one token fit. What the tokens before it could
# have told it, it hardly uses: of the levels above, the score is nearest to "each token alone".
#
# ## Position or content?
#
# Does it know *what* the string looks like, or did it learn places? We take the same examples
# and move the five strings round, so that the right one stands first, second, and so on. What
# happens to this head's attention: does it "stay" or "move along"?

# %%
guess = ...

# %%
moved = np.zeros((5, 5))                                  # [where the right one is, looked at]
for place in range(5):
    order = (np.arange(5) + which[:, None] - place) % 5   # (B, 5): the right one comes to place
    turned = strings.copy()
    turned[:, :5] = np.take_along_axis(strings[:, :5], order[:, :, None, None], axis=1)
    A = attention_maps(models["language"], turned.reshape(x.shape))
    moved[place] = share_by_string(A)[block, :, head].mean(axis=0)
reveal(guess, "move along" if moved.argmax(axis=1).tolist() == list(range(5)) else "stay")

fig, (ax,) = figure(width=3.8, height=3.3)
matrix(ax, moved, "share of attention on each string", "string", "the right one is", limit=1)
picture(fig)

# %% [markdown]
# It moves along: the string is found by content. This much of the paper's picture is in our
# model.
#
# ## Is it these heads that do it?
#
# A check that could fail: make the heads with the largest shares mute, first one, then two,
# three, four. And for comparison as many of the others, drawn at random, three times.

# %%
model = models["language"]
numbers = range(5)
those = [accuracy_without(model, top[:k], task, x, y) for k in numbers]
others = [[accuracy_without(model, [top[4 + i] for i in rng.permutation(20)[:k]], task, x, y)
           for k in numbers] for rng in map(np.random.default_rng, range(3))]

fig, (ax,) = figure(width=5.6, height=3.2)
ax.plot(numbers, those, "o-", color=color.language, label="heads that look at the right string")
for i, line in enumerate(others):
    ax.plot(numbers, line, "o-", color=color.grey, markersize=3, linewidth=1,
            label="other heads" if i == 0 else None)
ax.axhline(level["copy and guess"], color=color.ink, linestyle=":", linewidth=1)
ax.set(xlabel="heads made mute", ylabel="bits right (%)", xticks=list(numbers),
       title="bit memory without some heads")
ax.legend(loc="center right")
picture(fig)

# %% [markdown]
# ## What we know now
#
# The heads that look at the right string carry the answer; it is found by content; and the
# trained parts are layer norms, places and the two ends. So the frozen weights held something
# that can compare two tokens, and the layer norms turned it up. But weights drawn at random held
# it too, once they were large enough. A sceptic would say: then it is a property of attention of
# a fair size, not of language. What language gave here is a head start.
#
# The sceptic has not won either. This is one run each, on a small model and an easy version of
# the task, with one learning rate for all. What would change your mind? Exercise 4.
#
# ## Exercises
#
# Solutions are in `solutions/08_inside_bit_xor_and_bit_memory.py`.
#
# **1.** What does a model score that copies the visible bits and lets the strings vote on the
# rest, if there are `strings` of them (an odd number) and a bit is masked with probability
# `masked`?

# %%
def vote_level(strings, masked):
    """An odd number, a probability -> the expected share of bits that are right"""
    return ...


check("vote_level", vote_level)


# %% [markdown]
# **2.** Looking at the right string is not yet copying: for that, asked token $p$ must look at
# token $p$ of the right string. How much attention does it give to just that one?

# %%
def copy_share(A, which, strings):
    """A (B, H, T, T), T = (strings + 1) P; which (B,), the right string's number -> (H,), the
    attention of asked token p to token p of the right string, mean over examples and p"""
    return ...


check("copy_share", copy_share)


# %% [markdown]
# **3.** To make a head mute is rude: the next layers have never seen zeros there. A gentler way is
# to let the head say always the same, the mean of what it says: for each of its channels the
# mean over all examples and tokens. Then nothing is lost but what depends on the example.

# %%
def say_the_mean(y, head, n_head):
    """y (B, T, C), the heads' outputs side by side, C / n_head channels each -> the same with
    this head's channels replaced by their means over B and T"""
    return ...


check("say_the_mean", say_the_mean)


# %% [markdown]
# **4.** *Open.* Language or size? Make several runs of two kinds, and ask whether the difference
# is larger than the spread. First a measure. Then set `RUN` to `True` and choose your question:
# fewer steps, where *language* has its head start; a random trunk whose matrices are multiplied
# by 2, 4 or 8; harder strings; each kind with its own best learning rate.

# %%
def gap(a, b):
    """a (N,), b (M,): final accuracies of runs of two kinds -> how far the worst run of the
    kind with the higher mean stands above the best run of the other; below 0 they overlap"""
    return ...


check("gap", gap)

# %%
RUN = False                                               # True: trains, with bars
if RUN:
    results = {}
    for kind in ("minigpt-language", "statistics:minigpt-language"):
        results[kind] = []
        for seed in range(3):
            model = make(kind, task, seed)
            history = minifpt.train(model, task, steps=300, batch_size=8, lr=1e-2, seed=seed,
                                    schedule="cosine", warmup=50, eval_every=300)
            results[kind].append(history[-1]["test_accuracy"])
    print(results, gap(*map(np.array, results.values())))
