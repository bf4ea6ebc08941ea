# %% [markdown]
# # 8. Bit XOR and bit memory, seen from inside
#
# **A frozen model is shown five strings of bits, then one of them again with half of it
# missing. It fills the gaps. Where does it look, is that why it is right, and did it need
# language for it?**
#
# After this lesson you can
#
# - put where a head looks in one number, and mute the head;
# - compute which scores a model reaches without having found anything;
# - tell looking by position from looking by content;
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
# takes about an hour. What follows under *Going further* is not needed later.

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
# In bit XOR two strings of five bits come in, tokens 0 to 4 and 5 to 9, and the answer is read at
# tokens 5 to 9. Token $5 + i$ needs the bit at token $i$, and only attention moves anything from
# token to token. Does a head look there?
#
# `minifpt.trace` collects $A$ of lesson 4 from every attention layer while the model runs. Our
# trunk has 6 blocks with 4 heads each.

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

# %% [markdown]
# We train the language trunk on XOR, twice, nearly as in lesson 0 (half a minute). The second run
# has another seed: other starting numbers in the input and output layers, and other examples. We
# print which of the 24 heads gives most to the token five back.

# %%
xor_models, most = [make("minigpt-language", xor, seed) for seed in (0, 1)], []
print(f"equal shares would give it {100 * np.mean(1 / (back[0] + 1)):.0f} %")
for seed, model in enumerate(xor_models):
    minifpt.train(model, xor, steps=500, batch_size=4, lr=2e-3, seed=seed, eval_every=500)
    share = attention_maps(model, x_xor).mean(axis=1)[:, :, *back].mean(axis=-1)      # (L, H)
    most.append(int(share.argmax()))                      # a number from 0 to 23
    block, head = divmod(most[-1], 4)
    print(f"run {seed}: most in block {block}, head {head}: {100 * share.max():.0f} %; "
          f"bits right: {100 * xor.accuracy(model.predict(x_xor), y_xor):.0f} %")

# %% [markdown]
# A share says where a head looks, not what that is good for. So we change the model while it runs:
# `minifpt.trace(model, change={layer: function})` replaces the output of a layer. To **mute** a
# head is to set all its probabilities to 0, so that it brings nothing. We mute each of the 24
# heads, one at a time. Then we mute none, but let no head at all look one token back from where the
# answer is read, then two, three, four and five. In run 0, how many per cent of the bits are right
# without the one head that gives most to the token five back?

# %%
guess = ...                                               # a percentage


# %%
def accuracy(model, task, x, y, change):
    """Bits right in per cent while the outputs of some layers are changed."""
    with minifpt.trace(model, change=change):
        return 100 * task.accuracy(model.predict(x), y)


def mute(*heads):
    """A change of a block's probabilities: these heads have none."""
    def change(A):                                        # (B, H, T, T)
        A[:, heads] = 0
        return A
    return change


def no_look(n):
    """A change: tokens 5 to 9 do not look n tokens back; their other shares add up to 1."""
    def change(A):
        A[..., range(-5, 0), range(5 - n, 10 - n)] = 0
        return A / A.sum(axis=-1, keepdims=True)
    return change


for seed, model in enumerate(xor_models):
    one_head = [accuracy(model, xor, x_xor, y_xor, {f"trunk.h.{block}.attn.softmax": mute(head)})
                for block in range(6) for head in range(4)]
    one_look = [accuracy(model, xor, x_xor, y_xor, {"trunk.h.*.attn.softmax": no_look(n)})
                for n in range(1, 6)]
    if seed == 0:
        reveal(guess, round(one_head[most[0]]), "%")
    print(f"run {seed}, bits right (%) without one of 24 heads:", *np.round(one_head).astype(int))
    print("       without the looks 1, 2, 3, 4, 5 tokens back:", *np.round(one_look).astype(int))

# %% [markdown]
# In run 0 the head that looks five tokens back most costs a point: its share misleads. In run 1 it
# is the head that costs most. The trunk is the same. Training uses it differently each time.
#
# But the look five tokens back is needed, whichever heads have it. With five seeds (`python -m
# benchmarks.inside looks`) the model gets 54 to 63 % of the bits right without it, about as in the
# two runs above, and 91 % or more without the looks at any other distance up to six. The head that
# looks there most is the one that is missed most with three seeds of five.
#
# ## How is XOR computed?
#
# Muting shows that a head is needed, not what it does. Two things must happen somewhere. The bit
# $a$ at token $i$ must come to token $5 + i$, where its partner $b$ stands: only attention can
# carry it there. And the two must be combined: *who multiplies?*
#
# Write the bits as ±1. Then XOR is the product $a\,b$, up to its sign. No weighted sum of $a$ and
# $b$ gives this product. Hold all other bits fixed. Then any number $v$ inside the model has four
# values, one for each $(a, b)$, and four numbers $m$, $\alpha$, $\beta$ and $\gamma$ describe them:
#
# $$ v(a, b) = m + \alpha\, a + \beta\, b + \gamma\, a b, \qquad \gamma = \tfrac14 \big( v(1, 1) -
#    v(1, -1) - v(-1, 1) + v(-1, -1) \big) $$
#
# We run the four inputs side by side and take $\gamma\,ab$ out of the output of a part at the token
# of $b$, in all six blocks; $m$, $\alpha$ and $\beta$ stay. We do so for run 0. What costs more: to
# take the product out of `"attention"` or out of `"feed-forward"`?

# %%
guess = ...


# %%
def without_product(i):
    """A change: takes the product of bits i of the two strings out of an output"""
    sign = np.array([[1, -1], [-1, 1]])[..., None]        # of a b, for (a, b) = 00, 01, 10, 11

    def change(h):
        v = h[:, i - 5].reshape(-1, 2, 2, h.shape[-1])
        gamma = (sign * v).mean(axis=(1, 2), keepdims=True)
        h[:, i - 5] = (v - gamma * sign).reshape(-1, h.shape[-1])
        return h
    return change


def accuracy_without_products(model, *parts):
    """Per cent of the answers, a mean over the five places"""
    right, rng = [], np.random.default_rng(1)
    for i in range(5):
        bits = np.repeat(rng.integers(0, 2, (24, 10)), 4, axis=0)        # 24 contexts, 4 times
        bits[:, [i, 5 + i]] = np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (24, 1))
        change = {f"trunk.h.*.{part}": without_product(i) for part in parts}
        with minifpt.trace(model, change=change):
            logits = model.predict(bits[..., None].astype(np.float32)).reshape(-1, 5, 2)
        right.append((logits[:, i].argmax(-1) == bits[:, i] ^ bits[:, 5 + i]).mean())
    return 100 * float(np.mean(right))


names = {"nothing": (), "attention": ("attn",), "feed-forward": ("mlp",)}
products = {name: accuracy_without_products(xor_models[0], *parts) for name, parts in names.items()}
reveal(guess, min(("attention", "feed-forward"), key=products.get))
print("language, run 0, product taken from", ", ".join(
    f"{name}: {value:.0f} %" for name, value in products.items()))

# %%
# python -m benchmarks.inside xor: five seeds, each (nothing, attention, feed-forward)
WITHOUT_PRODUCT = {
    "language": [(98, 82, 62), (99, 95, 52), (99, 83, 56), (100, 94, 55), (100, 100, 49)],
    "as in the paper": [
        (100, 100, 42), (100, 100, 57), (100, 100, 46), (100, 100, 50), (100, 100, 49)],
    "matched random": [
        (100, 100, 47), (100, 100, 50), (100, 100, 50), (100, 100, 52), (100, 100, 48)],
}
print("five seeds, product taken from nothing / attention / feed-forward (%):")
for trunk, rows in WITHOUT_PRODUCT.items():
    print(f"{trunk:15}", "  ".join("/".join(f"{value:3.0f}" for value in row) for row in rows))

# %% [markdown]
# The table has this run, four more seeds, and two random trunks. Without the products of the
# feed-forward layers every trunk is down near guessing: 42 to 62 % in fifteen runs. Without those
# of attention the random ones lose nothing, and the language trunk 0 to 16 points: there attention
# has a part in the product, with four seeds of five. With random weights the work is cleanly
# divided: **attention carries the bit, and the feed-forward layers multiply.**
#
# How can frozen random layers multiply? A feed-forward layer bends a sum of a share of $a$ and a
# share of $b$, and in a bent sum there is a product:
#
# $$ (a + b)^2 = a^2 + 2ab + b^2 $$
#
# GELU bends in another way, but its output has such a part, too, and each block has hundreds of
# such bends. The trained input layer, positions and layer norms decide how much of $a$ and $b$ each
# of them gets, and the output layer reads those that are of use.
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
picture(fig)

# %%
guess = ...                                               # 0, 1, 2, 3 or 4

# %%
reveal(guess, int(which_one[0]))

# %% [markdown]
# Ten bits make a token, so there are $6 \cdot 4 = 24$ tokens, and the answer is read at the last
# four.
#
# Before we train, a warning about scores. A model that found nothing at all can still copy the
# visible half and guess the rest, which gives 75 %. But there is a second way to find nothing: let
# the five strings *vote* on each masked bit, no matter which string was asked for. The vote agrees
# with the asked string when at least 2 of the 4 others do. How many per cent of all bits does a
# model get right that copies what is visible and votes on the rest?

# %%
guess = ...                                               # a percentage

# %%
x, y, which = task.sample(np.random.default_rng(6), 160)
many, right, _ = task.sample(np.random.default_rng(7), 4000)             # (B, 24, 10), (B, 4, 10)
strings = many.reshape(-1, 6, 4, 10)                      # (B, string, patch, bit)
seen, votes = strings[:, 5] != 0, np.sign(strings[:, :5].sum(axis=1))    # five strings, so no tie
level = {"copy and guess": 100 * np.where(seen, 1, 0.5).mean(),
         "copy and vote": 100 * np.where(seen, 1, votes == 2 * right - 1).mean()}
reveal(guess, level["copy and vote"], "%")
for name, value in level.items():
    print(f"{value:5.1f} %   {name}")

# %% [markdown]
# On a masked bit the vote is right with probability $1 - \big(\binom40 + \binom41\big) / 2^4 =
# \tfrac{11}{16}$. So a score between the two says nothing about finding.
#
# ## Three trunks
#
# We train three FPTs that differ only in their trunks: *language*, *matched random* and
# *random, too small*. (The learning rate rises for 50 steps, the **warm-up**, and then falls along
# half a cosine. The three runs take half a minute.) How many of the three end above the vote?

# %%
guess = ...                                               # of 3

# %%
kinds = {"language": "minigpt-language", "matched random": "statistics:minigpt-language",
         "too small": "random@gpt2"}
inks = {"language": color.language, "matched random": color.statistics, "too small": color.grey}


def train(model, lr):
    return minifpt.train(model, task, steps=450, batch_size=8, lr=lr, schedule="cosine",
                         warmup=50, eval_every=75, test_examples=128)


models = {name: make(kind, task) for name, kind in kinds.items()}
before = attention_maps(models["language"], x)
histories = {name: train(model, lr=0.02) for name, model in models.items()}


def draw(histories, lr):
    curves({name: 100 * history["test_accuracy"] for name, history in histories.items()},
           f"bit memory, learning rate {lr} (level line: copy and vote)", ylabel="bits right (%)",
           x=histories["language"]["step"], level=level["copy and vote"], ylim=(73, 101),
           styles=("-", "--", ":"), inks=[inks[name] for name in histories])
    print(*(f"{name} {100 * history[-1]['test_accuracy']:.1f} %"
            for name, history in histories.items()))


reveal(guess, sum(100 * history[-1]["test_accuracy"] > level["copy and vote"] + 1
                  for history in histories.values()), "of 3")
draw(histories, 0.02)

# %% [markdown]
# *Random, too small* stays near 75 %, copy and guess, in these 450 steps. The language trunk finds
# the string. And so does *matched random*, which has never read a word; it only starts later. (One
# run each. *Going further* gives them another learning rate, and the order turns.)
#
# ## Where does it look?
#
# Now from inside. For each head: of all the attention that the four asked tokens give to the five
# strings, which share goes to the right one?

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
# happens to the attention of *language*'s head with the largest share: does it "stay" or "move
# along"?

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
# its heads may matter more, whatever they look at. So we mute *two* of block 0's four heads each
# time, and change only which two. If looking at the right string is what counts, then the more a
# pair looks there, the more it must cost to mute it. (In the picture the line is no head muted;
# dotted is copy and guess.) Of the language trunk's six pairs, how many cost more than five points?

# %%
guess = ...                                               # of 6

# %%
pairs = list(combinations(range(4), 2))
fig, axes = figure(2, width=3.9, height=3.3, sharey=True)
for ax, name in zip(axes, ("language", "matched random"), strict=True):
    share = share_on_right(after[name], which)[0]                        # block 0: (4,)
    whole, *right = (accuracy(models[name], task, x, y, {"trunk.h.0.attn.softmax": mute(*heads)})
                     for heads in [(), *pairs])
    if name == "language":
        reveal(guess, sum(whole - value > 5 for value in right), "of 6")
    ax.plot([share[[i, j]].mean() for i, j in pairs], right, "o", color=inks[name])
    ax.axhline(whole, color=color.ink, linewidth=1)
    ax.axhline(level["copy and guess"], color=color.ink, linestyle=":", linewidth=1)
    ax.set(title=f"{name}: two heads of block 0 mute", xlim=(0.2, 0.75), ylim=(73, 98),
           xlabel="share on the right string, mean of the two", ylabel="bits right (%)")
    print(f"{name:14} none mute {whole:.1f} %;", ", ".join(
        f"{i} and {j}: {value:.1f}" for (i, j), value in zip(pairs, right, strict=True)))
picture(fig)

# %% [markdown]
# **This is the picture to keep.** The more the two heads look at the right string, the more it
# costs to mute them. In the language trunk, without the pair that looks there most, the model is
# down at copy and guess. The pair that looks there least costs next to nothing, though it is in the
# same block. In *matched random* more heads share the work, and no pair carries all of it. (One run
# each.)
#
# ## What we know now
#
# For XOR, attention to the token five back carries the bit, and the feed-forward layers multiply.
# Which heads give this attention differs from run to run. For memory the heads that look at the
# right string carry the answer, and they find it by content. So the frozen weights could already
# move, multiply and compare, and training only had to bring that out. Weights that are drawn at
# random can do it too, once they are large enough: nothing that we measured needs language. But in
# the paper, whose GPT-2 is six times as wide, random weights fail at bit memory. (A likely reason
# is in `docs/results/why.md`.) What would change your mind? Exercise 4.
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
# **2.** Each string has P tokens, and the asked string comes last. To look at the right string is
# not yet to copy it: for that, asked token $p$ must look at token $p$ of the right string. How much
# attention does it give to just that one?

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
# **Another learning rate.** In memory *language* was ahead. Does language give an advantage? A
# learning rate that suits one trunk need not suit another. We give both three times as much. Who is
# ahead in the end now, "language" or "matched random"?

# %%
guess = ...

# %%
faster = {name: train(make(kinds[name], task), lr=0.06) for name in ("language", "matched random")}
reveal(guess, max(faster, key=lambda name: faster[name][-1]["test_accuracy"]))
draw(faster, 0.06)

# %% [markdown]
# In this run the order is reversed: now *matched random* ends ahead. With five seeds (`python -m
# benchmarks.inside rates`) language ends ahead with each at 0.02, by 2 to 12 points. At 0.06 it is
# ahead with three and behind with two, by 4 points at most. So the advantage came from the
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
# **The picture to keep:** accuracy without a pair of heads, against their share of attention on the
# right string: the more they look there, the more it costs.
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
