# %% [markdown]
# # 9. Pictures as tokens
#
# **We freeze a model that read novels, letter by letter, and give it pictures of digits. Then we
# tear the pictures up. What does it take to put them together again?**
#
# After this lesson you can
#
# - cut a picture into patches, and say for each number of a token which pixel it is;
# - train a frozen language model on pictures, and test it on fonts that it never saw;
# - say what a model knows about where a patch was, and repair it when that goes wrong.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb), [4](04_self_attention.ipynb) and
# [7](07_freeze_masks.ipynb).

# %%
import numpy as np

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.tasks.images import patches

# %% [markdown]
# ## A picture becomes a sequence
#
# A transformer reads a sequence of vectors. So we cut a picture into squares of $p \times p$
# pixels, the **patches**, and read them as we read a page: row by row, from the top left. Each
# patch is a token, and the token's numbers are its pixels, again row by row. Images `(B, H, W)`
# become $x$ `(B, T, p * p)`, here with $H = W = 28$ and $p = 7$:
#
# $$ T = \frac Hp \cdot \frac Wp = 16, \qquad p^2 = 49 $$

# %%
task = minifpt.tasks.get("digits", patch=7)
p, T = task.patch, task.tokens
image = task.images(np.random.default_rng(0), 1, "train")[0]         # (1, 28, 28)
x = patches(image, p)                                     # (1, 16, 49)


def draw(ax, values, title=""):
    """Grey values 0 ... 1, ink is 1"""
    ax.imshow(values, "Greys", vmin=0, vmax=1, interpolation="nearest")
    ax.grid(False)
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=color.grey)


fig, axes = figure(2, width=3.1, height=3.0)
draw(axes[0], image[0], "a picture and the numbers of its patches")
for edge in np.arange(1, 4) * p - 0.5:
    axes[0].axhline(edge, color=color.teal, linewidth=1)
    axes[0].axvline(edge, color=color.teal, linewidth=1)
for t in range(T):
    axes[0].text(t % 4 * p + 0.2, t // 4 * p + 0.3, t, ha="left", va="top", fontsize=8,
                 color="white", bbox={"color": color.teal, "pad": 1.5})
matrix(axes[1], x[0, 5].reshape(p, p), "token 5: its 49 numbers", limit=1, digits=1,
       rows=[""] * p, columns=[""] * p)
picture(fig)
show(patches)

# %% [markdown]
# A single `reshape(B, 16, 49)` has the right shape, too, and no program would complain. But its
# tokens are strips across the whole picture.
#
# Each token goes through the same small **input layer**, and the vector of its place $t$ is added,
# the **position embedding** $\ell_t$ `(C,)` of lesson 4. With $w$ `(49, C)` and $b$ `(C,)`:
#
# $$ e_t = x_t\, w + b + \ell_t $$
#
# From here on the trunk treats $e$ `(B, T, C)` as a text of 16 letters. The answer, ten scores, is
# read at the last token.
#
# The task `digits` draws its pictures from the fonts that come with Matplotlib. Each digit is
# turned, stretched, shifted and blurred, differently each time, and the test has other fonts than
# the training. As in lesson 0 we train the input and output layers, the position embeddings and the
# layer norms, and freeze the rest. Guessing gets 10 % right. How many per cent will be right in
# fonts that it never saw?

# %%
guess = ...                                               # a percentage


# %%
def train(task, seed=0):
    """A frozen language model trained on pictures, and its history"""
    model = minifpt.FPT.for_task(task, "minigpt-language", seed=seed, dropout=0.0)
    return model, minifpt.train(model, task, steps=300, batch_size=16, lr=2e-2, warmup=40,
                                schedule="cosine", eval_every=50, test_examples=128)


def accuracy(model, x, y):
    """Per cent, in a few batches"""
    logits = np.concatenate([model.predict(x[i:i + 100]) for i in range(0, len(x), 100)])
    return 100 * task.accuracy(logits, y)


model, history = train(task)
x_test, y_test = task.test_set()                          # (1000, 16, 49), (1000, 1)
whole = accuracy(model, x_test, y_test)
reveal(guess, whole, "%")

# %% [markdown]
# ## Torn up
#
# Now we tear all the test's pictures into their patches and hand these to the model in another
# order, the same for all pictures: the token at place $t$ holds patch $\pi(t)$. Below is what we
# see if we lay the patches out in that order. The model is not trained again. How many per cent are
# still right?

# %%
guess = ...                                               # a percentage

# %%
order = np.random.default_rng(0).permutation(T)           # π (T,)
torn = x_test[:, order]


def laid_out(x):
    """x (T, 49) -> the picture, its patches in the order of the tokens"""
    return x.reshape(4, 4, p, p).transpose(0, 2, 1, 3).reshape(28, 28)


fig, axes = figure(6, width=1.25, height=1.4)
for ax, one in zip(axes, torn, strict=False):
    draw(ax, laid_out(one))
axes[2].set_title("six torn pictures")
picture(fig)
before = accuracy(model, torn, y_test)
reveal(guess, before, "%")

# %% [markdown]
# No better than guessing: we cannot read them, and neither can the model. But look at what it gets,
#
# $$ e_t = x_{\pi(t)}\, w + b + \ell_t \qquad\text{where it learned}\qquad
#    e_{\pi(t)} = x_{\pi(t)}\, w + b + \ell_{\pi(t)} $$
#
# Only $\ell$ is wrong. So we let it move along with its patch: at place $t$ stands
# $\ell_{\pi(t)}$. The pictures stay torn, and no weight learns anything. How many per cent are
# right now?

# %%
guess = ...                                               # a percentage

# %%
positions = model.trunk.wpe.weight.data                   # the first T rows are in use
learned = positions[:T].copy()
positions[:T] = learned[order]
reveal(guess, accuracy(model, torn, y_test), "%")

# %% [markdown]
# Most of them. For the model a torn picture is the whole one, in other places: the *set* of vectors
# is the same, and attention does not depend on the order of what it looks at. "Beside" and "above"
# are nothing but these vectors. (We need the lines that go on from patch to patch; the model does
# not.)
#
# Why not all of them? One part of the trunk does know the order: the causal mask. Token $t$ sees
# the tokens up to $t$, and in another order these are other patches. Without the mask each patch's
# output should only move, exactly. We switch the mask off and compare.

# %%
for causal in (True, False):
    for block in model.trunk.h:
        block.attn.causal = causal
    vectors = {}
    for name, pixels, places in (("whole", x_test[:50], learned),
                                 ("torn", torn[:50], learned[order])):
        positions[:T] = places
        vectors[name] = model.trunk.forward(model.input.forward(pixels)[0])[0]
    difference = np.abs(vectors["torn"] - vectors["whole"][:, order]).max()
    print(f"{'with' if causal else 'without'} the mask: largest difference of an output vector's "
          f"numbers {difference:.0e}")
for block in model.trunk.h:
    block.attn.causal = True

# %% [markdown]
# ## Each picture in its own way
#
# Now each picture is torn up in an order of its own, in training and in the test. A new model is
# trained on such pictures for as many steps. $\ell_t$ says nothing about the patch any more. How
# many per cent will be right?

# %%
guess = ...                                               # a percentage


# %%
class Torn(minifpt.tasks.Digits):
    """Digits whose patches come in another order for each picture"""

    def draw(self, rng, size, split):
        x, y = super().draw(rng, size, split)
        order = rng.permuted(np.tile(np.arange(T), (size, 1)), axis=1)          # (B, T)
        return np.take_along_axis(x, order[..., None], axis=1), y


_, torn_history = train(Torn(patch=p))
reveal(guess, 100 * torn_history[-1]["test_accuracy"], "%")
curves({"whole": 100 * history["test_accuracy"],
        "each torn in its own way": 100 * torn_history["test_accuracy"]},
       "digits in fonts that were not seen (dotted: guessing)", ylabel="digits right (%)",
       x=history["step"], inks=(color.language, color.ochre), ylim=(0, 100), level=10)

# %% [markdown]
# Far behind, and far above guessing. What is left is a bag of scraps: an 8 has other scraps than
# a 1. (One run of each; the points before the last are from 128 pictures. Handwriting needs
# MNIST's files: `minifpt train mnist`.)
#
# ## Exercises
#
# Solutions are in `solutions/09_pictures_as_tokens.py`.
#
# **1.** Number $j$ of token $t$: which pixel is it?

# %%
def pixel_of(t, j, p, W):
    """token, number within it, patch size, width of the image in pixels -> (row, column)"""
    return ...


check("pixel_of", pixel_of)


# %% [markdown]
# **2.** Pictures in colour. A token is still a patch, its pixels come row by row, and the three
# colours of a pixel stand side by side. Cut the pictures into tokens.

# %%
def colour_patches(images, p):
    """images (B, H, W, 3) -> (B, H/p * W/p, p * p * 3)"""
    return ...


check("colour_patches", colour_patches)


# %% [markdown]
# **3.** *Open.* Do position embeddings learn the grid? First a number for it: how much more similar
# are neighbours on the grid, side by side or one above the other, than all other pairs? Then set
# `RUN` to `True`, and try what might help, one change at a time: more steps, smaller patches, a
# trunk that is not frozen. If the score rises, does the accuracy?

# %%
def neighbour_score(s, rows, columns):
    """s (T, T), similarities of T = rows * columns positions, counted row by row -> the mean over
    pairs of neighbours on the grid minus the mean over all other pairs of two positions"""
    return ...


check("neighbour_score", neighbour_score)

# %%
RUN = False                                               # True: trains, with a bar
if RUN:
    trained, history = train(task, seed=1)
    vectors = trained.trunk.wpe.weight.data[:T]
    vectors = vectors - vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    print(neighbour_score(vectors @ vectors.T, 4, 4), history["test_accuracy"][-1])

# %% [markdown]
# **Next**: [lesson 10](10_tokens_and_vectors.ipynb) goes back to where the trunk comes from: how do
# tokens become vectors?
