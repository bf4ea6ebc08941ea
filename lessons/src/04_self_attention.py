# %% [markdown]
# # 4. Self-attention
#
# **What a word means depends on the words before it. How does a token decide where to look, and
# what does it bring back?**
#
# After this lesson you can
#
# - write self-attention with queries, keys, values and heads, and say what each is for;
# - say what the mask is for, and show what a model learns without it.
#
# **What we know by now.** Softmax turns scores into shares, and a gradient comes back through it.
# So far each token has gone through its layers alone.
#
# **The question:** Where does a token look?
#
# You need [lesson 2](02_softmax_and_cross_entropy.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
import math

import numpy as np

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, model_map, picture, reveal, show
from minifpt.exercises.track import written
from minifpt.files.tokenizer import Bytes

model_map("attention")

# %% [markdown]
# ## Looking, without weights
#
# We have $T$ tokens with $C$ channels each, $x$ `(T, C)`. In **self-attention** each row takes
# something from other rows. The simplest form: each pair of tokens gets a **score**, their dot
# product, and softmax turns each row of scores into shares. Then each token takes the average of
# all tokens, weighted by its shares.
#
# $$ S = x\,x^\top, \qquad A = \text{softmax}(S), \qquad y = A\,x $$
#
# $S$ and $A$ are `(T, T)`. $A$ is the **attention map**: row $t$ says where token $t$ looks.
#
# We draw six random tokens of 16 channels. What share, on average, does a token give to itself?

# %%
guess = ...                                               # a number from 0 to 1

# %%
rng = np.random.default_rng(4)
x = rng.standard_normal((6, 16))                          # (T, C)
S = x @ x.T                                               # (T, T)
A, _ = F.softmax(S)
reveal(guess, float(A.diagonal().mean()))

fig, axes = figure(2, width=3.5, height=2.9)
matrix(axes[0], S, "scores: x xᵀ", "is looked at", "looks", digits=0)
matrix(axes[1], A, "shares: softmax of each row", "is looked at", "looks", limit=1)
picture(fig)

# %% [markdown]
# One sixth each? The tokens are random, but no token is random to itself. Its score with itself is
# a sum of 16 squares, about 16. With another token the 16 products have both signs, and their sum
# is about ±4. Softmax compares the exponentials: $e^{16}$ against $e^4$.
#
# So this attention is of no use: each token brings back what it had. And the scores are symmetric,
# so a token cannot *ask* for one thing and *offer* another.
#
# ## Query, key, value
#
# So we give each token three roles, with three weights $W_q, W_k, W_v$, each `(C, D)`. The
# **query** is what a token asks for, the **key** is what others find it by, and the **value** is
# what it hands over. All three are `(T, D)`:
#
# $$ q = x\,W_q, \qquad k = x\,W_k, \qquad v = x\,W_v $$
#
# $$ S = \frac{q\,k^\top}{\sqrt D}, \qquad A = \text{softmax}(S), \qquad y = A\,v $$
#
# Why $\sqrt D$? A score is a sum of $D$ products. If queries and keys hold independent numbers with
# mean 0 and variance 1 (the square of the standard deviation), each product has variance 1, and
# variances add up to $D$. The division brings a score back to size 1, in a wide model as in a
# narrow one.
#
# Let us set the weights by hand. Tokens are pairs such as `a7`; the last one asks which number
# stands with `b`. Its query is `b`. Its own key must not match, so we make it negative for every
# letter. (The 20 makes the shares almost 0 or 1.)

# %%
# Not to be read: a text becomes numbers.
def tokens(text):
    """"a7 b3 b?" -> x (T, C); the C = 5 channels are a, b, c, ? and the number"""
    x = np.zeros((len(text.split()), 5))
    for row, (letter, digit) in zip(x, text.split(), strict=True):
        row["abc".index(letter)] = 1
        row[3:] = (1, 0) if digit == "?" else (0, int(digit))
    return x


# %%
# One row for each channel.  Query: its letter.  Key: its letter, unless "?".  Value: its number.
W_q = 20 * np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
W_k = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-2, -2, -2], [0, 0, 0]])
W_v = np.array([[0], [0], [0], [0], [1]])


def look_up(text):
    x = tokens(text)
    A, _ = F.softmax((x @ W_q) @ (x @ W_k).T / math.sqrt(3))
    return A, A @ (x @ W_v)


print(f"a7 b3 c5 b?  ->  {look_up('a7 b3 c5 b?')[1][-1, 0]:.2f}")

# %% [markdown]
# Now `b` stands there twice, with 3 and with 9. What comes out?

# %%
guess = ...

# %%
text = "a7 b3 c5 b9 b?"
A, y = look_up(text)
reveal(guess, float(y[-1, 0]))

fig, (ax,) = figure(width=3.2)
matrix(ax, A, "A: the question looks at both", "is looked at", "looks", limit=1,
       columns=text.split(), rows=text.split())
picture(fig)

# %% [markdown]
# Not 3, not 9, and not both. Both keys match equally well, so each gets half, and attention returns
# an average, a number not in the text. A token that wants two whole answers needs two maps. So we
# cut $q$, $k$ and $v$ `(T, C)` into $H$ **heads** of $D = C / H$ channels. Each head has its own
# map, and we join their outputs.
#
# ## The mask
#
# A language model predicts the next token, at all positions at once. At position $t$ it must not
# see what comes after $t$. So the **causal mask** adds $-\infty$ to the scores of later tokens. As
# $e^{-\infty} = 0$, they get no share, and the other shares still sum to 1.
#
# What if we forget it? A model with one head predicts *coin flips*. Nobody can know the next flip,
# so no honest loss is below $\log 2 = 0.693$. How low does the loss go without the mask?

# %%
guess = ...                                               # in nats


# %%
# Not to be read: training with Adam, a kind of gradient descent (lesson 12).
def train_on_coins(causal, T=10):
    """-> its losses, and the attention map (T, T), a mean over 16 texts"""
    config = minifpt.GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=T, vocab_size=2,
                                dropout=0.0, initializer_range=0.25, causal=causal)
    rng, model, losses = np.random.default_rng(0), minifpt.LanguageModel(config, seed=0), []
    adam = minifpt.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(600):
        coins = rng.integers(0, 2, (16, T + 1))
        logits, cache = model.forward(coins[:, :-1])
        loss, cache_loss = F.cross_entropy(logits, coins[:, 1:])
        losses.append(loss)
        model.zero_grad()
        model.backward(F.cross_entropy_backward(1.0, cache_loss), cache)
        adam.step()
    with minifpt.trace(model) as t:
        model.logits(coins[:, :-1])
    return np.array(losses), t.attention["trunk.h.0.attn"].mean(axis=0)[0]


(masked, map_masked), (free, map_free) = train_on_coins(True), train_on_coins(False)
reveal(guess, float(free[-20:].mean()), "nats")

fig, axes = figure(3, width=3.0, height=2.8, ratios=[1.4, 1, 1])
curves({"with mask": masked, "without": free}, "Nobody can predict a coin", ylabel="loss (nats)",
       ax=axes[0], inks=(color.teal, color.ochre), level=math.log(2), note="log 2", ylim=(0, 0.8))
for ax, A, title in zip(axes[1:], (map_masked, map_free), ("map with mask", "map without"),
                        strict=True):
    matrix(ax, A, title, "is looked at", "looks", limit=1, digits=None)
picture(fig)
show(F.causal_mask)

# %% [markdown]
# **This is the picture to keep.** Without the mask the model "predicts" the next flip by looking at
# it: each token looks at the next one. Why is the loss not 0? The last of the ten tokens has no
# next one, and has to guess: $\log 2$ for one of ten, 0.069 on average. (One run of each.) When the
# model writes, there is no next flip to look at.
#
# ## Positions
#
# Does a token know where the others stand? We shuffle the earlier tokens and look at the last one.

# %%
qkv = rng.standard_normal((3, 1, 2, 10, 4))               # queries, keys, values: 2 heads
order = np.r_[rng.permutation(9), 9]                      # the last token stays
shuffled, y = F.attention(*qkv[..., order, :])[0], F.attention(*qkv)[0]
print(f"the last token's output moves by {np.abs(shuffled - y)[..., -1, :].max():.0e}")

# %% [markdown]
# It does not: a weighted sum has no order. To "?", "dog bites man?" and "man bites dog?" are the
# same. So GPT-2 adds to each token a vector that belongs to its position, a **position embedding**,
# from a table `wpe` `(n_positions, C)`.
#
# ## Strings of bits, on your own file
#
# Write `positions`, `positions_backward` and `attention` in `mine.py`. Attention computes all heads
# at once: `q`, `k` and `v` are `(B, H, T, D)`. `p` is for **dropout**, which sets some shares to 0
# at random in training; here it is 0. `PositionsCache.tokens` is a `slice(start, stop)` of the
# table's rows. The library's backward pass reads your cache.
#
# Now five strings of 20 bits come in, each as one token, then one of them again with half of its
# bits hidden. The model has to return the whole string. If it copies what it sees and guesses the
# rest, it gets 75 %. It has one block with one head, whose weights are random, large, and *frozen*.
# We train the input layer, positions, norms and output layer, with five seeds. How many get beyond
# 80 %?

# %%
BEGIN = False                                             # True: appends the stubs to mine.py
if BEGIN:
    print("new in mine.py:", *minifpt.new("mine.py", lesson=4))
guess = ...                                               # of 5

# %%
# Not to be read: five trainings.
task = minifpt.tasks.get("bit-memory", bits=20, patch=20)


def recall(seed, steps=150):
    """-> the bits right (%), every 25 steps"""
    model = minifpt.FPT.for_task(task, "random:1x1x64@1.41", seed=seed, dropout=0.0)
    history = minifpt.train(model, task, steps, batch_size=16, lr=1e-2, seed=seed, warmup=0,
                            schedule="constant", eval_every=25, test_examples=256,
                            progress=False)
    return 100 * history["test_accuracy"]


with written("mine.py", "positions", "positions_backward", "attention", "linear") as whose:
    runs = [recall(seed) for seed in range(5)]
reveal(guess, sum(run[-1] > 80 for run in runs), "of 5")
curves({"": runs}, f"One frozen random head, five seeds\n{whose}", ylabel="bits right (%)",
       x=range(25, 151, 25), inks=[color.random], level=75, note="copy and guess")

# %% [markdown]
# Nobody has taught this head where to look. But the trained layers before it change what it reads,
# and it finds the string. [Lesson 22](22_why_random_weights_find_a_string.ipynb) asks how.
#
# ## Exercises
#
# **1.** All queries are 0, and there is a causal mask. What is $y$? You need neither scores nor a
# softmax.

# %%
def answer_to_no_question(v):
    """v (T, D), all queries are 0, causal mask -> y (T, D)"""
    return ...


check("answer_to_no_question", answer_to_no_question)


# %% [markdown]
# **2.** For long texts, many models look only at a **window**: each token sees itself and the $w -
# 1$ tokens before it. Write one such head, whole.

# %%
def windowed_attention(q, k, v, w):
    """q, k (T, D), v (T, E), w >= 1 -> y (T, E): causal, at most w tokens seen"""
    return ...


check("windowed_attention", windowed_attention)


# %% [markdown]
# ## Going further
#
# **Dropout in your own file**, if you like: `minifpt.new("mine.py", lesson=18)` appends `dropout`
# and the functions that no other lesson asks for. `dropout` and its backward pass multiply what
# they keep by $1/(1 - p)$, so that the mean stays; with $p = 0$ they draw nothing, and `rng` may be
# `None`.
#
# **Do heads make use of positions?** Here is the trunk *language* of lesson 0 as a language model.
# In a second copy we set the table of positions to 0. These are the maps of its first block; a dot
# stands for a space.

# %%
def maps(model, text):
    """Where each head looks -> (blocks, H, T, T)"""
    with minifpt.trace(model) as t:
        model.logits(np.array([Bytes().encode(text)]))
    return np.array([t.attention[f"trunk.h.{i}.attn"][0] for i in range(model.config.n_layer)])


model, blind = (minifpt.LanguageModel.from_pretrained("minigpt-language") for _ in range(2))
blind.trunk.wpe.weight.data[:] = 0
short = "The sisters saw the sea"
letters = list(short.replace(" ", "·"))
fig, axes = figure(4, 2, width=2.55, height=2.65)
for row, (m, note) in enumerate(((model, ""), (blind, ", no positions"))):
    for h, A in enumerate(maps(m, short)[0]):
        matrix(axes[4 * row + h], A, f"head {h}{note}", limit=1, digits=None, columns=letters,
               rows=letters)
        axes[4 * row + h].tick_params(labelsize=6)
picture(fig)

# %% [markdown]
# With positions, heads 3 and 0 are rulers: they look one byte and two bytes back, and hardly
# anywhere else. Without positions, no head prefers a distance.
#
# **3.** *Open.* Some heads go by position, others by content. Find a measure: given the maps of
# several texts of one length, which head picks out one position, and the same one in every text?
# Careful: a head that looks everywhere equally also does the same in every text. Then run it on the
# model. Is the winner the one that you expect?

# %%
def goes_by_position(maps):
    """maps (texts, blocks, H, T, T) -> (block, head) that goes most by position"""
    return ...


check("goes_by_position", goes_by_position)

# %%
texts = ["It was late in the evening when the two sisters came back.",
         "The captain was a tall man with a grey beard, who had been",
         "My dear Margaret, I have received your letter of the third"]
collected = np.array([maps(model, text) for text in texts])
if goes_by_position(collected) is not ...:
    print("maps", collected.shape, "-> yours:", goes_by_position(collected))

# %% [markdown]
# **The picture to keep:** the map of a head, with and without its mask.
#
# **The sentence to remember:** *A token asks with its query, others find it by its key, and it
# hands over its value.*
#
# **What we do not know yet.** How does a head learn where to look: who gets the gradient?
#
# **Next**: [lesson 24](24_who_gets_the_gradient.ipynb), what the gradient says to queries, keys and
# values.
