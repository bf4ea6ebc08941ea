# %% [markdown]
# # 11. Pretraining
#
# **Ask a model for the next letter of a text, half a million times, and tell it nothing else. How
# do we say how much it has learned? And how does it write?**
#
# After this lesson you can
#
# - train a language model from nothing, and say what its loss must be at the start;
# - turn a loss into bits per byte, perplexity and a file size, and compare it with simple counting
#   and with compressors, on equal terms;
# - say what temperature, top-k and top-p do to the probabilities;
# - say why keys and values can be kept while a text is written, and when they cannot.
#
# In the live page: [station 2](../minifpt/viewer/tour.md) of its tour, or
# `minifpt.viewer.tour(2)` in a cell here.
#
# You need lessons [2](02_softmax_and_cross_entropy.ipynb), [4](04_self_attention.ipynb) and
# [6](06_gpt2_whole.ipynb). It takes about an hour.

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
from minifpt.gpt2 import sample

# %% [markdown]
# ## Before the first step
#
# The text is the one of lesson 10, the ends of five novels. Its tokens are bytes, so the vocabulary
# has $V = 256$ of them, and nothing needs to be cut into words. The last 5 % of the text are held
# out, all of them from the fifth novel. An example is a passage of $T = 64$ bytes; its targets are
# the same passage one byte further on, so that each of the 64 positions is a question. The loss is
# the cross-entropy of lesson 2,
#
# $$ L = -\frac1N \sum_n \log p_n $$
#
# where $p_n$ is the probability that the model gave to the byte that came. We make a model of two
# blocks with random weights. What is its loss before it has learned anything?

# %%
guess = ...                                               # in nats

# %%
task = minifpt.tasks.get("text", tokens=64)
training, held_out = (task.bytes[split].astype(int) for split in ("train", "test"))
print(f"{len(training):,} bytes to learn from, {len(held_out):,} held out")
show(minifpt.tasks.Text.passages)


def new_model(spread, seed=0):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=64, vocab_size=256,
                                dropout=0.0, initializer_range=spread)
    return minifpt.LanguageModel(config, seed=seed)


some, following = task.batch(np.random.default_rng(0), 64, "test")
starts = {spread: task.loss(new_model(spread).logits(some), following)[0]
          for spread in (0.02, 0.08, 0.5)}
reveal(guess, starts[0.02], "nats")
print(f"log 256 = {math.log(256):.3f}")
for spread, loss in starts.items():
    print(f"weights drawn with a standard deviation of {spread}: {loss:.3f}")

# %% [markdown]
# With small weights all scores are close to 0, so each byte gets about $1/256$, and
# $-\log \frac{1}{256} = \log 256$. This is the first thing to look at in any training. A start far
# *above* it means that the model is sure of something before it has seen anything, as the one with
# large weights is. A start *clearly below* it means that the answer leaks in. (0.02 is what GPT-2
# starts from, at 768 channels. A narrow model learns slowly from weights so small, so we train the
# one with 0.08; [lesson 14](14_which_part_of_pretraining.ipynb) says more.)
#
# ## What counting gives
#
# A loss of 2 nats says little by itself. So we compare it with two models that only count. A
# **unigram** knows how often each byte occurs, a **bigram** which byte follows which:
#
# $$ p(b) = \frac{n_b + \alpha}{\sum_c (n_c + \alpha)}, \qquad
#    p(b \mid a) = \frac{n_{ab} + \alpha}{\sum_c (n_{ac} + \alpha)} $$
#
# $n_b$ counts byte $b$ in the training text, $n_{ab}$ counts how often $b$ follows $a$, so $n$ is
# `(256,)` or `(256, 256)`. $\alpha$ is a small number, here 0.1. What is it for? A line under the
# answer has the bigram without it.
#
# A loss in nats can be written in other units. In **bits per byte** it is $L / \log 2$: how many
# yes-or-no questions a byte is worth. **Perplexity** is $e^L$: among how many equally likely bytes
# one would have to guess. How many bits per byte does the unigram have on the held-out text? (A
# model that knows nothing has 8.)

# %%
guess = ...                                               # bits per byte


# %%
def bigram(alpha):
    """(256, 256): row a has the probabilities of what follows a"""
    n = np.full((256, 256), alpha)
    np.add.at(n, (training[:-1], training[1:]), 1)        # equal pairs add up; see lesson 10
    return n / np.maximum(n.sum(axis=1, keepdims=True), 1e-300)


def nats_of(p):
    """The loss where the bytes that came had the probabilities p"""
    with np.errstate(divide="ignore"):
        return -np.log(p).mean()


n = np.bincount(training, minlength=256) + 0.1
losses = {"knows nothing": math.log(256), "unigram": nats_of((n / n.sum())[held_out[1:]]),
          "bigram": nats_of(bigram(0.1)[held_out[:-1], held_out[1:]])}
reveal(guess, losses["unigram"] / math.log(2), "bits per byte")
print(f"bigram without alpha: {nats_of(bigram(0.0)[held_out[:-1], held_out[1:]])} nats")
print("\n                      nats   bits per byte   perplexity")
for name, loss in losses.items():
    print(f"{name:20} {loss:6.3f}   {loss / math.log(2):8.3f}   {math.exp(loss):14.1f}")

# %% [markdown]
# Without $\alpha$ the loss is infinite: the held-out text has pairs that the training text never
# had. So a model must never give any byte a probability of exactly 0.
#
# ## Bits are bits
#
# "Bits per byte" sounds like a compressor, and it is one. **Arithmetic coding** writes a text as
# one number: each byte narrows an interval to a part whose width is the byte's probability. In the
# end the interval is as wide as the product of all $p_n$, and to name a number in it takes
# $-\sum_n \log_2 p_n$ bits, and at most two more.
#
# So a loss can be held against a real compressor. On equal terms: our models know the training
# text, so the compressor should know it, too. We compress the training text alone, then both texts
# together, and count what the held-out part adds. (`zlib` looks back 32 KB at most, so it has
# forgotten most of the training text by then; `bz2` and `lzma` have all of it.)

# %%
held, learned = (np.uint8(text).tobytes() for text in (held_out, training))
compressors = {"zlib": lambda text: zlib.compress(text, 9), "bz2": bz2.compress,
               "lzma": lzma.compress}
packed = {name: 8 * (len(compress(learned + held)) - len(compress(learned))) / len(held)
          for name, compress in compressors.items()}
print("bits per byte of the held-out text after the training text:",
      ", ".join(f"{name} {value:.2f}" for name, value in packed.items()))

# %% [markdown]
# ## From nothing
#
# Now the training: draw 16 passages, forward, loss, backward, one step of Adam, 500 times. That is
# all there is to **pretraining**. ([Lesson 12](12_optimisers.ipynb) explains Adam and the schedule
# of the learning rate. `minifpt pretrain language --text FOLDER` does the same with more text.) 500
# steps of 16 passages of 64 bytes are three times the training text. How many bits per byte will
# the model have on the held-out text?

# %%
guess = ...                                               # bits per byte

# %%
STEPS, LR = 500, 1e-2


def pretrain(model, steps=STEPS, target=lambda x, y: y, watch=()):
    """-> the loss of each step, and what the model writes at the steps in ``watch``"""
    rng, found, written = np.random.default_rng(0), [], {}
    adam = minifpt.optim.Adam(model.parameters(), lr=LR, weight_decay=0.1)
    for step in tqdm(range(steps), desc="pretraining", leave=False):
        if step in watch:
            written[step] = write(model, 48)
        x, y = task.batch(rng, 16)                        # (B, T) both, y one byte further on
        logits, cache = model.forward(x)                  # (B, T, V)
        loss, dlogits = task.loss(logits, target(x, y))
        model.zero_grad()
        model.backward(dlogits, cache)
        minifpt.optim.clip_grad_norm(model.parameters(), 1.0)
        adam.lr = LR * minifpt.optim.cosine(step, steps, warmup=30)
        adam.step()
        found.append(loss)
    return np.array(found), written


def write(model, n, prompt="I was ", **options):
    """The prompt and n bytes more, as text"""
    options = {"temperature": 0.8, "seed": 0} | options
    return Bytes().decode(model.generate(np.array(Bytes().encode(prompt)), n, **options))


model = new_model(0.08)
curve, written = pretrain(model, watch=(0, 20, 60, 150, 300))
shipped = minifpt.LanguageModel.from_pretrained("minigpt-language")
losses["ours"] = model.perplexity(held_out)["nats_per_token"]
losses["minigpt-language"] = shipped.perplexity(held_out)["nats_per_token"]
in_bits = {name: loss / math.log(2) for name, loss in losses.items()}
reveal(guess, in_bits["ours"], "bits per byte")

curves({"": curve / math.log(2)}, "Bits per byte while the model learns", ylabel="bits per byte",
       level=in_bits["bigram"], inks=[color.trained])
bars(in_bits | {f"{name} after the training text": value for name, value in packed.items()},
     "Bits per byte of the held-out text", "bits per byte", digits=2, ink=[
         color.grey] * 3 + [color.trained, color.language] + [color.ochre] * 3)
for step, text in written.items():
    print(f"{step:4} steps: {text!r}")
print(f"{STEPS:4} steps: {write(model, 200)!r}")
print(f"\nminigpt-language: {write(shipped, 200)!r}")

# %% [markdown]
# The curve is the loss on the passages that it learns from. It falls to the unigram's level at
# once, and takes much longer to the bigram's, which is dotted. There it would have to stop without
# attention, because each token would know only itself and its position.
#
# On the held-out text, the bars, our model is past the bigram and `zlib` and level with `lzma`. It
# is not past `bz2`, which sorts all places of the text by the bytes that follow them.
# `minigpt-language` learned the same way, with more blocks and channels, longer passages and nine
# times the steps, from 14 novels. It never saw these pages, but it has read the rest of this book,
# so its bar is not on equal terms with the others.
#
# ## Too good
#
# Here is a small slip: we forget to shift. The target at each position is the byte that stands
# there, `y = x`. Nothing complains. How many bits per byte are left after 60 steps of training:
# more than the unigram's 4.45, between 1 and 4.45, or fewer than 1?

# %%
guess = ...                                               # "more", "between" or "fewer"

# %%
copying = new_model(0.08)
copy_curve, _ = pretrain(copying, steps=60, target=lambda x, y: x)
bits_left = copy_curve[-5:].mean() / math.log(2)
reveal(guess, "fewer" if bits_left < 1 else "between" if bits_left < in_bits["unigram"] else "more")
print(f"bits per byte at the start: {copy_curve[0] / math.log(2):.2f}, at the end: {bits_left:.4f}")
print("it writes:", repr(write(copying, 40)))

# %% [markdown]
# Already the start is suspicious. It is *clearly below* 8 bits, because the table that reads the
# byte also makes the scores (lesson 10), and a row is most like itself. After 60 steps it has a
# loss that no compressor on this page comes near. And it writes nonsense: asked for the next byte,
# it repeats the last one.
#
# ## Which byte to write
#
# A trained model gives probabilities, and we draw from them. Three settings change them first. A
# **temperature** $\tau$ divides the scores $z$ `(V,)`; **top-k** keeps the $k$ largest, whose
# places we call $K$:
#
# $$ p_i = \frac{e^{z_i / \tau}}{\sum_{j \in K} e^{z_j / \tau}} \ \text{ for } i \in K, \qquad
#    p_i = 0 \ \text{ elsewhere} $$
#
# Without top-k, $K$ is all $V$ places. But how many bytes are worth keeping differs from place to
# place: inside a word there may be one, after a space there are many. **Top-p** (Holtzman et al.,
# *The Curious Case of Neural Text Degeneration*, arXiv 1904.09751) keeps the fewest bytes that
# together have a probability of at least $p$: few where the model is sure, many where it is not.

# %%
show(sample)

# %% [markdown]
# From the scores after `"I was "` we draw a byte 20,000 times with each of four settings. `sample`
# takes top-k first, then the temperature, then top-p.

# %%
scores = shipped.logits(np.array(Bytes().encode("I was "))[None])[0, -1:]      # (1, V)
for temperature, top_k, top_p in ((1.0, None, 1.0), (0.5, None, 1.0), (1.0, 3, 1.0),
                                  (1.0, None, 0.5)):
    drawn = sample(np.repeat(scores, 20000, axis=0), temperature, top_k, np.random.default_rng(1),
                   top_p)
    times = np.bincount(drawn, minlength=256)
    print(f"temperature {temperature}, top-k {top_k}, top-p {top_p}: {(times > 0).sum()} "
          "different bytes,", ", ".join(f"{chr(i)!r} {times[i] / 20000:.0%}"
                                        for i in np.argsort(-times)[:4] if times[i]))


# %% [markdown]
# A low temperature makes the likely more likely. What does it do to a page? We let the shipped
# model write at several temperatures and ask two things of the text. First, what share of its words
# also stands in our text, the five ends of novels? (This is a rough measure: some real words do
# not.) Second, how many *different* strings of twelve bytes does it have, as a share of all its
# strings of twelve bytes? (A text that never repeats one has 1.) What is this second share at
# temperature 0, which always takes the likeliest byte?

# %%
guess = ...                                               # a number from 0 to 1

# %%
known = {*learned.decode().split(), *held.decode().split()}
prompts = np.array([Bytes().encode(prompt) for prompt in (
    "I was not ", "She said: ", "The house ", "When they ")])


def judge(text):
    """-> share of words that our text has, number of different 12-byte strings as share of all"""
    words = text.split()[1:-1]                            # the first and last may be cut
    strings = [text[i:i + 12] for i in range(len(text) - 11)]
    return np.mean([word in known for word in words]), len(set(strings)) / len(strings)


temperatures = (0, 0.3, 0.6, 0.8, 1.0, 1.3, 1.6)
judged = []
for temperature in tqdm(temperatures, desc="writing", leave=False):
    texts = shipped.generate(prompts, 240, temperature=temperature, seed=0)
    judged.append(np.mean([judge(Bytes().decode(text)) for text in texts], axis=0))
judged = np.array(judged)
reveal(guess, float(judged[0, 1]))

curves({"words that our text has": judged[:, 0], "different strings": judged[:, 1]},
       "Too cold goes in circles, too hot makes up words", "temperature", "share", x=temperatures,
       styles=("o-", "s--"), inks=(color.language, color.ink), ylim=(0, 1.05))
print("at 0:  ", repr(write(shipped, 130, temperature=0)))
print("at 1.6:", repr(write(shipped, 130, temperature=1.6)))

# %% [markdown]
# ## Keys and values kept
#
# To write a byte, the model reads all bytes so far. Then it reads them all again, with the new one.
# Most of this is the same work as before: because of the causal mask nothing that comes later
# changes what an earlier token computed, its keys and values included. So we keep the keys and
# values of each block, and send only the new token through. One byte is there and 255 are written.
# How many times as many tokens go through the blocks if nothing is kept?

# %%
guess = ...

# %%
N = 256
reveal(guess, sum(range(1, N)) / (N - 1))


def slow_generate(model, ids, n):
    """The likeliest byte, n times; everything is computed again each time"""
    for _ in range(n):
        ids = np.append(ids, model.logits(ids[None])[0, -1].argmax())
    return ids


start = np.array(Bytes().encode("The "))
kept = shipped.generate(start, N - 4, temperature=0)
print("the same text:", bool((kept == slow_generate(shipped, start, N - 4)).all()))

# %% [markdown]
# All of this hangs on one thing, that keys and values of earlier tokens stay what they are. Without
# the mask they would not: each token looks at the new one. A model that sees both directions has
# nothing to keep ([lesson 16](16_both_directions.ipynb)). Nor has ours once all its positions are
# used up: then the window moves, each byte gets another position, and `generate` reads the newer
# half again.
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
# **2.** Write the probabilities from which a token is drawn, with temperature and top-k. Scores may
# be large.

# %%
def drawn_from(z, temperature, top_k):
    """scores z (V,), temperature > 0, top_k from 1 to V -> probabilities (V,)"""
    return ...


check("drawn_from", drawn_from)


# %% [markdown]
# **3.** A bigram from counting. How many bits per token does it have on another text? Tokens are
# 0 to V - 1, and the first token of `test` is not asked for.

# %%
def bigram_bits(train, test, V, alpha):
    """train (N,), test (M,) token ids, alpha > 0 as above -> bits per token, a number"""
    return ...


check("bigram_bits", bigram_bits)


# %% [markdown]
# **4.** Count the multiplications for writing `n` tokens after a prompt of `P`, in all `L` blocks.
# A token that goes through a block of width `C` costs $12\,C^2$ in the linear layers, and $2\,C$
# for each token that it sees, itself included. To write the first token, the whole prompt must go
# through; the last token that is written goes through nothing.

# %%
def multiplications(P, n, C, L, kept):
    """kept: True if keys and values are kept, False if all is computed again for each token"""
    return ...


check("multiplications", multiplications)


# %% [markdown]
# **5.** *Open.* Which of several texts goes in circles? Find a measure and write it. A text may
# begin well and end in a loop; the loop may be long; a text that uses few letters need not go in
# circles, nor does a long one. Then measure: set `RUN` to `True`. From which temperature on does a
# model leave its circles, and is that the same for the model that you trained here?

# %%
def in_circles(texts):
    """texts: a list of str -> the index of the one that repeats itself most"""
    return ...


check("in_circles", in_circles)

# %%
RUN = False                                               # True: writes, for half a minute
if RUN:
    for name, m in (("ours", model), ("minigpt-language", shipped)):
        texts = [write(m, 240, temperature=temperature) for temperature in temperatures]
        print(f"{name}: most in circles at {temperatures[in_circles(texts)]}; different strings:",
              ", ".join(f"{judge(text)[1]:.2f}" for text in texts))

# %% [markdown]
# ## Next
#
# Adam, clipping, warm-up and the cosine were taken as given here. [Lesson 12](12_optimisers.ipynb)
# makes them by hand.
