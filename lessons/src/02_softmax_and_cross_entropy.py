# %% [markdown]
# # 2. Softmax and cross-entropy
#
# **A model gives each of $V$ words a score. How do we turn scores into probabilities? How wrong are
# they, and which way should each score move?**
#
# After this lesson you can
#
# - turn scores into probabilities, for every finite score;
# - derive the gradient of the loss, a difference that you can see in a picture;
# - carry a gradient back through a softmax in the middle of a model, as attention needs;
# - train a classifier of digits on your own gradients.
#
# **What we know by now.** A gradient says which way to move each weight, and the forward pass alone
# checks it. So far our loss was a square, which asks how far one number is from another.
#
# **The question:** How wrong is it?
#
# You need [lesson 1](01_gradients_by_hand.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, model_map, picture, reveal, show
from minifpt.exercises.track import written

model_map("loss")

# %% [markdown]
# ## Scores become probabilities
#
# The output layer of a language model gives each word of its vocabulary a score. Such a score is
# called a **logit**; it can be any number, and a row of them is $z$ `(V,)`. We want probabilities:
# none is negative, and together they make 1. **Softmax** does both: the exponential makes every
# number positive, and the division makes the sum 1.
#
# $$ p_i = \frac{e^{z_i}}{\sum_j e^{z_j}} $$
#
# Here are five words with their logits. We add 100 to every logit. Does the largest probability
# change? Say `"stays"` or `"changes"`.

# %%
guess = ...

# %%
words = ["cat", "dog", "mat", "sat", "the"]
z = np.array([1.0, 2.0, 4.0, 3.0, -1.0])                  # (V,)


def naive_softmax(z):
    return np.exp(z) / np.exp(z).sum()


p = naive_softmax(z)
reveal(guess, "stays" if np.allclose(naive_softmax(z + 100), p) else "changes")
for name, logits in (("z", z), ("z + 100", z + 100), ("z + 100 in float32", np.float32(z + 100))):
    with np.errstate(all="ignore"):
        print(f"{name:20}", naive_softmax(logits).round(3))

# %% [markdown]
# A logit of 104 is huge, and still nothing changes, because all others are just as huge. Softmax
# sees only the *differences* between logits. A number $c$ that we add to all of them becomes a
# factor $e^c$ above and below the line, and cancels:
#
# $$ \frac{e^{z_i + c}}{\sum_j e^{z_j + c}} = \frac{e^c\, e^{z_i}}{e^c \sum_j e^{z_j}} = p_i $$
#
# The computer cannot cancel, though. In float32 $e^{100}$ overflows to infinity, and infinity
# divided by infinity is `nan`, not a number. So the library uses the freedom that we have just
# found: it first subtracts the largest logit of each row.

# %%
show(F.softmax)

# %% [markdown]
# ## How wrong?
#
# In training we know the right word. Its index is the **target** $t$. Our loss is the
# **cross-entropy**: minus the logarithm of the probability that the model gives to the target.
#
# $$ L = -\log p_t = \log \sum_j e^{z_j} - z_t $$
#
# Why the logarithm? If the model is sure and right, the loss is 0. If it knows nothing and gives
# each word $1/V$, the loss is $\log V$. If it is sure and wrong, the loss grows without bound.
# (With the natural logarithm the unit is the **nat**. The library computes the second form, because
# $p_t$ may underflow to 0, whose logarithm is infinite.)
#
# Which way should each logit move? We measure $dz$ `(V,)`, as in lesson 1. The target is "sat". For
# how many of the five words is the rate negative, so that *raising* its logit lowers the loss?

# %%
guess = ...

# %%
target = words.index("sat")


def loss(z):
    return F.cross_entropy(z[None], np.array([target]))[0]


h = 1e-5
measured = np.array([(loss(z + h * e) - loss(z - h * e)) / (2 * h)
                     for e in np.eye(5)])                 # each e moves one logit
reveal(guess, int((measured < 0).sum()))

# %%
# Not to be read: a picture.
fig, axes = figure(3, width=2.8, height=2.3, sharey=True)
for ax, values, title, ink in zip(axes, (p, np.eye(5)[target], measured), (
        "what it believes: p", "what is true: one-hot", "measured gradient"),
        (color.teal, color.grey, color.ink), strict=True):
    bars = ax.bar(words, values, color=ink)
    ax.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    ax.axhline(0, color=color.ink, linewidth=0.8)
    ax.set(title=title, ylim=(-1.05, 1.2))
picture(fig)

# %% [markdown]
# Only for one. Raising any other logit, even a likely word's, takes probability away from the
# target.
#
# And the third panel is the first minus the second! We can derive that in two lines, from $L = \log
# S - z_t$ with $S = \sum_j e^{z_j}$:
#
# $$ \frac{\partial \log S}{\partial z_i} = \frac{1}{S}\, \frac{\partial S}{\partial z_i}
#    = \frac{e^{z_i}}{S} = p_i, \qquad
#    \frac{\partial z_t}{\partial z_i} = 1 \text{ if } i = t, \text{ else } 0 $$
#
# $$ dz = p - \text{one-hot}(t) $$
#
# Here one-hot$(t)$ `(V,)` is 1 at the target and 0 elsewhere. So the gradient is what the model
# believes, minus what is true. It sums to 0, because both sum to 1.
#
# For many rows, logits `(N, V)` and targets `(N,)`, the loss is the mean over the rows, so we
# divide the gradient of each row by $N$.

# %%
rng = np.random.default_rng(2)
logits, targets = 3 * rng.standard_normal((6, 5)), rng.integers(0, 5, 6)
backwards = {
    "as derived": F.cross_entropy_backward,
    "broken: not divided by N": lambda dy, cache: 6 * F.cross_entropy_backward(dy, cache),
    "broken: p without one-hot": lambda dy, cache: F.softmax(logits)[0] * dy / 6}
for name, backward in backwards.items():
    report = minifpt.gradcheck(F.cross_entropy, backward, (logits, targets))
    print(f"{name:26} error {report.max_relative_error:.0e}  {'pass' if report else 'FAIL'}")

# %% [markdown]
# ## A softmax in the middle
#
# In attention (lesson 4) a softmax stands in the middle of the model. A gradient $dp$ `(V,)` comes
# back to it, and it has to turn this into $dz$ `(V,)`. So we need to know how fast each probability
# moves with each logit. This matrix of rates is called the **Jacobian** of softmax. We measure it:

# %%
jacobian = np.stack([(F.softmax(z + h * e)[0] - F.softmax(z - h * e)[0]) / (2 * h)
                     for e in np.eye(5)], axis=1)         # [i, j]: p_i moves with z_j
fig, axes = figure(3, width=2.9, height=2.8)
for ax, values, title in zip(axes, (jacobian, np.diag(p), -np.outer(p, p)), (
        "measured ...", "... is p on the diagonal ...", "... minus p_i p_j"), strict=True):
    matrix(ax, values, title, "logit", columns=words, rows=words, limit=0.6, signed=True)
axes[0].set_ylabel("probability")
picture(fig)

# %% [markdown]
# If we raise a logit, its own probability grows and all the others shrink. We
# write $[i = j]$ for 1 where $i = j$ and 0 elsewhere. $\log p_i = z_i - \log S$ moves with $z_j$ at
# the rate $[i = j] - p_j$, and $p_i = e^{\log p_i}$ moves at $p_i$ times that rate. The chain rule
# adds the paths through all $p_i$:
#
# $$ \frac{\partial p_i}{\partial z_j} = p_i\,[i = j] - p_i\,p_j, \qquad
#    dz_j = \sum_i dp_i\, \frac{\partial p_i}{\partial z_j}
#         = p_j \Big( dp_j - \sum_i dp_i\, p_i \Big) $$
#
# The sum is one number for each row: the average of $dp$, weighted by $p$.
#
# ## Digits, on your own file
#
# Write `softmax`, `softmax_backward` and `cross_entropy_backward` in `mine.py`, for any number of
# leading axes. `softmax` returns $p$ and `SoftmaxCache(p)`, and `softmax_backward` gets that cache.
# `cross_entropy` and `log_sum_exp` stay the library's. The cache of `cross_entropy` holds
# `cache.targets` and `cache.log_sum_exp.e`: the exponentials of each row, after we subtract its
# largest logit. `cross_entropy_backward` divides by the number of targets and multiplies by `dy`,
# one number. Return float32 for float32 logits: `np.eye(V)` is float64.

# %%
BEGIN = False                                             # True: appends the stubs
if BEGIN:
    print("new in mine.py:", *minifpt.new("mine.py", lesson=2))

# %% [markdown]
# **Softmax regression** gives each of ten digits a score that is linear in the pixels. We train it
# by gradient descent on the cross-entropy, and test it on new fonts. It begins with all weights 0.
# What is its first loss?

# %%
guess = ...                                               # in nats

# %%
def digits(split, n):
    """-> pixels (n, 784) and digits (n,)"""
    images, t = minifpt.tasks.get("digits").images(np.random.default_rng(0), n, split)
    return images.reshape(n, -1).astype(float), t


def regression(steps=150, rate=0.3):
    """-> the share of new digits that are right at each step, and the first loss"""
    (x, t), (x_test, t_test) = digits("train", 1000), digits("test", 500)
    w, b, right, losses = np.zeros((784, 10)), np.zeros(10), [], []
    for _ in range(steps):
        right.append(100 * (F.linear(x_test, w, b)[0].argmax(axis=1) == t_test).mean())
        scores, cache = F.linear(x, w, b)
        loss, cache_loss = F.cross_entropy(scores, t)
        _, dw, db = F.linear_backward(F.cross_entropy_backward(1.0, cache_loss), cache)
        w, b = w - rate * dw, b - rate * db
        losses.append(loss)
    return right, losses[0]


with written("mine.py", "softmax", "softmax_backward", "cross_entropy_backward", "cross_entropy",
             "linear", "linear_backward") as whose:
    right, first_loss = regression()
reveal(guess, float(first_loss), "nats")
print(f"right in the end: {right[-1]:.0f} %")
curves({"": right}, f"Softmax regression reads digits in new fonts\n{whose}", ylabel="right (%)",
       inks=[color.trained], level=10, note="guessing", ylim=(0, 100))

# %% [markdown]
# Weights of 0 give all ten digits the same score, so each has the probability 1/10: $\log 10$.
#
# ## Exercises
#
# **1.** To a model the target is $k$ times as likely as each of the other $V - 1$ words. What is
# its loss, in nats?

# %%
def loss_of_a_hint(V, k):
    """V words, the target k times as likely as any other -> the loss, a number"""
    return ...


check("loss_of_a_hint", loss_of_a_hint)


# %% [markdown]
# **2.** Now we do not know the right word. A teacher tells us how likely each word is. The loss is
# the mean over the rows of $-\sum_i q_i \log p_i$ with $p = \text{softmax}(z)$, and each row of $q$
# sums to 1. Derive its gradient.

# %%
def gradient_for_a_teacher(z, q):
    """z (N, V) logits, q (N, V) the teacher's probabilities -> dz (N, V)"""
    return ...


check("gradient_for_a_teacher", gradient_for_a_teacher)


# %% [markdown]
# ## Going further
#
# **3.** Most libraries have `log_softmax(x)`, which is $x$ minus $\log \sum_j e^{x_j}$, as an
# operation of its own. Derive its backward. It gets the output $y$, not $x$.

# %%
def log_softmax_backward(dy, y):
    """dy (N, V), y (N, V) = log_softmax(x) -> dx (N, V)"""
    return ...


check("log_softmax_backward", log_softmax_backward)


# %% [markdown]
# **4.** *Open.* float16 has a short range: it turns small numbers into 0 and large ones into
# infinity. The gradient of a mean over many tokens is full of small numbers. So training in float16
# multiplies the loss by a **scale** before the backward pass, and divides the gradient by it
# afterwards. Choose the scale for a given gradient. It must be a power of two, no entry may
# overflow, and at most 1 % of them may become 0. Is there always one? Make a gradient for which
# there is none.

# %%
half = np.finfo(np.float16)
print(f"float16 reaches from {half.smallest_subnormal:.1g} to {half.max:.0f}")


def loss_scale(gradient):
    """gradient (N, V), float64 -> a power of two to multiply it by before it is float16"""
    return ...


check("loss_scale", loss_scale)

# %% [markdown]
# **The picture to keep:** belief, truth, and the gradient as their difference.
#
# **The sentence to remember:** *The gradient of the loss at each score is what the model believes
# minus what is true.*
#
# **What we do not know yet.** This classifier has one layer. GPT-2 has twelve blocks in a row. What
# stops the numbers from exploding?
#
# **Next**: [lesson 3](03_layer_norm.ipynb), layer norm.
