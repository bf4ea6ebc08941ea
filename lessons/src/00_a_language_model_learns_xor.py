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
# - test whether a model learned a rule or memorised examples;
# - find the control that a comparison lacks, add it, and say what is left of the first story.
#
# **What we know by now.** Nothing but the question of the whole course: *what does a frozen
# transformer already have, and what must be learned?* [A paper of
# 2021](https://arxiv.org/abs/2103.05247) says that a model that has read language can compute with
# bits, pictures and proteins, though its weights are frozen.
#
# **The question:** Is it the reading?
#
# In the live page: [stations 1 to 4](../minifpt/viewer/tour.md) of its tour, or
# `minifpt.viewer.tour(1)` in a cell here.
#
# You need Python and a little NumPy, no other lesson. It takes about 45 minutes: 35 to read and
# run, 10 for two exercises. What happens inside the model comes later, one part in each lesson.
#
# A cell with `guess = ...` asks you to commit to an answer before you run the next cell: put it
# in place of the dots.

# %%
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, figure, matrix, picture, reveal, show
from minifpt.files.tokenizer import Bytes
from minifpt.training import step

# %% [markdown]
# ## What it can do
#
# Here it is. We give it the start of a sentence, and it goes on, one letter at a time.

# %%
language_model = minifpt.LanguageModel.from_pretrained("minigpt-language")
letters = Bytes()
text = language_model.generate(letters.encode("The old man "), 200, temperature=0.7, seed=3)
print(letters.decode(text))

# %% [markdown]
# Most of the words are real. None of it means anything. The model is small: it knows which letter
# tends to follow, and not much else.
#
# ## The task
#
# Two strings of five bits come in, one bit after the other. The model must return their **XOR**: at
# each position 1 if the two bits differ, 0 if they are equal.

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

# %% [markdown]
# XOR is a famous little problem: no weighted sum of the two bits can tell the two answers apart.
# Suppose that $a x_1 + b x_2 + c$ is positive exactly where the XOR is 1. Then
#
# $$ a + c > 0, \qquad b + c > 0, \qquad c \le 0, \qquad a + b + c \le 0 $$
#
# The first two add up to $a + b + 2c > 0$, the last two to $a + b + 2c \le 0$. Both cannot be
# true. So the model needs something nonlinear in between, and here it also has to bring together
# two bits that are five positions apart.
#
# ## A frozen model with a new front and a new back
#
# The model expects letters, so it needs a new front: an **input layer** that turns each bit into a
# vector of $C = 128$ numbers, as many as the model uses for a letter. And a new back: an **output
# layer** that turns each of the model's last five vectors into two scores, one for "0" and one for
# "1"; the bit with the higher score is the answer. What stands between them is the **trunk**: six
# blocks, each with two parts, *attention* and *feed-forward*, which lessons 4 and 6 take apart.
# **Frozen** means that training does not change it. Let $x$ `(T, 1)` be the $T = 10$ bits, and $p$
# `(T, C)` a vector for each position in the sequence. Each of the two new layers has a weight $w$
# and a bias $b$:
#
# $$ e = x\, w_{\text{in}} + b_{\text{in}} + p, \qquad h = \text{trunk}(e), \qquad
#    \text{scores} = h_{\text{last}}\, w_{\text{out}} + b_{\text{out}} $$
#
# where $e$ and $h$ are `(T, C)`, $w_{\text{in}}$ is `(1, C)` and $b_{\text{in}}$ `(C,)`,
# $w_{\text{out}}$ is `(C, 2)` and $b_{\text{out}}$ `(2,)`, and $h_{\text{last}}$ `(5, C)` are the
# last five rows of $h$. This is a **Frozen Pretrained Transformer**, FPT, after Lu, Grover, Abbeel
# and Mordatch (2021). We train the two new layers, the position vectors $p$, and the layer norms:
# thin layers that rescale what each block reads. In brackets is what is trained:
#
#     bits → [input layer] → + [positions] → 6 × ([norm] → attention → [norm] → feed-forward)
#          → [norm] → [output layer] → scores

# %%
def make(trunk="minigpt-language", mask=None, seed=0):
    """A trunk, by its name, with a new input and output layer; the mask says what is frozen."""
    model = minifpt.FPT.for_task(task, trunk, seed=seed, dropout=0.0)
    model.freeze(mask or minifpt.FreezeMask.fpt())
    return model


model = make()

# %% [markdown]
# Of all the numbers in the model, how many percent are trained?

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
# One step of training: draw a few examples, run the model, and move each trained number a little
# in the direction that makes the answers better. Here is the library's step.

# %%
show(step)

# %% [markdown]
# `forward` runs the model and `loss` says how wrong it is. `backward` finds the direction, the
# **gradient**; how it does that is what most of the other lessons are about. `clip_grad_norm`
# shortens a gradient that is too long. The optimizer, Adam, decides how far each number moves: at
# most by about the **learning rate** `lr`, and less where recent gradients disagreed. (Its
# formula is in `minifpt/optim.py`.)
#
# We take 300 steps with four examples each. Guessing gets half of the bits right. How many
# percent of the bits does the frozen language model get right in the end?

# %%
guess = ...                                               # a percentage


# %%
def train(model, seed=0, task=task, steps=300, eval_every=50, progress=True):
    return minifpt.train(model, task, steps, batch_size=4, lr=3e-3, seed=seed,
                         eval_every=eval_every, test_examples=128, progress=progress)


language = train(model)
reveal(guess, 100 * language[-1]["test_accuracy"], "%")

# %% [markdown]
# Did the novels help? Take a trunk of the same shape that has read nothing: its weights are random
# numbers, drawn as GPT-2's are before any training, with the standard deviation 0.02, the distance
# that they typically have from 0 (and a smaller one in the last layer of each part). It is frozen
# as well, with the same front, back and number of steps. How many percent does it get right?

# %%
guess = ...                                               # a percentage

# %%
small = train(make("random@gpt2"))
reveal(guess, 100 * small[-1]["test_accuracy"], "%")
curves({"pretrained on novels": 100 * language["test_accuracy"],
        "random, too small": 100 * small["test_accuracy"]},
       "bit XOR, one run each (dotted: guessing)", ylabel="bits right (%)", x=small["step"],
       level=50, inks=(color.language, color.grey))

# %% [markdown]
# That is the effect that the paper reports. The trunk that has read novels is nearly done, and the
# random one has hardly begun. It is tempting to stop here and say: language teaches a model to
# compute.
#
# ## The doubt: what differs between the two?
#
# A comparison shows something about reading only if the two trunks differ in nothing but the
# reading. Do they? We print how widely each trunk's weights are spread. And we add two controls
# that have read nothing. *As in the paper* is the paper's own random trunk: its standard deviation
# is 0.02 for 768 channels, so for our 128 it is larger by $\sqrt{768/128}$. *Matched random* is
# drawn array by array with the mean and the standard deviation that this array has in the trunk
# that has read.

# %%
ARMS = {"pretrained on novels": ("minigpt-language", "-", color.language),
        "random, too small": ("random@gpt2", ":", color.grey),
        "random, as in the paper": ("random", "--", color.random),
        "matched random": ("statistics:minigpt-language", "-.", color.statistics)}
for name, (kind, *_) in ARMS.items():
    parameters = dict(make(kind).trunk.named_parameters())
    spread = {part: np.mean([parameters[f"h.{i}.{part}.weight"].data.std() for i in range(6)])
              for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
    print(f"{name:24}", "   ".join(f"{part} {value:.3f}" for part, value in spread.items()))

# %% [markdown]
# The trained weights are not only arranged in another way, they are also several times larger than
# those of the first random trunk. So there are two explanations: what the trunk has *learned*, or
# merely how *large* its weights are.
#
# We train all four with five seeds each; a **seed** fixes the new layers, the examples, and the
# random weights. How many of the three that have read nothing come to 90 % before the one that has?
# (One to two minutes.)

# %%
guess = ...                                               # 0 to 3

# %%
runs = {"pretrained on novels": [language], "random, too small": [small]}
jobs = [(name, seed) for name in ARMS for seed in range(len(runs.setdefault(name, [])), 5)]
for name, seed in tqdm(jobs, desc="four trunks, five seeds"):
    runs[name].append(train(make(ARMS[name][0], seed=seed), seed, progress=False))


def first_at(history, level=0.9):
    """The first step with that accuracy, or infinity."""
    good = history["test_accuracy"] >= level
    return history["step"][good.argmax()] if good.any() else np.inf


reached = {name: [first_at(history) for history in histories] for name, histories in runs.items()}
novels = np.mean(reached["pretrained on novels"])
reveal(guess, sum(np.mean(steps) < novels for steps in reached.values()), "of 3")
for name, steps in reached.items():
    print(f"{name:24} 90 % at step", ", ".join("never" if n == np.inf else f"{n:.0f}"
                                               for n in steps))
curves({name: 100 * np.mean([history["test_accuracy"] for history in histories], axis=0)
        for name, histories in runs.items()}, "bit XOR, mean of five seeds (level 50: guessing)",
       ylabel="bits right (%)", x=small["step"], level=50, inks=[ink for *_, ink in ARMS.values()],
       styles=[style for _, style, _ in ARMS.values()])

# %% [markdown]
# **This is the picture to keep.** Two of the trunks that never read a word are not behind the one
# that has: they are ahead of it. So the story "it is the novels" does not survive its first
# control.
#
# Is it the *size* of the weights, then? The arms differ in more than size: the layer norms and
# positions of *matched random* start with the means and spreads of the trunk that has read, too. A
# control that persuades differs in one thing. So take the trunk that is too small. Give it the
# attention weights of *matched random*, and nothing else. Then do the same with the layer norms,
# and with the positions. (One seed each.)

# %%
source = "statistics:minigpt-language"
for part in ("attn", "ln", "pos"):
    history = train(make(f"random@gpt2+{part}={source}"), progress=False)
    print(f"too small, but {part:4} as in matched random: "
          f"{100 * history[-1]['test_accuracy']:.0f} % of the bits")

# %% [markdown]
# With attention weights of the right size the trunk learns; with layer norms or positions alone it
# does not, in these 300 steps. So the first random trunk was too small to learn this quickly, and
# it is the size of the attention weights that it lacked.
#
# That does not show that reading never matters. On XOR the trunks differ only in how *fast* they
# are: with 2000 steps, four of five of the small ones reach 100 % as well
# (`docs/results/language.md` in the repository). [Lesson 8](08_inside_bit_xor_and_bit_memory.ipynb)
# gives trunks a harder task and looks inside, and [lesson
# 22](22_why_random_weights_find_a_string.ipynb) says what random weights have.
#
# ## Two more doubts
#
# *Did it learn XOR, or did it memorise examples?* Ten bits make only $2^{10} = 1024$ different
# inputs, and 300 steps of four draw 1200. So most of our test examples were not new. We need a test
# that can fail: keep a quarter of all inputs out of the training, and test on these alone. How many
# percent of the bits does the language trunk get right there? (It gets 600 steps, because it has
# fewer different examples to learn from.)

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


held_out = train(make(), task=HeldOut(), steps=600, eval_every=600)
reveal(guess, 100 * held_out[-1]["test_accuracy"], "%")

# %% [markdown]
# It learned a rule. (One run.)
#
# *Which of the trained parts did it?* We freeze them one at a time. What is frozen stays as it was
# at the start: the layer norms and the positions as the language model left them, the input layer
# as it was drawn at random. Last, we freeze all but the output layer.

# %%
Mask = minifpt.FreezeMask
masks = {"FPT": Mask.fpt(), "layer norms frozen too": Mask(attn=True, mlp=True, ln=True),
         "input layer frozen too": Mask(attn=True, mlp=True, input=True),
         "positions frozen too": Mask(attn=True, mlp=True, pos=True),
         "all but the output layer frozen": Mask.output_only()}
scores = {name: 100 * (language if mask == Mask.fpt() else train(
    make(mask=mask), eval_every=300))[-1]["test_accuracy"] for name, mask in masks.items()}
bars({f"{name}\n{sum(t for _, t in make(mask=mask).counts(10).values()):,} trained": scores[name]
      for name, mask in masks.items()}, "freezing the positions is what hurts (one run each)",
     "bits right after 300 steps (%), guessing is dotted", color.trained, digits=0, levels=[50],
     width=6, height=0.45, xlim=(0, 112))

# %% [markdown]
# (One run each: which of the first three bars is the longest changes with the seed.) Of the trained
# parts, the positions are missed most. A likely reason: the bit that is
# needed stands exactly five positions back, and nothing in the novels asked for that distance. The
# output layer alone stays nearer to guessing than to the rule.
#
# ## What did we see?
#
# - A frozen trunk takes up bit XOR when less than half a per cent of the model's numbers is
#   trained, and it learns the rule, not the examples.
# - Random trunks of the right size do so sooner than the one that has read novels. On this task the
#   effect needs the size of the attention weights, not the reading.
#
# ## Exercises
#
# Write in place of the dots and run the cell. The check answers at once, with new numbers each
# time. Solutions are in the folder `solutions`.
#
# **1.** How many numbers does FPT train? Look at the table above, where the trunk has 6 blocks.
# A layer norm has two vectors of $C$ numbers; each block has two layer norms, and one more
# stands at the end of the trunk. A layer from $n$ to $m$ numbers has $nm$ weights and $m$ biases.

# %%
def parameters_trained(n_layer, n_embd, tokens, input_dim, output_dim):
    """Blocks, C, T, numbers in a token, scores at a token -> how many numbers are trained"""
    return ...


check("parameters_trained", parameters_trained)

# %% [markdown]
# With your function: how many is it on bit XOR (10 tokens, one number in, two scores out) for GPT-2
# base, which has 12 blocks and $C = 768$? It should say 49,154. GPT-2's trunk has about 85 million
# parameters, seventy times as many as ours.
#
# **2.** A string is of use only when all of its bits are right. What share of the examples is
# that?

# %%
def strings_right(logits, y):
    """logits (B, T, 2): scores for 0 and 1; y (B, T) in {0, 1} -> a share from 0 to 1"""
    return ...


check("strings_right", strings_right)


# %% [markdown]
# **3.** Memorised or learned: someone gives you the training examples and the test examples.
# Which of the test examples were never seen in training? (If both strings were seen, but never
# together, the example is new.)

# %%
def never_seen(x, seen):
    """x (B, T, 1), seen (N, T, 1) -> (B,) of True and False"""
    return ...


check("never_seen", never_seen)


# %% [markdown]
# **4.** *Open.* Is the comparison fair? All four trunks had the same learning rate, which was
# chosen in trials on the trunk that has read; perhaps another one needs another. First write a
# measure that is harder to please than ours: the step from which on the accuracy *stays* at a level
# or above it. Then set `RUN` to `True`. Does the order of the four change when each has its own
# best learning rate? How many seeds would you need to believe it?

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
        for kind, *_ in ARMS.values():
            history = minifpt.train(make(kind), task, steps=1000, lr=lr, eval_every=50)
            print(lr, kind, steps_to_learn(history["step"], history["test_accuracy"], 0.99))

# %% [markdown]
# **The picture to keep:** bits right against steps: random weights that are too small stay at 50 %,
# two other kinds of random weights rise before those that read novels.
#
# **The sentence to remember:** *A model learns XOR when less than half a per cent of its numbers
# are trained, and frozen weights that have read nothing serve a little better than weights that
# have, if they are large enough.*
#
# **What we do not know yet**: whether that holds on harder tasks and on text (lessons 8 and 22), or
# at other learning rates (exercise 4). And we did not see *how* the model does it. How does
# `backward` know which way each number should move?
#
# **Next**: [lesson 1](01_gradients_by_hand.ipynb) starts to take the model apart: how does
# `backward` find its direction?
