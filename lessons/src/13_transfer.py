# %% [markdown]
# # 13. Transfer
#
# **One arm is ahead of another. How sure is that, and how many runs does it take before you may say
# so? We ask it of a common case: somebody has trained a model on their task, you have another task
# and a hundred labels. Is their model worth having?**
#
# After this lesson you can
#
# - take features from a frozen model and train a probe on them, by hand;
# - compare frozen, fine-tuned and from scratch, and name the control that such a comparison lacks;
# - compare in pairs, where two arms share what was drawn;
# - put an error bar on a difference, say how many seeds a claim needs, and what the bar leaves out.
#
# **What we know by now.** On bit memory *language* was ahead at one learning rate, *matched random*
# at another ([lesson 8](08_inside_bit_xor_and_bit_memory.ipynb), which is not needed here), with
# one run each. A rate or a seed can turn such a comparison.
#
# **The question:** How sure is a difference?
#
# In the live page: [station 10](../minifpt/viewer/tour.md) of its tour, or
# `minifpt.viewer.tour(10)` in a cell here.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb) and
# [2](02_softmax_and_cross_entropy.ipynb). It takes about an hour:
# 45 minutes to read and run, 15 for two exercises. What follows under *Going further* is not needed
# later.

# %%
import math

import numpy as np
from scipy import stats
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, reveal, show
from minifpt.tasks.images import patches
from minifpt.training import evaluate

# %% [markdown]
# ## Two tasks
#
# **Source**: tell the printed digits 0 to 4 apart, with 2,000 labelled images. **Target**: tell 5
# to 9 apart, with few labels. The digits are drawn from fonts, 28 by 28 pixels each. The tests are
# on fonts that no training sees. The model gets an image as 16 tokens, patches of 7 by 7 pixels.

# %%
def draw(seed, n, digits, split):
    """x (n, 16, 49): patches of 7 x 7 pixels; y (n, 1), 0 for the first of the digits"""
    rng, (low, high) = np.random.default_rng(seed), digits
    images, digit = minifpt.tasks.Digits().images(rng, 2 * n + 200, split)
    chosen = np.flatnonzero((digit >= low) & (digit <= high))[:n]
    return patches(images[chosen], 7), digit[chosen, None] - low


class Some(minifpt.tasks.Choices):
    """A task of some labelled examples, and others to test on"""

    name, input_dim, tokens, output_dim, output_tokens, classes = "some", 49, 16, 5, 1, 5

    def __init__(self, train, test):
        self.split, self.options = {"train": train, "test": test}, {}

    def draw(self, rng, size, split):
        x, y = self.split[split]
        chosen = rng.integers(0, len(x), size)
        return x[chosen], y[chosen]


source = Some(draw(0, 2000, (0, 4), "train"), draw(3, 500, (0, 4), "test"))
pool, test = draw(1, 2000, (5, 9), "train"), draw(2, 1000, (5, 9), "test")


def labelled(n, choice):
    """The target task with n labels; ``choice`` says which of the 2,000"""
    chosen = np.random.default_rng([choice, 7]).permutation(2000)[:n]
    return Some((pool[0][chosen], pool[1][chosen]), test)

# %% [markdown]
# The model is a GPT-2 of 2 blocks and 64 channels, between an input and an output layer. We train
# all of it on the source, and call it the **teacher**.

# %%
config = minifpt.GPT2Config(n_layer=2, n_head=4, n_embd=64, n_positions=16, dropout=0.0)


def fresh(seed):
    """A new model, all of it random"""
    return minifpt.FPT(minifpt.GPT2(config, seed=seed), 49, 5, 1, seed=seed)


def train(model, task, lr, seed, steps=150):
    return minifpt.train(model, task, steps, batch_size=16, lr=lr, seed=seed, schedule="cosine",
                         warmup=20, eval_every=steps, progress=False)


teacher = fresh(0)
train(teacher, source, 3e-3, seed=0, steps=500)
learned = {name: p.data.copy() for name, p in teacher.named_parameters()}
print(f"source task, new fonts: {100 * evaluate(teacher, source, *source.split['test'])[1]:.0f} %")

# %% [markdown]
# ## Features and a probe
#
# Cut off the output layer. The rest of the model turns an image into 64 numbers, the last token's
# activations: its **features** $f$ `(64,)`. A new output layer on top, a **probe**, is all that the
# target task needs: scores $s = f\,W + b$, with $W$ `(64, 5)` and $b$ `(5,)`. If the rest is frozen
# the features of an image never change. So we compute them once, $f$ `(N, 64)` for $N$ images, and
# then train the probe alone. With $S$ `(N, 5)` the scores of all images, and lesson 2's gradient of
# the mean cross-entropy:
#
# $$ dS = \tfrac1N (\text{softmax}(S) - \text{onehot}(y)), \qquad dW = f^\top dS, \qquad
#    db = \sum_n dS_n $$
#
# The library does the same another way: the mask `output_only` freezes all but the output layer,
# and each step runs the whole model.

# %%
show(minifpt.FreezeMask.output_only)


# %%
def features(model, x):
    """x (N, 16, 49) -> (N, 64)"""
    with model.all_frozen():
        embedded, _ = model.input.forward(x)
        hidden, _ = model.trunk.forward(embedded)
    return hidden[:, -1]


def gradient_of_probe(f, W, b, y):
    """dW, db of the mean cross-entropy; y (N,)"""
    _, cache = F.cross_entropy(f @ W + b, y)
    dS = F.cross_entropy_backward(1.0, cache)
    return f.T @ dS, dS.sum(axis=0)


# %% [markdown]
# ## Few labels
#
# Now four ways to use the teacher, or not to:
#
# - *from scratch*: a new model, all of it trained on the labels;
# - *fine-tuned*: the teacher's weights as a start, all of it trained;
# - *FPT*: the teacher's weights, attention and feed-forward frozen, the rest trained, as in lesson
#   0;
# - *probe*: the teacher's features, and nothing but a probe trained.
#
# The learning rates stand in the code: one for the two that train everything, one for FPT and one
# for the probe. None of them was chosen by trying several. The budgets differ, too: the first three
# get 150 steps of 16 examples, the probe 300 steps on all labels at once. There are 20, 100 or
# 500 labels, two seeds each. By how many points is *fine-tuned* ahead of *from scratch* with 100
# labels, in the mean?

# %%
guess = ...                                               # points


# %%
def run(way, n, seed, steps=150):
    """(training, test) accuracy in per cent; the seed also chooses the labels"""
    task, model = labelled(n, seed), fresh(seed)
    if way != "from scratch":
        for name, p in model.named_parameters():
            if not name.startswith("output"):
                p.data[...] = learned[name]
    mask = minifpt.FreezeMask.fpt() if way == "FPT" else minifpt.FreezeMask.full()
    model.freeze(mask)
    train(model, task, 1e-2 if way == "FPT" else 3e-3, seed, steps)
    return [100 * evaluate(model, task, *task.split[split])[1] for split in ("train", "test")]


def probe(represent, n, choice, steps=300, lr=0.02):
    """The same for a probe on ``represent(x)``, (N, anything), trained on all labels at once"""
    task = labelled(n, choice)
    f = represent(task.split["train"][0])
    middle, spread = f.mean(axis=0), f.std() + 1e-6
    W, b = (minifpt.layers.Parameter(np.zeros(s), "output") for s in ((f.shape[1], 5), 5))
    adam = minifpt.optim.Adam([W, b], lr=lr)
    f, y = (f - middle) / spread, task.split["train"][1][:, 0]
    for _ in range(steps):
        W.grad, b.grad = gradient_of_probe(f, W.data, b.data, y)
        adam.step()

    def right(x, y):
        scores = (represent(x) - middle) / spread @ W.data + b.data
        return 100 * float((scores.argmax(axis=1) == y[:, 0]).mean())
    return [right(*task.split[split]) for split in ("train", "test")]


def taught(x):
    return features(teacher, x).astype(float)


LABELS, SEEDS = (20, 100, 500), (1, 2)
jobs = [(way, n, seed) for way in ("from scratch", "fine-tuned", "FPT") for n in LABELS
        for seed in SEEDS]
found = {}
for way, n, seed in tqdm(jobs, desc="few labels"):
    found.setdefault(way, {}).setdefault(n, []).append(run(way, n, seed))
found["probe"] = {n: [probe(taught, n, seed) for seed in SEEDS] for n in LABELS}

# %%
def mean_test(way, n):
    return float(np.mean([pair[1] for pair in found[way][n]]))


def table(ways):
    print("test accuracy, two seeds   " + "".join(f"{n:>8} labels" for n in LABELS))
    for way in ways:
        print(f"{way:27}" + "".join("{:>7.0f} and {:.0f}".format(*(
            pair[1] for pair in found[way][n])) for n in LABELS))


reveal(guess, mean_test("fine-tuned", 100) - mean_test("from scratch", 100), "points")
table(found)

# %% [markdown]
# In each of these runs fine-tuning is ahead of training from scratch, with the same steps and rate.
# But this is one teacher, and two seeds for each number of labels. (With more steps a model from
# scratch might catch up.) With 100 labels *fine-tuned* and *FPT* are close, and two seeds do not
# rank them. This is where most accounts of transfer stop.
#
# But each of these has a transformer in it. What does a probe get on the *pixels*, 784 numbers,
# with no transformer and no teacher? With 100 labels, in per cent:

# %%
guess = ...                                               # a percentage


# %%
def pixels(x):
    return x.reshape(len(x), -1).astype(float)


def untaught(x):
    return features(stranger, x).astype(float)


stranger = fresh(5)                                       # random weights
for name, represent in (("probe on pixels", pixels), ("probe on random features", untaught)):
    found[name] = {n: [probe(represent, n, seed) for seed in SEEDS] for n in LABELS}
reveal(guess, mean_test("probe on pixels", 100), "%")
table(found)

# %% [markdown]
# The simplest model of all, and in both runs with 100 labels, and with 500, it is ahead of every
# other one. The teacher's features are ahead of those of the one random model that we drew. But the
# pixels are ahead of both. (Two seeds; below we test pixels against features with ten.)
#
# So two controls belong to a claim of transfer: the same model without the teacher, and the
# simplest model on the raw input. The first says whether the teacher taught something, the second
# whether anybody needs it.
#
# ## How sure is a difference?
#
# Now a claim from this repository: on 200 labelled digits, frozen weights that learned
# *handwritten* digits do better than *matched random*, random weights with the mean and the
# standard deviation of each of their matrices. Five seeds each; a run takes a quarter of a minute,
# so the numbers come with the lesson.

# %%
# minifpt compare benchmarks/tasks.py:Few --labels 200 --steps 300 --seeds 5
#     --rates 1e-3 3e-3 1e-2 3e-2 1e-1 --models minigpt-language statistics:minigpt-language
#     random@0.55 random@gpt2 minigpt-images statistics:minigpt-images
FEW_TESTS = {
    "images": (82.8, 76.5, 79.8, 78.9, 80.0),
    "statistics:minigpt-images": (74.0, 77.1, 78.6, 80.8, 75.0),
}
a, b = (np.array(FEW_TESTS[name]) for name in ("images", "statistics:minigpt-images"))
for name, values in (("handwritten", a), ("matched random", b)):
    print(f"{name:15} mean {values.mean():.1f}, spread {values.std(ddof=1):.1f}, "
          f"from {values.min():.1f} to {values.max():.1f}")

# %% [markdown]
# The **spread** $s$ of runs is their standard deviation, with $n - 1$ in place of $n$ under the
# root (`ddof=1`). Is there a difference, `"yes"`, `"no"` or `"cannot say"`?

# %%
guess = ...

# %% [markdown]
# The squares of spreads add, as cross terms are 0 on average: the sum of $n$ runs has the spread
# $\sqrt{n s^2} = \sqrt n\, s$. Their mean, the sum divided by $n$, has the spread $s / \sqrt n$,
# its **standard error**. For the difference of two arms $a$ and $b$, with means $\bar a$ and $\bar
# b$ and spreads $s_a$ and $s_b$, the squares add up. The **interval** below on the right then holds
# the true difference in 95 of 100 studies, if $t$ is right:
#
# $$ e = \sqrt{\frac{s_a^2}{n} + \frac{s_b^2}{n}}, \qquad
#    (\bar a - \bar b) \pm t\, e $$
#
# For many runs $t = 1.96$. For few the spread itself is uncertain, and $t$ is larger. Student's
# distribution gives it; we look it up for $n - 1$ **degrees of freedom**, one less than the runs,
# which is cautious for two arms.
#
# The **bootstrap** needs no distribution: draw five of the five runs with replacement, again and
# again, for both arms, and take the middle 95 % of the differences.

# %%
def t_interval(a, b, t=None):
    """a, b (..., n) -> both ends (...,) of the 95 % interval of mean(a) - mean(b)"""
    n = a.shape[-1]
    error = np.sqrt(a.var(axis=-1, ddof=1) / n + b.var(axis=-1, ddof=1) / n)
    t = stats.t.ppf(0.975, n - 1) if t is None else t
    difference = a.mean(axis=-1) - b.mean(axis=-1)
    return difference - t * error, difference + t * error


def bootstrap(a, b, rng, draws=400):
    """The same by drawing runs with replacement; a, b (studies, n)"""
    pick = rng.integers(0, a.shape[-1], (2, draws, a.shape[-1]))
    differences = a[:, pick[0]].mean(axis=-1) - b[:, pick[1]].mean(axis=-1)
    return np.percentile(differences, [2.5, 97.5], axis=-1)


low, high = t_interval(a, b)
reveal(guess, "yes" if low > 0 else "cannot say")
print(f"difference {a.mean() - b.mean():.1f} points; by t from {low:.1f} to {high:.1f}; "
      "by bootstrap from {:.1f} to {:.1f}".format(
          *bootstrap(a[None], b[None], np.random.default_rng(0)).ravel()))

# %% [markdown]
# The interval by $t$ holds 0, so these runs do not tell. The bootstrap is narrower. Which one is
# right? That can be tested: make up 4,000 studies of which we know the truth, with five seeds each,
# and count how often each interval holds it. How often does the bootstrap's 95 % interval, in per
# cent?

# %%
guess = ...                                               # a percentage

# %%
rng = np.random.default_rng(1)
TRUE, SPREAD = 2.0, 2.5                                   # points
studies = {n: (TRUE + SPREAD * rng.standard_normal((4000, n)),
               SPREAD * rng.standard_normal((4000, n))) for n in (3, 5, 10, 20)}


def covers(interval):
    low, high = interval
    return 100 * float(((low < TRUE) & (TRUE < high)).mean())


ways = {"t": lambda a, b: t_interval(a, b), "1.96 for t": lambda a, b: t_interval(a, b, 1.96),
        "bootstrap": lambda a, b: bootstrap(a, b, rng),
        "one standard error": lambda a, b: t_interval(a, b, 1.0)}
covered = {name: [covers(way(*study)) for study in studies.values()]
           for name, way in ways.items()}
reveal(guess, covered["bootstrap"][1], "%")
curves(covered, "4,000 studies: what should be 95 % (dotted)", "seeds in each arm",
       "holds the truth (%)", x=list(studies), styles=("o-", "s--", "^-.", "x:"), level=95,
       inks=(color.teal, color.ink, color.ochre, color.grey), ylim=(45, 101), xticks=list(studies))

# %% [markdown]
# The line of $t$ lies above the promised 95 %, because our $t$ is cautious. With more seeds it
# comes close. The bootstrap cannot know with five runs how wide their distribution is, and it
# promises too much; so does 1.96. Bars of one standard error, which many pictures have, leave the
# truth out in a third of the studies.
#
# How many seeds would our claim need? A study finds a difference if it observes more than 1.96
# standard errors $e$. The observed difference scatters around the true $d$ with the standard
# deviation $e$; of a normal distribution 80 % lie above $d - 0.84\,e$. So four of five studies find
# $d$ if $d - 0.84\,e = 1.96\,e$:
#
# $$ d = 2.8 \sqrt{\frac{2 s^2}{n}} \quad\Rightarrow\quad n = 2 \Big(\frac{2.8\, s}{d}\Big)^2 $$
#
# Suppose that the difference and the spread that the five runs above have are the true ones. How
# many seeds for each arm?

# %%
guess = ...

# %%
d, s = a.mean() - b.mean(), math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
n = math.ceil(2 * (2.8 * s / d) ** 2)
reveal(guess, n)
for seeds in (5, n, 2 * n):
    pair = d + s * rng.standard_normal((4000, seeds)), s * rng.standard_normal((4000, seeds))
    print(f"{seeds:3} seeds: the interval leaves out 0 in "
          f"{100 * np.mean(t_interval(*pair)[0] > 0):.0f} % of 4,000 studies")

# %% [markdown]
# (75 % and not 80, because our $t$ is wider than 1.96.) A study with five seeds would miss a true
# difference of this size most of the time. So "cannot say" is not "no difference". (The number is
# itself very uncertain: we put in the *observed* difference.)
#
# And ranges that do *not* overlap? Suppose that the arms do not differ at all. Then each order of
# the ten runs is as likely as any other. There are $\binom{10}{5} = 252$ ways to choose which five
# places belong to the first arm, and in two of them the arms lie apart: 0.8 %. So five against five
# whose ranges are apart is a strong sign, and it needs no normal distribution.
#
# ## Broken on purpose: the best of five
#
# Two arms that are *the same*. For ours we report the best of five seeds, for the other one the
# mean of five. By how many spreads are we ahead, on average?

# %%
guess = ...

# %%
both = rng.standard_normal((200_000, 2, 5))
lead = both[:, 0].max(axis=1) - both[:, 1].mean(axis=1)
reveal(guess, float(lead.mean()))
print(f"we are ahead in {100 * (lead > 0).mean():.0f} % of the studies")

# %% [markdown]
# To choose the learning rate, the step to stop at or the seed by the *test* examples is the same
# thing. The library chooses a rate on validation examples, in a run with another seed than those
# that it reports.
#
# ## What the bar does not cover
#
# An error bar covers only what was varied. The five runs of either arm above have the *same* 200
# labels; the seed draws the new layers and the order of the examples. Would other labels
# have given the same? We take the probe on pixels. It starts from zeros and sees all labels at each
# step, so it has no randomness at all. Its spread over ten seeds is 0. What is it over ten choices
# of 100 labels, in points?

# %%
guess = ...

# %%
by_labels = [probe(pixels, 100, choice)[1] for choice in range(10, 20)]
by_features = [probe(taught, 100, choice)[1] for choice in range(10, 20)]
reveal(guess, float(np.std(by_labels, ddof=1)))
print(f"probe on pixels:   from {min(by_labels):.0f} to {max(by_labels):.0f} %")
print(f"probe on features: from {min(by_features):.0f} to {max(by_features):.0f} %")

# %% [markdown]
# A bar over seeds alone would have had no width here, and it would have been wrong. For "better
# with these 200 labels" seeds are enough. For "better with 200 labels" the labels have to vary,
# too.
#
# ## In pairs
#
# Both probes had the *same* ten choices of labels. A choice that is easy for one may be easy for
# the other as well, and that says nothing about which is better. So take the difference for each
# choice first, and then the interval of its mean.

# %%
a_i, b_i = np.array(by_labels), np.array(by_features)
for name, (low, high) in (("two probes", t_interval(a_i, b_i)),
                          ("in pairs", t_interval(a_i - b_i, np.zeros(10)))):
    print(f"{name:10} {low:5.1f} to {high:5.1f} points")

# %% [markdown]
# Pairing makes the interval only a little narrower here; where a choice of labels that is easy for
# one arm is easy for both, it helps much.
#
# So here is a thing that we *can* say, with its evidence: on these digits, with 100 labels, a probe
# on pixels is better than a probe on the teacher's features. Ten choices of the labels, in pairs,
# give an interval that is far from 0. It is not a claim about all teachers, nor about all numbers
# of labels.
#
# ## Exercises
#
# Solutions are in `solutions/13_transfer.py`.
#
# **1.** Two arms of $n$ and $m$ runs that do not differ: what is the probability that their ranges
# do not overlap?

# %%
def ranges_apart(n, m):
    """Two whole numbers -> a probability"""
    return ...


check("ranges_apart", ranges_apart)


# %% [markdown]
# **2.** A probe with weight decay: the loss is the mean cross-entropy plus
# $\frac{\lambda}{2} \sum W^2$; the bias has none. What is its gradient?

# %%
def probe_gradient(f, W, b, y, decay):
    """f (N, C), W (C, K), b (K,), y (N,) in 0 ... K-1 -> dW (C, K), db (K,)"""
    dW = ...
    db = ...
    return dW, db


check("probe_gradient", probe_gradient)


# %% [markdown]
# **3.** The interval, for arms with different numbers of runs and any confidence, such as 0.9. Take
# one degree of freedom less than the smaller number of runs. (`scipy.stats.t.ppf(q, df)` is the
# value below which the share `q` lies.)

# %%
def difference_interval(a, b, confidence):
    """a (n,), b (m,) -> the lower and the upper end for mean(a) - mean(b)"""
    return ...


check("difference_interval", difference_interval)


# %% [markdown]
# ## Going further
#
# **4.** *Open.* First: how many seeds in each arm does a study need, if it is to find a difference
# in four of five cases? (The lesson's 2.8 will do.) Then a claim of your own. Set `RUN` to `True`,
# look at four runs of two arms, compute how many you need, and run them, with *fresh* seeds: the
# four runs made you choose the question and the number, so they do not count any more. Some ideas:
# does the teacher help at 50 labels? Does it help more when its source is 2,000 images of *all*
# digits? Does fine-tuning with weight decay do better?

# %%
def seeds_needed(difference, spread):
    """The true difference, and the spread of the runs of each arm -> seeds in each arm, the
    smallest whole number that is enough"""
    return ...


check("seeds_needed", seeds_needed)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    seeds = range(3, 7)                                   # a look; then range(7, 7 + n)
    arms = {way: np.array([run(way, 50, seed)[1] for seed in tqdm(seeds, desc=way)])
            for way in ("from scratch", "fine-tuned")}
    print(arms, t_interval(*arms.values()))

# %% [markdown]
# **The picture to keep:** how often an interval holds the true difference, against the number of
# seeds: bars of one standard error miss it in a third of the studies.
#
# **The sentence to remember:** *An error bar of five runs must be wide to hold the true mean, and
# it covers only what was varied.*
#
# **What we do not know yet.** We can say how sure a difference is. The largest difference of this
# course is still without a reason: frozen random weights find a string. What in them does it?
#
# **Next** on the spine: [lesson 22](22_why_random_weights_find_a_string.ipynb). A side road:
# [lesson 14](14_which_part_of_pretraining.ipynb) compares trunks part by part.
