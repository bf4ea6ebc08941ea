# %% [markdown]
# # 8. Bit XOR and bit memory, seen from inside
#
# **A frozen model is shown five strings of bits, then one of them again with half of it
# missing. It fills the gaps. Where does it look, is that why it is right, and did it need
# language for it?**
#
# After this lesson you can
#
# - draw where each head of a model looks, and put it in one number;
# - compute which scores a model reaches without having found anything;
# - tell looking by position from looking by content, and mute a head;
# - find out which part of a model multiplies two of its inputs.
#
# **What we know by now.** A frozen trunk learns XOR while its layer norms, positions and two thin
# layers train. So do random weights of the right size. We have seen *that* it works, and what each
# part computes, but not which part does the work. The trunks are those of lesson 0. *Language* was
# pretrained on novels; *random, as in the paper* is drawn at random; *random, too small* is drawn
# smaller; *matched random* is random, but each array has the mean and the standard deviation of the
# language trunk's.
#
# **The question:** Does looking matter?
#
# In the live page: [stations 5 and 7](../minifpt/viewer/tour.md) of its tour, or
# `minifpt.viewer.tour(5)` in a cell here.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb) and [4](04_self_attention.ipynb). It
# takes about an hour: 20 minutes for XOR, 25 for memory, 15 for two exercises. What follows under
# *Going further* is not needed later.

# %%
from itertools import combinations

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show

# %% [markdown]
# ## XOR: does it look five tokens back?
#
# In bit XOR two strings of five bits come in, tokens 0 to 4 and 5 to 9. The answer is read at
# tokens 5 to 9. For its XOR, token $5 + i$ needs the bit at token $i$, five tokens back. Only
# attention moves anything from token to token. The paper has a picture of it: after training,
# the attention of the first block shows two diagonals, one on the token itself and one five
# tokens back. Do we see that?
#
# `minifpt.trace` collects $A$ of lesson 4 from every attention layer while the model runs:
# `t.attention["trunk.h.0.attn"]` is that of block 0. Our trunk has 6 blocks with 4 heads each.

# %%
show(F.attention, lines=("scores =", "probabilities, _"))


# %%
def attention_maps(model, x):
    """Where each head looks: x (B, T, input_dim) -> A (L, B, H, T, T), L blocks, H heads."""
    with minifpt.trace(model) as t:
        model.predict(x)
    return np.stack(list(t.attention.values()))


def make(kind, task, seed=0):
    """An FPT on a frozen trunk, by the library's name: "minigpt-language", "random", ..."""
    return minifpt.FPT.for_task(task, kind, seed=seed, dropout=0.0)


xor = minifpt.tasks.get("bit-xor")
x_xor, y_xor = xor.batch(np.random.default_rng(5), 128, "test")
back = np.arange(5, 10), np.arange(5)                     # (t, t - 5) for t = 5 ... 9


def share_back(model):
    """(L, H): the share that tokens 5 to 9 give to the token five back, a mean."""
    return attention_maps(model, x_xor).mean(axis=1)[:, :, *back].mean(axis=-1)


untrained = make("minigpt-language", xor)
evenly = np.mean([1 / (t + 1) for t in back[0]])
print(f"a head that looks at all tokens equally gives {100 * evenly:.0f} % to that token")
print(f"before training, the head that gives most gives {100 * share_back(untrained).max():.0f} %")

# %% [markdown]
# We train the language trunk on XOR, twice, nearly as in lesson 0 (half a minute). The second run
# has another seed: other starting numbers in the input and output layers, and other examples. Now
# look for the head that gives most to the token five back. How many per cent does it give after the
# first run?

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
        matrix(ax, A[head], f"{name}, head {head}", "key", "query", digits=None, limit=0.6)
        ax.plot(back[1], back[0], "o", color=color.trained, markersize=2.5)
        ax.set(xticks=[0, 5, 9], yticks=[0, 5, 9])
picture(fig)

# %% [markdown]
# These are the four heads of block 0, the mean over all examples; pink dots mark where the second
# diagonal should be. Before training there *are* diagonals: heads that look one, two or three
# tokens back. After training none lies on the dots from end to end. The paper's two diagonals are
# not in our model. But some head gives the right token more than equal shares would. (In run 0 it
# is in block 1, which the picture does not show.)
#
# A map shows where a head looks, not what that is good for. So we **mute** heads. The output of
# head $h$ reaches the rest of the model through $D$ rows of one weight, `c_proj` `(C, C)`. Set
# these rows to 0 and nothing of the head gets through. What does it cost to mute one head of 24?
# And what does it cost if no head at all looks five tokens back from where the answer is read, or
# one token, or two? (What the other tokens get is scaled up to 1.)

# %%
def accuracy_without(model, heads, task, x, y):
    """Bits right in per cent while the heads, pairs (block, head), are mute."""
    weights = [block.attn.c_proj.weight for block in model.trunk.h]      # each (C, C)
    kept = [w.data.copy() for w in weights]
    for block, head in heads:
        weights[block].data.reshape(4, -1, 128)[head] = 0                # D rows of the head
    try:
        return 100 * task.accuracy(model.predict(x), y)
    finally:
        for w, before in zip(weights, kept, strict=True):
            w.data[:] = before


def no_look(n):
    """A change: in no head do tokens 5 to 9 look n tokens back."""
    def change(A):                                        # (B, H, T, T)
        A = A.copy()
        A[..., range(-5, 0), range(5 - n, 10 - n)] = 0
        return A / A.sum(axis=-1, keepdims=True)
    return change


for seed, model in enumerate(xor_models):
    left = [accuracy_without(model, [(block, head)], xor, x_xor, y_xor)
            for block in range(6) for head in range(4)]
    print(f"run {seed}, bits right (%) without one of 24 heads:", *np.round(left).astype(int))
    left = []
    for n in range(1, 6):
        with minifpt.trace(model, change={"trunk.h.*.attn.softmax": no_look(n)}):
            left.append(100 * xor.accuracy(model.predict(x_xor), y_xor))
    print("       without the looks 1, 2, 3, 4, 5 tokens back:", *np.round(left).astype(int))

# %% [markdown]
# Most heads can be muted, one at a time, at little cost. Which single head costs most differs from
# run to run: the trunk is the same, and what training makes of it is not. In run 1 it is the head
# that looks five tokens back most. In run 0 that head costs a point, so there its map misleads.
#
# But the look five tokens back is needed, whichever heads have it: without it, in all of them, the
# model falls towards guessing, and without any other look it loses little. With five seeds (`python
# -m benchmarks.inside looks`) it keeps 54 to 63 % of the bits without the looks five back, and 91 %
# or more without those at any other distance up to six. The head that looks there most is the one
# that is missed most with three seeds of five.
#
# ## How is XOR computed?
#
# A muted head shows that it is needed, not what it does. Two things must happen somewhere. The bit
# $a$ at token $i$ must come to token $5 + i$, where its partner $b$ stands: only attention can
# carry it there. And the two must be combined: *who multiplies?*
#
# Write the bits as ±1. Then XOR is the product $a\,b$, up to its sign, and no sum of a share of $a$
# and a share of $b$ is one. Any number $v$ inside the model depends on $a$ and $b$, all else equal,
# in four ways, because four equations have four unknowns:
#
# $$ v(a, b) = m + \alpha\, a + \beta\, b + \gamma\, a b, \qquad \gamma = \tfrac14 \big( v(1, 1) -
#    v(1, -1) - v(-1, 1) + v(-1, -1) \big) $$
#
# We run the four inputs side by side and take $\gamma\,ab$ out of the output of a part at the token
# of $b$, in all six blocks; $m$, $\alpha$ and $\beta$ stay. `minifpt.trace(model, change={layer:
# function})` replaces the output of a layer while the model runs. We do so for the language trunk,
# run 0, and for *random, as in the paper*. What costs more: to take the product out of
# `"attention"` or out of `"feed-forward"`?

# %%
guess = ...

# %%
by_trunk = {"language": xor_models[0], "as in the paper": make("random@paper", xor)}
minifpt.train(by_trunk["as in the paper"], xor, 500, batch_size=4, lr=2e-3, eval_every=500)


def without_product(i):
    """A change: takes the product of bits i of the two strings out of an output"""
    sign = np.array([[1, -1], [-1, 1]])[..., None]        # of a b, for (a, b) = 00, 01, 10, 11

    def change(h):
        v = h[:, i - 5].reshape(-1, 2, 2, h.shape[-1])
        gamma = (sign * v).mean(axis=(1, 2), keepdims=True)
        h[:, i - 5] = (v - gamma * sign).reshape(-1, h.shape[-1])
        return h
    return change


def accuracy_without_products(model, *parts, contexts=24):
    """Per cent of the answers, a mean over the five places"""
    right, rng = [], np.random.default_rng(1)
    for i in range(5):
        bits = np.repeat(rng.integers(0, 2, (contexts, 10)), 4, axis=0)
        bits[:, [i, 5 + i]] = np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (contexts, 1))
        change = {f"trunk.h.*.{part}": without_product(i) for part in parts}
        with minifpt.trace(model, change=change):
            logits = model.predict(bits[..., None].astype(np.float32)).reshape(-1, 5, 2)
        right.append((logits[:, i].argmax(-1) == bits[:, i] ^ bits[:, 5 + i]).mean())
    return 100 * float(np.mean(right))


names = {"nothing": (), "attention": ("attn",), "feed-forward": ("mlp",), "both": ("attn", "mlp")}
products = {trunk: {name: accuracy_without_products(model, *parts) for name, parts in names.items()}
            for trunk, model in by_trunk.items()}
reveal(guess, min(("attention", "feed-forward"), key=products["language"].get))
for trunk, row in products.items():
    print(f"{trunk:15} product taken from:", ", ".join(
        f"{name} {value:.0f} %" for name, value in row.items()))

# python -m benchmarks.inside xor: five seeds, each (nothing, attention, feed-forward; one look)
WITHOUT_PRODUCT = {
    "language": [
        (98, 82, 62, 57), (99, 95, 52, 82), (99, 83, 56, 57),
        (100, 94, 55, 66), (100, 100, 49, 84)],
    "as in the paper": [
        (100, 100, 42, 93), (100, 100, 57, 91), (100, 100, 46, 89),
        (100, 100, 50, 90), (100, 100, 49, 96)],
    "matched random": [
        (100, 100, 47, 98), (100, 100, 50, 90), (100, 100, 50, 90),
        (100, 100, 52, 98), (100, 100, 48, 92)],
}
print("five seeds, product taken from nothing / attention / feed-forward; one look (%):")
for trunk, rows in WITHOUT_PRODUCT.items():
    print(f"{trunk:15}", "  ".join("/".join(f"{value:3.0f}" for value in row) for row in rows))

# %% [markdown]
# Without the products of the feed-forward layers every trunk is down near guessing: 42 to 62 % in
# fifteen runs. Without those of attention the random ones lose nothing, and the language trunk 0 to
# 16 points. (The fourth number of a run, *one look*, is explained below.) So with random weights
# the work is cleanly divided: **attention carries the bit, and the feed-forward layers multiply.**
# How can frozen random layers multiply? A feed-forward layer bends a sum of a share of $a$ and a
# share of $b$, and in a bent sum there is a product:
#
# $$ (a + b)^2 = a^2 + 2ab + b^2 $$
#
# GELU bends in another way, but its output has such a part, too. Hundreds of such bends stand in
# each block. They are frozen; the trained input layer, positions and layer norms decide how much of
# $a$ and $b$ each of them gets, and the output layer reads those that are of use. In the language
# trunk attention has a part in it, with four seeds of five: there the look itself depends on the
# bits. The fourth number of each run says so: each head gets *one look* for all inputs, the mean of
# its attention over many. The random trunks keep 89 to 98 % of it, language 57 to 84 %.
#
# ## Memory: which string is it?
#
# **Bit memory**: five strings of 40 bits come in, then one of them once more, with each bit
# masked with probability one half. The model must return all of its bits. Here is one example.
# Which string is the sixth one, 0 to 4?

# %%
task = minifpt.tasks.get("bit-memory", strings=5, bits=40, patch=10)
x_one, y_one, which_one = task.sample(np.random.default_rng(2), 1)
fig, (ax,) = figure(width=8, height=1.7)
matrix(ax, x_one.reshape(6, 40),
       "five strings and one of them again: -1 is blue, 1 is red, masked is white",
       rows=["0", "1", "2", "3", "4", "asked"], columns=[""] * 40, limit=1.8, digits=None)
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
# That is the floor. But there is a second way to find nothing: let the five strings *vote* on
# each masked bit, no matter which string was asked for. The vote agrees with the asked string when
# at least 2 of the 4 others do. How many per cent of all bits does a model get right that copies
# what is visible and votes on the rest?

# %%
guess = ...                                               # a percentage


# %%
def levels(x, y):
    """Bits right in per cent without having found anything, x (B, 24, 10), y (B, 4, 10)"""
    strings = x.reshape(len(x), 6, 4, 10)                 # (B, string, patch, bit)
    votes = np.sign(strings[:, :5].sum(axis=1))           # there are five strings, so no tie
    vote = np.where(strings[:, 5] != 0, 1, votes == 2 * y - 1)
    guess = np.where(strings[:, 5] != 0, 1, 0.5)
    return {"copy and guess": 100 * guess.mean(), "copy and vote": 100 * vote.mean()}


x, y, which = task.sample(np.random.default_rng(6), 160)
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
# So a score between the two says nothing about finding.
#
# ## Three trunks
#
# We train three FPTs that differ only in their frozen weights:
#
# - *language*;
# - *matched random*, which knows how large the weights should be, and nothing else;
# - *random, too small*, drawn as GPT-2 is before any training.
#
# All have the same number of steps, the same learning rate and the same examples. (The learning
# rate rises for 50 steps, the **warm-up**, and then falls along half a cosine. The three runs take
# half a minute.) Which of them end above the vote? ("language", or "language, too small", ...)

# %%
guess = ...

# %%
kinds = {"language": "minigpt-language", "matched random": "statistics:minigpt-language",
         "too small": "random"}
inks = {"language": color.language, "matched random": color.statistics, "too small": color.grey}


def train(model, lr):
    return minifpt.train(model, task, steps=450, batch_size=8, lr=lr, schedule="cosine",
                         warmup=50, eval_every=75, test_examples=128)


models = {name: make(kind, task) for name, kind in kinds.items()}
before = attention_maps(models["language"], x)
histories = {name: train(model, lr=0.02) for name, model in models.items()}

# %%
def draw(histories, lr):
    """Learning curves; dotted is the vote."""
    curves({name: 100 * history["test_accuracy"] for name, history in histories.items()},
           f"bit memory, learning rate {lr} (dotted: copy and vote)", ylabel="bits right (%)",
           x=histories["language"]["step"], level=level["copy and vote"], ylim=(73, 101),
           styles=("-", "--", ":"), inks=[inks[name] for name in histories])
    print(*(f"{name} {100 * history[-1]['test_accuracy']:.1f} %"
            for name, history in histories.items()))


reveal(guess, ", ".join(name for name, history in histories.items()
                        if 100 * history[-1]["test_accuracy"] > level["copy and vote"] + 1))
draw(histories, 0.02)

# %% [markdown]
# *Random, too small* stays near the floor in these 450 steps. The language trunk finds the string.
# And so does *matched random*, which has never read a word; it only starts later. (One run each.
# *Going further* gives them another learning rate, and the order turns.)
#
# ## Where does it look?
#
# Now from inside, with the models of the first learning rate. For each head: of all the attention
# that the four asked tokens give to the five strings, which share goes to the right one, $k_n$ in
# example $n$? In the formula $A_{ntj}$ is the share that token $t$ gives to token $j$ in example
# $n$ of $B$.
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
print("equal shares would give 0.20; the language trunk's first heads:",
      ", ".join(f"block {b} head {h}: {share[b, h]:.2f}" for b, h in top[:3]))

# %% [markdown]
# All heads that do it are in the first block: two of *language*, and with *matched random* all four
# have a part.
#
# ## Position or content?
#
# Does it go by *what* the string looks like, or did it learn positions? We take the same examples
# and rotate the five strings, so that the right one comes first, then second, and so on. What
# happens to this head's attention: does it "stay" or "move along"?

# %%
guess = ...

# %%
block, head = top[0]
strings = x.reshape(-1, 6, 4, 10)
moved = np.zeros((5, 5))                                  # [where the right one is, looked at]
for place in range(5):
    order = (np.arange(5) + which[:, None] - place) % 5   # (B, 5): now the right one is there
    turned = strings.copy()
    turned[:, :5] = np.take_along_axis(strings[:, :5], order[:, :, None, None], axis=1)
    A = attention_maps(models["language"], turned.reshape(x.shape))
    moved[place] = share_by_string(A)[block, :, head].mean(axis=0)
reveal(guess, "move along" if moved.argmax(axis=1).tolist() == list(range(5)) else "stay")

fig, (ax,) = figure(width=3.8, height=3.3)
matrix(ax, moved, "share of attention on each string", "string", "the right one is", limit=1)
picture(fig)

# %% [markdown]
# It moves along: the string is found by content. (One model, 160 examples.)
#
# ## Is it these heads that do it?
#
# A check that could fail: mute the heads that look at the right string. But compare with what? To
# mute heads of other blocks would be no fair control: block 0 is the first to read the input, so
# its heads may matter more, whatever they look at. So we stay in block 0, mute *two* of its four
# heads each time, and change only which two. That makes six pairs. If looking at the right string
# is what counts, then the more a pair looks there, the more it must cost to mute it. We do the same
# with *matched random*. (In the picture the line is no head muted; dotted is copy and guess.) Of
# the language trunk's six pairs, how many cost more than five points?

# %%
guess = ...                                               # of 6

# %%
pairs = list(combinations(range(4), 2))
lost = {}
fig, axes = figure(2, width=3.9, height=3.3, sharey=True)
for ax, name in zip(axes, ("language", "matched random"), strict=True):
    model, share = models[name], share_on_right(after[name], which)[0]       # block 0: (4,)
    whole = accuracy_without(model, [], task, x, y)
    right = [accuracy_without(model, [(0, i), (0, j)], task, x, y) for i, j in pairs]
    lost[name] = whole - np.array(right)
    shares = [share[[i, j]].mean() for i, j in pairs]
    ax.plot(shares, right, "o", color=inks[name])
    for (i, j), share_of, value in zip(pairs, shares, right, strict=True):
        left = any(0 < other - share_of < 0.02 for other in shares)         # room for a neighbour
        ax.annotate(f"{i}, {j}", (share_of, value), (-21 if left else 6, 0), fontsize=8,
                    va="center", textcoords="offset points")
    ax.axhline(whole, color=color.ink, linewidth=1)
    ax.axhline(level["copy and guess"], color=color.ink, linestyle=":", linewidth=1)
    ax.set(title=f"{name}: two heads of block 0 mute", xlim=(0.2, 0.75), ylim=(73, 98),
           xlabel="share on the right string, mean of the two",
           ylabel="bits right (%)")
    print(f"{name:14} none mute {whole:.1f} %;", ", ".join(
        f"{i} and {j}: {value:.1f}" for (i, j), value in zip(pairs, right, strict=True)))
reveal(guess, int((lost["language"] > 5).sum()), "of 6")
picture(fig)

# %% [markdown]
# **This is the picture to keep.** The more the two heads look at the right string, the more it
# costs to mute them. In the language trunk, without the pair that looks there most, the model is
# down at the floor. The pair that looks there least costs next to nothing, though it is in the same
# block. In *matched random* more heads share the work, and no pair carries all of it. (One run
# each.)
#
# ## What we know now
#
# For XOR looks five tokens back carry the bit, in heads that differ from run to run, and the
# feed-forward layers multiply. For memory the heads that look at the right string carry the answer,
# and they find it by content. All that is trained are the input and output layers, the positions
# and the layer norms. So the frozen weights could already move, multiply and compare, and training
# only had to bring that out. Weights that are drawn at random can do it too, once they are large
# enough: nothing that we measured needs language. But in the paper, whose GPT-2 is six times as
# wide, random weights fail at bit memory, and we do not know why (`docs/results/twelve.md`). What
# would change your mind? Exercise 4.
#
# ## Exercises
#
# **1.** A model copies the visible bits and lets the strings vote on the rest. There are `strings`
# of them (an odd number), and a bit is masked with probability `masked`. What is the model's score?

# %%
def vote_level(strings, masked):
    """An odd number, a probability -> the expected share of bits that are right"""
    return ...


check("vote_level", vote_level)


# %% [markdown]
# **2.** To look at the right string is not yet to copy it: for that, asked token $p$ must look at
# token $p$ of the right string. How much attention does it give to just that one?

# %%
def copy_share(A, which, strings):
    """A (B, H, T, T), T = (strings + 1) P; which (B,), the right string's number -> (H,), the
    attention of asked token p to token p of the right string, a mean over examples and p"""
    return ...


check("copy_share", copy_share)


# %% [markdown]
# **3.** To mute a head is rough: the next layers have never seen zeros there. A gentler way is to
# put the head's mean output in place of its output: for each of its channels the mean over all
# examples and tokens. Then nothing is lost but what depends on the example. Write it for one head.

# %%
def say_the_mean(y, head, n_head):
    """y (B, T, C), the heads' outputs side by side, C / n_head channels each -> the same, with
    this head's channels replaced by their means over B and T"""
    return ...


check("say_the_mean", say_the_mean)


# %% [markdown]
# ## Going further
#
# **Another learning rate.** In memory *language* was ahead. Is that what language
# gives, a head start? A learning rate that suits one trunk need not suit another. We give both
# three times as much. Who is ahead in the end now, "language" or "matched random"?

# %%
guess = ...

# %%
faster = {name: train(make(kinds[name], task), lr=0.06) for name in ("language", "matched random")}

# %%
reveal(guess, max(faster, key=lambda name: faster[name][-1]["test_accuracy"]))
draw(faster, 0.06)

# %% [markdown]
# In this run the order is reversed: now *matched random* ends ahead. With five seeds (`python -m
# benchmarks.inside rates`) language ends ahead with each at 0.02, by 2 to 12 points. At 0.06 it is
# ahead with three and behind with two, by 4 points at most. So the head start came from the
# learning rate: to compare trunks, let each have the rate that suits it.
#
# **4.** *Open.* Language or size? Make several runs of two kinds, and ask whether the difference
# is larger than the spread. First a measure. Then set `RUN` to `True` and choose your question:
# fewer steps; a random trunk whose matrices are multiplied by 2, 4 or 8; harder strings; each kind
# at its own best learning rate.

# %%
def gap(a, b):
    """a (N,), b (M,): final accuracies of runs of two kinds -> the worst run of the kind with
    the higher mean minus the best run of the other; below 0 they overlap"""
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
            history = minifpt.train(model, task, steps=300, batch_size=8, lr=0.02, seed=seed,
                                    schedule="cosine", warmup=50, eval_every=300)
            results[kind].append(history[-1]["test_accuracy"])
    print(results, gap(*map(np.array, results.values())))

# %% [markdown]
# **The picture to keep:** accuracy without a pair of heads, against their share on the right
# string.
#
# **The sentence to remember:** *A picture of attention is a hypothesis, and muting the head is the
# test.*
#
# **What we do not know yet.** Which single head carries the bits of XOR differs from run to run.
# ([Lesson 19](19_which_part_does_it.ipynb), a side road, follows a value from head to head.) And
# two arms stood beside each other here with one run each. How sure is such a difference?
#
# **Next** on the spine: [lesson 13](13_transfer.ipynb). A side road: [lesson
# 9](09_pictures_as_tokens.ipynb) gives the same trunk pictures, cut into tokens.
