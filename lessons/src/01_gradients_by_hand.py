# %% [markdown]
# # 1. Gradients by hand
#
# **One number says how wrong a model is, and the model has thousands of weights. Which way should
# each weight move? And how do you know that your answer is right?**
#
# After this lesson you can
#
# - carry a gradient back through a linear layer and an activation function, line by line;
# - check any gradient with nothing but the forward pass;
# - say which step such a check should take, and why it runs in float64;
# - let a small net learn XOR by your own gradient.
#
# **What we know by now.** A frozen model learned XOR while a few of its numbers moved
# ([lesson 0](00_a_language_model_learns_xor.ipynb)). Which way each number moves was decided by
# `backward`, and we did not look inside. Now we do, with a model of one layer.
#
# **The question:** Which way does a weight move?
#
# In the live page: [station 11](../minifpt/viewer/tour.md) of its tour, or
# `minifpt.viewer.tour(11)` in a cell here.
#
# You need a derivative, a matrix product and a little NumPy; [the lesson before the
# first](23_before_the_first.ipynb) has five questions that say whether you have them. It takes
# about 50 minutes: 27 to read and run, 8 for your own file, 15 for two exercises.

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
# Here $N = 4$, $I = 3$, $O = 2$. The library's function returns $y$ and a **cache**: a tuple with
# named fields that keeps what the backward pass needs, such as `cache.x`. (Its field `need` comes
# later in this lesson.)

# %%
x = rng.standard_normal((4, 3))                           # (N, I)
w = rng.standard_normal((3, 2))                           # (I, O)
b = np.array([0.5, -0.5])                                 # (O,)
y, cache = F.linear(x, w, b)                              # (N, O)
print("the cache has", ", ".join(cache._fields))

# %% [markdown]
# We add 0.01 to a single weight, $w_{01}$. How many of the numbers in $y$ move?

# %%
guess = ...                                               # a whole number

# %%
w_moved = w.copy()
w_moved[0, 1] += 0.01
y_moved, _ = F.linear(x, w_moved, b)
rate = (y_moved - y) / 0.01                               # y's change per unit of w[0, 1]
reveal(guess, int((rate != 0).sum()), f"of {y.size}")

fig, axes = figure(2, width=3, height=2.6)
matrix(axes[0], rate, "rate of y along w[0, 1]", "o", "n", limit=3)
matrix(axes[1], x, "x", "i", "n", limit=3)
picture(fig)

# %% [markdown]
# Column 1 of $y$ moves, because $w_{01}$ is used for that column only. And each row $n$ moves
# at its own rate, $x_{n0}$: the first column of $x$. For any weight,
#
# $$ \frac{\partial y_{no}}{\partial w_{io}} = x_{ni} $$
#
# and nothing else in $y$ depends on $w_{io}$.
#
# ## From the loss back to the weight
#
# Now a model with something to get wrong: the linear layer, then an **activation function**,
# $\tanh$, which makes the model nonlinear, and then one number, the **loss** $L$. It says how far
# $y$ is from the targets $t$ `(N, O)`.
#
# $$ s = x\,w + b, \qquad y = \tanh(s), \qquad L = \frac{1}{NO} \sum_{n,o} (y_{no} - t_{no})^2 $$
#
# The **gradient** of $L$ with respect to $w$ is an array that says, for each entry of $w$, at
# what rate $L$ changes with it. We call it $dw$. It has the shape of $w$, and the same holds for
# every array: $dy$ has the shape of $y$, $ds$ that of $s$.
#
# Here are the three steps back. The **chain rule** says that rates multiply along a path and add
# up over all paths.
#
# | forward | backward | why |
# |---|---|---|
# | $L = \frac{1}{NO}\sum (y - t)^2$ | $dy = \frac{2}{NO}\,(y - t)$ | the derivative of a square |
# | $y = \tanh(s)$ | $ds = dy \cdot (1 - y^2)$ | $\tanh' = 1 - \tanh^2$; one path for each entry |
# | $s = x\,w + b$ | $dw = x^\top ds$ | $w_{io}$ has $N$ paths, see below |
#
# The picture above is the third line. $w_{io}$ reaches the loss on $N$ paths, through $s_{0o}$
# to $s_{N-1,o}$, and its rate along each is $x_{ni}$:
#
# $$ dw_{io} = \sum_n x_{ni}\, ds_{no} = (x^\top ds)_{io} $$
#
# In the same way $b_o$ has $N$ paths with rate 1, so $db_o = \sum_n ds_{no}$. And $x_{ni}$ has
# $O$ paths with rates $w_{io}$, so $dx = ds\, w^\top$.
#
# *On paper, 3 minutes.* One row $x = (2, -1)$, weights $w = (1, 1)$ to one output, no bias, no
# tanh, and $L = s^2$. What is $dw$?
#
# <details><summary>Answer</summary>s = 1, so ds = 2 and dw = (4, -2).</details>

# %%
t = rng.uniform(-1, 1, (4, 2))                            # targets (N, O)


def forward(w):
    s = x @ w + b
    y = np.tanh(s)
    return ((y - t) ** 2).mean(), y


loss, y = forward(w)
dy = 2 * (y - t) / y.size
ds = dy * (1 - y ** 2)
dw = x.T @ ds
print(f"loss {loss:.4f}")
print("dw =\n", dw)

# %% [markdown]
# The library's linear layer has the same lines, and shape checks before them. `need` says which of
# the three gradients will be wanted: where lesson 7 freezes a weight, its entry is `False`, and the
# product is never computed.

# %%
show(F.linear, F.linear_backward)

# %% [markdown]
# ## A check that needs no calculus
#
# Did we get `dw` right? We may have lost a factor or a transpose. But what a gradient means can be
# measured: move one weight up a little, then down a little, and look at the loss.
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
numerical = np.zeros_like(w)
for i in range(w.shape[0]):
    for o in range(w.shape[1]):
        up, down = w.copy(), w.copy()
        up[i, o] += h
        down[i, o] -= h
        numerical[i, o] = (forward(up)[0] - forward(down)[0]) / (2 * h)


def relative_error(gradient):
    return np.abs(gradient - numerical).max() / np.abs(numerical).max()


reveal(guess, int(-np.log10(relative_error(dw))), "digits")
print(f"largest relative error: {relative_error(dw):.1e}")

# %% [markdown]
# A check that has never failed has told us nothing. So we break the backward pass on purpose, in
# three ways, and look at the same number.

# %%
broken = {"as it is": dw, "forgot tanh": x.T @ dy, "sum for mean in the loss": dw * y.size,
          "0.1 % too large": dw * 1.001}
for name, gradient in broken.items():
    print(f"{name:30} relative error {relative_error(gradient):.1e}")

# %% [markdown]
# Many powers of ten lie between the right gradient and the wrong ones. That gap is what makes the
# check useful.
#
# From here on the library does this for us. `gradcheck` takes an operation and its backward. An
# operation has many outputs and no loss, so `gradcheck` makes one: $L = \sum y \cdot r$ with random
# numbers $r$, so that $dy = r$. Its "relative error" of one entry is $|a - n| / \max(|a|, |n|,
# s)$, with the analytical value $a$, the numerical value $n$, and $s$ the root mean square of that
# gradient. So a gradient that is 8 times as large as it should be has an error of 7/8 there, and of
# 7 by our measure (the third line above).

# %%
print(minifpt.gradcheck(F.linear, F.linear_backward, (x, w, b)))


# %%
def broken_backward(dy, cache):
    dx, dw, db = F.linear_backward(dy, cache)
    return dx, dw, db / len(dy)                           # a mean where the rows add up


print(minifpt.gradcheck(F.linear, broken_backward, (x, w, b)))

# %% [markdown]
# ## Which step, and why float64
#
# A derivative is the limit $h \to 0$, so should the step not be as small as
# the computer allows? Of the four steps $10^{-2}$, $10^{-5}$, $10^{-8}$ and $10^{-11}$, which one
# gives the smallest error in float64?

# %%
guess = ...                                               # 1e-2, 1e-5, 1e-8 or 1e-11


# %%
def slope(h, dtype=np.float64, central=True):
    """The slope of the loss along w[0, 1], in dtype."""
    xs, bs, ts = (a.astype(dtype) for a in (x, b, t))

    def loss(step):
        moved = w.astype(dtype)
        moved[0, 1] += dtype(step)
        return ((np.tanh(xs @ moved + bs) - ts) ** 2).mean()

    down = -h if central else 0.0
    return (float(loss(h)) - float(loss(down))) / (h - down)


steps = 10.0 ** np.arange(-13, 0.01, 0.25)
kinds = {"float32, central": (color.ochre, np.float32, True),
         "float64, one-sided": (color.teal, np.float64, False),
         "float64, central": (color.ink, np.float64, True)}
error = {name: np.array([abs(slope(h, dtype, central) / dw[0, 1] - 1) for h in steps])
         for name, (_, dtype, central) in kinds.items()}
reveal(guess, min((1e-2, 1e-5, 1e-8, 1e-11), key=lambda h: abs(slope(h) / dw[0, 1] - 1)))

curves(error, "Two errors pull the step in opposite directions (dotted: 0.1 %)", "step h",
       "relative error", x=steps, log="xy", styles=("--", "-.", "-"), level=1e-3, width=7,
       height=3.4, inks=[ink for ink, *_ in kinds.values()], ylim=(1e-12, 1e3))

# %% [markdown]
# Follow a line from right to left: it falls, and then it rises. Right of its lowest point the error
# comes from the mathematics, left of it from the computer.
#
# **On the right**, the function curves within the step. Let $L'$, $L''$ and $L'''$ be the
# derivatives of $L$ along the one weight $w$ that we move. Near a point
# a smooth function is its value, plus terms in the step, its square, its cube and so on (Taylor's
# series):
#
# $$ L(w \pm h) = L \pm h\,L' + \tfrac{h^2}{2} L'' \pm \tfrac{h^3}{6} L''' + \dots $$
#
# The one-sided difference $\frac{L(w+h) - L(w)}{h}$ is wrong by $\frac{h}{2} L''$. In the central
# difference the two $L''$ cancel, and what remains is $\frac{h^2}{6} L'''$: its line is twice as
# steep.
#
# **On the left** the error is rounding. A loss is right to about $\varepsilon |L|$, where
# $\varepsilon$ is the spacing of floating-point numbers at 1. The difference of two losses has the
# errors of both, together $2 \varepsilon |L|$, and we divide it by $2h$: that makes
# $\frac{\varepsilon}{h} |L|$. The smaller the step, the larger it gets, until the step is
# too small to move the weight at all: then both losses are equal, the measured slope is 0, and the
# relative error is 1.
#
# The sum $\frac{h^2}{6}|L'''| + \frac{\varepsilon}{h} |L|$ is smallest where its derivative is
# 0, at
#
# $$ h = \sqrt[3]{3\,\varepsilon\, |L| / |L'''|} $$
#
# (with $\varepsilon = 2 \cdot 10^{-16}$ in float64 and $10^{-7}$ in float32).
#
# Now look at the dotted line. In float32 most steps make a larger error than a gradient that is
# 0.1 % wrong, so a check would not see it. In float64 the error at our check's step is far below
# the line. So we *check* in float64 and *train* in float32, with the same code.
#
# ## Downhill, on a file of your own
#
# A gradient says which way is up. **Gradient descent** moves each weight a little the other way,
# $w \leftarrow w - \eta\, dw$, and does so again; $\eta$ is the **learning rate**. Here it trains a
# net of two linear layers on XOR: two inputs of ±1, eight tanh in the middle, one output that
# should be 1 where the inputs differ and 0 where they are equal.
#
# From here on you can write the functions yourself. In a terminal in the folder of this notebook
# (JupyterLab: File, New, Terminal), type `minifpt new mine.py --bare`. Open `mine.py`, write the
# bodies of `linear` and `linear_backward` without looking at the library's, and run the next cell.
# It checks them, and then each call of `F.linear` runs *yours*. (Eight minutes. The forward pass
# returns $y$ and `LinearCache(x, w, need)`, and the backward pass gets that cache. The check also
# sends an x `(B, T, I)`: flatten x and dy to rows with `reshape` before the product for dw, and sum
# db over the same rows. A function that is not written is the library's.)
#
# Without the tanh two linear layers are one linear layer. Lesson 0 showed that no weighted sum
# computes XOR. How low does the loss of the net without tanh get?

# %%
guess = ...                                               # a number; targets are 0 and 1

# %%
inputs = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])      # (N, 2)
targets = np.array([[0.0], [1.0], [1.0], [0.0]])                             # (N, 1)


def train_net(seed, has_tanh=True, steps=500, rate=0.05, hidden=8):
    """-> the loss at each step"""
    rng, losses = np.random.default_rng(seed), []
    w1, b1 = rng.standard_normal((2, hidden)), np.zeros(hidden)
    w2, b2 = rng.standard_normal((hidden, 1)) / np.sqrt(hidden), np.zeros(1)
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
    with_tanh = [train_net(seed) for seed in range(5)]
    without = [train_net(seed, has_tanh=False) for seed in range(5)]
reveal(guess, float(np.round(np.mean([losses[-1] for losses in without]), 3)))
print("with tanh, five seeds:", *(f"{losses[-1]:.0e}" for losses in with_tanh))

curves({"with tanh": with_tanh, "without": without}, f"A net learns XOR, five seeds\n{whose}",
       ylabel="loss", styles=("-", "--"), inks=(color.trained, color.ochre), log="y")

# %% [markdown]
# Without tanh the best that is left is to answer ½ to everything, which costs ¼. With it the loss
# falls by the gradient that was derived above, and by nothing else.
#
# ## Exercises
#
# Replace the dots and run the cell. You can leave an exercise as it is and go on. Solutions are in
# `solutions/01_gradients_by_hand.py`.
#
# **1.** In a language model the rows lie along two axes, $B$ examples of $T$ tokens (letters or
# words) each: $y$ is `(B, T, O)`. What is the gradient of the bias $b$ `(O,)`?

# %%
def bias_gradient(dy):
    """dy (B, T, O) -> db (O,)"""
    return ...


check("bias_gradient", bias_gradient)


# %% [markdown]
# **2.** A weight can be used twice: $y = (x\,w)\,w$ with $x$ `(N, I)` and $w$ `(I, I)`. (GPT-2
# does so: its token table is its first layer and its last.) Write $dw$. What does the chain rule
# say about two paths?

# %%
def shared_weight_gradient(x, w, dy):
    """x (N, I), w (I, I), dy (N, I) -> dw (I, I), for y = (x @ w) @ w"""
    return ...


check("shared_weight_gradient", shared_weight_gradient)


# %% [markdown]
# **3.** Write the check yourself. `f` takes an array and gives a number; `gradient` is what
# somebody claims its gradient to be. Answer `True` or `False`. The arrays have one, two or three
# axes. The gradients may be large or small as a whole, and one has a zero in it. A gradient that
# is 0.1 % too large counts as wrong, and so does one with a single wrong entry.

# %%
def gradient_is_right(f, x, gradient):
    """f(x) -> a number, x any shape, gradient the same shape -> True or False"""
    return ...


check("gradient_is_right", gradient_is_right)


# %% [markdown]
# **4.** *Open.* The best step depends on how fast the function curves, and you do not know that.
# Here each `f` is
#
# $$ f(z) = c + \sin(k z + \varphi), \qquad 1 \le c \le 3, \qquad 10^{-4} \le k \le 10^4 $$
#
# but you are not told $c$, $k$ or $\varphi$: you can only call `f`. The point $x$ lies between -1
# and 1, where the curve is neither flat nor straight. Return a step $h > 0$ at which the central
# difference has a relative error below $10^{-6}$. No single step does that for every $k$. How few
# calls of `f` do you need?

# %%
def choose_step(f, x):
    """f: a function of one number; x a number -> the step h for a central difference at x"""
    return ...


check("choose_step", choose_step)

# %% [markdown]
# **The picture to keep:** the error of a measured gradient against the step that measures it: a
# smaller step helps, then it hurts.
#
# **The sentence to remember:** *A weight moves against its gradient; the chain rule gives the
# gradient, and the forward pass alone checks it.*
#
# **What we do not know yet.** Our loss was a square, and our model gave numbers. A model of
# language gives each word a *probability*. How wrong is a probability?
#
# **Next**: [lesson 2](02_softmax_and_cross_entropy.ipynb) turns scores into probabilities and
# measures how wrong they are, without overflow.
