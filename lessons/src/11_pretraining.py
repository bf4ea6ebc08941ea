# %% [markdown]
# # 11. Pretraining
#
# **Ask a model for the next letter of a text, half a million times, and tell it nothing else. How
# do we say how much it has learned?**
#
# After this lesson you can
#
# - train a language model from nothing, and say what its loss must be at the start;
# - turn a loss into bits per byte, which is a file size, and compare it on equal terms with
#   counting and with compressors;
# - recognise a loss that is too good.
#
# In the live page: [station 2](../minifpt/viewer/live/tour.md) of its tour, or
# `minifpt.viewer.tour(2)` in a cell here.
#
# You need lessons [2](02_softmax_and_cross_entropy.ipynb), [4](04_self_attention.ipynb) and
# [6](06_gpt2_whole.ipynb).

# %%
import bz2
import lzma
import math
import zlib

import numpy as np
from tqdm import tqdm

import minifpt
from minifpt.exercises import check
from minifpt.exercises.lesson import bars, color, curves, reveal, show
from minifpt.files.tokenizer import Bytes

# %% [markdown]
# ## Before the first step
#
# We take the text of lesson 10, the ends of five novels. Its tokens are bytes, so the vocabulary
# has $V = 256$. The last 5 % of the text are held out. An example is a passage of $T = 64$ bytes;
# its targets are the same passage one byte further on, so that each position is a question. The
# loss is the cross-entropy of lesson 2, and $p_n$ is the probability that the model gave to the
# byte that really came:
#
# $$ L = -\frac1N \sum_n \log p_n $$
#
# We make a model of two blocks with small random weights. What is its loss before it has learned
# anything?

# %%
guess = ...                                               # in nats

# %%
task = minifpt.tasks.get("text", tokens=64)
training, held_out = (task.bytes[split].astype(int) for split in ("train", "test"))
print(f"{len(training):,} bytes to learn from, {len(held_out):,} held out")
show(minifpt.tasks.Text.passages)


def new_model(spread=0.08):
    """Two blocks of 64 channels; ``spread`` is the standard deviation of the weights"""
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=64, vocab_size=256,
                                dropout=0.0, initializer_range=spread)
    return minifpt.LanguageModel(config, seed=0)


some, following = task.batch(np.random.default_rng(0), 64, "test")
starts = {spread: task.loss(new_model(spread).logits(some), following)[0]
          for spread in (0.02, 0.5)}
reveal(guess, starts[0.02], "nats")
print(f"log 256 = {math.log(256):.3f}; with weights of 0.5, 25 times as large: {starts[0.5]:.1f}")

# %% [markdown]
# With small weights all scores are close to 0, so each byte gets about $1/256$, and
# $-\log \frac{1}{256} = \log 256$. Look at this first in any training. A start far *above* it
# means that the model is sure of something before it has seen anything, as the one with large
# weights is. A start *clearly below* it means that the answer leaks in. (We train with 0.08: a
# narrow model learns slowly from smaller weights.)
#
# ## What counting gives
#
# A loss of 2 nats says little by itself. So we compare it with two models that only count. A
# **unigram** knows how often each byte occurs, a **bigram** which byte follows which. With $n_{ab}$
# the number of times that byte $b$ follows $a$ in the training text,
#
# $$ p(b \mid a) = \frac{n_{ab} + \alpha}{\sum_c (n_{ac} + \alpha)}, \qquad
#    \text{bits per byte} = \frac{L}{\log 2} $$
#
# In **bits per byte** a loss says how many yes-or-no questions a byte is worth; a model that knows
# nothing has 8. How many has the unigram on the held-out text?

# %%
guess = ...                                               # bits per byte


# %%
def bigram(alpha):
    """(256, 256): row a has the probabilities of what follows a"""
    n = np.full((256, 256), alpha)
    np.add.at(n, (training[:-1], training[1:]), 1)        # equal pairs add up: lesson 10
    return n / np.maximum(n.sum(axis=1, keepdims=True), 1e-300)


def bits_of(p):
    """Bits per byte where the bytes that came had the probabilities p"""
    with np.errstate(divide="ignore"):
        return -np.log2(p).mean()


n = np.bincount(training, minlength=256) + 0.1
bits = {"knows nothing": 8.0, "unigram": bits_of((n / n.sum())[held_out[1:]]),
        "bigram": bits_of(bigram(0.1)[held_out[:-1], held_out[1:]])}
reveal(guess, bits["unigram"], "bits per byte")
print(f"bigram: {bits['bigram']:.2f} bits per byte; without alpha: "
      f"{bits_of(bigram(0.0)[held_out[:-1], held_out[1:]])}")

# %% [markdown]
# $\alpha$, here 0.1, is needed: the held-out text has pairs that the training text never had. A
# model must never give a byte a probability of exactly 0.
#
# "Bits per byte" sounds like a compressor, and it is one. **Arithmetic coding** narrows an interval
# at each byte to a part as wide as the byte's probability. To name a number in the last interval
# takes $-\sum_n \log_2 p_n$ bits, and at most two more. So a loss can be held against a real
# compressor, on equal terms: our models know the training text, so the compressor should know it,
# too. We compress both texts together and count what the held-out part adds. (`zlib` looks back
# 32 KB at most; `bz2` and `lzma` have all of the text.)

# %%
held, learned = (np.uint8(text).tobytes() for text in (held_out, training))
compressors = {"zlib": lambda text: zlib.compress(text, 9), "bz2": bz2.compress,
               "lzma": lzma.compress}
packed = {name: 8 * (len(compress(learned + held)) - len(compress(learned))) / len(held)
          for name, compress in compressors.items()}
print("bits per byte:", ", ".join(f"{name} {value:.2f}" for name, value in packed.items()))

# %% [markdown]
# ## From nothing
#
# Now the training: draw 16 passages, forward, loss, backward, one step of Adam, 500 times. That is
# all there is to **pretraining**. ([Lesson 12](12_optimisers.ipynb) explains Adam; `minifpt
# pretrain language --text FOLDER` does the same with your own texts.) How many bits per byte will
# the model have on the held-out text?

# %%
guess = ...                                               # bits per byte

# %%
STEPS, LR = 500, 1e-2


def pretrain(model, steps=STEPS, target=lambda x, y: y):
    """-> bits per byte at each step, and what the model writes at some"""
    rng, curve, texts = np.random.default_rng(0), [], {}
    adam = minifpt.optim.Adam(model.parameters(), lr=LR, weight_decay=0.1)
    for step in tqdm(range(steps), desc="pretraining", leave=False):
        if step in (0, 20, 60, 150):
            texts[step] = write(model, 40)
        x, y = task.batch(rng, 16)                        # (B, T) both, y one byte further on
        logits, cache = model.forward(x)                  # (B, T, V)
        loss, dlogits = task.loss(logits, target(x, y))
        model.zero_grad()
        model.backward(dlogits, cache)
        minifpt.optim.clip_grad_norm(model.parameters(), 1.0)
        adam.lr = LR * minifpt.optim.cosine(step, steps, warmup=30)
        adam.step()
        curve.append(loss / math.log(2))
    return np.array(curve), texts


def write(model, n, prompt="I was ", temperature=0.8):
    """The prompt and n bytes more, as text"""
    ids = np.array(Bytes().encode(prompt))
    return Bytes().decode(model.generate(ids, n, temperature=temperature, seed=0))


model = new_model()
curve, texts = pretrain(model)
shipped = minifpt.LanguageModel.from_pretrained("minigpt-language")
bits["ours"] = model.perplexity(held_out)["bits_per_token"]
bits["minigpt-language"] = shipped.perplexity(held_out)["bits_per_token"]
reveal(guess, bits["ours"], "bits per byte")

curves({"": curve}, "Bits per byte while the model learns (dotted: the bigram)",
       ylabel="bits per byte", level=bits["bigram"], inks=[color.trained])
bars(bits | packed, "Bits per byte of the held-out text", "bits per byte", digits=2,
     ink=[color.grey] * 3 + [color.trained, color.language] + [color.ink] * 3)
for step, text in (texts | {STEPS: write(model, 150)}).items():
    print(f"{step:4} steps: {text!r}")

# %% [markdown]
# The curve is the loss on the passages that it learns from. It falls to the unigram's level soon,
# and takes longer to the bigram's. There it would have to stop without attention: each token would
# know only itself and its position.
#
# On the held-out text our model is past the bigram, but `bz2`, which only sorts and counts, is
# still ahead. `minigpt-language` learned the same way, from more novels and in more steps. It has
# read the rest of this book, so its bar is not on equal terms.
#
# ## Too good
#
# Here is a small slip: we forget to shift. The target at each position is the byte that stands
# there, `y = x`. Nothing complains. How many bits per byte are left after 60 steps: more than the
# unigram's, fewer than 1, or between?

# %%
guess = ...                                               # "more", "between" or "fewer"

# %%
copying = new_model()
copy_curve, _ = pretrain(copying, steps=60, target=lambda x, y: x)
left = copy_curve[-5:].mean()
reveal(guess, "fewer" if left < 1 else "between" if left < bits["unigram"] else "more")
print(f"bits per byte at the start: {copy_curve[0]:.1f}, at the end: {left:.4f}")
print("it writes:", repr(write(copying, 40)))

# %% [markdown]
# Already the start is suspicious. It is *clearly below* 8 bits, because the table that reads the
# byte also makes the scores (lesson 10), and a row is most like itself. After 60 steps no
# compressor comes near. And it writes nonsense: asked for the next byte, it repeats the last one.
#
# ## Exercises
#
# **1.** GPT-2's tokens are pieces of words, of different lengths. Its loss per *token* cannot be
# compared with ours. Its bits per *byte* can. Compute them.

# %%
def bits_per_byte(p, n_bytes):
    """p (N,): what the model gave to each token that came; together they have n_bytes bytes"""
    return ...


check("bits_per_byte", bits_per_byte)


# %% [markdown]
# **2.** A bigram from counting. How many bits per token does it have on another text? Tokens are 0
# to V - 1, and the first token of `test` is not asked for.

# %%
def bigram_bits(train, test, V, alpha):
    """train (N,), test (M,) token ids, alpha > 0 as above -> bits per token, a number"""
    return ...


check("bigram_bits", bigram_bits)

# %% [markdown]
# ## Going further
#
# **How it writes.** A **temperature** $\tau$ divides the scores before the softmax, **top-k** keeps
# the $k$ largest, and **top-p** keeps the fewest bytes that together have a probability of $p$. At
# temperature 0 the likeliest byte is taken, always.

# %%
for temperature in (0, 0.8, 1.6):
    print(f"{temperature:3}: {write(shipped, 120, temperature=temperature)!r}")

# %% [markdown]
# Too cold goes in circles, too hot makes up words. Because of the causal mask no later byte changes
# the keys and values of an earlier one, so `generate` keeps them and sends only the new byte
# through. (`minifpt generate "It was " --temperature 0.5 --stop .` ends after a sentence; in code
# it is `stop=`, a token, some tokens in a row or a function.)
#
# **3.** *Open.* Which of several texts goes in circles? A text may begin well and end in a loop;
# the loop may be long; a text that uses few letters need not go in circles, nor does a long one.
# Find a measure. From which temperature on does a model leave its circles?

# %%
def in_circles(texts):
    """texts: a list of str -> the index of the one that repeats itself most"""
    return ...


check("in_circles", in_circles)

# %%
RUN = False                                               # True: writes, for half a minute
if RUN:
    temperatures = 0, 0.2, 0.4, 0.6, 0.8
    for name, writer in (("ours", model), ("minigpt-language", shipped)):
        texts = [write(writer, 240, temperature=temperature) for temperature in temperatures]
        print(f"{name}: most in circles at {temperatures[in_circles(texts)]}")

# %% [markdown]
# **Next**: Adam, clipping and the schedule were taken as given here.
# [Lesson 12](12_optimisers.ipynb) makes Adam by hand.
