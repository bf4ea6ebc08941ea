# %% [markdown]
# # 6. GPT-2 whole
#
# **GPT-2 is one block, repeated; the same table stands at its start and at its end. What runs
# through it? At the end of this lesson your own functions write text.**
#
# After this lesson you can
#
# - write all of GPT-2 in ten lines over the library's layers, and say what each line is for;
# - read what the model would say halfway through;
# - carry a gradient past a residual connection, and say what a check of the parameters misses.
#
# **What we know by now.** Layer norm stops the numbers from exploding, attention moves something
# from token to token, and we can write the gradients of both. One block is not yet a language
# model.
#
# **The question:** What runs through the whole of it?
#
# You need lessons [3](03_layer_norm.ipynb) and [5](05_backward_through_attention.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check, lesson
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.files.tokenizer import Bytes
from minifpt.layers import MLP, Attention, Block, LayerNorm

lesson.model_map("residual", "norm", "attention", "feed-forward")

# %% [markdown]
# ## Ten lines
#
# The language model that ships with minifpt has read novels, byte by byte: its tokens are the $V =
# 256$ bytes. We let it read a text that it has never seen. $x$ `(B, T)` holds the bytes, and $y$
# `(B, T)` holds for each position the byte that comes next.

# %%
text = """\
The rain had begun before they reached the house, and by the time the
old man opened the door the road behind them was a river. "You are
late," he said, without a smile, and held up his candle to see their
faces. His daughter stood in the hall."""

lm = minifpt.LanguageModel.from_pretrained("minigpt-language")
trunk, letters = lm.trunk, Bytes()
ids = np.array([letters.encode(text)])
x, y = ids[:, :-1], ids[:, 1:]                            # (B, T), B = 1

# %% [markdown]
# A **block** has two **parts**. In self-attention, tokens look at each other. In the
# **feed-forward** part each token is alone: two linear layers, a nonlinear function between them.
# (Formulas and names call it mlp, *multi-layer perceptron*.) Each part reads through a layer norm
# of its own, and we *add* its result to what stood there before:
#
# $$ u = s + \text{attn}(\text{ln}_1(s)) \qquad\qquad s' = u + \text{mlp}(\text{ln}_2(u)) $$
#
# Each addition is a **residual connection**, and $s$ `(B, T, C)` is the **residual stream**. It
# begins as the token's row in a table, `wte` `(V, C)`, plus the position's row in another, `wpe`
# `(N, C)`, for $N$ positions. After a last layer norm, `ln_f`, each of the $V$ bytes gets a score:
# the product of the stream with the row of this byte in the *same* table `wte`.

# %%
def read(s):                                              # (B, T, C) -> scores (B, T, V)
    return trunk.ln_f.forward(s)[0] @ lm.wte.weight.data.T


def gpt2(ids):
    """All of GPT-2: ids (B, T) -> scores (B, T, V)"""
    s = lm.wte.weight.data[ids] + trunk.wpe.weight.data[:ids.shape[1]]     # (B, T, C)
    for block in trunk.h:
        s = s + block.attn.forward(block.ln_1.forward(s)[0])[0]
        s = s + block.mlp.forward(block.ln_2.forward(s)[0])[0]
    return read(s)


def nats(logits):                                         # the mean loss of a byte of our text
    return float(F.cross_entropy(logits, y)[0])


whole = nats(lm.logits(x))
print(f"nats a byte, by our lines: {nats(gpt2(x)):.4f}, by the library: {whole:.4f}, "
      f"by a model that knows nothing: {np.log(256):.4f}")

# %% [markdown]
# ## What runs through
#
# The stream has the same shape everywhere. So after each part we can ask: if the model ended here,
# what would it say? We `read` the stream early. (`minifpt.trace` records every operation while the
# library runs.) The text stands in the line at the bottom. Each row is read after one more part,
# and shows the likeliest next byte.

# %%
# Not to be read: the stream after each part, and its picture.
with minifpt.trace(lm) as t:
    lm.logits(x)
NAMES = [f"h.{i}.{part}" for i in range(trunk.config.n_layer) for part in ("attn", "mlp")]
stages = np.cumsum([t.outputs["trunk.wpe"], *(t.outputs[f"trunk.{n}"] for n in NAMES)], axis=0)


def sign(byte):
    return {10: "\\n", 32: "␣"}.get(int(byte), chr(byte))


window = slice(72, 98)
probabilities = np.stack([F.softmax(read(s))[0][0] for s in stages])    # (stage, T, V)
right = np.take_along_axis(probabilities, y[None, 0, :, None], -1)[..., 0]

fig, (ax,) = figure(width=8.6, height=4.5)
matrix(ax, right[:, window], "Read early: the likeliest next byte after each part",
       "the byte that comes next; dark: the model gives it a high probability", limit=1,
       digits=None, columns=[sign(b) for b in y[0, window]], rows=["tables", *NAMES])
for (i, j), byte in np.ndenumerate(probabilities.argmax(-1)[:, window]):
    ax.text(j, i, sign(byte), ha="center", va="center", fontsize=8,
            color="white" if right[:, window][i, j] > 0.6 else color.ink)
picture(fig)
print("nats a byte, read after each part:", [round(nats(read(s)), 2) for s in stages])

# %% [markdown]
# **This is the picture to keep.** At the start the model repeats its input, because in the table a
# byte's row is most like itself. So the first row shows the bottom line, shifted by one byte. The
# model is so sure of this wrong guess that it has 12.74 nats, more than a model that knows nothing.
# From part to part the loss falls, though some right guesses get lost on the way. No part replaces
# what was there. Each adds to it:
#
# $$ s_{\text{end}} = s_{\text{tables}} + \text{attn}_0(\cdot) + \text{mlp}_0(\cdot) + \dots +
#    \text{mlp}_5(\cdot) $$
#
# So we can leave one term out. We **cut** a part: the stream runs past it. For how many of the
# twelve parts does the loss rise by less than 0.1 nats?

# %%
guess = ...                                               # 0 to 12

# %%
def loss_without(names):                                  # runs past some parts, ["h.0.attn"]
    s = stages[0]
    for i, block in enumerate(trunk.h):
        for name, norm, part in (("attn", block.ln_1, block.attn), ("mlp", block.ln_2, block.mlp)):
            if f"h.{i}.{name}" not in names:
                s = s + part.forward(norm.forward(s)[0])[0]
    return nats(read(s))


loss_cut = {name: loss_without([name]) for name in NAMES}
reveal(guess, sum(loss < whole + 0.1 for loss in loss_cut.values()), "of 12")
bars(loss_cut, "One part cut: only the first blocks are missed", "nats a byte", digits=2,
     levels=[whole], notes=["nothing cut"], height=0.25)

# %% [markdown]
# A chain breaks when any link breaks. But this is a sum of thirteen terms, and later parts still
# read all the others. So the model can spare most parts, one at a time. It cannot spare those of
# the first block, on which all others build, and it misses the feed-forward parts of the next two.
# (One model, one text.)
#
# ## The way back
#
# On the way back the sum is a fork. $s$ reaches the output on two paths, through the part and past
# it, and the chain rule adds over paths. We write $f^\top$ for the backward pass of $f$: it turns
# the gradient of $f$'s output into that of its input. With $ds'$ `(B, T, C)` arriving from above,
#
# $$ du = ds' + \text{ln}_2^\top\,\text{mlp}^\top ds' \qquad\qquad
#    ds = du + \text{ln}_1^\top\,\text{attn}^\top du $$
#
# So $ds$ contains $ds'$ itself, unchanged, whatever the parts do: the gradient has a straight way
# back through all blocks. The library goes through them in this way, the last one first. (`last` is
# for lesson 7.)

# %%
show(Block.backward)

# %% [markdown]
# Now we break it. On the way back we forget the connection past attention: the block hands down
# $\text{ln}_1^\top\,\text{attn}^\top du$ alone, without $du$. A block has 12 arrays of parameters,
# and an input $x$. For how many of these 13 does the check find a wrong gradient?

# %%
guess = ...                                               # of 13


# %%
class Forgetful(Block):
    def backward(self, dy, cache):
        du = dy + self.ln_2.backward(self.mlp.backward(dy, cache["mlp"]), cache["ln_2"])
        return self.ln_1.backward(self.attn.backward(du, cache["attn"]), cache["ln_1"])


def wrong_gradients(kind):                                # of a small block, by name
    rng = np.random.default_rng(0)
    block = kind(LayerNorm(8), Attention(8, 2), LayerNorm(8), MLP(8))
    for p in block.parameters():
        p.data = p.data + 0.5 * rng.standard_normal(p.data.shape)
    errors = minifpt.gradcheck(block, rng.standard_normal((2, 5, 8))).errors
    return [name for name, error in errors.items() if error > 1e-6]


reveal(guess, len(wrong_gradients(Forgetful)), "of 13")
print("wrong:", *wrong_gradients(Forgetful), "and in the library's:", *wrong_gradients(Block))

# %% [markdown]
# Not 13: the gradients of a block's own parameters need $ds'$ and $du$ alone, and these are right.
# Only what the block hands down to the next one is wrong. A check of the parameters never sees
# this: check $dx$ as well.
#
# ## Your own functions write text
#
# Write `gelu` and `gelu_backward` in `mine.py`. **GELU** is $x$ times the probability that a normal
# random number is below $x$, approximated by $y = \frac x2 (1 + t)$ with $t =
# \tanh\!\big(\sqrt{2/\pi}\,(x + 0.044715\, x^3)\big)$. The product rule and $\tanh' = 1 - \tanh^2$
# give
#
# $$ dx = dy \cdot \Big( \frac{1 + t}{2} + \frac{x}{2}\,(1 - t^2)\,
#    \sqrt{2/\pi}\,\big(1 + 3 \cdot 0.044715\,x^2\big) \Big) $$

#
# (`minifpt.new("mine.py", lesson=6)` in a cell appends the stubs.) Now you have all that GPT-2
# runs, except the look-ups in its tables. First your functions train a small GPT-2 of 2 blocks and
# 48 channels on the ends of five novels, and let it write. Then they run the large model.

# %%
GPT2_PARTS = "gelu layer_norm linear attention positions cross_entropy embedding unembedding"
GPT2_PARTS = [name + half for name in GPT2_PARTS.split() for half in ("", "_backward")]
tiny = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=48, n_positions=32, vocab_size=256,
                          dropout=0.0, initializer_range=0.08)
with written("mine.py", *GPT2_PARTS) as whose:
    small = minifpt.LanguageModel(tiny, seed=0)
    history = minifpt.train(small, minifpt.tasks.get("text", tokens=32), 200, batch_size=8,
                            lr=1e-2, seed=0, eval_every=25, test_examples=64)
    for name, model in (("small", small), ("large", lm)):
        ids = model.generate(letters.encode("The "), 150, temperature=0.7, seed=0)
        print(f"The {name} model writes: {letters.decode(ids)}\n")
curves({"": history["test_loss"]}, f"A language model learns\n{whose}", "step",
       "nats a byte, held out", history["step"], inks=[color.trained], level=np.log(256),
       note="knows nothing")

# %% [markdown]
# (One run.) After 200 steps the small model knows letters and a few short words. The large model,
# on the same functions, was trained longer.
#
# ## Exercises
#
# **1.** The way back through a block: $u = s + a(s)$, $s' = u + m(u)$. You get the backward passes
# of $a$ and of $m$, layer norms included, as functions.

# %%
def block_backward(dy, a_backward, m_backward):
    """dy (B, T, C), the gradient of s' -> ds (B, T, C)"""
    return ...


check("block_backward", block_backward)


# %% [markdown]
# **2.** The first Transformer normalised *after* each addition: $u = \text{ln}_1(s + a(s))$, $s' =
# \text{ln}_2(u + m(u))$, where $a$ and $m$ have no layer norms. Write its way back. Does $ds$ still
# contain $dy$ unchanged?

# %%
def post_norm_backward(dy, a_backward, m_backward, ln_1_backward, ln_2_backward):
    """dy (B, T, C), the gradient of s' -> ds (B, T, C)"""
    return ...


check("post_norm_backward", post_norm_backward)


# %% [markdown]
# ## Going further
#
# **The same block in PyTorch.** This is what you would type at work. Each line is one of ours; the
# way back is `loss.backward()`, because PyTorch has written down each operation as it ran. (A test
# of minifpt runs these lines, and compares output and gradient with ours.)
#
# ```python
# import torch
# from torch import nn
#
#
# class TorchBlock(nn.Module):
#     def __init__(self, C, H):
#         super().__init__()
#         self.H = H                                      # heads
#         self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
#         self.c_attn = nn.Linear(C, 3 * C)               # queries, keys, values
#         self.c_proj = nn.Linear(C, C)                   # joins the heads
#         self.mlp = nn.Sequential(
#             nn.Linear(C, 4 * C), nn.GELU(approximate="tanh"), nn.Linear(4 * C, C))
#
#     def forward(self, s):                               # the stream, (B, T, C)
#         B, T, C = s.shape
#         q, k, v = (part.view(B, T, self.H, C // self.H).transpose(1, 2)     # (B, H, T, D)
#                    for part in self.c_attn(self.ln_1(s)).split(C, dim=-1))
#         y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
#         s = s + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
#         return s + self.mlp(self.ln_2(s))
# ```
#
# One thing differs. PyTorch's linear layers keep a weight as `(out, in)`, GPT-2's as `(in, out)`.
# And `attn.c_proj` is `(C, C)`: if you forget to transpose it, it loads without an error. So
# compare the *scores* with those of the reference implementation, on the same input.
#
# **3.** *Open.* Which `k` parts can a model spare *together*? You get a function that takes a list
# of parts to cut and returns the loss. Each call runs the model, so do not try every set. The `k`
# parts that are cheapest one by one will not pass the check. Then set `RUN` to `True`: how many of
# its twelve parts can our model lose for half a nat?

# %%
def parts_to_spare(loss_without, n, k):
    """loss_without([2, 5]) -> the loss with parts 2 and 5 cut, of parts 0 to n - 1.

    -> a list of k different parts whose cut costs little
    """
    return ...


check("parts_to_spare", parts_to_spare)

# %%
RUN = False
if RUN:
    def loss_of(parts):
        return loss_without([NAMES[i] for i in parts])

    for k in range(1, 9):
        parts = parts_to_spare(loss_of, len(NAMES), k)
        print(k, [NAMES[i] for i in parts], round(loss_of(parts), 3))

# %% [markdown]
# **The picture to keep:** the next byte that the model would say after each part, read from the
# residual stream.
#
# **The sentence to remember:** *Each part adds to what is there, so a gradient has a straight way
# back.*
#
# **What we do not know yet.** Here we trained everything. Lesson 0 froze nearly everything. What
# does freezing leave, and what does it save?
#
# **Next**: [lesson 7](07_freeze_masks.ipynb).
