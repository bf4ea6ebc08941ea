# %% [markdown]
# # 7. Freeze masks
#
# **A Frozen Pretrained Transformer trains about one per cent of its parameters. Does a step of
# training then cost one per cent? What does freezing save?**
#
# After this lesson you can
#
# - say for any mask which layers run on the way back, and which gradients they compute;
# - predict the products of a step, and compare them with the clock;
# - name the check that notices a backward pass that stops too early.
#
# **What we know by now.** We have a whole GPT-2, forward and back. Its parts add to one residual
# stream, so a gradient finds its way down, even through frozen blocks.
#
# **The question:** What does freezing save?
#
# In the live page: [stations 1 and 7](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(7)` in a cell here.
#
# You need [lesson 6](06_gpt2_whole.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
from timeit import timeit

import numpy as np

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, model_map, picture, reveal, show
from minifpt.exercises.track import written

model_map("input layer", "positions", "norm", "output layer", gradient=True)

# %% [markdown]
# ## A mask
#
# Why freeze at all? If you train fewer parameters, a step should cost less. We test that on bit
# memory: five strings of bits go in, then one of them again with half of its bits hidden, and the
# model returns the whole string. The model is an input layer, the trunk *language* of lesson 0, and
# an output layer.
#
# Each parameter belongs to a **group**, such as *attn* or *ln*. A **freeze mask** says which
# parameters stay as they are; we train all others. This is the paper's mask:

# %%
task = minifpt.tasks.get("bit-memory")
model = minifpt.FPT.for_task(task, "minigpt-language", dropout=0.0)
x, y = task.batch(np.random.default_rng(0), 8)            # x (B, 30, 20): six strings of 100 bits

model.freeze(minifpt.FreezeMask.fpt())
print(model.summary(task.tokens))

# %% [markdown]
# The task uses only 30 of 256 positions. The others never get a gradient, so the list leaves them
# out.
#
# You can write a mask as text. `full` and `fpt` are names. After `only:` you list the groups and
# the parameters to *train*; `h.5.*` is all of block 5. Here are five masks. (Now we count all 256
# positions.)

# %%
masks = {"full": "full",
         "FPT's": "fpt",
         "128 scales\nat the bottom": "only:h.0.ln_1.weight,output",
         "the top\nblock": "only:h.5.*,output",
         "the output\nlayer": "only:output"}

for mask in masks.values():
    model.freeze(minifpt.FreezeMask.parse(mask))
    print(f"{sum(trained for _, trained in model.counts().values()):10,} trained   {mask}")

# %% [markdown]
# ## What is never computed
#
# Compare the third mask with the fourth. The third trains 128 parameters, the scales of the lowest
# layer norm. The fourth trains the whole top block, more than a thousand times as many. (Both train
# the output layer, too.) Take the time of a step with the third mask, and divide it by that of a
# step with the fourth. What do you get?

# %%
guess = ...                                               # below 1 if it is faster


# %%
def step():                                               # forward and backward
    model.zero_grad()
    logits, cache = model.forward(x, train=True)
    model.backward(task.loss(logits, y)[1], cache)


seconds = np.zeros((16, len(masks)))                      # the masks take turns
for times in seconds:
    for i, mask in enumerate(masks.values()):
        model.freeze(minifpt.FreezeMask.parse(mask))
        times[i] = timeit(step, number=1)
fastest = seconds.min(axis=0)                             # other programs only make it longer
reveal(guess, float(fastest[2] / fastest[3]), "times as long")
for title, mask in masks.items():
    model.freeze(minifpt.FreezeMask.parse(mask))
    with minifpt.trace(model) as t:
        step()
    calls = [s.op for s in t.steps if s.backward]
    print(f"{' '.join(title.split()):24}", *(
        f"{calls.count(op):3} {op}" for op in ("linear", "layer_norm", "gelu", "attention")))

# %% [markdown]
# Fewer trained parameters, and yet the longer step. Look at the calls that we printed for each
# mask. What matters is not how many parameters we train, but where they are. With the fourth mask
# nothing below the top block needs a gradient, so nothing below it runs back. With the third, the
# scales at the bottom wait for their gradient, and it has to get past every frozen layer *above*
# them.
#
# So we can predict the cost. A linear layer with input $x$ `(N, I)` and weight $w$ `(I, O)` has
# three products of $N \cdot I \cdot O$ multiplications each:
#
# $$ y = x\,w + b, \qquad dx = dy\,w^\top, \qquad dw = x^\top dy $$
#
# We always compute the first. If we number the layers from the bottom, $l = 0, 1, \dots$, then
#
# $$ \text{we need } dw_l \iff w_l \text{ is trained}, \qquad
#    \text{we need } dx_l \iff \text{something below } l \text{ is trained} $$
#
# We count the products by these rules and compare with the clock.

# %%
def products(mask):                                       # y, dx, dw (3,), as shares of y's
    model.freeze(minifpt.FreezeMask.parse(mask))
    total, is_reached = np.zeros(3), False                # is something below trained?
    for _, p in model.named_parameters():                 # from the bottom
        if p.data.ndim == 2 and p.group != "pos":         # the weight of a linear layer
            total += p.data.size * np.array([1, is_reached, p.trainable])
        is_reached |= p.trainable
    return total / total[0]


parts = np.array([products(mask) for mask in masks.values()])           # (masks, 3)
fig, (ax,) = figure(width=7, height=3.1)
for i, (name, ink) in enumerate({"y": color.grey, "dx": color.teal, "dw": color.trained}.items()):
    ax.bar(range(len(masks)), parts[:, i], 0.5, parts[:, :i].sum(axis=1), color=ink, label=name,
           hatch="//" if name == "dx" else None)
ax.plot(range(len(masks)), parts[0].sum() * fastest / fastest[0], "o", color=color.ink,
        label="time, scaled to 3 for full")
ax.set_xticks(range(len(masks)), masks)
ax.set(ylabel="forward passes", title="Freezing saves dw; below the lowest trained layer, dx too")
ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
picture(fig)
print("as shares of full: products", (parts.sum(axis=1) / parts[0].sum()).round(2),
      "time", (fastest / fastest[0]).round(2))

# %% [markdown]
# **This is the picture to keep.** FPT's mask trains about one per cent of the parameters, and its
# step needs two thirds of the products. A full step has three products for each layer. FPT's mask
# saves one of them, the $dw$ of the frozen weights. It cannot save $dx$, however few parameters it
# trains, because the input layer, at the bottom, waits for its gradient. The time follows, but not
# exactly: attention, GELU and layer norm are not in the bars. (A dot is the fastest of 16 rounds.)
#
# Before a step the library asks: which is the lowest block that has to run back? From that block
# upwards it keeps what the way back will read. Below, it keeps nothing.

# %%
show(minifpt.gpt2.Trunk.lowest_block)

# %% [markdown]
# ## Stopping too early
#
# Now the whole trunk is frozen, and we train only the input layer and the output layer, four
# arrays. It is tempting to run a frozen trunk without keeping anything. (In other libraries that is
# a `no_grad` around it.) We build a trunk with this mistake. How many of the four arrays get a
# gradient?

# %%
guess = ...                                               # of 4


# %%
class KeepsNothing(minifpt.GPT2):
    """A frozen trunk that runs as if nothing below it wanted a gradient"""
    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        return super().forward(x, train, rng, need_dx=False, past=past, last=last)


model = minifpt.FPT(KeepsNothing.from_pretrained("minigpt-language", dropout=0.0), task.input_dim,
                    task.output_dim, task.output_tokens, seed=0)
model.freeze(minifpt.FreezeMask.parse("only:input,output"))
step()
gradients = {name: p.grad is not None for name, p in model.named_parameters() if p.trainable}
history = minifpt.train(model, task, steps=40, batch_size=8, lr=1e-2, eval_every=10,
                        test_examples=8, progress=False)
reveal(guess, sum(gradients.values()), "of 4")
print("loss, every ten steps:", history["train_loss"].round(2), "gets a gradient:", gradients)

# %% [markdown]
# The output layer gets its gradient, and the input layer waits below the trunk for one that never
# comes. Nothing raises an error, and the loss falls, because the output layer learns. Two checks
# notice it. After a step, every trained parameter must have a gradient. And on a small model,
# `gradcheck` compares each gradient with the loss itself:

# %%
shape = minifpt.GPT2Config(3, 2, 8, n_positions=6, dropout=0.0, initializer_range=0.3)
for kind in (minifpt.GPT2, KeepsNothing):
    small = minifpt.FPT(kind(shape, dtype=np.float64), input_dim=3, output_dim=2)
    small.freeze(minifpt.FreezeMask.parse("only:input,output"))
    errors = minifpt.gradcheck(small, np.ones((2, 5, 3))).errors
    print(f"{kind.__name__:13} wrong gradients:",
          ", ".join(name for name, error in errors.items() if not error < 1e-6) or "none")

# %% [markdown]
# So FPT trains about one per cent, and its step computes two of three products. It also saves
# memory, which we did not measure: it need not store the inputs of frozen weights.
#
# ## A Frozen Pretrained Transformer, on your own file
#
# Write `last_tokens` and `last_tokens_backward` in `mine.py`. `last_tokens(x, n)` returns the last
# $n$ tokens, at which we read the answer, and the cache `LastTokensCache(x.shape, n)`.
# (`minifpt.new("mine.py", lesson=7)` in a cell appends the stubs.) Then your functions run the
# experiment of lesson 0.

# %%
FPT_PARTS = "last_tokens linear positions layer_norm attention gelu cross_entropy"
FPT_PARTS = [name + half for name in FPT_PARTS.split() for half in ("", "_backward")]
with written("mine.py", *FPT_PARTS) as whose:
    xor = minifpt.tasks.get("bit-xor")
    history = minifpt.train(minifpt.FPT.for_task(xor, "minigpt-language", dropout=0.0), xor, 300,
                            batch_size=8, lr=3e-3, eval_every=25)
curves({"": 100 * history["test_accuracy"]}, f"A frozen language model learns XOR\n{whose}",
       ylabel="bits right (%)", x=history["step"], inks=[color.language], level=50,
       note="guessing")

# %% [markdown]
# (One run.)
#
# ## Exercises
#
# **1.** Some linear layers of the same size stand in a row, the lowest first; the input of the
# lowest is data. You know which of them we train. How many products does a whole step need, forward
# and back?

# %%
def products_of_a_step(trained):
    """a list of n booleans, from the bottom -> a whole number"""
    return ...


check("products_of_a_step", products_of_a_step)


# %% [markdown]
# **2.** An FPT over GPT-2 base has 12 blocks, 0 to 11. Write a mask, as text: nothing may run back
# below block `k`, and attention and feed-forward are frozen everywhere. Train everything else.
# Without `only:` a text lists what is *frozen*, groups (`input`, `pos`, `ln`, `attn`, `mlp`,
# `output`) and parameters (`h.0.ln_1.*`, `ln_f.*`; `h.0-2.*` are blocks 0 to 2). Either way will
# do.

# %%
def freeze_below(k):
    """k from 1 to 11 -> a text that minifpt.FreezeMask.parse reads, such as "attn,h.3.ln_1.*" """
    return ...


check("freeze_below", freeze_below)


# %% [markdown]
# ## Going further
#
# **A gradient of zero.** You can also freeze like this: compute everything, then set the gradients
# of what is frozen to zero. We train everything for four steps, and at the fifth we do this to
# attention and feed-forward, 48 arrays. Adam steps along a running mean of the gradients. How many
# of the 48 arrays does the fifth step change all the same?

# %%
guess = ...                                               # of 48

# %%
model = minifpt.FPT.for_task(task, "minigpt-language", dropout=0.0)
model.freeze(minifpt.FreezeMask.full())
adam = minifpt.optim.Adam(model.parameters(), 1e-3)
zeroed = [p for p in model.parameters() if p.group in ("attn", "mlp")]
for i in range(5):
    before = [p.data.copy() for p in zeroed]
    step()
    for p in zeroed if i == 4 else ():
        p.grad[...] = 0
    adam.step()
reveal(guess, sum((p.data != old).any() for p, old in zip(zeroed, before, strict=True)), "of 48")

# %% [markdown]
# Adam keeps running means of each gradient ([lesson 12](12_optimisers.ipynb)), and they go on
# moving what we trained before. In the library a frozen parameter has no gradient, `None`, and the
# optimizer leaves it alone.
#
# **3.** *Open.* You may train a given number of parameters, no more. Which? The output layer must
# be among them, because it starts at random. The check tests only this, and that you stay within
# the budget and use at least half of it. Then set `RUN` to `True`. Where is a parameter best spent:
# low or high, on scales, on biases, on positions? Do you find the same with another seed?

# %%
def spend(sizes, budget):
    """{parameter's name: how many numbers}, a budget -> a list of names to train"""
    return ...


check("spend", spend)

# %%
RUN = False
if RUN:
    for budget in (1000, 4000, 40000):
        fresh = minifpt.FPT.for_task(xor, "minigpt-language", dropout=0.0)
        sizes = {name: p.data.size for name, p in fresh.named_parameters()}
        fresh.freeze(minifpt.FreezeMask(only=tuple(spend(sizes, budget))))
        history = minifpt.train(fresh, xor, steps=500, batch_size=16, lr=3e-3)
        print(budget, f"{100 * history[-1]['test_accuracy']:.1f} %",
              f"{1000 * history[-1]['seconds'] / 500:.1f} ms a step")

# %% [markdown]
# **The picture to keep:** three products a layer, for five masks: freezing saves a third where a
# gradient runs past, two thirds where none does.
#
# **The sentence to remember:** *The gradient runs back to the lowest trained layer, however few
# parameters we train; a frozen weight on its way saves one product of three, that of its own
# gradient.*
#
# **What we do not know yet.** It works. But *how* does a frozen model find a string, and do the
# heads that look at the string do the work?
#
# **Next**: [lesson 8](08_inside_bit_xor_and_bit_memory.ipynb) trains with FPT's mask, and asks what
# attention does after training, although it is frozen.
