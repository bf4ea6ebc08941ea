# %% [markdown]
# # 16. Both directions
#
# **A language model that writes may only look back. A model that only reads may look at both sides.
# What changes if nothing but the mask is taken off? And why is it not enough to take it off?**
#
# After this lesson you can
#
# - say why a model that sees both sides cheats, and check for it without training anything;
# - train a masked language model, and say what its loss counts and what it costs;
# - compare models that were asked different questions, by asking all of them the same one;
# - place word2vec, ELMo, GPT, BERT and T5: what was trained, what frozen, what passed on.
#
# You need lessons [4](04_self_attention.ipynb), [10](10_tokens_and_vectors.ipynb) and
# [11](11_pretraining.ipynb). It takes about an hour.

# %%
import math

import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import figure, matrix, picture, reveal, show

# %% [markdown]
# ## The mask taken off
#
# Both models here have the same parameters, two blocks of 64 channels, and start from the same
# numbers. They read passages of the same text, $T = 32$ bytes each. One is **causal**, as GPT-2 is:
# token $t$ sees the tokens up to $t$. The other is **bidirectional**: each token sees all of them.
# In code it is one word in the config: the mask is added or it is not. To see what a token sees, we
# change one byte at a time. In the picture a cell is dark where the logits at a position (row) move
# when a byte (column) is changed.

# %%
T = 32
task = minifpt.tasks.get("text", tokens=T)


def new_model(causal):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=T, vocab_size=256,
                                dropout=0.0, initializer_range=0.08, causal=causal)
    return minifpt.LanguageModel(config, seed=0)


def influence(model, T=8):
    """(T, T): 1 where the logits at t move when byte s is another one"""
    ids = np.arange(97, 97 + T)[None]
    before, moves = model.logits(ids)[0], np.zeros((T, T))
    for s in range(T):
        other = ids.copy()
        other[0, s] += 9
        moves[:, s] = (model.logits(other)[0] != before).any(axis=-1)
    return moves


fig, axes = figure(2, width=3.0, height=2.7)
for ax, causal in zip(axes, (True, False), strict=True):
    matrix(ax, influence(new_model(causal)), "causal" if causal else "bidirectional",
           "byte that is changed", "position whose logits move", digits=None, limit=1)
picture(fig)

# %% [markdown]
# We train the bidirectional model as lesson 11 trains the causal one: at each position, which byte
# comes next? In lesson 11 a bigram has 2.4 nats on the same held-out text. Which loss does this one
# reach in 150 steps?

# %%
guess = ...                                               # in nats


# %%
def loss_where(logits, y):
    """Cross-entropy of those y (B, T) that are not -1 -> loss, dlogits"""
    asked = y >= 0
    loss, cache = F.cross_entropy(logits[asked], y[asked])
    dlogits = np.zeros_like(logits)
    dlogits[asked] = F.cross_entropy_backward(1.0, cache)
    return float(loss), dlogits


def train(model, draw, steps=400, lr=3e-3):
    """draw(rng) -> x, y -> the loss of each step (Adam and the schedule: lesson 12)"""
    rng, losses = np.random.default_rng(0), []
    adam = minifpt.optim.Adam(model.parameters(), lr=lr, weight_decay=0.1)
    for step in tqdm(range(steps), leave=False):
        x, y = draw(rng)
        logits, cache = model.forward(x)
        loss, dlogits = loss_where(logits, y)
        model.zero_grad()
        model.backward(dlogits, cache)
        minifpt.optim.clip_grad_norm(model.parameters(), 1.0)
        adam.lr = lr * minifpt.optim.cosine(step, steps, warmup=30)
        adam.step()
        losses.append(loss)
    return np.array(losses)


def next_byte(rng):
    return task.batch(rng, 16)


cheat = new_model(causal=False)
cheat_losses = train(cheat, next_byte, steps=150, lr=1e-2)
reveal(guess, float(cheat_losses[-10:].mean()), "nats")

x, y = task.batch(np.random.default_rng(1), 200, "test")
logits = cheat.logits(x)
print(f"held-out loss: {F.cross_entropy(logits[:, :-1], y[:, :-1])[0]:.3f} at positions 0 to "
      f"{T - 2}, {F.cross_entropy(logits[:, -1], y[:, -1])[0]:.2f} at the last one")

# %% [markdown]
# It is the coins of lesson 4 again. The answer to position $t$ is byte $t + 1$, and the model looks
# at it. Only the last position has no next byte to look at, and there it has learned little.
#
# The picture above could have told us before the training: change the byte that is the *answer* to
# a question. If the logits at that question move, the answer leaks.
#
# ## Hide, and ask only there
#
# So in a **masked language model** the answer is taken out. Some bytes of the passage are chosen,
# and only they are asked for, each at its own position. The others are there to be read. BERT
# (Devlin et al., arXiv 1810.04805) chooses 15 % of them. The library's task does as BERT does: of
# the chosen ones, 80 % are replaced by a special token, byte 0, which no text contains, 10 % by a
# random one, and 10 % stay as they are.

# %%
show(minifpt.tasks.Masked.masked, minifpt.tasks.Masked.loss)

# %%
book = minifpt.files.weights.shipped("held-out.txt")
masked_task = minifpt.tasks.Masked([book], tokens=T)
x_masked, y_masked = masked_task.batch(np.random.default_rng(3), 3)
for ids, asked in zip(x_masked, y_masked, strict=True):
    print("read: ", "".join("█" if i == 0 else chr(i).replace("\n", " ") for i in ids))
    print("asked:", "".join(" " if i < 0 else {10: "/", 32: "_"}.get(i, chr(i)) for i in asked),
          "\n")

# %% [markdown]
# One answer in ten can be seen: those that stay as they are. They leak on purpose. The model cannot
# tell them from random bytes, so copying is a bet: of the asked bytes that it sees, only half are
# the true ones. BERT's authors do it because the special token never occurs in the texts that the
# model is used on later.
#
# ## The same question to all
#
# Which is better? Their losses cannot be compared: one is asked for the next byte, the other for a
# hidden one. So we ask both the same: *in a held-out passage of 32 bytes, the byte in the middle is
# missing. Which was it?* The causal model reads the left half. The masked model reads both sides,
# with the middle hidden. Both have had the same 400 steps. Which has the lower loss, `"causal"` or
# `"masked"`?

# %%
guess = ...


# %%
def hidden(rng):
    return masked_task.batch(rng, 16)


middle = T // 2
starts = np.arange(0, len(task.bytes["test"]) - T, 7)
passages, _ = task.passages("test", starts)               # (N, T)
truth = passages[:, middle]                               # (N,)


def nats(scores):
    """(N, V) -> what each of the N questions costs"""
    return F.log_sum_exp(scores)[0][:, 0] - scores[np.arange(len(truth)), truth]


def ask_masked(model):
    x = passages.copy()
    x[:, middle] = 0
    return model.logits(x)[:, middle]


def report(name):
    cost = costs[name]
    print(f"{name:34} {cost.mean():.2f} nats +- {cost.std() / math.sqrt(len(cost)):.2f}")


models = {"causal": new_model(True), "masked, 15 %": new_model(False)}
train(models["causal"], next_byte)
train(models["masked, 15 %"], hidden)
costs = {"causal": nats(models["causal"].logits(passages)[:, middle - 1]),
         "masked, 15 %": nats(ask_masked(models["masked, 15 %"]))}
frequency = np.bincount(task.bytes["train"], minlength=256) + 0.1
costs["knows the frequencies of bytes"] = -np.log((frequency / frequency.sum())[truth])
reveal(guess, "causal" if costs["causal"].mean() < costs["masked, 15 %"].mean() else "masked")
print(f"{len(truth)} questions")
for name in costs:
    report(name)

# %% [markdown]
# In these 400 steps the model that sees less is better, and by far. The one that sees both sides is
# little better than the frequencies of bytes. Is the right side of no use? There are three
# suspects: the number of questions (in one step the causal model answers each of $16 \times 32$
# positions, the masked one 15 % of them), the learning rate, and the number of steps. A longer
# training takes minutes, so the numbers come with the lesson: one run each of the code above, some
# with half of the bytes hidden. With 1,600 steps instead of 400, how far does the model with 15 %
# hidden come at 3e-3?

# %%
guess = ...                                               # in nats

# %%
# model = new_model(...); train(model, ..., steps=steps, lr=lr); nats(...).mean(): a run each
ASKED = {                                                 # {model: {(steps, rate): nats}}
    "causal": {(400, 1e-3): 2.27, (400, 3e-3): 2.02, (400, 1e-2): 1.97, (1600, 3e-3): 1.62},
    "masked, 15 %": {(400, 1e-3): 3.07, (400, 3e-3): 3.02, (400, 1e-2): 3.10,
                     (1600, 3e-3): 1.69, (1600, 1e-2): 3.09},
    "masked, 50 %": {(400, 1e-3): 3.11, (400, 3e-3): 3.05, (400, 1e-2): 3.08,
                     (1600, 3e-3): 1.83, (1600, 1e-2): 3.01},
}
reveal(guess, ASKED["masked, 15 %"][1600, 3e-3], "nats")
settings = [(400, 1e-3), (400, 3e-3), (400, 1e-2), (1600, 3e-3), (1600, 1e-2)]
print(f"{'steps, rate':14}" + "".join(f"{steps:>8}, {lr:g}" for steps, lr in settings))
for name, values in ASKED.items():
    print(f"{name:14}" + "".join(f"{values.get(key, ''):>14}" for key in settings))

# %% [markdown]
# Hiding half of the bytes does not help here. (It asks more, and leaves less to read, so the number
# of questions alone is not tested.) But the masked model *does* learn: it needs more steps, and a
# rate that is not too large. With 1,600 steps at 3e-3 it has 1.69, and with a second seed 1.82.
# Both are better than the causal model after 400 steps; that one has 1.62 after 1,600, with one
# seed. A study with 400 steps, or with 1,600 at 1e-2 alone, would have told us that masked models
# cannot do this.
#
# Why is it so late? Think of what a token knows without looking anywhere. The causal model, asked
# for the next byte, holds the byte before it: a bigram for free. At a hidden position the model
# holds the special token and its position, which say nothing about the text. *All* that it can know
# has to come through attention, from the right distance. Until a head has learned to look one byte
# back or one ahead, the model does little better than the frequencies: a head that looks everywhere
# alike tells only which bytes the passage has.
#
# If this is so, then a model whose heads can already look back should learn faster. We have one:
# the causal model after its training. We take the mask off it and give it 400 steps with 15 %
# hidden. But it brings more than its attention: its table knows bytes. So as a control we take over
# everything *except* the attention. Where does the one that keeps its attention get?

# %%
guess = ...                                               # in nats


# %%
def unmasked_copy(of, keep_attention):
    """A model that sees both sides, with the weights of a causal one"""
    model = new_model(False)
    theirs = dict(of.named_parameters())
    for name, p in model.named_parameters():
        if keep_attention or p.group != "attn":
            p.data[:] = theirs[name].data
    return model


for name, keep in (("causal, then masked", True), ("the same without attention", False)):
    models[name] = unmasked_copy(models["causal"], keep)
    train(models[name], hidden)
    costs[name] = nats(ask_masked(models[name]))
reveal(guess, float(costs["causal, then masked"].mean()), "nats")
for name in ("masked, 15 %", "causal, then masked", "the same without attention"):
    report(name)

# %% [markdown]
# With the attention of the causal model it leaves the frequencies far behind. With everything but
# the attention it gets about half of the way: a table that knows bytes helps as well.
#
# (Each line is one run of training. At each of the three rates above the one with the attention is
# ahead, by 0.4 to 0.7 nats. It is a head start and no more: with 1,600 steps at 3e-3 they come to
# 1.57 with the attention and 1.59 without. The number after +- is the error from the choice of
# questions only.)
#
# ## Asked in another way
#
# Can the causal model, which never trained on a right side, use one? Put each candidate byte $b$
# into the gap, and let the model read on. By Bayes' rule
#
# $$ p(b \mid \text{left}, \text{right}) = \frac{p(b \mid \text{left})\; p(\text{right} \mid
#    \text{left}, b)}{\sum_c p(c \mid \text{left})\; p(\text{right} \mid \text{left}, c)} $$
#
# and a causal model has both factors. We try the 30 candidates that it finds likeliest from the
# left, and leave the others the share that they have from the left. What does a question cost now?

# %%
guess = ...                                               # in nats

# %%
def try_all(model, passages, n=30):
    """-> what the true byte in the middle costs each passage, in nats"""
    found = []
    for passage in tqdm(passages, desc="trying", leave=False):
        p_left, _ = F.softmax(model.logits(passage[None])[0, middle - 1])
        candidates = np.argsort(-p_left)[:n]
        tried = np.repeat(passage[None], n, axis=0)
        tried[:, middle] = candidates
        scores = model.logits(tried)[:, middle:-1]        # (n, T - 1 - middle, V)
        follows = np.take_along_axis(scores, tried[:, middle + 1:, None], axis=2)[:, :, 0]
        log_right = (follows - F.log_sum_exp(scores)[0][..., 0]).sum(axis=1)
        share, _ = F.softmax(np.log(p_left[candidates]) + log_right)
        p = p_left.copy()
        p[candidates] = p_left[candidates].sum() * share
        found.append(-np.log(p[passage[middle]]))
    return np.array(found)


few = slice(0, len(passages), 5)
tried = try_all(models["causal"], passages[few])
reveal(guess, float(tried.mean()), "nats")
gain = costs["causal"][few] - tried
print(f"on {len(tried)} of the questions: left side only {costs['causal'][few].mean():.2f}, "
      f"all tried {tried.mean():.2f}")
print(f"gain: {gain.mean():.2f} +- {gain.std() / math.sqrt(len(gain)):.2f}")

# %% [markdown]
# A causal model knows about both sides. It is only expensive to ask: 30 passages for one question,
# where a model of both directions needs one.
#
# ## Five that were passed on
#
# | model, arXiv | trained on | passed on |
# |---|---|---|
# | word2vec, 1301.3781 | a word and its neighbours | one vector for each word |
# | ELMo, 1802.05365 | the next word; a second LSTM: the previous | all states; both stay frozen |
# | GPT, 2018 | the next token, causal | all weights, all fine-tuned |
# | BERT, 1810.04805 | hidden tokens, both sides in every layer | all weights, all fine-tuned |
# | T5, 1910.10683 | hidden spans, written by a causal decoder | all weights, all fine-tuned |
#
# The paper of this project is closer to ELMo than to the others: GPT-2's attention and feed-forward
# layers stay frozen, and the layer norms, the positions and the two ends learn (lesson 0). The
# library trains bidirectional models, too: `minifpt pretrain masked --text FOLDER`.
#
# ## Exercises
#
# Solutions are in `solutions/16_both_directions.py`.
#
# **1.** T5's authors also tried a **prefix language model**: the first $P$ tokens, say a question,
# see each other in both directions; each later token sees the prefix, the tokens before it, and
# itself. Only its mask is new. Write it.

# %%
def prefix_mask(T, P):
    """-> (T, T), True or 1 where token t (row) sees token s (column), else False or 0;
    0 <= P <= T"""
    return ...


check("prefix_mask", prefix_mask)


# %% [markdown]
# **2.** The gradient of the masked loss: the mean cross-entropy of those positions where `y` is not
# -1. Mind what `-1` does as an index. Scores may be large.

# %%
def masked_gradient(logits, y):
    """logits (B, T, V), y (B, T) ids, -1 where nothing is asked -> dlogits (B, T, V)"""
    return ...


check("masked_gradient", masked_gradient)


# %% [markdown]
# **3.** Bayes' rule with the smallest causal model there is, a bigram. One token is missing between
# two that are known. How likely is each token to be the missing one?

# %%
def missing_token(P, left, right):
    """P (V, V): P[a, b] is the probability that b follows a; left, right ids -> (V,)"""
    return ...


check("missing_token", missing_token)


# %% [markdown]
# **4.** *Open.* Two models had the same questions. Is one of them better, or can that not be said?
# Some questions are hard for both; single questions can cost a lot; and there may be few. Choose
# your rule. Then measure: set `RUN` to `True`. It asks for the byte in the middle where the gap
# stands at a space, and where it stands inside a word. Where does the right side help, and can you
# say so of both?

# %%
def better_of_two(a, b):
    """a, b (N,): losses of two models on the same N questions -> "a", "b" or "neither" """
    return ...


check("better_of_two", better_of_two)

# %%
RUN = False                                               # True: compares, at once
if RUN:
    gap = truth[few]
    for name, chosen in (("a space is missing", gap == 32), ("a letter is missing", gap > 96)):
        a, b = costs["causal"][few][chosen], tried[chosen]
        print(f"{name}: left side only {a.mean():.2f}, all tried {b.mean():.2f}, better: "
              f"{ {'a': 'left side only', 'b': 'all tried'}.get(better_of_two(a, b), 'neither')}")

# %% [markdown]
# ## Next
#
# All of this ran on one core, in NumPy. [Lesson 17](17_how_fast_can_numpy_go.ipynb) asks how far
# that is from what the machine can do.
