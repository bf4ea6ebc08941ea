# %% [markdown]
# # 1. Gradients by hand
#
# **One number says how wrong a model is. Which way should we move each of its weights? And how do
# we know that our answer is right?**
#
# After this lesson you can
#
# - carry a gradient back through a linear layer and an activation function;
# - check any gradient with nothing but the forward pass;
# - let a small net learn XOR by a gradient that you wrote.
#
# **What we know by now.** A frozen model learned XOR while training moved a few of its parameters
# ([lesson 0](00_a_language_model_learns_xor.ipynb)). How did training find the directions?
#
# **The question:** Which way does a weight move?
#
# In the live page: [station 5](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(5)` in a cell here.
#
# You need a derivative and a matrix product; [lesson 23](23_before_the_first.ipynb) checks both.

# %%
# Not to be read: imports, and a picture of the whole model.
import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, model_map, picture, reveal, show
from minifpt.exercises.track import written

model_map("input layer", "output layer", gradient=True)
rng = np.random.default_rng(1)

# %% [markdown]
# ## One weight moves
#
# The two layers in colour are linear layers. A **linear layer** takes $x$ `(N, I)`, one row of $I$
# numbers for each of $N$ examples, and returns $y$ `(N, O)`. Its parameters are a **weight** $w$
# `(I, O)` and a **bias** $b$ `(O,)`:
#
# $$ y = x\,w + b, \qquad y_{no} = \sum_i x_{ni}\, w_{io} + b_o $$
#
# Take $N = 4$, $I = 3$ and $O = 2$. We add 0.01 to one number of the weight, $w_{01}$. How many of
# the eight numbers in $y$ move?

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
# One number of $w$ moves a whole column of $y$, because all four examples use it; the other column
# uses other numbers of $w$. The rates are column 0 of $x$. So, with everything else held fixed
# ($\partial$),
#
# $$ \frac{\partial y_{no}}{\partial w_{io}} = x_{ni} $$
#
# ## From the loss back to the weight
#
# Now we add an **activation function**, $\tanh$, an S-shaped curve from -1 to 1. One number, the
# **loss** $L$, measures how far $y$ is from the targets $t$ `(N, O)`:
#
# $$ s = x\,w + b, \qquad y = \tanh(s), \qquad L = \frac{1}{NO} \sum_{n,o} (y_{no} - t_{no})^2 $$
#
# The **gradient** of $L$ with respect to $w$ holds, for each number of $w$, the rate at which $L$
# changes with it. We write it $dw$. It has the shape of $w$, as $dy$ has the shape of $y$. The
# **chain rule** takes us back from the loss, one step at a time: multiply the rates along a path,
# and add up over all paths.
#
# | forward | backward | why |
# |---|---|---|
# | $L = \frac{1}{NO}\sum (y - t)^2$ | $dy = \frac{2}{NO}\,(y - t)$ | the derivative of a square |
# | $y = \tanh(s)$ | $ds = dy \cdot (1 - y^2)$ | $\tanh' = 1 - \tanh^2$; one path each |
# | $s = x\,w + b$ | $dw = x^\top ds$ | $w_{io}$ has $N$ paths |
#
# The last line is the picture again. $w_{io}$ reaches the loss on one path through each example,
# and the first rate on this path is $x_{ni}$:
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
# Did we lose a factor, or a transpose? We can measure: move one weight a little up and a little
# down, and look at the loss.
#
# $$ dw_{io} \approx \frac{L(w_{io} + h) - L(w_{io} - h)}{2h} $$
#
# This is the **central difference** with **step** $h$. It uses only the forward pass, so it
# cannot repeat a mistake of the backward pass.
#
# To how many digits will the two agree, with $h = 10^{-5}$? The formula is wrong by about $h^2$
# (*Going further* says why). The computer stores the loss to 16 digits, and we divide this rounding
# error by $h$.

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
# The formula is off by $h^2 = 10^{-10}$, the computer by $10^{-16} / 10^{-5} = 10^{-11}$. The
# larger one counts.
#
# A check that never fails tells you nothing. So we broke the gradient in three ways, and the check
# saw each.
#
# The library has the same lines. The **cache** is a tuple that the forward pass returns beside $y$
# for the backward pass.

# %%
show(F.linear_backward, lines=("if need[0]", "return"))


def broken_backward(dy, cache):
    dx, dw, db = F.linear_backward(dy, cache)
    return dx, dw, db / len(dy)                           # a mean where the rows add up


for backward in (F.linear_backward, broken_backward):
    print(minifpt.gradcheck(F.linear, backward, (x, w, b)))

# %% [markdown]
# `rows` is $dy$ `(N, O)`; `need` says which gradients we want. `gradcheck` needs one number as its
# loss: a random weighted sum of $y$, so that no two numbers count alike.
#
# ## Downhill, on a file of your own
#
# The gradient points uphill. **Gradient descent** moves each weight the other way, again and again:
# $w \leftarrow w - \eta\, dw$, with the **learning rate** $\eta$.
#
# Set `BEGIN` to `True`, and the cell appends two stubs to a file of yours. Open it by a double
# click in the list of files. Write `linear` and `linear_backward` in `mine.py`, each in place of
# its `raise`, and save with Ctrl+S. `linear` returns $y$ and `LinearCache(x, w, need)`;
# `linear_backward` gets $dy$ and that cache. The check also sends $x$ as `(B, T, I)` (for $dw$,
# first `reshape` $x$ and $dy$ into rows) and float32, and wants float32 back.

# %%
BEGIN = False
if BEGIN:
    print("new in mine.py:", *minifpt.new("mine.py", lesson=1))

# %% [markdown]
# The next cell checks both, and each `F.linear` in it runs *yours*. It trains two linear layers on
# XOR: two inputs of ±1, and an output that should be 1 where they differ, else 0. How low does the
# loss get without the tanh? (Lesson 0 says what a weighted sum can do.)

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
reveal(guess, float(np.round(np.mean([run[-1] for run in losses["without"]]), 3)))
curves(losses, f"A net learns XOR, five seeds\n{whose}", ylabel="loss", styles=("-", "--"),
       inks=(color.trained, color.ochre), log="y")

# %% [markdown]
# Without tanh, two linear layers are one linear layer. The best that it can do is to answer ½ to
# everything, which costs a loss of ¼. With tanh the loss falls.
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
# **2.** We can use a weight twice: $y = (x\,w)\,w$ with $x$ `(N, I)` and $w$ `(I, I)`. What does
# the chain rule say about two paths? Write $dw$.

# %%
def shared_weight_gradient(x, w, dy):
    """x (N, I), w (I, I), dy (N, I) -> dw (I, I), for y = (x @ w) @ w"""
    return ...


check("shared_weight_gradient", shared_weight_gradient)


# %% [markdown]
# ## Going further
#
# **Which step?** A derivative is the limit $h \to 0$. So should we not take the smallest step that
# the computer allows? Of $10^{-2}$, $10^{-5}$, $10^{-8}$ and $10^{-11}$, which one gives the
# smallest error?

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
       "A smaller step helps, then it hurts", "step h", "relative error", x=steps, log="xy",
       styles=("--", "-"), level=1e-3, note="an error of 0.1 %", width=7, height=3.2,
       inks=(color.ochre, color.ink), ylim=(1e-12, 1e3))

# %% [markdown]
# To the right of the lowest point the error comes from the mathematics: the function curves within
# the step. Near a point $L(w \pm h) = L \pm h L' + \frac{h^2}{2} L'' \pm \frac{h^3}{6} L'''$, and
# so on. In the central difference the two $L''$ cancel, and what remains is $\frac{h^2}{6} L'''$.
#
# To the left of it the error comes from the computer. A loss is right to about $\varepsilon |L|$,
# where $\varepsilon$ is the spacing of floating-point numbers at 1, about $10^{-16}$ ($10^{-7}$ in
# float32), and we divide by the step: that makes $\frac{\varepsilon}{h} |L|$.
#
# In float32 most steps give an error above 0.1 %, so a check would not notice a gradient that is
# 0.1 % wrong. That is why we *check* in float64 and *train* in float32.
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
# **The picture to keep:** how fast each number of y moves with one weight: one column moves, and
# its rates are a column of x.
#
# **The sentence to remember:** *A weight moves against its gradient; the chain rule gives the
# gradient, and the forward pass alone checks it.*
#
# **What we do not know yet.** Our loss was a square, and our model gave numbers. A language model
# gives each word a *probability*. How wrong is a probability?
#
# **Next**: [lesson 2](02_softmax_and_cross_entropy.ipynb) turns scores into probabilities and
# measures how wrong they are.
