# %% [markdown]
# # 15. Memory without attention
#
# **Attention keeps every token and looks back at it. A recurrent network has one state and hands
# it on, token by token. How far back can it learn to remember?**
#
# After this lesson you can
#
# - go back through a recurrent network, token by token;
# - predict whether its gradient vanishes or explodes;
# - say what the cell of an LSTM does for the gradient, and when it does nothing.
#
# You need lessons [1](01_gradients_by_hand.ipynb) and [4](04_self_attention.ipynb).

# %%
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, reveal, show
from minifpt.trunks.lstm import LSTM, LSTMConfig

# %% [markdown]
# ## One state
#
# A **recurrent network** reads one token after the other. All that it knows of the past is its
# **state** $h$ `(B, D)`, $B$ sequences with $D$ numbers each. With token $x_t$ `(B, C)` and weights
# $w$ `(C, D)` and $u$ `(D, D)`, the same at every token, the new state is
#
# $$ a_t = x_t\,w + h_{t-1}\,u, \qquad h_t = \tanh(a_t) $$
#
# A state is read twice, as an output and by the next token, so two gradients meet in it. The
# backward pass runs from the last token to the first, **backpropagation through time**:
#
# $$ dh_t = dy_t + da_{t+1}\,u^\top, \qquad da_t = dh_t\,(1 - h_t^2) $$

# %%
def rnn(x, w, u):
    """x (B, T, C) -> all states h (B, T, D)"""
    h = np.zeros((len(x), x.shape[1] + 1, len(u)))        # h[:, 0] is the state before token 0
    for t in range(x.shape[1]):
        h[:, t + 1] = np.tanh(x[:, t] @ w + h[:, t] @ u)
    return h[:, 1:], (x, w, u, h)


def rnn_backward(dy, cache):
    """dy (B, T, D) -> dx, dw, du"""
    x, w, u, h = cache
    da, dh = np.zeros_like(dy), 0.0                       # dh: what the next token sends back
    for t in reversed(range(dy.shape[1])):
        da[:, t] = (dy[:, t] + dh) * (1 - h[:, t + 1] ** 2)
        dh = da[:, t] @ u.T
    return da @ w.T, np.einsum("btc,btd->cd", x, da), np.einsum("btc,btd->cd", h[:, :-1], da)


rng = np.random.default_rng(0)
small = [rng.standard_normal(shape) for shape in ((2, 5, 3), (3, 4), (4, 4))]
print(minifpt.gradcheck(rnn, rnn_backward, small))

# %% [markdown]
# ## How far back?
#
# Now a gradient of length 1 arrives at the last of 60 states, and we follow it back. Let $u = s\,Q$
# with a rotation $Q$, which keeps the length of every vector, and a number $s$. Take $s = 0.9$. How
# long is the gradient 50 steps before the end?

# %%
guess = ...                                               # a number

# %%
T, D = 60, 32


def gradient_lengths(s, seed):
    """(T,): the length of the gradient at the state k steps before the last, k = 0, 1, ..."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((D, D)))
    u = s * rotation
    h, _ = rnn(0.3 * rng.standard_normal((1, T, D)), np.eye(D), u)
    dh = rng.standard_normal(D)
    dh, lengths = dh / np.linalg.norm(dh), []
    for t in reversed(range(T)):
        lengths.append(np.linalg.norm(dh))
        dh = (dh * (1 - h[0, t] ** 2)) @ u.T
    return np.array(lengths)


plain = {s: np.array([gradient_lengths(s, seed) for seed in range(8)]) for s in (2.0, 1.2, 0.9)}
reveal(guess, float(np.median(plain[0.9][:, 50])))
curves({f"s = {s}": lengths for s, lengths in plain.items()}, log="y",
       title="The gradient on its way back, 8 networks each", xlabel="steps back, k",
       ylabel="its length", styles=("-", "--", ":"), inks=(color.ochre, color.ink, color.teal))
for s, lengths in plain.items():
    print(f"s = {s}: 50 steps back between {lengths[:, 50].min():.0e} and "
          f"{lengths[:, 50].max():.0e}; s^50 is {s ** 50:.0e}")

# %% [markdown]
# Each step multiplies by about the same factor. The gradient **vanishes** with small weights and
# **explodes** with large ones. For $s = 0.9$ it has no choice: $1 - h^2$ is between 0 and 1 and can
# only shorten, the rotation keeps the length, $s$ multiplies it. After $k$ steps at most $s^k$ is
# left, whatever the tokens are.
#
# ## A cell that is added to
#
# **Long short-term memory** (LSTM) has a second state, the **cell** $c$ `(B, D)`. No matrix stands
# on its way:
#
# $$ c_t = f_t\,c_{t-1} + i_t\,g_t, \qquad h_t = o_t \tanh(c_t) $$
#
# $g_t$ is what a plain network would compute. Three **gates** between 0 and 1 read $x_t$ and
# $h_{t-1}$: the forget gate $f_t$ says how much of the cell stays, $i_t$ how much is added, $o_t$
# how much is shown. In the library's backward pass look for the line in which the cell's gradient
# `dc` goes to the token before.

# %%
show(F.lstm_backward)

# %% [markdown]
# It is `dc * f[:, t]`. Along the cell the gradient is multiplied by forget gates and by nothing
# else:
#
# $$ dc_{t-k} = dc_t \cdot f_t\, f_{t-1} \cdots f_{t-k+1} \;+\; \text{the ways through } h $$
#
# The gates of a new LSTM have random weights and biases near 0. Fifty steps back, is its gradient
# `"longer"` or `"shorter"` than that of the plain network with $s = 1.2$?

# %%
guess = ...

# %%
def new_lstm(bias, seed):
    """An LSTM of random weights; ``bias`` is added to that of its forget gates."""
    trunk = LSTM(LSTMConfig(n_layer=1, n_embd=D, dropout=0.0), seed=seed)
    trunk.h[0].lstm.bias.data[D:2 * D] += bias
    return trunk


def lstm_lengths(bias, seed):
    """(T,): the length of dx k steps back, relative to k = 0"""
    rng, layer = np.random.default_rng(seed), new_lstm(bias, seed).h[0].lstm
    _, cache = layer.forward(0.3 * rng.standard_normal((1, T, D), np.float32))
    dy = np.zeros((1, T, D), np.float32)
    dy[0, -1] = rng.standard_normal(D)
    lengths = np.linalg.norm(layer.backward(dy, cache)[0], axis=1)[::-1]
    return lengths / lengths[0]


BIASES = 4, 2, 0
gated = {bias: np.array([lstm_lengths(bias, seed) for seed in range(8)]) for bias in BIASES}
medians = {f"LSTM, forget bias {bias}": np.median(runs, axis=0) for bias, runs in gated.items()}
medians["plain, s = 1.2"] = np.median(plain[1.2], axis=0)
reveal(guess, "longer" if medians["LSTM, forget bias 0"][50] > medians["plain, s = 1.2"][50]
       else "shorter")
curves(medians, "LSTM: the gradient on its way back, median of 8", "steps back, k",
       "length, relative to k = 0", log="y", styles=("-", "-.", ":", "--"),
       inks=(color.teal, color.ink, color.ochre, color.grey))

# %% [markdown]
# With a bias of 0 a gate is about one half, and one half to the power of 50 is nothing. With a bias
# of 4 the gates are close to 1, and the gradient arrives. It is not the cell that keeps a gradient
# alive, but open gates.
#
# ## Does it matter?
#
# A task: the first token is 1 or -1, all others are noise of size 0.3, and after the last one the
# model says which the first was. We train the same LSTM from three forget biases, on 10, 30 and 60
# tokens. A coin has 50 %. What does bias 0 reach at 60 tokens?

# %%
guess = ...                                               # %

# %%
class FirstBit:
    """The first of many tokens is to be remembered."""

    name, input_dim, output_dim, output_tokens = "first-bit", 1, 2, 1

    def __init__(self, tokens):
        self.tokens = tokens

    def batch(self, rng, size, split="train"):
        x = 0.3 * rng.standard_normal((size, self.tokens, 1)).astype(np.float32)
        y = rng.integers(0, 2, (size, 1))
        x[:, 0] = 2 * y - 1
        return x, y

    def loss(self, logits, y):
        loss, cache = F.cross_entropy(logits, y)
        return float(loss), F.cross_entropy_backward(1.0, cache)

    def accuracy(self, logits, y):
        return float((logits.argmax(axis=-1) == y).mean())


def accuracy(tokens, bias):
    """Percent right on new sequences after 300 steps."""
    model = minifpt.FPT(new_lstm(bias, seed=0), 1, 2, 1, seed=0)
    history = minifpt.train(model, FirstBit(tokens), steps=300, batch_size=32, lr=3e-3, seed=0,
                            schedule="constant", warmup=0, eval_every=300, progress=False)
    return 100 * history["test_accuracy"][-1]


LENGTHS = 10, 30, 60
runs = {bias: [accuracy(tokens, bias) for tokens in LENGTHS] for bias in tqdm(BIASES)}
reveal(guess, float(runs[0][-1]), "%")
curves({f"forget bias {bias}": values for bias, values in runs.items()},
       "Remembering the first token after 300 steps", "tokens", "right, %", x=LENGTHS,
       styles=("-o", "-.s", "--^"), inks=(color.teal, color.ink, color.ochre), level=50,
       xticks=LENGTHS, ylim=(40, 103))
for bias, values in runs.items():
    print(f"bias {bias}:", ", ".join(f"{tokens} tokens {value:.0f} %"
                                     for tokens, value in zip(LENGTHS, values, strict=True)))

# %% [markdown]
# All three could hold one bit: at 10 tokens they learn to. The smaller the first token's share of
# the gradient of all tokens, the less it teaches. With a bias of 2 that share is enough at 30
# tokens and not at 60, in these steps. (One seed is shown; two more say the same. One block of
# attention learns 60 tokens as well: there the gradient reaches every token in one step.)
#
# ## Exercises
#
# Solutions are in `solutions/15_memory_without_attention.py`.
#
# **1.** Which bias must a forget gate have, if its other inputs are 0, so that after $n$ steps half
# of the gradient along the cell is left? ($f = 1 / (1 + e^{-b})$.)

# %%
def bias_for_half(n):
    """n steps -> the bias b"""
    return ...


check("bias_for_half", bias_for_half)


# %% [markdown]
# **2.** Leave out everything of an LSTM but the cell, and make the gate a weight:
# $c_t = f \cdot c_{t-1} + x_t$ with $f$ `(D,)`, the same at every token, and $c_{-1} = 0$. Write
# the backward pass.

# %%
def decay_backward(dy, x, f):
    """dy (T, D): what arrives at each c_t as an output, without what comes back from c_(t+1);
    x (T, D), f (D,) -> dx (T, D), df (D,)"""
    dx = ...
    df = ...
    return dx, df


check("decay_backward", decay_backward)


# %% [markdown]
# **3.** *Open.* "How far back does the gradient reach?" Turn curves like those above into numbers
# of steps. There is no single right definition, but: a curve that fades more slowly reaches
# further; the unit of the loss has no say; a single step out of line does not decide; one that
# loses an eighth at each of 70 steps does not reach its end; one that does not fade reaches at
# least its end, and the number is finite. Then compare the LSTMs with the plain networks.

# %%
def reach(lengths):
    """lengths (N, K): row n, column k the length of a gradient k steps back -> (N,) steps"""
    return ...


check("reach", reach)

# %%
curves_of = {f"LSTM, bias {bias}": gated[bias] for bias in gated} | {
    f"plain, s = {s}": plain[s] for s in plain}
steps = reach(np.array([np.median(runs, axis=0) for runs in curves_of.values()]))
if steps is not ...:
    print("\n".join(f"{name}: {n:.1f} steps" for name, n in zip(curves_of, steps, strict=True)))

# %% [markdown]
# **Next**: [lesson 16](16_both_directions.ipynb), where a token may look at what comes after it.
# `lstm` and `lstm_backward` are the last functions of your own file.
