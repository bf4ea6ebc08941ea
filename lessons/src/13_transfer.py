# %% [markdown]
# # 13. How sure is a difference?
#
# **One model is ahead of another, on five runs each. Is it better, or was it lucky?**
#
# After this lesson you can
#
# - name the controls that a comparison lacks, and run the simplest one;
# - put an interval around a difference, and say what it leaves out;
# - spot a result that luck alone would give.
#
# **What we know by now.** In [lesson 8](08_inside_bit_xor_and_bit_memory.ipynb) the order of two
# models changed with the learning rate. We had one run of each; in a comparison, the models are its
# **arms**.
#
# **The question:** How sure is a difference?
#
# In the live page: [station 11](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(11)` in a cell here.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb) and
# [2](02_softmax_and_cross_entropy.ipynb).

# %%
# Not to be read: imports, and a picture of the whole model.
import numpy as np
from scipy import stats
from tqdm import tqdm

import minifpt
from minifpt import functional as F
from minifpt.exercises import check, records
from minifpt.exercises.lesson import bars, curves, model_map, reveal, show
from minifpt.tasks.images import patches

model_map("input layer", "positions", "norm", "attention", "feed-forward", "output layer")

# %% [markdown]
# ## Is the teacher worth having?
#
# Somebody has trained a transformer, the **teacher**, to tell the printed digits 0 to 4 apart, on
# 2,000 images. You want to tell 5 to 9 apart, with 200 labels. The test images come from new fonts.
# What do you train?
#
# - *from scratch*: a new transformer, all of it;
# - *fine-tuned*: the teacher, all of it;
# - *FPT*: the teacher with attention and feed-forward frozen, as in lesson 0;
# - *probe on pixels*: no transformer at all. A **probe** is a linear classifier: scores $S = f\,W +
#   b$ of 784 pixels $f$. Lesson 2 has its gradient.
#
# Each arm sees 2,400 images, each label twelve times on average: the transformers in 150 steps of
# 16, the probe in 12 steps of all 200. Each has ten seeds; the seed also chooses the 200 labels. We
# chose each transformer's learning rate as the best of three *on the test*, which favours the
# transformers. Guessing gets 20 % right. What does the probe get?

# %%
guess = ...                                               # per cent


# %%
# Not to be read: the data, and the training of the four arms.
class Some(minifpt.tasks.Classification):                 # a task with these examples

    name, input_dim, tokens, output_dim, output_tokens, classes = "some", 49, 16, 5, 1, 5

    def __init__(self, x, y):
        self.x, self.y, self.options = x, y, {}

    def draw(self, rng, size, split):
        chosen = rng.integers(0, len(self.x), size)
        return self.x[chosen], self.y[chosen]


# Images x (n, 16, 49), in patches of 7 x 7 pixels; y (n, 1), 0 for digit low
def labelled(seed, n, low, high, split="train"):
    rng = np.random.default_rng(seed)
    images, digit = minifpt.tasks.Digits().images(rng, 3 * n, split)
    chosen = np.flatnonzero((digit >= low) & (digit <= high))[:n]
    return Some(patches(images[chosen], 7), digit[chosen, None] - low)


def train(model, task, lr, seed, steps=150):
    minifpt.train(model, task, steps, 16, lr, seed, schedule="constant", warmup=0,
                  eval_every=steps, progress=False)
    return model


def fresh(seed):
    config = minifpt.GPT2Config(n_layer=2, n_head=4, n_embd=64, n_positions=16, dropout=0.0)
    return minifpt.FPT(minifpt.GPT2(config, seed=seed), 49, 5, 1, seed=seed)


source, test = labelled(0, 2000, 0, 4), labelled(1, 1000, 5, 9, "test")
learned = dict(train(fresh(0), source, 3e-3, seed=0, steps=500).named_parameters())


@records.recorded("13")                                   # a browser runs the first one only
def transformer(way, seed):                               # -> right on the test (%)
    model = fresh(seed)
    for name, p in model.named_parameters():
        if way != "from scratch" and not name.startswith("output"):
            p.data[...] = learned[name].data
    model.freeze(minifpt.FreezeMask.fpt() if way == "FPT" else minifpt.FreezeMask.full())
    train(model, labelled(10 + seed, 200, 5, 9), 1e-2 if way == "FPT" else 3e-3, seed)
    return 100 * test.accuracy(model.predict(test.x), test.y)


def probe(seed, steps=12):
    task, W, b = labelled(10 + seed, 200, 5, 9), np.zeros((784, 5)), np.zeros(5)
    f, f_test = task.x.reshape(-1, 784), test.x.reshape(-1, 784)
    for _ in range(steps):
        _, cache = F.cross_entropy(f @ W + b, task.y[:, 0])
        dS = F.cross_entropy_backward(1.0, cache)
        W, b = W - 0.1 * f.T @ dS, b - 0.1 * dS.sum(axis=0)
    return 100 * float(((f_test @ W + b).argmax(axis=1) == test.y[:, 0]).mean())


arms = {way: np.array([transformer(way, seed) for seed in tqdm(range(10), desc=way)])
        for way in ("from scratch", "fine-tuned", "FPT")}
arms["probe on pixels"] = np.array([probe(seed) for seed in range(10)])
show(F.cross_entropy_backward)
reveal(guess, float(arms["probe on pixels"].mean()), "%")
bars(arms, "The simplest model is ahead: each dot is a run", "right on the test (%)", xlim=(0, 109))
print("first five seeds:", *(f"{w}: {arms[w][:5].round().astype(int)}" for w in list(arms)[1:3]))

# %% [markdown]
# A model without a hidden layer cannot win? It is ahead of every transformer, though it has seen no
# more images. So a claim that pretraining helps needs two controls: the same model without the
# teacher, and the simplest model on the raw input. Here the second shows that this task needs no
# teacher.
#
# Now look at *fine-tuned* and *FPT*, at their first five seeds, printed above. Suppose that we had
# stopped there. Is one of them better: `"yes"` or `"cannot say"`?

# %%
guess = ...

# %% [markdown]
# The **spread** $s$ of an arm is the standard deviation of its runs, with $n - 1$ instead of $n$
# under the root (`ddof=1`). Let $u$ and $v$ be two runs' deviations from the true mean. They are
# independent, so $uv$ is 0 on average, and of $(u \pm v)^2 = u^2 \pm 2uv + v^2$ only the squares
# are left. So **variances add up, for a sum as for a difference.** Two formulas follow, for the
# mean of $n$ runs and for the difference of two such means:
#
# $$ \text{spread of a mean} = \frac1n \sqrt{s^2 + \dots + s^2} = \frac{s}{\sqrt n}, \qquad
#    e = \sqrt{\frac{s_a^2}{n} + \frac{s_b^2}{n}} $$
#
# The first is the **standard error** of a mean, and $e$ is that of a difference. A normal
# distribution has 95 % of its values within $1.96\,e$. But on few runs the measured $s$ is often
# too small. So a larger number $t$ replaces 1.96, from Student's distribution for $n - 1$ **degrees
# of freedom**: the fewer runs, the larger $t$. The **interval** is
#
# $$ (\bar a - \bar b) \pm t\,e $$

# %%
def interval(a, b, t=None):
    """a, b (..., n) -> both ends (...,) of the 95 % interval of mean(a) - mean(b)"""
    n = a.shape[-1]
    error = np.sqrt(a.var(axis=-1, ddof=1) / n + b.var(axis=-1, ddof=1) / n)
    t = stats.t.ppf(0.975, n - 1) if t is None else t
    difference = a.mean(axis=-1) - b.mean(axis=-1)
    return difference - t * error, difference + t * error


low, high = interval(arms["fine-tuned"][:5], arms["FPT"][:5])
reveal(guess, "cannot say" if low < 0 < high else "yes")
PAIRS = ("fine-tuned", "FPT"), ("fine-tuned", "from scratch"), ("probe on pixels", "fine-tuned")
for n in (5, 10):
    print(f"{n} seeds, t = {stats.t.ppf(0.975, n - 1):.2f}:")
    for a, b in PAIRS:
        print("  {} - {}: {:.1f} to {:.1f}".format(a, b, *interval(arms[a][:n], arms[b][:n])))

# %% [markdown]
# If the interval contains 0, we cannot tell which arm is better. That does not mean that they are
# equal: with ten seeds instead of five the intervals are much shorter.
#
# Does the interval keep its promise? We make up 4,000 studies whose true difference we know. Many
# pictures have bars of one standard error, $t = 1$. With five seeds in each arm, how many per cent
# of such bars contain the true difference?

# %%
guess = ...                                               # per cent

# %%
rng = np.random.default_rng(1)
TRUE, SPREAD, SEEDS = 2.0, 2.5, (3, 5, 10, 20)            # points; runs in each arm
studies = [(TRUE + SPREAD * rng.standard_normal((4000, n)),
            SPREAD * rng.standard_normal((4000, n))) for n in SEEDS]


def covered(t):
    return [100 * float(((low < TRUE) & (TRUE < high)).mean())
            for low, high in (interval(*study, t) for study in studies)]


lines = {"Student's t": covered(None), "1.96 for t": covered(1.96),
         "one standard error": covered(1.0)}
reveal(guess, lines["one standard error"][1], "%")
curves(lines, "Only Student's t keeps its promise of 95 %", "seeds in each arm",
       "interval holds the truth (% of studies)", SEEDS, styles=("o-", "s--", "^-."), level=95,
       ylim=(40, 101), xticks=SEEDS)

# %% [markdown]
# Did you say 68, as for a normal distribution? It is even less, because $s$ comes from five runs
# only. A third of the studies miss the truth. With few seeds 1.96 promises too much as well.
# Student's $t$ keeps its promise. (It lies above 95 %, because we looked up $t$ for $n$ runs, and
# two arms have $2n$.)
#
# ## Broken on purpose: the best of five
#
# Now two arms that are *the same*. For ours we report the best of five seeds, for the other one the
# mean of five. By how many spreads $s$ are we ahead on average?

# %%
guess = ...

# %%
both = rng.standard_normal((200_000, 2, 5))
lead = both[:, 0].max(axis=1) - both[:, 1].mean(axis=1)
reveal(guess, float(lead.mean()))
print(f"ahead in {100 * (lead > 0).mean():.0f} % of the studies")

# %% [markdown]
# Not 0: the best of five draws lies above the mean in nearly every study. If you choose a learning
# rate, a seed or the step to stop at by the *test*, you make the same mistake. (Our transformers
# had this advantage above, and still lost.) Choose on validation examples.
#
# ## What the interval leaves out
#
# The probe starts from zeros and sees all labels at each step. Suppose that all ten runs had the
# *same* 200 labels, and only the seeds differed. What would the spread of the probe have been, in
# points?

# %%
guess = ...

# %%
reveal(guess, round(float(np.std([probe(0) for seed in range(10)], ddof=1)), 9))
print(f"with ten choices of labels: {arms['probe on pixels'].std(ddof=1):.1f} points")

# %% [markdown]
# In the probe only the labels depend on the seed. So an interval over seeds alone would have no
# width: it covers only what we varied.
#
# What we *can* say: on these digits, with 200 labels and 2,400 images seen, a linear classifier
# beats a fine-tuned teacher of this size. Ten seeds, each with its own labels, give an interval
# above 0. It says nothing about other teachers.
#
# ## Exercises
#
# **1.** We rank five runs against five. There are $\binom{10}{5} = 252$ ways to choose the five
# places of the first arm. In two of them, one arm is wholly above the other. If the arms do not
# differ, each way is equally likely, so luck has a probability of $2/252$. What is it for $n$ runs
# against $m$?

# %%
def ranges_apart(n, m):
    """Two whole numbers -> a probability"""
    return ...


check("ranges_apart", ranges_apart)


# %% [markdown]
# **2.** Write the interval for arms with different numbers of runs and any confidence, such as 0.9.
# Take one degree of freedom less than the smaller number of runs. (`scipy.stats.t.ppf(q, df)` is
# the value below which the share `q` lies.)

# %%
def difference_interval(a, b, confidence):
    """a (n,), b (m,) -> the lower and the upper end for mean(a) - mean(b)"""
    return ...


check("difference_interval", difference_interval)


# %% [markdown]
# ## Going further
#
# **3.** *Open.* How many seeds does a study need? It finds a difference if it observes one above
# $1.96\,e$. Observed differences scatter around the true $d$ with the spread $e$, and four of five
# of them lie above $d - 0.84\,e$. So four of five studies find it if $d = (1.96 + 0.84)\,e$, with
# $e^2 = 2 s^2 / n$. Write $n$, the smallest whole number that is enough by this formula. Then set
# `RUN` to `True`, look at four runs of each of two arms, compute $n$, and run $n$ *fresh* seeds:
# the four runs made you choose the question, so they no longer count.

# %%
def seeds_needed(difference, spread):
    """The true difference, and the spread of the runs of each arm -> seeds in each arm"""
    return ...


check("seeds_needed", seeds_needed)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    seeds = range(10, 14)                                 # a look; then range(14, 14 + n)
    pair = [np.array([transformer(way, seed) for seed in tqdm(seeds, desc=way)])
            for way in ("fine-tuned", "FPT")]
    print(pair, interval(*pair))

# %% [markdown]
# **The picture to keep:** how often an interval holds the true difference, against the number of
# seeds: bars of one standard error miss it in a third of the studies.
#
# **The sentence to remember:** *An error bar of five runs must be wide to contain the true mean,
# and it covers only what we varied.*
#
# **What we do not know yet.** The largest surprise of this course is still unexplained: frozen
# random weights find a string. Which part of them does it?
#
# **Next** on the spine: [lesson 22](22_why_random_weights_find_a_string.ipynb). A side road:
# [lesson 14](14_which_part_of_pretraining.ipynb) compares trunks part by part.
