# %% [markdown]
# # 3. Layer norm
#
# **A small operation with two vectors of weights stands in front of every part of a GPT-2. What is
# it for? And how does a gradient get back through it?**
#
# After this lesson you can
#
# - say what layer norm does to a row, and to which changes it is blind;
# - derive its backward from these, and say what each term is for;
# - train twelve blocks on your own layer norm.
#
# **What we know by now.** A layer, a softmax and a loss have gradients that we can derive, check
# and train on. A model of one layer learns digits. A transformer has many layers.
#
# **The question:** What keeps twelve blocks in size?
#
# You need [lesson 2](02_softmax_and_cross_entropy.ipynb).

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.layers import MLP, Layer, LayerNorm, Linear

# %% [markdown]
# ## Twelve blocks in a row
#
# A **block** reads $x$ `(T, C)`, the **activations**: $T$ tokens, the letters or words of a text,
# with $C$ numbers each, its **channels**. It adds what it computed: $x \leftarrow x + f(x)$. GPT-2
# base has twelve of them. Ours are random: $f(x) = \text{gelu}(x\,w_1)\,w_2$ with $w_1$ `(C, 4C)`
# and $w_2$ `(4C, C)`, drawn so that a product keeps the size of its input, and then multiplied by a
# *factor*. (GELU is an activation function, as tanh is. Lesson 6 has its formula.)
#
# The activations start with a **standard deviation** of 1: the root of the mean square of their
# distance from their mean. How large is it after twelve blocks with the factor 1?

# %%
guess = ...                                               # a number


# %%
class Block(Layer):
    def __init__(self, has_norm, C=32):
        self.norm = LayerNorm(C, dtype=float) if has_norm else None
        self.mlp = MLP(C, dtype=float)                    # gelu(x w1) w2

    def forward(self, x):
        a, norm = self.norm.forward(x) if self.norm else (x, None)
        y, mlp = self.mlp.forward(a)
        return x + y, (norm, mlp)

    def backward(self, dx, cache):
        da = self.mlp.backward(dx, cache[1])
        return dx + (self.norm.backward(da, cache[0]) if self.norm else da)


def draw(layers, factor, seed=0):                         # gives layers random matrices
    rng = np.random.default_rng(seed)
    parameters = [p for layer in layers for p in layer.parameters()]
    for p in parameters:
        if p.data.ndim == 2:
            p.data[:] = factor * rng.standard_normal(p.data.shape) / np.sqrt(len(p.data))
    return parameters


def deviations(has_norm, factor):
    blocks = [Block(has_norm) for _ in range(12)]
    draw(blocks, factor)
    xs = [np.random.default_rng(1).standard_normal((200, 32))]        # (T, C)
    for block in blocks:
        xs.append(block.forward(xs[-1])[0])
    return [float(x.std()) for x in xs]


reveal(guess, deviations(False, 1)[-1])
curves({f"{name}, factor {factor}": deviations(has_norm, factor)
        for name, has_norm in (("without", False), ("with layer norm", True)) for factor in (2, 1)},
       "Twelve random blocks, without and with layer norm", "blocks", "standard deviation of x",
       log="y", styles=("^-", "o-", "^--", "o--"),
       inks=(color.ochre, color.ochre, color.ink, color.ink))

# %% [markdown]
# Without layer norm each block *multiplies* the size of $x$, a straight line on this scale. With
# layer norm each block *adds* something whose size does not depend on what came before. (One draw
# of the weights.)
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
# ($\epsilon$ is a small number that keeps the divisor away from 0.) Here is the library's code, and
# what scale 1 and bias 0 give for the rows (1, 2, 3, 6) and (-4, 0, 0, 2).

# %%
show(F.layer_norm, lines=("centred =", "return"))


def layer_norm(x):                                        # with scale 1 and bias 0
    return F.layer_norm(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]))[0]


print(layer_norm(np.array([[1.0, 2.0, 3.0, 6.0], [-4.0, 0.0, 0.0, 2.0]])).round(2))

# %% [markdown]
# ## To what is it blind?
#
# Now the way back. Take one row of eight channels, with scale 1 and bias 0, and move it a little:
# one channel alone, or all channels by the same amount, or along $\hat x$ itself. How many of these
# three moves leave the output as it is?

# %%
guess = ...                                               # 0 to 3

# %%
C, h = 8, 1e-5
row = np.random.default_rng(3).standard_normal(C)
xhat = layer_norm(row)
jacobian = np.stack([(layer_norm(row + h * e) - layer_norm(row - h * e)) / (2 * h)
                     for e in np.eye(C)], axis=1)         # [i, j]: xhat_i moves with x_j
moves = {"one channel": np.eye(C)[3] * np.sqrt(C), "all the same": np.ones(C), "along x̂": xhat}
lengths = {name: np.linalg.norm(jacobian @ move) for name, move in moves.items()}
reveal(guess, sum(bool(length < 0.01) for length in lengths.values()))
print("the output moves by", ", ".join(f"{n:.0e} ({name})" for name, n in lengths.items()))

# %% [markdown]
# Subtracting the mean removes a shift of the row. The division removes a stretch: a move along
# $\hat x$ makes all distances from the mean larger by one factor. (What is left of it is due to
# $\epsilon$.) Layer norm is blind to both.
#
# The cell measured the **Jacobian** $J$ `(C, C)`: $\hat x_i$ moves with $x_j$ at the rate $J_{ij}$.
# Now we can write it down. The column $\mathbf 1 = (1, \dots, 1)$ is at right angles to the column
# $\hat x$, whose mean is 0, and both have $v^\top v = C$. So the part of a move $m$ along one of
# them, $v\, v^\top m / v^\top v$, is $\frac1C v\, v^\top m$. Both parts vanish. The rest of a small
# move is at right angles to both, so it changes neither mean nor deviation, and is divided by the
# deviation:
#
# $$ J = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( I - \frac1C \mathbf{1}\mathbf{1}^\top
#        - \frac1C \hat x \hat x^\top \Big) $$

# %%
rstd = 1 / np.sqrt(row.var() + 1e-5)
terms = {"I": np.eye(C), "minus 1 1ᵀ / C": -np.ones((C, C)) / C,
         "minus x̂ x̂ᵀ / C": -np.outer(xhat, xhat) / C, "their sum: measured": jacobian / rstd}
fig, axes = figure(4, width=2.2, height=2.6)
for ax, (title, term) in zip(axes, terms.items(), strict=True):
    matrix(ax, rstd * term, title, "j", "i", limit=rstd, signed=True, digits=None)
picture(fig)

# %% [markdown]
# With scale and bias, the gradient that arrives at $\hat x$ is $g = dy \cdot w$ `(C,)`. The chain
# rule gives $dx = J^\top g$, and $J$ is symmetric. $\frac1C \mathbf 1^\top g$ and $\frac1C \hat
# x^\top g$ are means:
#
# $$ dx = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( g - \text{mean}(g)
#         - \hat x \cdot \text{mean}(g \cdot \hat x) \Big) $$
#
# Scale and bias collect from all rows $n$, as in lesson 1: $dw_c = \sum_n dy_{nc}\, \hat x_{nc}$
# and $db_c = \sum_n dy_{nc}$.

# %%
print(minifpt.gradcheck(F.layer_norm, F.layer_norm_backward, (row[None], xhat, row)))

# %% [markdown]
# ## Twelve blocks train, on your own file
#
# Write `layer_norm` and `layer_norm_backward` in `mine.py`. The first returns $y$ and
# `LayerNormCache(xhat, rstd, w)`, where `rstd` is one over the root.
#
# Now twelve blocks with the factor 2 learn digits. The model's last layer begins with zeros, so
# that the loss begins with $\log 10$. Without layer norm, can a smaller learning rate help? How
# many of four rates bring the loss below 2 in 40 steps?

# %%
guess = ...                                               # 0 to 4

# %%
images, labels = minifpt.tasks.get("digits").images(np.random.default_rng(0), 256, "train")


def train_stack(has_norm, rate, seed=0):                  # -> the loss at each step
    first, last = Linear(784, 32, float), Linear(32, 10, float)       # last begins with zeros
    layers, losses = [first, *(Block(has_norm) for _ in range(12)), last], []
    parameters = draw(layers[:-1], 2, seed) + last.parameters()
    for _ in range(40):
        x, caches = images.reshape(256, -1).astype(float), []
        for layer in layers:
            x, cache = layer.forward(x)
            caches.append(cache)
        loss, cache = F.cross_entropy(x, labels)
        losses.append(loss)
        dx = F.cross_entropy_backward(1.0, cache)
        for layer in layers[::-1]:
            dx = layer.backward(dx, caches.pop())
        for p in parameters:
            p.data -= rate * p.grad
            p.grad = None
    return losses


with written("mine.py", "linear", "linear_backward", "layer_norm",
             "layer_norm_backward") as whose, np.errstate(all="ignore"):
    runs = {"with layer norm": [train_stack(True, 1e-2, seed) for seed in range(5)]}
    runs |= {f"without, rate {rate:.0e}": [train_stack(False, rate)]
             for rate in (1e-2, 1e-6, 1e-9, 1e-12)}
reveal(guess, sum(min(losses[0]) < 2 for losses in [*runs.values()][1:]))
for name, several in runs.items():
    print(f"{name:20} loss at the end:", *(f"{losses[-1]:.2f}" for losses in several))
curves({name: several[0] for name, several in runs.items()},
       f"Twelve blocks learn digits\n{whose}", ylabel="loss (nats)", log="y", ylim=(0.1, 1e8),
       styles=("-", "-", "--", "-.", ":"), inks=(color.trained, *4 * [color.ochre]))

# %% [markdown]
# At the rate that suits blocks with layer norm, those without it soon compute `nan`. Smaller rates
# make the loss rise, or hardly move it. (One run for each rate, five seeds with layer norm.)
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
# **2.** **RMS norm** leaves out the mean: $\hat x = x / \sqrt{\text{mean}(x^2) + \epsilon}$ and
# $y = \hat x \cdot w$. To which change of a row is it still blind, and to which no longer? Write
# its backward.

# %%
def rms_norm_backward(dy, x, w, eps=1e-5):
    """dy (N, C), x (N, C), w (C,) -> dx (N, C), dw (C,)"""
    return ..., ...


check("rms_norm_backward", rms_norm_backward)


# %% [markdown]
# ## Going further
#
# **Broken, and hard to see.** We leave the mean term out of $dx$. With GPT-2's 768 channels and
# random numbers, by how many percent is $dx$ wrong?

# %%
guess = ...                                               # a percentage


# %%
def broken_backward(dy, cache):
    dx, dw, db = F.layer_norm_backward(dy, cache)
    return dx + (dy * cache.w).mean(axis=-1, keepdims=True) * cache.rstd, dw, db


rng = np.random.default_rng(4)
x, dy = rng.standard_normal((2, 32, 768))
_, cache = F.layer_norm(x, np.ones(768), np.zeros(768))
right, wrong = (f(dy, cache)[0] for f in (F.layer_norm_backward, broken_backward))
reveal(guess, float(100 * np.linalg.norm(wrong - right) / np.linalg.norm(right)), "%")
for backward in (F.layer_norm_backward, broken_backward):
    report = minifpt.gradcheck(F.layer_norm, backward, (x[:2, :8], *rng.standard_normal((2, 8))))
    print(f"gradcheck: {report.max_relative_error:.0e}", "pass" if report else "FAIL")

# %% [markdown]
# The mean of many random numbers is small. So a test on wide rows that allows five percent accepts
# a wrong gradient. `gradcheck` takes short rows and allows a millionth.
#
# **How a few trained numbers steer frozen weights.** In a head of *attention* (lesson 4) each token
# looks at itself and at those before it, with shares that sum to 1. The head reads the output of a
# layer norm. Its frozen $W$ `(C, 3C)` is random, three matrices in one. We train the scale alone,
# 16 numbers, by central differences, so that the *last* token looks at token 3, which gets the
# smallest share before. What share does it get after 100 steps, in percent?

# %%
guess = ...

# %%
C, T = 16, 6
rng = np.random.default_rng(2)
tokens = rng.standard_normal((1, T, C))                   # (B, T, C)
W = rng.standard_normal((C, 3 * C)) / np.sqrt(C)          # frozen


def attention_map(scale):
    """scale (C,) -> A (T, T): row t says where token t looks."""
    a, _ = F.layer_norm(tokens, scale, np.zeros(C))
    q, k, v = np.split((a @ W)[:, None], 3, axis=-1)          # one head
    return F.attention(q, k, v)[1].probabilities[0, 0]


def train_scale(target, rate=0.1, h=1e-4):
    scale = np.ones(C)
    for _ in range(100):
        up, down = (np.array([-np.log(attention_map(scale + step * e)[-1, target])
                              for e in np.eye(C)]) for step in (h, -h))
        scale = scale - rate * (up - down) / (2 * h)
    return scale


maps = {"before": attention_map(np.ones(C))} | {
    f"trained: look at {target}": attention_map(train_scale(target)) for target in (3, 0, 5)}
reveal(guess, 100 * float(maps["trained: look at 3"][-1, 3]), "%")
fig, axes = figure(4, width=2.35, height=2.2)
for ax, (title, values) in zip(axes, maps.items(), strict=True):
    matrix(ax, values, title, "is looked at", "token looks", limit=1, digits=None)
picture(fig)

# %% [markdown]
# Same tokens, same $W$, three different tokens looked at: read the last row of each map. Each of
# the 16 numbers decides how much its channel counts.
#
# **3.** *Open.* Of all layer norms in the shipped trunk, whose scale moves most while bit XOR is
# learned? First decide what "moves most" means, and write it as a function of the parameters before
# and after. (A scale that was large and stayed so has not moved; one that goes up in half of its
# channels and down in the others has.) Then set `RUN` to `True`. Is it the same one with another
# seed? And with a random trunk, `"random"`?

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
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    minifpt.train(model, task, steps=500, batch_size=16, lr=1e-3)
    after = {name: p.data for name, p in model.named_parameters()}
    print(most_moved_scale(before, after))

# %% [markdown]
# **The picture to keep:** how each output of a row moves with each input, as a sum of three
# matrices.
#
# **The sentence to remember:** *Layer norm is blind to a shift and to a stretch of a row, so its
# backward removes these two parts from the gradient.*
#
# **What we do not know yet.** In the twelve blocks each row went alone. How does a token learn
# anything from another one?
#
# **Next**: [lesson 4](04_self_attention.ipynb), self-attention.
