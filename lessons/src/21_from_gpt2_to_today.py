# %% [markdown]
# # 21. From GPT-2 to today
#
# **GPT-2 is from 2019. Llama (2023) and Qwen2 (2024) have the same two steps in each block, but
# build them from other parts. How do they know where a token stands, and how do we notice that we
# built a part wrongly?**
#
# After this lesson you can
#
# - derive why a rotation makes scores depend on distances;
# - choose data on which a wrong rotation shows;
# - write a Llama from its tensors, and say what to compare it with.
#
# You need lessons [3](03_layer_norm.ipynb), [4](04_self_attention.ipynb) and
# [11](11_pretraining.ipynb).

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, picture, reveal, show
from minifpt.trunks import LlamaLM

# %% [markdown]
# | part | GPT-2 | Llama and Qwen2 |
# |---|---|---|
# | positions | a learned vector added to each token | queries and keys are rotated |
# | norm | layer norm | RMS norm: no mean is subtracted |
# | feed-forward | GELU | a gate, see exercise 2 |
# | keys and values | as many heads as queries | may be fewer |
# | biases | in each linear layer | none; in Qwen2 for queries, keys, values |
#
# The block is still `x = x + attn(norm(x))`, then `x = x + mlp(norm(x))`. We take two language
# models of 2 blocks, 2 heads and 32 channels, which read the same novels: `minigpt-tiny`, a GPT-2,
# and `minillama-tiny`, a Llama.
#
# ## A score that knows the distance
#
# GPT-2 adds a vector $p_t$ `(C,)` for position $t$ to each token, so $p_m$ and $p_n$ are in the
# score of a token at position $m$ against one at $n$. A byte `e` looks back at a byte `t` 3 tokens
# before it and at one 8 tokens before it. The softmax sees the difference of the two scores: a
# difference of 1 makes one share 2.7 times the other. Now all three move through the text together.
# `e` stands at each position from 8 to 255, and the distances stay. In head 0 of block 0 of the
# GPT-2, what is the largest difference minus the smallest?

# %%
guess = ...

# %%
gpt2 = minifpt.LanguageModel.from_pretrained("minigpt-tiny", dtype=np.float64)
llama = LlamaLM.from_pretrained("minillama-tiny", dtype=np.float64)
C, H, D = 32, 2, 16                                       # channels, heads, channels of a head
PAIR = [ord("e"), ord("t")]                               # the byte that looks, and at which one


def gpt2_score(m, n):
    """Score of e at position m against t at position n, block 0 of the GPT-2 -> (H,)"""
    block = gpt2.trunk.h[0]
    x = gpt2.wte.weight.data[PAIR] + gpt2.trunk.wpe.weight.data[[m, n]]
    qkv, _ = block.attn.c_attn.forward(block.ln_1.forward(x)[0])
    q, k, _ = np.split(qkv, 3, axis=-1)
    return (q[0] * k[1]).reshape(H, D).sum(axis=1) / np.sqrt(D)


def llama_score(m, n):
    """The same in block 0 of the Llama -> (H,)"""
    block = llama.trunk.h[0]
    x, _ = block.ln_1.forward(llama.wte.weight.data[PAIR])
    q, k = (F.split_heads(layer.forward(token)[0][None], H) for layer, token in (
        (block.attn.q_proj, x[:1]), (block.attn.k_proj, x[1:])))
    q, k = F.rope(q, start=m)[0], F.rope(k, start=n)[0]   # (1, H, 1, D)
    return (q * k).sum(axis=-1)[0, :, 0] / np.sqrt(D)


m = np.arange(8, 256)
differences = {name: np.array([score(t, t - 3) - score(t, t - 8) for t in m])     # (248, H)
               for name, score in (("positions added (GPT-2)", gpt2_score),
                                   ("positions rotated (Llama)", llama_score))}
added, rotated = differences.values()
reveal(guess, float(np.ptp(added[:, 0])))
fig, axes = figure(2, width=3.9, height=2.6, sharey=True)
for ax, (name, values) in zip(axes, differences.items(), strict=True):
    curves({f"head {h}": values[:, h] for h in range(H)}, name, "position of the byte e", x=m,
           ylabel="score 3 before\nminus score 8 before", ylim=(0, None), ax=ax)
picture(fig)
print(f"head 0: added {added[:, 0].min():.2f} to {added[:, 0].max():.2f}; rotated "
      f"{rotated[0, 0]:.2f}, largest minus smallest {np.ptp(rotated[:, 0]):.0e}")

# %% [markdown]
# In the GPT-2 it matters where the three stand, in the Llama only how far apart, up to rounding.
# The GPT-2 has learned roughly that distances count, from 256 separate vectors, and for position
# 256 it has none.
#
# **Rotary positions** ([arXiv 2104.09864](https://arxiv.org/abs/2104.09864)) begin with a wish: the
# score of $q$ at $m$ and $k$ at $n$ shall depend on $m - n$ only. Take $D = 2$ and turn the vector
# at position $t$ by the angle $t\theta$:
#
# $$ R_t = \begin{pmatrix} \cos t\theta & -\sin t\theta \\
#    \sin t\theta & \cos t\theta \end{pmatrix}, \qquad
#    (R_m q) \cdot (R_n k) = q^\top R_m^\top R_n\, k = q^\top R_{n-m}\, k $$
#
# The transpose of a rotation is the rotation back, and two rotations add up. For larger $D$ the
# channels are taken in pairs, and pair $i$ turns by $\theta_i = b^{-2i/D}$ a token, with the
# **base** $b = 10{,}000$: the first by one radian, the last hardly. Nothing is learned.

# %%
show(F.rope, F.rope_backward)

# %% [markdown]
# ## Which data would show it?
#
# The backward pass turns $dy$ back: $dx = R_t^\top dy$. We forget the sign, and check it on five
# tokens and on one. How many of the two checks fail?

# %%
guess = ...                                               # 0, 1 or 2

# %%
def without_the_sign(dy, cache):
    return F.rotate(dy, cache.cos, cache.sin)


x = np.random.default_rng(0).standard_normal((2, H, 5, D))
reports = [minifpt.gradcheck(F.rope, without_the_sign, (tokens,)) for tokens in (x, x[:, :, :1])]
reveal(guess, sum(not report for report in reports))
for name, report in zip(("five tokens", "one token"), reports, strict=True):
    print(f"{name}: {str(report).splitlines()[-1]}")

# %% [markdown]
# The token at position 0 is not turned at all, so with one token there is no sign to get wrong.
#
# ## A Llama from its tensors
#
# The parts of the table are all that a Llama needs. Here is one in NumPy, with a place for nine
# mistakes.

# %%
T = {name: p.data for name, p in llama.named_parameters()}     # the tensors, by name


def rotated(q, k, v, mistake=None, base=10_000.0):
    """q, k, v (B, H, T, D) -> the three, queries and keys rotated"""
    base = 500_000.0 if mistake == "another base" else base

    def turn(x, start=0):
        if mistake != "neighbouring channels paired":
            return F.rope(x, base, start)[0]
        apart = np.r_[0:D:2, 1:D:2]                       # 0 2 4 ... 1 3 5 ...
        y = np.empty_like(x)
        y[..., apart] = F.rope(x[..., apart], base, start)[0]
        return y

    k = k if mistake == "keys not rotated" else turn(k, int(mistake == "keys one place off"))
    v = turn(v) if mistake == "values rotated, too" else v
    return turn(q), k, v


def rms(x, w, mistake, eps=1e-6):
    if mistake == "layer norm for RMS norm":
        x = x - x.mean(axis=-1, keepdims=True)
    square = (x * x).sum(axis=-1, keepdims=True) / (1 if mistake == "sum for mean" else C)
    return x / np.sqrt(square + (1e-5 if mistake == "epsilon 1e-5" else eps)) * w


def gated(gate, up, mistake):
    if mistake == "gate and up exchanged":
        gate, up = up, gate
    return F.silu(gate)[0] * up


def by_hand(ids, mistake=None, base=10_000.0):
    """ids (B, T) -> scores of the next byte (B, T, 256)"""
    x = T["wte.weight"][ids]
    for block in ("trunk.h.0", "trunk.h.1"):
        def linear(x, name, block=block):
            return x @ T[f"{block}.{name}_proj.weight"]

        y = rms(x, T[f"{block}.ln_1.weight"], mistake)
        q, k, v = (F.split_heads(linear(y, f"attn.{letter}"), H) for letter in "qkv")
        a, _ = F.attention(*rotated(q, k, v, mistake, base))
        x = x + linear(F.merge_heads(a), "attn.o")
        y = rms(x, T[f"{block}.ln_2.weight"], mistake)
        x = x + linear(gated(linear(y, "mlp.gate"), linear(y, "mlp.up"), mistake), "mlp.down")
    return rms(x, T["trunk.ln_f.weight"], mistake) @ T["wte.weight"].T


text = minifpt.tasks.get("text", tokens=256)              # the held-out ends of five novels
ids, targets = text.batch(np.random.default_rng(0), 16, "test")
print(f"by hand against the library: {np.abs(by_hand(ids) - llama.logits(ids)).max():.0e}")

# %% [markdown]
# Equal up to rounding. Now each mistake in turn, on held-out text. None of them raises an error.
# Which costs most?

# %%
names = (None, "keys not rotated", "values rotated, too", "keys one place off",
         "neighbouring channels paired", "another base", "layer norm for RMS norm", "sum for mean",
         "gate and up exchanged", "epsilon 1e-5")
guess = ...                                               # one of these names

# %%
scores = {name: by_hand(ids, name) for name in names}
losses = {name or "no mistake": float(F.cross_entropy(values, targets)[0])
          for name, values in scores.items()}
reveal(guess, max(losses, key=losses.get))
bars(losses, "Mistakes in a Llama that loads all the same (dotted: knows nothing)", "nats a byte",
     [color.teal] + [color.ochre] * 9, digits=2, levels=[np.log(256)], width=7)
print(f"epsilon 1e-5: loss {losses['epsilon 1e-5'] - losses['no mistake']:+.0e} nats, largest "
      f"change of a score {np.abs(scores['epsilon 1e-5'] - scores[None]).max():.0e}")

# %% [markdown]
# *Keys one place off*, *neighbouring channels paired* and *another base* are fair ways to build a
# model: their scores depend on distances, and `gradcheck` passes. So it does with *sum for mean*:
# the gradient is right, of another operation. They are wrong for *these weights*. The wrong epsilon
# costs nothing that a loss would show, and the scores still tell. So compare *scores* with a
# reference, on the same weights and the same input. `LlamaLM.from_pretrained(folder)` reads a Llama
# or a Qwen2 that you have downloaded; hold its scores against Transformers' before you trust them.
#
# ## Exercises
#
# Solutions are in `solutions/21_from_gpt2_to_today.py`.
#
# **1.** One score of one head, $(R_m q) \cdot (R_n k) / \sqrt D$, with rotary positions: the query
# stands at position $m$ and the key at position $n$. Channel $i$ belongs to channel $i + D/2$, as
# in `F.rope`. How few rotations does it take?

# %%
def rotated_score(q, k, m, n, base):
    """q, k (D,), before they are rotated; m, n, base numbers -> a number"""
    return ...


check("rotated_score", rotated_score)


# %% [markdown]
# **2.** A Llama's feed-forward part has a **gate**: two matrices $W_g$ and $W_u$ `(C, I)` read the
# same $x$ `(N, C)`, and one factor says how much of the other comes through,
#
# $$ h = \text{silu}(x W_g) \odot (x W_u), \qquad \text{silu}(z) = z / (1 + e^{-z}) $$
#
# with a product entry by entry. Write its backward pass. (Gates may be far from 0.)

# %%
def gate_backward(dy, x, W_g, W_u):
    """dy (N, I), the gradient of h; x (N, C), W_g and W_u (C, I) -> dx, dW_g, dW_u"""
    return ...


check("gate_backward", gate_backward)


# %% [markdown]
# **3.** *Open.* `minillama-tiny` has read 256 tokens at a time. A rotation has no last position, so
# it can be given 1,024. First a function: the base with which the slowest pair of channels makes
# `turns` turns over `tokens` tokens. Then give `by_hand(ids, base=...)` passages of 1,024 bytes,
# and take the mean loss of tokens 0 to 127, 128 to 255, and so on, with several bases. Where does
# it fail, which base helps, and what does it cost on the first 128?

# %%
def slow_base(D, tokens, turns):
    """channels of a head, number of tokens, turns of the slowest pair -> the base"""
    return ...


check("slow_base", slow_base)

# %% [markdown]
# **Next**: a frozen Llama learns XOR as well (`docs/results/language.md`), so lesson 0's experiment
# does not hang on GPT-2's parts. [Lesson 22](22_why_random_weights_find_a_string.ipynb) says what
# random weights have.
