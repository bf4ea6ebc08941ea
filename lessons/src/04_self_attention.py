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
# - show by a measurement what breaks without the mask, and what without positions;
# - look at the attention maps of a trained model, find out what a head is for, and know one way to
#   be fooled.
#
# **What we know by now.** Softmax turns scores into shares, and a gradient comes back through it.
# Layer norm keeps the numbers of many layers in size. So far each token has gone through its layers
# alone.
#
# **The question:** Where does a token look?
#
# You need [lesson 2](02_softmax_and_cross_entropy.ipynb). It takes about an hour.

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
# We have $T$ tokens with $C$ channels each, $x$ `(T, C)`. A linear layer treats every row alone.
# **Self-attention** lets a row take something from other rows. Here is a first attempt, without any
# weights. The **score** of a pair of tokens says how alike they are: it is their dot product.
# Softmax (lesson 2) turns each row of scores into shares that sum to 1. Then each token takes the
# average of all tokens, weighted by its shares.
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
# Nothing is as much like a token as the token itself, so each token looks at itself and brings back
# what it had. And the scores are symmetric: if token 1 scores high for token 3, then so does 3 for
# 1. A token cannot *ask* for one thing and *offer* another.
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
# which number stands with `b`? It carries the letter that it asks about, and it must not find
# itself.

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
# It finds the number by content, not by position. (Every token sees all the others here, later ones
# too. We come to that.) Now `b` stands there twice, with 3 and with 9. What comes out?

# %%
guess = ...

# %%
text = "a7 b3 c5 b9 b?"
A, y = look_up(text)
reveal(guess, float(y[-1, 0]))

fig, axes = figure(3, width=2.7, height=2.7, ratios=[5, 1.6, 1.6])
matrix(axes[0], A, "A", "is looked at", "looks", limit=1, columns=text.split(),
       rows=text.split())
matrix(axes[1], tokens(text) @ W_v, "v", columns=[""], rows=[""] * 5, limit=9, digits=1)
matrix(axes[2], y, "y = A v", columns=[""], rows=[""] * 5, limit=9, digits=1)
picture(fig)

# %% [markdown]
# Both keys match equally well, each gets half, and the answer is a number that does not occur in
# the text. Attention is a dictionary that always answers, and it answers with an average. Remember
# this: a token that has two questions, and wants two whole answers, will need two maps.
#
# ## Why √D
#
# In a model nobody writes $W_q$ by hand: it starts random. A score is a sum of $D$ products.
# Suppose that the entries of queries and keys are independent, with mean 0 and variance 1. Then
# each product has variance 1, and the variances add:
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
plain = np.array([sharpness(D, 1) for D in sizes])
scaled = np.array([sharpness(D, 1 / math.sqrt(D)) for D in sizes])
reveal(guess, float(plain[3, 0]))

fig, axes = figure(2, width=3.9, height=2.8)
for ax, i, title in ((axes[0], 0, "largest share of a row"),
                     (axes[1], 1, "gradient that passes the softmax")):
    ax.semilogx(sizes, plain[:, i], "^-", color=color.ochre, label="q · k")
    ax.semilogx(sizes, scaled[:, i], "o-", color=color.teal, label="q · k / √D")
    ax.set(title=title, xlabel="D", xticks=sizes, xticklabels=sizes, ylim=(0, None))
    ax.minorticks_off()
axes[0].legend()
axes[1].set_ylabel("length of dS")
picture(fig)
print("   D   gradient that passes without the factor, compared with it")
for D, ratio in zip(sizes, plain[:, 1] / scaled[:, 1], strict=True):
    print(f"{D:4}   {ratio:.2f} times as much")

# %% [markdown]
# Without the factor, the wider the head, the more of a row goes to one token, and that token is a
# matter of chance. What does it do to the gradient? Up to a point a sharper softmax passes *more*
# (right panel, $D$ = 4 and 16). Then it passes less and less. In lesson 2 we had
# $dz_j = p_j\,(dp_j - \sum_i p_i\,dp_i)$. Where a row is nearly 1 at one token and 0 at all others,
# the bracket is 0 at that one, $p_j$ is 0 at the others, and little gets through: a row that is
# sharp by chance is slow to change.
#
# With the factor both curves are flat. That is its purpose: the scores have the same size at every
# width $D$, and so do the shares and the gradients. (GPT-2 starts from smaller queries and keys
# than we do here, but their scores depend on $D$ in the same way.)
#
# $$ A = \text{softmax}\Big(\frac{q\,k^\top}{\sqrt D}\Big) $$
#
# ## The mask
#
# A language model predicts the next token, at every position at once. At position $t$ it must not
# see what comes after $t$. The **causal mask** adds $-\infty$ to the scores of later tokens, and
# $e^{-\infty} = 0$: their share is 0, and the other shares still sum to 1.
#
# What if we forget it? Let a small model predict *coin flips*: a table for heads and tails,
# positions, one attention, an output layer. No model can know the next flip, so no honest loss is
# below $\log 2$. We train it with the mask and without it, for 300 steps. (`Adam` is gradient
# descent with a step size of its own for each number; [lesson 12](12_optimisers.ipynb) derives it.
# Each layer's `forward` returns its output and its cache, as in lesson 1.) How low does the loss
# without the mask go?

# %%
guess = ...                                               # in nats; log 2 is 0.693


# %%
T, C = 12, 16


class Coins(Layer):
    """A token table with positions, one attention, an output layer."""

    def __init__(self, causal):
        self.token, self.position = Embedding(2, C), Positions(T, C)
        self.attn, self.out = Attention(C, n_head=1, causal=causal), Linear(C, 2)
        rng = np.random.default_rng(0)
        for p in self.parameters():
            p.data[:] = rng.standard_normal(p.data.shape) / np.sqrt(C)

    def forward(self, ids):
        """ids (B, T) -> scores of heads and tails (B, T, 2), and what the way back needs"""
        cache = {}
        x, cache["token"] = self.token.forward(ids)
        x, cache["position"] = self.position.forward(x)
        x, cache["attn"] = self.attn.forward(x)
        x, cache["out"] = self.out.forward(x)
        return x, cache

    def backward(self, dy, cache):                        # the same in reverse; see lesson 5
        dy = self.out.backward(dy, cache["out"])
        dy = self.attn.backward(dy, cache["attn"])
        dy = self.position.backward(dy, cache["position"])
        self.token.backward(dy, cache["token"])


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
    return model, np.array(losses), cache["attn"]["heads"].probabilities[0, 0]


trained = {mask: train_on_coins(mask) for mask in (True, False)}
reveal(guess, float(trained[False][1][-20:].mean()), "nats")

fig, axes = figure(3, width=3.0, height=2.8, ratios=[1.4, 1, 1])
for mask, ink, style, name in ((True, color.teal, "-", "with mask"),
                               (False, color.ochre, "--", "without")):
    axes[0].plot(trained[mask][1], style, color=ink, label=name)
axes[0].axhline(math.log(2), color=color.ink, linewidth=0.8, linestyle=":")
axes[0].set(title="Nobody can predict a coin", xlabel="step", ylabel="loss (nats)",
            ylim=(0, 0.8))
axes[0].legend(loc="center right")
matrix(axes[1], trained[True][2], "map with mask", "is looked at", "looks", limit=1,
       digits=None)
matrix(axes[2], trained[False][2], "map without", "is looked at", limit=1, digits=None)
for ax in axes[1:]:
    ax.set_xticks(range(0, T, 2), range(0, T, 2))         # two-digit numbers need room
picture(fig)

# %% [markdown]
# It "predicts" the flip by looking at it: each token looks at the next one. Only the last token has
# no next one. It costs about $\log 2$, which adds $\log 2 / 12 = 0.058$ to the mean. (One run of
# each. That a loss below $\log 2$ needs a leak holds for all.) Now let both models do what a
# language model is for: they get the flips so far, and say the one that is not there yet.

# %%
coins = np.random.default_rng(1).integers(0, 2, (2000, T + 1))


def share_right(model):
    """In training all flips are there at once; when it writes, only those so far."""
    def right(n):                                         # (sequences, n), from n flips
        logits, _ = model.forward(coins[:, :n])
        return logits.argmax(axis=-1) == coins[:, 1:n + 1]

    return right(T)[:, :-1].mean(), np.mean([right(n)[:, -1] for n in range(1, T)])


for mask in (True, False):
    training, writing = share_right(trained[mask][0])
    print(f"{'with' if mask else 'without':7} mask: right in training {training:.0%}, "
          f"when it writes {writing:.0%}")

# %% [markdown]
# A loss that looks too good is a warning. So we want a check that needs no training run. Move one
# input token at a time and see which outputs move, even by a single bit. What comes after a token
# must not move it. The matrix of who moves whom has a row for each output and a column for each
# input: nothing may stand above its diagonal.

# %%
def influence(attention, n_head=2, T=6, C=8):
    """(T, T): 1 where output t moves when input token s moves"""
    qkv = np.random.default_rng(0).standard_normal((1, T, 3 * C))
    y, _ = attention(qkv, n_head)
    moves = np.zeros((T, T))
    for s in range(T):
        moved = qkv.copy()
        moved[:, s] += 1
        moves[:, s] = (attention(moved, n_head)[0] != y).any(axis=-1)[0]
    return moves


def no_mask(qkv, n_head):
    return F.attention(qkv, n_head, causal=False)


for name, attention in (("F.attention", F.attention), ("without its mask", no_mask)):
    print(f"{name:17} sees the future: {bool(np.triu(influence(attention), 1).any())}")

# %% [markdown]
# ## Heads
#
# One row of shares gives one average. A token that needs two things, each of them whole, needs two
# rows. So the $C$ channels are cut into $H$ **heads** of $D = C / H$ channels. Each head has its
# own queries, keys and values, its own map, and writes its own $D$ channels of the result. The
# queries, keys and values of all heads come from one weight `(C, 3C)`, and `qkv` is `(B, T, 3C)`:
# first all queries, then all keys, then all values. Here is the library's attention, whole.

# %%
show(F.attention, F.split_heads, F.merge_heads, F.causal_mask)

# %% [markdown]
# (`past` holds the keys and values of earlier tokens, for a model that writes text; `causal` is the
# mask. `p` is for **dropout**, which sets some shares to 0 at random in training, so that the model
# does not rely on single ones; here it is 0. For long texts the layers use a form that computes the
# same tile by tile. `minifpt steps bit-xor` writes a page with every number of one step,
# attention's too; lesson 5 shows such a page.)
#
# `split_heads` ends with a transpose. Do we need it? The shape `(B, H, T, D)` can also be had with
# a single `reshape`. We compare both with a loop over heads that is hard to get wrong.

# %%
def loop_over_heads(qkv, n_head):
    C = qkv.shape[2] // 3
    D = C // n_head
    y = np.zeros((*qkv.shape[:2], C))
    for b in range(len(qkv)):
        for h in range(n_head):
            at = h * D                                    # where the head begins
            q, k, v = (qkv[b, :, start:start + D] for start in (at, C + at, 2 * C + at))
            S = q @ k.T / math.sqrt(D) + F.causal_mask(len(q), len(k), q.dtype)
            y[b, :, at:at + D] = F.softmax(S)[0] @ v
    return y


def reshape_only(qkv, n_head):
    B, T, C3 = qkv.shape
    q, k, v = (part.reshape(B, n_head, T, -1) for part in np.split(qkv, 3, axis=2))
    S = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + F.causal_mask(T, T, q.dtype)
    return (F.softmax(S)[0] @ v).reshape(B, T, -1), None


qkv = rng.standard_normal((2, 6, 3 * 8))
right = loop_over_heads(qkv, 2)
kinds = {"F.attention": F.attention, "no mask": no_mask, "reshape only": reshape_only}
fig, axes = figure(3, width=2.5, height=2.6)
for ax, (name, attention) in zip(axes, kinds.items(), strict=True):
    matrix(ax, influence(attention), name, "input moved", limit=1.6, digits=None)
    difference = np.abs(attention(qkv, 2)[0] - right).max()
    print(f"{name:13} differs from the loop by {difference:.1e}")
axes[0].set_ylabel("output moves")
picture(fig)

# %% [markdown]
# With `reshape` alone the shapes are right, nothing fails, and the future stays hidden. But the
# picture shows what it does: it cuts the *text* into $H$ pieces and takes these for heads. The
# second half never hears of the first. A check of the future alone would have passed it; the loop
# does not.
#
# ## Positions
#
# Shuffle the earlier tokens and look at the last one. Its query is the same. The keys and values
# are the same too, in another order. Does the output of the last token change? Say `"yes"` or
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
# A weighted sum has no order. To this layer "dog bites man" and "man bites dog" are the same, for
# the token that reads them. (With several layers the mask gives some order away: the first token
# sees only itself.) So GPT-2 adds to each token a vector that belongs to its position, a
# **position embedding**, `wpe` `(n_positions, C)`, and queries and keys can make use of it.
#
# Do they? Here is the language model that ships with this package. It was trained on novels, byte
# by byte, and has six blocks of four heads. `minifpt.trace` records all that a model computes, by
# name.

# %%
def language_model():
    return minifpt.LanguageModel.from_pretrained("minigpt-language")


def encode(text):
    return np.array([Bytes().encode(text)])               # (1, T)


short = encode("The sisters saw the sea")
model = language_model()
with minifpt.trace(model) as t:
    model.logits(short)
print(t)
print("what the layers returned:", ", ".join(list(t.outputs)[:7]), "...")
print("attention:", ", ".join(t.attention))
print("the first map:", t.attention["trunk.h.0.attn"].shape, "which is (B, H, T, T)")


# %% [markdown]
# To see what the positions do, we remove them: in a second copy of the model we set their table
# to 0. Here is the first block; rows look, columns are looked at, and a dot stands for a space.

# %%
def maps(model, ids):
    """Where each head looks, ids (1, T) -> (blocks, H, T, T)"""
    with minifpt.trace(model) as t:
        model.logits(ids)
    return np.array([t.attention[f"trunk.h.{i}.attn"][0] for i in range(model.config.n_layer)])


def no_positions(model):
    model.trunk.wpe.weight.data[:] = 0


blind = language_model()
no_positions(blind)
letters = [chr(i).replace(" ", "·") for i in short[0]]
fig, axes = figure(4, 2, width=2.55, height=2.65)
for row, (m, note) in enumerate(((model, ""), (blind, ", no positions"))):
    for h, A in enumerate(maps(m, short)[0]):
        matrix(axes[4 * row + h], A, f"head {h}{note}", limit=1, digits=None, columns=letters,
               rows=letters)
        axes[4 * row + h].tick_params(labelsize=6)
picture(fig)


def by_distance(A):
    """(T, T) -> the mean share on the token 0, 1, ... 7 back"""
    return np.array([A.diagonal(-back)[7 - back:].mean() for back in range(8)])


for m, note in ((model, ""), (blind, ", no positions")):
    for h, A in enumerate(maps(m, short)[0]):
        share = by_distance(A)
        first, second = share.argsort()[:-3:-1]
        print(f"head {h}{note}: {share[first]:.2f} on the token {first} back, "
              f"{share[second]:.2f} on the one {second} back")

# %% [markdown]
# With positions, heads 3 and 0 are rulers: they look one and two back, and at little else. Head 2
# is a blurred ruler: three back, with a good part on the neighbours of that position. Head 1 has no
# favourite distance; in this text its look is spread over nearly all tokens. Without positions, no
# head prefers a distance.
#
# So in this block each byte gets the byte before it from one head, and the byte before that from
# another, both nearly pure. One head alone could only have brought a mixture of the two.
#
# ## What breaks, in numbers
#
# Now leave out one part at a time and measure the loss on three pages of text, in bits per byte. A
# model that knows nothing scores 8. We change copies of the model: for "no mask" every token sees
# all others; for "no √D" we multiply the queries by $\sqrt D$, which undoes the division.
#
# One case is tempting: *without its mask* the trunk sees the very byte that it is to predict. Is
# its loss `"lower"` or `"higher"`?

# %%
guess = ...

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


def nats(model, ids):
    """-log of the probability of each byte but the first, (T - 1,)"""
    logits = model.logits(ids)[0, :-1]
    chosen = logits[np.arange(len(logits)), ids[0, 1:]]
    return F.log_sum_exp(logits)[0][:, 0] - chosen


def bits(model, pages):
    """Bits per byte of each page"""
    return np.array([nats(model, ids).mean() / math.log(2) for ids in pages])


def no_mask_at_all(model):
    for block in model.trunk.h:
        block.attn.causal = False


def no_root(model):
    C = model.config.n_embd
    for block in model.trunk.h:
        for p in (block.attn.c_attn.weight, block.attn.c_attn.bias):
            p.data[..., :C] *= math.sqrt(C / block.attn.n_head)      # the queries come first


def changed(change):
    model = language_model()
    change(model)
    return model


cases = {"as it is": lambda model: None, "no √D": no_root, "no mask": no_mask_at_all,
         "no positions": no_positions}
found = {name: bits(changed(change), lines) for name, change in cases.items()}
reveal(guess, "lower" if found["no mask"].mean() < found["as it is"].mean() else "higher")

bars(found, "the trained model needs each part (dotted: knows nothing)", "bits per byte",
     [color.language] + [color.ochre] * 3, digits=2, levels=[8], xlim=(0, 8.5))

# %% [markdown]
# Much higher. In training these weights never saw a later token, so they have no use for one: it is
# noise in every average. A missing mask is a cheat only for a model that is *trained* without it.
#
# And $\sqrt D$? Without it the maps of the trained model are too sharp, although the order of the
# scores is the same. This says nothing about *training* without it; we trained no such model.
#
# ## A trap
#
# How much does the model need each head of the first block? We silence one at a time: the head's
# rows of the output weight `c_proj` are set to 0, so that nothing reads what it brings. We do it on
# our pages, and on the same pages without line breaks.

# %%
def silenced(head, block=0):
    model = language_model()
    attn = model.trunk.h[block].attn
    D = model.config.n_embd // attn.n_head
    attn.c_proj.weight.data[head * D:(head + 1) * D] = 0
    return model


kinds = {"with line breaks": lines, "without line breaks": flat}
cost = {name: np.array([bits(silenced(h), pages) - bits(model, pages) for h in range(4)])
        for name, pages in kinds.items()}                 # (heads, pages)

for name, values in cost.items():
    bars({f"head {h}": dots for h, dots in enumerate(values)}, f"pages {name}, a head silenced",
         "bits per byte, added", color.language, digits=2, levels=[0], xlim=(-1.6, 2.9))
for name, pages in kinds.items():
    print(f"{name}: {bits(model, pages).mean():.2f} bits per byte, "
          f"with head 1 silenced {bits(silenced(1), pages).mean():.2f}")

# %% [markdown]
# The rulers are missed on all pages. But look at head 1. Below, the model is *better*
# without it, by a lot. Is the weight wrong? Is there a bug? The two kinds of pages differ in
# nothing but the line breaks. So where does head 1 look when there are some, which bytes get worse
# without it, and what does the model expect when there are none?

# %%
at_break, hurt = [], {"line breaks": [], "other bytes": []}
for ids in lines:
    breaks = ids[0] == ord("\n")
    first = breaks.argmax()                               # from here on there is one to look at
    at_break.append(maps(model, ids)[0][:, first:, breaks].sum(axis=-1).mean(axis=-1))
    worse = (nats(silenced(1), ids) - nats(model, ids)) / math.log(2)
    hurt["line breaks"].append(worse[breaks[1:]].mean())
    hurt["other bytes"].append(worse[~breaks[1:]].mean())
print("share on line breaks, by head:", np.mean(at_break, axis=0).round(2))
for name, values in hurt.items():
    print(f"bits added when head 1 is silenced, at {name}: {np.mean(values):.2f}")
for name, m in (("as it is", model), ("head 1 silenced", silenced(1))):
    expected = np.stack([F.softmax(m.logits(ids)[0])[0][100:-1, ord("\n")] for ids in flat])
    at_space = np.stack([ids[0, 101:] == ord(" ") for ids in flat])  # the byte that comes next
    at_others = expected[~at_space]
    print(f"no break for 100 bytes, {name}: the model gives a break "
          f"{expected[at_space].mean():.0%} where a space comes next, "
          f"elsewhere {at_others.mean():.0%}, median {np.median(at_others):.2%}")

# %% [markdown]
# Head 1 looks for the line break. The novels break their lines about every 70 bytes, so where the
# last break stands tells when the next one is due. Without the head, the line breaks get much worse
# and the other bytes hardly. On a page without any break the model believes that one is overdue: at
# each end of a word, where a line can break, it is nearly sure of a break, and pays for the space
# that comes. Within words it hardly ever expects one. Silence the head, and the belief fades.
#
# So the map of the short text above has fooled us: "spread over nearly all tokens" is what this
# head does when it finds nothing. Before you explain what a model does, give it what it was
# trained on.
#
# ## One head recalls, on your own file
#
# Write `positions` and `dropout`, each with its backward pass, and the forward pass of `attention`
# in `mine.py` (15 minutes). `PositionsCache.tokens` is a `slice(start, stop)` of the table's rows.
# Dropout multiplies what it keeps by $1/(1 - p)$, so that the mean stays. The backward pass of
# attention is the next lesson; until then the library's reads your cache. With it one head recalls:
# five strings of 20 bits come in, a token each, and then one of them with half of its bits hidden.
# Copying what is visible and guessing the rest gives 75 %. The head's weights are random and
# *frozen*; what trains is around them. (`random:1x1x64@1.41` is one block with one head and 64
# channels, and weights of standard deviation $1.41 / \sqrt{64}$.) Does it get beyond 75 %, `"yes"`
# or `"no"`?

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
# Keep this picture in mind. Why a head that nobody taught can do this is the question of [lesson
# 22](22_why_random_weights_find_a_string.ipynb).
#
# ## Exercises
#
# Solutions are in `solutions/04_self_attention.py`.
#
# **1.** All queries are 0, and there is a causal mask. What is $y$? You need neither scores nor a
# softmax.

# %%
def answer_to_no_question(v):
    """v (T, D), all queries are 0, causal mask -> y (T, D)"""
    return ...


check("answer_to_no_question", answer_to_no_question)


# %% [markdown]
# **2.** For long texts, many models look only at a **window**: each token sees itself and the
# $w - 1$ tokens before it. Write one such head, whole.

# %%
def windowed_attention(q, k, v, w):
    """q, k (T, D), v (T, E), w >= 1 -> y (T, E): causal, at most w tokens seen"""
    return ...


check("windowed_attention", windowed_attention)


# %% [markdown]
# **3.** Build a ruler. The tokens are bare positions: $x$ is the identity, `(T, T)`, one row for
# each token. Write $W_q$ and $W_k$ so that, after $\sqrt D$, the causal mask and softmax, token
# $t$ gives at least 99 % to the token `back` positions before it, for every $t$ that has one.

# %%
def ruler(T, back):
    """-> W_q (T, D), W_k (T, D), for a D of your choice"""
    W_q = ...
    W_k = ...
    return W_q, W_k


check("ruler", ruler)


# %% [markdown]
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
