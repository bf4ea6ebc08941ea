# %% [markdown]
# # 19. Which part does it?
#
# **A small transformer reads a string of letters and learns to say which letter followed which.
# Which of its heads do that, and how do we find out without believing a picture?**
#
# After this lesson you can
#
# - change a value inside a running model, and leave the rest alone;
# - make pairs of inputs that differ in one thing, and find by patching what carries it;
# - check what you found by muting, against a fair control;
# - name a part that a patch cannot see.
#
# In the live page: [station 4](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(4)` in a cell here.
#
# You need lessons [4](04_self_attention.ipynb) and [8](08_inside_bit_xor_and_bit_memory.ipynb).

# %%
import numpy as np

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import figure, matrix, picture, reveal, show
from minifpt.tasks.base import Classification

# %% [markdown]
# ## What followed it?
#
# Twelve different letters come in, out of sixteen: the **string**. Then eleven of them come again,
# in another order: the **questions**. The answer to a question is the letter that followed it the
# first time: after `cafe`, the letter `f` asks for `e`. A model must find the place and copy the
# letter after it, in one forward pass.

# %%
N, LETTERS, H = 12, 16, 4                                 # length of the string, alphabet, heads


class Follow(Classification):
    """x (B, 2N - 1, 16), letters as one-hot vectors; y (B, N - 1), read at the questions."""

    name, chance = "follow", 1 / LETTERS
    splits = "train", "validation", "test"
    tokens, output_tokens = 2 * N - 1, N - 1
    input_dim = output_dim = classes = LETTERS

    def draw(self, rng, size, split):
        string = rng.permuted(np.tile(np.arange(LETTERS), (size, 1)), axis=1)[:, :N]
        place = rng.permuted(np.tile(np.arange(N - 1), (size, 1)), axis=1)     # asked for, 0 ... 10
        ids = np.concatenate([string, np.take_along_axis(string, place, axis=1)], axis=1)
        answers = np.take_along_axis(string, place + 1, axis=1)
        return np.eye(LETTERS, dtype=np.float32)[ids], answers


task = Follow()
x, y = task.batch(np.random.default_rng(0), 2, "test")
for ids, answers in zip(x.argmax(axis=-1), y, strict=True):
    text = "".join("abcdefghijklmnop"[i] for i in ids)
    print("string ", text[:N], "  questions", text[N:], "  answers",
          "".join("abcdefghijklmnop"[i] for i in answers))

# %% [markdown]
# The model is a GPT-2 of two blocks with four heads each, all of it trained from random weights. We
# train five, which differ in their seed alone, so that no sentence below rests on one run. Chance
# is 6 %. How many of the five are right more than 90 % of the time after 200 steps?

# %%
guess = ...                                               # of 5


# %%
def make(seed):
    config = minifpt.GPT2Config(n_layer=2, n_head=H, n_embd=64, n_positions=32, dropout=0.0)
    return minifpt.FPT(minifpt.GPT2(config, seed=seed), LETTERS, LETTERS, task.output_tokens,
                       seed=seed)


models, final = [make(seed) for seed in range(5)], []
for seed, model in enumerate(models):
    history = minifpt.train(model, task, steps=200, batch_size=32, lr=5e-3, seed=seed,
                            schedule="cosine", warmup=50, eval_every=50)
    final.append(history[-1]["test_accuracy"])
reveal(guess, sum(accuracy > 0.9 for accuracy in final))
print("right:", ", ".join(f"{100 * accuracy:.1f} %" for accuracy in final))

# %% [markdown]
# ## Two inputs that differ in one thing
#
# A map shows where a head looks, not whether anything depends on it. **Activation patching** does.
# Take an input that the model answers rightly, the **clean** one, and change one thing in it so
# that another answer is right: the **corrupted** input. Run the corrupted input, and replace one
# value inside by what it was on the clean one. If the clean answer comes back, that value carries
# what was changed.
#
# The last question is a letter $q$, which the string has before the letter $a$. Elsewhere in the
# string a letter $r$ stands before $b$. Two exchanges turn the right answer from $a$ to $b$:
#
# - of $q$ and $r$, *the letters before*: `..qa....rb..` becomes `..ra....qb..`. The place to look
#   at is another one.
# - of $a$ and $b$, *the letters after*: `..qa....rb..` becomes `..qb....ra..`. The place is the
#   same, and another letter stands there.
#
# With $s$ for the **score**, the mean over the examples of $a$'s logit minus $b$'s, a patch
# **restores** the share $\rho$, 0 if nothing changes and 1 if the clean answer is back:
#
# $$ \rho = \frac{s_\text{patched} - s_\text{corrupted}}{s_\text{clean} - s_\text{corrupted}} $$

# %%
def pairs(rng, size):
    """Clean inputs, {what was exchanged: corrupted inputs}, and a, b: the two answers (B,)."""
    clean = task.batch(rng, size, "test")[0]              # (B, T, 16)
    ids, row = clean.argmax(axis=-1), np.arange(size)
    q = (ids[:, :N] == ids[:, -1:]).argmax(axis=1)        # the place of q in the string
    r = (q + rng.integers(2, N - 3, size)) % (N - 1)      # not next to q

    def exchanged(i, j):
        x = clean.copy()
        x[row, i], x[row, j] = clean[row, j], clean[row, i]
        return x
    corrupted = {"before": exchanged(q, r), "after": exchanged(q + 1, r + 1)}
    return clean, corrupted, ids[row, q + 1], ids[row, r + 1], q


clean, corrupted, a, b, place = pairs(np.random.default_rng(1), 64)
row = np.arange(len(clean))


def score(logits):
    """Mean over examples of a's logit minus b's, at the last question."""
    return float((logits[row, -1, a] - logits[row, -1, b]).mean())


for seed, model in enumerate(models):
    print(f"seed {seed}: score {score(model.predict(clean)):5.1f} on clean inputs,", ", ".join(
        f"{score(model.predict(inputs)):5.1f} with the letters {name} exchanged"
        for name, inputs in corrupted.items()))

# %% [markdown]
# `minifpt.trace(model, change={name: function})` runs the model with the output of one layer or
# operation replaced by the function's result. We want `trunk.h.0.attn.attention`: its output $Y$
# `(B, H, T, D)` holds the heads of block 0. Behind it they are put side by side.

# %%
show(minifpt.functional.merge_heads)


# %%
def run(model, inputs, change=None):
    """The logits and the trace of a run with some values changed."""
    with minifpt.trace(model, change=change) as t:
        logits = model.predict(inputs)
    return logits, t


def outputs(t):
    """The heads' outputs, of each block: [Y (B, H, T, D)]."""
    return [step.output for step in t.steps if step.op == "attention"]


def change_heads(block, heads, value):
    """A change for a trace: these heads of a block have the outputs that they have in ``value``."""
    def changed(Y):
        for head in heads:
            Y[:, head] = value[:, head]
        return Y
    return {f"trunk.h.{block}.attn.attention": changed}


def restored(model, inputs, change):
    worst, best = score(model.predict(inputs)), score(model.predict(clean))
    return (score(run(model, inputs, change)[0]) - worst) / (best - worst)


clean_outputs = [outputs(run(model, clean)[1]) for model in models]

# %% [markdown]
# First all four heads of a block at once. With the letters *before* exchanged, which block restores
# the answer: `"0"`, `"1"` or `"both"`?

# %%
guess = ...

# %%
blocks = {name: np.array([[restored(model, inputs, change_heads(i, range(H), Y[i]))
                           for i in (0, 1)]
                          for model, Y in zip(models, clean_outputs, strict=True)])
          for name, inputs in corrupted.items()}          # (5 seeds, 2 blocks)
carries = blocks["before"].mean(axis=0) > 0.5
reveal(guess, "both" if carries.all() else str(carries.argmax()) if carries.any() else "none")
fig, axes = figure(2, width=3.4, height=3.0)
for ax, (name, shares) in zip(axes, blocks.items(), strict=True):
    matrix(ax, shares, f"restored, letters {name} exchanged", "heads of block", "seed", limit=1,
           signed=False)
picture(fig)

# %% [markdown]
# Both, on the left: either brings the whole answer back. On the right block 1 does it all, and
# block 0 next to nothing.
#
# ## Who matches and who copies
#
# A head does two things: its probabilities choose where to look, and its values say what is taken
# from there. Let us give block 1 the clean *probabilities* alone, while its values stay those of
# the corrupted input. How many per cent does that restore with the letters before exchanged?

# %%
guess = ...                                               # per cent, letters before

# %%
maps = [run(model, clean)[1].attention for model in models]
look = {name: [restored(model, inputs, {
    "trunk.h.1.attn.softmax": lambda A, clean_A=A["trunk.h.1.attn"]: clean_A})
    for model, A in zip(models, maps, strict=True)] for name, inputs in corrupted.items()}
reveal(guess, 100 * float(np.mean(look["before"])), "%")
for name, shares in look.items():
    print(f"letters {name:6} exchanged: the clean look of block 1 restores",
          ", ".join(f"{round(100 * share)}" for share in shares), "% (five seeds)")

# %% [markdown]
# With the letters before exchanged all that matters is *where* block 1 looks. With the letters
# after it looks at the right place already, and all that matters is *what* it takes. So:
#
# 1. The heads of block 0 write into each token which letter stands before it.
# 2. The heads of block 1 **match**: they look at the token whose note says $q$, which is the one
#    after $q$.
# 3. From there they **copy** the letter.
#
# Such heads together are a **circuit**. A head that looks at the token after an earlier copy of its
# own token is an **induction head**. If the story is right, the maps must show it: in block 0 a
# look at the token before, in block 1 one at the token after $q$.

# %%
at = np.arange(1, N)
previous = np.array([A["trunk.h.0.attn"][:, :, at, at - 1].mean(axis=(0, 2)) for A in maps])
after = np.array([A["trunk.h.1.attn"][row, :, -1, place + 1].mean(axis=0) for A in maps])
fig, axes = figure(2, width=3.9, height=3.0)
matrix(axes[0], previous, "block 0: on the token before", "head", "seed", limit=1)
matrix(axes[1], after, "block 1: on the token after q", "head", "seed", limit=1)
picture(fig)

# %% [markdown]
# They do. (Equal shares would be less than a fifth.)
#
# ## A prediction, and a control
#
# A patch says what a value *can* do. Does the model *need* it? We mute heads on clean inputs: a
# muted head says at each token its mean over the examples, so that only what depends on the example
# is lost. (In lesson 8 it said nothing.) We patch each head alone (letters before) and predict that
# the two of a block that restore most cost most. The control mutes the *other two heads of the same
# block*. Before that: how many percentage points does seed 0 lose without the best single head of
# block 1?

# %%
guess = ...                                               # percentage points

# %%
x, y = task.batch(np.random.default_rng(2), 64, "test")


def accuracy_without(model, block, heads, Y):
    """Per cent right with these heads saying their mean; Y is the block's output on x."""
    mean = np.broadcast_to(Y.mean(axis=0), Y.shape)
    return 100 * task.accuracy(run(model, x, change_heads(block, heads, mean))[0], y)


shares = np.array([[[restored(model, corrupted["before"], change_heads(i, [head], Y[i]))
                     for head in range(H)] for i in (0, 1)]
                   for model, Y in zip(models, clean_outputs, strict=True)])      # (5, 2, H)
order = shares.argsort(axis=-1)[..., ::-1]                # the head that restores most comes first
on_x = [outputs(run(model, x)[1]) for model in models]
groups = {"no head": [], "the best one": [0], "the best two": [0, 1], "the other two": [2, 3],
          "all four": [0, 1, 2, 3]}
right = np.array([[[accuracy_without(model, i, order[seed, i, group], on_x[seed][i])
                    for group in groups.values()] for seed, model in enumerate(models)]
                  for i in (0, 1)])                       # (block, seed, group)
reveal(guess, float(right[1, 0, 0] - right[1, 0, 1]), "points")
for i in (0, 1):
    print(f"block {i}, right without", ", ".join(
        f"{name} {scores.min():.1f} to {scores.max():.1f} %"
        for name, scores in zip(groups, right[i].T, strict=True)),
        f"(best two cost more with {(right[i, :, 2] < right[i, :, 3]).sum()} of 5 seeds)")

# %% [markdown]
# Without the best single head nearly nothing is lost: the other three do its work. In block 0 the
# prediction comes out. In block 1 the two groups are close. Both steps are needed, and each is
# shared by its four heads. "Head 3 does it" is what we may not say.
#
# ## Broken on purpose: a patch that sees nothing
#
# With the letters after alone we would have read from the picture: *block 0 restores nothing, so it
# has no part in this*. Yet without all four of its heads the model is nearly always wrong.
#
# A patch finds only what carries the **difference** of the two inputs. Block 0's note says "before
# me stands $q$", and says so in both inputs when the letters after are exchanged. So a patch says
# "not this difference", never "no part in it". Change one thing in each pair, and make several
# kinds of pairs.
#
# ## Exercises
#
# Solutions are in `solutions/19_which_part_does_it.py`.
#
# **1.** The share that a patch restores, from three runs' logits.

# %%
def restored_share(clean, corrupted, patched, right, other):
    """logits (B, V) of three runs; right and other (B,), letters of each example -> a number"""
    return ...


check("restored_share", restored_share)


# %% [markdown]
# **2.** A score for induction heads, for any text. For each token whose letter occurred earlier in
# the same example: the attention to the token after its *last* earlier occurrence. The mean over
# all such tokens of all examples.

# %%
def induction_score(A, ids):
    """A (B, H, T, T), ids (B, T) -> (H,)"""
    return ...


check("induction_score", induction_score)


# %% [markdown]
# ## Going further: a real language model
#
# Large language models have induction heads (Olsson et al. 2022, arXiv 2209.11895). Has ours, which
# read novels byte by byte? A string of 24 random letters comes twice. How many of its 24 heads give
# more than half of their attention to the token after the letter's first copy?

# %%
guess = ...                                               # induction heads, of 24

# %%
lm = minifpt.LanguageModel.from_pretrained("minigpt-language")
T = 24
string = np.random.default_rng(0).permuted(np.tile(np.arange(97, 123), (16, 1)), axis=1)
ids = np.concatenate([string[:, :T], string[:, :T]], axis=1)
with minifpt.trace(lm) as t:
    lm.logits(ids)
A = np.stack([A.mean(axis=0) for A in t.attention.values()])               # (L, H, 2T, 2T)
q, s = np.arange(T, 2 * T), np.arange(1, 2 * T)
induction, before = A[:, :, q, q - T + 1].mean(axis=-1), A[:, :, s, s - 1].mean(axis=-1)
reveal(guess, int((induction > 0.5).sum()), f"of {induction.size}")
fig, axes = figure(2, width=3.6, height=3.6)
matrix(axes[0], induction, "induction score", "head", "block", limit=1)
matrix(axes[1], before, "share on the token before", "head", "block", limit=1)
picture(fig)

# %% [markdown]
# None. But one head of block 0 looks at the token before: half of the circuit is there, and the
# half that would match is not. Whether a larger model would grow it, this run cannot say.
#
# **3.** *Open.* A control for any set of heads: as many others, in each block as many as were
# there. Then mute heads of `lm` and their control on a text of yours (`lm.logits(ids)` inside
# `minifpt.trace(lm, change=...)`). Which set costs most against its control?

# %%
def fair_control(heads, n_head):
    """[(block, head), ...], at most half of the n_head heads of a block -> a list as long"""
    return ...


check("fair_control", fair_control)

# %% [markdown]
# **Next**: which part of a model has to *learn*? [Lesson 20](20_one_per_cent.ipynb) asks.
