# %% [markdown]
# # 6. GPT-2 whole
#
# **GPT-2 is one block, repeated, between a table and the same table. What runs through it, and
# where are its parameters?**
#
# After this lesson you can
#
# - write all of GPT-2 in ten lines over the library's layers, and say what each line is for;
# - read what the model would say half way, and carry a gradient past a residual connection;
# - count the parameters of any GPT-2 from four numbers.
#
# **What we know by now.** Layer norm keeps a row in size, attention moves something from token to
# token, and both have a gradient that we can write. One block is not yet a language model.
#
# **The question:** What runs through the whole of it?
#
# You need lessons [3](03_layer_norm.ipynb) and [5](05_backward_through_attention.ipynb). It takes
# about an hour: 25 minutes to read and run, 20 for your own file, 15 for two exercises. What
# follows under *Going further* is not needed later.

# %%
import tempfile

import numpy as np
from scipy.special import ndtr  # noqa: F401, for exercise 3

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.files.tokenizer import Bytes
from minifpt.layers import Block, blocks_backward

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
faces. His daughter stood in the hall with a letter in her hand. She
did not look at them. "It came this morning," she said at last, "and I
have not had the courage to open it." Nobody answered. The wind was in
the chimney, and somewhere above them a door began to knock, slowly, as
if it had all the night before it."""

lm = minifpt.LanguageModel.from_pretrained("minigpt-language")
trunk = lm.trunk
letters = Bytes()
ids = np.array(letters.encode(text))
B, T = 2, trunk.config.n_positions                        # rows as long as it can see
x, y = ids[:B * T].reshape(B, T), ids[1:B * T + 1].reshape(B, T)
print(trunk.config)

# %% [markdown]
# A **block** has two **parts**: self-attention (lessons 4 and 5), in which tokens look at each
# other, and a **feed-forward** part, in which each token is by itself. (Formulas and names call it
# mlp, *multi-layer perceptron*.) Each part reads through a layer norm of its own, and its result is
# *added* to what it read:
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


def nats(logits):
    """The mean loss of a byte of our text."""
    return float(F.cross_entropy(logits, y)[0])


whole = nats(lm.logits(x))
print(f"our text by our lines:       {nats(gpt2(x)):.4f} nats a byte")
print(f"our text by the library:     {whole:.4f}")
print(f"a model that knows nothing:  {np.log(256):.4f}")

# %% [markdown]
# ## What runs through
#
# The stream has the same shape everywhere. So we can ask, after each part, what the model would say
# if it ended there: we `read` the stream early. `minifpt.trace` records every operation while the
# library runs.

# %%
with minifpt.trace(lm) as t:
    lm.logits(x)
residuals = [step for step in t.steps if step.op == "residual"]
stages = [t.outputs["trunk.wpe"], *(step.output for step in residuals)]       # each (B, T, C)
NAMES = [f"h.{i}.{part}" for i in range(trunk.config.n_layer) for part in ("attn", "mlp")]
print(f"{len(t.steps)} operations, {len(residuals)} of them add to the stream:",
      *(step.name for step in residuals[:3]), "...")

# %% [markdown]
# The text stands in the line at the bottom. Each row is read after one more part, and shows the
# likeliest next byte.

# %%
def sign(byte):
    return {10: "\\n", 32: "␣"}.get(int(byte), chr(byte))


window = slice(72, 98)
probabilities = np.stack([F.softmax(read(s))[0][0] for s in stages])    # (stage, T, V)
right = np.take_along_axis(probabilities, y[None, 0, :, None], -1)[..., 0]

fig, (ax,) = figure(width=8.6, height=4.5)
matrix(ax, right[:, window], "Read early: the likeliest next byte after each part",
       limit=1, digits=None, columns=[sign(b) for b in y[0, window]],
       rows=["tables", *NAMES])
for (i, j), byte in np.ndenumerate(probabilities.argmax(-1)[:, window]):
    ax.text(j, i, sign(byte), ha="center", va="center", fontsize=8,
            color="white" if right[:, window][i, j] > 0.6 else color.ink)
ax.set_xlabel("the byte that comes next; dark: the model gives it a high probability")
picture(fig)
print("nats a byte, read after each part:", [round(nats(read(s)), 2) for s in stages])

# %% [markdown]
# At the start the model repeats its input, because a byte is most like itself: in the first row
# stands the bottom line, shifted by one byte. It is so sure of that wrong guess that it has 12.85
# nats, more than a model that knows nothing. The loss falls from part to part, though single
# guesses get lost on the way. No part replaces what was there; each adds to it:
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


loss_cut = np.array([loss_without([name]) for name in NAMES])
reveal(guess, int((loss_cut < whole + 0.1).sum()), "of 12")
bars(dict(zip(NAMES, loss_cut, strict=True)), "One part cut, the other eleven as they were "
     "(dotted: whole)", "nats a byte", digits=2, levels=[whole], height=0.25)

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
# blocks in this way, the last one first. (A cache of `None` is for lesson 7.)

# %%
show(blocks_backward)

# %% [markdown]
# ## The feed-forward part
#
# The feed-forward part is two linear layers, `c_fc` `(C, 4C)` and `c_proj` `(4C, C)`. So that they
# are not one linear layer, a nonlinear function stands between them, the **activation function**.
# GPT-2 takes **GELU**: $x$ times the probability $\Phi(x)$ that a normal random number (of mean 0
# and standard deviation 1) is below $x$. Its authors' code uses an approximation with tanh:
#
# $$ x\,\Phi(x) \approx \frac{x}{2}\,(1 + \tanh u), \qquad
#    u = \sqrt{2/\pi}\,\big(x + 0.044715\, x^3\big) $$
#
# The derivative follows from the product rule, with $t = \tanh u$ and $\tanh' = 1 - \tanh^2$:
#
# $$ dx = dy \cdot \Big( \frac{1 + t}{2} + \frac{x}{2}\,(1 - t^2)\,\frac{du}{dx} \Big),
#    \qquad \frac{du}{dx} = \sqrt{2/\pi}\,\big(1 + 3 \cdot 0.044715\,x^2\big) $$
#
# A block has $3C^2$ weights in `c_attn`, $C^2$ in `attn.c_proj` and twice $4C^2$ in the
# feed-forward part: $12\,C^2$ in all. Its biases and layer norms have only a few times $C$.
#
# ## A language model, on your own file
#
# Write `residual`, `gelu`, `embedding` and `unembedding` in `mine.py`, each with its backward pass
# (20 minutes; the last two may wait for [lesson 10](10_tokens_and_vectors.ipynb)). `embedding`
# raises a `ValueError` for ids that are not integers from 0 to $V - 1$. In its backward pass, a
# byte may stand in a text twice. A small GPT-2, 2 blocks and 48 channels, then reads the ends of
# five novels.

# %%
GPT2_PARTS = [name + half for half in ("", "_backward") for name in (
    "embedding", "positions", "layer_norm", "linear", "attention", "residual", "gelu",
    "unembedding", "cross_entropy")]
novels = minifpt.tasks.get("text", tokens=32)
tiny = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=48, n_positions=32, vocab_size=256,
                          dropout=0.0, initializer_range=0.08)
with written("mine.py", *GPT2_PARTS) as whose:
    small = minifpt.LanguageModel(tiny, seed=0)
    history = minifpt.train(small, novels, 200, batch_size=8, lr=1e-2, seed=0, eval_every=25,
                            test_examples=64)
    ids = small.generate(letters.encode("The "), 28, temperature=0.7, seed=0)
print("it writes:", letters.decode(ids).replace("\n", " "))
curves({"": history["test_loss"]}, f"A language model learns (dotted: knows nothing)\n{whose}",
       ylabel="nats a byte, held out", x=history["step"], inks=[color.trained], ylim=(0, 6),
       level=np.log(256))

# %% [markdown]
# (One run.)
#
# ## Exercises
#
# **1.** Count the parameters of a GPT-2 from its shape, to the last one: two tables, the weights
# *and biases* of the blocks, the last layer norm. The number of heads is not among the
# arguments. Why?

# %%
def gpt2_parameters(n_layer, n_embd, n_positions, vocab_size):
    """-> how many parameters, a whole number"""
    return ...


check("gpt2_parameters", gpt2_parameters)


# %% [markdown]
# **2.** The way back through a block: $u = s + a(s)$, $s' = u + m(u)$. You are given the backward
# passes of $a$ and of $m$, layer norms included, as functions.

# %%
def block_backward(dy, a_backward, m_backward):
    """dy (B, T, C), the gradient of s' -> ds (B, T, C)"""
    return ...


check("block_backward", block_backward)


# %% [markdown]
# **3.** The exact GELU is $y = x\,\Phi(x)$. Derive its backward pass. $\Phi$ is `ndtr`, imported
# above; its derivative is the density $\varphi(x) = e^{-x^2/2} / \sqrt{2\pi}$. Then try
# `minifpt.gradcheck` on it.

# %%
def gelu_exact_backward(dy, x):
    """dy, x (N, C) -> dx (N, C)"""
    return ...


check("gelu_exact_backward", gelu_exact_backward)


# %% [markdown]
# ## Going further
#
# **A residual connection forgotten.** We leave out the one past attention on the way back: the
# block hands down $\text{ln}_1^\top\,\text{attn}^\top du$ alone, without $du$. A block has 12
# arrays of parameters, and an input $x$. For how many of these 13 does the check find a wrong
# gradient?

# %%
guess = ...


# %%
class OuterForgotten(Block):
    def backward(self, dy, cache):
        du = dy + self.ln_2.backward(self.mlp.backward(dy, cache["mlp"]), cache["ln_2"])
        return self.ln_1.backward(self.attn.backward(du, cache["attn"]), cache["ln_1"])


def wrong_gradients(kind):
    """The names of the wrong gradients of a small block, not at its starting values"""
    rng = np.random.default_rng(0)
    block = kind(8, 2, dtype=np.float64)
    for p in block.parameters():
        p.data += 0.5 * rng.standard_normal(p.data.shape)
    report = minifpt.gradcheck(block, rng.standard_normal((2, 5, 8)))
    return [name for name, error in report.errors.items() if error > 1e-6]


reveal(guess, len(wrong_gradients(OuterForgotten)), "of 13")
print("wrong:", wrong_gradients(OuterForgotten), "and in the library's:", wrong_gradients(Block))

# %% [markdown]
# A block can hand a wrong gradient down while all of its own are right. A check of its parameters
# never sees this: check $dx$ as well.
#
# **From a file.** Our parameters have the names and shapes of GPT-2's own, as the library
# Transformers spells them. So we can write our weights into a folder as Transformers does, and read
# them back.

# %%
def arrays_of(model):
    """{GPT-2's name: array}, without the "trunk." of ours"""
    return {name.removeprefix("trunk."): p.data for name, p in model.named_parameters()}


with tempfile.TemporaryDirectory() as folder:
    lm.save(folder)
    other = arrays_of(minifpt.LanguageModel.from_pretrained(folder))
for name, values in arrays_of(lm).items():
    if not name.startswith("h.") or name.startswith("h.0."):
        print(f"{name:24}{values.shape}, read as written: {(other[name] == values).all()}")

# %% [markdown]
# OpenAI's weights go the same way: with the extra `gpt2` installed, `minifpt convert gpt2`. (That
# needs a network.)
#
# **What shapes cannot see.** PyTorch's linear layers keep their weight as `(out, in)`, GPT-2's as
# `(in, out)`. For `c_attn` `(C, 3C)` the loader sees a weight that was transposed. But
# `attn.c_proj` is `(C, C)`. Transposed, it loads without a word. And some things have no shape at
# all: the number of heads, or what comes first, query or key.
#
# We transpose `attn.c_proj` in all six blocks. What is the loss now, in nats a byte? (The losses of
# the model as it is, and of one that knows nothing, are printed at the top.)

# %%
guess = ...


# %%
def mistake(change):
    """A fresh model, its trunk changed -> (nats a byte, largest change of a score, the model)."""
    other = minifpt.LanguageModel.from_pretrained("minigpt-language")
    change(other.trunk)
    logits = other.logits(x)
    return nats(logits), float(np.abs(logits - lm.logits(x)).max()), other


def each_block(change):
    return lambda trunk: [change(block) for block in trunk.h]


def transpose(block):
    block.attn.c_proj.weight.data = block.attn.c_proj.weight.data.T.copy()


def queries_for_keys(block):
    for p in block.attn.c_attn.parameters():
        q, k, v = np.split(p.data, 3, axis=-1)
        p.data = np.concatenate([k, q, v], axis=-1)


def eight_heads(block):
    block.attn.n_head = 8


def epsilon(block):
    block.ln_1.eps = block.ln_2.eps = 1e-12


mistakes = {"none": lambda trunk: None,
            "attn.c_proj transposed": each_block(transpose),
            "queries and keys exchanged": each_block(queries_for_keys),
            "8 heads in place of 4": each_block(eight_heads),
            "blocks 2 and 3 exchanged": lambda trunk: trunk.h.insert(2, trunk.h.pop(3)),
            "epsilon 1e-12, not 1e-5": each_block(epsilon)}
found = {name: mistake(change) for name, change in mistakes.items()}
reveal(guess, found["attn.c_proj transposed"][0], "nats")

bars({name: value for name, (value, *_) in found.items()},
     "Five mistakes that load without a word (dotted: knows nothing)", "nats a byte",
     [color.teal] + [color.ochre] * len(mistakes), digits=3, levels=[np.log(256)], width=7.2)
exact = minifpt.LanguageModel.from_pretrained("minigpt-language", dtype=np.float64).logits(x)
rounding = np.abs(lm.logits(x) - exact).max()
print(f"largest change of a score: rounding alone {rounding:.1e}, "
      f"blocks exchanged {found['blocks 2 and 3 exchanged'][1]:.1e}, "
      f"epsilon {found['epsilon 1e-12, not 1e-5'][1]:.1e}")

# %% [markdown]
# All five have the right names and shapes. What sees all is to compare *scores* with those of the
# reference implementation, on the same input. Two correct programs differ by rounding; the smallest
# mistake here makes a difference many times as large.
#
# **4.** Another library keeps queries, keys and values in three PyTorch linear layers, each with
# a weight `(C, C)` as `(out, in)`. Make GPT-2's `c_attn.weight` of them, `(C, 3C)`. Which of the
# possible mistakes would `from_pretrained` see?

# %%
def c_attn_from_three(wq, wk, wv):
    """three (C, C), each (out, in) -> (C, 3C)"""
    return ...


check("c_attn_from_three", c_attn_from_three)


# %% [markdown]
# **5.** *Open.* Which `k` parts can a model spare *together*? You are given a function that takes a
# list of parts to cut and returns the loss. Each call runs the model, so do not try every set. The
# check is not content with the `k` parts that are cheapest one by one. Then set `RUN` to `True`:
# how many of its twelve parts can our model lose for half a nat? And is the answer the same for a
# text without line breaks, `text.replace("\n", " ")`? (Look at the loss of the *whole* model on it,
# too.)

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
