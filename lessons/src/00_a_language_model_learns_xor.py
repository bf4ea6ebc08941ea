# %% [markdown]
# # 0. A language model learns XOR
#
# **A small GPT-2 has read fourteen novels, letter by letter, and has never seen a bit. We freeze
# its weights and train only a thin shell around them. Can it compute? And is it the reading that
# helps?**
#
# After this lesson you can
#
# - say what a Frozen Pretrained Transformer is, and which few of its numbers are trained;
# - train one, and read its learning curve against the level of guessing;
# - find the control that a comparison lacks, and add it.
#
# **What we know by now.** Only the question of the whole course: *what does a frozen transformer
# already have, and what must be learned?* [A paper of 2021](https://arxiv.org/abs/2103.05247) says
# that a model that has read language can compute with bits, though its weights are frozen.
#
# **The question:** Is it the reading?
#
# In the live page: [stations 1 to 3](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(1)` in a cell here.
#
# A cell with `guess = ...` asks for your answer before you run the next cell: put it in place of
# the dots. The first cell lets the model continue a sentence.

# %%
import functools

import numpy as np
from tqdm import tqdm

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.files.tokenizer import Bytes

language_model = minifpt.LanguageModel.from_pretrained("minigpt-language")
text = language_model.generate(Bytes().encode("The old man "), 150, temperature=0.7, seed=3)
print(Bytes().decode(text))

# %% [markdown]
# Most words are real, and none of it means anything.
#
# ## The task
#
# Two strings of five bits come in, one bit after the other; each bit is a **token**. The model must
# return their **XOR**: at each position 1 if the two bits differ, 0 if they are equal.

# %%
task = minifpt.tasks.get("bit-xor")
x, y = task.batch(np.random.default_rng(1), 4)            # x (B, 10, 1), y (B, 5)
fig, axes = figure(4, width=2.0, height=1.7)
for i, (ax, bits, answer) in enumerate(zip(axes, x[..., 0], y, strict=True)):
    matrix(ax, np.stack([bits[:5], bits[5:], answer]), f"example {i + 1}", digits=0, limit=1.6,
           columns=[""] * 5, rows=["first", "second", "XOR"] if i == 0 else [""] * 3)
    ax.axhline(1.5, color="white", linewidth=5)
picture(fig)

# %% [markdown]
# No weighted sum of two bits does that. Suppose that $a x_1 + b x_2 + c$ is positive exactly where
# the XOR is 1. Then
#
# $$ a + c > 0, \qquad b + c > 0, \qquad c \le 0, \qquad a + b + c \le 0 $$
#
# The first two add up to $a + b + 2c > 0$, the last two to $a + b + 2c \le 0$. Both cannot be true.
# So the model needs something nonlinear, and it has to bring together bits that are five apart.
#
# ## A frozen model with a new front and a new back
#
# The model expects letters. So it gets a new **input layer**, which turns each bit into a vector of
# $C = 128$ numbers. And it gets a new **output layer**, which turns each of the last five vectors
# into two scores, one for "0" and one for "1"; the higher one is the answer. Between them stands
# the **trunk**: six blocks, each with two parts, *attention* and *feed-forward* (lessons 4 and 6).
# They are **frozen**: training does not change them. In brackets is what is trained: the two new
# layers, a vector for each position, and the *norms*, thin layers that rescale what each part
# reads. This is a **Frozen Pretrained Transformer**, FPT.
#
#     bits → [input layer] → + [positions] → 6 × ([norm] → attention → [norm] → feed-forward)
#          → [norm] → [output layer] → scores
#
# Of all the numbers in the model, how many percent are trained?

# %%
guess = ...                                               # a percentage


# %%
def make(trunk="minigpt-language", seed=0):
    """A trunk, by its name, with a new input and output layer; most of it is frozen."""
    model = minifpt.FPT.for_task(task, trunk, seed=seed, dropout=0.0)
    model.freeze(minifpt.FreezeMask.fpt())
    return model


show(minifpt.FreezeMask.fpt)
counts = make().counts(task.tokens).values()              # (parameters, trained) of each group
total, trained = (sum(n) for n in zip(*counts, strict=True))
reveal(guess, 100 * trained / total, "%")
print(make().summary(task.tokens))

# %% [markdown]
# ## Training
#
# One **step** of training: draw a few examples, run the model, and move each trained number a
# little in the direction that makes the answers better (lesson 1 says which), about as far as the
# **learning rate** `lr` says.
#
# We take 300 steps with four examples each. Guessing gets half of the bits right. How many
# percent of the bits does the frozen language model get right in the end?

# %%
guess = ...                                               # a percentage


# %%
@functools.cache
def run(trunk, seed):
    """-> the bits that are right (%) after each 50 steps, (6,)"""
    history = minifpt.train(make(trunk, seed), task, 300, batch_size=4, lr=3e-3, seed=seed,
                            eval_every=50, test_examples=128, progress=False)
    return 100 * history["test_accuracy"]


reveal(guess, float(run("minigpt-language", 0)[-1]), "%")

# %% [markdown]
# Did the novels help? Take a trunk of the same shape that has read nothing: its weights are random
# numbers, drawn as GPT-2's are before training. It is frozen too, with the same front, back
# and number of steps. How many percent does it get right?

# %%
guess = ...                                               # a percentage

# %%
reveal(guess, float(run("random@gpt2", 0)[-1]), "%")

# %% [markdown]
# That is the effect the paper reports. It is tempting to stop here and say: language teaches a
# model to compute.
#
# ## The doubt: what differs between the two?
#
# A comparison shows something about reading only if the two trunks differ in nothing but the
# reading. The next cell prints the **spread** of their weights, their typical distance from their
# mean. `random@gpt2` has GPT-2's own, made for sums of 768 numbers; ours add only 128. So we add a
# control that has read nothing either: `random` is drawn as the paper draws it for this width.
#
# We train all three with three **seeds**, which fix the new layers, the examples and the random
# weights. Which is ahead after 100 steps, on average: `"novels"` or `"random"`?

# %%
guess = ...

# %%
TRUNKS = {"novels": "minigpt-language", "random": "random", "random@gpt2": "random@gpt2"}


def runs(trunks, seeds=3):
    """{name: trunk} -> {name: (seeds, 6)}"""
    jobs = tqdm([(trunk, seed) for trunk in trunks.values() for seed in range(seeds)])
    rows = iter([run(*job) for job in jobs])
    return {name: np.array([next(rows) for _ in range(seeds)]) for name in trunks}


def spread(trunk, layer):
    return np.mean([p.data.std() for name, p in make(trunk).trunk.named_parameters()
                    if name.endswith(f"{layer}.weight")])


for name, trunk in TRUNKS.items():
    print(f"{name:12} spread of attention's first matrix {spread(trunk, 'c_attn'):.3f}, of "
          f"feed-forward's {spread(trunk, 'c_fc'):.3f}")
right = runs(TRUNKS)
reveal(guess, max(("novels", "random"), key=lambda name: right[name][:, 1].mean()))
curves(right, "Bit XOR, three seeds each (dotted: guessing)", ylabel="bits right (%)",
       x=range(50, 301, 50), level=50, inks=(color.language, color.random, color.small),
       styles=("-", "--", "-."))

# %% [markdown]
# **This is the picture to keep.** Weights that never read a word are not behind those that have:
# they are ahead. So the story "it is the novels" does not survive its first control.
#
# Is it the *size* of the weights, then? A control that persuades differs in one thing. So take
# `random@gpt2`, which is too small, and give it one part of `random`, nothing else: attention, or
# feed-forward, which has twice as many numbers. Which brings it to 90 % of the bits: `"attention"`,
# `"feed-forward"`, `"both"` (each alone) or `"neither"`?

# %%
guess = ...

# %%
right |= runs({"random@gpt2, feed-forward of random": "random@gpt2+mlp=random",
               "random@gpt2, attention of random": "random@gpt2+attn=random"})
ends = {name: rows[:, -1] for name, rows in right.items() if name != "novels"}
learned = [name.split()[1] for name, values in ends.items() if "," in name and values.mean() >= 90]
reveal(guess, {0: "neither", 1: "".join(learned), 2: "both"}[len(learned)])
bars(dict(sorted(ends.items(), key=lambda item: item[1].mean())),
     "One part at a time gets its right size (dotted: guessing)",
     "bits right after 300 steps (%), a dot for each seed", color.grey, digits=0, levels=[50],
     width=6, xlim=(0, 112))

# %% [markdown]
# The first random trunk was too small to learn this quickly. What it lacked most is the size of its
# attention weights; that of feed-forward helps less.
#
# That does not show that reading never matters. On XOR the trunks differ only in how *fast* they
# are: with more steps, most of the small ones get there as well (`docs/results/language.md`).
#
# ## Exercises
#
# Write in place of the dots and run the cell. Solutions are in the folder `solutions`.
#
# **1.** A string is of use only when all of its bits are right. What share of the examples is that?

# %%
def strings_right(logits, y):
    """logits (B, T, 2): scores for 0 and 1; y (B, T) in {0, 1} -> a share from 0 to 1"""
    return ...


check("strings_right", strings_right)


# %% [markdown]
# **2.** How many numbers does FPT train, on $T$ tokens? A layer norm has two vectors of $C$
# numbers; each block has two, and one more ends the trunk; each position has $C$ numbers. A layer
# from $n$ to $m$ numbers has $nm$ weights and $m$ biases. For our model the table above has the
# answer. What is it for GPT-2 base, with 12 blocks and $C = 768$?

# %%
def parameters_trained(n_layer, n_embd, tokens, input_dim, output_dim):
    """Blocks, C, T, numbers in a token, scores at a token -> how many numbers are trained"""
    return ...


check("parameters_trained", parameters_trained)


# %% [markdown]
# ## Going further
#
# **A rule, or a memory of examples?** Ten bits make only $2^{10} = 1024$ different inputs, and 300
# steps of four draw 1200. So most of our test examples were not new. We need a test that can fail:
# keep a quarter of all inputs out of the training, and test on these alone. How many percent of the
# bits does the language trunk get right there? (It gets 600 steps, because it has fewer different
# examples to learn from.)

# %%
guess = ...                                               # a percentage


# %%
class HeldOut(minifpt.tasks.BitXOR):
    """Bit XOR; a quarter of all inputs is never seen in training, and only they are tested."""

    numbers = np.random.default_rng(0).permutation(2 ** 10)

    def draw(self, rng, size, split):
        allowed = self.numbers[256:] if split == "train" else self.numbers[:256]
        bits = rng.choice(allowed, size)[:, None] >> np.arange(10) & 1       # (B, 10)
        return bits[..., None].astype(np.float32), bits[:, :5] ^ bits[:, 5:]


held_out = minifpt.train(make(), HeldOut(), 600, batch_size=4, lr=3e-3, seed=0, eval_every=600,
                         test_examples=128)
reveal(guess, 100 * held_out[-1]["test_accuracy"], "%")

# %% [markdown]
# It learned a rule. (One run.)
#
# **3.** *Open.* Is the comparison fair? All trunks had the same learning rate, which was chosen in
# trials on the trunk that has read. First write a measure that is harder to please than ours: the
# step from which on the accuracy *stays* at a level or above it. Then set `RUN` to `True`. Does the
# order change when each trunk has its own best learning rate? How many seeds would you need to
# believe it?

# %%
def steps_to_learn(steps, accuracy, level):
    """steps (N,), accuracy (N,) -> the first step from which on the accuracy is never below
    the level; math.inf if there is none"""
    return ...


check("steps_to_learn", steps_to_learn)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    for lr in (1e-3, 3e-3, 1e-2):
        for name, trunk in TRUNKS.items():
            history = minifpt.train(make(trunk), task, steps=1000, lr=lr, eval_every=50)
            print(lr, name, steps_to_learn(history["step"], history["test_accuracy"], 0.99))

# %% [markdown]
# **The picture to keep:** bits right against steps: random weights that are too small stay near
# 50 %, random weights of the right size rise before those that read novels.
#
# **The sentence to remember:** *A model learns XOR when less than half a per cent of its numbers
# are trained, and frozen weights that have read nothing serve a little better than weights that
# have, if they are large enough.*
#
# **What we do not know yet**: whether that holds on harder tasks and on text (lessons 8 and 22), or
# at other learning rates (exercise 3). And we did not see *how* the model does it.
#
# **Next**: [lesson 1](01_gradients_by_hand.ipynb) starts to take the model apart: how does training
# find the direction in which each number moves?
