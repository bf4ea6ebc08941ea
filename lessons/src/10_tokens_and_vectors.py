# %% [markdown]
# # 10. Tokens and vectors
#
# **A model computes with numbers, and it reads words. A table holds a row of numbers for each word.
# How does a row learn from every place where its word stands?**
#
# After this lesson you can
#
# - say why looking up a row and multiplying by a one-hot vector are the same, forward and backward;
# - see the mistake that loses gradients where a word occurs twice, and choose data that show it;
# - train word vectors with gradients written by hand, and say why a training that works does not
#   show that a gradient is right.
#
# You need lessons [1](01_gradients_by_hand.ipynb) and [2](02_softmax_and_cross_entropy.ipynb).

# %%
import re

import numpy as np
from scipy.special import expit
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.files.weights import shipped
from minifpt.layers import Parameter

# %% [markdown]
# ## A word is a row
#
# A model reads **tokens**. Ours are bytes, GPT-2's are frequent pieces of words, and in this lesson
# they are whole words, because we can judge what a model learns about a word. Each kind of token
# has a number, its **id**.

# %%
sentence = "the cat saw the dog and the bird".split()
names = sorted(set(sentence))
ids = np.array([names.index(word) for word in sentence])  # (T,)
V, C = len(names), 4                                      # words in the vocabulary, channels
print("ids:", ids)

# %% [markdown]
# The ids themselves are no good as input: `bird` is not less than `cat`. So give each word an axis
# of its own. A **one-hot vector** `(V,)` is 1 at the word's id and 0 elsewhere. A linear layer
# comes next, with a weight $w$ `(V, C)`, which we call the **table**. With the sentence's one-hot
# vectors in $X$ `(T, V)`,
#
# $$ y = X\,w \qquad (T, C) $$

# %%
rng = np.random.default_rng(0)
w = rng.standard_normal((V, C)).round(1)                  # (V, C)
X = np.eye(V)[ids]                                        # (T, V)
fig, axes = figure(3, width=3.0, height=3.0, ratios=[1.3, 1, 1])
matrix(axes[0], X, "X: one row for each token", "id", rows=sentence, digits=0)
matrix(axes[1], w, "w: the table", "channel", rows=names, limit=2, digits=1)
matrix(axes[2], X @ w, "y = X w", "channel", rows=sentence, limit=2, digits=1)
picture(fig)
print("the product is the rows that the ids name:", bool((X @ w == w[ids]).all()))

# %% [markdown]
# Nobody makes $X$: an **embedding** is the look-up `w[ids]`, without a multiplication. But the
# product tells us the backward pass.
#
# ## The way back adds
#
# From lesson 1, with $dy$ `(T, C)` the gradient that arrives at $y$,
#
# $$ dw = X^\top dy, \qquad dw_v = \sum_{t:\ \text{id}_t = v} dy_t $$
#
# Each place where word $v$ stands adds its gradient to row $v$: a **scatter-add**. NumPy has a
# short line that looks like it: `dw[ids] += dy`. *The* stands three times in our sentence, so three
# gradients belong in its row. How many of them are in it after that line?

# %%
guess = ...


# %%
def broken_backward(dy, cache):
    """F.embedding_backward, with a line that looks right"""
    dw = np.zeros(cache.shape)
    dw[cache.ids] += dy
    return dw


dy = rng.integers(-3, 4, (len(ids), C)).astype(float)     # (T, C)
y, cache = F.embedding(ids, w)
right, broken = F.embedding_backward(dy, cache), broken_backward(dy, cache)
the = ids == names.index("the")
added = [n for n in range(4) if np.allclose(broken[names.index("the")], dy[the][3 - n:].sum(0))]
reveal(guess, added[0])

fig, axes = figure(3, width=2.4, height=3.0)
matrix(axes[0], dy, "dy", "channel", rows=sentence, limit=6, digits=0)
matrix(axes[1], right, "the library's dw", "channel", rows=names, limit=6, digits=0)
matrix(axes[2], broken, "dw[ids] += dy", "channel", rows=names, limit=6, digits=0)
picture(fig)
print("the library's dw is Xᵀ dy:", bool((right == X.T @ dy).all()))
show(F.embedding_backward)

# %% [markdown]
# `dw[ids] += dy` means: read `dw[ids]`, add `dy`, write the result back. All three places read the
# same 0, and the last one to write wins. No error is raised, and the shapes are right.
# (`np.add.at` adds at one place after the other. A model runs a faster form, which sorts the ids
# and sums each run of equal ones.)
#
# Would a gradient check see it? That depends on the data: here is a sentence in which no word
# occurs twice, and ours.

# %%
for text in ("bird and cat", " ".join(sentence)):
    data = np.array([names.index(word) for word in text.split()])
    for name, backward in (("library", F.embedding_backward), ("broken", broken_backward)):
        report = minifpt.gradcheck(F.embedding, backward, (data, w))
        print(f"{text:34} {name:8} {'pass' if report else 'FAIL'}")

# %% [markdown]
# A test of an embedding needs repeats.
#
# ## A word is known by its neighbours
#
# In **skip-gram** (Mikolov et al., arXiv 1301.3781) the table is the whole model: from a word it
# predicts the words near it. *Could* and *should* have the same neighbours, so they must predict
# the same words, and get similar rows.
#
# There are two tables `(V, C)`, $u$ for a word that predicts, $v$ for one that is predicted, and a
# score $s = u_c \cdot v_o$ for word $o$ near word $c$. The question is: does this pair come from
# the text (label 1), or was $o$ drawn at random (label 0)? With the probability
# $\sigma(s) = 1 / (1 + e^{-s})$ of "from the text", each word $c$ gets one real partner and five
# drawn ones; $v_k$ `(C,)` is the row of partner $k = 0, \dots, 5$. Each costs a cross-entropy with
# two classes, and as in lesson 2 its gradient is the probability minus the truth:
#
# $$ ds_k = \sigma(s_k) - \text{label}_k, \qquad
#    du_c = \sum_k ds_k\, v_k, \qquad dv_k = ds_k\, u_c $$
#
# Then each row's gradient is *added* where the row was looked up.


# %%
def skip_gram(u, v, center, targets):
    """u, v (V, C); center (B,); targets (B, 6), the real one first -> loss, cache"""
    x, y = u[center], v[targets]                          # (B, C) and (B, 6, C)
    s = (y @ x[:, :, None])[:, :, 0]                      # (B, 6)
    label = np.zeros_like(s)
    label[:, 0] = 1
    loss = np.logaddexp(0, np.where(label == 1, -s, s)).sum(axis=1).mean()
    return loss, (u.shape, center, targets, x, y, s, label)


def skip_gram_backward(dloss, cache, scatter=F.embedding_backward):
    """-> du, dv (V, C)"""
    shape, center, targets, x, y, s, label = cache
    ds = dloss * (expit(s) - label) / len(s)              # (B, 6)
    dx = (ds[:, None] @ y)[:, 0]                          # (B, C)
    dy = ds[:, :, None] * x[:, None]                      # (B, 6, C)
    return (scatter(dx, F.EmbeddingCache(center, shape)),
            scatter(dy, F.EmbeddingCache(targets, shape)))


small = rng.standard_normal((2, 7, 3))
print(minifpt.gradcheck(skip_gram, skip_gram_backward,
                        (*small, rng.integers(0, 7, 12), rng.integers(0, 7, (12, 6)))))

# %% [markdown]
# The text is a file that ships with the library, the ends of five novels, without the words that
# occur fewer than five times. Each word predicts the two before it and the two after it. Adam
# (lesson 12) trains the tables, which begin with small random numbers. No score is far from 0 then:
# what is the loss of the six questions at the start?

# %%
guess = ...                                               # in nats

# %%
words = re.findall("[a-z]+", shipped("held-out.txt").read_text().lower())
kinds, count = np.unique(words, return_counts=True)
vocabulary, often = [str(word) for word in kinds[count >= 5]], count[count >= 5]
number = {word: i for i, word in enumerate(vocabulary)}
text_ids = np.array([number[word] for word in words if word in number])
V, C, BATCH = len(vocabulary), 32, 512


def train_vectors(seed, backward=skip_gram_backward, reach=2, epochs=5):
    """-> u (V, C), and the loss of each step; a word's partners are up to ``reach`` words away"""
    rng = np.random.default_rng(seed)
    tables = [Parameter((0.05 * rng.standard_normal((V, C))).astype(np.float32), "input")
              for _ in "uv"]
    adam = minifpt.optim.Adam(tables, lr=0.003)
    pairs = np.concatenate([pair for d in range(1, reach + 1) for pair in (
        np.stack([text_ids[:-d], text_ids[d:]], axis=1),
        np.stack([text_ids[d:], text_ids[:-d]], axis=1))])           # (N, 2)
    noise = often ** 0.75 / (often ** 0.75).sum()         # the drawn words: the paper's choice
    per_epoch, losses = len(pairs) // BATCH, []
    for step in tqdm(range(epochs * per_epoch), desc="skip-gram", leave=False):
        if step % per_epoch == 0:
            rng.shuffle(pairs)
        at = step % per_epoch * BATCH
        center, real = pairs[at:at + BATCH].T
        drawn = rng.choice(V, (BATCH, 5), p=noise)
        loss, cache = skip_gram(*(table.data for table in tables), center,
                                np.concatenate([real[:, None], drawn], axis=1))
        for table, grad in zip(tables, backward(1.0, cache), strict=True):
            table.grad = grad.astype(np.float32)
        adam.step()
        losses.append(float(loss))
    return tables[0].data, np.array(losses)


SEEDS = range(3)
runs = [train_vectors(seed) for seed in SEEDS]
reveal(guess, float(runs[0][1][0]), "nats")
print(f"6 log 2 = {6 * np.log(2):.3f}; at the end:",
      ", ".join(f"{losses[-200:].mean():.2f}" for _, losses in runs))

# %% [markdown]
# ## Are these good neighbours?
#
# How alike two words are is measured by the **cosine** of the angle between their rows. It is easy
# to print the nice ones only, so here are also 30 pairs that we wrote down before we trained
# anything. For each pair: which share of all other words stands nearer to the one than its partner
# does? 0 is best, and a table that knows nothing has 0.5 on average. What is the trained table's
# median over the pairs?

# %%
guess = ...                                               # a number from 0 to 1

# %%
PAIRS = [pair.split() for pair in (
    "he she,his her,him me,could would,should must,can may,is was,has had,mr mrs,up down,in on,"
    "before after,father mother,eyes face,hand head,day night,said asked,first last,come go,"
    "give take,my your,we they,this that,who which,man woman,good great,two three,little small,"
    "came went,old young").split(",")]
PAIRS = [(number[a], number[b]) for a, b in PAIRS if a in number and b in number]


def cosines(table):
    """(V, C) -> (V, V)"""
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return unit @ unit.T


def nearest(table, word, n=5):
    closest = np.argsort(-cosines(table)[number[word]])
    return ", ".join(vocabulary[i] for i in closest[1:n + 1])        # the first is itself


def ranks(table):
    """For each pair, the share of the other words that are nearer, the mean of both ways"""
    like = cosines(table)
    return np.array([np.mean([((like[one] > like[a, b]).sum() - 1) / (V - 2) for one in (a, b)])
                     for a, b in PAIRS])


untrained = np.random.default_rng(9).standard_normal((V, C))
right_ranks = [ranks(table) for table, _ in runs]
reveal(guess, float(np.median(right_ranks)))
curves({"untrained": np.sort(ranks(untrained)), "trained, three seeds": np.sort(right_ranks)},
       "How many words are nearer than the partner? (dotted: chance)",
       "pairs, from the nearest to the furthest", "share of words", level=0.5,
       styles=("x", "-"), inks=(color.grey, color.trained))
for word in "could down eyes night snow".split():
    print(f"{word:6} {nearest(runs[0][0], word):40} (untrained: {nearest(untrained, word, 3)})")

# %% [markdown]
# With each seed most partners are near each other. Now we train with the broken scatter-add, which
# loses most of the gradients of frequent words. What does the median become?

# %%
guess = ...                                               # a number from 0 to 1


# %%
def losing_backward(dloss, cache):
    return skip_gram_backward(dloss, cache, scatter=broken_backward)


broken_runs = [train_vectors(seed, losing_backward) for seed in SEEDS]
broken_ranks = [ranks(table) for table, _ in broken_runs]
reveal(guess, float(np.median(broken_ranks)))
for name, some_runs, some_ranks in (("right", runs, right_ranks),
                                    ("broken", broken_runs, broken_ranks)):
    print(f"{name:6}   loss at the end:",
          ", ".join(f"{losses[-200:].mean():.3f}" for _, losses in some_runs),
          "  median rank:", ", ".join(f"{np.median(r):.3f}" for r in some_ranks))

# %% [markdown]
# The partners are still near each other, where a table that knows nothing has 0.5. The loss is a
# little higher with each seed, but nobody who saw only the second line would call it wrong. A
# training that works does not show that a gradient is right. The gradient check, on data with
# repeats, does.
#
# ## Exercises
#
# **1.** The gradient of a single row of the table, without making the others.

# %%
def row_gradient(dy, ids, v):
    """dy (B, T, C), ids (B, T), v an id -> the gradient of row v, (C,)"""
    return ...


check("row_gradient", row_gradient)


# %% [markdown]
# **2.** GPT-2 uses its table twice: at the input $x = w[\text{ids}]$, and at the output for the
# scores of the next token, $\text{logits} = y\,w^\top$, with $y$ from the last layer. The table is
# **tied** (arXiv 1608.05859). Write its whole gradient: `dx` arrives at the input, `dlogits` at the
# scores.

# %%
def tied_gradient(dx, ids, dlogits, y):
    """dx (B, T, C), ids (B, T), dlogits (B, T, V), y (B, T, C) -> dw (V, C)"""
    return ...


check("tied_gradient", tied_gradient)


# %% [markdown]
# **3.** *Open.* Which of several tables knows best that certain words belong together? Choose a
# measure. Tables may differ in the length of their rows, a table may have rows that all point about
# the same way, being opposite is not being alike, and one pair alone says little. Then set `RUN` to
# `True`: near neighbours find words that can replace each other, distant ones words on the same
# subject. Do you see it?

# %%
def best_table(tables, pairs):
    """tables: a list of arrays (V, C), pairs: a list of (id, id) -> the index of the best table"""
    return ...


check("best_table", best_table)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    wider = {reach: train_vectors(0, reach=reach)[0] for reach in (2, 4, 8)}
    for reach, table in wider.items():
        print(f"reach {reach}: median rank {np.median(ranks(table)):.3f}; "
              f"snow: {nearest(table, 'snow')}; elizabeth: {nearest(table, 'elizabeth')}")
    print("best:", [*wider][best_table([*wider.values()], PAIRS)])

# %% [markdown]
# **Your own file.** `embedding` and `unembedding`, each with its backward, belong in your own file
# (`minifpt check mine.py`).
#
# **Next**: skip-gram looks at pairs and forgets their order. A language model reads everything that
# came before. [Lesson 11](11_pretraining.ipynb) trains one from nothing.
