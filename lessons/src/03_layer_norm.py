# %% [markdown]
# # 3. Layer norm
#
# **A small operation with two vectors of weights stands in front of every part of a GPT-2. What is
# it for? And how can these few numbers steer a model in which all else is frozen?**
#
# After this lesson you can
#
# - say what layer norm does to a row, and to which two changes of the row it is blind;
# - derive its backward from those two changes, and say what each term is for;
# - make frozen attention look at another token by training nothing but a layer norm's scale.
#
# **What we know by now.** A layer, a softmax and a loss have gradients that we can derive, check
# and train on. A model of one layer learns digits. A transformer has many layers in a row.
#
# **The question:** What keeps twelve blocks in size?
#
# You need [lesson 2](02_softmax_and_cross_entropy.ipynb). It takes about 60
# minutes: 35 to read and run, 10 for your own file, 15 for two exercises. What follows under *Going
# further* is not needed later.

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.layers import Activation, LayerNorm, Linear

# %% [markdown]
# ## Twelve blocks in a row
#
# A **block** reads the activations $x$ `(T, C)`: $T$ tokens, the letters or words of a text, with
# $C$ numbers each, its **channels**. It adds what it computed: $x \leftarrow x + f(x)$. GPT-2 base
# has twelve of them. Ours are random: $f(x) = \text{gelu}(x\,w_1)\,w_2$ with $w_1$ `(C, 4C)` and
# $w_2$ `(4C, C)`, drawn so that a product keeps the size of its input. (GELU is an activation
# function, as tanh is; lesson 6 has its formula.)
#
# The activations start with a **standard deviation** of 1: the root of the mean square of their
# distance from their mean. How large is it after twelve blocks without any layer norm?

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
    curves({f"weights x {size}": deviations(layer_norm, size) for size in (2.0, 1.0, 0.5)},
           "with layer norm" if layer_norm else "without layer norm", "blocks", ax=ax, log="y",
           ylabel="standard deviation of x", styles=("^-", "o-", "s-"),
           inks=(color.ochre, color.ink, color.teal))
picture(fig)

# %% [markdown]
# Without layer norm each block multiplies the size of $x$ by some factor, a straight line on this
# scale. With layer norm each block *adds* something whose size does not depend on what came before.
# With weights of size 1 that matters less than with 2. (One draw of the weights.)
#
# ## Three lines
#
# **Layer norm** works on each row $x$ `(C,)` alone. It subtracts the row's mean, divides by the
# row's standard deviation, and then multiplies by a **scale** $w$ `(C,)` and adds a **bias** $b$
# `(C,)`. Scale and bias are its weights.
#
# $$ \mu = \frac1C \sum_c x_c, \qquad \sigma^2 = \frac1C \sum_c (x_c - \mu)^2 $$
#
# $$ \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad y = \hat x \cdot w + b $$
#
# $\sigma^2$ is the **variance**, the mean of the squared distances from $\mu$. A dot between two
# rows multiplies entry by entry. ($\epsilon$ is a small number that keeps the divisor away from 0.)
# Here it is on two rows of four channels, step by step:

# %%
rng = np.random.default_rng(3)
x = np.array([[1.0, 2.0, 3.0, 6.0], [-4.0, 0.0, 0.0, 2.0]])
w, b = np.array([1.0, 0.0, 1.0, 2.0]), np.array([0.0, 0.0, 3.0, 0.0])
centred = x - x.mean(axis=-1, keepdims=True)
scaled = centred / np.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + 1e-5)

fig, axes = figure(4, width=2.3, height=1.7)
for ax, values, title in zip(axes, (x, centred, scaled, scaled * w + b),
                             ("x", "mean subtracted", "divided by deviation: x̂", "x̂ w + b"),
                             strict=True):
    matrix(ax, values, title, "channel", limit=6, digits=1)
picture(fig)

# %% [markdown]
# Channel 1 has scale 0: whatever comes in, 0 goes out. Channel 2 has a bias of 3. Here is the
# library's code.

# %%
show(F.layer_norm, lines=("centred =", "return"))

# %% [markdown]
# ## Everything moves
#
# Now the way back. Take one row of eight channels, with scale 1 and bias 0. We move one channel of
# the input by 0.01. How many channels of the output move?

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

# %% [markdown]
# All of them: the mean and the deviation belong to the whole row. The **Jacobian** $J$ `(C, C)`
# holds all the rates: $\hat x_i$ moves with $x_j$ at the rate $J_{ij}$. The cell has measured it
# with lesson 1's central difference.
#
# Can we move the row so that the output does *not* move? Three moves of one length: one channel,
# all channels by the same amount, and along $\hat x$ itself.

# %%
xhat = standardise(row)
for name, move in (("one channel", np.eye(C)[3] * np.sqrt(C)), ("all the same", np.ones(C)),
                   ("along x̂", xhat)):
    print(f"output moves by {np.linalg.norm(jacobian @ move):.1e}   {name}")

# %% [markdown]
# Two of the three moves vanish. Subtracting the mean removes a shift of the row. The division
# removes a stretch: a move along $\hat x$ makes all distances from the mean larger by one factor.
# (What is left along $\hat x$ is due to $\epsilon$, the other rest is rounding.) Layer norm is
# blind to both.
#
# ## The backward, from what layer norm does not see
#
# In this paragraph $u \cdot v$ is the sum of products. The vectors $\mathbf 1 = (1, \dots, 1)$ and
# $\hat x$ are at right angles, $\mathbf 1 \cdot \hat x = 0$, because $\hat x$ has mean 0. So a move
# splits into a part along each and a rest. The two parts vanish. The rest changes neither the mean
# nor, to first order, the deviation, so the forward pass only divides it by the deviation. The part
# of a move $m$ along $v$ is $v\,(v \cdot m) / (v \cdot v)$, and both vectors have $v \cdot v = C$.
# So to remove it, subtract $\frac{1}{C} v v^\top$ from the identity $I$:
#
# $$ J = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( I - \frac1C \mathbf{1}\mathbf{1}^\top
#        - \frac1C \hat x \hat x^\top \Big) $$
#
# Here are the three terms, and their sum against the measured $J$.

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
# With scale and bias, $y = \hat x \cdot w + b$, the gradient that arrives at $\hat x$ is $g = dy
# \cdot w$ `(C,)`. Each $x_j$ reaches the loss through all $\hat x_i$, so $dx_j = \sum_i g_i
# J_{ij}$. That is $dx = J^\top g$, and as $J$ is symmetric, $J g$. Its products with the two
# vectors, divided by $C$, are means:
#
# $$ dx = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( g - \text{mean}(g)
#         - \hat x \cdot \text{mean}(g \cdot \hat x) \Big) $$
#
# The gradients of scale and bias are sums over all rows $n$, as in lesson 1:
#
# $$ dw_c = \sum_n dy_{nc}\, \hat x_{nc}, \qquad db_c = \sum_n dy_{nc} $$
#
# In the library the formula for $dx$ is one line:

# %%
show(F.layer_norm_backward, lines=("if need[0]", "return"))
x = rng.standard_normal((6, C))
w, b = 1 + 0.3 * rng.standard_normal(C), rng.standard_normal(C)
print(minifpt.gradcheck(F.layer_norm, F.layer_norm_backward, (x, w, b)))


# %% [markdown]
# ## What the scale can steer
#
# In a frozen model, take one head of **attention**: each token looks at itself and at those before
# it, with shares that sum to 1. (Lesson 4 explains how.) The head reads the output of a layer norm.
# Its own weight $W$ `(C, 3C)` is random and frozen. We train the scale alone, 16 numbers, by
# central differences, so that the *last* token looks at a token of our choice.

# %%
C, T = 16, 6
rng = np.random.default_rng(2)
tokens = rng.standard_normal((1, T, C))                   # (B, T, C)
W = rng.standard_normal((C, 3 * C)) / np.sqrt(C)          # frozen


def attention_map(scale, tokens=tokens):
    """scale (C,), tokens (1, T, C) -> A (T, T): row t says where token t looks."""
    a, _ = F.layer_norm(tokens, scale, np.zeros(C))
    qkv, _ = F.linear(a, W, np.zeros(3 * C))
    _, cache = F.attention(qkv, n_head=1)
    return cache.probabilities[0, 0]


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
# Token 3 gets the smallest share. Can the scale alone make the last token look at it? What share
# does token 3 get after 100 steps, in percent?

# %%
guess = ...

# %%
targets = (3, 0, 5)
scales = [train_scale(target) for target in targets]
reveal(guess, 100 * float(attention_map(scales[0])[-1, 3]), "%")

fig, axes = figure(4, width=2.35, height=2.2)
for ax, scale, title in zip(axes, [np.ones(C), *scales], (
        "before", *(f"trained: look at {t}" for t in targets)), strict=True):
    matrix(ax, attention_map(scale), title, "is looked at", "token looks", limit=1, digits=None)
picture(fig)
print("the scale for token 3:", scales[0].round(1))

# %% [markdown]
# Same tokens, same $W$, three different tokens looked at: read the last row of each map.
#
# Each of the 16 numbers decides how much its channel counts, and a negative one turns a sign around
# (*Going further* has the formula). In a Frozen Pretrained Transformer, too, scales, biases,
# positions and the input layer decide what the frozen weights get to see.
#
# ## Twelve blocks train, on your own file
#
# Write `layer_norm` and `layer_norm_backward` in `mine.py` (10 minutes). Now twelve blocks learn
# digits, with 32 channels, two weights `(C, C)`, and ReLU, $\max(x, 0)$, between them. The weights
# have size 2, as in the upper lines of the first picture. They train with layer norms at one
# learning rate, and without any at three. A model that knows nothing has $\log 10 = 2.3$ nats. (You
# need not read the cell: layers forward, then back in reverse order.)

# %%
digits = minifpt.tasks.get("digits")
images, labels = digits.images(np.random.default_rng(0), 256, "train")
images = images.reshape(256, -1).astype(float)            # (N, 784)


def train_stack(layer_norm, rate, steps=40, C=32, blocks=12, seed=0):
    """-> the loss at each step; it stops where the loss is no longer a number"""
    rng, losses = np.random.default_rng(seed), []

    def draw(n, m, size=2.0):
        layer = Linear(n, m, np.float64)
        layer.weight.data[:] = size * rng.standard_normal((n, m)) / np.sqrt(n)
        return layer

    first, last = draw(784, C, 1.0), draw(C, 10, 0.1)
    stack = [[*([LayerNorm(C, dtype=np.float64)] if layer_norm else []),
              draw(C, C), Activation("relu"), draw(C, C)] for _ in range(blocks)]
    parameters = [p for layer in sum(stack, [first, last]) for p in layer.parameters()]
    for _ in range(steps):
        s, first_cache = first.forward(images)
        caches = []                                       # of all layers of the blocks
        for block in stack:
            a = s
            for layer in block:
                a, cache = layer.forward(a)
                caches.append(cache)
            s = s + a
        scores, last_cache = last.forward(s)
        loss, loss_cache = F.cross_entropy(scores, labels)
        losses.append(loss)
        if not np.isfinite(loss):
            break
        ds = last.backward(F.cross_entropy_backward(1.0, loss_cache), last_cache)
        for block in stack[::-1]:
            da = ds
            for layer in block[::-1]:
                da = layer.backward(da, caches.pop())
            ds = ds + da
        first.backward(ds, first_cache)
        for p in parameters:
            p.data -= rate * p.grad
            p.grad = None
    return np.array(losses)


with written("mine.py", "linear", "linear_backward", "layer_norm", "layer_norm_backward",
             "cross_entropy", "cross_entropy_backward") as whose, np.errstate(all="ignore"):
    with_norm = [train_stack(True, 0.01, seed=seed) for seed in range(5)]
    without = {rate: train_stack(False, rate) for rate in (1e-2, 1e-6, 1e-8)}
for rate, losses in without.items():
    print(f"without, rate {rate:.0e}: loss {losses[0]:,.0f} at the start, after {len(losses) - 1} "
          f"steps {losses[-1]:,.0f}")
curves({"with layer norm": np.mean(with_norm, axis=0), "without, rate 1e-08": without[1e-8]},
       f"Twelve blocks on digits, mean of five seeds and one run\n{whose}", ylabel="loss (nats)",
       log="y", inks=(color.trained, color.ochre))
print("with layer norm, after 39 steps, five seeds:", *(f"{run[-1]:.2f}" for run in with_norm))

# %% [markdown]
# Without layer norm the loss starts enormous. At the two larger rates it is soon no longer a
# number. At the smallest one it falls, to a thousand times that of a model that knows nothing.
# (Three rates, one run each. Weights of size 1 we did not train.)
#
# ## Exercises
#
# **1.** Layer norm is blind to two changes of a row. Use them: return a different array for which
# layer norm, with scale 1 and bias 0, gives the same output. *Every* number must differ from the
# old one by at least 0.1. (You need not use both.)

# %%
def unseen_change(x):
    """x (T, C), numbers between -2 and 2 -> another (T, C), the same to layer norm"""
    return ...


check("unseen_change", unseen_change)


# %% [markdown]
# **2.** Someone normalises over the *tokens*: `x.mean(axis=0)` for $x$ `(T, C)`. But a language
# model predicts the next token, so no output may depend on a later one. Write the check: does any
# output row of `op` depend on any input row after it? It may do so very little, and through a
# single channel. Some operations read a row through a layer norm, so mind how you move it.

# %%
def sees_the_future(op, x):
    """op: (T, C) -> (T, C), x (T, C) -> True if an output row depends on a later input row"""
    return ...


check("sees_the_future", sees_the_future)


# %% [markdown]
# **3.** **RMS norm** leaves out the mean: $\hat x = x / \sqrt{\text{mean}(x^2) + \epsilon}$,
# $y = \hat x \cdot w$. To which change of a row is it still blind, and to which no longer? Write
# it, then its backward.

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
# ## Going further
#
# **How 16 numbers steer.** Softmax makes the shares from scores, one number for each pair of tokens
# (lesson 4). The score of tokens $t$ and $s$ is a sum over all pairs of channels. With $w$ the
# scale, $\hat x$ `(T, C)` the normalised tokens, and $M$ `(C, C)` made of the frozen $W$,
#
# $$ \text{score}_{ts} = \frac{1}{\sqrt C}
#    \sum_{c,\,d} w_c\, w_d\; \hat x_{tc}\, M_{cd}\, \hat x_{sd} $$
#
# The scale cannot change $M$. But it sits in front of every term, as $w_c w_d$.
#
# **Broken, and hard to see.** We leave out a term of $dx$, or write a sum for a mean. The error is
# the length of the difference divided by the length of $dx$, and the `dy` that arrives is random.
# With GPT-2's 768 channels, by how many percent is $dx$ wrong when its mean term is missing?

# %%
guess = ...


# %%
def broken_dx(dy, x, missing):
    """Layer norm's dx with scale 1, with one thing wrong."""
    _, cache = F.layer_norm(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]))
    xhat, rstd = cache.xhat, cache.rstd
    mean_g = dy.mean(axis=-1, keepdims=True)
    mean_gx = (dy * xhat).mean(axis=-1, keepdims=True)
    a, b = {"nothing": (1, 1), "no mean term": (0, 1), "no x̂ term": (1, 0),
            "sum for mean": 2 * [x.shape[-1]]}[missing]
    return (dy - a * mean_g - b * xhat * mean_gx) * rstd


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
for ax, common, title in zip(axes, (0, 1), ("dy is random", "dy leans along 1 and x̂"), strict=True):
    curves({missing: [error(C, missing, common) for C in channels]
            for missing in ("no mean term", "no x̂ term", "sum for mean")}, title, "channels",
           "error of dx, relative", x=channels, ax=ax, log="xy", styles=("o-", "s--", "^-"))
picture(fig)

# %% [markdown]
# On the left, the error of a missing term fades as the rows grow: the mean of $C$ random numbers is
# about $1/\sqrt{C}$, and with 768 channels a test that allows five percent passes the broken
# backward. On the right, `dy` has a part along the two directions that must be removed, and the
# error is large however many channels there are. So a test needs a tolerance as small as float64
# allows, and data that contain what the term is there to remove.
#
# **4.** *Open.* Of all layer norms in the shipped trunk, whose scale moves most while bit XOR is
# learned? First decide what "moves most" means, and write it as a function of the parameters before
# and after. (A scale that was large and stayed so has not moved; one that goes up in half of its
# channels and down in the others has.) Then measure: set `RUN` to `True`. Is it the same one with
# another seed? And with a random trunk, `"random"`?

# %%
def most_moved_scale(before, after):
    """Two dictionaries, parameter's name -> array -> the name of the scale that moved most.

    The scales are called "trunk.h.0.ln_1.weight", "trunk.h.0.ln_2.weight" and so on, and
    "trunk.ln_f.weight" at the trunk's end; each has a bias beside it.  The dictionaries hold all
    other parameters too.
    """
    return ...


check("most_moved_scale", most_moved_scale)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    task = minifpt.tasks.get("bit-xor")
    model = minifpt.FPT.for_task(task, "minigpt-language", seed=0)
    model.freeze(minifpt.FreezeMask.fpt())
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    minifpt.train(model, task, steps=500, batch_size=16, lr=1e-3)
    after = {name: p.data for name, p in model.named_parameters()}
    print(most_moved_scale(before, after))

# %% [markdown]
# **The picture to keep:** how each output of a row moves with each input, as a sum of three
# matrices.
#
# **The sentence to remember:** *Layer norm is blind to a shift and to a stretch of a row; its
# trained scale says how much each channel counts for the frozen weights that come next.*
#
# **What we do not know yet.** In the twelve blocks each row went alone. Only the map of attention,
# which we borrowed, led from row to row. How does a token learn anything from another one?
#
# **Next**: [lesson 4](04_self_attention.ipynb), where the map of this lesson comes from.
