"""A task and a trunk of a user's own, and the calls around them, for a type checker: it has
nothing to say but where a line ends with ``# error``."""

from types import SimpleNamespace

import numpy as np

import minifpt
from minifpt.layers import Layer, Parameter


class Parity:
    """Is the number of ones even?"""

    name, input_dim, tokens, output_dim, output_tokens = "parity", 1, 4, 2, 1

    def batch(self, rng: np.random.Generator, size: int, split: str
              ) -> tuple[np.ndarray, np.ndarray]:
        bits = rng.integers(0, 2, (size, 4, 1))
        return bits.astype(np.float32), bits.sum(axis=1) % 2

    def loss(self, logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        loss, cache = minifpt.functional.cross_entropy(logits, y)
        return float(loss), minifpt.functional.cross_entropy_backward(1.0, cache)

    def accuracy(self, logits: np.ndarray, y: np.ndarray) -> float:
        return float((logits.argmax(axis=-1) == y).mean())


class Scale(Layer):
    """One number for each channel."""

    def __init__(self, n: int = 8, seed: int = 0, dtype: type = np.float32):
        self.config, self.dtype = SimpleNamespace(n_embd=n), dtype
        self.w = Parameter(np.ones(n, dtype), "ln")

    def forward(self, x: np.ndarray, train: bool = False, rng: np.random.Generator | None = None
                ) -> tuple[np.ndarray, np.ndarray]:
        return x * self.w.data, x

    def backward(self, dy: np.ndarray, cache: np.ndarray) -> np.ndarray:
        if self.w.trainable:
            self.w.add_grad((dy * cache).sum(axis=(0, 1)))
        return dy * self.w.data


class Lacking:
    """No task: there is no loss."""

    name, input_dim, tokens, output_dim, output_tokens = "lacking", 1, 4, 2, 1

    def batch(self, rng: np.random.Generator, size: int, split: str) -> np.ndarray:
        return np.zeros((size, 4, 1))


def main() -> None:
    task = minifpt.tasks.get("bit-xor", n=2)
    model = minifpt.FPT(Scale(), task.input_dim, task.output_dim, task.output_tokens)
    model.freeze(minifpt.FreezeMask.parse("attn,mlp"))
    history = minifpt.train(model, task, 2, lr=np.float64(1e-2), progress=False)
    print(history[-1]["test_accuracy"], model.summary(task.tokens).upper())
    small = minifpt.GPT2(minifpt.GPT2Config(1, 1, 8, 8))
    minifpt.train(minifpt.FPT(small, 1, 2), Parity(), 2, progress=False)
    with minifpt.trace(model) as t:
        logits, cache = model.forward(task.batch(np.random.default_rng(0), 1)[0])
    print([*t.outputs], [*cache], logits.shape)
    minifpt.FPT(minifpt.GPT2.from_pretrained("minigpt-bits", dropout=0.0), 2, 2).predict(logits)


def wrong() -> None:
    minifpt.FPT(Parity(), 1, 2)                           # error
    minifpt.FPT("minigpt-language", 1, 2)                 # error
    minifpt.train(minifpt.FPT(Scale(), 1, 2), Lacking(), 2)    # error
    minifpt.train(minifpt.FPT(Scale(), 1, 2), Parity(), "2")   # error
    minifpt.FPT(Scale(), 1, 2).freeze(["attn"])           # error
    print(minifpt.FPT(Scale(), 1, 2).summary().shape)     # error
