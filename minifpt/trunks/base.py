"""The protocol of trunks, and its check."""

import inspect
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ..layers import Parameter


class Trunk(Protocol):
    """The part of a model between its input layer and its output layer.

    Any object with these members is a trunk, for example :class:`minifpt.GPT2`.  A subclass of
    :class:`minifpt.layers.Layer` has ``named_parameters`` for its ``Parameter`` attributes.

    ``config.n_embd`` is the number of channels C, ``dtype`` the dtype of all arrays.  The config
    may have the settings of ``minifpt.layers.OPTIONAL``, too: FPT also applies ``dropout`` after
    the input layer.  Where a trunk has positions ``wpe`` and ``add_positions(n, seed)``, FPT adds
    those that a long task needs.
    """

    config: Any
    dtype: Any

    def forward(self, x: np.ndarray, train: bool = False, rng: np.random.Generator | None = None
                ) -> tuple[np.ndarray, Any]:
        """x (B, T, C) -> (hidden (B, T, C), cache).

        With ``train=True`` dropout is on, drawn from ``rng``.  FPT passes two more keywords if
        the signature has them: ``need_dx=False`` if nothing below the trunk learns, and
        ``last=n`` if only the last n tokens are read; hidden is then (B, n, C).  If neither the
        trunk nor anything below it learns, ``backward`` is not called.
        """

    def backward(self, dy: np.ndarray, cache: Any) -> np.ndarray:
        """dy with the shape of hidden -> dx (B, T, C); calls ``Parameter.add_grad``."""

    def named_parameters(self) -> Iterable[tuple[str, Parameter]]:
        """Return the (name, ``minifpt.layers.Parameter``) of each parameter."""


def check_trunk(trunk):
    """Raise ``ValueError`` for an object that breaks the protocol :class:`Trunk`."""
    def refuse(message):
        raise ValueError(f"FPT: {trunk if isinstance(trunk, type) else type(trunk)} is not a "
                         f"trunk: {message} (see minifpt.fpt.Trunk)")
    lacks = [name for name in ("config", "dtype", "forward", "backward", "named_parameters")
             if not hasattr(trunk, name)]
    if isinstance(trunk, type) or lacks or not hasattr(trunk.config, "n_embd"):
        refuse(f"it has no {', '.join(lacks) or 'config.n_embd'}")
    if hasattr(trunk, "wte"):
        refuse("it is a language model, expected its trunk alone, model.trunk")
    C, dtype = trunk.config.n_embd, trunk.dtype
    if not isinstance(C, (int, np.integer)) or C < 1:
        refuse(f"config.n_embd is {C!r}, expected a whole number, at least 1")
    if not (isinstance(dtype, (type, np.dtype)) and np.issubdtype(dtype, np.floating)):
        refuse(f"dtype is {dtype!r}, expected np.float32 or np.float64")
    for name, arguments in (("forward", ("x", False, None)), ("backward", ("dy", "cache"))):
        try:
            inspect.signature(getattr(trunk, name)).bind_partial(*arguments)
        except TypeError as e:
            refuse(f"{name}: {e}")
    if not all(isinstance(pair, tuple) and isinstance(pair[-1], Parameter)
               for pair in trunk.named_parameters()):
        refuse("named_parameters must give pairs (name, Parameter)")
