# %% [markdown]
# # 9. Pictures as tokens
#
# **A model that read novels, letter by letter, is frozen and given pictures of digits. What is a
# letter of a picture? And does the model know which piece is above which?**
#
# After this lesson you can
#
# - cut a picture into patches, and say for each number of a token which pixel it is;
# - train a frozen language model on pictures, and test it on fonts that it never saw;
# - tell what a model gets from the order of its tokens and what from their positions;
# - carry a gradient back to the pixels, and fool the model with it.
#
# You need lessons [0](00_a_language_model_learns_xor.ipynb), [4](04_self_attention.ipynb) and
# [7](07_freeze_masks.ipynb). It takes about an hour.

# %%
import numpy as np

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import color, curves, figure, matrix, picture, reveal, show
from minifpt.layers import Layer
from minifpt.tasks.images import patches

# %% [markdown]
# ## A letter of a picture
#
# A transformer reads a sequence of vectors. A picture is a square of grey values. So we cut it
# into squares of $p \times p$ pixels, the **patches**, and read them as we read a page: row by
# row, from the top left. Each patch is a token, and the token's numbers are its pixels, again
# row by row. Images are `(B, H, W)`, here with $H = W = 28$ and $p = 7$, and become
# $x$ `(B, T, p * p)`:
#
# $$ T = \frac Hp \cdot \frac Wp = 16, \qquad p^2 = 49 $$

# %%
task = minifpt.tasks.get("digits", patch=7)
p, T = task.patch, task.tokens
images, digits = task.images(np.random.default_rng(0), 64, "train")      # (B, 28, 28), (B,)
image = images[[0]]                                       # (1, 28, 28)
x = patches(image, p)                                     # (1, 16, 49)
print(f"images {images.shape}, x {patches(images, p).shape}")


def draw(ax, values, title=""):
    """Grey values 0 ... 1, ink is 1."""
    ax.imshow(values, "Greys", vmin=0, vmax=1, interpolation="nearest")
    ax.grid(False)
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color(color.grey)


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
fig, axes = figure(T, width=0.5, height=0.85)
for t, ax in enumerate(axes):
    draw(ax, x[0, t].reshape(p, p))
    ax.set_xlabel(t)
axes[T // 2].set_title("the same picture as a sequence of tokens")
picture(fig)

# %% [markdown]
# The row of scraps is what the model gets. The library cuts the picture without a loop.

# %%
show(patches)

# %% [markdown]
# The transpose again, as with the heads in lesson 4. A single `reshape(B, 16, 49)` has the right
# shape, too, and no program would complain. But its tokens are strips across the whole picture.
#
# Then each token goes through the same small **input layer**, and the vector of its position $t$ is
# added, the **position embedding** $\ell_t$ `(C,)` (lesson 4). With $w$ `(49, C)`, $b$ `(C,)` and
# $C = 128$:
#
# $$ e_t = x_t\, w + b + \ell_t $$
#
# From here on the trunk treats $e$ `(B, T, C)` as it would a text of 16 letters. The answer is
# read at the last token: ten scores, one for each digit.
#
# ## Digits from fonts
#
# Where do the pictures come from? We make them. The task `digits` takes the fonts that come with
# Matplotlib. Some are for training, and the test has others, which the model never sees. Each
# digit is turned, stretched, shifted and blurred, differently each time.

# %%
fig, (ax,) = figure(width=9.2, height=1.05)
draw(ax, np.hstack(task.images(np.random.default_rng(2), 12, "test")[0]),
     "turned, stretched, shifted, blurred")
picture(fig)

# %% [markdown]
# We freeze the language trunk as in lesson 0: only the input layer, the position embeddings, the
# layer norms and the output layer are trained, with 300 steps of 16 pictures. Guessing gets 10 %
# right. How many per cent will be right in fonts that it never saw?

# %%
guess = ...                                               # a percentage


# %%
def make(kind, task):
    """An FPT on a frozen trunk, by the library's name: "minigpt-language", "random", ..."""
    return minifpt.FPT.for_task(task, kind, seed=0, dropout=0.0)


def train(model, task):
    return minifpt.train(model, task, steps=300, batch_size=16, lr=2e-2, schedule="cosine",
                         warmup=40, eval_every=50, test_examples=128)


model = make("minigpt-language", task)
start = model.trunk.wpe.weight.data[:T].copy()            # the embeddings (T, C) it starts from
histories = {"language": train(model, task)}

# %%
def accuracy(model, x, y):
    """Per cent, in a few batches."""
    logits = np.concatenate([model.predict(x[i:i + 100]) for i in range(0, len(x), 100)])
    return 100 * task.accuracy(logits, y)


x_test, y_test = task.test_set()
reveal(guess, 100 * histories["language"][-1]["test_accuracy"], "%")
seen = accuracy(model, *task.batch(np.random.default_rng(9), 1000, "train"))
print(f"fresh pictures, fonts of the training: {seen:.1f} %")
print(f"fresh pictures, fonts never seen:      {accuracy(model, x_test, y_test):.1f} %")

# %% [markdown]
# New fonts cost little: it learned digits, not fonts.
#
# Did it have to read novels for this? As in lesson 8 we take two other trunks: *random, too small*,
# drawn as GPT-2 is before any training, and *matched random*, random as well, but each array has
# the mean and the standard deviation of the language trunk's. Steps, learning rate and pictures are
# the same. How many of the two end within ten points of *language*?

# %%
guess = ...

# %%
for name, kind in (("random, too small", "random@gpt2"),
                   ("matched random", "statistics:minigpt-language")):
    histories[name] = train(make(kind, task), task)

# %%
final = {name: 100 * history[-1]["test_accuracy"] for name, history in histories.items()}
reveal(guess, sum(value > final["language"] - 10 for value in final.values()) - 1, "of 2")
curves({name: 100 * history["test_accuracy"] for name, history in histories.items()},
       "printed digits in fonts that were not seen", width=7, level=10, ylim=(0, 100),
       ylabel="digits right (%)", x=histories["language"]["step"], styles=("-", "-.", "--"),
       inks=(color.language, color.grey, color.statistics))
print(", ".join(f"{name} {value:.1f} %" for name, value in final.items()))

# %% [markdown]
# *Language* and *matched random* end close together. One run each does not rank two that are so
# close: of five seeds that we tried, four put *language* ahead and one *matched random*. (Points
# before the last are from 128 pictures, so ten points between two of them say little.) So weights
# of the right size are about enough here. *Random, too small*, made for more channels than our 128,
# is far behind, at this learning rate and after so few steps.
#
# ## Does it know which patch is above which?
#
# In the picture patch 4 is below patch 0 and far from patch 3. In the sequence it comes right
# after 3. The trunk sees neither. Only two things tell it where a token is: the position
# embeddings, and the causal mask, which lets a token look back but not ahead.
#
# The position embeddings start as language left them. We ask how similar two of them are: the
# cosine of the angle between them, after subtracting the mean $\bar\ell$ of all:
#
# $$ s_{tu} = \frac{(\ell_t - \bar\ell) \cdot (\ell_u - \bar\ell)}
#    {|\ell_t - \bar\ell|\; |\ell_u - \bar\ell|} $$

# %%
def similarity(positions):
    """(T, C) -> s (T, T)"""
    q = positions - positions.mean(axis=0)
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    return q @ q.T


positions = model.trunk.wpe.weight.data                   # now trained; the first T are in use
s_start, s_end = similarity(start), similarity(positions[:T])
fig, axes = figure(2, width=3.2, height=3.0)
for ax, s, title in zip(axes, (s_start, s_end), (
        "similarity, as language left them", "after training on digits"), strict=True):
    matrix(ax, s, title, "position", limit=1, digits=None,
           columns=[t if t % 3 == 0 else "" for t in range(T)])
picture(fig)

# %% [markdown]
# Red is alike, white unrelated, blue opposite. Before training we see a line of text: from position
# 3 on, a position is similar to the ones before and after it, also across the end of a row. After
# training most of the line is gone, and no grid has come in its place. Yet most digits are right.
# So does the model need to know what is beside what?
#
# ## Torn up
#
# We tear up all pictures into their patches and lay these in another order, in one of two ways:
#
# - *always the same way*: one order for all pictures, in training and in the test;
# - *each its own way*: another order for each picture.

# %%
class Torn(minifpt.tasks.Digits):
    """Digits whose patches come in another order."""

    order = np.random.default_rng(0).permutation(T)

    def __init__(self, each):
        super().__init__(patch=p)
        self.each = each

    def draw(self, rng, size, split):
        x, y = super().draw(rng, size, split)
        order = np.tile(self.order, (size, 1))            # (B, T)
        if self.each:
            order = rng.permuted(order, axis=1)
        return np.take_along_axis(x, order[..., None], axis=1), y


torn = {"always the same way": Torn(each=False), "each its own way": Torn(each=True)}


def laid_out(x):
    """x (T, 49) -> the picture, its patches in the order of the tokens"""
    return x.reshape(4, 4, p, p).transpose(0, 2, 1, 3).reshape(28, 28)


fig, axes = figure(6, 3, width=1.25, height=1.4)
for i, (name, tearing) in enumerate({"whole": task, **torn}.items()):
    for ax, one in zip(axes[6 * i:], tearing.batch(np.random.default_rng(7), 6)[0], strict=False):
        draw(ax, laid_out(one))
    axes[6 * i + 3].set_title(name)
picture(fig)

# %% [markdown]
# We cannot read either of them. A new model is trained on each, again with the language trunk and
# for as many steps. How many per cent will be right: always the same way, and each its own way?

# %%
guess_same = ...                                          # a percentage
guess_own = ...

# %%
for name, tearing in torn.items():
    histories[name] = train(make("minigpt-language", tearing), tearing)

# %%
for guess, name in ((guess_same, "always the same way"), (guess_own, "each its own way")):
    print(f"{name}.", end=" ")
    reveal(guess, 100 * histories[name][-1]["test_accuracy"], "%")
curves({name: 100 * histories[key]["test_accuracy"] for name, key in (
        ("whole", "language"), *zip(torn, torn, strict=True))}, "digits torn up, language trunk",
       ylabel="digits right (%)", x=histories["language"]["step"], styles=("-", "--", "-."),
       inks=(color.language, color.teal, color.ochre), ylim=(0, 100), level=10)

# %% [markdown]
# To tear all pictures up in the same way costs little, if anything. For us they become riddles,
# because we look for lines that go on. Nothing in the model does: if token $t$ holds patch
# $\pi(t)$, then
#
# $$ e_t = x_{\pi(t)}\, w + b + \ell_t $$
#
# and if training gives $\ell_t$ the value that $\ell_{\pi(t)}$ would have in the whole picture, the
# set of vectors is the same. Attention does not depend on the order of what it looks at (lesson 4).
# So nothing changes but who may look back at whom, which patch the last token has, where the answer
# is read, and what language had left in the position embeddings. When each picture is torn up in a
# different way, $\ell_t$ says nothing about the patch, and what is left is a bag of scraps.
#
# ## The way back to the pixels
#
# Which pixels would change the answer? The trunk is frozen, and a gradient runs *through* frozen
# weights all the same (lesson 7). What is missing is the backward pass of `patches`. Each pixel
# goes to one number of one token, so its gradient comes back from there:
#
# $$ \frac{\partial L}{\partial\, \text{image}[u, v]} = \frac{\partial L}{\partial x_{tj}}, \qquad
#    (t, j) \text{ is where pixel } (u, v) \text{ went} $$

# %%
def patches_backward(dx, p, H, W):
    """dx (B, T, p * p) -> dimages (B, H, W)"""
    dx = dx.reshape(len(dx), H // p, W // p, p, p)
    return dx.transpose(0, 1, 3, 2, 4).reshape(len(dx), H, W)


class FromPixels(Layer):
    """Images in, scores out, by a trained model; its backward pass goes on to the pixels."""

    def __init__(self, model):
        self.input, self.trunk, self.output = model.input, model.trunk, model.output

    def forward(self, images):
        """images (B, H, W) -> logits (B, 1, 10)"""
        cache = {"shape": images.shape}
        with self.all_frozen():                           # no gradient of any weight is wanted
            z, _ = self.input.forward(patches(images, p))           # the trunk adds positions
            h, cache["trunk"] = self.trunk.forward(z, last=1)       # the last token is read
            logits, cache["output"] = self.output.forward(h)
        return logits, cache

    def backward(self, dlogits, cache):
        """dlogits (B, 1, 10) -> dimages (B, H, W)"""
        dh = self.output.backward(dlogits, cache["output"])
        dz = self.trunk.backward(dh, cache["trunk"])
        dx = dz @ self.input.weight.data.T                # training stops before this product
        return patches_backward(dx, p, *cache["shape"][1:])


trunk = minifpt.trunks.get("minigpt-language", dropout=0.0, dtype=np.float64)
exact = minifpt.FPT(trunk, task.input_dim, task.output_dim)        # our model in float64
for a, b in zip(exact.parameters(), model.parameters(), strict=True):
    a.data[...], a.trainable = b.data, False              # only the pixels' gradient is checked
from_pixels = FromPixels(exact)
print(minifpt.gradcheck(from_pixels, image))

# %% [markdown]
# That is the whole way, from ten scores through six blocks to the pixels. (784 pixels are many, so
# `gradcheck` moves a few of them alone, and all of them at once along eight random directions.) Now
# we use it. We move each pixel by the same small step $\varepsilon$, in the direction that makes
# the loss $L$ of the right answer larger (the **fast gradient sign method**, Goodfellow et al.,
# arXiv 1412.6572):
#
# $$ \text{image}' = \text{clip}_{[0, 1]}\big( \text{image} + \varepsilon\, \text{sign}
#    (\partial L / \partial\, \text{image}) \big) $$
#
# For comparison we take the same steps with signs from a coin. Let $\varepsilon$ be 0.05, a
# twentieth of the way from white to black. How many per cent are still right with the gradient's
# signs?

# %%
guess = ...                                               # a percentage

# %%
clean, label = task.images(np.random.default_rng(3), 200, "test")
from_pixels = FromPixels(model)
logits, cache = from_pixels.forward(clean)
dimages = from_pixels.backward(task.loss(logits, label[:, None])[1], cache)
signs = {"the gradient's signs": np.sign(dimages),
         "a coin's signs": np.random.default_rng(0).choice([-1, 1], clean.shape)}


def moved(sign, eps):
    return np.clip(clean + eps * sign, 0, 1).astype(np.float32)


steps = [0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1]
right = {name: [accuracy(model, patches(moved(sign, eps), p), label[:, None]) for eps in steps]
         for name, sign in signs.items()}
reveal(guess, right["the gradient's signs"][steps.index(0.05)], "%")

curves(right, "the same size of change, two sets of signs (dotted: guessing)",
       "each pixel moves by at most ε", "digits right (%)", x=steps, styles=("o-", "s--"), level=10,
       inks=(color.ochre, color.teal), ylim=(0, 100))
fooling = moved(signs["the gradient's signs"], 0.05)
before, after = (model.predict(patches(values, p))[:, 0].argmax(axis=-1)
                 for values in (clean, fooling))
fig, axes = figure(6, width=1.15, height=1.5)
for ax, n in zip(axes, np.flatnonzero((before == label) & (after != label)), strict=False):
    draw(ax, fooling[n])
    ax.set_xlabel(f"it said {before[n]}, now {after[n]}")
axes[3].set_title("pictures that fool it")
picture(fig)

# %% [markdown]
# We still read the old digit. Of two changes of the same size, one does next to nothing and the
# other fools the model. The direction decides: hundreds of small steps that all pull one way. (A
# white pixel cannot get whiter, so not all 784 move.)
#
# This was one run of each kind, with few steps and large patches. Handwriting, as in the paper,
# needs MNIST's files: `minifpt train mnist`, and `docs/results/images.md` in the repository.
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
# **2.** The paper also uses CIFAR-10, pictures in colour. A token is still a patch. Its pixels come
# row by row, and the three colours of a pixel are side by side. Cut the pictures into tokens.

# %%
def colour_patches(images, p):
    """images (B, H, W, 3) -> (B, H/p * W/p, p * p * 3)"""
    return ...


check("colour_patches", colour_patches)


# %% [markdown]
# **3.** Patches may overlap: each begins $s$ pixels after the one before, with $s \le p$. A stroke
# that one patch cuts through is then whole in another. Here is the forward pass. A pixel now goes
# into several tokens. Write the backward pass; the cell below compares it with central differences.

# %%
def overlapping(images, p, s):
    """images (B, H, W) -> (B, T, p * p), T = ((H - p) // s + 1) * ((W - p) // s + 1)"""
    x = np.lib.stride_tricks.sliding_window_view(images, (p, p), axis=(1, 2))[:, ::s, ::s]
    return x.reshape(len(images), -1, p * p)


def overlapping_backward(dy, p, s, H, W):
    """dy (B, T, p * p) -> dimages (B, H, W)"""
    return ...


check("overlapping_backward", overlapping_backward)

# %%
small = np.random.default_rng(0).standard_normal((2, 8, 6))
if overlapping_backward(overlapping(small, 4, 2), 4, 2, 8, 6) is not ...:
    print(minifpt.gradcheck(lambda images: (overlapping(images, 4, 2), None),
                            lambda dy, _: overlapping_backward(dy, 4, 2, 8, 6), (small,)))

# %% [markdown]
# **4.** *Open.* Can the position embeddings learn the grid? First a number for it: how much more
# similar are neighbours on the grid, side by side or one above the other, than all other pairs?
# Then set `RUN` to `True`. The cell has more steps than above. Try what else might help, one change
# at a time: smaller patches, stronger shifts (`minifpt.tasks.images.distort`), embeddings that
# start at 0, a trunk that is not frozen. And if the score rises, does the accuracy?

# %%
def neighbour_score(s, rows, columns):
    """s (T, T), similarities of T = rows * columns positions, counted row by row -> the mean over
    pairs of neighbours on the grid minus the mean over all other pairs of two positions"""
    return ...


check("neighbour_score", neighbour_score)

# %%
if neighbour_score(s_start, 4, 4) is not ...:
    print("before:", neighbour_score(s_start, 4, 4), "after:", neighbour_score(s_end, 4, 4))
RUN = False                                               # True: trains, with a bar
if RUN:
    model = make("minigpt-language", task)
    history = minifpt.train(model, task, steps=1500, batch_size=16, lr=2e-2, schedule="cosine",
                            warmup=40, eval_every=250)
    print(neighbour_score(similarity(model.trunk.wpe.weight.data[:T]), 4, 4),
          f"digits right: {history['test_accuracy'][-1]:.1%}")

# %% [markdown]
# **Next**: [lesson 10](10_tokens_and_vectors.ipynb) goes back to where the trunk comes from: how do
# tokens become vectors?
