# %% [markdown]
# # 3. Layer norm
#
# **Between any two parts of a GPT-2 stands a small operation with two vectors of weights. What
# is it for? And how can these few numbers steer a model in which all else is frozen?**
#
# After this lesson you can
#
# - say what layer norm fixes, and to which two changes of its input it is blind;
# - derive its backward from a picture of its Jacobian, and name what each term is for;
# - choose the data of a test so that a missing term cannot hide;
# - turn frozen attention to another token with nothing but layer norm's scales.
#
# You need lessons [1](01_gradients_by_hand.ipynb) and
# [2](02_softmax_and_cross_entropy.ipynb). It takes about an hour.

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.lesson import color, figure, matrix, picture, reveal, show

# %% [markdown]
# ## Twelve blocks in a row
#
# A **block** reads the activations $x$ `(T, C)`, $T$ tokens with $C$ channels each, and adds
# what it computed: $x \leftarrow x + f(x)$. GPT-2 base has twelve of them. Ours are random:
# $f(x) = \text{gelu}(x\,w_1)\,w_2$ with $w_1$ `(C, 4C)` and $w_2$ `(4C, C)`, drawn so that a
# product keeps the size of its input. (GELU is a bend, as tanh was; it is lesson 6's.)
#
# The activations start with a standard deviation of 1. How large is it after twelve blocks?

# %%
guess = ...                                               # a number

# %%
C = 64


def deviations(layer_norm, size=1.0, blocks=12):
    """The standard deviation of x before the first block and after each one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, C))                     # (T, C)
    found = [x.std()]
    for _ in range(blocks):
        w1 = size * rng.standard_normal((C, 4 * C)) / np.sqrt(C)
        w2 = size * rng.standard_normal((4 * C, C)) / np.sqrt(4 * C)
        a = F.layer_norm(x, np.ones(C), np.zeros(C))[0] if layer_norm else x
        x = x + F.gelu(a @ w1)[0] @ w2
        found.append(x.std())
    return np.array(found)


reveal(guess, float(deviations(False)[-1]))

fig, axes = figure(2, width=3.9, height=2.8, sharey=True)
for ax, layer_norm in zip(axes, (False, True), strict=True):
    for size, ink in ((2.0, color.ochre), (1.0, color.ink), (0.5, color.teal)):
        ax.semilogy(deviations(layer_norm, size), "o-", color=ink, markersize=3,
                    label=f"weights x {size}")
    ax.set(xlabel="blocks", title="with layer norm" if layer_norm else "without layer norm")
axes[0].set_ylabel("standard deviation of x")
axes[0].legend(loc="upper left")
picture(fig)
for layer_norm in (False, True):
    last = [deviations(layer_norm, size)[-1] for size in (0.5, 1.0, 2.0)]
    print(f"{'with' if layer_norm else 'without'} layer norm, after 12 blocks:",
          ", ".join(f"{value:.3g}" for value in last))

# %% [markdown]
# Without layer norm each block multiplies: a straight line on this scale, and how steep it is
# depends on the size of the weights. Twice the weights, and after twelve blocks the numbers are
# useless. With layer norm each block *adds* something whose size does not depend on what came
# before.
#
# ## Three lines
#
# **Layer norm** works on each row $x$ `(C,)` alone. It takes away the row's mean, divides by
# its standard deviation, and then multiplies by a **scale** $w$ `(C,)` and adds an **offset**
# $b$ `(C,)`. These two are its weights.
#
# $$ \mu = \frac1C \sum_c x_c, \qquad \sigma^2 = \frac1C \sum_c (x_c - \mu)^2 $$
#
# $$ \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad y = \hat x \cdot w + b $$
#
# ($\epsilon$ is a small number against division by 0.) On two rows of four channels, one step
# after the other:

# %%
rng = np.random.default_rng(3)
x = np.array([[1.0, 2.0, 3.0, 6.0], [-4.0, 0.0, 0.0, 2.0]])
w, b = np.array([1.0, 0.0, 1.0, 2.0]), np.array([0.0, 0.0, 3.0, 0.0])
centred = x - x.mean(axis=-1, keepdims=True)
scaled = centred / np.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + 1e-5)

fig, axes = figure(4, width=2.3, height=1.7)
for ax, values, title in zip(axes, (x, centred, scaled, scaled * w + b),
                             ("x", "minus its mean", "by its deviation: x̂", "x̂ w + b"),
                             strict=True):
    matrix(ax, values, title, "channel", limit=6, digits=1)
picture(fig)
print("means of x̂:     ", np.abs(scaled.mean(axis=-1)).round(9))
print("deviations of x̂:", scaled.std(axis=-1))

# %% [markdown]
# Channel 1 has scale 0: whatever comes in, 0 goes out, and the next layer is deaf to it.
# Channel 2 has an offset of 3, which is there for every token. Here is the library's code. The
# part that you may not expect is for rows so large that their squares overflow float32.

# %%
show(F.layer_norm, F._standardise)

# %% [markdown]
# ## Everything moves
#
# Now backwards. One row of eight channels, scale 1 and offset 0. We move one channel of the
# input by 0.01. How many channels of the output move?

# %%
guess = ...

# %%
C = 8
row = rng.standard_normal(C)


def standardise(row):
    return F.layer_norm(row, np.ones(C), np.zeros(C))[0]


moved = row.copy()
moved[3] += 0.01
reveal(guess, int((standardise(moved) != standardise(row)).sum()), "of 8")

h = 1e-5
jacobian = np.stack([(standardise(row + h * e) - standardise(row - h * e)) / (2 * h)
                     for e in np.eye(C)], axis=1)         # [i, j]: xhat_i moves with x_j
fig, (ax,) = figure(width=4.4, height=3.6)
matrix(ax, jacobian, "The Jacobian, measured: how x̂_i moves with x_j", "j", "i")
picture(fig)

# %% [markdown]
# All of them. The mean and the deviation belong to the whole row, so each input reaches each
# output. The **Jacobian** $J$ `(C, C)` holds all the rates.
#
# Is there a direction in which we can move the row so that *nothing* moves? Think of what the
# three lines take out. Then look at three moves: one channel, all channels by the same amount,
# and along $\hat x$ itself.

# %%
xhat = standardise(row)
names = ["one channel", "all the same", "along x̂"]
moves = np.stack([np.eye(C)[3] * np.sqrt(C), np.ones(C), xhat])      # three of equal length
outputs = moves @ jacobian.T

fig, axes = figure(2, width=4.2, height=2.2)
matrix(axes[0], moves, "three moves of the input", "channel", rows=names, limit=3, digits=1)
matrix(axes[1], outputs, "what the output does", "channel", rows=[""] * 3, limit=3, digits=1)
picture(fig)
for name, output in zip(names, outputs, strict=True):
    print(f"output moves by {np.linalg.norm(output):.1e}   {name}")

# %% [markdown]
# Two directions vanish. A shift of the row is taken out by the mean. A stretch of the row (a
# move along $\hat x$ makes every deviation larger by the same factor) is taken out by the
# division. (Not quite to 0: that is $\epsilon$.) Layer norm is blind to both.
#
# ## The backward, from the picture
#
# This is all we need. $J$ must do three things: pass a move on, but without its part along
# $(1, \dots, 1)$, and without its part along $\hat x$; then divide by the deviation, as the
# forward pass did. To remove the part along a vector $v$ with $v \cdot v = C$, subtract
# $\frac{1}{C} v v^\top$:
#
# $$ J = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( I - \frac1C \mathbf{1}\mathbf{1}^\top
#        - \frac1C \hat x \hat x^\top \Big) $$
#
# A guess from a picture can be wrong. Here are the three terms, and the largest difference
# between their sum and what we measured.

# %%
rstd = 1 / np.sqrt(row.var() + 1e-5)
terms = {"I": np.eye(C), "minus 1 1ᵀ / C": -np.ones((C, C)) / C,
         "minus x̂ x̂ᵀ / C": -np.outer(xhat, xhat) / C}
fig, axes = figure(4, width=2.2, height=2.6)
for ax, (title, term) in zip(axes, terms.items(), strict=False):
    matrix(ax, rstd * term, title, "j", "i", limit=rstd, signed=True, digits=None)
matrix(axes[3], jacobian, "measured", "j", "i", limit=rstd, digits=None)
picture(fig)
difference = np.abs(rstd * sum(terms.values()) - jacobian).max()
print(f"the sum of the three against what we measured: {difference:.1e}")

# %% [markdown]
# With a scale, $y = \hat x \cdot w + b$, the gradient that arrives at $\hat x$ is
# $g = dy \cdot w$ `(C,)`. $J$ is symmetric, so $dx = J^\top g = J g$, and the two products with
# vectors are means:
#
# $$ dx = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( g - \text{mean}(g)
#         - \hat x \cdot \text{mean}(g \cdot \hat x) \Big) $$
#
# Three terms for three pictures. And the two weights, over all rows $n$, as in lesson 1:
#
# $$ dw_c = \sum_n dy_{nc}\, \hat x_{nc}, \qquad db_c = \sum_n dy_{nc} $$

# %%
show(F.layer_norm_backward)

# %%
x = rng.standard_normal((6, C))
w, b = 1 + 0.3 * rng.standard_normal(C), rng.standard_normal(C)
print(minifpt.gradcheck(F.layer_norm, F.layer_norm_backward, (x, w, b)))


# %% [markdown]
# ## Broken, and hard to see
#
# We leave out a term, or write a sum for a mean, and ask how wrong $dx$ becomes: the length of
# the error divided by the length of $dx$. We do it with 8 channels and with 768, as GPT-2 has.
# The gradient `dy` that arrives is random.
#
# With 768 channels, by how many percent is $dx$ wrong when its mean term is missing?

# %%
guess = ...


# %%
def broken_dx(dy, x, missing):
    """Layer norm's dx with scale 1, with one thing wrong."""
    _, (xhat, rstd, _) = F.layer_norm(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]))
    mean_g = dy.mean(axis=-1, keepdims=True)
    mean_gx = (dy * xhat).mean(axis=-1, keepdims=True)
    if missing == "no mean term":
        mean_g = 0
    if missing == "no x̂ term":
        mean_gx = 0
    if missing == "sum for mean":
        mean_g, mean_gx = mean_g * x.shape[-1], mean_gx * x.shape[-1]
    return (dy - mean_g - xhat * mean_gx) * rstd


def error(C, missing, common):
    """How wrong dx is; ``common`` is what all channels of dy have in common."""
    rng = np.random.default_rng(C)
    x = rng.standard_normal((32, C))
    xhat = F.layer_norm(x, np.ones(C), np.zeros(C))[0]
    dy = rng.standard_normal((32, C)) + common * (1 + xhat)
    right = broken_dx(dy, x, "nothing")
    return np.linalg.norm(broken_dx(dy, x, missing) - right) / np.linalg.norm(right)


reveal(guess, 100 * error(768, "no mean term", 0), "%")

channels = [8, 16, 32, 64, 128, 256, 512, 768]
fig, axes = figure(2, width=4, height=2.9, sharey=True)
for ax, common, title in ((axes[0], 0, "dy is random"),
                          (axes[1], 1, "dy leans along 1 and x̂")):
    for missing, style in (("no mean term", "o-"), ("no x̂ term", "s--"),
                           ("sum for mean", "^-")):
        errors = [error(C, missing, common) for C in channels]
        ax.loglog(channels, errors, style, markersize=4, label=missing)
    ax.set(xlabel="channels", title=title, xticks=channels[::2] + [768],
           xticklabels=channels[::2] + [768])
    ax.minorticks_off()
axes[0].set_ylabel("error of dx, relative")
axes[1].legend()
picture(fig)

# %% [markdown]
# On the left, a missing term fades as the rows grow. Random numbers average out: the mean of
# $C$ of them is about $1/\sqrt{C}$. In a training run you would hardly see it, and a test that
# allows five percent would pass. On the right, `dy` has a part along the two directions that
# must be removed, and then the error is large however many channels there are.
#
# Two lessons for tests: let the tolerance be that of float64, not of hope; and choose data that
# has what the term is there to remove.
#
# ## What the scale can steer
#
# Here is what layer norm does for a frozen model. One head of **attention**: each token looks
# at itself and at those before it, with weights that sum to 1. (How it works is lesson 4; here
# we only look at the map.) It reads the output of a layer norm. Its own weight $W$ `(C, 3C)` is
# random and stays as it is: frozen. We train the scale alone, 16 numbers, so that the *last*
# token looks at a token of our choice.
#
# The gradient is the central difference of lesson 1, with nothing derived. That is too slow for
# a model, but fine for 16 numbers.

# %%
C, T = 16, 6
rng = np.random.default_rng(2)
tokens = rng.standard_normal((1, T, C))                   # (B, T, C)
W = rng.standard_normal((C, 3 * C)) / np.sqrt(C)          # frozen


def attention_map(scale):
    """scale (C,) -> A (T, T): row t says where token t looks."""
    a, _ = F.layer_norm(tokens, scale, np.zeros(C))
    qkv, _ = F.linear(a, W, np.zeros(3 * C))
    _, (_, _, _, A, _) = F.attention(qkv, n_head=1)
    return A[0, 0]


def train_scale(target, steps=100, lr=0.1, h=1e-4):
    scale = np.ones(C)

    def loss(scale):
        return -np.log(attention_map(scale)[-1, target])  # cross-entropy, as in lesson 2

    for _ in range(steps):
        gradient = np.array([(loss(scale + h * e) - loss(scale - h * e)) / (2 * h)
                             for e in np.eye(C)])
        scale = scale - lr * gradient
    return scale


before = attention_map(np.ones(C))[-1]
print("the last token looks at", before.round(2))

# %% [markdown]
# Token 3 gets the smallest share. Can the scale alone bring the last token to look at it? What
# share will token 3 get, in percent, after 100 steps?

# %%
guess = ...

# %%
targets = (3, 0, 5)
scales = [train_scale(target) for target in targets]
reveal(guess, 100 * float(attention_map(scales[0])[-1, 3]), "%")

fig, axes = figure(4, 2, width=2.35, height=2.2)
for k, (scale, title) in enumerate(zip(
        [np.ones(C), *scales],
        ["before", *(f"trained: look at token {t}" for t in targets)], strict=True)):
    matrix(axes[k], attention_map(scale), title, "is looked at", limit=1, digits=None)
    axes[4 + k].bar(range(C), scale, color=color.trained if k else color.frozen)
    axes[4 + k].axhline(1, color=color.ink, linewidth=0.8, linestyle=":")
    axes[4 + k].set(xlabel="channel", ylim=(-1.8, 3.2))
axes[0].set_ylabel("token looks")
axes[4].set_ylabel("scale")
picture(fig)

# %% [markdown]
# Same tokens, same $W$, three different places to look: read the last row of each map. The
# other rows changed as well; nobody asked them not to. The head scores a pair of tokens by sums
# over their channels. Turn up the channels in which the last token and the chosen one agree, turn
# down those in which they do not, and the score of this pair wins.
#
# This is how a Frozen Pretrained Transformer learns: scales, offsets, positions, and the two
# layers at its ends. Our example is smaller than that in one way that matters. It has a single
# sequence, and 16 numbers can learn a single sequence by heart. A scale that is good for all
# sequences needs frozen weights in which there is something to turn up. Whether language leaves
# such weights behind is the paper's question.
#
# ## Exercises
#
# Solutions are in `solutions/03_layer_norm.py`.
#
# **1.** The offset's gradient, for activations `(B, T, C)`.

# %%
def offset_gradient(dy):
    """dy (B, T, C) -> db (C,)"""
    return ...


check("offset_gradient", offset_gradient)


# %% [markdown]
# **2.** Someone normalises over the *tokens*: `x.mean(axis=0)` for $x$ `(T, C)`. The numbers look
# fine. But a language model predicts the next token, and no output may know of a later token.
# Write the check that finds out: does any output row of `op` depend on an input row after it?
# You will be asked about several operations.

# %%
def sees_the_future(op, x):
    """op: (T, C) -> (T, C), x (T, C) -> True if an output row depends on a later input row"""
    return ...


check("sees_the_future", sees_the_future)


# %% [markdown]
# **3.** **RMS norm** leaves out the mean: $\hat x = x / \sqrt{\text{mean}(x^2) + \epsilon}$,
# $y = \hat x \cdot w$. To which direction is it blind, and to which no longer? Write it, then
# its backward.

# %%
def rms_norm(x, w, eps=1e-5):
    """x (N, C), w (C,) -> y (N, C)"""
    return ...


check("rms_norm", rms_norm)


# %%
def rms_norm_backward(dy, x, w, eps=1e-5):
    """dy (N, C), x (N, C), w (C,) -> dx (N, C), dw (C,)"""
    dx = ...
    dw = ...
    return dx, dw


check("rms_norm_backward", rms_norm_backward)


# %% [markdown]
# **4.** *Open.* Of all layer norms in the shipped trunk, whose scale moves most while bit XOR is
# learned? First say what "moves most" means to you, as a function of the parameters before and
# after. Then measure: set `RUN` to `True`. Is it the same one with another seed? With a random
# trunk, `minifpt.GPT2(trunk.config, seed=1)`?

# %%
def most_moved_scale(before, after):
    """Two dictionaries, parameter's name -> array -> the name of the scale that moved most.

    A layer norm's scale is called "trunk.h.0.ln_1.weight", its offset "trunk.h.0.ln_1.bias".
    The dictionaries hold all other parameters too.
    """
    return ...


check("most_moved_scale", most_moved_scale)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    trunk = minifpt.GPT2.from_pretrained("minigpt-language")
    task = minifpt.tasks.get("bit-xor")
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
    model.freeze(minifpt.FreezeMask.fpt())
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    minifpt.train(model, task, steps=500, batch_size=16)
    after = {name: p.data for name, p in model.named_parameters()}
    print(most_moved_scale(before, after))
