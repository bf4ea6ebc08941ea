# %% [markdown]
# # 16. Both directions
#
# **A language model that writes may only look back. A model that only reads may look at both sides.
# Is it enough to take the mask off?**
#
# After this lesson you can
#
# - see whether a model can look at its own answer, without training anything;
# - hide the bytes that we ask for, and say why a model then learns slowly;
# - compare two models that were asked different questions;
# - use a causal model for a gap, by Bayes' rule.
#
# You need lessons [4](04_self_attention.ipynb) and [11](11_pretraining.ipynb).

# %%
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.files.weights import shipped

# %% [markdown]
# ## The mask taken off
#
# Two models with the same parameters, two blocks of 64 channels, read passages of $T = 32$ bytes.
# One is **causal**, as GPT-2 is: token $t$ sees the tokens up to $t$. The other is
# **bidirectional**: each token sees all of them. To see what a token sees, we change one byte at a
# time. A cell is dark where the scores at a position (row) move when a byte (column) is changed.

# %%
T = 32


def new_model(causal):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=T, vocab_size=256,
                                dropout=0.0, initializer_range=0.08, causal=causal)
    return minifpt.LanguageModel(config, seed=0)


def influence(model, T=8):
    """(T, T): 1 where the scores at t move when byte s is another one"""
    ids = np.arange(97, 97 + T)[None]
    before, moves = model.logits(ids)[0], np.zeros((T, T))
    for s in range(T):
        changed = ids.copy()
        changed[0, s] += 9
        moves[:, s] = (model.logits(changed)[0] != before).any(axis=-1)
    return moves


fig, axes = figure(2, width=3.0, height=2.7)
for ax, causal in zip(axes, (True, False), strict=True):
    matrix(ax, influence(new_model(causal)), "causal" if causal else "bidirectional",
           "byte that is changed", "position whose scores move", digits=None, limit=1)
picture(fig)

# %% [markdown]
# We train the bidirectional model as lesson 11 trains the causal one: which byte comes next, at
# each position? A model that knows nothing has a loss of $\log 256 = 5.5$ nats. Which loss does
# this one reach on new text after 100 steps?

# %%
guess = ...                                               # in nats


# %%
def train(model, task, steps, lr=3e-3, callback=None):
    """Train on a text, in batches of 16, with Adam; ``callback(run)`` is called at each step."""
    minifpt.train(model, task, steps=steps, batch_size=16, lr=lr, schedule="constant", warmup=30,
                  eval_every=steps, test_examples=64, progress=False, callback=callback)
    return model


next_byte = minifpt.tasks.get("text", tokens=T)
cheat = train(new_model(causal=False), next_byte, 100, lr=1e-2)
x, y = next_byte.batch(np.random.default_rng(1), 200, "test")
scores = cheat.logits(x)
loss = F.cross_entropy(scores[:, :-1], y[:, :-1])[0]
reveal(guess, float(loss), "nats")
print(f"at positions 0 to {T - 2} {loss:.2f} nats, at the last one "
      f"{F.cross_entropy(scores[:, -1], y[:, -1])[0]:.2f}")

# %% [markdown]
# The answer to position $t$ is byte $t + 1$, and the model looks at it. Only the last position has
# no next byte to look at, and there it has learned little. The picture could have told us: change
# the byte that is the *answer*. If the scores at its question move, the answer leaks.
#
# ## Hide, and ask only there
#
# A **masked language model** is asked for bytes that were taken out. BERT ([arXiv
# 1810.04805](https://arxiv.org/abs/1810.04805)) chooses 15 %. Of these, 80 % become a special
# token, here byte 0, 10 % another byte, and 10 % stay. The loss is that of the chosen bytes.

# %%
show(minifpt.tasks.Masked.masked)

# %%
hidden = minifpt.tasks.Masked([shipped("held-out.txt")], tokens=T)
for ids, chosen in zip(*hidden.batch(np.random.default_rng(3), 2), strict=True):
    print("read: ", "".join("█" if i == 0 else chr(i).replace("\n", " ") for i in ids))
    print("asked:", "".join(" " if i < 0 else {10: "/", 32: "_"}.get(i, chr(i)) for i in chosen))

# %% [markdown]
# ## The same question to both
#
# Their losses cannot be compared: one is asked for the next byte, the other for a hidden one. So
# both get one question: *in a new passage of 32 bytes, the byte in the middle is missing. Which was
# it?* The causal model reads the left half, the masked one both sides. After 400 steps each, which
# has the lower loss, `"causal"` or `"masked"`?

# %%
guess = ...

# %%
middle = T // 2
passages, _ = next_byte.passages("test", np.arange(0, len(next_byte.bytes["test"]) - T, 14))
truth = passages[:, middle]                               # (N,)


def nats(scores):
    """(N, V) -> what each of the N questions costs"""
    return F.log_sum_exp(scores)[0][:, 0] - scores[np.arange(len(truth)), truth]


def ask_causal(model):
    return nats(model.logits(passages)[:, middle - 1])


def ask_masked(model):
    x = passages.copy()
    x[:, middle] = hidden.MASK
    return nats(model.logits(x)[:, middle])


def learning_curve(model, task, ask, steps):
    """-> the mean cost of a question after each 100 steps"""
    means = []
    train(model, task, steps, callback=lambda run: (
        means.append(float(ask(model).mean())) if run.step % 100 == 0 else None))
    return means


causal, masked = new_model(True), new_model(False)
means = {"causal": learning_curve(causal, next_byte, ask_causal, 400) + [np.nan] * 3,
         "masked": learning_curve(masked, hidden, ask_masked, 700)}
frequency = np.bincount(next_byte.bytes["train"], minlength=256) + 0.1
knows_frequencies = -np.log((frequency / frequency.sum())[truth]).mean()
reveal(guess, min(means, key=lambda name: means[name][3]))
curves(means, f"The missing byte, {len(truth)} questions (dotted: knows how frequent each byte is)",
       ylabel="nats", x=range(100, 701, 100), styles=("o-", "s--"), level=knows_frequencies,
       inks=(color.teal, color.ochre))
print(f"frequencies {knows_frequencies:.2f}", *(f"{name} {values[3]:.2f} after 400 steps"
                                                for name, values in means.items()), sep=", ")

# %% [markdown]
# The model that sees less is better, by far. For 400 steps the masked one is hardly better than one
# that knows how frequent each byte is. Then it begins.
#
# Think of what a token knows without looking anywhere. The causal model, asked for the next byte,
# holds the byte before it. A hidden position holds the special token and its place, which say
# nothing about the text. *All* that it can know has to come through attention, from the right
# distance, and attention must be learned first. (And one step asks the causal model at each of 32
# positions, the masked one at 5.) A study of 400 steps would have told us that masked models cannot
# do this.
#
# ## Both sides for a causal model
#
# The causal model has never been trained to use a right side. Can it? Put each candidate byte $b$
# into the gap, and let the model read on. By Bayes' rule
#
# $$ p(b \mid \text{left}, \text{right}) = \frac{p(b \mid \text{left})\; p(\text{right} \mid
#    \text{left}, b)}{\sum_c p(c \mid \text{left})\; p(\text{right} \mid \text{left}, c)} $$
#
# and the model has both factors. We try the 30 candidates that are likeliest from the left; the
# others keep their share. What does a question cost now?

# %%
guess = ...                                               # in nats

# %%
def try_all(model, passages, n=30):
    """-> what the true byte in the middle costs each passage, in nats"""
    costs = []
    for passage in tqdm(passages, leave=False):
        p, _ = F.softmax(model.logits(passage[None])[0, middle - 1])
        candidates = np.argsort(-p)[:n]
        tried = np.repeat(passage[None], n, axis=0)
        tried[:, middle] = candidates
        scores = model.logits(tried)[:, middle:-1]        # (n, T - 1 - middle, V)
        follows = np.take_along_axis(scores, tried[:, middle + 1:, None], axis=2)[:, :, 0]
        log_right = (follows - F.log_sum_exp(scores)[0][..., 0]).sum(axis=1)
        share, _ = F.softmax(np.log(p[candidates]) + log_right)
        p[candidates] = p[candidates].sum() * share
        costs.append(-np.log(p[passage[middle]]))
    return np.array(costs)


some = slice(0, len(passages), 5)
left, both = ask_causal(causal)[some], try_all(causal, passages[some])
reveal(guess, float(both.mean()), "nats")
print(f"{len(both)} of the questions: from the left {left.mean():.2f}, from both sides "
      f"{both.mean():.2f}; gain {(left - both).mean():.2f} "
      f"± {1.96 * (left - both).std() / np.sqrt(len(both)):.2f} (95 %)")

# %% [markdown]
# A causal model knows about both sides. It is only expensive to ask: 30 passages for one question,
# where a bidirectional model needs one.
#
# ## Exercises
#
# Solutions are in `solutions/16_both_directions.py`.
#
# **1.** In a **prefix language model** the first $P$ tokens, say a question, see each other in both
# directions; each later token sees the prefix, the tokens before it, and itself. Write its mask.

# %%
def prefix_mask(T, P):
    """-> (T, T), True or 1 where token t (row) sees token s (column), else False or 0;
    0 <= P <= T"""
    return ...


check("prefix_mask", prefix_mask)


# %% [markdown]
# **2.** Bayes' rule with the smallest causal model there is, a bigram. One token is missing between
# two that are known. How likely is each token to be the missing one?

# %%
def missing_token(P, left, right):
    """P (V, V): P[a, b] is the probability that b follows a; left, right ids -> (V,)"""
    return ...


check("missing_token", missing_token)


# %% [markdown]
# **3.** *Open.* Two models had the same questions. Is one of them better, or can that not be said?
# Some questions are hard for both, a single one can cost a lot, and there may be few. Choose your
# rule. Then measure: does the right side help where a space is missing, and where a letter is?

# %%
def better_of_two(a, b):
    """a, b (N,): losses of two models on the same N questions -> "a", "b" or "neither" """
    return ...


check("better_of_two", better_of_two)

# %%
if better_of_two(left, both) is not ...:
    gap = truth[some]
    for name, chosen in (("a space", gap == 32), ("a letter", gap > 96)):
        print(f"{name} is missing: from the left (a) {left[chosen].mean():.2f}, from both sides "
              f"(b) {both[chosen].mean():.2f}, better: {better_of_two(left[chosen], both[chosen])}")

# %% [markdown]
# **Next**: all of this ran in NumPy. [Lesson 17](17_how_fast_can_numpy_go.ipynb) asks how far that
# is from what the machine can do.
