# %% [markdown]
# # 4. Self-attention
#
# **What a word means depends on words before it. How does a token decide where to look, and
# what does it bring back?**
#
# After this lesson you can
#
# - write self-attention with queries, keys, values and heads, and say what each is for;
# - say what the factor $1/\sqrt D$ keeps alive;
# - show by a measurement what breaks without the mask, and what without positions;
# - read the attention maps of a trained model, and know one way to be fooled by it.
#
# You need lessons [1](01_gradients_by_hand.ipynb) to [3](03_layer_norm.ipynb). It takes about an
# hour.

# %%
import math
import textwrap

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.layers import Parameter
from minifpt.lesson import color, figure, matrix, picture, reveal, show
from minifpt.tokenizer import Bytes

# %% [markdown]
# ## Looking, without weights
#
# We have $T$ tokens with $C$ channels each, $x$ `(T, C)`. A linear layer treats every row alone.
# **Self-attention** lets rows take from other rows. Here is a first attempt without any weight.
# The **score** of a pair says how alike two tokens are: their dot product. Softmax (lesson 2)
# makes each row of scores into shares that sum to 1. Each token then takes the average of all
# tokens, with these shares.
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
# Nobody is as much like a token as the token itself, so it looks at itself and brings back what
# it had. And the scores are symmetric: if I interest you, you must interest me. A token cannot
# *ask* for one thing and *offer* another.
#
# ## Query, key, value
#
# So each token gets three roles, by three weights $W_q, W_k, W_v$, each `(C, D)`:
#
# $$ q = x\,W_q, \qquad k = x\,W_k, \qquad v = x\,W_v $$
#
# The **query** is what a token asks for, the **key** what it answers to, the **value** what it
# hands over. All three are `(T, D)`.
#
# $$ S = q\,k^\top, \qquad A = \text{softmax}(S), \qquad y = A\,v $$
#
# We write the weights by hand. Tokens are pairs such as `a7`, and the last one asks: which
# number stands with `b`? A question has the letter it asks for, and must not answer itself.

# %%
def tokens(text):
    """"a7 b3 b?" -> x (T, C), its C = 5 channels are a, b, c, ? and the number"""
    x = np.zeros((len(text.split()), 5))
    for row, (letter, digit) in zip(x, text.split(), strict=True):
        row["abc".index(letter)] = 1
        row[3:] = (1, 0) if digit == "?" else (0, int(digit))
    return x


# One row for each channel.  Query: my letter.  Key: my letter, unless "?".  Value: my number.
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
# It finds the number by content, not by place. (Every token looks at every other here, also at
# later ones. We come to that.) Now `b` stands there twice, with 3 and with 9.
# What comes out?

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
# Both keys match as well, each gets half, and the answer is a number that nobody said. Attention
# is a dictionary that always answers, with an average. Remember this; heads are the cure.
#
# ## Why √D
#
# In a model nobody writes $W_q$ by hand: it begins random. A score is a sum of $D$ products.
# Say that the entries of query and key have mean 0 and variance 1. Then each product has
# variance 1, and variances of independent numbers add:
#
# $$ \text{var}(q \cdot k) = D, \qquad \text{deviation} = \sqrt D $$
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
    ax.semilogx(sizes, plain[:, i], "o-", color=color.ochre, label="q · k")
    ax.semilogx(sizes, scaled[:, i], "o-", color=color.teal, label="q · k / √D")
    ax.set(title=title, xlabel="D", xticks=sizes, xticklabels=sizes, ylim=(0, None))
    ax.minorticks_off()
axes[0].legend()
axes[1].set_ylabel("length of dS")
picture(fig)

# %% [markdown]
# A little sharper passes a little more, see $D = 4$. Then it falls. Without the factor a row of a
# wide model is nearly all on one token from the first step on,
# chosen by chance. That would be no harm if training could change it. But a softmax that is
# nearly 1 and 0 passes little back: in lesson 2, $dz_j = p_j\,(dp_j - \sum_i p_i\,dp_i)$, and
# where $p_j$ is 1 the bracket is 0. Divided by $\sqrt D$, the scores have deviation 1 at any width:
#
# $$ A = \text{softmax}\Big(\frac{q\,k^\top}{\sqrt D}\Big) $$
#
# ## The mask
#
# A language model predicts the next token, at every place at once. At place $t$ it must not see
# what comes after $t$. The **causal mask** adds $-\infty$ to the scores of later tokens, and
# $e^{-\infty} = 0$: their share is 0, and the rest still sums to 1.
#
# What if we forget it? Let a small model predict *coin flips*: one attention between a token
# table with positions and an output layer. No model can know the next flip, so no honest loss is
# below $\log 2$. We train it with the mask and without it, 300 steps. How low does the loss
# without it go?

# %%
guess = ...                                               # in nats; log 2 is 0.693


# %%
def attend(qkv, n_head, mask=True, scale=True):
    """F.attention, with parts that can be left out."""
    q, k, v = F.split_heads(qkv, n_head)                  # (B, H, T, D) each
    S = q @ k.swapaxes(-1, -2)                            # (B, H, T, T)
    if scale:
        S = S / math.sqrt(q.shape[-1])
    if mask:
        S = S + F.causal_mask(*S.shape[-2:], S.dtype)
    A, _ = F.softmax(S)
    return F.merge_heads(A @ v), (q, k, v, A, None)


T, C = 12, 16


def coin_model(p, ids, mask):
    """ids (B, T) -> scores of heads and tails (B, T, 2)"""
    e, c_e = F.embedding(ids, p["token"].data)
    qkv, c_in = F.linear(e + p["position"].data[:ids.shape[1]], p["qkv"].data, 0)
    y, c_attn = attend(qkv, 1, mask)
    logits, c_out = F.linear(y, p["out"].data, 0)
    return logits, (c_e, c_in, c_attn, c_out)


def train_on_coins(mask, steps=300):
    rng = np.random.default_rng(0)
    shapes = {"token": (2, C), "position": (T, C), "qkv": (C, 3 * C), "out": (C, 2)}
    p = {name: Parameter(rng.standard_normal(shape) / np.sqrt(C))
         for name, shape in shapes.items()}
    adam, losses = minifpt.optim.Adam(list(p.values()), lr=0.02), []
    for _ in range(steps):
        coins = rng.integers(0, 2, (16, T + 1))
        logits, (c_e, c_in, c_attn, c_out) = coin_model(p, coins[:, :-1], mask)
        loss, c_loss = F.cross_entropy(logits, coins[:, 1:])
        losses.append(loss)
        d = F.cross_entropy_backward(1.0, c_loss)         # and back, see lesson 5
        d, p["out"].grad, _ = F.linear_backward(d, c_out)
        d, p["qkv"].grad, _ = F.linear_backward(F.attention_backward(d, c_attn), c_in)
        p["position"].grad = d.sum(axis=0)
        p["token"].grad = F.embedding_backward(d, c_e)
        adam.step()
    return p, np.array(losses), c_attn[3][0, 0]


trained = {mask: train_on_coins(mask) for mask in (True, False)}
reveal(guess, float(trained[False][1][-20:].mean()), "nats")

fig, axes = figure(3, width=3.0, height=2.8, ratios=[1.4, 1, 1])
for mask, ink, name in ((True, color.teal, "with mask"),
                        (False, color.ochre, "without")):
    axes[0].plot(trained[mask][1], color=ink, label=name)
axes[0].axhline(math.log(2), color=color.ink, linewidth=0.8, linestyle=":")
axes[0].set(title="Nobody can predict a coin", xlabel="step", ylabel="loss (nats)",
            ylim=(0, 0.8))
axes[0].legend(loc="center right")
matrix(axes[1], trained[True][2], "map with mask", "is looked at", "looks", limit=1,
       digits=None)
matrix(axes[2], trained[False][2], "map without", "is looked at", limit=1, digits=None)
picture(fig)

# %% [markdown]
# It "predicts" the flip by looking at it: each token looks at the next one. Most of what is left
# of its loss comes from the last token, which has no next one. Now let both models do what a
# language model is for. They get the flips so far, and say the one that is not there yet.

# %%
coins = np.random.default_rng(1).integers(0, 2, (2000, T + 1))


def share_right(p, mask):
    """In training all flips are there at once; when writing, only those so far."""
    def right(n):                                         # (sequences, n), from n flips
        logits, _ = coin_model(p, coins[:, :n], mask)
        return logits.argmax(axis=-1) == coins[:, 1:n + 1]

    return right(T)[:, :-1].mean(), np.mean([right(n)[:, -1] for n in range(1, T)])


for mask in (True, False):
    training, writing = share_right(trained[mask][0], mask)
    print(f"{'with' if mask else 'without':7} mask: right in training {training:.0%}, "
          f"when it writes {writing:.0%}")

# %% [markdown]
# The better the loss looks, the worse the news. So we want a check that needs no training run.
# Move one input token at a time and see which outputs move, even by a single bit. What comes
# after a token may not move it: nothing may stand above the diagonal.

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
    return attend(qkv, n_head, mask=False)


for name, attention in (("F.attention", F.attention), ("without its mask", no_mask)):
    print(f"{name:17} sees the future: {bool(np.triu(influence(attention), 1).any())}")

# %% [markdown]
# ## Heads
#
# One row of shares can only give one average. A token that wants two things, each whole, needs
# two rows. So the $C$ channels are cut into $H$ **heads** of $D = C / H$ channels. Each head has
# its own queries, keys and values, its own map, and writes its own $D$ channels of the result.
# All heads of all three roles come from one weight `(C, 3C)`, and `qkv` is `(B, T, 3C)`: first
# all queries, then all keys, then all values. Here is the library's attention, whole.

# %%
show(F.attention, F.split_heads, F.merge_heads, F.causal_mask)

# %% [markdown]
# (`past` is for writing text, where keys and values of earlier tokens are kept. In training the
# layers run the same thing, a long text tile by tile; lesson 5 comes to that.)
#
# `split_heads` ends with a transpose. Do we need it? The shape `(B, H, T, D)` could also be had
# with one `reshape`. We compare both with a loop over heads that cannot be misread.

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
# The reshape's shapes are right, nothing fails, and the future stays hidden. But the picture says
# what it does: it cuts the *text* into $H$ pieces and calls them heads. The second half never
# hears of the first. A check of the future alone would have let it pass; the loop does not.
#
# ## Positions
#
# Shuffle the earlier tokens and look at the last one. Its query is the same; the keys and values
# are the same ones in another order. Does the output of the last token change? Say `"yes"` or
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
# A weighted sum has no order. To this layer "dog bites man" and "man bites dog" are one and the
# same for the token that reads them. (With several layers the mask gives some order away: the
# first token can see only itself.) So GPT-2 adds to each token a vector that belongs to its
# place, a **position embedding** `wpe` `(n_positions, C)`, and queries and keys can use it.
#
# Do they? Here is the trunk that ships with this package. It was trained on novels, byte by byte,
# and has six blocks of four heads. We run it with our `attend`, so that we can leave parts out.

# %%
trunk = minifpt.GPT2.from_pretrained("minigpt-language")


def encode(text):
    return np.array([Bytes().encode(text)])               # (1, T)


def run(ids, positions=True, without=None, **parts):
    """-> logits (1, T, V), maps (blocks, H, T, T); without=(block, head): silenced"""
    x, maps = trunk.wte.weight.data[ids], []
    if positions:
        x = x + trunk.wpe.weight.data[:ids.shape[1]]
    for i, block in enumerate(trunk.h):
        a, _ = block.ln_1.forward(x)
        qkv, _ = block.attn.c_attn.forward(a)
        y, (_, _, v, A, _) = attend(qkv, block.attn.n_head, **parts)
        if without and without[0] == i:
            D = v.shape[-1]
            y[..., without[1] * D:(without[1] + 1) * D] = 0
        x = x + block.attn.c_proj.forward(y)[0]
        x = x + block.mlp.forward(block.ln_2.forward(x)[0])[0]
        maps.append(A[0])
    return trunk.ln_f.forward(x)[0] @ trunk.wte.weight.data.T, np.array(maps)


short = encode("The sisters saw the sea")
letters = [chr(i).replace(" ", "_") for i in short[0]]
difference = np.abs(run(short)[0] - trunk.logits(short)).max()
print(f"our run against the library's: {difference:.0e}")

fig, axes = figure(4, 2, width=2.55, height=2.65)
for row, positions in enumerate((True, False)):
    for h, A in enumerate(run(short, positions)[1][0]):
        matrix(axes[4 * row + h], A, f"head {h}{'' if positions else ', no positions'}",
               limit=1, digits=None, columns=letters, rows=letters)
        axes[4 * row + h].tick_params(labelsize=6)
picture(fig)

# %% [markdown]
# This is the first block; rows look, columns are looked at. With positions, three heads are
# almost rulers. Which distance does each of them measure? The fourth looks everywhere. Without
# positions the rulers are gone.

# %%
A = run(short)[1][0]                                      # (H, T, T)
for h in range(4):
    shares = [A[h].diagonal(-back)[4:].mean() for back in range(6)]
    back = int(np.argmax(shares))
    print(f"head {h}: looks {back} back most, with a share of {shares[back]:.2f}")

# %% [markdown]
# So each byte has the three before it at hand, one in each head, not blended. One head could
# only have brought their average.
#
# ## What breaks, in numbers
#
# Now leave out one part at a time and measure the loss on a page of text, in bits a byte. 8 is
# what a model scores that knows nothing. One of the cases is tempting: *without its mask* the
# trunk sees the very byte that it must predict. Will its loss be `"lower"` or `"higher"`?

# %%
guess = ...

# %%
page = """It was late in the evening when the two sisters came back to the house. The
door stood open, and there was no light in the hall. "Somebody has been here," said the
elder, and she took her sister by the hand. They went up the stairs without a word, and
at the top they saw that the window had been broken.""".replace("\n", " ")
lines = encode(textwrap.fill(page, 70))[:, :256]          # in lines, as in novels


def bits(ids, **parts):
    loss, _ = F.cross_entropy(run(ids, **parts)[0][:, :-1], ids[:, 1:])
    return float(loss) / math.log(2)


cases = {"as it is": {}, "no √D": {"scale": False}, "no mask": {"mask": False},
         "no positions": {"positions": False}}
found = {name: bits(lines, **parts) for name, parts in cases.items()}
reveal(guess, "lower" if found["no mask"] < found["as it is"] else "higher")

fig, (ax,) = figure(width=5.5, height=2.2)
bars = ax.barh(list(found), found.values(), color=[color.language] + [color.ochre] * 3)
ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
ax.axvline(8, color=color.ink, linestyle=":")
ax.invert_yaxis()
ax.set(xlabel="bits a byte", xlim=(0, 8.5),
       title="Each part is needed, some more than others")
picture(fig)

# %% [markdown]
# Higher by far. These weights never met a later token, so they know no use for one: it is noise
# in every average. A missing mask is a cheat only for a model that is *trained* without it.
#
# And $\sqrt D$? Without it the trained trunk's maps are too sharp, but the order of the scores is
# the same. What its absence does to training, the gradient above suggests; we did not train one
# to see. (And a page is a small sample: trust the large differences, not the second digits.)
#
# ## A trap
#
# How much does the trunk need each head of the first block? We silence one at a time, its
# channels set to 0. We do it on the page, and on the same page without line breaks.

# %%
flat = encode(page)[:, :256]
cost = {name: [bits(ids, without=(0, h)) - bits(ids) for h in range(4)]
        for name, ids in (("with line breaks", lines), ("without line breaks", flat))}

fig, axes = figure(2, width=3.6, height=2.5, sharey=True)
for ax, (name, values) in zip(axes, cost.items(), strict=True):
    bars = ax.bar(range(4), values, color=color.language)
    ax.bar_label(bars, fmt="%+.2f", fontsize=9, padding=2)
    ax.axhline(0, color=color.ink, linewidth=0.8)
    ax.set(title=f"page {name}", xlabel="head that is silenced", xticks=range(4),
           ylim=(-1.3, 2.5))
axes[0].set_ylabel("bits a byte, added")
picture(fig)
for name, ids in (("with", lines), ("without", flat)):
    print(f"{name} line breaks: all heads {bits(ids):.2f} bits, "
          f"head 1 silenced {bits(ids, without=(0, 1)):.2f}")

# %% [markdown]
# The three rulers are missed on both pages. Head 1, the broad one, is the odd one. On the right
# the trunk is *better* without it, by a lot. A wrong weight? A bug? It is the page. The novels
# break their lines about every 70 bytes, and a line that does not end is new to the trunk. Nothing
# but the breaks differs between the two pages; put them back, and the head does a little good.
#
# We do not know what head 1 computes. The measurement says that it has to do with line breaks,
# and no more. Keep the rule: before you explain what a model does, give it what it was trained on.
#
# ## Exercises
#
# Solutions are in `solutions/04_self_attention.py`.
#
# **1.** All queries are 0. There is a causal mask. What is $y$? You need neither scores nor a
# softmax.

# %%
def answer_to_no_question(v):
    """v (T, D), all queries are 0, causal mask -> y (T, D)"""
    return ...


check("answer_to_no_question", answer_to_no_question)


# %% [markdown]
# **2.** For long texts many models look only at a **window**: each token sees itself and the
# $w - 1$ tokens before it. Write one head of it, whole.

# %%
def windowed_attention(q, k, v, w):
    """q, k (T, D), v (T, E), w >= 1 -> y (T, E): causal, at most w tokens seen"""
    return ...


check("windowed_attention", windowed_attention)


# %% [markdown]
# **3.** Build a ruler. The tokens are bare positions: $x$ is the identity, `(T, T)`, one row a
# token. Write $W_q$ and $W_k$ so that, after $\sqrt D$, the causal mask and softmax, token $t$
# gives at least 99 % to the token `back` places before it, for every $t$ that has one.

# %%
def ruler(T, back):
    """-> W_q (T, D), W_k (T, D), for a D of your choice"""
    W_q = ...
    W_k = ...
    return W_q, W_k


check("ruler", ruler)


# %% [markdown]
# **4.** *Open.* Some heads go by place, others by content. Find a measure: given the maps of
# several texts of one length, which head picks out a place, and the same place in every text?
# Careful: a head that looks everywhere equally is also the same in every text. Then run it on the
# trunk: is the winner the one that you expect? And which head goes most by *content*? Is there
# one that finds an earlier copy of the letters just read? The last cell is one way to look for it.

# %%
def goes_by_place(maps):
    """maps (texts, blocks, H, T, T) -> (block, head) that goes most by place"""
    return ...


check("goes_by_place", goes_by_place)

# %%
pages = [lines[:, i:i + 60] for i in range(0, 180, 30)]   # put other texts here
maps = np.array([run(ids)[1] for ids in pages])
print("maps", maps.shape, "-> yours:", goes_by_place(maps))

# %%
once = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, (1, 40))
A = run(np.concatenate([once, once], axis=1))[1]          # random letters, twice
copied = A.diagonal(-39, axis1=2, axis2=3)[..., 1:].mean(axis=-1)
even = np.mean([1 / (t + 1) for t in range(40, 80)])
print(f"share on what followed the earlier copy: best head {copied.max():.3f}, "
      f"an even look {even:.3f}")
print("so there is such a head" if copied.max() > 5 * even else "so none stands out")

# %% [markdown]
# **Next**: [lesson 5](05_backward_through_attention.ipynb), the way back through all of this.
