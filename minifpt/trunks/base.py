"""What FPT asks of a trunk."""

import inspect
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ..layers import Parameter


class Trunk(Protocol):
    """What a model asks of the trunk between its input layer and its output layer.

    Any object will do that has these; :class:`minifpt.layers.Layer` supplies the last one for
    the ``Parameter`` attributes of its own.  :class:`minifpt.GPT2` is one.

    ``config.n_embd`` is the number of channels C, ``dtype`` that of all arrays.
    ``config.dropout``, where there is one, is applied after the input layer as well.
    """

    config: Any
    dtype: Any

    def forward(self, x: np.ndarray, train: bool = False, rng: np.random.Generator | None = None
                ) -> tuple[np.ndarray, Any]:
        """x (B, T, C) -> (hidden (B, T, C), cache).

        With ``train=True`` dropout is on, drawn from ``rng``.  FPT passes two more keywords if
        the signature names them: ``need_dx=False`` when nothing below the trunk learns, and
        ``last=n`` when only the last n tokens are read, to return (B, n, C).  When neither the
        trunk nor anything below it learns, ``backward`` is not called.
        """

    def backward(self, dy: np.ndarray, cache: Any) -> np.ndarray:
        """dy as hidden -> dx (B, T, C); adds into ``.grad`` by ``Parameter.add_grad``."""

    def named_parameters(self) -> Iterable[tuple[str, Parameter]]:
        """(name, ``minifpt.layers.Parameter``) of each parameter."""


def check_trunk(trunk):
    """Raise a one-line ``ValueError`` for an object that breaks the protocol :class:`Trunk`."""
    for message in misfits(trunk):                        # the first is enough
        raise ValueError(f"FPT: {trunk if isinstance(trunk, type) else type(trunk)} is no trunk: "
                         f"{message} (see minifpt.fpt.Trunk)")


def misfits(trunk):
    """Yield a message for each way in which ``trunk`` breaks the protocol."""
    lacks = [name for name in ("config", "dtype", "forward", "backward", "named_parameters")
             if not hasattr(trunk, name)]
    if isinstance(trunk, type) or lacks or not hasattr(trunk.config, "n_embd"):
        yield f"it has no {', '.join(lacks) or 'config.n_embd'}"
    if hasattr(trunk, "wte"):
        yield "it is a language model, expected its trunk alone, model.trunk"
    C, dtype = trunk.config.n_embd, trunk.dtype
    if not isinstance(C, (int, np.integer)) or C < 1:
        yield f"config.n_embd is {C!r}, expected a whole number, at least 1"
    if not (isinstance(dtype, (type, np.dtype)) and np.issubdtype(dtype, np.floating)):
        yield f"dtype is {dtype!r}, expected np.float32 or np.float64"
    for name, arguments in (("forward", ("x", False, None)), ("backward", ("dy", "cache"))):
        try:
            inspect.signature(getattr(trunk, name)).bind_partial(*arguments)
        except TypeError as e:
            yield f"{name}: {e}"
    for pair in trunk.named_parameters():
        if not (isinstance(pair, tuple) and isinstance(pair[-1], Parameter)):
            yield "named_parameters gives something else than pairs (name, Parameter)"
