# %% [markdown]
# # 12. Optimisers
#
# **The backward pass says in which direction each number should move, but not how far. Does each
# number need a step size of its own?**
#
# After this lesson you can
#
# - say when gradient descent diverges, and why a narrow valley makes it slow;
# - derive Adam with its two corrections, and compare yours with the library's;
# - say which bad valleys Adam repairs and which it does not, and what it repairs in our models.
#
# You need lessons [1](01_gradients_by_hand.ipynb), [7](07_freeze_masks.ipynb) and
# [8](08_inside_bit_xor_and_bit_memory.ipynb).

# %%
import numpy as np
from tqdm import tqdm

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, picture, reveal, show
from minifpt.optim import Adam, clip_grad_norm
from minifpt.training import evaluate

# %% [markdown]
# ## A valley
#
# A simple loss shows why it may. It has two parameters, $x$ `(2,)`:
#
# $$ L(x) = \tfrac12\, x^\top H x, \qquad \frac{dL}{dx} = H x, \qquad
#    H = \begin{pmatrix} 1 & 0 \\ 0 & 50 \end{pmatrix} $$
#
# This is a long valley: along the first axis the **curvature**, the second derivative, is 1, and
# along the second it is 50. **Gradient descent** moves each parameter against its gradient, by the
# gradient times the **learning rate** $\eta$: $x \leftarrow x - \eta\, dL/dx$. We make $\eta$
# larger and larger. At which rate does $x$ begin to run away from the minimum?

# %%
guess = ...                                               # a number

# %%
def valley(steep=50.0, turn=0.0):
    """H (2, 2): curvature 1 along and ``steep`` across a valley, turned by an angle in degrees"""
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    axes = np.array([[c, -s], [s, c]])
    return axes @ np.diag([1.0, steep]) @ axes.T, axes @ np.array([10.0, 3.0])


def descent(rule, steps=3000, **options):
    """The path (steps + 1, 2) from 10 along and 3 across the valley; rule(x, g, t) -> new x.
    With learning rates (R, 1) it is R paths at once, (steps + 1, R, 2)."""
    H, x = valley(**options)
    path = [x + 0 * rule(x, 0 * x, 1)]
    for t in range(1, steps + 1):
        path.append(np.clip(rule(path[-1], path[-1] @ H, t), -1e9, 1e9))       # it may run away
    return np.array(path)


def gradient_descent(lr):
    return lambda x, g, t: x - lr * g


def needed(path):
    """How many steps until the distance from the minimum stays below 0.1; or infinity"""
    far = np.linalg.norm(path, axis=-1) >= 0.1
    last = len(far) - 1 - far[::-1].argmax(axis=0)
    return np.where(last + 1 < len(far), last + 1.0, np.inf)


rates = np.linspace(0.03, 0.05, 201)
arrives = needed(descent(gradient_descent(rates[:, None]))) < np.inf
reveal(guess, float(rates[~arrives].min()))
points = np.stack(np.meshgrid(np.linspace(-13, 13, 200), np.linspace(-9, 9, 200)), axis=-1)
height = np.sqrt(((points @ valley()[0]) * points).sum(axis=-1))
fig, axes = figure(2, width=2.7, height=2.0, sharey=True)
for ax, lr in zip(axes, (0.038, 0.0402), strict=True):
    ax.contourf(*np.moveaxis(points, -1, 0), height, cmap="Greys", alpha=0.35)
    path = descent(gradient_descent(lr))[:40]
    ax.plot(*path.T, "o-", color=color.ink, markersize=2.5, linewidth=1)
    ax.set(title=f"learning rate {lr}, 40 steps", xlabel="x_1", ylabel="x_2")
picture(fig)

# %% [markdown]
# Along an axis with curvature $h$ the gradient is $h x$, so each step multiplies $x$ by the same
# number:
#
# $$ x \leftarrow x - \eta\, h\, x = (1 - \eta h)\, x $$
#
# It shrinks as long as $|1 - \eta h| < 1$, that is $\eta < 2 / h$. The steep direction decides:
# here $\eta$ must stay below $2/50$. But at such a rate each step multiplies the flat direction by
# nearly 1.
#
# ## Adam, by hand
#
# Let each parameter measure how large its *own* gradients are, and divide by that. **Adam** keeps
# two running means for each parameter, $m$ of the gradient and $v$ of its square,
#
# $$ m \leftarrow \beta_1 m + (1 - \beta_1)\, g, \qquad
#    v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2 $$
#
# and moves $x$ by $-\eta\, m / \sqrt v$. A gradient that stays the same gives a step of $\eta$,
# whether it is 1000 or 0.001. But both means start at 0, with $\beta_1 = 0.9$ and
# $\beta_2 = 0.999$. How many times $\eta$ is the first step long?

# %%
guess = ...                                               # a number


# %%
def adam(lr, b1=0.9, b2=0.999, eps=1e-8, corrected=True):
    m = v = 0.0

    def rule(x, g, t):
        nonlocal m, v
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        m_hat, v_hat = (m / (1 - b1 ** t), v / (1 - b2 ** t)) if corrected else (m, v)
        return x - lr * m_hat / (np.sqrt(v_hat) + eps)
    return rule


reveal(guess, -float(adam(1.0, corrected=False)(0.0, np.array(0.3), 1)))
print(f"corrected, see below: {-float(adam(1.0)(0.0, np.array(0.3), 1)):.3f}")

# %% [markdown]
# Write the mean as a sum. After $t$ steps
#
# $$ m_t = (1 - \beta_1) \sum_{i=1}^{t} \beta_1^{\,t-i} g_i, \qquad
#    (1 - \beta_1) \sum_{i=1}^{t} \beta_1^{\,t-i} = 1 - \beta_1^{\,t} $$
#
# The weights do not sum to 1 but to $1 - \beta_1^t$. So $m_t$ is too small by this factor, and
# $v_t$ by $1 - \beta_2^t$. Divide by them:
#
# $$ \hat m = \frac{m}{1 - \beta_1^t}, \qquad \hat v = \frac{v}{1 - \beta_2^t}, \qquad
#    x \leftarrow x - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon} $$
#
# Now the first step is $\eta$ for each entry. Here is the library's, and a check that it is ours:
# 200 gradients that change, some so small that $\epsilon$ counts.

# %%
show(minifpt.functional.adam)
rng = np.random.default_rng(3)
p = minifpt.layers.Parameter(np.zeros(9), "mlp")
library, ours, rule = Adam([p], lr=0.01), p.data.copy(), adam(0.01)
for t, g in enumerate(rng.standard_normal((200, 9)) * np.geomspace(1e-7, 10, 9), 1):
    p.grad = g.copy()
    library.step()
    ours = rule(ours, g, t)
print(f"largest difference, in learning rates: {np.abs(ours - p.data).max() / 0.01:.0e}")

# %% [markdown]
# ## What Adam does not see
#
# Back to the valley. Each rule gets the best of 121 rates.

# %%
RATES = np.geomspace(1e-5, 3, 121)


def best_of(make_rule, **options):
    """(steps, rate): the learning rate that needs the fewest steps"""
    steps = needed(descent(make_rule(RATES[:, None]), **options))
    return steps.min(), RATES[steps.argmin()]


(steps, _), (steps_adam, lr_adam) = best_of(gradient_descent), best_of(adam)
print(f"gradient descent: {steps:.0f} steps, Adam: {steps_adam:.0f} steps")

# %% [markdown]
# We make the valley a hundred times as steep: the curvature across it is 5000. How many steps does
# Adam need there, at the same rate?

# %%
guess = ...

# %%
reveal(guess, int(needed(descent(adam(lr_adam), steep=5000))))
print("steps at the best rate     steep 50   steep 5000   turned by 30°")
for name, rule in (("gradient descent", gradient_descent), ("Adam", adam)):
    row = [best_of(rule, steep=steep, turn=turn)[0]
           for steep, turn in ((50, 0), (5000, 0), (5000, 30))]
    print(f"{name:22}", "".join(f"{'over 3000' if n == np.inf else f'{n:.0f}':>13}" for n in row))

# %% [markdown]
# The same number: multiply a parameter's gradients by any positive number, and Adam's path stays
# what it was. But turn the steep valley by 30 degrees, and the steep direction is in the gradients
# of both parameters: most of the advantage is gone. So Adam's strength is one kind of bad valley:
# parameters whose gradients differ in size *one by one*. Is that the kind that a model has?
#
# ## In a model
#
# The frozen language trunk on bit XOR, as in [lesson 0](00_a_language_model_learns_xor.ipynb). For
# one gradient, over 64 examples, we measure the size in each kind of parameter: the root of the
# mean square. How many times as large is it in the output layer's weights as in the scales of the
# layer norms: nearer to 1, to 5 or to 20?

# %%
guess = ...


# %%
def make(seed=0):
    """An FPT and its trained parameters {name: Parameter}"""
    model = minifpt.FPT.for_task(xor, "minigpt-language", seed=seed, dropout=0.0)
    return model, {name: p for name, p in model.named_parameters() if p.trainable}


def kind_of(name, p):
    """What kind of parameter it is: its group of lesson 7, and weight or bias"""
    return f"{p.group}, {name.rpartition('.')[2]}"


def backward(model, x, y):
    """Put the gradient of the loss on some examples into the parameters"""
    model.zero_grad()
    logits, cache = model.forward(x, train=True, rng=np.random.default_rng(0))
    model.backward(xor.loss(logits, y)[1], cache)


xor = minifpt.tasks.get("bit-xor")
model, trained = make()
backward(model, *xor.batch(np.random.default_rng(0), 64))
kinds, sizes = [kind_of(name, p) for name, p in trained.items()], {}
for kind in dict.fromkeys(kinds):
    numbers = np.concatenate([p.grad.ravel() for k, p in zip(kinds, trained.values(), strict=True)
                              if k == kind])
    sizes[kind] = float(np.sqrt(np.mean(numbers[numbers != 0] ** 2)))          # unused places: 0
ratio = sizes["output, weight"] / sizes["ln, weight"]
reveal(guess, min((1, 5, 20), key=lambda n: abs(np.log(ratio / n))), "times")
for kind, size in sizes.items():
    print(f"{kind:20} root mean square of the gradient {size:.3f}")

# %% [markdown]
# So one rate for all moves the outer layers far more than the norms. Does it matter? We train with
# five seeds each. Gradient descent has the best rate of 0.03, 0.1, 0.3, 1 and 3, by the mean of
# five seeds, Adam 0.003, as in lesson 0.


# %%
class GradientDescent:
    """x = x - lr g, with lr divided by a size for each Parameter"""

    def __init__(self, parameters, lr, divisors=None):
        self.parameters, self.lr = parameters, lr
        self.divisors = divisors or [1.0] * len(parameters)

    def step(self):
        for p, divisor in zip(self.parameters, self.divisors, strict=True):
            p.data -= self.lr / divisor * p.grad


def train(optimizer, lr, seed, steps=300):
    """Train an FPT on bit XOR -> its test accuracy in per cent"""
    model, trained = make(seed)
    parameters = list(trained.values())
    chosen, rng = optimizer(parameters, lr), np.random.default_rng([seed, 0])
    for _ in range(steps):
        backward(model, *xor.batch(rng, 4, "train"))
        clip_grad_norm(parameters, 1.0)                   # shortens a gradient longer than 1
        chosen.step()
    return 100 * evaluate(model, xor, *xor.batch(np.random.default_rng(9), 256, "test"))[1]


def report(name, optimizer, lr):
    """Train with five seeds, print the accuracies and return their mean"""
    values = [train(optimizer, lr, seed) for seed in tqdm(range(5), desc=name, leave=False)]
    print(f"{name}: {', '.join(f'{value:.1f}' for value in values)} %, mean {np.mean(values):.1f}")
    return float(np.mean(values))


report("gradient descent, 0.1", GradientDescent, 0.1)
_ = report("Adam, 0.003", Adam, 3e-3)

# %% [markdown]
# Our hypothesis: Adam is ahead *because* it has a rate for each parameter. The test differs in one
# thing from gradient descent: each *kind* of parameter has a fixed rate, the learning rate divided
# by the size above. There are no running means. What is the mean accuracy of the five seeds now?

# %%
guess = ...                                               # a percentage


# %%
def by_kind(parameters, lr):
    return GradientDescent(parameters, lr, [sizes[kind] for kind in kinds])


reveal(guess, report("a rate for each kind, 0.01", by_kind, 0.01), "%")

# %% [markdown]
# Most of what gradient descent lacks here is a rate for each kind of parameter. Adam finds such
# rates by itself, and goes on finding them while they change.
#
# The library adds three things. **Clipping** makes the whole gradient shorter where it is longer
# than 1. **Warm-up** makes the first steps short, while $m$ and $v$ gather gradients. The
# **cosine** schedule makes the last ones short, so that the noise of the batch no longer moves $x$.
#
# ## Exercises
#
# **1.** For any symmetric $H$ `(n, n)` with positive eigenvalues: from which learning rate on does
# gradient descent on $\frac12 x^\top H x$ no longer get to the minimum?

# %%
def largest_rate(H):
    """H (n, n), symmetric -> the learning rate at which x no longer shrinks in every direction"""
    return ...


check("largest_rate", largest_rate)


# %% [markdown]
# **2.** **Weight decay** makes each parameter a little smaller at each step. In **AdamW** it stands
# beside Adam's step and does not enter $m$ or $v$:
#
# $$ x \leftarrow x - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon} - \eta\, \lambda\, x $$
#
# Write one step. On the right stands the old $x$. Return new arrays.

# %%
def adamw_step(x, g, m, v, t, lr, b1, b2, eps, decay):
    """x, g, m, v (n,); m and v as the step before left them; t = 1 at the first step
    -> the new x, m and v"""
    return ...


check("adamw_step", adamw_step)

# %% [markdown]
# ## Going further
#
# **One rate for both.** Two frozen trunks on bit memory, with Adam: one is *language*, the other
# *random*. One seed for each of the rates below, 2,000 steps, judged on **validation** draws, which
# are not those of the test. At 3e-3, how many points is *language* ahead?

# %%
guess = ...

# %%
# minifpt compare bit-memory --steps 2000 --seeds 5 --rates 1e-3 3e-3 1e-2 3e-2 1e-1 --models
#     minigpt-language random
MEMORY_RATES = 0.001, 0.003, 0.01, 0.03, 0.1
MEMORY_SWEEP = {
    "language": (80.27, 97.05, 98.74, 98.77, 93.25),
    "random": (77.17, 78.27, 99.52, 99.60, 99.48),
}
MEMORY_TESTS = {                                          # five seeds, each at its best rate
    "language": (98.93, 99.14, 99.09, 98.93, 97.85),
    "random": (99.80, 99.75, 99.69, 99.64, 99.66),
}
language, random = MEMORY_SWEEP.values()
reveal(guess, language[1] - random[1], "points")
curves({"language": language, "random": random}, "bit memory, one seed", "learning rate",
       "bits right (%)", x=MEMORY_RATES, log="x", styles=("o-", "s--"),
       inks=(color.language, color.random))
for name, values in MEMORY_TESTS.items():
    print(f"{name} tested at its best rate: {min(values):.1f} to {max(values):.1f} %")

# %% [markdown]
# At the best rate of each the order is the other way round. Nobody has to cheat: it is enough to
# take one rate for both. And a best rate at the *edge* of a sweep says that a better one may lie
# beyond it.
#
# **3.** *Open.* First a function that reads a sweep. NaN says that a run diverged; then its rate is
# no candidate, but it was tried. Then set `RUN` to `True`: is 0.1 the best rate for gradient
# descent, and with how many seeds would you say so?

# %%
def best_rate(rates, accuracy):
    """rates (R,), in no order; accuracy (R, S), S seeds -> the best rate by the mean over the
    seeds, and True if no smaller one or no larger one was tried"""
    return ...


check("best_rate", best_rate)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    rates = np.array([0.03, 0.1, 0.3, 1.0, 3.0])
    results = np.array([[train(GradientDescent, lr, seed) for seed in range(2)]
                        for lr in tqdm(rates)])
    print(results, best_rate(rates, results))

# %% [markdown]
# **Next**: [lesson 13](13_transfer.ipynb): two numbers differ; how sure is the difference?
