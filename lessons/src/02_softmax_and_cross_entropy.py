# %% [markdown]
# # 2. Softmax and cross-entropy
#
# **A model gives each of $V$ words a score. How do scores become probabilities? How do we measure
# how wrong these are? And what happens when a score is 1000?**
#
# After this lesson you can
#
# - write softmax and cross-entropy so that they stay finite for every finite input;
# - derive the gradient of the loss, a difference that you can read off a picture;
# - carry a gradient back through a softmax in the middle of a model, as attention needs;
# - train a classifier of digits on your own gradients.
#
# **What we know by now.** A gradient says which way each weight should move, and differences of the
# forward pass check it. The loss so far was a square: it asks how far a number is from its target.
#
# **The question:** How wrong is it?
#
# You need [lesson 1](01_gradients_by_hand.ipynb). It takes about
# 60 minutes: 25 to read and run, 20 for your own file, 15 for two exercises.

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written

rng = np.random.default_rng(2)

# %% [markdown]
# ## Scores become probabilities
#
# A score can be any number. It is called a **logit**, and a row of them is $z$ `(V,)`.
# Probabilities cannot be negative, and a row of them must sum to 1. **Softmax** turns the one into
# the other: the exponential makes every number positive, and the division makes the sum 1.
#
# $$ p_i = \frac{e^{z_i}}{\sum_j e^{z_j}} $$

# %%
words = ["cat", "dog", "mat", "sat", "the"]
z = np.array([1.0, 2.0, 4.0, 3.0, -1.0])                  # (V,)


def naive_softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


p = naive_softmax(z)
fig, axes = figure(2, width=3.6, height=2.3)
axes[0].bar(words, z, color=color.ink)
axes[0].axhline(0, color=color.ink, linewidth=0.8)
axes[0].set(title="logits z", ylabel="score")
bars = axes[1].bar(words, p, color=color.teal)
axes[1].bar_label(bars, fmt="%.2f", fontsize=8)
axes[1].set(title="probabilities p = softmax(z)", ylabel="probability", ylim=(0, 1))
picture(fig)

# %% [markdown]
# Now we add 100 to every logit. Does the largest probability change? Say `"stays"` or `"changes"`.

# %%
guess = ...

# %%
moved = naive_softmax(z + 100)
reveal(guess, "stays" if np.allclose(moved, p) else "changes")
print("before:", p.round(4))
print("after: ", moved.round(4))

# %% [markdown]
# Softmax sees only the differences between logits. A number $c$ added to all of them becomes a
# factor $e^c$ above and below the fraction line, and cancels:
#
# $$ \frac{e^{z_i + c}}{\sum_j e^{z_j + c}} = \frac{e^c\, e^{z_i}}{e^c \sum_j e^{z_j}} = p_i $$
#
# That is the mathematics. But the largest number of float32 is about $3.4 \cdot 10^{38}$, so $e^z$
# overflows from $z = 89$ on. That is not a very large logit. So we use the freedom that we have
# just found and choose $c = -\max_j z_j$. Then the largest logit becomes 0, and no exponential is
# larger than 1. The largest term of the sum is exactly 1, so the sum is neither infinite nor 0.
#
# The logarithm of the sum, **log-sum-exp**, has the same problem and the same cure:
#
# $$ \log \sum_j e^{z_j} = m + \log \sum_j e^{z_j - m}, \qquad m = \max_j z_j $$

# %%
show(F.log_sum_exp)

# %% [markdown]
# ## The loss, and its gradient
#
# In training the right word is known. Its index is the **target** $t$. The **cross-entropy** is
# minus the logarithm of the probability that the model gives it. It is 0 for a model that is
# certain and right, $\log V$ for one that knows nothing and gives each word the probability $1/V$,
# and it grows without bound for one that is certain and wrong.
#
# $$ L = -\log p_t = \log \sum_j e^{z_j} - z_t $$
#
# With the natural logarithm the unit of the loss is the **nat**; divided by $\log 2$ the loss is in
# bits. The second form needs no probabilities: softmax and logarithm have merged into one. Does
# that matter? Let the logit of another word be 110 above the target's:

# %%
row = np.array([[0.0, 110.0]], np.float32)                # the target is 0
with np.errstate(divide="ignore"):
    print("-log(softmax):          ", -np.log(F.softmax(row)[0][0, 0]))
print("log-sum-exp minus logit:", F.cross_entropy(row, np.array([0]))[0])

# %% [markdown]
# So a stable softmax is not enough: its smallest probabilities become 0, and the logarithm of 0 is
# infinite.
#
# Now the gradient. We want $dz$ `(V,)`: at what rate does the loss change with each logit? We
# measure it first. The target is "sat". For how many of the five words is the gradient negative, so
# that *raising* their logit makes the loss smaller?

# %%
guess = ...

# %%
target = words.index("sat")


def loss(z):
    return F.cross_entropy(z[None], np.array([target]))[0]


h = 1e-5
numerical = np.array([(loss(z + h * e) - loss(z - h * e)) / (2 * h)
                      for e in np.eye(5)])                # each e moves one logit
reveal(guess, int((numerical < 0).sum()))

one_hot = np.eye(5)[target]
fig, axes = figure(3, width=2.8, height=2.3, sharey=True)
for ax, values, title, ink in zip(
        axes, (p, one_hot, numerical),
        ("p", "one-hot target", "measured gradient"),
        (color.teal, color.grey, color.ink), strict=True):
    bars = ax.bar(words, values, color=ink)
    ax.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    ax.axhline(0, color=color.ink, linewidth=0.8)
    ax.set(title=title, ylim=(-1.05, 1.2))
picture(fig)

# %% [markdown]
# The third panel is the first minus the second. Line by line, from $L = \log S - z_t$ with
# $S = \sum_j e^{z_j}$:
#
# $$ \frac{\partial \log S}{\partial z_i} = \frac{1}{S}\, \frac{\partial S}{\partial z_i}
#    = \frac{e^{z_i}}{S} = p_i \qquad\qquad
#    \frac{\partial z_t}{\partial z_i} = 1 \text{ if } i = t, \text{ else } 0 $$
#
# $$ dz = p - \text{one-hot}(t) $$
#
# Here one-hot$(t)$ `(V,)` is 1 at the target and 0 elsewhere. So the gradient is what the model
# believes, minus what is true. It sums to 0, because both sum to 1: adding a number to all logits
# leaves the loss as it is.
#
# With many rows, logits $z$ `(N, V)` and targets `(N,)`, the loss is the mean over rows, so each
# row's gradient is divided by $N$. We check the library's, and then break it in two ways.

# %%
logits = 3 * rng.standard_normal((6, 5))
targets = rng.integers(0, 5, 6)


backwards = {
    "F.cross_entropy_backward": F.cross_entropy_backward,
    "sum for mean": lambda dy, cache: F.cross_entropy_backward(dy, cache) * len(cache.targets),
    "p alone, no one-hot": lambda dy, cache: F.softmax(logits)[0] * dy / len(cache.targets),
}
for name, backward in backwards.items():
    report = minifpt.gradcheck(F.cross_entropy, backward, (logits, targets))
    print(f"{name:26} error {report.max_relative_error:.1e}  {'pass' if report else 'FAIL'}")

# %% [markdown]
# ## A softmax in the middle
#
# In attention (lesson 4) a softmax stands in the middle of the model. A gradient $dp$ `(V,)` comes
# back to it, and it has to pass on $dz$ `(V,)`. So how does each probability change with each
# logit? If one logit moves, how many of the five probabilities move?

# %%
guess = ...

# %%
jacobian = np.stack([(F.softmax(z + h * e)[0] - F.softmax(z - h * e)[0]) / (2 * h)
                     for e in np.eye(5)], axis=1)         # [i, j]: p_i moves with z_j
reveal(guess, int((jacobian[:, 0] != 0).sum()))

fig, axes = figure(3, width=2.9, height=2.8)
for ax, values, title in zip(axes, (jacobian, np.diag(p), -np.outer(p, p)),
                             ("measured", "p on the diagonal", "minus p_i p_j"), strict=True):
    matrix(ax, values, title, "logit", columns=words, rows=words, limit=0.6, signed=True)
axes[0].set_ylabel("probability")
picture(fig)

# %% [markdown]
# All five move, if only a little: rates below 0.005 stand there as 0.00. The first matrix, the
# **Jacobian** of softmax, is the sum of the other two. A logit raises its own probability (the
# diagonal) and lowers all the others, because the sum must stay 1: each column sums to 0. In the
# formula $[i = j]$ is 1 where $i = j$ and 0 elsewhere:
#
# $$ \frac{\partial p_i}{\partial z_j} = p_i\,[i = j] - p_i\,p_j $$
#
# The chain rule adds over the paths through all $p_i$:
#
# $$ dz_j = \sum_i dp_i\, \frac{\partial p_i}{\partial z_j}
#         = p_j \Big( dp_j - \sum_i dp_i\, p_i \Big) $$
#
# The sum is one number for each row, the average of $dp$ with the weights $p$. So a $dp$ that is
# the same for all $p_i$ gives no $dz$. No `(V, V)` matrix is ever made: `(dp * p).sum` along the
# last axis is the average of every row at once.

# %%
print(minifpt.gradcheck(F.softmax, F.softmax_backward, (logits,)))

# %% [markdown]
# ## Digits, on your own file
#
# Write `softmax` and `cross_entropy` in `mine.py`, each with its backward pass (20 minutes; lesson
# 1 says how to begin the file), for any number of leading axes. `log_sum_exp` and its backward pass
# may stay the library's: call `log_sum_exp` and keep its cache in `CrossEntropyCache`, where its
# backward pass finds the exponentials. `cross_entropy` also has to raise a `ValueError` for a
# target below 0, for one of $V$ or more, and for targets that are not integers. What comes in as
# float32 goes out as float32 (`np.eye(V)` is float64). With `linear` they are a classifier:
# **softmax regression** gives each of ten digits a score that is linear in the pixels, and descends
# the cross-entropy. The training digits are printed in many fonts, the test digits in fonts that
# the model never saw.

# %%
def digits(split, n):
    """-> pixels (n, 784) and digits (n,)"""
    images, t = minifpt.tasks.get("digits").images(np.random.default_rng(0), n, split)
    return images.reshape(n, -1).astype(float), t


def regression(steps=150, rate=0.3):
    """-> at each step the loss and the share of new digits that are right"""
    (x, t), (x_test, t_test) = digits("train", 1000), digits("test", 500)
    w, b, rows = np.zeros((784, 10)), np.zeros(10), []
    for _ in range(steps):
        scores, cache = F.linear(x, w, b)
        loss, cache_loss = F.cross_entropy(scores, t)
        right = F.linear(x_test, w, b)[0].argmax(axis=1) == t_test
        rows.append((loss, 100 * right.mean()))
        _, dw, db = F.linear_backward(F.cross_entropy_backward(1.0, cache_loss), cache)
        w -= rate * dw
        b -= rate * db
    return np.array(rows).T


with written("mine.py", "linear", "linear_backward", "softmax", "softmax_backward", "log_sum_exp",
             "log_sum_exp_backward", "cross_entropy", "cross_entropy_backward") as whose:
    losses, right = regression()
print(f"loss at the start {losses[0]:.3f}, which is log 10; right in the end {right[-1]:.0f} %")
curves({"": right}, f"Softmax regression on digits in new fonts (dotted: guessing)\n{whose}",
       ylabel="right (%)", inks=[color.trained], level=10, ylim=(0, 100))

# %% [markdown]
# (One run. It starts from zeros and sees all images at each step, so nothing in it is random but
# the choice of images.)
#
# ## Exercises
#
# **1.** A model gives the target a probability that is $k$ times that of each of the other
# $V - 1$ words. What is its loss, in nats?

# %%
def loss_of_a_hint(V, k):
    """V words, the target k times as likely as any other -> the loss, a number"""
    return ...


check("loss_of_a_hint", loss_of_a_hint)


# %% [markdown]
# **2.** Text is often drawn from $\text{softmax}(z / \tau)$. With a **temperature** $\tau$ below 1
# the likely words become likelier still; above 1 the unlikely ones gain. It may be as small as
# $10^{-6}$. Write a stable form, without calling the library.

# %%
def softmax_with_temperature(z, tau):
    """z (N, V), tau > 0 -> p (N, V)"""
    return ...


check("softmax_with_temperature", softmax_with_temperature)


# %% [markdown]
# **3.** *Label smoothing* trains towards a softer target, $(1 - a)\,\text{one-hot}(t) + a/V$: every
# word gets $a/V$, and the target $1 - a$ on top. The loss is the mean over rows of
# $-\sum_i \text{target}_i \log p_i$. What is its gradient?

# %%
def smoothed_gradient(logits, targets, a):
    """logits (N, V), targets (N,) integers, 0 <= a < 1 -> dlogits (N, V)"""
    return ...


check("smoothed_gradient", smoothed_gradient)


# %% [markdown]
# **4.** `log_softmax(x)`, which is $x$ minus its log-sum-exp, is an operation of its own in most
# libraries. Derive its backward. It gets the output $y$, not $x$.

# %%
def log_softmax_backward(dy, y):
    """dy (N, V), y (N, V) = log_softmax(x) -> dx (N, V)"""
    return ...


check("log_softmax_backward", log_softmax_backward)


# %% [markdown]
# **5.** *Open.* float16 has a short range: the next cell prints its ends. Smaller numbers become 0,
# larger ones become infinite. The gradient of a mean over many tokens is full of small numbers. So
# training in float16 multiplies the loss by a **scale** before the backward pass, and divides the
# gradient by it afterwards. Choose the scale for a given gradient, whose entries may have either
# sign. It must be a power of two, no entry may overflow, and at most 1 % of them may become 0. Then
# plot the share that is lost against the scale. Is there always a scale that works? Make a gradient
# for which there is none.

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
# **What we do not know yet.** A classifier of one layer has no depth. GPT-2 has twelve blocks in a
# row. What keeps the numbers in them from growing without bound?
#
# **Next**: [lesson 3](03_layer_norm.ipynb), layer norm.
