# %% [markdown]
# # 7. Freeze masks
#
# **A Frozen Pretrained Transformer trains about one per cent of its parameters. Does a step then
# cost one per cent, and what does it save?**
#
# After this lesson you can
#
# - say for any mask which layers run on the way back, and which gradients they compute;
# - predict the products of a step, and compare them with a count;
# - name the check that sees a way back which stops too early.
#
# **What we know by now.** We have a whole GPT-2, forward and back. Its parts add to one residual
# stream, so a gradient reaches the lowest of them, even where the blocks above are frozen.
#
# **The question:** What does freezing save?
#
# In the live page: [stations 3 and 6](../minifpt/viewer/tour.md) of its tour, or
# `minifpt.viewer.tour(3)` in a cell here.
#
# You need [lesson 6](06_gpt2_whole.ipynb). It takes about 45
# minutes: 25 to read and run, 5 for your own file, 15 for two exercises. What follows under *Going
# further* is not needed later.

# %%
import time
from collections import Counter

import numpy as np

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, picture, reveal, show
from minifpt.exercises.track import written

# %% [markdown]
# ## A mask
#
# The task is bit memory: five strings of bits come in, then one of them once more with half of its
# bits hidden, and the model returns this string whole. (Lesson 8 looks inside.) The model is an
# input layer, the shipped trunk, and an output layer. Each parameter belongs to a **group**; the
# layer that owns it says which. A **freeze mask** says which groups are **frozen**: training does
# not change them. All else is **trained**.

# %%
task = minifpt.tasks.get("bit-memory")
trunk = minifpt.GPT2.from_pretrained("minigpt-language", dropout=0.0)
model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
x, y = task.batch(np.random.default_rng(0), 8)            # x (B, T, 20)

model.freeze(minifpt.FreezeMask.fpt())                    # the paper's
print(model.summary(task.tokens))

# %% [markdown]
# Positions that the task does not use never get a gradient, so the list counts only the 30 of 256
# that it uses. The share depends on the task: on bit XOR it was 0.43 % (lesson 0), and here each
# token has 20 bits instead of one.
#
# A mask is made from flags, from a preset, or from text: groups, and patterns on names, all of
# which it *freezes* (`*` stands for any text, `1-5` for a number from 1 to 5). Here are five.
# (This list counts all 256 positions.)

# %%
masks = {
    "full": "full",
    "fpt": "fpt",
    "128 scales\nat the bottom":
        "input,pos,attn,mlp,ln_f.*,h.1-5.*,h.0.ln_2.*,h.0.ln_1.bias",
    "top block": "input,pos,ln_f.*,h.0-4.*",
    "output\nonly": "output_only",
}


def layer_of(name):
    """A parameter's layer: trunk.h.0.ln_1.weight belongs to h.0.ln_1"""
    return name.rsplit(".", 1)[0].removeprefix("trunk.")


for text in masks.values():
    model.freeze(minifpt.FreezeMask.parse(text))
    count = sum(t for _, t in model.counts().values())
    print(f"{count:10,} trained   {minifpt.FreezeMask.parse(text)}")

# %% [markdown]
# ## What is never computed
#
# Compare the third mask with the fourth. The third trains 128 numbers, the scale of the lowest
# layer norm. The fourth trains all of the top block, more than a thousand times as many. (Both
# train the output layer, too.) How many times as long does a step take with the third mask as with
# the fourth?

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


def time_in_turn(texts, rounds=31):
    """Each mask's times in seconds, (masks, rounds); they take turns."""
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
# Fewer trained numbers, and the longer step. Why? `minifpt.trace` records each operation of a step,
# forward and backward. We ask which layers ran back, and which of their gradients are not `None`.

# %%
def ran_back():
    """{linear layer: the gradients it computed}, and how often each operation ran back"""
    with minifpt.trace(model) as t:
        step()
    gave, calls = {}, Counter()
    for s in t.steps:
        if s.backward and s.inside is None:
            calls[s.op] += 1
            if s.op == "linear":                          # gradients of x, w and b
                gave[s.layer.removeprefix("trunk.")] = [
                    f"d{i}" for i, d in s.partner.gradients.items() if d is not None]
    return gave, calls


gaves = {}
for title, text in masks.items():
    model.freeze(minifpt.FreezeMask.parse(text))
    gaves[title], calls = ran_back()
    print(f"{' '.join(title.split()):24}", ", ".join(
        f"{calls[op]} {op}" for op in ("linear", "layer_norm", "gelu", "attention") if calls[op]))

# %% [markdown]
# Under the fourth mask only the top block and the layers above it run back: nothing below needs a
# gradient. But a frozen layer *above* a trained one must run back, because the gradient has to get
# past it. Under the third mask one scale at the bottom is trained, and the whole trunk runs back.
#
# Now count. A linear layer with input $x$ `(N, I)`, $N$ rows, and weight $w$ `(I, O)` has three
# products of $N \cdot I \cdot O$ multiplications each:
#
# $$ y = x\,w + b, \qquad dx = dy\,w^\top, \qquad dw = x^\top dy $$
#
# The first is always computed. Number the layers from the bottom, $l = 0, 1, \dots$; then
#
# $$ dw_l \text{ is wanted} \iff w_l \text{ is trained}, \qquad
#    dx_l \text{ is wanted} \iff \text{something below } l \text{ is trained} $$
#
# So a full step costs three products a layer, and two for the lowest. Under FPT's mask it costs
# two, because none of the large matrices gets a $dw$. A layer below the lowest trained one costs
# one. The library goes through the blocks from the bottom. From the first block that learns on, it
# keeps what the way back will read (`keep`). Below that block it keeps nothing. (In the last block
# all that follows attention is computed only for the tokens that are read. There $N$ is smaller.)

# %%
show(minifpt.layers.blocks_forward, lines=("keep =", "caches.append"))

# %%
top = f"h.{trunk.config.n_layer - 1}"
last = ("output", f"{top}.attn.c_proj", f"{top}.mlp.c_fc", f"{top}.mlp.c_proj")   # fewer rows
product = {layer_of(name): len(x) * p.data.size * (       # N I O
    task.output_tokens if layer_of(name) in last else task.tokens)
    for name, p in model.named_parameters() if p.data.ndim == 2 and p.group != "pos"}
products = {what: np.array([sum(size for layer, size in product.items()
                                if what in gave.get(layer, ()))
                            for gave in gaves.values()]) / sum(product.values())
            for what in ("dx", "dw")}
total = 1 + products["dx"] + products["dw"]

fig, (ax,) = figure(width=7, height=3.1)
ax.bar(range(len(masks)), 1, 0.5, color=color.grey, label="y")
ax.bar(range(len(masks)), products["dx"], 0.5, 1, color=color.teal, label="dx", hatch="//")
ax.bar(range(len(masks)), products["dw"], 0.5, 1 + products["dx"], color=color.trained, label="dw")
ratio = np.median(seconds / seconds[0], axis=1)
ax.plot(np.arange(len(masks)) + 0.33, total[0] * ratio, "o", color=color.ink, markersize=4,
        label="time; full is set to its products")
ax.set_xticks(range(len(masks)), masks)
ax.set(ylabel="forward passes", ylim=(0, 3.4),
       title="Products of the linear layers, counted; time, measured")
ax.legend(ncols=4, loc="upper right", fontsize=8)
picture(fig)
for title, t, r in zip(masks, total, ratio, strict=True):
    print(f"{' '.join(title.split()):26} products {t / total[0]:.2f} of full,",
          f"time {r:.2f}")

# %% [markdown]
# **This is the picture to keep.** Time follows the products, but not exactly: attention, GELU and
# layer norm are not in the bars, and weigh more in a trunk as narrow as ours. (A dot is the median
# of 31 rounds.) By the products, freezing saves two thirds at the very most. FPT's mask saves one
# third, the $dw$ of the frozen matrices. The other third, the $dx$, it cannot save, however few
# parameters it trains.
#
# ## Stopping too early
#
# Here is a mask under which the whole trunk is frozen. Only the input layer and the output layer
# are trained, four arrays. It is tempting to say: the trunk is frozen, so run it without keeping
# anything. (In other libraries that is a `no_grad` around it.) We build a trunk with this mistake.
# Of the four trained arrays, how many get a gradient?

# %%
guess = ...


# %%
class KeepsNothing(minifpt.GPT2):
    """The bug: a frozen trunk that runs as if nothing below it wanted a gradient."""

    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        return super().forward(x, train, rng, need_dx=False, past=past, last=last)


broken = minifpt.FPT(KeepsNothing.from_pretrained("minigpt-language", dropout=0.0), task.input_dim,
                     task.output_dim, task.output_tokens, seed=0)
broken.freeze(minifpt.FreezeMask.parse("pos,ln,attn,mlp"))
logits, cache = broken.forward(x, train=True)
broken.backward(task.loss(logits, y)[1], cache)
gradients = {name: p.grad is not None for name, p in broken.named_parameters() if p.trainable}
history = minifpt.train(broken, task, steps=40, batch_size=8, lr=1e-2, schedule="constant",
                        warmup=0, eval_every=10, test_examples=8, progress=False)
reveal(guess, sum(gradients.values()), "of 4")
print("gets a gradient:", gradients)
print("loss, every ten steps:", history["train_loss"].round(3))

# %% [markdown]
# Nothing raised an error, and the loss falls, because the output layer learns. The optimizer skips
# parameters that have no gradient, so the input layer stays at its random start. Two checks see
# it. After a step every trained parameter must have a gradient. And `gradcheck` compares
# with the loss itself. Here it runs on a model that is small enough, in float64:

# %%
shape = minifpt.GPT2Config(n_layer=3, n_head=2, n_embd=8, n_positions=6, vocab_size=7,
                           dropout=0.0)
some = np.random.default_rng(0).standard_normal((2, 5, 3))


def report(text, trunk_class=minifpt.GPT2):
    small = minifpt.FPT(trunk_class(shape, dtype=np.float64), input_dim=3, output_dim=2)
    rng = np.random.default_rng(1)
    for p in small.parameters():                          # away from the starting values
        p.data += 0.3 * rng.standard_normal(p.data.shape)
    small.freeze(minifpt.FreezeMask.parse(text))
    found = minifpt.gradcheck(small, some)
    wrong = [name for name, error in found.errors.items() if not error < 1e-6]
    print(f"{trunk_class.__name__:13}{text:25}{len(found.errors):3} arrays checked, wrong: "
          f"{', '.join(wrong) or 'none'}")


for text in ("full", "fpt", "input,pos,attn,mlp,h.0.*", "pos,ln,attn,mlp"):
    report(text)
report("pos,ln,attn,mlp", KeepsNothing)

# %% [markdown]
# So, the question at the top. FPT trains about one per cent, and its step still computes two of
# three products. It saves the third. It also saves memory, which we did not measure: the inputs of
# frozen matrices are not stored, and Adam stores nothing for a frozen number. It does not
# save the way back: that ends at the lowest block that learns, and FPT trains in the lowest.
#
# ## A Frozen Pretrained Transformer, on your own file
#
# `last_tokens` and its backward pass are all that is missing in `mine.py` (5 minutes): the answer
# is read at the last tokens. The cache is `LastTokensCache(x.shape, n)`. Now the experiment of
# lesson 0 runs on your functions. The trunk is the language model that ships, frozen; the task is
# bit XOR.

# %%
FPT_PARTS = [name + half for half in ("", "_backward") for name in (
    "linear", "positions", "layer_norm", "attention", "residual", "gelu", "last_tokens",
    "cross_entropy")]
with written("mine.py", *FPT_PARTS) as whose:
    xor = minifpt.tasks.get("bit-xor")
    frozen = minifpt.FPT.for_task(xor, "minigpt-language", dropout=0.0)
    history = minifpt.train(frozen, xor, 300, batch_size=8, lr=3e-3, eval_every=25)
curves({"": 100 * history["test_accuracy"]}, f"A frozen language model learns XOR\n{whose}",
       ylabel="bits right (%)", x=history["step"], inks=[color.language], level=50)
print(f"{100 * history[-1]['test_accuracy']:.1f} % of the bits after 300 steps, one run")

# %% [markdown]
# If all of the functions are yours, you have written a GPT-2 that trains, in about 300 lines.
# [Lesson 18](18_your_own.ipynb) is the side road on which it is broken in three ways, to see what a
# falling loss does not tell.
#
# ## Exercises
#
# **1.** Some layers in a row, the lowest first. Given which are trained, say for each whether its
# backward pass must run, and whether a $dx$ is wanted from it. (The input of the lowest layer is
# data.)

# %%
def way_back(trained):
    """n booleans, from the bottom -> runs, has_dx: two lists of n booleans"""
    runs = ...
    has_dx = ...
    return runs, has_dx


check("way_back", way_back)


# %% [markdown]
# **2.** All these layers are linear and of the same size. How many products does a whole step
# need, forward and back?

# %%
def products_of_a_step(trained):
    """a list of n booleans, from the bottom -> a whole number"""
    return ...


check("products_of_a_step", products_of_a_step)


# %% [markdown]
# **3.** An FPT over GPT-2 base, 12 blocks. Write the text of a mask that freezes attention and
# feed-forward everywhere, and all that lies below block `k`, so that nothing runs back there. All
# else is trained. (`minifpt.FreezeMask.parse` reads it.)

# %%
def freeze_below(k):
    """k from 1 to 11 -> a text such as "attn,mlp,h.3.ln_1.*" """
    return ...


check("freeze_below", freeze_below)


# %% [markdown]
# ## Going further
#
# **Did the rest stay as it was?** One way to freeze is to compute everything, and then to set the
# gradients of what is frozen to zero. Is the result the same? The optimizer is Adam with weight
# decay. Adam keeps two running means for each parameter, of the gradient and of its square. A step
# goes along the first, divided by the root of the second. Weight decay also shrinks each matrix a
# little at every step. After one step in which all gradients of attention and feed-forward are
# exactly zero, how many of their 48 arrays (a weight and a bias in each of 24 layers) have changed?

# %%
guess = ...


# %%
before = {name: p.data.copy() for name, p in model.named_parameters()}


def moves(weight_decay=0.0, from_step=0, mask="full"):
    """How many arrays of attention and feed-forward have moved, and how far: (16 steps, 2)"""
    for name, p in model.named_parameters():
        p.data[...] = before[name]
    model.freeze(minifpt.FreezeMask.parse(mask))
    optimizer = minifpt.optim.Adam([p for p in model.parameters() if p.trainable], 1e-3,
                                   weight_decay=weight_decay)
    frozen = {name: p for name, p in model.named_parameters() if p.group in ("attn", "mlp")}
    rows = []
    for i in range(16):
        step()
        for p in frozen.values():
            if i >= from_step and p.trainable:
                p.grad = np.zeros_like(p.data)
        optimizer.step()
        moved = [np.linalg.norm(p.data - before[name]) for name, p in frozen.items()]
        rows.append((np.count_nonzero(moved), np.linalg.norm(moved)))
    return np.array(rows)


decayed = moves(weight_decay=0.1)
reveal(guess, int(decayed[0, 0]), "of 48")
curves({"gradients 0, weight decay": decayed[:, 1],
        "gradients 0 after step 4": moves(from_step=4)[:, 1],
        "not trainable": moves(0.1, mask="fpt")[:, 1]},
       "How far frozen weights move", ylabel="distance", x=range(1, 17),
       styles=("o-", "^-", "s-"), inks=(color.ochre, color.ink, color.frozen))

# %% [markdown]
# (One run each.) Weight decay needs no gradient. And Adam's means remember: what was trained up to
# step 4 moves on by itself. In the library a frozen parameter has no gradient, `None`, and the
# optimizer leaves it alone. Clipping is one more way to go wrong:
#
# **4.** Gradients are **clipped**: if the norm of all of them together, the root of the sum of
# their squares, is above `max_norm`, they are scaled down to it. Then follows a step of gradient
# descent, `data - lr * gradient`. Here a parameter is a row of $C$ numbers, and somebody computed
# the gradients of frozen rows as well. Write the step so that they do not count.

# %%
def clipped_step(data, gradients, trained, lr, max_norm):
    """data and gradients (P, C), trained (P,) booleans -> new data (P, C)"""
    return ...


check("clipped_step", clipped_step)


# %% [markdown]
# **5.** *Open.* You may train a given number of parameters, no more. Which? The output layer must
# be among them, because it starts at random. The check tests only this, and that you use at least
# half of the budget and stay within it. Then set `RUN` to `True` and measure the accuracy on bit
# XOR and the time of a step. Try budgets from 1,000 to 40,000. Is a number better spent low or
# high, on scales, on biases, on positions? Do you find the same with another seed?

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
# **The picture to keep:** three products a layer, for five masks: freezing saves a third where a
# gradient runs past, two thirds where none does.
#
# **The sentence to remember:** *The gradient runs back to the lowest trained layer, however few
# numbers are trained; a frozen matrix on its way saves one product of three, that of its own
# gradient.*
#
# **What we do not know yet.** It works. But *how* does a frozen model find a string, and is it the
# heads that look at it?
#
# **Next**: [lesson 8](08_inside_bit_xor_and_bit_memory.ipynb) trains with FPT's mask, and looks at
# what attention does then, frozen as it is.
