# %% [markdown]
# # 23. Before the first lesson
#
# **The lessons use arrays, sums, matrix products and derivatives as if you knew them. Do you know
# enough of them to begin?**
#
# After this lesson you can
#
# - say which shape an array has after a sum or a product;
# - read a formula with a sum sign as a line of NumPy;
# - say what a derivative is as a rate, and follow it through two functions.
#
# You need Python. Try the four exercises at the end first. **If all four pass at once, begin with
# [lesson 0](00_a_language_model_learns_xor.ipynb).** If one of 1 to 3 does not work, read the first
# two sections; if 4 does not, the last two.

# %%
import numpy as np

from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, figure, matrix, picture, reveal, show

rng = np.random.default_rng(0)

# %% [markdown]
# ## Shapes and sums
#
# An **array** is a box of numbers. Its **shape** says how many there are along each **axis**. In
# the lessons $x$ of shape `(B, T, C)` holds $B$ examples, each of $T$ tokens (letters, say), each
# of which is $C$ numbers. `x[1, 0]` is token 0 of example 1, an array `(C,)`, and $x_{btc}$ in a
# formula is the number `x[b, t, c]`. $\sum_t$ means: add for $t = 0, 1, \dots, T - 1$.
#
# A sum over an axis adds along it, and the axis is gone. In a formula the index that is summed over
# is gone as well:
#
# $$ s_{bc} = \sum_t x_{btc} $$
#
# The left side has the indices $b$ and $c$, so $s$ is `(B, C)`. In NumPy that is `x.sum(axis=1)`,
# because $t$ is the second index and counting begins with 0. What is the shape of
# `x.sum(axis=(0, 1))` if $x$ is `(2, 3, 4)`?

# %%
guess = ...                                               # such as (2, 3)

# %%
x = rng.integers(0, 9, (2, 3, 4)).astype(float)
reveal(guess, x.sum(axis=(0, 1)).shape)
fig, axes = figure(3, width=2.4, height=2.0)
matrix(axes[0], x[0], "x[0]: 3 tokens, 4 numbers", "c", "t", limit=20, digits=0)
matrix(axes[1], x[0].sum(axis=0), "x[0].sum(axis=0)", "c", limit=20, digits=0, rows=[""])
matrix(axes[2], x[0].sum(axis=1)[:, None], "x[0].sum(axis=1)", "", "t", limit=20, digits=0,
       columns=[""])
picture(fig)

# %% [markdown]
# (`x[0]` is one example, `(3, 4)`. It has no axis for examples, so its tokens are axis 0.)
#
# ## The matrix product
#
# A product of two **matrices** (arrays with two axes), $x$ `(N, I)` and $w$ `(I, O)`, is a matrix
# $y$ `(N, O)`. Each of its numbers is one row of $x$ times one column of $w$, added up:
#
# $$ y_{no} = \sum_i x_{ni}\, w_{io} $$
#
# The inner lengths must agree, and the result no longer has them. In NumPy it is `x @ w`. The
# **transpose** `w.T` `(O, I)` is $w$ with its axes exchanged, in formulas $w^\top$. If $w$ is
# `(I,)`, `x @ w` is `(N,)`, and `x * w` multiplies each row of $x$ by it, number by number. If $x$
# is `(5, 3)` and $w$ is `(2, 3)`, which product exists, `"x @ w"` or `"x @ w.T"`?

# %%
guess = ...

# %%
x, w = rng.integers(-3, 4, (5, 3)).astype(float), rng.integers(-3, 4, (2, 3)).astype(float)
reveal(guess, "x @ w.T")
y = x @ w.T
fig, axes = figure(3, width=2.4, height=2.4, ratios=[3, 2, 2])
for ax, values, title, row, column in zip(axes, (x, w.T, y), (
        "x (5, 3)", "wᵀ (3, 2)", "x wᵀ (5, 2)"), "nin", "ioo", strict=True):
    matrix(ax, values, title, column, row, limit=15, digits=0, signed=True)
picture(fig)
print("row 1 times column 0, by hand:", sum(x[1, i] * w.T[i, 0] for i in range(3)), "=", y[1, 0])

# %% [markdown]
# The library's first layer is one such product, and a number $b_o$ added to each column. (The cache
# and `need` are for the way back: lesson 1.)

# %%
show(F.linear)

# %% [markdown]
# ## A derivative is a rate
#
# Turn a knob $t$ a little. By how much does $f(t)$ move, for each unit of the turn? For small turns
# that is the **derivative** $f'(t)$, the slope of the curve:
#
# $$ f(t + h) \approx f(t) + f'(t)\, h $$
#
# So a derivative can be measured: see how far $f$ moved, and divide by the turn $h$. Or it is
# computed. Four rules are enough for lesson 1:
#
# | $f(t)$ | $f'(t)$ |
# |---|---|
# | $a\,t + b$ | $a$ |
# | $t^2$ | $2t$ |
# | $g(t) + k(t)$ | $g'(t) + k'(t)$ |
# | $\tanh t$, a curve that climbs from −1 to 1 | $1 - \tanh^2 t$ |
#
# Let $f(t) = t^2$ and $t = 3$. By how much does $f$ grow if $t$ becomes 3.01, about?

# %%
guess = ...

# %%
reveal(guess, round(3.01 ** 2 - 3 ** 2, 2))
t = np.linspace(0, 4, 50)
fig, (ax,) = figure(width=4.4, height=2.6)
ax.plot(t, t ** 2, color=color.ink, label="t²")
ax.plot(t[25:], 9 + 6 * (t[25:] - 3), "--", color=color.teal, label="slope 6 at t = 3")
ax.set(xlabel="t", title="a derivative is the slope of the line that touches")
ax.legend()
picture(fig)

# %% [markdown]
# ## One function after another
#
# Let $s$ depend on $t$, and $y$ on $s$. If $s$ moves 3 times as fast as $t$, and $y$ moves 2 times
# as fast as $s$, then $y$ moves 6 times as fast as $t$. Rates along a path multiply. This is the
# **chain rule**:
#
# $$ y = f(s), \quad s = g(t) \quad\Rightarrow\quad \frac{dy}{dt} = f'(s)\; g'(t) $$
#
# For example $y = \tanh(5t)$ has the derivative $(1 - y^2) \cdot 5$. All of lesson 1 is this rule,
# for many numbers at once.
#
# ## Exercises
#
# Write in place of the dots and run the cell. Solutions are in `solutions/23_before_the_first.py`.
#
# **1.** Add over the tokens.

# %%
def token_sums(x):
    """x (B, T, C) -> (B, C)"""
    return ...


check("token_sums", token_sums)


# %% [markdown]
# **2.** A weighted sum of each row: $y_n = \sum_c x_{nc}\, w_c$.

# %%
def weighted_sums(x, w):
    """x (N, C), w (C,) -> y (N,)"""
    return ...


check("weighted_sums", weighted_sums)


# %% [markdown]
# **3.** One entry $y_{no}$ of the matrix product $y = x\,w^\top$. Mind the transpose.

# %%
def product_entry(x, w, n, o):
    """x (N, I), w (O, I), n, o: which row and which column -> a number"""
    return ...


check("product_entry", product_entry)


# %% [markdown]
# **4.** The derivative of $f(t) = (a\,t + b)^2$ with respect to $t$.

# %%
def inner_slope(a, b, t):
    """Three numbers -> f'(t), a number"""
    return ...


check("inner_slope", inner_slope)


# %% [markdown]
# ## Going further
#
# **5.** *Open.* Someone gives you a function of one number, and you can only call it. Measure its
# slope at $t$, to at least four digits. How small a turn do you take? Lesson 1 comes back to this.

# %%
def slope_at(f, t):
    """f: a function of one number; t a number -> its slope at t"""
    return ...


check("slope_at", slope_at)

# %% [markdown]
# **Next**: [lesson 0](00_a_language_model_learns_xor.ipynb), where a frozen language model learns
# XOR.
