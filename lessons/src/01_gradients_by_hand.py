# %% [markdown]
# # 1. Gradients by hand
#
# **One number says how wrong a model is. Which way should each of its weights move? And how do you
# know that your answer is right?**
#
# After this lesson you can
#
# - carry a gradient back through a linear layer and an activation function;
# - check any gradient with nothing but the forward pass;
# - let a small net learn XOR by your own gradient.
#
# **What we know by now.** A frozen model learned XOR while a few of its numbers moved
# ([lesson 0](00_a_language_model_learns_xor.ipynb)). Training decided which way each of them
# moved. Now we look inside, with a model of one layer.
#
# **The question:** Which way does a weight move?
#
# In the live page: [station 5](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(5)` in a cell here.
#
# You need a derivative, a matrix product and a little NumPy; [the lesson before the
# first](23_before_the_first.ipynb) asks whether you have them.

# %%
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.track import written

rng = np.random.default_rng(1)

# %% [markdown]
# ## One weight moves
#
# A **linear layer** takes $x$ of shape `(N, I)`: $N$ rows, one for each example, with $I$ numbers
# each. It has a **weight** $w$ `(I, O)` and a **bias** $b$ `(O,)`, and gives $y$ `(N, O)`:
#
# $$ y = x\,w + b, \qquad y_{no} = \sum_i x_{ni}\, w_{io} + b_o $$
#
# Here $N = 4$, $I = 3$ and $O = 2$. We add 0.01 to a single weight, $w_{01}$. How many of the eight
# numbers in $y$ move?

# %%
guess = ...                                               # a whole number

# %%
x = rng.standard_normal((4, 3))                           # (N, I)
w = rng.standard_normal((3, 2))                           # (I, O)
b = np.array([0.5, -0.5])                                 # (O,)
w_moved = w.copy()
w_moved[0, 1] += 0.01
rate = ((x @ w_moved + b) - (x @ w + b)) / 0.01           # y's change per unit of w[0, 1]
reveal(guess, int((rate != 0).sum()), f"of {rate.size}")

fig, axes = figure(2, width=3, height=2.6)
matrix(axes[0], rate, "rate of y along w[0, 1]", "o", "n", limit=3)
matrix(axes[1], x, "x", "i", "n", limit=3)
picture(fig)

# %% [markdown]
# Column 1 of $y$ moves, because $w_{01}$ is used for that column only. Each row $n$ moves at its
# own rate, $x_{n0}$: compare with column 0 of $x$. For any weight, the others held still
# ($\partial$),
#
# $$ \frac{\partial y_{no}}{\partial w_{io}} = x_{ni} $$
#
# and nothing else in $y$ depends on $w_{io}$.
#
# ## From the loss back to the weight
#
# Now a model with something to get wrong. After the linear layer comes an **activation function**,
# $\tanh$, an S-shaped curve from -1 to 1, which makes the model nonlinear. One number, the **loss**
# $L$, says how far $y$ is from the targets $t$ `(N, O)`:
#
# $$ s = x\,w + b, \qquad y = \tanh(s), \qquad L = \frac{1}{NO} \sum_{n,o} (y_{no} - t_{no})^2 $$
#
# The **gradient** of $L$ with respect to $w$ says, for each entry of $w$, at what rate $L$ changes
# with it. We call it $dw$; it has the shape of $w$, as $dy$ has that of $y$. The **chain rule**
# leads back, one step at a time: rates multiply along a path, and add up over all paths.
#
# | forward | backward | why |
# |---|---|---|
# | $L = \frac{1}{NO}\sum (y - t)^2$ | $dy = \frac{2}{NO}\,(y - t)$ | the derivative of a square |
# | $y = \tanh(s)$ | $ds = dy \cdot (1 - y^2)$ | $\tanh' = 1 - \tanh^2$; each entry has one path |
# | $s = x\,w + b$ | $dw = x^\top ds$ | $w_{io}$ has $N$ paths |
#
# The last line is the picture above. $w_{io}$ reaches the loss on $N$ paths, through $s_{0o}$ to
# $s_{N-1,o}$, and its rate along each is $x_{ni}$:
#
# $$ dw_{io} = \sum_n x_{ni}\, ds_{no} = (x^\top ds)_{io} $$
#
# In the same way $b_o$ has $N$ paths with rate 1, so $db_o = \sum_n ds_{no}$. And $x_{ni}$ has
# $O$ paths with rates $w_{io}$, so $dx = ds\, w^\top$.

# %%
t = rng.uniform(-1, 1, (4, 2))                            # targets (N, O)


def forward(w):
    y = np.tanh(x @ w + b)
    return ((y - t) ** 2).mean(), y


loss, y = forward(w)
dy = 2 * (y - t) / y.size                                 # y.size is N times O
ds = dy * (1 - y ** 2)
dw = x.T @ ds
print(f"loss {loss:.4f}, dw =\n{dw}")

# %% [markdown]
# ## A check that needs no calculus
#
# We may have lost a factor or a transpose. But a gradient can be measured: move one weight a little
# up and down, and look at the loss.
#
# $$ dw_{io} \approx \frac{L(w_{io} + h) - L(w_{io} - h)}{2h} $$
#
# This is the **central difference** with **step** $h$. It uses only the forward pass, so it
# cannot repeat a mistake of the backward pass.
#
# To how many significant digits will the two agree, with $h = 10^{-5}$?

# %%
guess = ...                                               # a whole number

# %%
h = 1e-5
measured = np.zeros_like(w)
for i, o in np.ndindex(w.shape):
    up, down = w.copy(), w.copy()
    up[i, o] += h
    down[i, o] -= h
    measured[i, o] = (forward(up)[0] - forward(down)[0]) / (2 * h)


def error(gradient):
    """The largest difference, as a share of the largest measured entry."""
    return np.abs(gradient - measured).max() / np.abs(measured).max()


reveal(guess, int(-np.log10(error(dw))), "digits")
for name, gradient in {"as derived": dw, "broken: tanh forgotten": x.T @ dy,
                       "broken: 2 / NO forgotten": dw * y.size / 2,
                       "broken: 0.1 % too large": dw * 1.001}.items():
    print(f"{name:26} error {error(gradient):.0e}")

# %% [markdown]
# A check that has never failed has told us nothing, so we broke the gradient in three ways.
#
# The library has the same lines. In them `rows` is $dy$ of shape `(N, O)`, and `need` says which of
# the three gradients are wanted: where lesson 7 freezes a weight, its product is never computed.
# What the backward pass needs, it finds in the **cache**, a tuple that the forward pass returns
# beside $y$. `gradcheck` needs one number as its loss: a random weighted sum of $y$.

# %%
show(F.linear_backward, lines=("if need[0]", "return"))


def broken_backward(dy, cache):
    dx, dw, db = F.linear_backward(dy, cache)
    return dx, dw, db / len(dy)                           # a mean where the rows add up


for backward in (F.linear_backward, broken_backward):
    print(minifpt.gradcheck(F.linear, backward, (x, w, b)))

# %% [markdown]
# ## Downhill, on a file of your own
#
# A gradient says which way is up. **Gradient descent** moves each weight the other way, again and
# again: $w \leftarrow w - \eta\, dw$, with the **learning rate** $\eta$. Here it trains two linear
# layers on XOR: two inputs of ±1, and an output that should be 1 where they differ, else 0.
#
# From here on you write the functions yourself. Run `minifpt.new("mine.py", lesson=1)` in a new
# cell, once: it writes a file beside this notebook. Write `linear` and
# `linear_backward` in `mine.py`, without looking at the library's. `linear(x, w, b, need)` returns
# $y$ and `LinearCache(x, w, need)`; the second gets $dy$ and that cache. The check also sends an
# $x$ of shape `(B, T, I)`: make rows of it, and of $dy$, with `reshape` before the product for
# $dw$. The next cell checks both, and then each `F.linear` in it runs *yours*.
#
# Without the tanh, two linear layers are one linear layer, and lesson 0 showed that no weighted sum
# computes XOR. How low does the loss get without it?

# %%
guess = ...                                               # a number; targets are 0 and 1

# %%
inputs = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])      # (N, 2)
targets = np.array([[0.0], [1.0], [1.0], [0.0]])                             # (N, 1)


def train_net(seed, has_tanh, steps=500, rate=0.05):
    """-> the loss at each step"""
    rng, losses = np.random.default_rng(seed), []
    w1, b1 = rng.standard_normal((2, 8)), np.zeros(8)
    w2, b2 = rng.standard_normal((8, 1)) / np.sqrt(8), np.zeros(1)
    for _ in range(steps):
        s, cache1 = F.linear(inputs, w1, b1)
        a = np.tanh(s) if has_tanh else s
        y, cache2 = F.linear(a, w2, b2)
        losses.append(((y - targets) ** 2).mean())
        da, dw2, db2 = F.linear_backward(2 * (y - targets) / y.size, cache2)
        ds = da * (1 - a ** 2) if has_tanh else da
        _, dw1, db1 = F.linear_backward(ds, cache1)
        for weight, gradient in ((w1, dw1), (b1, db1), (w2, dw2), (b2, db2)):
            weight -= rate * gradient
    return losses


with written("mine.py", "linear", "linear_backward") as whose:
    losses = {name: [train_net(seed, has_tanh) for seed in range(5)]
              for name, has_tanh in (("with tanh", True), ("without", False))}
last = {name: [run[-1] for run in runs] for name, runs in losses.items()}
reveal(guess, float(np.round(np.mean(last["without"]), 3)))
print("with tanh, five seeds:", *(f"{value:.0e}" for value in last["with tanh"]))
curves(losses, f"A net learns XOR, five seeds\n{whose}", ylabel="loss", styles=("-", "--"),
       inks=(color.trained, color.ochre), log="y")

# %% [markdown]
# Without tanh the best that is left is to answer ½ to everything, which costs ¼. With it the loss
# falls by the gradient that you have derived.
#
# ## Exercises
#
# Replace the dots and run the cell. Solutions are in `solutions/01_gradients_by_hand.py`.
#
# **1.** In a language model the rows lie along two axes, $B$ examples of $T$ letters each: $y$ is
# `(B, T, O)`. What is the gradient of the bias $b$ `(O,)`?

# %%
def bias_gradient(dy):
    """dy (B, T, O) -> db (O,)"""
    return ...


check("bias_gradient", bias_gradient)


# %% [markdown]
# **2.** A weight can be used twice: $y = (x\,w)\,w$ with $x$ `(N, I)` and $w$ `(I, I)`. What does
# the chain rule say about two paths? Write $dw$.

# %%
def shared_weight_gradient(x, w, dy):
    """x (N, I), w (I, I), dy (N, I) -> dw (I, I), for y = (x @ w) @ w"""
    return ...


check("shared_weight_gradient", shared_weight_gradient)


# %% [markdown]
# ## Going further
#
# **Which step?** A derivative is the limit $h \to 0$, so should the step not be as small as the
# computer allows? Of the four steps $10^{-2}$, $10^{-5}$, $10^{-8}$ and $10^{-11}$, which one
# gives the smallest error?

# %%
guess = ...                                               # 1e-2, 1e-5, 1e-8 or 1e-11


# %%
def slope(h, dtype=np.float64):
    """The slope of the loss along w[0, 1], by a central difference in dtype."""
    xs, bs, ts = (a.astype(dtype) for a in (x, b, t))

    def loss(step):
        moved = w.astype(dtype)
        moved[0, 1] += dtype(step)
        return float(((np.tanh(xs @ moved + bs) - ts) ** 2).mean())

    return (loss(h) - loss(-h)) / (2 * h)


steps = 10.0 ** np.arange(-13, 0.01, 0.25)
reveal(guess, min((1e-2, 1e-5, 1e-8, 1e-11), key=lambda h: abs(slope(h) / dw[0, 1] - 1)))
curves({f"{bits}, central": [abs(slope(h, dtype) / dw[0, 1] - 1) for h in steps]
        for bits, dtype in (("float32", np.float32), ("float64", np.float64))},
       "A smaller step helps, then it hurts (dotted: an error of 0.1 %)", "step h",
       "relative error", x=steps, log="xy", styles=("--", "-"), level=1e-3, width=7, height=3.2,
       inks=(color.ochre, color.ink), ylim=(1e-12, 1e3))

# %% [markdown]
# Right of the lowest point the error comes from the mathematics: the function curves within the
# step. Near a point $L(w \pm h) = L \pm h L' + \frac{h^2}{2} L'' \pm \frac{h^3}{6} L'''$, and so
# on. In the central difference the two $L''$ cancel, and what remains is $\frac{h^2}{6} L'''$.
#
# Left of it the error comes from the computer. A loss is right to about $\varepsilon |L|$, where
# $\varepsilon$ is the spacing of floating-point numbers at 1, about $10^{-16}$ ($10^{-7}$ in
# float32), and we divide by the step: that makes $\frac{\varepsilon}{h} |L|$.
#
# In float32 most steps make a larger error than a gradient that is 0.1 % wrong, so a check would
# not see it. So we *check* in float64 and *train* in float32.
#
# **3.** *Open.* You get $f(z) = c + \sin(k z + \varphi)$ as a function that you can only call, and
# a point $x$. You do not know $k$, which may be anything from $10^{-4}$ to $10^4$. Choose a step at
# which the central difference has a relative error below $10^{-6}$. No single step does that for
# every $k$, so look at what `f` gives you. How few calls of `f` do you need?

# %%
def choose_step(f, x):
    """f: a function of one number; x a number -> the step h for a central difference at x"""
    return ...


check("choose_step", choose_step)

# %% [markdown]
# **The picture to keep:** how fast each number of y moves with one weight: one column moves, and in
# it stands the column of x.
#
# **The sentence to remember:** *A weight moves against its gradient; the chain rule gives the
# gradient, and the forward pass alone checks it.*
#
# **What we do not know yet.** Our loss was a square, and our model gave numbers. A model of
# language gives each word a *probability*. How wrong is a probability?
#
# **Next**: [lesson 2](02_softmax_and_cross_entropy.ipynb) turns scores into probabilities and
# measures how wrong they are.
