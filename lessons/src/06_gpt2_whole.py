# %% [markdown]
# # 6. GPT-2 whole
#
# **GPT-2 is one block, repeated, between a table and the same table. What runs through it?**
#
# After this lesson you can
#
# - write all of GPT-2 in ten lines over the library's layers, and say what each line is for;
# - read what the model would say half way;
# - carry a gradient past a residual connection, and say what a check misses without it.
#
# **What we know by now.** Layer norm keeps a row in size, attention moves something from token to
# token, and both have a gradient that we can write. One block is not yet a language model.
#
# **The question:** What runs through the whole of it?
#
# You need lessons [3](03_layer_norm.ipynb) and [5](05_backward_through_attention.ipynb).

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.files.tokenizer import Bytes
from minifpt.layers import MLP, Attention, Block, LayerNorm

# %% [markdown]
# ## Ten lines
#
# The language model that ships has read novels, byte by byte: its tokens are the $V = 256$ bytes.
# Here is a text that we wrote for this lesson, in lines as short as a book's. $x$ `(B, T)` holds
# its bytes, $y$ `(B, T)` at each position the byte that comes next.

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
# A **block** has two **parts**: self-attention, in which tokens look at each other, and a
# **feed-forward** part, in which each token is by itself: two linear layers with a nonlinear
# function between them. (Formulas and names call it mlp, *multi-layer perceptron*.) Each part reads
# through a layer norm of its own, and its result is *added* to what it read:
#
# $$ u = s + \text{attn}(\text{ln}_1(s)) \qquad\qquad s' = u + \text{mlp}(\text{ln}_2(u)) $$
#
# Each of the two additions is a **residual connection**, and $s$ `(B, T, C)` is the **residual
# stream**. It begins as the token's row in a table, `wte` `(V, C)`, plus the position's row in
# another, `wpe` `(N, C)`, for $N$ positions. At its end comes a last layer norm, `ln_f`. Then each
# of the $V$ bytes gets a score: the product of the stream with that byte's row in the *same* table.

# %%
def read(s):
    """stream (B, T, C) -> scores (B, T, V)"""
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
# The stream has the same shape everywhere. So we can ask, after each part, what the model would say
# if it ended there: we `read` the stream early. `minifpt.trace` records every operation while the
# library runs.
#
# The text stands in the line at the bottom. Each row is read after one more part, and shows the
# likeliest next byte.

# %%
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
# **This is the picture to keep.** At the start the model repeats its input, because a byte is most
# like itself: in the first row stands the bottom line, shifted by one byte. It is so sure of that
# wrong guess that it has 12.74 nats, more than a model that knows nothing. The loss falls from part
# to part, though single guesses get lost on the way. No part replaces what was there; each adds to
# it:
#
# $$ s_{\text{end}} = s_{\text{tables}} + \text{attn}_0(\cdot) + \text{mlp}_0(\cdot) + \dots +
#    \text{mlp}_5(\cdot) $$
#
# So we can leave one term out. We **cut** a part: the stream runs past it. For how many of the
# twelve parts does the loss rise by less than 0.1 nats?

# %%
guess = ...                                               # 0 to 12

# %%
def loss_without(names):
    """The loss of our text when the stream runs past some parts, ["h.0.attn"]"""
    s = stages[0]
    for i, block in enumerate(trunk.h):
        for name, norm, part in (("attn", block.ln_1, block.attn), ("mlp", block.ln_2, block.mlp)):
            if f"h.{i}.{name}" not in names:
                s = s + part.forward(norm.forward(s)[0])[0]
    return nats(read(s))


loss_cut = {name: loss_without([name]) for name in NAMES}
reveal(guess, sum(loss < whole + 0.1 for loss in loss_cut.values()), "of 12")
bars(loss_cut, "One part cut, the other eleven as they were (dotted: whole)", "nats a byte",
     digits=2, levels=[whole], height=0.25)

# %% [markdown]
# Most parts can be spared, one at a time. Those of the first block cannot, and the feed-forward
# parts of the next two blocks are missed, too. (One model, one text.)
#
# ## The way back
#
# On the way back the sum is a fork. $s$ reaches the output on two paths, through the part and past
# it, and the chain rule adds over paths. We write $f^\top$ for the backward pass of $f$ (no
# transposed matrix): it turns the gradient of $f$'s output into that of its input. With $ds'$ `(B,
# T, C)` arriving from above,
#
# $$ du = ds' + \text{ln}_2^\top\,\text{mlp}^\top ds' \qquad\qquad
#    ds = du + \text{ln}_1^\top\,\text{attn}^\top du $$
#
# So $ds$ contains $ds'$ itself, unchanged, whatever the parts do. The library goes through the
# blocks in this way, the last one first. (`last` is for lesson 7.)

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


def wrong_gradients(kind):
    """The names of the wrong gradients of a small block, not at its starting values"""
    rng = np.random.default_rng(0)
    block = kind(LayerNorm(8), Attention(8, 2), LayerNorm(8), MLP(8))
    for p in block.parameters():
        p.data = p.data + 0.5 * rng.standard_normal(p.data.shape)
    errors = minifpt.gradcheck(block, rng.standard_normal((2, 5, 8))).errors
    return [name for name, error in errors.items() if error > 1e-6]


reveal(guess, len(wrong_gradients(Forgetful)), "of 13")
print("wrong:", wrong_gradients(Forgetful), "and in the library's:", wrong_gradients(Block))

# %% [markdown]
# A block can hand a wrong gradient down while all of its own are right, because these need $ds'$
# and $du$ alone. A check of its parameters never sees this: check $dx$ as well.
#
# ## A language model, on your own file
#
# Write `gelu` and `gelu_backward` in `mine.py`. A small GPT-2, 2 blocks and 48 channels, then
# reads the ends of five novels, which ship with minifpt.

# %%
GPT2_PARTS = [name + half for half in ("", "_backward") for name in (
    "embedding", "positions", "layer_norm", "linear", "attention", "gelu", "unembedding",
    "cross_entropy")]
tiny = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=48, n_positions=32, vocab_size=256,
                          dropout=0.0, initializer_range=0.08)
with written("mine.py", *GPT2_PARTS) as whose:
    small = minifpt.LanguageModel(tiny, seed=0)
    history = minifpt.train(small, minifpt.tasks.get("text", tokens=32), 200, batch_size=8,
                            lr=1e-2, seed=0, eval_every=25, test_examples=64)
    ids = small.generate(letters.encode("The "), 28, temperature=0.7, seed=0)
print("it writes:", letters.decode(ids).replace("\n", " "))
curves({"": history["test_loss"]}, f"A language model learns (dotted: knows nothing)\n{whose}",
       "step", "nats a byte, held out", history["step"], inks=[color.trained], level=np.log(256))

# %% [markdown]
# (One run.)
#
# ## Exercises
#
# **1.** The way back through a block: $u = s + a(s)$, $s' = u + m(u)$. You are given the backward
# passes of $a$ and of $m$, layer norms included, as functions.

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
# **The feed-forward part.** Its two linear layers are `c_fc` `(C, 4C)` and `c_proj` `(4C, C)`.
# Between them stands an activation function, in GPT-2 **GELU**: $x$ times the probability that a
# normal random number (of mean 0 and standard deviation 1) is below $x$, approximated with tanh.
# With
# $t = \tanh\!\big(\sqrt{2/\pi}\,(x + 0.044715\, x^3)\big)$,
#
# $$ y = \frac{x}{2}\,(1 + t), \qquad
#    dx = dy \cdot \Big( \frac{1 + t}{2} + \frac{x}{2}\,(1 - t^2)\,
#    \sqrt{2/\pi}\,\big(1 + 3 \cdot 0.044715\,x^2\big) \Big) $$
#
# The derivative is the product rule with $\tanh' = 1 - \tanh^2$. Your own file has room for `gelu`,
# and for `embedding` and `unembedding` ([lesson 10](10_tokens_and_vectors.ipynb)), each with its
# backward pass.
#
# **Weights from elsewhere.** PyTorch's linear layers keep a weight as `(out, in)`, GPT-2's as `(in,
# out)`. `attn.c_proj` is `(C, C)`: transposed, it loads without an error. So compare the *scores*
# with those of the reference implementation, on the same input.
#
# **3.** *Open.* Which `k` parts can a model spare *together*? You are given a function that takes a
# list of parts to cut and returns the loss. Each call runs the model, so do not try every set. The
# check is not content with the `k` parts that are cheapest one by one. Then set `RUN` to `True`:
# how many of its twelve parts can our model lose for half a nat?

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
# **What we do not know yet.** Everything trained here. Lesson 0 froze nearly everything. What does
# freezing leave, and what does it save?
#
# **Next**: [lesson 7](07_freeze_masks.ipynb).
