# %% [markdown]
# # 21. From GPT-2 to today
#
# **GPT-2 is from 2019. Llama (2023) and Qwen2 (2024) have the same two steps in each block, and
# other parts. What was each changed for, and how do we notice when one of them is built
# wrongly?**
#
# After this lesson you can
#
# - derive why a rotation makes scores depend on distances, and test it;
# - say what RMS norm leaves out of layer norm, in the forward and in the backward pass;
# - go back through a gate, and say what a product can do that one activation cannot;
# - count the bytes of a key-value cache, with and without grouped queries;
# - write a Llama that reads a checkpoint by the names of its tensors, and train a frozen one.
#
# You need lessons [3](03_layer_norm.ipynb), [4](04_self_attention.ipynb),
# [6](06_gpt2_whole.ipynb) and [11](11_pretraining.ipynb). It takes about an hour.

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, picture, reveal, show
from minifpt.files import huggingface
from minifpt.trunks.llama import LlamaLM

# %% [markdown]
# | part | GPT-2 | Llama and Qwen2 |
# |---|---|---|
# | positions | a learned vector added to each token | queries and keys are rotated |
# | norm | layer norm | RMS norm |
# | feed-forward | GELU | a gate, SwiGLU |
# | keys and values | as many heads as queries | may be fewer: grouped queries |
# | biases | in each linear layer | none; in Qwen2 for queries, keys, values |
#
# The block is still `x = x + attn(norm(x))`, then `x = x + mlp(norm(x))`. We take two language
# models of 2 blocks, 2 heads and 32 channels, which read the same novels: `minigpt-tiny`, a GPT-2,
# and `minillama-tiny`, a Llama.

# %%
gpt2 = minifpt.LanguageModel.from_pretrained("minigpt-tiny", dtype=np.float64)
llama = LlamaLM.from_pretrained("minillama-tiny", dtype=np.float64)
C, H, D = 32, 2, 16                                       # channels, heads, channels of a head


def verdict(report):
    """The last line of a gradient check"""
    return str(report).splitlines()[-1]

# %% [markdown]
# ## A score that knows the distance
#
# GPT-2 adds a vector $p_t$ `(C,)` for position $t$ to each token. So the score of a token at
# position $m$ against one at position $n$ has $p_m$ and $p_n$ in it. A byte `e` looks back at two
# bytes `t`, one 3 tokens before it and one 8 tokens before it. The softmax sees the difference of
# their two scores: a difference of 1 makes one probability 2.7 times the other. Now all three move
# together through the text, and their distances stay. We let `e` stand at each position from 8 to
# 255 and take this difference each time. In head 0 of block 0 of `minigpt-tiny`, what is the
# largest of these differences minus the smallest?

# %%
guess = ...


# %%
BYTES = [ord("e"), ord("t")]                              # the one that looks, and at which one


def gpt2_score(m, n):
    """Score of e at position m against t at position n, block 0 of the GPT-2 -> (H,)"""
    block = gpt2.trunk.h[0]
    x = gpt2.wte.weight.data[BYTES] + gpt2.trunk.wpe.weight.data[[m, n]]
    qkv, _ = block.attn.c_attn.forward(block.ln_1.forward(x)[0])
    q, k, _ = np.split(qkv, 3, axis=-1)
    return (q[0] * k[1]).reshape(H, D).sum(axis=1) / np.sqrt(D)


def llama_score(m, n):
    """The same in block 0 of the Llama -> (H,)"""
    block = llama.trunk.h[0]
    x, _ = block.ln_1.forward(llama.wte.weight.data[BYTES])
    q, _ = F.rope(block.attn.q_proj.forward(x[:1])[0][None], H, start=m)
    k, _ = F.rope(block.attn.k_proj.forward(x[1:])[0][None], H, start=n)
    return (q * k).reshape(H, D).sum(axis=1) / np.sqrt(D)


m = np.arange(8, 256)
differences = {name: np.array([score(t, t - 3) - score(t, t - 8) for t in m])     # (248, H)
               for name, score in (("positions added (minigpt-tiny)", gpt2_score),
                                   ("positions rotated (minillama-tiny)", llama_score))}
added, rotated = differences.values()
reveal(guess, float(np.ptp(added[:, 0])))
fig, axes = figure(2, width=3.9, height=2.6, sharey=True)
for ax, (name, values) in zip(axes, differences.items(), strict=True):
    curves({f"head {h}": values[:, h] for h in range(H)}, name, "position of the byte e", x=m,
           ylabel="score 3 before\nminus score 8 before", ylim=(0, None), ax=ax)
picture(fig)
print(f"head 0, added: {added[:, 0].min():.2f} to {added[:, 0].max():.2f}; rotated: "
      f"{rotated[0, 0]:.2f}, largest minus smallest {np.ptp(rotated[:, 0]):.0e}")

# %% [markdown]
# The same bytes at the same distances: in the GPT-2 it matters where they stand, in the Llama it
# does not, up to rounding. The GPT-2 has learned that distances count, but only roughly, from 256
# separate vectors, and for position 256 it has none.
#
# **Rotary positions** (RoPE, Su et al. 2021, [arXiv 2104.09864](https://arxiv.org/abs/2104.09864))
# begin with a wish: find a function of a vector and a position, so that the score of $q$ at $m$ and
# $k$ at $n$ depends on $m - n$ only. Take $D = 2$ and turn the vector by the angle $t\theta$:
#
# $$ R_t = \begin{pmatrix} \cos t\theta & -\sin t\theta \\
#    \sin t\theta & \cos t\theta \end{pmatrix}, \qquad R_m^\top R_n = R_{-m} R_n = R_{n - m} $$
#
# The transpose of a rotation is the rotation back, and two rotations add up. So
#
# $$ (R_m q) \cdot (R_n k) = q^\top R_m^\top R_n k = q^\top R_{n-m}\, k $$
#
# For larger $D$ the channels are taken in pairs, $D / 2$ planes, and
# plane $i$ turns by $\theta_i = b^{-2i/D}$ for each token, with the **base** $b = 10{,}000$. The
# first plane turns by one radian a token, the last one hardly. Nothing is learned, and nothing is
# added to the token.

# %%
show(F.rope, F.rotate, F.rope_backward)

# %% [markdown]
# The backward pass turns $dy$ by the opposite angle, since $dx = R_t^\top dy$. We check it, and a
# form that forgets the sign.

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, C))
print("F.rope_backward:          ", verdict(minifpt.gradcheck(
    F.rope, F.rope_backward, (x,), n_head=H)))


def without_the_sign(dy, cache):
    return F.rotate(dy, cache.cos, cache.sin)


for name, tokens in (("five tokens", x), ("one token", x[:, :1])):
    print(f"without the sign, {name:11}", verdict(minifpt.gradcheck(
        F.rope, without_the_sign, (tokens,), n_head=H)))

# %% [markdown]
# The third line passes. The token at position 0 is not turned at all, so with one token there is no
# sign to get wrong.
#
# ## A norm without a mean
#
# Layer norm subtracts each row's mean and divides by the standard deviation. **RMS norm** (Zhang
# and Sennrich 2019, [arXiv 1910.07467](https://arxiv.org/abs/1910.07467)), which you wrote in
# lesson 3, divides by the root mean square and subtracts nothing. Its authors' reason: the centring
# costs time, and models train as well without it.
#
# In the backward pass the centring's term is gone, too: two of lesson 3's three terms are left. And
# of the two directions in which layer norm sees nothing, a stretch of the row and a shift, RMS norm
# has the stretch alone.
#
# A mistake that `gradcheck` cannot see: dividing by the root of the *sum* of squares, in the
# forward and in the backward pass. The gradient is right, of another operation. What sees it is a
# property: a row's root mean square must be 1 when the scale is 1.
#
# ## A gate
#
# GPT-2's feed-forward part takes numbers $u = x W_1$, sends each through GELU, and mixes them by a
# second matrix. In Llama two linear layers read the same $x$, and one **gates** the other
# (SwiGLU, Shazeer 2020, [arXiv 2002.05202](https://arxiv.org/abs/2002.05202)):
#
# $$ h = \text{silu}(x W_g) \odot (x W_u), \qquad \text{silu}(z) = z\,\sigma(z), \qquad
#    \sigma(z) = \frac{1}{1 + e^{-z}} $$
#
# with $W_g$ and $W_u$ `(C, I)` and $\odot$ a product entry by entry. The first factor says how far
# the gate is open, the second what comes through. The paper reports lower losses at the same number
# of weights, and says that it has no explanation. (There are three matrices now, not two, so for as
# many weights $I$ is $8C/3$ where GPT-2's hidden layer has $4C$.)
#
# One unit of GPT-2 computes a function of $x \cdot a$ alone. Over two inputs it is the same along
# each line at right angles to $a$: stripes. A gated unit with an open gate is nearly $(x \cdot a)(x
# \cdot b)$, a product, which a sum of stripes can only come near to.
#
# The backward pass is the product rule: each factor gets $dh$ times the other one, and what the
# first one gets goes on through silu. Broken on purpose, the gate is taken for a constant.

# %%
show(F.silu_backward, F.multiply, F.multiply_backward)


# %%
def one_factor(dy, cache):
    _, dup = F.multiply_backward(dy, cache)
    return np.zeros_like(dup), dup


gate, up = rng.standard_normal((2, 4, 6))
for name, backward in (("F.multiply_backward", F.multiply_backward), ("one factor", one_factor)):
    print(f"{name:20}", verdict(minifpt.gradcheck(F.multiply, backward, (gate, up))))

# %% [markdown]
# ## Fewer keys and values
#
# While a model writes, it keeps the keys and values of all tokens so far (lesson 11). With $L$
# blocks, $T$ tokens, $G$ heads of keys and values of $D$ channels, and $s$ bytes a number, that is
#
# $$ \text{bytes} = 2 \cdot L \cdot T \cdot G \cdot D \cdot s $$
#
# All of it is read again for each new token, so it costs time as well as memory. **Grouped
# queries** (Ainslie et al. 2023, [arXiv 2305.13245](https://arxiv.org/abs/2305.13245)): $H$ heads
# of queries share $G$ heads of keys and values, each of which serves $H / G$ consecutive ones. With
# $G = H$ that is the attention that we know. Llama 2 with 70 billion parameters has 80 blocks, 64
# heads of 128 channels, and 8 groups. How many megabytes do 1,024 tokens take, at 2 bytes a number?

# %%
guess = ...                                               # MB, of 1,000,000 bytes

# %%
SHAPES = {                                                # blocks, heads, groups, width of a head
    "GPT-2 (124M)": (12, 12, 12, 64), "Llama 2 7B": (32, 32, 32, 128),
    "Llama 2 70B": (80, 64, 8, 128), "Qwen2 7B": (28, 28, 4, 128)}
megabytes = {name: [2 * L * 1024 * heads * width * 2 / 1e6 for heads in (n_head, n_group)]
             for name, (L, n_head, n_group, width) in SHAPES.items()}
reveal(guess, megabytes["Llama 2 70B"][1], "MB")
print("1,024 tokens at 2 bytes a number   as many heads   in groups")
for name, (whole, grouped) in megabytes.items():
    print(f"{name:34} {whole:10.0f} MB {grouped:8.0f} MB   saved {whole / grouped:.0f}-fold")

# %% [markdown]
# With groups Llama 2's largest model needs less for a token than its smallest one.
#
# `grouped_heads` repeats keys and values, so that attention sees all heads as before. In the
# backward pass a key that served several heads gets the *sum* of their gradients, as every number
# that is used several times does (lesson 5's second exercise).

# %%
show(F.grouped_heads, F.grouped_heads_backward)

# %% [markdown]
# (A common mistake repeats in the order of `np.tile`, 0 1 0 1, where `repeat` gives 0 0 1 1. With
# as many groups as heads, and with one group, the two are the same. A test must choose a number of
# groups in between.)
#
# ## A checkpoint, read by its names
#
# A folder as Transformers writes it has a `config.json` and tensors with names. We write one from
# `minillama-tiny` and read it back. The same loader, `LlamaLM.from_pretrained(folder)`, reads a
# Llama or a Qwen2 that you have downloaded. We have compared it with Transformers on small models
# with random weights (`tests/test_llama.py`), and not on the published ones.

# %%
with tempfile.TemporaryDirectory() as parent:
    folder = Path(parent) / "checkpoint"
    llama.save(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {name: tensor.read().astype(float) for name, tensor in huggingface.read_tensors(
        huggingface.tensor_file(folder)).items()}
    again = LlamaLM.from_pretrained(folder, dtype=np.float64)
for name, tensor in tensors.items():
    if "layers.1" not in name:
        print(f"{name:48} {tensor.shape}")
print({name: config[name] for name in ("num_key_value_heads", "rms_norm_eps", "rope_theta")})

# %% [markdown]
# Their matrices are `(out, in)`, ours `(in, out)`, so each is transposed. These names and the parts
# of the table are all that a Llama needs. Here is one in NumPy, from the tensors alone, with a
# place for ten mistakes:

# %%
def rotated_qkv(q, k, v, mistake=None, base=10_000.0):
    """q, k, v (B, T, C) -> the three side by side (B, T, 3C), queries and keys rotated"""
    base = 500_000.0 if mistake == "another base" else base

    def turn(x, start=0):
        if mistake != "neighbouring channels paired":
            return F.rope(x, H, base, start)[0]
        apart = np.arange(C).reshape(H, D // 2, 2).swapaxes(1, 2).ravel()     # 0 2 4 ... 1 3 5 ...
        y = np.empty_like(x)
        y[..., apart] = F.rope(x[..., apart], H, base, start)[0]
        return y

    q = turn(q)
    k = k if mistake == "keys not rotated" else turn(k, mistake == "keys one place off")
    v = turn(v) if mistake == "values rotated, too" else v
    return np.concatenate([q, k, v], axis=-1)


def rms(x, w, eps, mistake):
    if mistake == "layer norm for RMS norm":
        x = x - x.mean(axis=-1, keepdims=True)
    square = (x * x).sum(axis=-1, keepdims=True)
    return x / np.sqrt(square / (1 if mistake == "sum for mean" else x.shape[-1]) + eps) * w


def gated(gate, up, mistake):
    if mistake == "gate and up exchanged":
        gate, up = up, gate
    return gate * up if mistake == "gate without silu" else F.silu(gate)[0] * up


def by_hand(ids, mistake=None, base=config["rope_theta"]):
    """ids (B, T) -> scores of the next byte (B, T, 256), from the tensors and the config"""
    t, eps, n_head = tensors, config["rms_norm_eps"], config["num_attention_heads"]
    eps = 1e-5 if mistake == "epsilon 1e-5" else eps
    x = t["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        def linear(x, name, i=i):
            return x @ t[f"model.layers.{i}.{name}_proj.weight"].T

        y = rms(x, t[f"model.layers.{i}.input_layernorm.weight"], eps, mistake)
        q, k, v = (linear(y, f"self_attn.{letter}") for letter in "qkv")
        qkv = rotated_qkv(q, k, v, mistake, base)      # as many groups as heads: no repeating
        x = x + linear(F.attention(qkv, n_head)[0], "self_attn.o")
        y = rms(x, t[f"model.layers.{i}.post_attention_layernorm.weight"], eps, mistake)
        x = x + linear(gated(linear(y, "mlp.gate"), linear(y, "mlp.up"), mistake), "mlp.down")
    return rms(x, t["model.norm.weight"], eps, mistake) @ t["model.embed_tokens.weight"].T


text = minifpt.tasks.get("text", tokens=256)              # the held-out ends of five novels
ids, targets = text.batch(np.random.default_rng(0), 16, "test")
print(f"by hand against the library: {np.abs(by_hand(ids) - again.logits(ids)).max():.0e}")

# %% [markdown]
# Equal up to rounding. Now each mistake in turn, in a model that loads without a word: its loss on
# 16 passages of 256 bytes of held-out text. Which of the ten costs most?

# %%
names = (None, "keys not rotated", "values rotated, too", "keys one place off",
         "neighbouring channels paired", "another base", "layer norm for RMS norm", "sum for mean",
         "gate without silu", "gate and up exchanged", "epsilon 1e-5")
guess = ...                                               # one of these names

# %%
logits = {name: by_hand(ids, name) for name in names}
losses = {name or "no mistake": float(F.cross_entropy(values, targets)[0])
          for name, values in logits.items()}
reveal(guess, max(losses, key=losses.get))
bars(losses, "Mistakes in a Llama that loads without a word (dotted: knows nothing)", "nats a byte",
     [color.teal] + [color.ochre] * 10, digits=3, levels=[np.log(256)], width=7)
change = np.abs(logits["epsilon 1e-5"] - logits[None]).max()
print(f"epsilon 1e-5: loss {losses['epsilon 1e-5'] - losses['no mistake']:+.0e} nats, "
      f"largest change of a score {change:.0e}")

# %% [markdown]
# Nine of the ten cost from half a nat to three. Three of the rotations are fair ways to build a
# model, in which scores depend on distances: *keys one place off*, *neighbouring channels paired*
# and *another base*. They are wrong for weights that were trained with another rotation: the first
# two cost more than one nat each, the third half a nat. The wrong epsilon costs nothing that a loss
# would show, and the scores still tell. So compare *scores* with a reference, on the same weights
# and the same input ([lesson 6](06_gpt2_whole.ipynb)).
#
# ## The frozen experiment
#
# Lesson 0's experiment with the frozen Llama. In a Llama there are no positions to train, and a
# norm has a scale only. Beside it runs one of the same shape with random weights, drawn anew with
# each seed, of standard deviation $0.55 / \sqrt C$, about 0.10, and half of that where a part
# writes into the residual stream. The rate, 3e-2, was the best of five for the first on three other
# seeds. With how many of five seeds is the Llama that has read right at least 99 % of the time?

# %%
guess = ...                                               # of 5


# %%
def run(trunk, seed):
    """Test accuracy in per cent, every 50 steps"""
    model = minifpt.FPT.for_task(xor, trunk, seed=seed)
    history = minifpt.train(model, xor, 400, batch_size=8, lr=3e-2, seed=seed, schedule="cosine",
                            warmup=20, eval_every=50, progress=False)
    return [100 * row["test_accuracy"] for row in history]


xor = minifpt.tasks.get("bit-xor")
runs = {name: [run(trunk, seed) for seed in tqdm(range(5), desc=name)] for name, trunk in (
    ("has read novels", "minillama-tiny"), ("random", "random:llama:2x2x32@0.55"))}
solved = {name: sum(curve[-1] >= 99 for curve in five) for name, five in runs.items()}
reveal(guess, solved["has read novels"], "of 5")
print("seeds with 99 %:", ", ".join(f"{name} {n} of 5" for name, n in solved.items()))
curves(runs, "A frozen Llama learns bit XOR, five seeds (dotted: guessing)",
       ylabel="bits right (%)", x=[50 * i for i in range(1, 9)], level=50, ylim=(40, 101),
       inks=(color.language, color.random))
counts = minifpt.FPT.for_task(xor, "minillama-tiny").counts(tokens=xor.tokens).values()
print(f"trained {sum(learns for _, learns in counts)}, frozen "
      f"{sum(size - learns for size, learns in counts):,}")

# %% [markdown]
# So the experiment does not hang on GPT-2's parts: 290 trained numbers and no trained position can
# be enough. With some seeds the Llama that has read stays at about 90 %; the random one solves it
# with all five. So reading is not needed, as lesson 0 found for GPT-2s. Larger Llamas, on more
# tasks and beside GPT-2s, are in the repository's `docs/results/language.md`.
#
# ## Exercises
#
# Solutions are in `solutions/21_from_gpt2_to_today.py`.
#
# **1.** The bytes of a key-value cache, from what a `config.json` says. `size` is the number of
# bytes of a number.

# %%
def cache_bytes(n_layer, n_head, n_group, n_embd, tokens, size):
    """six whole numbers -> the bytes that one text keeps"""
    return ...


check("cache_bytes", cache_bytes)


# %% [markdown]
# **2.** One score of one head, $(R_m q) \cdot (R_n k) / \sqrt D$, with rotary positions: the query
# stands at position $m$ and the key at position $n$. Channel $i$ belongs to channel $i + D/2$, as
# in `F.rope`. How few rotations does it take?

# %%
def rotated_score(q, k, m, n, base):
    """q, k (D,), before they are rotated; m, n, base numbers -> a number"""
    return ...


check("rotated_score", rotated_score)


# %% [markdown]
# **3.** Back through a whole gate, $h = \text{silu}(x W_g) \odot (x W_u)$, with the sigmoid and
# all.

# %%
def gate_backward(dy, x, W_g, W_u):
    """dy (N, I), the gradient of h; x (N, C), W_g and W_u (C, I) -> dx, dW_g, dW_u"""
    return ...


check("gate_backward", gate_backward)


# %% [markdown]
# **4.** *Open.* `minillama-tiny` has read 256 tokens at a time. A rotation has no last position, so
# it can be given 1,024. First a function: the base with which the slowest plane of a head makes
# `turns` turns over `tokens` tokens. Then give `by_hand(ids, base=...)` whole passages of 1,024
# bytes, and take the mean loss of tokens 0 to 127, of 128 to 255, and so on, with the base that it
# was trained with and with others. Where does it fail, which base helps, and what does that base
# cost on the first 128?

# %%
def slow_base(D, tokens, turns):
    """channels of a head, number of tokens, turns of the slowest plane -> the base"""
    return ...


check("slow_base", slow_base)

# %% [markdown]
# **Next**: [lesson 22](22_why_random_weights_find_a_string.ipynb) says what random weights have, if
# you have not read it. Or download a small Llama or Qwen2 where you may, read it with
# `LlamaLM.from_pretrained(folder)`, and hold its scores against Transformers' before you trust a
# result of it.
