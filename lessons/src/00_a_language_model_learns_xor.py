# %% [markdown]
# # 0. A language model learns XOR
#
# **A small GPT-2 has read fourteen novels and has never seen a bit. We freeze it, train a few small
# parts around it, and ask it to compute. Can it? And if it can, do we owe that to the novels?**
#
# After this lesson you can
#
# - say what a Frozen Pretrained Transformer is, and which few of its parameters we train;
# - train one, and read its learning curve;
# - find the control that a comparison lacks, and run it.
#
# **What we know by now.** Only the question of the whole course: *what does a frozen transformer
# already have, and what must be learned?* [A paper](https://arxiv.org/abs/2103.05247)
# reported that a frozen language model can compute with bits.
#
# **The question:** Is it the reading?
#
# In the live page: [stations 1 to 3](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(1)` in a cell here.
#
# A cell with `guess = ...` asks you for an answer before you run the next cell. Put it there.

# %%
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt.exercises import check, lesson
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.exercises.records import recorded
from minifpt.files.tokenizer import Bytes

language_model = minifpt.LanguageModel.from_pretrained("minigpt-language")
print(Bytes().decode(language_model.generate(Bytes().encode("The old man "), 150,
                                             temperature=0.7, seed=3)))
lesson.model_map("input layer", "positions", "norm", "output layer")

# %% [markdown]
# This is how the model continues "The old man ". (A *temperature* below 1 prefers likely letters.)
#
# ## The task
#
# Two strings of five bits go in, one bit after the other; each bit is a **token**. The model must
# return their **XOR**: at each position 1 if the two bits differ, 0 if they are equal.

# %%
# Not to be read: it draws four examples.
task = minifpt.tasks.get("bit-xor")
x, y = task.batch(np.random.default_rng(1), 4)            # x (B, 10, 1), y (B, 5)
fig, axes = figure(4, width=2.0, height=1.7)
for i, (ax, bits, answer) in enumerate(zip(axes, x[..., 0], y, strict=True)):
    matrix(ax, np.stack([bits[:5], bits[5:], answer]), f"example {i + 1}", digits=0, limit=1.6,
           columns=[""] * 5, rows=["first", "second", "XOR"] if i == 0 else [""] * 3)
    ax.axhline(1.5, color="white", linewidth=5)
picture(fig)

# %% [markdown]
# Why XOR? No weighted sum of two bits can compute it. Suppose $a x_1 + b x_2 + c$ were
# positive exactly where the XOR is 1. Then
#
# $$ a + c > 0, \qquad b + c > 0, \qquad c \le 0, \qquad a + b + c \le 0 $$
#
# The first two add up to $a + b + 2c > 0$, the last two to $a + b + 2c \le 0$: a contradiction. So
# the model must bring together two bits that stand five tokens apart, and then do something
# nonlinear.
#
# ## A frozen model with a new front and a new back
#
# Our model expects letters, so we replace its two ends. A new **input layer** turns each bit into a
# vector of $C = 128$ numbers. A new **output layer** turns each of the last five vectors into two
# scores, one for "0" and one for "1"; the higher score is the answer. Between them stands the
# **trunk**, six blocks of attention and feed-forward (lessons 4, 6).
#
# The numbers that make up a model are its **parameters**. Attention and feed-forward hold nearly
# all of them. We **freeze** these two: training does not change them. We train the new layers, a
# vector for each position, and the *norms*, thin layers that rescale the input of each part. This
# is a **Frozen Pretrained Transformer**, FPT for short.
#
# In the picture above, what we train is in colour. What percentage of all parameters is that?

# %%
guess = ...                                               # a percentage


# %%
def make(trunk="minigpt-language", seed=0):
    """A trunk, by its name in the library, with new ends; all but FPT's parts are frozen."""
    model = minifpt.FPT.for_task(task, trunk, seed=seed, dropout=0.0)    # dropout: see lesson 4
    model.freeze(minifpt.FreezeMask.fpt())
    return model


show(minifpt.FreezeMask.fpt)
counts = make().counts(task.tokens).values()              # (parameters, trained) of each group
total, trained = (sum(n) for n in zip(*counts, strict=True))
reveal(guess, 100 * trained / total, "%")
print(make().summary(task.tokens))

# %% [markdown]
# The boxes in colour look like half of the model. But a norm has two vectors of $C$ numbers, and a
# block has twelve matrices of $C \times C$.
#
# ## Training
#
# In each **step** of training we draw a few examples, run the model, and move each trained
# parameter a little, so that the answers improve (lesson 1). The **learning rate** `lr` says how
# far they move. Accuracy against steps is the model's **learning curve**.
#
# We take 300 steps with four examples each. Guessing gets 50 % of the bits right. What does the
# frozen language model get?

# %%
guess = ...                                               # a percentage


# %%
@recorded("00")                                           # a browser runs the first one only
def run(trunk, seed, steps=300, every=50):
    """-> the bits that are right (%) after each ``every`` steps"""
    history = minifpt.train(make(trunk, seed), task, steps, batch_size=4, lr=3e-3, seed=seed,
                            eval_every=every, test_examples=96, progress=False)
    return 100 * history["test_accuracy"]


reveal(guess, float(run("minigpt-language", 0)[-1]), "%")

# %% [markdown]
# Did the novels help? We take a second trunk of the same shape, which has read nothing: its weights
# are random, as GPT-2's before training. We freeze it too, and give it the same new layers and the
# same number of steps. What does it get?

# %%
guess = ...                                               # a percentage

# %%
reveal(guess, float(run("random@gpt2", 0)[-1]), "%")

# %% [markdown]
# In the paper, too, random weights were far slower. Is it the reading?
#
# ## What else differs?
#
# The comparison tells us about reading only if reading is the only difference. It is not. The next
# cell prints the **spread** of the weights, their typical distance from their mean. GPT-2's spread
# suits sums of 768 numbers. We add only 128, so we need larger weights.
#
# We call these trunks *language* and *small random*, and add a **control**, *random*: it has read
# nothing either, but its weights have a suitable size. We train each with several **seeds**, which
# fix the new layers, the examples and the random weights. After 100 steps, which is ahead on
# average: `"language"` or `"random"`?

# %%
guess = ...

# %%
TRUNKS = {"language": "minigpt-language", "random": "random", "small random": "random@gpt2"}


def runs(trunks, seeds, *steps):
    """{name: trunk} -> {name: (seeds, tests)}"""
    return {name: np.array([run(trunk, seed, *steps) for seed in range(seeds)])
            for name, trunk in tqdm(trunks.items())}


for name, trunk in TRUNKS.items():
    spreads = [p.data.std() for name, p in make(trunk).trunk.named_parameters()
               if name.endswith("c_attn.weight")]
    print(f"{name:12} spread of attention's first matrix: {np.mean(spreads):.3f}")
right = runs(TRUNKS, 3)
early = {name: np.append(right[name][:, 1], [run(TRUNKS[name], seed, 100, 100)[0]
                                             for seed in range(3, 8)])
         for name in ("language", "random")}
reveal(guess, max(early, key=lambda name: early[name].mean()))
print("bits right after 100 steps (%), eight seeds")
for name, values in early.items():
    print(f"{name:12}", *values.round().astype(int), f"  mean {values.mean():.0f}")
curves(right, "Random weights of the right size learn, too", ylabel="bits right (%)",
       x=range(50, 301, 50), level=50, note="guessing", styles=("-", "--", "-."),
       inks=(color.language, color.random, color.small))

# %% [markdown]
# Weights that never read a word are not behind. Over eight seeds they are ahead on average, though
# runs overlap. (The picture shows three. Lesson 13 asks how sure a lead is.) "It is the novels"
# does not survive its first control.
#
# So is it the *size* of the weights? A convincing control changes one thing only. We give *small
# random* one part of *random*: attention, or feed-forward, which has twice as many parameters.
# Which of the two is enough for 90 % of the bits: `"attention"`, `"feed-forward"`, `"both"` (each
# alone) or `"neither"`?

# %%
guess = ...

# %%
right |= runs({"small random, feed-forward of random": "random@gpt2+mlp=random",
               "small random, attention of random": "random@gpt2+attn=random"},
              2, 300, 300)                                # two seeds, a test after the last step
ends = {name: rows[:, -1] for name, rows in right.items() if name != "language"}
learned = [name.split()[2] for name, values in ends.items() if "," in name and values.mean() >= 90]
reveal(guess, {0: "neither", 1: "".join(learned), 2: "both"}[len(learned)])
bars(dict(sorted(ends.items(), key=lambda item: item[1].mean())),
     "Attention of the right size is enough", "bits right after 300 steps (%), a dot for each seed",
     color.random, digits=0, levels=[50], notes=["guessing"], width=6, xlim=(0, 112))

# %% [markdown]
# The number of parameters does not decide: *small random* mainly lacked large enough attention
# weights. Only in attention can one token reach another, and with tiny weights it looks everywhere
# equally (lesson 4). That does not show that reading never matters. On XOR the trunks differ in how
# *fast* they learn: with more steps, most runs of *small random* get there, too
# (`docs/results/language.md`).
#
# ## Exercises
#
# Replace the dots and run the cell. Solutions are in the folder `solutions`.
#
# **1.** Count an example as right only if all of its bits are right. What share of the examples is
# that?

# %%
def strings_right(logits, y):
    """logits (B, T, 2): scores for 0 and 1; y (B, T) in {0, 1} -> a share from 0 to 1"""
    return ...


check("strings_right", strings_right)


# %% [markdown]
# **2.** How many parameters does FPT train, on $T$ tokens? A norm has two vectors of $C$ numbers;
# each block has two norms, and one more stands at the trunk's end. Each position has $C$ numbers. A
# layer from $n$ to $m$ numbers has $nm$ weights and $m$ biases. For our model you find the answer
# in the table above. What is it for GPT-2 base, with 12 blocks and $C = 768$?

# %%
def parameters_trained(n_layer, n_embd, tokens, input_dim, output_dim):
    """Blocks, C, T, numbers in a token, scores at a token -> how many parameters are trained"""
    return ...


check("parameters_trained", parameters_trained)


# %% [markdown]
# ## Going further
#
# **A rule, or a memory of examples?** Ten bits make only $2^{10} = 1024$ different inputs, and 300
# steps of four draw 1200. So the model had seen most of our test examples. We need a test that can
# fail: we keep a quarter of all inputs out of the training and test on these alone. What percentage
# of their bits does the language trunk get right? (It gets 500 steps, because it has fewer
# different examples to learn from.)

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


@recorded("00")
def held_out(steps):
    history = minifpt.train(make(), HeldOut(), steps, batch_size=4, lr=3e-3, seed=0,
                            eval_every=steps, test_examples=128)
    return 100 * history[-1]["test_accuracy"]


reveal(guess, float(held_out(500)), "%")

# %% [markdown]
# It learned the rule. (One run.)
#
# **3.** *Open.* Was the comparison fair? All trunks had one learning rate, and we had chosen that
# rate in trials with the language trunk. First write a stricter measure: the first step from which
# the accuracy *stays* at or above a level. Then set `RUN` to `True`. Does the order change when
# each trunk has its own best learning rate? How many seeds would convince you?

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
# 50 %, random weights of the right size keep up with those that read novels.
#
# **The sentence to remember:** *A model learns XOR when we train less than half a per cent of its
# parameters, and frozen weights that never read a word serve it as well, if they are large enough.*
#
# **What we do not know yet**: whether that holds on harder tasks and on text (lessons 8 and 22), or
# at other learning rates (exercise 3). And we have not seen *how* the model does it.
#
# **Next**: [lesson 1](01_gradients_by_hand.ipynb) begins to take the model apart. In which
# direction does training move a parameter?
