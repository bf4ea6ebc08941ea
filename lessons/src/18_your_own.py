# %% [markdown]
# # 18. Your own
#
# **A model trains on functions that you wrote. Its loss falls. Are your gradients right?**
#
# After this lesson you can
#
# - keep a file of operations that the library runs instead of its own;
# - read what its check says of a wrong gradient;
# - say why a falling loss does not prove that a gradient is right;
# - train a frozen GPT-2 on your own mathematics until it computes XOR.
#
# In the live page: [station 5](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(5)` in a cell here.
#
# You need lessons [1](01_gradients_by_hand.ipynb) to [6](06_gpt2_whole.ipynb). Writing the whole
# file takes a weekend.

# %%
import inspect
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

import minifpt
from minifpt.exercises import check, own
from minifpt.exercises.lesson import color, curves, reveal, show
from minifpt.functional import DropoutCache, SoftmaxCache, dropout_backward

# %% [markdown]
# ## An empty file
#
# `minifpt new mine.py --lesson 2`, in a terminal, writes the functions that lesson 2 asks for,
# without their bodies: a forward pass has its shapes and its definition, a backward pass says only
# what it returns. `minifpt.new` does the same. Here the file goes into a temporary folder.

# %%
folder = tempfile.TemporaryDirectory()


def new_file(name, lesson=None):
    path = Path(folder.name) / name
    minifpt.new(path, lesson)
    return path


mine = new_file("mine.py", lesson=2)
text = mine.read_text(encoding="utf-8")
start, last = text.index("def softmax("), text.index("def softmax_backward(")
print(text[start:text.index("\n\n\n", last)])

# %% [markdown]
# You would write into it with an editor; here a cell holds the functions, and `own.put` puts them
# where they belong. We make a mistake. For a row $y$ `(N,)` of a softmax
#
# $$ dx_i = y_i \Big( dy_i - \sum_j dy_j\, y_j \Big) $$
#
# because all outputs of a row share one denominator. We forget the sum.

# %%
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, SoftmaxCache(y)


def softmax_backward(dy, cache):
    return cache.y * dy                                   # and the sum?


def look(path, *names):
    """What the check says of some functions of a file."""
    print(*(result for result in own.results(path) if result.name in names), sep="\n")


own.put(mine, softmax, softmax_backward)
look(mine, "softmax", "softmax_backward")

# %% [markdown]
# The check, `minifpt check mine.py` in a terminal, compares each forward pass with the library's on
# fresh numbers. Each backward pass reads the cache of *your* forward pass, and its gradients are
# compared with the library's. Here it names the gradient and the mistake. What is not written yet
# is the library's.
#
# ## Does it train?
#
# Is the check too strict? Most of the gradient goes past attention along the residual stream
# (lesson 6). We train a frozen GPT-2 of two random blocks on XOR (lesson 0) with three files, each
# with one mistake in one backward pass:
#
# - *no sum*: the softmax above;
# - *no √D*: attention's backward without its factor $1/\sqrt D$ (lesson 5);
# - *a mean for a sum*: layer norm's `dw`, averaged over the tokens (lesson 3).
#
# The library refuses to train on a wrong file, unless it is told `anyway`. How many of the three
# get 99 % of the bits right within 350 steps?

# %%
guess = ...                                               # of 3

# %%
STEPS, task = 350, minifpt.tasks.get("bit-xor")
TRUNK = "random:2x4x128@1.41"             # 2 blocks, 4 heads, 128 channels; the size of its weights


def train(path, anyway=False):
    """History of bit XOR on the functions of a file, and the file."""
    model = minifpt.FPT.for_task(task, TRUNK, dropout=0.0)
    with own.using(path, anyway) as file:
        history = minifpt.train(model, task, STEPS, batch_size=8, lr=3e-3, eval_every=25,
                                test_examples=64, progress=False)
    return history, file


def attention_backward(dy, cache):
    q, k, v, A, mask, _ = cache                           # (B, H, T, D) and (B, H, T, T)
    kept = A if mask is None else A * mask
    dA = dropout_backward(dy @ v.swapaxes(-1, -2), DropoutCache(mask))
    dS = A * (dA - (dA * A).sum(axis=-1, keepdims=True))  # / math.sqrt(D)
    return dS @ k, dS.swapaxes(-1, -2) @ q, kept.swapaxes(-1, -2) @ dy, None


def layer_norm_backward(dy, cache):
    xhat, rstd, w = cache
    g = dy * w
    along = (g * xhat).mean(axis=-1, keepdims=True)
    dx = (g - g.mean(axis=-1, keepdims=True) - xhat * along) * rstd
    rows = tuple(range(dy.ndim - 1))
    return dx, (dy * xhat).mean(axis=rows), dy.sum(axis=rows)


wrong = {"no sum": softmax_backward, "no √D": attention_backward,
         "a mean for a sum": layer_norm_backward}
histories = {}
for i, (name, function) in enumerate(tqdm(wrong.items(), desc="three wrong files")):
    path = new_file(f"wrong_{i}.py")
    own.put(path, function)
    histories[name], file = train(path, anyway=True)
    print(f"{name}: {file.wrong[0].name}, {file.wrong[0].hint}")
best = {name: 100 * history["test_accuracy"].max() for name, history in histories.items()}
reveal(guess, sum(accuracy >= 99 for accuracy in best.values()))
for name, history in histories.items():
    print(f"{name:17} loss {history['train_loss'][0]:.2f}, at the end "
          f"{history['train_loss'][-1]:.2f}; at best {best[name]:.0f} % of the bits")

# %% [markdown]
# *No sum* does not get there, and yet its loss falls: part of its gradient is right. The other two
# mistakes do no harm that you could see. A mean for a sum has the right direction and the wrong
# length, and Adam divides the length away (lesson 12). Without the √D queries and keys move too far
# for the values beside them. Two blocks learn in spite of it; lesson 0's six blocks do not in 350
# steps, with any of five seeds. (Here one seed is shown. Of five, *no sum* got 99 % with one, the
# other two with all.)
#
# So a wrong gradient may cost everything, some time, or nothing today. A falling loss shows that
# some of the gradient is right, and no more. A check of each function tells which one is wrong.
#
# ## Mended
#
# Write the sum into `softmax_backward` below, or look at the library's.

# %%
show(minifpt.functional.softmax_backward)


# %%
def softmax_backward(dy, cache):
    y = cache.y
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


own.put(mine, softmax_backward)
look(mine, "softmax", "softmax_backward")

# %% [markdown]
# Now all the other functions. If a `mine.py` is in this folder, as the lessons of the spine write
# it, the next cell takes that, otherwise the functions of `solutions/18_functional.py`. The same
# model learns XOR, and every number on the way there and back is computed in that file. At which
# step does it reach 99 %, in tests every 25 steps?

# %%
guess = ...

# %%
if Path("mine.py").is_file():
    mine, whose = Path("mine.py"), "your file"
else:
    minifpt.new(mine)                                     # the other functions, below
    own.put(mine, own.solution())
    whose = "the solution of lesson 18"
history, file = train(mine)
good = history["test_accuracy"] >= 0.99
reveal(guess, int(history["step"][good.argmax()]) if good.any() else "never")
curves({f"wrong: {name}": 100 * one["test_accuracy"] for name, one in histories.items()}
       | {whose: 100 * history["test_accuracy"]}, f"A frozen GPT-2 learns XOR, on {whose}",
       ylabel="bits right (%)", x=history["step"], styles=("--", "-.", "-s", "-"), level=50,
       inks=[color.ochre if best[name] < 99 else color.grey for name in histories]
       + [color.trained], ylim=(42, 102))
print("calls:", ", ".join(f"{name} {count:,}" for name, count in file.calls.most_common(6)))

# %% [markdown]
# In a terminal it is `minifpt train bit-xor --functional mine.py`. The library adds bookkeeping:
# layers keep the parameters and call your functions, the mask says which gradients are added up,
# Adam takes them from there.
#
# ## Exercises
#
# Solutions are in `solutions/18_your_own.py`.
#
# **1.** An operation that is not in the file. **Swish** with a learned slope:
# $y = x\,\sigma(\beta x)$ with $x$ `(B, T, C)`, $\beta$ `(C,)`, and $\sigma(a) = 1 / (1 + e^{-a})$,
# whose derivative is $\sigma\,(1 - \sigma)$. Write its backward pass.

# %%
def swish_backward(dy, x, beta):
    """dy, x (B, T, C), beta (C,) -> dx (B, T, C), dbeta (C,)"""
    dx = ...
    dbeta = ...
    return dx, dbeta


check("swish_backward", swish_backward)


# %% [markdown]
# **2.** What the layers do for you: a chain. `pairs` is a list of `(forward, backward)`, as in your
# file: `y, cache = forward(x)` and `dx = backward(dy, cache)`. The first takes $x$, each next one
# what the one before gave, and $dy$ belongs to the last. A pair may stand in the list twice.

# %%
def chain_backward(pairs, x, dy):
    """pairs [(forward, backward)], x and dy of one shape -> dx, of that shape"""
    return ...


check("chain_backward", chain_backward)


# %% [markdown]
# **3.** *Open.* How wrong may a gradient be? Write a backward pass of softmax that is wrong, and
# whose cosine with the right one, $\sum a b / \sqrt{\sum a^2 \sum b^2}$ over all entries of many
# random rows, is between 0.85 and 0.999. The next cell trains with it. Does it reach 99 %? Is there
# one with a smaller cosine that trains better?

# %%
def wrong_but_useful(dy, y):
    """dy, y (..., N), y a softmax -> not quite dx (..., N)"""
    return ...


check("wrong_but_useful", wrong_but_useful)

# %%
if wrong_but_useful(np.array([[1.0, 2.0]]), np.full((1, 2), 0.5)) is not ...:
    path = Path(folder.name) / "useful.py"
    path.unlink(missing_ok=True)
    minifpt.new(path)
    path.write_text("\n\n".join([
        path.read_text(encoding="utf-8"), inspect.getsource(wrong_but_useful),
        "def softmax_backward(dy, cache):\n    return wrong_but_useful(dy, cache.y)\n"]),
        encoding="utf-8")
    print(f"{100 * train(path, anyway=True)[0]['test_accuracy'].max():.0f} % of the bits at best")

# %% [markdown]
# **Next**: take your file to a task of your own (`minifpt train FILE.py:CLASS --functional
# mine.py`), or look for the parts of a model that do a task, in [lesson
# 19](19_which_part_does_it.ipynb).
