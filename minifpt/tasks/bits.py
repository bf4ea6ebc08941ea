"""The paper's tasks on bits: XOR and memory."""

import numpy as np

from ..checks import whole
from .base import COSINE, Classification


class BitXOR(Classification):
    """The XOR of two strings of ``n`` bits, with a bit in each token.

    x (B, 2n, 1), the first string and then the second, 0 or 1; y (B, n), read at the
    second string's tokens.
    """

    name = "bit-xor"
    label = "bit XOR"
    chance, target_accuracy = 0.5, 0.995
    splits = "train", "validation", "test"                # the same: every draw is fresh
    input_dim, output_dim, classes = 1, 2, 2

    def __init__(self, n=5):
        self.n = self.output_tokens = whole(self.name, "n", n)
        self.tokens = 2 * self.n
        self.options = {"n": self.n}

    def draw(self, rng, size, split):
        bits = rng.integers(0, 2, (size, 2, self.n))
        x = bits.reshape(size, self.tokens, 1).astype(np.float32)
        return x, bits[:, 0] ^ bits[:, 1]

    def token_names(self):
        return [f"{string}{i + 1}" for string in "ab" for i in range(self.n)]

    def tokens_as_text(self, x):
        return [str(int(bit)) for bit in x[:, 0]]

    def needed(self, x):
        """Return the mask: each output token needs the two bits of its XOR, one of them its own."""
        mask, i = np.zeros((len(x), self.tokens, self.tokens), bool), np.arange(self.n)
        mask[:, self.n + i, i] = mask[:, self.n + i, self.n + i] = True
        return mask


class BitMemory(Classification):
    """Remember several strings of bits: one of them comes again, half masked, and the answer is
    the whole string.

    Bits are -1 or 1, masked bits 0, and ``patch`` bits make a token.  With P = bits / patch:
    x (B, (strings + 1) P, patch), y (B, P, patch), the whole string in {0, 1}, read at the masked
    string's tokens.  The paper has 5 strings of 1000 bits in patches of 50.

    Half of the bits are visible, so chance accuracy is 75 %.
    """

    name = "bit-memory"
    label = "bit memory"
    chance = 0.75                                         # half of the bits are visible
    splits = "train", "validation", "test"
    classes = 2
    defaults = COSINE | {"steps": 4000}

    def __init__(self, strings=5, bits=100, patch=20):
        self.strings = whole(self.name, "strings", strings)
        self.bits = whole(self.name, "bits", bits)
        self.patch = self.input_dim = whole(self.name, "patch", patch)
        if bits % patch:
            raise ValueError(f"{self.name}: bits must be divisible by patch, "
                             f"got bits={bits} and patch={patch}")
        self.output_dim = 2 * self.patch                  # -1 or 1 for each bit of a patch
        self.output_tokens = self.bits // self.patch
        self.tokens = (self.strings + 1) * self.output_tokens
        self.options = {"strings": self.strings, "bits": self.bits, "patch": self.patch}

    def sample(self, rng, size):
        """Return x, y and ``which`` (B,) int64, the number of the repeated string."""
        strings = rng.integers(0, 2, (size, self.strings, self.bits))
        which = rng.integers(0, self.strings, size)
        visible = rng.integers(0, 2, (size, self.bits))
        answer = strings[np.arange(size), which]                  # (B, bits)
        masked = (2 * answer - 1) * visible
        x = np.concatenate([2 * strings - 1, masked[:, None]], axis=1).astype(np.float32)
        return (x.reshape(size, self.tokens, self.patch),
                answer.reshape(size, self.output_tokens, self.patch), which)

    def draw(self, rng, size, split):
        return self.sample(rng, size)[:2]

    def token_names(self):
        return [f"{string}.{i + 1}" for string in [*range(1, self.strings + 1), "?"]
                for i in range(self.output_tokens)]

    def tokens_as_text(self, x):
        return ["".join("0·1"[int(bit) + 1] for bit in patch) for patch in x]

    def needed(self, x):
        """Return the mask: each output token needs its patch in every string that agrees with the
        visible bits."""
        bits = x.reshape(len(x), self.strings + 1, self.bits)
        agree = (bits[:, :-1] * bits[:, -1:]).sum(axis=2) == np.abs(bits[:, -1:]).sum(axis=2)
        P, i = self.output_tokens, np.arange(self.output_tokens)
        mask = np.zeros((len(x), self.tokens, self.tokens), bool)
        for string in range(self.strings):
            mask[:, self.strings * P + i, string * P + i] = agree[:, string, None]
        return mask
