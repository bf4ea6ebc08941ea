# %% [markdown]
# # 7. Freeze masks
#
# **A Frozen Pretrained Transformer trains a few parameters in a hundred. Does a step then cost a
# few per cent? What does it save, and how do you know that the rest stood still?**
#
# After this lesson you can
#
# - say for any mask which layers run on the way back, and which of their gradients are made;
# - predict a step's products and the bytes it must remember, and hold both against a count;
# - say why a gradient of zero does not hold a weight still.
#
# You need lessons [1](01_gradients_by_hand.ipynb) and [6](06_gpt2_whole.ipynb). It takes about an
# hour.

# %%
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np

import minifpt
from minifpt import fast
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.freeze import group_of
from minifpt.huggingface import parameter_shapes
from minifpt.layers import Linear
from minifpt.lesson import color, figure, picture, reveal, show

# %% [markdown]
# ## A mask
#
# The task is bit memory (lesson 8 looks inside). The model is an input layer, the shipped trunk,
# and an output layer. Each parameter belongs to a **group**, by its name. A **freeze mask** says
# which groups are **frozen**: they stay as they are. All else is **trained**.

# %%
task = minifpt.tasks.get("bit-memory")
trunk = minifpt.GPT2.from_pretrained("minigpt-language", dropout=0.0)
model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
x, y = task.batch(np.random.default_rng(0), 8)            # x (B, T, 20)

model.freeze(minifpt.FreezeMask.fpt())                    # the paper's
print(model.summary())

# %% [markdown]
# That is not the 0.1 % that the paper speaks of. The same mask on GPT-2 base, for the same task,
# counting only the positions that the task uses: what per cent of the parameters is trained?

# %%
guess = ...

# %%
config = minifpt.GPT2Config()                             # GPT-2 base
C = config.n_embd
sizes = {"input": (task.input_dim + 1) * C, "output": (C + 1) * task.output_dim}
for name, shape in parameter_shapes(vars(config) | {"n_positions": task.tokens}):
    sizes[group_of(name)] = sizes.get(group_of(name), 0) + int(np.prod(shape))
del sizes["tok"]                                          # the token table is not used
base = sum(sizes.values())
trained = base - sizes["attn"] - sizes["mlp"]
reveal(guess, 100 * trained / base, "%")
print(f"GPT-2 base: {trained:,} of {base:,}")
here = model.counts(task.tokens).values()
print(f"our trunk:  {sum(t for _, t in here):,} of {sum(n for n, _ in here):,}")

# %% [markdown]
# Frozen matrices grow with $C^2$, trained vectors with $C$. The wider the trunk, the smaller the
# share. (Of our trunk's positions, too,
# only those that the task uses are counted here; the others never get a gradient.)
#
# A mask is made from flags, from a preset, or from text: groups, and patterns on names with the
# wild cards of a shell. (`minifpt summary bit-memory --freeze "attn,mlp,h.0.*"` tries one on the
# command line.) Here are five, drawn over the layers of the model, the lowest at the bottom. The
# six of a block are `ln_1`, `c_attn`, `c_proj`, `ln_2`, `c_fc`, `c_proj`.

# %%
masks = {
    "full": "full",
    "fpt": "fpt",
    "128 scales\nat the bottom":
        "input,pos,attn,mlp,ln_f.*,h.[1-5].*,h.0.ln_2.*,h.0.ln_1.bias",
    "top block": "input,pos,ln_f.*,h.[0-4].*",
    "output\nonly": "output_only",
}


def layer_of(name):
    """A parameter's layer: trunk.h.0.ln_1.weight belongs to h.0.ln_1"""
    return name.rsplit(".", 1)[0].removeprefix("trunk.")


def trained_layers():
    return {layer_of(name) for name, p in model.named_parameters() if p.trainable}


LAYERS = list(dict.fromkeys(layer_of(name) for name, _ in model.named_parameters()))


def draw(ax, inks, title):
    """A column a mask, a row a layer, the input layer at the bottom."""
    for i, column in enumerate(inks):
        for j, ink in enumerate(column):
            ax.broken_barh([(i - 0.45, 0.9)], (j - 0.46, 0.92), color=ink)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=8)
    ax.set_xticks(range(len(masks)), masks)
    blocks = [j for j, layer in enumerate(LAYERS) if layer.endswith("ln_1")]
    ax.set_yticks([0.5, *(j + 2.5 for j in blocks), len(LAYERS) - 1.5],
                  ["input, positions", *(f"block {i}" for i in range(len(blocks))),
                   "ln_f, output"])
    for j in [*blocks, len(LAYERS) - 2]:
        ax.axhline(j - 0.5, color=color.ink, linewidth=0.5)
    ax.set(title=title, xlim=(-0.5, len(masks) - 0.5), ylim=(-0.7, len(LAYERS) - 0.3))


inks = []
for text in masks.values():
    model.freeze(minifpt.FreezeMask.parse(text))
    inks.append([color.trained if layer in trained_layers() else color.frozen
                 for layer in LAYERS])
    count = sum(t for _, t in model.counts().values())
    print(f"{count:10,} trained   {minifpt.FreezeMask.parse(text)}")
fig, (ax,) = figure(width=6, height=4.6)
draw(ax, inks, "Five masks: pink is trained, grey is frozen")
picture(fig)

# %%
show(minifpt.FreezeMask.frozen, group_of)

# %% [markdown]
# ## What is never computed
#
# Compare the third mask with the fourth. The third trains 128 numbers, the scale of the lowest
# layer norm; the fourth all of the top block, above a thousand times as many. (Both train the
# output layer, too.) How many times as long does a step with the third mask take as one with the
# fourth?

# %%
guess = ...                                               # below 1 if it is faster


# %%
def step():
    """Forward and backward; returns the cache."""
    model.zero_grad()
    logits, cache = model.forward(x, train=True)
    _, dlogits = task.loss(logits, y)
    model.backward(dlogits, cache)
    return cache


def time_in_turn(texts, rounds=19):
    """Each mask's times in seconds, (masks, rounds).  In turn, so that what else the
    computer does meets all of them."""
    seconds = np.zeros((len(texts), rounds + 1))
    for r in range(rounds + 1):
        for i, text in enumerate(texts):
            model.freeze(minifpt.FreezeMask.parse(text))
            start = time.perf_counter()
            step()
            seconds[i, r] = time.perf_counter() - start
    return seconds[:, 1:]                                 # the first round warms up


seconds = time_in_turn(masks.values())
reveal(guess, float(np.median(seconds[2] / seconds[3])), "times as long")

# %% [markdown]
# Few trained numbers, and the longer step. Why? We watch every backward of the library while a
# step runs: which layer it was called for, and which of its results are not `None`.

# %%
@contextmanager
def watched():
    """Within: {layer: what its backward gave}, and how often each operation ran."""
    layer_with = {id(p.data): layer_of(name) for name, p in model.named_parameters()}
    gave, calls, originals = {}, Counter(), []
    with_weight = "linear_backward", "layer_norm_backward"

    def spy(module, name, op):
        def watching(dy, cache, *need):
            out = op(dy, cache, *need)
            calls[name] += 1
            if name in with_weight:                       # their caches end with w
                gave[layer_with[id(cache[-1])]] = [
                    what for what, a in zip(("dx", "dw", "db"), out, strict=True)
                    if a is not None]
            return out
        return watching

    for module in (F, fast):
        for name, op in list(vars(module).items()):
            if name in with_weight or module is fast and name.endswith("_backward"):
                originals.append((module, name, op))
                setattr(module, name, spy(module, name, op))
    try:
        yield gave, calls
    finally:
        for module, name, op in originals:
            setattr(module, name, op)


gaves, inks = {}, []
for title, text in masks.items():
    model.freeze(minifpt.FreezeMask.parse(text))
    with watched() as (gave, calls):
        step()
    gaves[title] = gave
    inks.append([color.trained if layer in trained_layers() else
                 color.frozen if layer in gave else "#eceff1" for layer in LAYERS])
    print(f"{' '.join(title.split()):26}", {n.removesuffix("_backward"): c
                                            for n, c in calls.items()})
fig, (ax,) = figure(width=6, height=4.6)
draw(ax, inks, "The way back: pink makes its own, grey hands on, white never runs")
picture(fig)

# %% [markdown]
# White is below the lowest trained layer: nobody there wants anything. But a frozen layer *above*
# a trained one must run back, because the gradient has to get past it. One scale at the bottom,
# and the whole model runs back.
#
# Now count. A linear layer with input $x$ `(N, I)`, $N$ rows, and weight $w$ `(I, O)` has three
# products of $N \cdot I \cdot O$ multiplications each:
#
# $$ y = x\,w + b, \qquad dx = dy\,w^\top, \qquad dw = x^\top dy $$
#
# The first is always made. Number the layers from the bottom, $l = 0, 1, \dots$; then
#
# $$ dw_l \text{ is made} \iff w_l \text{ is trained}, \qquad
#    dx_l \text{ is made} \iff \text{something below } l \text{ is trained} $$
#
# So a full step costs three products a layer, one under FPT's mask two (of the large matrices,
# none makes a $dw$), and a layer below the lowest trained one costs one. In the library the second
# rule is `need_dx`, which each layer hands up in the form of a cache that is `None` or not. (In
# the last block, all that comes after attention runs for the tokens that are read alone, as in
# lesson 6: there $N$ is smaller.)

# %%
show(Linear)

# %%
rows = {layer: x.shape[0] * x.shape[1] for layer in LAYERS}
top = f"h.{trunk.config.n_layer - 1}"
for layer in ("output", f"{top}.attn.c_proj", f"{top}.mlp.c_fc", f"{top}.mlp.c_proj"):
    rows[layer] = x.shape[0] * task.output_tokens         # the last tokens only
product = {layer_of(name): rows[layer_of(name)] * p.data.size      # N I O
           for name, p in model.named_parameters()
           if p.data.ndim == 2 and "wpe" not in name}
products = {what: np.array([sum(size for layer, size in product.items()
                                if what in gave.get(layer, ()))
                            for gave in gaves.values()]) / sum(product.values())
            for what in ("dx", "dw")}
total = 1 + products["dx"] + products["dw"]

fig, (ax,) = figure(width=7, height=3.1)
places = np.arange(len(masks))
ax.bar(places, np.ones(len(masks)), 0.5, color=color.grey, label="y")
ax.bar(places, products["dx"], 0.5, bottom=1, color=color.teal, label="dx")
ax.bar(places, products["dw"], 0.5, bottom=1 + products["dx"], color=color.trained,
       label="dw")
ratio = np.quantile(seconds / seconds[0], [0.25, 0.5, 0.75], axis=1)
ax.errorbar(places + 0.33, total[0] * ratio[1],
            total[0] * np.abs(ratio[[0, 2]] - ratio[1]), fmt="o",
            color=color.ink, markersize=4, label="time, full = its products")
ax.set_xticks(places, masks)
ax.set(ylabel="forward passes", ylim=(0, 3.4),
       title="Products of the linear layers, counted; time, measured")
ax.legend(ncols=4, loc="upper right", fontsize=8)
picture(fig)
for title, t, r in zip(masks, total, ratio[1], strict=True):
    print(f"{' '.join(title.split()):26} products {t / total[0]:.2f} of full,",
          f"time {r:.2f}")

# %% [markdown]
# (A dot is the middle of the rounds, its line their middle half.) Time follows products, not
# exactly: attention, GELU and layer norm are not in the bars. They run back or not, too, and they
# weigh more in a trunk as narrow as ours.
#
# By products, freezing saves two thirds at the very most, and under FPT's mask one third, however
# few parameters it trains.
#
# ## Stopping too early
#
# Here is a mask under which the whole trunk is frozen; only the input layer and the output layer
# are trained, four arrays. It is tempting to say: the trunk is frozen, so run it without keeping
# anything. (In other libraries that is a `no_grad` around it.) We build this mistake into the
# model. Of the four trained arrays, how many get a gradient?

# %%
guess = ...


# %%
@contextmanager
def nothing_kept(trunk):
    """The bug: a frozen trunk runs as if nobody below it wanted a gradient."""
    def forward(e, train=False, rng=None, need_dx=True, last=None):
        return minifpt.GPT2.forward(trunk, e, train, rng, need_dx=False, last=last)
    trunk.forward = forward                               # over the class's
    try:
        yield
    finally:
        del trunk.forward


before = {name: p.data.copy() for name, p in model.named_parameters()}


def start_again():
    for name, p in model.named_parameters():
        p.data[...] = before[name]


model.freeze(minifpt.FreezeMask.parse("pos,ln,attn,mlp"))
with nothing_kept(trunk):
    step()
    gradients = {name: p.grad is not None for name, p in model.named_parameters()
                 if p.trainable}
    history = minifpt.train(model, task, steps=40, batch_size=8, lr=1e-2, eval_every=10,
                            test_examples=8, progress=False)
reveal(guess, sum(gradients.values()), "of 4")
print("gets a gradient:", gradients)
print("loss, each ten steps:", history["train_loss"].round(3))
start_again()

# %% [markdown]
# Nothing raised an error, and the loss falls, because the output layer learns. The optimizer
# passes over parameters that have no gradient; the input layer stays at its random start. Two
# checks see it: after a step every trained parameter has a gradient; and `gradcheck_layer`, which
# asks the loss itself. Here on a model that is small enough, in float64:

# %%
rng = np.random.default_rng(0)
shape = minifpt.GPT2Config(n_layer=3, n_head=2, n_embd=8, n_positions=6, vocab_size=7,
                           dropout=0.0)
small = minifpt.FPT(minifpt.GPT2(shape, dtype=np.float64), input_dim=3, output_dim=2)
for p in small.parameters():                              # off the starting values
    p.data += 0.3 * rng.standard_normal(p.data.shape)
some = rng.standard_normal((2, 5, 3))


def report(text, note=""):
    small.freeze(minifpt.FreezeMask.parse(text))
    found = minifpt.gradcheck_layer(small, some)
    wrong = [name for name, error in found.errors.items() if not error < 1e-6]
    print(f"{text + note:31}{len(found.errors):3} arrays, largest error "
          f"{found.max_relative_error:.0e}, wrong: {', '.join(wrong) or 'none'}")


for text in ("full", "fpt", "input,pos,attn,mlp,h.0.*", "pos,ln,attn,mlp"):
    report(text)
with nothing_kept(small.trunk):
    report("pos,ln,attn,mlp", ", the bug")

# %% [markdown]
# And the gradients that a mask leaves over are those of the full step, to the bit:

# %%
model.freeze(minifpt.FreezeMask.full())
step()
full = {name: p.grad for name, p in model.named_parameters()}
for text in ("fpt", "pos,ln,attn,mlp", "input,pos,ln_f.*,h.[0-4].*"):
    model.freeze(minifpt.FreezeMask.parse(text))
    step()
    same = [bool((p.grad == full[name]).all()) for name, p in model.named_parameters()
            if p.trainable]
    print(f"{text:28}{len(same):3} gradients, the same bits in {sum(same)}")

# %% [markdown]
# ## What need not be remembered
#
# A cache holds what the way back will read, and it is a thing that we can walk through: tuples in
# tuples, and arrays. We add up the bytes of the arrays, each once, and without those of the
# parameters, which are there anyway. Under FPT's mask, what per cent of the full step's bytes are
# left?

# %%
guess = ...


# %%
def arrays_in(cache):
    """Each array of a cache once, as the whole memory that it looks into."""
    found, todo = {}, [cache]
    while todo:
        item = todo.pop()
        if isinstance(item, (tuple, list)):
            todo += item
        elif isinstance(item, np.ndarray):
            while isinstance(item.base, np.ndarray):
                item = item.base
            found[id(item)] = item
    for p in model.parameters():
        found.pop(id(p.data), None)
    return list(found.values())


def bytes_in(cache):
    return sum(a.nbytes for a in arrays_in(cache))


caches, states = {}, {}
for title, text in masks.items():
    model.freeze(minifpt.FreezeMask.parse(text))
    caches[title] = step()
    states[title] = sum(3 * p.data.nbytes for p in model.parameters() if p.trainable)
held = {title: bytes_in(cache) for title, cache in caches.items()}
reveal(guess, 100 * held["fpt"] / held["full"], "%")

fig, (ax,) = figure(width=7, height=2.9)
ax.bar(places - 0.2, [b / 1e6 for b in held.values()], 0.38, color=color.teal,
       label="cache, until the way back has read it")
ax.bar(places + 0.2, [b / 1e6 for b in states.values()], 0.38, color=color.ink,
       label="gradient and Adam's two moments, all the time")
ax.set_xticks(places, masks)
ax.set(ylabel="megabytes", title="What a step of training must remember")
ax.legend(fontsize=8)
picture(fig)

# %% [markdown]
# Why this number? Say $N = B \cdot T$ rows. These are what a block's backwards read, in units of
# $N C$ numbers:
#
# | what | of size $NC$ | who reads it |
# |---|---|---|
# | $\hat x$ of two layer norms | 2 | $dx$ and $dw$ of the norms |
# | queries, keys, values | 3 | attention's $dx$ |
# | the slope of GELU | 4 | GELU's $dx$ |
# | the inputs of `c_attn`, `attn.c_proj`, `c_fc` | 3 | the three $dw$ |
# | the input of `mlp.c_proj` | 4 | its $dw$ |
#
# Only $dw = x^\top dy$ reads a linear layer's input; $dx = dy\,w^\top$ reads the weight. So under
# a frozen weight the input can be forgotten, and
#
# $$ \text{full: } 16\,NC + r \qquad\qquad \text{FPT: } 9\,NC + r \qquad\qquad
#    r = 2N + BHT^2 $$
#
# where $r$ is one number a row for each norm, and each head's map `(T, T)`, which is kept because
# our text is short (lesson 5). This is a prediction to the byte. It can fail.

# %%
B, T, C, H = *x.shape[:2], trunk.config.n_embd, trunk.config.n_head
r = 2 * B * T + B * H * T ** 2
print(f"a number has {model.trunk.dtype.itemsize} bytes")
for title, units in (("full", 16), ("fpt", 9)):
    block = caches[title][3][2][3]                        # model, trunk, block 3
    print(f"{title:5} a block, predicted {4 * (units * B * T * C + r):9,}, "
          f"walked {bytes_in(block):9,}")

# %% [markdown]
# Now from below. We freeze one block after the other, with what lies under it, and train
# everything above: what is left of the full step?

# %%
texts = ["full", *("input,pos," + ",".join(f"h.{j}.*" for j in range(i))
                   for i in range(1, trunk.config.n_layer + 1))]
texts = [text.rstrip(",") for text in texts]
below = time_in_turn(texts, rounds=11)
memory, ran = [], []
for text in texts:
    model.freeze(minifpt.FreezeMask.parse(text))
    with watched() as (gave, _):
        memory.append(bytes_in(step()))
    ran.append(len(gave))

fig, (ax,) = figure(width=6.2, height=3)
frozen_blocks = np.arange(len(texts))
ax.plot(frozen_blocks, np.array(ran) / ran[0], "s-", color=color.grey, markersize=4,
        label="layers that run back")
ax.plot(frozen_blocks, np.array(memory) / memory[0], "o-", color=color.teal,
        markersize=4, label="bytes of the cache")
low, middle, high = np.quantile(below / below[0], [0.25, 0.5, 0.75], axis=1)
ax.plot(frozen_blocks, middle, "o-", color=color.ink, markersize=4,
        label="time of a step")
ax.fill_between(frozen_blocks, low, high, color=color.ink, alpha=0.15, linewidth=0)
ax.axhline(1 / 3, color=color.ink, linewidth=0.8, linestyle=":")
ax.text(0, 1 / 3 + 0.02, "the forward pass: one product of three", fontsize=8)
ax.set(xlabel="blocks frozen, from the bottom", ylabel="of the full step",
       ylim=(0, 1.15), title="The way back ends at the lowest trained layer")
ax.legend(fontsize=8)
picture(fig)

# %% [markdown]
# The layers fall in a straight line almost to 0. The bytes fall faster, because the last block
# keeps less than the others: most of it runs for the tokens that are read alone. Time cannot
# follow: the forward pass remains.
#
# ## Did the rest stand still?
#
# "Frozen" is a promise about every bit. We train for some steps and compare.

# %%
def moved():
    """Of attention and feed-forward: how many arrays changed, and how far in all."""
    steps = [p.data - before[name] for name, p in model.named_parameters()
             if group_of(name) in ("attn", "mlp")]
    distance = np.sqrt(sum((s ** 2).sum() for s in steps))
    return sum(bool(s.any()) for s in steps), float(distance)


model.freeze(minifpt.FreezeMask.fpt())
minifpt.train(model, task, steps=20, batch_size=4, test_examples=64, progress=False)
same = {name: bool((p.data == before[name]).all())
        for name, p in model.named_parameters()}
frozen = [same[name] for name, p in model.named_parameters() if not p.trainable]
print(f"frozen arrays: {len(frozen)}, the same bits in {sum(frozen)}")
print("trained arrays with the same bits:",
      [name for name, p in model.named_parameters() if p.trainable and same[name]])

# %% [markdown]
# Another way that one meets in practice: compute everything, then set the frozen gradients to
# zero. It costs a full step; but is it at least the same? The optimizer is Adam with **weight
# decay**, which shrinks each matrix a little at each step, as our trunk was pretrained. After one
# step with all gradients of attention and feed-forward exactly zero, how many of their 48 arrays
# (a weight and an offset in each of 24 layers) have changed?

# %%
guess = ...


# %%
def train_with_zeroed_gradients(steps, weight_decay=0.0, from_step=0):
    """Freezes by gradients of 0; how far the frozen arrays are after each step."""
    start_again()
    model.freeze(minifpt.FreezeMask.full())
    optimizer = minifpt.optim.Adam(model.parameters(), 1e-3, weight_decay=weight_decay)
    distance = []
    for i in range(steps):
        step()
        for name, p in model.named_parameters():
            if i >= from_step and group_of(name) in ("attn", "mlp"):
                p.grad = np.zeros_like(p.data)
        optimizer.step()
        distance.append(moved()[1])
    return distance


train_with_zeroed_gradients(1, weight_decay=0.1)
reveal(guess, moved()[0], "of 48")

steps = 16
ways = {"gradients 0, weight decay":
            train_with_zeroed_gradients(steps, weight_decay=0.1),
        "gradients 0 after step 4": train_with_zeroed_gradients(steps, from_step=4)}

start_again()
model.freeze(minifpt.FreezeMask.fpt())
optimizer = minifpt.optim.Adam([p for p in model.parameters() if p.trainable], lr=1e-3,
                               weight_decay=0.1)
not_trainable = []
for _ in range(steps):
    step()
    optimizer.step()
    not_trainable.append(moved()[1])
start_again()

fig, axes = figure(2, width=4.1, height=2.7)
for ax, (name, distance) in zip(axes, ways.items(), strict=True):
    ax.plot(range(1, steps + 1), distance, "o-", color=color.ochre, markersize=3,
            label=name)
    ax.plot(range(1, steps + 1), not_trainable, "o-", color=color.frozen, markersize=3,
            label="not trainable")
    ax.set(xlabel="step", title=f"Frozen weights: {name}")
    ax.legend(loc="center right" if name.endswith("4") else "upper left", fontsize=8)
axes[0].set_ylabel("distance moved")
axes[1].axvline(4, color=color.ink, linewidth=0.8, linestyle=":")
picture(fig)
print("not trainable, distance after the last step:", not_trainable[-1])

# %% [markdown]
# Weight decay needs no gradient. And Adam's moments remember: what was trained up to step 4 (the
# dotted line) goes on by itself, and as far again. (Offsets are not decayed here, so the first way
# moved the matrices alone.) One more way to go wrong is in the exercises: clipping. In the library
# a frozen parameter has no gradient, `None`, and the optimizer never hears of it.
#
# So, the question at the top. FPT trains a few per cent, and its step still makes two of three
# products. It saves a good part of the cache and nearly all that the optimizer keeps. It does not
# save the way back: that ends at the lowest trained layer, and FPT trains the lowest there is.
#
# ## Exercises
#
# Solutions are in `solutions/07_freeze_masks.py`.
#
# **1.** Layers in a row, the first the lowest. Given which are trained, say for each whether its
# backward runs, and whether that makes a $dx$. (The input of the lowest is data.)

# %%
def way_back(trained):
    """n booleans, from the bottom -> runs, makes_dx: two lists of n booleans"""
    runs = ...
    makes_dx = ...
    return runs, makes_dx


check("way_back", way_back)


# %% [markdown]
# **2.** All these layers are linear, of the same size. How many products is a whole step, forward
# and back?

# %%
def products_of_a_step(trained):
    """a list of n booleans, from the bottom -> a whole number"""
    return ...


check("products_of_a_step", products_of_a_step)


# %% [markdown]
# **3.** An FPT over GPT-2 base, 12 blocks. Write the text of a mask that freezes attention and
# feed-forward everywhere, and of the `k` lowest blocks everything, such that nothing runs back
# below block `k`. All else is trained. (`minifpt.FreezeMask.parse` reads it.)

# %%
def freeze_below(k):
    """k from 1 to 11 -> a text such as "attn,mlp,h.3.ln_1.*" """
    return ...


check("freeze_below", freeze_below)


# %% [markdown]
# **4.** Gradients are **clipped**: if the norm of all of them together, the root of the sum of
# their squares, is above `max_norm`, they are scaled down to it. Then a step of gradient descent,
# `data - lr * gradient`. Here a parameter is a row of $C$ numbers, and somebody computed the
# gradients of frozen rows as well. Write the step in which they do not count.

# %%
def clipped_step(data, gradients, trained, lr, max_norm):
    """data and gradients (P, C), trained (P,) booleans -> new data (P, C)"""
    return ...


check("clipped_step", clipped_step)


# %% [markdown]
# **5.** *Open.* You may train a given number of parameters, no more. Which? The output layer must
# be among them, because it starts at random. The check only sees that you keep to the budget and
# use at least half of it. Then set `RUN` to `True` and measure: the accuracy on bit XOR, and the
# time of a step. Try budgets from 1,000 to 40,000. Is a number better spent low or high, on scales,
# on offsets, on positions? How much of what you find is left with another seed?

# %%
def spend(sizes, budget):
    """{parameter's name: how many numbers}, a budget -> a list of names to train"""
    return ...


check("spend", spend)

# %%
RUN = False
if RUN:
    xor = minifpt.tasks.get("bit-xor")
    for budget in (1000, 4000, 40000):
        fresh = minifpt.GPT2.from_pretrained("minigpt-language", dropout=0.0)
        fresh = minifpt.FPT(fresh, xor.input_dim, xor.output_dim, xor.output_tokens)
        sizes = {name: p.data.size for name, p in fresh.named_parameters()}
        chosen = spend(sizes, budget)
        fresh.freeze(minifpt.FreezeMask(patterns=tuple(set(sizes) - set(chosen))))
        history = minifpt.train(fresh, xor, steps=500, batch_size=16, lr=3e-3)
        print(budget, f"{100 * history[-1]['test_accuracy']:.1f} %",
              f"{1000 * history[-1]['seconds'] / 500:.1f} ms a step")

# %% [markdown]
# **Next**: [lesson 8](08_inside_bit_xor_and_bit_memory.ipynb) trains with FPT's mask, and looks at
# what attention, frozen as it is, has begun to do.
