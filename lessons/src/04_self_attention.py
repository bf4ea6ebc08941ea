# %% [markdown]
# # 4. Self-attention
#
# **What a word means depends on the words before it. How does a token decide where to look, and
# what does it bring back?**
#
# After this lesson you can
#
# - write self-attention with queries, keys, values and heads, and say what each is for;
# - say what the factor $1/\sqrt D$ keeps the same at every width;
# - show by a measurement what the mask and the positions are for.
#
# **What we know by now.** Softmax turns scores into shares, and a gradient comes back through it.
# Layer norm keeps the numbers of many layers in size. So far each token has gone through its layers
# alone.
#
# **The question:** Where does a token look?
#
# You need [lesson 2](02_softmax_and_cross_entropy.ipynb). It takes about an hour: 30 minutes to
# read and run, 15 for your own file, 15 for two exercises. What follows under *Going further* is
# not needed later.

# %%
import math
import textwrap

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.files.tokenizer import Bytes
from minifpt.layers import Attention, Embedding, Layer, Linear, Positions

# %% [markdown]
# ## Looking, without weights
#
# We have $T$ tokens with $C$ channels each, $x$ `(T, C)`. **Self-attention** lets a row take
# something from other rows. Here is a first attempt, without weights. The **score** of a pair of
# tokens says how alike they are: it is their dot product. Softmax (lesson 2) turns each row of
# scores into shares that sum to 1. Then each token takes the average of all tokens, weighted by its
# shares.
#
# $$ S = x\,x^\top, \qquad A = \text{softmax}(S), \qquad y = A\,x $$
#
# $S$ and $A$ are `(T, T)`. We call $A$ the **attention map**: row $t$ says where token $t$ looks.
#
# Six random tokens of 16 channels. What share, on average, does a token give to itself?

# %%
guess = ...                                               # a number from 0 to 1

# %%
rng = np.random.default_rng(4)
x = rng.standard_normal((6, 16))                          # (T, C)
S = x @ x.T                                               # (T, T)
A, _ = F.softmax(S)
reveal(guess, float(A.diagonal().mean()))

fig, axes = figure(2, width=3.5, height=2.9)
matrix(axes[0], S, "scores: x xᵀ", "is looked at", "looks", digits=0)
matrix(axes[1], A, "shares: softmax of each row", "is looked at", "looks", limit=1)
picture(fig)

# %% [markdown]
# Each token looks at itself and brings back what it had. And the scores are symmetric: a token
# cannot *ask* for one thing and *offer* another.
#
# ## Query, key, value
#
# So each token gets three roles, by three weights $W_q, W_k, W_v$, each `(C, D)`:
#
# $$ q = x\,W_q, \qquad k = x\,W_k, \qquad v = x\,W_v $$
#
# The **query** is what a token asks for, the **key** is what it can be found by, and the **value**
# is what it hands over. All three are `(T, D)`.
#
# $$ S = q\,k^\top, \qquad A = \text{softmax}(S), \qquad y = A\,v $$
#
# Let us write the weights by hand. Tokens are pairs such as `a7`, and the last one is a question:
# which number stands with `b`? The query of `b?` is `b`; its key is turned away from all letters,
# so that no query finds it.

# %%
def tokens(text):
    """"a7 b3 b?" -> x (T, C); the C = 5 channels are a, b, c, ? and the number"""
    x = np.zeros((len(text.split()), 5))
    for row, (letter, digit) in zip(x, text.split(), strict=True):
        row["abc".index(letter)] = 1
        row[3:] = (1, 0) if digit == "?" else (0, int(digit))
    return x


# One row for each channel.  Query: its letter.  Key: its letter, unless "?".  Value: its number.
W_q = 10 * np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
W_k = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-2, -2, -2], [0, 0, 0]])
W_v = np.array([[0], [0], [0], [0], [1]])


def look_up(text):
    x = tokens(text)
    A, _ = F.softmax((x @ W_q) @ (x @ W_k).T)
    return A, A @ (x @ W_v)


A, y = look_up("a7 b3 c5 b?")
print(f"a7 b3 c5 b?     -> {y[-1, 0]:.2f}")

# %% [markdown]
# Now `b` stands there twice, with 3 and with 9. What comes out?

# %%
guess = ...

# %%
text = "a7 b3 c5 b9 b?"
A, y = look_up(text)
reveal(guess, float(y[-1, 0]))

fig, (ax,) = figure(width=3.2)
matrix(ax, A, "A: the question looks at both", "is looked at", "looks", limit=1,
       columns=text.split(), rows=text.split())
picture(fig)

# %% [markdown]
# Both keys match equally well, each gets half, and the answer does not occur in the text. Attention
# answers with an average. A token that wants two whole answers needs two maps.
#
# ## Why √D
#
# In a model $W_q$ starts random. A score is a sum of $D$ products. If the entries of queries and
# keys are independent, with mean 0 and variance 1, each product has variance 1. The
# variance of a sum of independent numbers is the sum of their variances:
#
# $$ \text{var}(q \cdot k) = D, \qquad \text{standard deviation} = \sqrt D $$
#
# GPT-2 has $D = 64$. With random queries and 32 random keys, how large is the largest share in a
# row of the map, on average?

# %%
guess = ...                                               # a number from 0 to 1


# %%
def sharpness(D, scale):
    """The largest share of a row, and how much of a gradient passes its softmax."""
    rng = np.random.default_rng(D)
    q, k = rng.standard_normal((400, 1, D)), rng.standard_normal((400, 32, D))
    A, cache = F.softmax(scale * (q * k).sum(axis=-1))    # (400, 32)
    dA = rng.standard_normal(A.shape)
    dS = F.softmax_backward(dA, cache)
    return A.max(axis=-1).mean(), np.linalg.norm(dS, axis=-1).mean()


sizes = np.array([1, 4, 16, 64, 256, 1024])
plain = np.array([sharpness(D, 1) for D in sizes]).T
scaled = np.array([sharpness(D, 1 / math.sqrt(D)) for D in sizes]).T
reveal(guess, float(plain[0, 3]))

fig, axes = figure(2, width=3.9, height=2.8)
for ax, one, other, title in zip(axes, plain, scaled, (
        "largest share of a row", "length of the gradient dS that passes"), strict=True):
    curves({"q · k": one, "q · k / √D": other}, title, "D", x=sizes, ax=ax, log="x",
           styles=("^-", "o-"), inks=(color.ochre, color.teal), ylim=(0, None))
picture(fig)

# %% [markdown]
# Without the factor, the wider the head, the more of a row goes to one token, by chance. And at
# large $D$ little of the gradient passes: where a row is nearly 1 at one token and 0 at all others,
# the softmax's Jacobian of lesson 2 is nearly 0. With the factor both curves are flat from $D = 4$
# on.
#
# $$ A = \text{softmax}\Big(\frac{q\,k^\top}{\sqrt D}\Big) $$
#
# ## The mask
#
# A language model predicts the next token, at every position at once. At position $t$ it must not
# see what comes after $t$. The **causal mask** adds $-\infty$ to the scores of later tokens, and
# $e^{-\infty} = 0$: their share is 0, and the other shares still sum to 1.
#
# What if we forget it? Let a small model predict *coin flips*: a table of two rows, one for each
# side of the coin, a trained vector added for each position (more below), one attention, an output
# layer. No model can know the next flip, so no honest loss is below $\log 2$. We train it with the
# mask and without it. (You need not read the cell. `Adam` is a kind of gradient descent, [lesson
# 12](12_optimisers.ipynb); `cache[2]["heads"]` is what the attention layer kept.) How low does the
# loss without the mask go?

# %%
guess = ...                                               # in nats; log 2 is 0.693


# %%
T, C = 12, 16


class Coins(Layer):
    """A token table with positions, one attention, an output layer."""

    def __init__(self, causal):
        self.layers = [Embedding(2, C), Positions(T, C), Attention(C, n_head=1, causal=causal),
                       Linear(C, 2)]
        rng = np.random.default_rng(0)
        for p in self.parameters():
            p.data[:] = rng.standard_normal(p.data.shape) / np.sqrt(C)

    def forward(self, x):
        """x (B, T), 0 or 1 -> scores of heads and tails (B, T, 2), and the caches"""
        caches = []
        for layer in self.layers:
            x, cache = layer.forward(x)
            caches.append(cache)
        return x, caches

    def backward(self, dy, caches):
        for layer, cache in zip(self.layers[::-1], caches[::-1], strict=True):
            dy = layer.backward(dy, cache)


def train_on_coins(mask, steps=300):
    """-> the model, its losses, and the attention map (T, T) of its last step"""
    rng, model, losses = np.random.default_rng(0), Coins(mask), []
    adam = minifpt.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        coins = rng.integers(0, 2, (16, T + 1))
        logits, cache = model.forward(coins[:, :-1])
        loss, c_loss = F.cross_entropy(logits, coins[:, 1:])
        losses.append(loss)
        model.zero_grad()
        model.backward(F.cross_entropy_backward(1.0, c_loss), cache)
        adam.step()
    return model, np.array(losses), cache[2]["heads"].probabilities[0, 0]


trained = {mask: train_on_coins(mask) for mask in (True, False)}
reveal(guess, float(trained[False][1][-20:].mean()), "nats")

fig, axes = figure(3, width=3.0, height=2.8, ratios=[1.4, 1, 1])
curves({"with mask": trained[True][1], "without": trained[False][1]}, "Nobody can predict a coin",
       ylabel="loss (nats)", ax=axes[0], inks=(color.teal, color.ochre), level=math.log(2),
       ylim=(0, 0.8))
for ax, mask, title in zip(axes[1:], (True, False), ("map with mask", "map without"),
                           strict=True):
    matrix(ax, trained[mask][2], title, "is looked at", "looks", limit=1, digits=None)
    ax.set_xticks(range(0, T, 2), range(0, T, 2))         # two-digit numbers need room
picture(fig)

# %% [markdown]
# **This is the picture to keep.** The model "predicts" the flip by looking at it: each token looks
# at the next one. Only the last token has no next one, and cannot be below $\log 2$: this is most
# of the loss that is left. (One run of each.) When the model writes, the next flip is not there yet
# to be looked at.
#
# ## Heads
#
# So that a token can bring back two things whole, the $C$ channels are cut into $H$ **heads** of $D
# = C / H$ channels. Each head has its own queries, keys and values, its own map, and writes its own
# $D$ channels of the result. All come from one weight `(C, 3C)`, and `qkv` is `(B, T, 3C)`: first
# all queries, then all keys, then all values. Here are the lines of the library.

# %%
show(F.attention, lines=("q, k, v =", "return"))
show(F.split_heads)


# %% [markdown]
# `causal_mask` is a matrix of 0 and $-\infty$. `p` is for **dropout**, which sets some shares to 0
# at random in training; here it is 0. `past` holds the keys and values of earlier tokens, for
# models that write text; write its two lines in your own file, too. `split_heads` ends with a
# transpose, because each head needs its `(T, D)` as the last two axes.
#
# ## Positions
#
# Shuffle the earlier tokens and look at the last one. Does its output change? Say `"yes"` or
# `"no"`.

# %%
guess = ...

# %%
qkv = rng.standard_normal((1, 10, 3 * 8))
order = np.r_[rng.permutation(9), 9]                      # the last token stays
moved = np.abs(F.attention(qkv[:, order], 2)[0] - F.attention(qkv, 2)[0])[0, -1].max()
reveal(guess, "yes" if moved > 1e-12 else "no")
print(f"largest change: {moved:.0e}")

# %% [markdown]
# A weighted sum has no order. To the token that reads them "dog bites man" and "man bites dog" are
# the same. So GPT-2 adds to each token a vector that belongs to its position, a **position
# embedding**, `wpe` `(n_positions, C)`. Queries and keys can make use of it, and the sharpest heads
# do (*Going further*).
#
# ## Strings of bits, on your own file
#
# Write `positions` with its backward pass, and the forward pass of `attention`, in `mine.py` (15
# minutes). `PositionsCache.tokens` is a `slice(start, stop)` of the table's rows. `dropout`, which
# `attention` calls, may stay the library's, and so may attention's backward pass, which reads your
# cache.
#
# Then five strings of 20 bits come in, a token each, and one of them again with half of its bits
# hidden. Copying what is visible and guessing the rest gives 75 %. The only head,
# `random:1x1x64@1.41` (one block, one head, 64 channels, queries, keys and values with a standard
# deviation of $1.41 / \sqrt{64}$), has random weights that are *frozen*; the input layer,
# positions, layer norms and output layer train. Does it get beyond 75 %, `"yes"` or `"no"`?

# %%
guess = ...

# %%
task = minifpt.tasks.get("bit-memory", bits=20, patch=20)


def recall(seed, steps=150):
    """-> the bits right (%), every 25 steps"""
    model = minifpt.FPT.for_task(task, "random:1x1x64@1.41", seed=seed, dropout=0.0)
    history = minifpt.train(model, task, steps, batch_size=16, lr=1e-2, seed=seed, warmup=0,
                            schedule="constant", eval_every=25, test_examples=256,
                            progress=False)
    return 100 * history["test_accuracy"]


with written("mine.py", "linear", "layer_norm", "positions", "positions_backward", "dropout",
             "dropout_backward", "attention") as whose:
    runs = [recall(seed) for seed in range(5)]
reveal(guess, "yes" if min(right[-1] for right in runs) > 75 else "no")
curves({"": runs}, f"One frozen random head, five seeds (dotted: copy and guess)\n{whose}",
       ylabel="bits right (%)", x=range(25, 151, 25), inks=[color.random], level=75)

# %% [markdown]
# Why a head that nobody taught can do this is the question of [lesson
# 22](22_why_random_weights_find_a_string.ipynb).
#
# ## Exercises
#
# **1.** All queries are 0, and there is a causal mask. What is $y$? You need neither scores nor a
# softmax.

# %%
def answer_to_no_question(v):
    """v (T, D), all queries are 0, causal mask -> y (T, D)"""
    return ...


check("answer_to_no_question", answer_to_no_question)


# %% [markdown]
# **2.** For long texts, many models look only at a **window**: each token sees itself and the $w -
# 1$ tokens before it. Write one such head, whole.

# %%
def windowed_attention(q, k, v, w):
    """q, k (T, D), v (T, E), w >= 1 -> y (T, E): causal, at most w tokens seen"""
    return ...


check("windowed_attention", windowed_attention)


# %% [markdown]
# **3.** Build a ruler. The tokens are bare positions: $x$ is the identity, `(T, T)`, one row for
# each token. Write $W_q$ and $W_k$ so that, after $\sqrt D$, the causal mask and softmax, token $t$
# gives at least 99 % to the token `back` positions before it, for every $t$ that has one.

# %%
def ruler(T, back):
    """-> W_q (T, D), W_k (T, D), for a D of your choice"""
    W_q = ...
    W_k = ...
    return W_q, W_k


check("ruler", ruler)


# %% [markdown]
# ## Going further
#
# **Dropout in your own file.** Write `dropout` and its backward pass. It multiplies what it keeps
# by $1/(1 - p)$, so that the mean stays; with $p = 0$ it draws nothing, and `rng` may be `None`.
#
# **Do queries and keys make use of positions?** Here is the language model that ships with this
# package, trained on novels byte by byte. `minifpt.trace` records all that a model computes, by
# name. In a second copy we set the table of positions to 0. This is the first of its six blocks;
# rows look, columns are looked at, and a dot stands for a space.

# %%
def language_model():
    return minifpt.LanguageModel.from_pretrained("minigpt-language")


def encode(text):
    return np.array([Bytes().encode(text)])               # (1, T)


def maps(model, ids):
    """Where each head looks, ids (1, T) -> (blocks, H, T, T)"""
    with minifpt.trace(model) as t:
        model.logits(ids)
    return np.array([t.attention[f"trunk.h.{i}.attn"][0] for i in range(model.config.n_layer)])


blind = language_model()
blind.trunk.wpe.weight.data[:] = 0
model, short = language_model(), encode("The sisters saw the sea")
letters = [chr(i).replace(" ", "·") for i in short[0]]
fig, axes = figure(4, 2, width=2.55, height=2.65)
for row, (m, note) in enumerate(((model, ""), (blind, ", no positions"))):
    for h, A in enumerate(maps(m, short)[0]):
        matrix(axes[4 * row + h], A, f"head {h}{note}", limit=1, digits=None, columns=letters,
               rows=letters)
        axes[4 * row + h].tick_params(labelsize=6)
        share = [A.diagonal(-back)[7 - back:].mean() for back in range(8)]
        first, second = np.argsort(share)[:-3:-1]
        print(f"head {h}{note}: {share[first]:.2f} on the token {first} back, "
              f"{share[second]:.2f} on the one {second} back")
picture(fig)

# %% [markdown]
# With positions, heads 3 and 0 are rulers: they look one and two back, and at little else. Head 2
# is a blurred ruler: three back, with a good part on the neighbours of that position. Head 1 has no
# favourite distance in this text. Without positions, no head prefers a distance. So each byte gets
# the byte before it from one head, and the byte before that from another; one head alone could only
# have brought a mixture of the two.
#
# **A map can fool us.** After the heads comes one more linear layer, `c_proj`. We silence one head
# of the first block at a time: the rows of this layer's weight that read it are set to 0. We do it
# on three pages, and on the same pages without line breaks.

# %%
PAGES = ["""It was late in the evening when the two sisters came back to the house. The door stood
open, and there was no light in the hall. "Somebody has been here," said the elder, and she took
her sister by the hand. They went up the stairs without a word, and at the top they saw that the
window had been broken.""", """The captain was a tall man with a grey beard, who had been at sea
since he was a boy of twelve. He spoke little, and when he did the crew fell silent, for they knew
that he would not say it twice. That morning he stood by the wheel and looked at the sky for a long
time, and then he gave the order to turn back to the harbour.""", """My dear Margaret, I have
received your letter of the third, and I am glad to hear that your mother is better. The weather
here has been so bad that we could not leave the village for a week. I have read all the books in
the house, and have begun to read them again. Yesterday the post came at last, and with it a large
box from my uncle."""]
flat = [encode(page.replace("\n", " "))[:, :256] for page in PAGES]
lines = [encode(textwrap.fill(page.replace("\n", " "), 70))[:, :256] for page in PAGES]


def bits(pages, silent=None):
    """Bits per byte of each page, with a head of block 0 silenced"""
    model = language_model()
    if silent is not None:
        model.trunk.h[0].attn.c_proj.weight.data[32 * silent:32 * (silent + 1)] = 0
    return np.array([F.cross_entropy(model.logits(ids)[0, :-1], ids[0, 1:])[0] / math.log(2)
                     for ids in pages])


for name, pages in (("with line breaks", lines), ("without line breaks", flat)):
    bars({f"head {h}": bits(pages, h) - bits(pages) for h in range(4)},
         f"pages {name}, a head silenced", "bits per byte, added", color.language,
         digits=2, levels=[0], xlim=(-1.6, 2.9))
breaks = [ids[0] == ord("\n") for ids in lines]
at_break = [maps(model, ids)[0][:, here.argmax():, here].sum(axis=-1).mean(axis=-1)
            for ids, here in zip(lines, breaks, strict=True)]
print("share on line breaks once there is one, by head:", np.mean(at_break, axis=0).round(2))

# %% [markdown]
# The rulers are missed on all pages. But without line breaks the model is *better* without head 1,
# by a lot. Head 1 looks for the line break: the novels break their lines about every 70 bytes, so
# where the last break stands tells when the next one is due. On a page without any it says that one
# is overdue. So the map of the short text fooled us: "no favourite distance" is what this head does
# when it finds nothing. Before you explain what a model does, give it what it was trained on.
#
# **4.** *Open.* Some heads go by position, others by content. Find a measure: given the maps of
# several texts of one length, which head picks out one position, and the same one in every text?
# Careful: a head that looks everywhere equally is also the same in every text. Then run it on the
# model: is the winner the one that you expect? And which head goes most by *content*?

# %%
def goes_by_position(maps):
    """maps (texts, blocks, H, T, T) -> (block, head) that goes most by position"""
    return ...


check("goes_by_position", goes_by_position)

# %%
pieces = [ids[:, i:i + 60] for ids in lines for i in (0, 60, 120)]   # put other texts here
collected = np.array([maps(model, ids) for ids in pieces])
print("maps", collected.shape, "-> yours:", goes_by_position(collected))

# %% [markdown]
# **The picture to keep:** the map of a head, with and without its mask.
#
# **The sentence to remember:** *A token asks with its query, is found by its key, and hands over
# its value.*
#
# **What we do not know yet.** A head looks, and brings something back. How does it learn where to
# look: who gets the gradient?
#
# **Next**: [lesson 5](05_backward_through_attention.ipynb), the way back through all of this.
