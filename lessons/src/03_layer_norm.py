# %% [markdown]
# # 3. Layer norm
#
# **In front of every part of a GPT-2 stands a small operation with two vectors of parameters. What
# is it good for? And how does a gradient get back through it?**
#
# After this lesson you can
#
# - say what layer norm does to a row, and which changes of a row it does not see;
# - derive its backward from that, and say what each term is for;
# - train twelve blocks on your own layer norm.
#
# **What we know by now.** We can derive the gradients of a layer, a softmax and a loss, check them
# and train on them. One layer learned digits. A transformer has many layers.
#
# **The question:** What stops the numbers from exploding?
#
# You need [lesson 2](02_softmax_and_cross_entropy.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check, lesson
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.layers import MLP, Layer, LayerNorm, Linear

lesson.model_map("norm")

# %% [markdown]
# ## Twelve blocks in a row
#
# A **block** takes $x$ `(T, C)`, the **activations**: one row for each of $T$ tokens, with $C$
# numbers, its **channels**. It adds what it computes: $x \leftarrow x + f(x)$. GPT-2 base has
# twelve blocks. Ours are random: $f(x) = \text{gelu}(x\,w_1)\,w_2$ with $w_1$ `(C, 4C)` and $w_2$
# `(4C, C)`. (GELU is an activation function, close to $\max(0, x)$. Lesson 6 has its formula.) We
# draw the weights so that each product keeps the size of its input, and then multiply them by a
# *factor*.
#
# We measure size by the **standard deviation**: the root of the mean square of the distance from
# the mean. It begins at 1. What is it after twelve blocks, with the factor 1?

# %%
guess = ...                                               # a number


# %%
# Not to be read: random blocks, and the size of x after each.
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
    for p in [p for layer in layers for p in layer.parameters() if p.data.ndim == 2]:
        p.data[:] = factor * rng.standard_normal(p.data.shape) / np.sqrt(len(p.data))


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
       "Without layer norm, twelve blocks multiply the size", "blocks", "standard deviation of x",
       log="y", styles=("^-", "o-", "^--", "o--"),
       inks=(color.ochre, color.ochre, color.ink, color.ink))

# %% [markdown]
# Did you say 64? If $f(x)$ were as large as $x$ and unrelated to it, each block would double the
# mean square, and $\sqrt2^{\,12} = 64$. What does GELU do to it?

# %%
passed = (F.gelu(np.random.default_rng(0).standard_normal(100_000))[0] ** 2).mean()
print(f"GELU passes {passed:.2f} of the mean square on: size {np.sqrt(1 + passed) ** 12:.1f}")

# %% [markdown]
# GELU turns nearly half of the numbers into almost 0, so each block multiplies the mean square by
# 1.42 instead of 2. That is about what we saw.
#
# Without layer norm each block *multiplies* the size: a straight line on this scale, steep with the
# factor 2. With it each block *adds* something, whose size does not depend on what came before.
# (One draw.)
#
# ## The formula
#
# **Layer norm** works on each row $x$ `(C,)` alone. It subtracts the mean of the row and divides by
# its standard deviation. Then it multiplies by a **scale** $w$ `(C,)` and adds a **bias** $b$
# `(C,)`, its parameters.
#
# $$ \mu = \frac1C \sum_c x_c, \qquad \sigma^2 = \frac1C \sum_c (x_c - \mu)^2 $$
#
# $$ \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad y = \hat x \cdot w + b $$
#
# (The small $\epsilon$ keeps the divisor away from 0.) Here is the library's code, and what scale 1
# and bias 0 make of the rows (1, 2, 3, 6) and (-4, 0, 0, 2).

# %%
show(F.layer_norm, lines=("centred =", "return"))


def layer_norm(x):                                        # with scale 1 and bias 0
    return F.layer_norm(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]))[0]


print(layer_norm(np.array([[1.0, 2.0, 3.0, 6.0], [-4.0, 0.0, 0.0, 2.0]])).round(2))

# %% [markdown]
# ## What does it not see?
#
# Take one row of five channels, with scale 1 and bias 0, and move it a little in three ways: one
# channel alone, all channels by the same amount, or along $\hat x$ itself. How many of these moves
# leave the output as it is?

# %%
guess = ...                                               # 0 to 3

# %%
C, h = 5, 1e-5
row = np.random.default_rng(3).standard_normal(C)
xhat = layer_norm(row)
jacobian = np.stack([(layer_norm(row + h * e) - layer_norm(row - h * e)) / (2 * h)
                     for e in np.eye(C)], axis=1)         # [i, j]: xhat_i moves with x_j
moves = np.eye(C)[3] * np.sqrt(C), np.ones(C), xhat       # of one length
lengths = [float(np.linalg.norm(jacobian @ move)) for move in moves]
reveal(guess, sum(length < 0.01 for length in lengths))
print("the output moves by", *(f"{length:.0e}" for length in lengths))

# %% [markdown]
# If you add the same number to all channels, layer norm subtracts it again with the mean. If you
# move the row along $\hat x$, all distances from the mean grow by one factor, and layer norm
# divides it away. (What still moves is due to $\epsilon$.) But if one channel moves, the mean and
# the deviation move, too, and so do all five outputs.
#
# The cell measured the **Jacobian** $J$ `(C, C)`: $\hat x_i$ moves with $x_j$ at the rate $J_{ij}$.
# The columns $\mathbf 1 = (1, \dots, 1)$ and $\hat x$ are at right angles, because the mean of
# $\hat x$ is 0. Each has $v^\top v = C$, so the projection of a move $m$ on it is $\frac1C v\,
# v^\top m$. Layer norm sees neither part. The rest changes neither mean nor deviation, so layer
# norm only divides it by the deviation. (The panels below include the factor in front.)
#
# $$ J = \frac{1}{\sqrt{\sigma^2 + \epsilon}} \Big( I - \frac1C \mathbf{1}\mathbf{1}^\top
#        - \frac1C \hat x \hat x^\top \Big) $$

# %%
# Not to be read: a picture.
rstd = 1 / np.sqrt(row.var() + 1e-5)
terms = {"I": np.eye(C), "minus 1 1ᵀ / C": -np.ones((C, C)) / C,
         "minus x̂ x̂ᵀ / C": -np.outer(xhat, xhat) / C, "their sum: measured": jacobian / rstd}
fig, axes = figure(4, width=2.3, height=2.6)
for ax, (title, term) in zip(axes, terms.items(), strict=True):
    matrix(ax, rstd * term, title, "j", "i", limit=rstd, signed=True)
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
#
# ## Twelve blocks train, on your own file
#
# Write `layer_norm` and `layer_norm_backward` in `mine.py`. The first returns $y$ and
# `LayerNormCache(xhat, rstd, w)`, where `rstd` is one over the root.

# %%
BEGIN = False                                             # True: appends the stubs
if BEGIN:
    print("new in mine.py:", *minifpt.new("mine.py", lesson=3))

# %% [markdown]
# Twelve blocks learn digits, at several learning rates, with the factors 1 and 2. Without layer
# norm, twice the weights need a smaller rate. By how many powers of ten?

# %%
guess = ...                                               # a number

# %%
# Not to be read: blocks between two linear layers, trained at each rate.
images, labels = minifpt.tasks.get("digits").images(np.random.default_rng(0), 128, "train")
images = images.reshape(128, -1).astype(float)


def loss_after(has_norm, factor, rate, seed):             # 40 steps of gradient descent
    layers = [Linear(784, 32, float), *(Block(has_norm) for _ in range(12)), Linear(32, 10, float)]
    draw(layers[:-1], factor, seed)                       # the last layer begins with zeros
    loss = lesson.descend(layers, images, labels, rate, 40)[-1]
    return loss if loss < 3 else np.nan                   # beyond the picture


lowest = {(True, 1): -3, (True, 2): -3, (False, 1): -4, (False, 2): -13}     # powers of ten
losses, rates = {}, {arm: 10.0 ** (low + np.arange(0, 2.1, 0.5)) for arm, low in lowest.items()}
with written("mine.py", "layer_norm", "layer_norm_backward", "linear",
             "linear_backward") as whose, np.errstate(all="ignore"):
    for arm in tqdm(lowest):
        losses[arm] = [np.mean([loss_after(*arm, rate, seed) for seed in range(3)])
                       for rate in rates[arm]]
best = {arm: rates[arm][np.nanargmin(losses[arm])] for arm in lowest}
reveal(guess, float(np.log10(best[False, 1] / best[False, 2])), "powers of ten")
fig, (ax,) = figure(width=7, height=2.8)
for arm, loss in losses.items():
    curves({f"{'with layer norm' if arm[0] else 'without'}, factor {arm[1]}": loss},
           f"Without layer norm, larger weights need a far smaller rate\n{whose}", "learning rate",
           "loss after 40 steps (nats)", rates[arm], ax, [color.trained if arm[0] else color.ochre],
           "x", styles=[("o" if arm[1] == 1 else "^") + ("-" if arm[0] else "--")], ylim=(0, 2.5))
ax.legend(loc="lower center")
picture(fig)

# %% [markdown]
# Did you say half the rate, or a quarter? Look at the first picture. Twelve blocks with the factor
# 2 make $x$ some 40,000 times as large as with the factor 1. The last layer's $dw = x^\top dy$
# grows with $x$. A step along $dw$ moves the scores by $x\,dw$, with $x$ once more. So the rate
# must fall by the *square* of 40,000, about nine powers of ten (nine or ten, among our rates). Even
# there the model hardly learns. (A line ends where the loss of a seed exceeds 3.)
#
# ## Exercises
#
# **1.** Layer norm does not see two changes of a row. Use them: return a different array for which
# layer norm, with scale 1 and bias 0, gives the same output. *Every* number must differ from the
# old one by at least 0.1.

# %%
def unseen_change(x):
    """x (T, C), numbers between -2 and 2 -> another (T, C), the same to layer norm"""
    return ...


check("unseen_change", unseen_change)


# %% [markdown]
# **2.** **RMS norm** leaves out the mean: $\hat x = x / \sqrt{\text{mean}(x^2) + \epsilon}$ and $y
# = \hat x \cdot w$. Which change of a row does it still not see, and which does it see now? Write
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
# The mean of many random numbers is small. So a test on wide rows, with a tolerance of five
# percent, accepts a wrong gradient. `gradcheck` takes short rows, and its tolerance is a millionth.
#
# **A few trained parameters steer frozen weights.** In a head of *attention* (lesson 4) each token
# looks at itself and at those before it, with shares that sum to 1. The head reads the output of a
# layer norm. Its weights $W$ `(C, 3C)` are random and frozen, three matrices in one. We train the
# scale alone, 16 numbers, so that the *last* token looks at token 3, to which it gave the smallest
# share before. What share does token 3 get after 100 steps, in percent?

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
# Look at the last row of each map. The tokens and $W$ are the same, and yet the last token looks at
# whichever token we ask for. Each number of the scale decides how much its channel counts.
#
# **3.** *Open.* Of all layer norms in the shipped trunk, whose scale moves most while it learns bit
# XOR? First decide what "moves most" means, and write it as a function of the parameters before and
# after. (A scale that was large and stayed so has not moved; one that goes up in half of its
# channels and down in the others has.) Then set `RUN` to `True`. Is it the same one with another
# seed? And with the trunk `"random"`?

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
# **The sentence to remember:** *Layer norm does not see a shift or a stretch of a row, so its
# backward removes these two parts from the gradient.*
#
# **What we do not know yet.** In our twelve blocks each token went through alone. How does a token
# learn anything from another one?
#
# **Next**: [lesson 4](04_self_attention.ipynb), self-attention.
