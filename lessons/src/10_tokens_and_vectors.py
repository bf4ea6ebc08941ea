# %% [markdown]
# # 10. Tokens and vectors
#
# **A model computes with numbers, and it reads words. Which numbers stand for a word? And how can a
# table of numbers come to hold that *mother* is like *father*?**
#
# After this lesson you can
#
# - learn a tokenizer from a text, and say which words it cuts to pieces;
# - say why looking up a row and multiplying by a one-hot vector are the same, forward and backward;
# - see the mistake that loses gradients where a token occurs twice, and choose data that show it;
# - train word vectors with gradients written by hand, and judge them by more than a few nice words;
# - say which two gradients a table gets that is used at both ends of a model.
#
# You need lessons [1](01_gradients_by_hand.ipynb) and [2](02_softmax_and_cross_entropy.ipynb). It
# takes an hour and a quarter.

# %%
import re
from collections import Counter

import numpy as np
from scipy.special import expit
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.layers import Parameter

# %% [markdown]
# ## Where a text is cut
#
# A model reads **tokens**. If a token is a word, the model has none for a word that it never saw.
# If it is a byte, every text can be written, but a text has many tokens, and attention (lesson 4)
# computes a score for each pair. GPT-2 stands between the two, with **byte-pair encoding**
# (Sennrich, Haddow and Birch, *Neural Machine Translation of Rare Words with Subword Units*, arXiv
# 1508.07909). It begins with bytes, finds the pair of neighbours that occurs most often, makes one
# symbol of this pair, and does so again and again. The list of these **merges**, in their order, is
# all that is learned.
#
# The text is 30,000 characters of a file that ships with the library, the ends of five novels. Its
# words are cut apart first, each with the space before it, so that no symbol spans two words. Which
# pair becomes the first merge?
# (The two are written one after the other, with _ for a space.)

# %%
guess = ...                                               # two characters, such as "qu"


# %%
def cut(text):
    """The words of a text, a character for each byte"""
    return re.findall(r"\s?\S+|\s", text.encode().decode("latin-1"))


def merge(symbols, pair):
    """Make one symbol of each place where the two symbols of ``pair`` are neighbours"""
    out = []
    for symbol in symbols:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return out


def learn_merges(text, n):
    """-> the n merges, pairs of symbols"""
    times = Counter(cut(text))
    words, merges = {word: list(word) for word in times}, []
    for _ in tqdm(range(n), desc="merges", leave=False):
        pairs = Counter()
        for word, symbols in words.items():
            for pair in zip(symbols[:-1], symbols[1:], strict=True):
                pairs[pair] += times[word]
        merges.append(max(pairs, key=pairs.get))
        for word, symbols in words.items():
            if merges[-1][0] in symbols:
                words[word] = merge(symbols, merges[-1])
    return merges


def encode(word, merges):
    """-> symbols: all merges in the order in which they were learned"""
    symbols = list(word.encode().decode("latin-1"))
    for pair in merges:
        symbols = merge(symbols, pair)
    return symbols


novels = minifpt.files.weights.shipped("held-out.txt").read_text()
merges = learn_merges(novels[:30000], 200)
reveal(guess, "".join(merges[0]).replace(" ", "_"))
print("the first:", " ".join("".join(pair).replace(" ", "_") for pair in merges[:24]))
print("the last: ", " ".join("".join(pair).replace(" ", "_") for pair in merges[-14:]))
for word in (" the", " mother", " daughters", " unbelievable", " xylophone", " Straße", " 3.14159"):
    print(f"{word:14}", " | ".join(part.encode("latin-1").decode("utf-8", "backslashreplace")
                                   for part in encode(word, merges)).replace(" ", "_", 1))

# %% [markdown]
# The frequent words have become one token, and the others are cut at places that sometimes make
# sense and often do not. A letter such as ß is two bytes, and may be cut in its middle. GPT-2 has
# 50,000 merges, learned from web pages.
#
# ## A word is a row
#
# Each kind of token has a number, its **id**. In the rest of the lesson the tokens are whole words,
# because we can judge what becomes of a word. (The models that ship with minifpt read bytes.
# Nothing below depends on it.)

# %%
sentence = "the cat saw the dog and the bird".split()
names = sorted(set(sentence))
ids = np.array([names.index(word) for word in sentence])  # (T,)
V, C = len(names), 4                                      # words in the vocabulary, channels
print("ids:", ids)

# %% [markdown]
# The ids themselves are no good as input: `bird` is not less than `cat`. So give each word an axis
# of its own. A **one-hot vector** `(V,)` is 1 at the word's id and 0 elsewhere. All pairs of
# different words are then equally far apart, so the vectors say nothing wrong about any word, and
# nothing right either. A linear layer comes next, with a weight $w$ `(V, C)`, which we call the
# **table**. With the sentence's one-hot vectors in $X$ `(T, V)`,
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
# GPT-2's table has 50,257 rows of 768 channels. For one token the product $X\,w$ needs 38.6 million
# multiplications and the look-up `w[ids]` none. So a library never makes $X$: an **embedding** is
# the look-up of the rows. But the product tells us what the backward is.
#
# ## The way back adds
#
# From lesson 1, with $dy$ `(T, C)` the gradient that arrives at $y$,
#
# $$ dw = X^\top dy, \qquad dw_v = \sum_{t:\ \text{id}_t = v} dy_t $$
#
# Row $v$ of the table was used at each place where word $v$ stands, and each place adds its
# gradient. This is called a **scatter-add**. NumPy has a short line that looks like it: `dw[ids] +=
# dy`. The word *the* stands three times in our sentence, so three gradients belong in its row of
# `dw`. How many of them are in it after that line?

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

# %% [markdown]
# `dw[ids] += dy` means: read `dw[ids]`, add `dy`, write the result back. All three places read the
# same 0, and the last one to write wins. No error is raised, and the shapes are right. The library
# sorts the ids, so that equal ones stand side by side, and sums each run:

# %%
show(F.embedding, F.embedding_backward)

# %% [markdown]
# Would a gradient check see it? That depends on the data. Here are both backward passes, on a
# sentence in which no word occurs twice, and on ours.

# %%
for text in ("bird and cat", " ".join(sentence)):
    data = np.array([names.index(word) for word in text.split()])
    for name, backward in (("library", F.embedding_backward), ("broken", broken_backward)):
        report = minifpt.gradcheck(F.embedding, backward, (data, w))
        print(f"{text:34} {name:8} {'pass' if report else 'FAIL'}  {report.max_relative_error:.0e}")

# %% [markdown]
# The broken one passes where each word occurs once. A test of an embedding needs repeats.
#
# ## A word is known by its neighbours
#
# Now to what the rows should *be*. We take the whole file as words, all in lower case, and drop
# those that occur fewer than five times.

# %%
LEAST = 5                                                 # how often a word must occur
words = re.findall("[a-z]+", novels.lower())
found, count = np.unique(words, return_counts=True)
order = [i for i in np.argsort(-count, kind="stable") if count[i] >= LEAST]
vocabulary = [str(word) for word in found[order]]         # the most frequent first
often = count[order]                                      # (V,)
number = {word: i for i, word in enumerate(vocabulary)}
text_ids = np.array([number[word] for word in words if word in number])
V = len(vocabulary)
print(f"the text: {len(words):,} words, {len(found):,} different ones, {V} occur at least "
      f"{LEAST} times and make up {len(text_ids) / len(words):.0%} of it")

# %% [markdown]
# There is a model in which the table is all there is: **skip-gram** (Mikolov et al., *Efficient
# Estimation of Word Representations in Vector Space*, arXiv 1301.3781). From a word it predicts the
# words that stand near it. Words that have the same neighbours, such as *could* and *should*, must
# then predict the same words, and get similar rows.
#
# There are two tables: $u$ `(V, C)` for a word that predicts, $v$ `(V, C)` for a word that is
# predicted. The score of word $o$ near word $c$ is $s = u_c \cdot v_o$. A softmax over all $V$
# scores would do, but it is much work for one pair. **Negative sampling** (Mikolov et al., arXiv
# 1310.4546) asks an easier question: is this pair from the text, or was $o$ drawn at random? With
# $\sigma(s) = 1 / (1 + e^{-s})$ as the probability of "from the text", one real pair and $K$ drawn
# words $n_1, \dots, n_K$ cost
#
# $$ L = -\log \sigma(u_c \cdot v_o) - \sum_{k=1}^{K} \log\big(1 - \sigma(u_c \cdot v_{n_k})\big) $$
#
# Each term is a cross-entropy with two classes, and as in lesson 2 its gradient is a difference,
# the probability minus the truth. Let $s_0$ be the score of the real pair, with label 1, and
# $s_1, \dots, s_K$ those of the drawn ones, with label 0. With $v_k$ `(C,)` the row of the word
# that is predicted in pair $k$:
#
# $$ ds_k = \sigma(s_k) - \text{label}_k, \qquad
#    du_c = \sum_k ds_k\, v_k, \qquad dv_k = ds_k\, u_c $$
#
# And then each row's gradient has to be *added* where the row was looked up.


# %%
def skip_gram(u, v, center, targets):
    """u, v (V, C); center (B,); targets (B, 1 + K), the real one first -> loss, cache"""
    x, y = u[center], v[targets]                          # (B, C) and (B, 1 + K, C)
    s = (y @ x[:, :, None])[:, :, 0]                      # (B, 1 + K)
    label = np.zeros_like(s)
    label[:, 0] = 1
    loss = np.logaddexp(0, np.where(label == 1, -s, s)).sum(axis=1).mean()
    return loss, (u.shape, center, targets, x, y, s, label)


def skip_gram_backward(dloss, cache, scatter=F.embedding_backward):
    """-> du, dv (V, C)"""
    shape, center, targets, x, y, s, label = cache
    ds = dloss * (expit(s) - label) / len(s)              # (B, 1 + K)
    dx = (ds[:, None] @ y)[:, 0]                          # (B, C)
    dy = ds[:, :, None] * x[:, None]                      # (B, 1 + K, C)
    return (scatter(dx, F.EmbeddingCache(center, shape)),
            scatter(dy, F.EmbeddingCache(targets, shape)))


small = rng.standard_normal((2, 7, 3))
print(minifpt.gradcheck(skip_gram, skip_gram_backward,
                        (*small, rng.integers(0, 7, 12), rng.integers(0, 7, (12, 4)))))

# %% [markdown]
# Twelve pairs of seven words: there are repeats. In the text without the rare words we take each
# word with the two before it and the two after it. For each pair we draw $K = 5$ words as in the
# paper, by their frequency to the power of 3/4. Adam (lesson 12) trains the tables for five
# **epochs**, passes over all pairs. The tables begin with small random numbers. What is the loss at
# the start? (No score is far from 0 then.)

# %%
guess = ...                                               # in nats

# %%
REACH, K, C, BATCH, EPOCHS = 2, 5, 32, 512, 5
noise = often ** 0.75 / (often ** 0.75).sum()             # (V,)


def train_vectors(seed, backward=skip_gram_backward, reach=REACH, channels=C, epochs=EPOCHS):
    """-> u (V, channels), and the loss of each step"""
    rng = np.random.default_rng(seed)
    tables = [Parameter((0.05 * rng.standard_normal((V, channels))).astype(np.float32), "input")
              for _ in "uv"]
    adam = minifpt.optim.Adam(tables, lr=0.003)           # lesson 12
    pairs = np.concatenate([pair for d in range(1, reach + 1) for pair in (
        np.stack([text_ids[:-d], text_ids[d:]], axis=1),
        np.stack([text_ids[d:], text_ids[:-d]], axis=1))])           # (N, 2)
    per_epoch, losses = len(pairs) // BATCH, []
    for step in tqdm(range(epochs * per_epoch), desc="skip-gram", leave=False):
        if step % per_epoch == 0:
            rng.shuffle(pairs)
        at = step % per_epoch * BATCH
        center, real = pairs[at:at + BATCH].T
        drawn = rng.choice(V, (BATCH, K), p=noise)
        loss, cache = skip_gram(*(t.data for t in tables), center,
                                np.concatenate([real[:, None], drawn], axis=1))
        for table, grad in zip(tables, backward(1.0, cache), strict=True):
            table.grad = grad.astype(np.float32)
        adam.step()
        losses.append(float(loss))
    return tables[0].data, np.array(losses)


SEEDS = range(3)
runs = [train_vectors(seed) for seed in SEEDS]
reveal(guess, float(np.mean([losses[0] for _, losses in runs])), "nats")
print(f"6 log 2 = {6 * np.log(2):.3f}; at the end:",
      ", ".join(f"{losses[-200:].mean():.2f}" for _, losses in runs))


# %% [markdown]
# ## Are these good neighbours?
#
# How alike two words are is measured by the **cosine** of the angle between their rows:
# $\cos = u_a \cdot u_b \,/\, (|u_a|\,|u_b|)$. Here are the five nearest words to some, after
# training, and three in a random table that was never trained.

# %%
def cosines(table):
    """(V, C) -> (V, V)"""
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return unit @ unit.T


def nearest(table, word, n=5):
    closest = np.argsort(-cosines(table)[number[word]])
    return ", ".join(vocabulary[i] for i in closest[1:n + 1])        # the first is itself


untrained = np.random.default_rng(9).standard_normal((V, C))
vectors = runs[0][0]
print("word    times   five nearest after training                   three untrained")
for word in "could he mr down father eyes night snow".split():
    print(f"{word:7} {often[number[word]]:4}    {nearest(vectors, word):45} "
          f"{nearest(untrained, word, 3)}")

for name, table in (("untrained", untrained), ("trained", vectors)):
    print(f"mean cosine of two different words, {name}: "
          f"{cosines(table)[np.triu_indices(V, 1)].mean():.2f}")

# %% [markdown]
# In the trained table nearly all words seem alike: its rows have a direction in common. So what
# counts is whether a cosine is larger than that of *other* words.
#
# Some lines look as if the table understood English, and others look like chance. It is easy to
# print the good ones only. So here is a list of 36 pairs that we wrote down before we trained
# anything: two words of one kind each. For each pair, of all other words, which share stands nearer
# to the first word than the second does? We also ask it the other way round, from the second word,
# and take the mean of the two. 0 means that each is the nearest of all to the other, and a table
# that knows nothing gives 0.5 on average. What is it for the trained table, in the median over the
# pairs?

# %%
guess = ...                                               # a number from 0 to 1

# %%
PAIRS = [pair.split() for pair in (
    "he she,his her,him me,could would,should must,can may,is was,has had,mr mrs,up down,in on,"
    "before after,father mother,eyes face,hand head,day night,said asked,first last,come go,"
    "give take,my your,we they,this that,who which,man woman,day hour,good great,two three,"
    "door window,little small,came went,old young,saw heard,brother sister,think know,black white"
).split(",")]
PAIRS = [(number[a], number[b]) for a, b in PAIRS if a in number and b in number]


def ranks(likeness):
    """likeness (V, V) -> for each pair, the share of the other words that are nearer, both ways"""
    def rank(a, b):
        return ((likeness[a] > likeness[a, b]).sum() - (likeness[a, a] > likeness[a, b])) / (V - 2)
    return np.array([(rank(a, b) + rank(b, a)) / 2 for a, b in PAIRS])


trained_ranks = [ranks(cosines(table)) for table, _ in runs]
random_ranks = ranks(cosines(untrained))
reveal(guess, float(np.median(trained_ranks)))

curves({"untrained": np.sort(random_ranks), "trained, three seeds": np.sort(trained_ranks)},
       "How many words are nearer than the partner? (dotted: the mean by chance)",
       "pairs, each curve from its nearest to its furthest", "share of words", level=0.5,
       styles=("x", "-"), inks=(color.grey, color.trained))
print(f"untrained: {np.median(random_ranks):.3f}; trained:",
      ", ".join(f"{np.median(r):.3f}" for r in trained_ranks))

# %% [markdown]
# The untrained table does not put partners near each other. The trained one does, with each seed.
#
# ## Two doubts
#
# **Is the gradient right because the result is good?** Let us train with the broken scatter-add,
# which loses most of the gradients of frequent words. What does the median become?

# %%
guess = ...


# %%
def losing_backward(dloss, cache):
    return skip_gram_backward(dloss, cache, scatter=broken_backward)


broken_runs = [train_vectors(seed, losing_backward) for seed in SEEDS]
broken_ranks = [ranks(cosines(table)) for table, _ in broken_runs]
reveal(guess, float(np.median(broken_ranks)))
for name, found_runs, found_ranks in (("right", runs, trained_ranks),
                                      ("broken", broken_runs, broken_ranks)):
    print(f"{name:6}   loss at the end:",
          ", ".join(f"{losses[-200:].mean():.3f}" for _, losses in found_runs),
          "  median rank:", ", ".join(f"{np.median(r):.3f}" for r in found_ranks))

# %% [markdown]
# The neighbours hardly suffer. The loss is higher with each seed, but nobody who saw only the
# second line would call it wrong. A training that works does not show that a gradient is right. The
# gradient check above does.
#
# **Was the training needed?** Count how often each word stands within two places of each other
# word. A row of counts `(V,)` is a vector as well, with no learning at all. Is its median rank
# `"better"` or `"worse"` than that of the trained table?

# %%
guess = ...

# %%
counts = np.zeros((V, V))
for d in range(1, REACH + 1):
    np.add.at(counts, (text_ids[:-d], text_ids[d:]), 1)
counts += counts.T
U, S, _ = np.linalg.svd(np.sqrt(counts))                  # the root tames the largest counts
tables = {f"counts, {V} channels": counts, f"roots of counts, {C} channels": U[:, :C] * S[:C],
          f"skip-gram, {C} channels": vectors, f"untrained, {C} channels": untrained}
medians = {name: float(np.median(ranks(cosines(table)))) for name, table in tables.items()}
reveal(guess, "better" if medians[f"counts, {V} channels"] < np.median(trained_ranks) else "worse")
for name, median in medians.items():
    print(f"{name:27} {median:.3f}")

# %% [markdown]
# Here counting does it better, with all channels and with 32 that were made from the counts' roots.
# (We varied neither the length of the text nor the number of epochs,
# so we cannot say why.) Both use the same knowledge, who stands near whom. What training has over
# counting is that it never makes the table of all pairs, and that its rows can be trained on for
# something else: they are the first layer of a model.
#
# ## One table, two gradients
#
# A language model has a table at its input: id to row. At its output it needs a score for each
# word, which is another table: $\text{logits} = y\,w^\top$, where $y$ `(T, C)` is now the output of
# the last layer, and $x = X\,w$ the input of the first. GPT-2 uses one table for both, called
# `wte`: it is **tied** (Press and Wolf, *Using the Output Embedding to Improve Language Models*,
# arXiv 1608.05859). Here is the model's own backward, which adds to the table's gradient twice:

# %%
show(minifpt.LanguageModel.backward)

# %% [markdown]
# $$ dw = \underbrace{X^\top dx}_{\text{input: scatter-add}} +
#         \underbrace{d\text{logits}^\top\, y}_{\text{output: a product}} $$
#
# Here $dx$ `(T, C)` arrives at the input, and $d\text{logits}$ `(T, V)` at the scores. The input's
# gradient reaches the rows of the tokens that occur. The output's reaches every row, because the
# softmax gives each token a probability, and the gradient is the probability minus the truth.
#
# ## Exercises
#
# **1.** One merge. Words are lists of symbols, and `times` says how often each word occurs. Find
# the pair of neighbours that occurs most often, and make one symbol of it in every word. Go from
# the left, as `merge` does: of three equal symbols in a row the first two become one.

# %%
def merge_step(words, times):
    """words: a list of lists of str, times: a list of int
    -> the pair (str, str), and the list of words after the merge"""
    pair = ...
    after = ...
    return pair, after


check("merge_step", merge_step)


# %% [markdown]
# **2.** The gradient of a single row of the table, without making the others.

# %%
def row_gradient(dy, ids, v):
    """dy (B, T, C), ids (B, T), v an id -> the gradient of row v, (C,)"""
    return ...


check("row_gradient", row_gradient)


# %% [markdown]
# **3.** A simple way to turn a text into one vector is the mean of its words' rows. Texts have
# different lengths, so short ones are filled up with id 0, which stands for no word and must not
# count: $y_b$ is the mean of the rows of those words of text $b$ that are not 0. Write the gradient
# of the table. Each text has at least one word.

# %%
def mean_gradient(dy, ids, V):
    """dy (B, C), ids (B, T) with 0 for no word -> dw (V, C)"""
    return ...


check("mean_gradient", mean_gradient)


# %% [markdown]
# **4.** Skip-gram predicts the neighbours from a word. Its sister **CBOW** predicts a word from the
# *mean* of its neighbours' rows: $x = \frac1N \sum_n u_n$, scores $s_k = x \cdot v_k$, the loss as
# above with the first score real and the others drawn. Write its backward for one word.

# %%
def cbow_backward(u, v):
    """u (N, C) rows of the neighbours, v (1 + K, C) rows of the real word and the drawn ones
    -> du (N, C), dv (1 + K, C)"""
    du = ...
    dv = ...
    return du, dv


check("cbow_backward", cbow_backward)


# %% [markdown]
# **5.** The whole gradient of a tied table: what arrives at the input is `dx`, what arrives at the
# scores is `dlogits`, and `y` is what the scores were made from.

# %%
def tied_gradient(dx, ids, dlogits, y):
    """dx (B, T, C), ids (B, T), dlogits (B, T, V), y (B, T, C) -> dw (V, C)"""
    return ...


check("tied_gradient", tied_gradient)


# %% [markdown]
# **6.** *Open.* Which of several tables knows best that certain words belong together? We counted
# how many words are nearer than the partner; there are other measures. Choose one and write it.
# Tables may differ in how long their rows are, a table may have rows that all point about the same
# way, and being opposite is not being alike. (`ranks` reads our own `PAIRS`; use the argument.)
# Then measure: set `RUN` to `True`. It trains tables that look further than two words. Near
# neighbours find words that can replace each other, distant ones words on the same subject. Do you
# see this in the neighbours of *snow* and of *elizabeth*, and does your measure agree with ours?

# %%
def best_table(tables, pairs):
    """tables: a list of arrays (V, C), pairs: a list of (id, id) -> the index of the best table"""
    return ...


check("best_table", best_table)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    wider = {2: vectors} | {reach: train_vectors(0, reach=reach)[0] for reach in (4, 8)}
    for reach, table in wider.items():
        print(f"reach {reach}: median rank {np.median(ranks(cosines(table))):.3f}; "
              f"snow: {nearest(table, 'snow')}; elizabeth: {nearest(table, 'elizabeth')}")
    print("best:", [*wider][best_table([*wider.values()], PAIRS)])

# %% [markdown]
# **Your own file.** `embedding` and `unembedding`, each with its backward, belong in your own file
# (`minifpt check mine.py`).
#
# ## Next
#
# Skip-gram looks at pairs and forgets their order. A language model reads everything that came
# before. [Lesson 11](11_pretraining.ipynb) trains one from nothing.
