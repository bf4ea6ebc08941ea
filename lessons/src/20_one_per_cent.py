# %% [markdown]
# # 20. One per cent
#
# **You want a trained model to learn something new, and you can afford to train and to store a few
# per cent of its parameters. Which ones?**
#
# After this lesson you can
#
# - derive the gradients of a low-rank adapter, and say how it must start;
# - compare parts of a model at equal numbers, each at its own learning rate;
# - say why no part is the best one for every task.
#
# You need lessons [1](01_gradients_by_hand.ipynb), [7](07_freeze_masks.ipynb) and
# [13](13_transfer.ipynb).

# %%
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt import adapters
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, reveal, show
from minifpt.layers import Linear
from minifpt.tasks.text import Text
from minifpt.training import evaluate

# %% [markdown]
# ## Text from right to left
#
# The shipped model `minigpt-tiny` has read novels, byte by byte: 2 blocks, 32 channels. We ask it
# to read from right to left: after `.dne e` comes `h`. If it gave all 256 bytes equal probability,
# its loss would be $\ln 256 = 5.5$ nats a byte; from left to right it has about 2. What is its loss
# from right to left, before it learns anything?

# %%
guess = ...                                               # nats a byte

# %%
T = 16                                                    # tokens


class Backwards(Text):
    """x (B, 16) and y (B, 16), bytes; y is one byte further to the left in the book."""

    def passages(self, split, start):
        x, y = super().passages(split, start)
        passage = np.concatenate([x, y[:, -1:]], axis=1)[:, ::-1]
        return passage[:, :-1], passage[:, 1:]


def halves(task):
    """256 held-out passages to choose learning rates with, and 256 others for the test."""
    x, y = task.test_set()
    order = np.random.default_rng(0).permutation(len(x))
    return [(x[part], y[part]) for part in (order[:256], order[256:512])]


def reader():
    """The shipped model; its table of bytes is frozen here and stays so."""
    model = minifpt.LanguageModel.from_pretrained("minigpt-tiny", dropout=0.0)
    model.wte.weight.trainable = False
    return model


def train(model, task, steps, lr, seed):
    minifpt.train(model, task, steps, batch_size=16, lr=lr, seed=seed, schedule="cosine",
                  warmup=20, eval_every=steps, test_examples=1, progress=False)
    return model


text = Backwards(tokens=T)
validation, test = halves(text)
before = {name: evaluate(reader(), task, *halves(task)[1])[0]
          for name, task in (("left to right", Text(tokens=T)), ("right to left", text))}
reveal(guess, before["right to left"], "nats")
print(", ".join(f"{name}: {loss:.2f} nats" for name, loss in before.items()))

# %% [markdown]
# ## Low-rank adaptation
#
# Keep $W$ `(n_in, n_out)` frozen, and learn a change beside it that is a product of two thin
# matrices. This **adapter** is called **LoRA**, low-rank adaptation (Hu et al. 2021, [arXiv
# 2106.09685](https://arxiv.org/abs/2106.09685)):
#
# $$ y = x\,W + b + s\,(x A)\,B, \qquad s = \frac{\alpha}{r} $$
#
# with $A$ `(n_in, r)`, $B$ `(r, n_out)`, and a number $\alpha$ that is chosen once. $r$ is the
# **rank**: the change reads only $r$ directions of the input. GPT-2 base has 12 blocks of 768
# channels. With rank 4 on each `c_attn`, 768 to 2304 channels, how many numbers are trained, in per
# cent of the trunk's?

# %%
guess = ...                                               # per cent

# %%
base = minifpt.GPT2(minifpt.GPT2Config(n_layer=12, n_head=12, n_embd=768), seed=None)
total, new = sum(p.data.size for p in base.parameters()), 12 * 4 * (768 + 2304)
reveal(guess, 100 * new / total, "%")
print(f"{new:,} beside {total:,}")

# %% [markdown]
# $A$ and $B$ are the weights of two linear layers (lesson 1), one after the other, with $h = xA$
# between them. And $x$ goes two ways, through $W$ and through $A$, so its gradient has two terms.
# With $x$ `(N, n_in)` and $dh$ `(N, r)`:
#
# $$ dB = s\,h^\top dy, \qquad dh = s\,dy\,B^\top, \qquad dA = x^\top dh, \qquad
#    dx = dy\,W^\top + dh\,A^\top $$
#
# $W$ gets none: the product $x^\top dy$ is never computed (lesson 7). After training an adapter is
# **merged** into its weight, since $x W + s (x A) B = x\,(W + s A B)$.

# %%
show(adapters.LoRA.forward, adapters.LoRA.backward)

# %%
def small():
    """A small model with adapters on attention, in float64, to check gradients with."""
    trunk = minifpt.trunks.get("random:2x2x8", dropout=0.0, dtype=np.float64)
    model = minifpt.FPT(trunk, 3, 4, 2)
    model.freeze(minifpt.FreezeMask.parse("input,output,pos,ln,attn,mlp"))
    return adapters.adapt(model, "lora:rank=2,alpha=3")


def lora_layers(model):
    """{name: layer} of the layers with an adapter."""
    return {name: layer for i, block in enumerate(model.trunk.h) for name, layer in (
        (f"h.{i}.attn.c_attn", block.attn.c_attn), (f"h.{i}.attn.c_proj", block.attn.c_proj))}


def started(a, b):
    """The small model, where each adapter's A and B are random (1) or zero (0)."""
    model, rng = small(), np.random.default_rng(7)
    for layer in lora_layers(model).values():
        layer.lora_a.data *= a
        layer.lora_b.data[...] = b * 0.3 * rng.standard_normal(layer.lora_b.data.shape)
    return model


some = np.random.default_rng(0).standard_normal((2, 5, 3))
print(minifpt.gradcheck(started(1, 1), some))

# %% [markdown]
# ## Where to start
#
# $A$ and $B$ can each start at 0 or random: four ways. A good start leaves the model as it was, and
# it can learn. Look at the formulas: how many of the four do both?

# %%
guess = ...                                               # of 4


# %%
def all_gradients(model):
    """{name of an adapter's matrix: its gradient}, for one random dy"""
    logits, cache = model.forward(some, train=True)
    model.backward(np.random.default_rng(3).standard_normal(logits.shape), cache)
    return {f"{name} {part}": getattr(layer, part).grad
            for name, layer in lora_layers(model).items() for part in ("lora_a", "lora_b")}


good, lines, words = 0, [], ("0", "random")
for a in (1, 0):
    for b in (0, 1):
        change = np.abs(started(a, b).predict(some) - small().predict(some)).max()
        gradients = all_gradients(started(a, b))
        da, db = (max(np.abs(values).max() for name, values in gradients.items() if part in name)
                  for part in ("lora_a", "lora_b"))
        good += change == 0 and max(da, db) > 0
        lines.append(f"A {words[a]:6}  B {words[b]:6}  a score moves by up to {change:.2f}, "
                     f"largest dA {da:.2f}, dB {db:.2f}")
reveal(guess, int(good))
print(*lines, sep="\n")

# %% [markdown]
# Two do. With $B = 0$ the first $dA = s\,x^\top dy\,B^\top$ is zero, and $dB$ is not. After one
# step $B$ has moved, and $A$ learns from then on. With both zero nothing ever moves. The library
# starts with $B = 0$.
#
# ## Which part?
#
# Three parts of the trunk have nearly as many numbers: *layer norms and positions*, which lesson 0
# trains (832); *biases* (736; *BitFit*, Ben Zaken et al. 2021, [arXiv
# 2106.10199](https://arxiv.org/abs/2106.10199)); *LoRA* of rank 2 on attention (768). The whole
# trunk has 25,984. We ask on two tasks: text from right to left, and printed digits as 16 patches.
# For digits the model gets a new input and a new output layer, trained in each arm; so one more arm
# trains nothing of the trunk.
#
# Each arm has its own learning rate, chosen on other examples than the test's and with another
# seed, going up or down a ladder until both neighbours are worse. We test with three seeds on text,
# where they hardly differ, and with five on digits.

# %%
RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]


def own_rate(score):
    """The rate of the ladder whose ``score(rate)`` beats that of both its neighbours."""
    scores, i = {}, RATES.index(1e-2)
    while True:
        near = range(max(i - 1, 0), min(i + 2, len(RATES)))
        scores |= {j: score(RATES[j]) for j in near if j not in scores}
        if scores[i] == max(scores[j] for j in near):
            return RATES[i]
        i = max(near, key=scores.get)


def compare(arms, measure, better=max, seeds=5):
    """{arm: (its own rate, test scores)}; ``measure(arm, rate, seed, for_choice)``"""
    sign = 1 if better is max else -1
    results = {}
    for arm in tqdm(arms):
        rate = own_rate(lambda rate, arm=arm: sign * measure(arm, rate, 100, True))
        results[arm] = rate, np.array([measure(arm, rate, seed, False) for seed in range(seeds)])
    return results


def table(results, digits, start=None):
    """Each arm's rate, mean and seeds, and how far the mean is below ``start``."""
    for arm, (rate, scores) in results.items():
        print(f"{arm:16} at {rate:<6g} mean {scores.mean():.{digits}f}, seeds", ", ".join(
            f"{score:.{digits}f}" for score in scores),
            "" if start is None else f"  gain {start - scores.mean():.2f}")


# %% [markdown]
# Which of the three small parts is the worst on text, and which is the best on digits? For example
# `"lora, lora"`, with `norms`, `biases` and `lora` as names.

# %%
guess = ...

# %%
FROZEN = "pos,ln,attn,mlp"
PARTS = {"nothing": (FROZEN, None), "norms, positions": ("attn,mlp", None),
         "biases": (FROZEN, "bitfit"), "LoRA": (FROZEN, "lora:rank=2"),
         "whole trunk": ("full", None), "positions": ("ln,attn,mlp", None),
         "LoRA, positions": ("ln,attn,mlp", "lora:rank=1")}


def arm_of(model, arm, seed):
    mask, adapter = PARTS[arm]
    model.freeze(minifpt.FreezeMask.parse(mask))
    if isinstance(model, minifpt.LanguageModel):
        model.wte.weight.trainable = False
    return adapters.adapt(model, adapter, seed) if adapter else model


def measure_text(arm, rate, seed, for_choice):
    model = train(arm_of(reader(), arm, seed), text, 90, rate, seed)
    return evaluate(model, text, *(validation if for_choice else test))[0]


class SomeDigits(minifpt.tasks.Classification):
    """2,000 images to learn from; 500 others to choose rates with, 1,000 of other fonts to test"""

    name, input_dim, tokens, output_dim, output_tokens, classes = "digits", 49, T, 10, 1, 10

    def __init__(self):
        source, self.options = minifpt.tasks.Digits(patch=7), {}
        self.images = {split: source.batch(np.random.default_rng(n), n, split)
                       for split, n in (("train", 2000), ("validation", 500), ("test", 1000))}

    def draw(self, rng, size, split):
        x, y = self.images[split]
        chosen = rng.integers(0, len(x), size)
        return x[chosen], y[chosen]


def size(model):
    """How many numbers of the trunk are trained, counting only the positions in use."""
    return sum(p.data[:T].size if p.group == "pos" else p.data.size
               for p in model.trunk.parameters() if p.trainable)


digits = SomeDigits()


def digit_model(arm, seed):
    trunk = minifpt.GPT2.from_pretrained("minigpt-tiny", dropout=0.0)
    return arm_of(minifpt.FPT(trunk, 49, 10, 1, seed=seed), arm, seed)


def measure_digits(arm, rate, seed, for_choice):
    model = train(digit_model(arm, seed), digits, 150, rate, seed)
    return 100 * evaluate(model, digits, *digits.images["validation" if for_choice else "test"])[1]


SMALL = {"norms, positions": "norms", "biases": "biases", "LoRA": "lora"}
on_text = compare([*SMALL, "whole trunk"], measure_text, min, 3)
on_digits = compare(["nothing", *SMALL], measure_digits)
reveal(guess, ", ".join(SMALL[max(SMALL, key=lambda arm: results[arm][1].mean())]
                        for results in (on_text, on_digits)))
bars({arm: scores for arm, (_, scores) in on_text.items()}, "Text from right to left: less is "
     "better (dotted: before)", "nats a byte, test", color.language, 2, [before["right to left"]])
bars({arm: scores for arm, (_, scores) in on_digits.items()}, "Printed digits: more is better",
     "% right, other fonts", color.images)
table(on_text, 3, before["right to left"])
table(on_digits, 1)

# %% [markdown]
# Layer norms and positions: the same part is the worst on text and the best on digits. On text,
# biases and LoRA have most of what the whole trunk gains, with 3 % of its numbers. On digits they
# can hardly be told from a trunk in which nothing is trained.
#
# So "LoRA or layer norms?" has no answer without a task. Why this one? The trunk learned its
# positions on lines of text, and what a patch means depends on its place in four rows of four. Our
# guess: digits need new *positions* above all. Then LoRA must do it, too, once it has them: rank 1
# and 16 positions, 896 numbers. How many per cent has it?

# %%
guess = ...

# %%
more = compare(["positions", "LoRA, positions"], measure_digits)
reveal(guess, float(more["LoRA, positions"][1].mean()), "%")
table(more, 1)
print("trained numbers:", ", ".join(f"{arm} {size(digit_model(arm, 0))}" for arm in PARTS))

# %% [markdown]
# So it comes out. Positions alone, 512 numbers, do as well as with the layer norms. With four seeds
# of five LoRA with positions is ahead of LoRA without them, at half the rank. Whether a few numbers
# are enough depends on whether they reach what the task changes.
#
# ## Broken on purpose
#
# Suppose that we forget the second way of $x$: `backward` returns $dy\,W^\top$ without
# $dh\,A^\top$. The model has four adapters, so eight gradients. How many are wrong at the start,
# where $B = 0$? And how many once $B$ has moved? For example `"4, 4"`.

# %%
guess = ...


# %%
class NotPassedOn(adapters.LoRA):
    """The bug: what went into the adapter does not come back."""

    def backward(self, dy, cache):
        super().backward(dy, cache)                       # dA and dB
        return Linear.backward(self, dy, cache["linear"])


def broken(model):
    for layer in lora_layers(model).values():
        layer.__class__ = NotPassedOn
    return model


wrong_names = []
for b in (0, 1):
    right_ones, broken_ones = all_gradients(started(1, b)), all_gradients(broken(started(1, b)))
    wrong_names.append([name for name in right_ones
                        if not np.allclose(right_ones[name], broken_ones[name], rtol=1e-9)])
reveal(guess, f"{len(wrong_names[0])}, {len(wrong_names[1])}")
print("right even then:", ", ".join(name for name in right_ones if name not in wrong_names[1]))
for b, name in enumerate(("with B = 0", "with B random")):
    print("the broken one is checked", name, str(minifpt.gradcheck(
        broken(started(1, b)), some)).splitlines()[-1], sep=": ")

# %% [markdown]
# At the start the missing term $s\,dy\,B^\top A^\top$ is zero, so no gradient is wrong. `gradcheck`
# finds the fault all the same: it looks again with parameters that it has moved a little. Once $B$
# has moved, all gradients below the topmost adapter are wrong. So check gradients away from special
# values such as 0, and check that of a layer's input, too.
#
# ## Exercises
#
# Solutions are in `solutions/20_one_per_cent.py`.
#
# **1.** All layers get adapters of the same rank, as large as a budget of numbers allows. A rank
# beyond a layer's smaller side adds nothing, so a layer stops there. What is the largest rank? (If
# the budget is enough for all layers, it is the largest of their smaller sides.)

# %%
def largest_rank(shapes, budget):
    """[(n_in, n_out), ...] and a number of trained numbers for all -> a rank, 0 if none fits"""
    return ...


check("largest_rank", largest_rank)


# %% [markdown]
# **2.** The gradients of a LoRA whose $W$ is frozen. All axes of $x$ but the last are rows.

# %%
def lora_backward(dy, x, W, A, B, s):
    """dy (..., n_out), x (..., n_in) -> dx, dA, dB"""
    return ...


check("lora_backward", lora_backward)


# %% [markdown]
# **3.** *Open.* A fair rule first: choose each arm's rate by its validation scores, and report its
# test scores, one for each seed. Then a measurement: set `RUN` to `True` and choose the arms. Where
# does LoRA help most, on attention or on `mlp.*`? Is rank 4 on one layer better than rank 1 on
# four?

# %%
def fair_tests(train, arms, rates, seeds):
    """train(arm, rate, seed) -> (validation accuracy, test accuracy); {arm: test accuracies}"""
    return ...


check("fair_tests", fair_tests)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    PARTS |= {"attention": (FROZEN, "lora:rank=5,on=attn.*"),          # 1,920 numbers each
              "mlp": (FROZEN, "lora:rank=3,on=mlp.*")}
    table(compare(["attention", "mlp"], measure_text, min, 3), 3, before["right to left"])

# %% [markdown]
# **Next**: [lesson 21](21_from_gpt2_to_today.ipynb) changes the parts themselves, from those of
# GPT-2 to those of today's models.
