# %% [markdown]
# # 0. A language model learns XOR
#
# **A small GPT-2 has read fourteen novels, letter by letter, and has never seen a bit. We freeze
# it, so that it can learn nothing more. Can it compute?**
#
# After this lesson you can
#
# - say what a Frozen Pretrained Transformer is, and which few of its numbers are trained;
# - put a frozen model to a task, and read its learning curve against the level of guessing;
# - test whether it learned a rule or learned by heart, and say what the result does not show.
#
# You need Python and a little NumPy, no other lesson. It takes about half an hour. What happens
# inside the model comes later, one part a lesson; here we use it as it is.
#
# A cell with `guess = ...` asks you to commit yourself before you run the next one: put your
# answer in place of the dots.

# %%
import numpy as np

import minifpt
from minifpt.exercises import check
from minifpt.lesson import color, figure, matrix, picture, reveal, show
from minifpt.tokenizer import Bytes
from minifpt.train import step

# %% [markdown]
# ## What it can do
#
# Here it is. We give it the start of a sentence, and it goes on, one letter at a time.

# %%
trunk = minifpt.GPT2.from_pretrained("minigpt-language", dropout=0.0)
letters = Bytes()
text = trunk.generate(letters.encode("The old man "), 200, temperature=0.7, seed=3)
print(letters.decode(text))

# %% [markdown]
# Words, most of them real. Sentences, nearly. Meaning, none. It is small: it knows which letter
# tends to follow, and not much else.
#
# ## What it shall do
#
# Two strings of five bits come in, one bit after the other. Their **XOR** shall come out: at
# each place 1 if the two bits differ, 0 if they are equal.

# %%
task = minifpt.tasks.get("bit-xor")
x, y = task.batch(np.random.default_rng(1), 4)            # x (B, 10, 1), y (B, 5)

fig, axes = figure(4, width=2.0, height=1.7)
for ax, bits, answer in zip(axes, x[..., 0], y, strict=True):
    matrix(ax, np.stack([bits[:5], bits[5:], answer]), "", digits=0, limit=1.6,
           columns=[""] * 5, rows=["first", "second", "XOR"] if ax is axes[0] else [""] * 3)
    ax.axhline(1.5, color="white", linewidth=5)
axes[0].set_title("four examples", loc="left")
picture(fig)

# %%
show(minifpt.tasks.BitXOR.draw)

# %% [markdown]
# XOR is a famous little problem: no weighted sum of two bits tells 1 from 0. Suppose that
# $a x_1 + b x_2 + c$ were positive just where the XOR is 1. Then
#
# $$ a + c > 0, \qquad b + c > 0, \qquad c \le 0, \qquad a + b + c \le 0 $$
#
# The first two add up to $a + b + 2c > 0$, the last two to $a + b + 2c \le 0$. So something has
# to bend in between, and here it also has to bring two bits together that stand five places
# apart.
#
# ## A frozen model with a new front and a new back
#
# The model expects letters, so it needs a new front: an **input layer** that makes of each bit a
# vector of $C = 128$ numbers, as many as the model uses for a letter. And a new back: an
# **output layer** that makes of the model's last five vectors two scores each, one for "0" and
# one for "1". What stands between is the **trunk**: six blocks of attention and feed-forward.
# **Frozen** means that training may not change a number. With $x$ `(T, 1)` the $T = 10$ bits,
# $p$ `(T, C)` a vector for each place in the sequence, and $w$ and $b$ the two new layers':
#
# $$ e = x\, w_{\text{in}} + b_{\text{in}} + p, \qquad h = \text{trunk}(e), \qquad
#    \text{scores} = h_{\text{last}}\, w_{\text{out}} + b_{\text{out}} $$
#
# where $e$ and $h$ are `(T, C)`, $w_{\text{in}}$ is `(1, C)`, $w_{\text{out}}$ is `(C, 2)`, and
# $h_{\text{last}}$ `(5, C)` are the last five rows of $h$. This is a **Frozen Pretrained
# Transformer**, FPT, after Lu, Grover, Abbeel and Mordatch (2021). Trained are the two new
# layers, the places $p$, and the layer norms: thin layers that rescale what the blocks read.

# %%
def make(trunk, mask):
    """The trunk with a new input and output layer; the mask says what is frozen."""
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
    model.freeze(mask)
    return model


model = make(trunk, minifpt.FreezeMask.fpt())
parts = [("bits", None), ("input layer", True), ("places", True)]
parts += 6 * [("", True), ("attention", False), ("", True), ("feed-forward", False)]
parts += [("", True), ("output layer", True), ("scores", None)]
fig, (ax,) = figure(width=8.6, height=1.9)
left = 0.0
for name, trained in parts:
    width = 0.35 if not name else 0.8
    fill = "white" if trained is None else color.trained if trained else color.frozen
    ax.bar(left, 1, width, align="edge", color=fill)
    ax.text(left + width / 2, 0.5, name, rotation=90, ha="center", va="center", fontsize=9,
            color=color.ink if trained is None else "white")
    left += width + 0.08
ax.set(xlim=(-0.1, left), ylim=(-0.05, 1.05), title="what is trained (pink) and what is frozen")
ax.axis("off")
picture(fig)

# %% [markdown]
# There is more pink in the picture than there is in the model: the boxes are not to scale. Of all
# the numbers in it, how many percent are trained?

# %%
guess = ...                                               # a percentage

# %%
counts = model.counts(task.tokens)                        # group -> (parameters, trained)
total, trained = (sum(n) for n in zip(*counts.values(), strict=True))
reveal(guess, 100 * trained / total, "%")
print(model.summary(task.tokens))

# %% [markdown]
# ## Training
#
# One step of training: draw a few examples, see what the model says, and move each trained
# number a little in the direction that would have made the answers better. (How that direction
# is found is what most of the other lessons are about.)

# %%
show(step)

# %% [markdown]
# We take 1000 steps with four examples each. Guessing gets half of the bits right. How many
# percent of the bits will the frozen language model have right in the end?

# %%
guess = ...                                               # a percentage

# %%
before = {name: p.data.copy() for name, p in model.named_parameters()}
language = minifpt.train(model, task, steps=1000, batch_size=4, lr=2e-3, eval_every=50)

# %%
reveal(guess, 100 * language[-1]["test_accuracy"], "%")
print(f"it took {language[-1]['seconds']:.0f} seconds")

# %% [markdown]
# What we count is the share of bits that are right. The model gives two scores for each of the
# 5 bits $t$ of $B$ fresh examples $n$, $s$ `(B, 5, 2)`, and the bit with the higher one counts:
#
# $$ \text{accuracy} = \frac{1}{5B} \sum_{n, t}
#    \big[\, \text{argmax}_k\, s_{ntk} = y_{nt} \,\big] $$

# %%
show(minifpt.tasks.Task.accuracy)

# %% [markdown]
# Was it the novels? Take a trunk of the same shape that has read nothing: its weights are random
# numbers. It is frozen as well, with the same front, back and number of steps. How many percent
# will it have right?

# %%
guess = ...                                               # a percentage

# %%
config = minifpt.GPT2Config(**minifpt.gpt2.SHAPES["minigpt"], dropout=0.0)
random_model = make(minifpt.GPT2(config, seed=0), minifpt.FreezeMask.fpt())
random = minifpt.train(random_model, task, steps=1000, batch_size=4, lr=2e-3, eval_every=50)

# %%
reveal(guess, 100 * random[-1]["test_accuracy"], "%")

fig, (ax,) = figure(width=6, height=3.2)
for name, history in (("language", language), ("random", random)):
    ax.plot(history["step"], 100 * history["test_accuracy"], color=vars(color)[name],
            linewidth=2, label=f"{name} trunk, frozen")
ax.axhline(50, color=color.grey, linestyle=":", label="guessing")
ax.set(xlabel="step", ylabel="bits right (%)", ylim=(40, 102),
       title="bit XOR: the language trunk is there first")
ax.legend(loc="lower right", bbox_to_anchor=(1, 0.12))
picture(fig)

# %% [markdown]
# Both learn. That alone is odd: all that is trained are thin layers around something that nobody
# made for bits. But one is done while the other is still on its way. What was in the novels that
# helps with XOR? Nobody put it there.
#
# ## Three doubts
#
# A result like this deserves distrust. *First: was the trunk really frozen?* We kept a copy of
# all parameters. The largest change in each group:

# %%
for group in counts:
    moved = max(np.abs(p.data - before[name]).max() for name, p in model.named_parameters()
                if minifpt.freeze.group_of(name) == group)
    print(f"{group:8}{moved:8.3f}   {minifpt.freeze.GROUPS[group]}")

# %% [markdown]
# *Second: did it learn XOR, or did it learn examples by heart?* Ten bits make
# $2^{10}$ different inputs, and in 1000 steps of four it has seen nearly all of them. So the
# "fresh" examples were hardly new. We need a test that could fail: keep a quarter of all inputs
# away from the training, and ask for just these.

# %%
class HeldOut(minifpt.tasks.BitXOR):
    """Bit XOR; a quarter of all inputs is never seen in training, and only they are tested."""

    numbers = np.random.default_rng(0).permutation(2 ** 10)

    def draw(self, rng, size, split):
        allowed = self.numbers[256:] if split == "train" else self.numbers[:256]
        bits = rng.choice(allowed, size)[:, None] >> np.arange(10) & 1       # (B, 10)
        return bits[..., None].astype(np.float32), bits[:, :5] ^ bits[:, 5:]


# %% [markdown]
# How many percent of the bits will be right on inputs that it never saw?

# %%
guess = ...                                               # a percentage

# %%
def language_trunk():
    return minifpt.GPT2.from_pretrained("minigpt-language", dropout=0.0)


held_out = minifpt.train(make(language_trunk(), minifpt.FreezeMask.fpt()), HeldOut(),
                         steps=600, batch_size=4, lr=2e-3, eval_every=50)

# %%
reveal(guess, 100 * held_out[-1]["test_accuracy"], "%")

# %% [markdown]
# A rule, then.
#
# *Third: which of the pink parts did it?* We take them away, one after the other: freeze the
# layer norms too, then the places, then the input layer. A frozen input layer stays as it was
# drawn at random, and only the output layer is left.

# %%
Mask = minifpt.FreezeMask
masks = {"all of FPT's": Mask.fpt(), "no layer norms": Mask(attn=True, mlp=True, ln=True),
         "nor places": Mask(attn=True, mlp=True, ln=True, pos=True),
         "output layer only": Mask.output_only()}
broken = {name: minifpt.train(make(language_trunk(), mask), task, steps=600, batch_size=4,
                              lr=2e-3, eval_every=50)
          for name, mask in list(masks.items())[1:]}

# %%
scores = [100 * h["test_accuracy"][h["step"] == 600][0] for h in (language, *broken.values())]
names = [f"{name}\n{sum(t for _, t in make(trunk, mask).counts(10).values()):,} trained"
         for name, mask in masks.items()]
fig, (ax,) = figure(width=6, height=2.6)
bars = ax.barh(names[::-1], scores[::-1], color=color.trained, height=0.6)
ax.bar_label(bars, fmt=" %.0f %%", color=color.ink)
ax.axvline(50, color=color.ink, linestyle=":", linewidth=1)
ax.set(xlabel="bits right after 600 steps (%), guessing is dotted", xlim=(0, 112),
       title="parts of FPT taken away")
picture(fig)

# %% [markdown]
# The output layer alone stays nearer to guessing than to the rule. So the answer did not lie
# ready in the trunk: the input layer and the places had to put the question in a form that the
# trunk can answer. The layer norms, which in the paper matter most, are not needed here. One
# run on one easy task does not decide that.
#
# ## What just happened?
#
# What we saw: a model frozen after it learned language takes up bit XOR with a fraction of a
# percent of its numbers, faster than a random one. What we did not see:
#
# - *That random trunks cannot.* In the paper they reach 100 % as well, with many more steps. With
#   another learning rate they may need fewer. Exercise 4 asks.
# - *That it is about language.* Perhaps any training leaves weights that are easier to use, or
#   only weights of a better size. Lesson 8 compares.
# - *How it does it.* Lessons 1 to 7 take the model apart; lesson 8 looks inside while it works.
#
# ## Exercises
#
# Write in place of the dots and run the cell; the check answers at once, with new numbers each
# time. Solutions are in `solutions/00_a_language_model_learns_xor.py`.
#
# **1.** How many numbers does FPT train? Look at the table above, where the trunk has 6 blocks.
# A layer norm has two vectors of $C$ numbers; each block has two layer norms, and one more
# stands at the trunk's end. A layer from $n$ to $m$ numbers has $nm$ weights and $m$ offsets.

# %%
def parameters_trained(n_layer, n_embd, tokens, input_dim, output_dim):
    """Blocks, C, T, numbers in a token, scores at a token -> how many numbers are trained"""
    return ...


check("parameters_trained", parameters_trained)

# %% [markdown]
# With your function: how many would it be for GPT-2 base, which has 12 blocks and $C = 768$? It
# has about 124 million parameters, a hundred times as many as our trunk.
#
# **2.** A string is of use only when all of its bits are right. Which share of the examples is
# that?

# %%
def strings_right(logits, y):
    """logits (B, T, 2): scores for 0 and 1; y (B, T) in {0, 1} -> a share from 0 to 1"""
    return ...


check("strings_right", strings_right)


# %% [markdown]
# **3.** The second doubt again: someone gives you the training examples and the test examples.
# Which of the test examples were never seen in training? (If both strings were seen, but never
# together, the example is new.)

# %%
def never_seen(x, seen):
    """x (B, T, 1), seen (N, T, 1) -> (B,) of True and False"""
    return ...


check("never_seen", never_seen)


# %% [markdown]
# **4.** *Open.* How much faster is the language trunk, and is the comparison fair? First a
# measure: the step from which on the accuracy stays at a level or above it. Then set `RUN` to
# `True`. Try other learning rates for the random trunk, more steps, other seeds. Which random
# trunk would you compare with: the first, the best, the mean?

# %%
def steps_to_learn(steps, accuracy, level):
    """steps (N,), accuracy (N,) -> the first step after which it never falls below the level
    again (at that step it is not below it either); math.inf if there is none"""
    return ...


check("steps_to_learn", steps_to_learn)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    print("language", steps_to_learn(language["step"], language["test_accuracy"], 0.99))
    for lr in (1e-3, 2e-3, 4e-3):
        random_model = make(minifpt.GPT2(config, seed=0), minifpt.FreezeMask.fpt())
        history = minifpt.train(random_model, task, steps=2000, lr=lr, eval_every=50)
        print("random", lr, steps_to_learn(history["step"], history["test_accuracy"], 0.99))
