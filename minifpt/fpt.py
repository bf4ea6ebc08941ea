"""The Frozen Pretrained Transformer (FPT): input layer -> trunk -> output layer.

It is the model of *Pretrained Transformers as Universal Computation Engines* (arXiv 2103.05247).
"""

import inspect
import io
import math
import os
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import adapters, checks, parallel, tasks, trunks
from .fast import ops
from .files import export
from .files.families import readable
from .freeze import GROUPS, FreezeMask, trained_parts
from .layers import Layer, Linear, learns, setting
from .machine import single_threaded_blas
from .trunks import TrunkSpec, forms
from .trunks.base import Trunk, check_trunk


class InputLayer(Linear):
    """The new input layer: ``y = x @ weight + bias`` for numbers, ``y = weight[ids] + bias`` for
    integer ids, which equals the affine map of their one-hot vectors."""

    def forward(self, x):
        """x (B, T, n_in), or ids (B, T) in 0 ... n_in-1 -> y (B, T, n_out)."""
        if not np.issubdtype(x.dtype, np.integer):
            return super().forward(x, need_dx=False)      # nobody reads dx
        cache = {}
        y, cache["embedding"] = ops().embedding(x, self.weight.data)
        y, cache["bias"] = ops().bias(y, self.bias.data)
        return y, cache

    def backward(self, dy, cache):
        """dy (B, T, n_out) -> None."""
        if not isinstance(cache, dict):
            return super().backward(dy, cache)
        dy, db = ops().bias_backward(dy, cache["bias"])
        self.bias.add_grad(db)
        if self.weight.trainable:
            self.weight.add_grad(ops().embedding_backward(dy, cache["embedding"]))
        return None


@dataclass(frozen=True)
class Recipe:
    """All that an FPT is built from: a run stores it, and :func:`minifpt.load` builds the same
    model from it."""

    input_dim: int
    output_dim: int
    output_tokens: int
    seed: int
    tokens: int = 0                                       # of the task
    trunk: str | None = None                              # its name; None if it was built in code
    freeze: str = "full"
    dropout: float | None = None                          # of a trunk with a name
    adapt: str | None = None
    start: str | None = None
    n_positions: int | None = None                        # where new ones were added


class FPT(Layer):
    """A trunk between a new input layer and a new output layer.

    trunk           a :class:`Trunk`, such as :class:`minifpt.GPT2`.
    input_dim       numbers in a token, or for integer ids the number of symbols.
    output_dim      scores at each token that is read.
    output_tokens   number of tokens, from the end, that the output layer reads.
    seed            seed of both layers' random weights.

    As in the paper's code, the input weight starts orthogonal with gain 1.41 and the input bias
    at 0; the output layer starts uniform between ``-1 / sqrt(C)`` and ``1 / sqrt(C)``.
    Everything is trainable until :meth:`freeze` is called.
    """

    def __init__(self, trunk: Trunk, input_dim: int, output_dim: int, output_tokens: int = 1,
                 seed: int = 0):
        check_trunk(trunk)
        input_dim = checks.whole("FPT", "input_dim", input_dim)
        output_dim = checks.whole("FPT", "output_dim", output_dim)
        output_tokens = checks.whole("FPT", "output_tokens", output_tokens)
        C, dtype = trunk.config.n_embd, trunk.dtype
        self.input = InputLayer(input_dim, C, dtype, "input")
        self.trunk = trunk
        self.output = Linear(C, output_dim, dtype, "output")
        self.output_tokens = output_tokens
        # A trunk of the user's own may lack these two options, which save time.
        self.trunk_options = [name for name in inspect.signature(trunk.forward).parameters
                              if name in ("need_dx", "last")]
        self.recipe = Recipe(input_dim, output_dim, output_tokens, seed)
        rng = np.random.default_rng([checks.seed("FPT", seed), 0xF47])
        self.input.weight.data[:] = orthogonal(rng, input_dim, C, gain=1.41)
        for p in self.output.parameters():
            p.data[:] = rng.uniform(-1 / math.sqrt(C), 1 / math.sqrt(C), p.data.shape)

    @classmethod
    def for_task(cls, task: Any, trunk: str | Trunk = "minigpt-language", freeze: str = "fpt",
                 seed: int = 0, dropout: float | None = None, adapt: str | None = None,
                 start: str | None = None) -> "FPT":
        """Return the FPT that ``minifpt train TASK`` trains.

        task      a :class:`minifpt.tasks.Task`, or a task's name.
        trunk     a trunk, or its name, as for ``--model``: see :class:`minifpt.trunks.TrunkSpec`.
        freeze    a mask as text; see :meth:`minifpt.FreezeMask.parse`.
        seed      seed of the new layers, and of a random trunk's weights.
        dropout   probability; ``None`` takes the task's default.  A trunk that is an object keeps
                  its own.
        adapt     an adapter, such as ``lora:rank=4``; see :mod:`minifpt.adapters`.
        start     where the input layer starts: ``aligned`` or ``opposed``, see
                  :func:`minifpt.trunks.forms.start_input`; ``None`` is the class's own start.

        A GPT-2 with fewer positions than the task has tokens gets new ones where positions are
        trained, see :meth:`minifpt.GPT2.add_positions`: the trunk itself changes.

        Raises ``ValueError`` or ``FileNotFoundError`` for unknown names.
        """
        task = tasks.get(task) if isinstance(task, str) else task
        if not all(hasattr(task, part) for part in ("input_dim", "output_dim", "output_tokens")):
            raise ValueError(f"FPT: the task is {checks.brief(task)}, expected a task or its name")
        if dropout is not None:
            checks.number("FPT", "dropout", dropout, zero=True, most=0.99999)
        is_name = isinstance(trunk, (str, os.PathLike, TrunkSpec))
        default = tasks.defaults_of(task)["dropout"] if is_name else None
        return cls.from_recipe(Recipe(
            task.input_dim, task.output_dim, task.output_tokens, seed,
            checks.whole("FPT", "tokens", getattr(task, "tokens", 0), 0),
            TrunkSpec.parse(trunk).text if is_name else None, str(FreezeMask.parse(freeze)),
            default if dropout is None else dropout, adapt, start), trunk)

    @classmethod
    def from_recipe(cls, recipe, trunk=None):
        """Return the FPT of a :class:`Recipe`; ``trunk`` is the trunk of one that names none."""
        if recipe.trunk is not None:
            trunk = trunks.get(recipe.trunk, recipe.seed, recipe.dropout)
        model = cls(trunk, recipe.input_dim, recipe.output_dim, recipe.output_tokens, recipe.seed)
        if recipe.start is not None:
            forms.start_input(model, recipe.start)
        if recipe.adapt is not None:
            adapters.adapt(model, recipe.adapt, recipe.seed)
        model.freeze(recipe.freeze)
        if (hasattr(trunk, "add_positions") and setting(trunk.config, "positions")
                and trunk.wpe.weight.trainable and recipe.tokens > trunk.config.n_positions):
            recipe = replace(recipe, n_positions=recipe.tokens)
        if recipe.n_positions is not None:                # the new ones are trained like the others
            trunk.add_positions(recipe.n_positions, recipe.seed)
        model.recipe = recipe
        return model

    def freeze(self, mask: FreezeMask | str) -> None:
        super().freeze(mask)
        self.recipe = replace(self.recipe, freeze=str(FreezeMask.parse(mask)))

    @single_threaded_blas
    def forward(self, x: np.ndarray, train: bool = False, rng: np.random.Generator | None = None
                ) -> tuple[np.ndarray, Any]:
        """x (B, T, input_dim), or ids (B, T) -> logits (B, output_tokens, output_dim).

        With ``train=True`` dropout is on, drawn from ``rng``.
        """
        x = self._checked(x)
        input_learns, cache = self.input.learns(), {}
        p = checks.active_dropout("FPT", setting(self.trunk.config, "dropout"), train, rng)
        x, cache["input"] = self.input.forward(x)         # (B, T, C)
        x, cache["dropout"] = ops().dropout(x, p, rng)      # the paper's; the trunk has its own
        hidden, cache["trunk"] = self._through_trunk(x, train, rng, input_learns)
        if hidden.shape[1] != self.output_tokens:         # the trunk computed all tokens
            hidden, cache["last"] = ops().last_tokens(hidden, self.output_tokens)
        logits, cache["output"] = self.output.forward(hidden)
        cache["shape"] = logits.shape
        # Only what backward reads stays in the cache.
        if not input_learns:
            cache["input"] = cache["dropout"] = None
            # A trunk of the user's own may be no Layer, and have no learns().
            if not any(learns(p) for _, p in self.trunk.named_parameters()):
                cache["trunk"] = None
        return logits, cache if cache["trunk"] is not None or self.output.learns() else None

    def _through_trunk(self, x, train, rng, need_dx):
        """Return the pair of the trunk's forward pass, which gets the options that it takes.
        Raises ``ValueError`` unless hidden has the shape of x, or only the last tokens."""
        options = {"need_dx": need_dx, "last": self.output_tokens}
        pair = self.trunk.forward(
            x, train, rng, **{name: options[name] for name in self.trunk_options})
        shapes = x.shape, (len(x), self.output_tokens, x.shape[2])
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        hidden = pair[0] if is_pair else pair
        if not is_pair or getattr(hidden, "shape", None) not in shapes or hidden.dtype != x.dtype:
            raise ValueError("FPT: the trunk's forward must return a pair: hidden, of shape "
                             f"{x.shape} and dtype {x.dtype}, and its cache; got "
                             f"{checks.kind_of(hidden)}")
        return pair

    def _checked(self, x):
        """Return x, numbers in the trunk's dtype.  Raises ``ValueError`` where x does not fit."""
        is_ids = checks.array("FPT", "x", x).dtype.kind in "iu"
        input_dim = len(self.input.weight.data)
        if is_ids:
            fits, expected = x.ndim == 2, "(B, T), as integers are ids"
        else:
            fits, expected = x.ndim == 3 and x.shape[2] == input_dim, f"(B, T, {input_dim})"
        if not fits:
            raise ValueError(f"FPT: x has shape {x.shape}, expected {expected}")
        if x.shape[1] < self.output_tokens:
            raise ValueError(f"FPT: x has {x.shape[1]} tokens, expected at least "
                             f"{self.output_tokens}, which the output layer reads")
        return x if is_ids else x.astype(self.trunk.dtype, copy=False)

    @single_threaded_blas
    def backward(self, dlogits: np.ndarray, cache: Any) -> None:
        """dlogits (B, output_tokens, output_dim) -> None; fills the trainable ``.grad``."""
        dlogits = checks.incoming_gradient("FPT", dlogits, cache, self.trunk.dtype)
        dy = self.output.backward(dlogits, cache["output"])
        if cache["trunk"] is None:
            return
        if "last" in cache:
            dy = ops().last_tokens_backward(dy, cache["last"])
        dx = self.trunk.backward(dy, cache["trunk"])
        if cache["input"] is not None:
            C = self.trunk.config.n_embd
            if not isinstance(dx, np.ndarray) or dx.ndim != 3 or dx.shape[2] != C:
                raise ValueError("FPT: the trunk's backward must return its input's gradient, "
                                 f"an array (B, T, {C}), got {checks.brief(dx)}")
            self.input.backward(ops().dropout_backward(dx, cache["dropout"]), cache["input"])

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the logits, without dropout and without keeping a cache."""
        with self.all_frozen():
            return parallel.forward_in_parts(self, self._checked(x))[0]

    def save(self, folder, dtype=None, **provenance):
        """Write the model to a new folder: the trunk as Transformers saves it, and the input and
        output layers in ``layers.safetensors``, with our names.

        ``GPT2.from_pretrained`` and Transformers read the trunk.  The numbers are float32, or
        float16 for that ``dtype``.  Raises ``ValueError`` for a trunk that Transformers lacks.
        """
        self.check_exports()
        if str(folder).endswith(".npz"):
            raise ValueError(f"save: got {folder}, expected the name of a new folder")
        if not hasattr(self.trunk, "from_pretrained"):
            raise ValueError(f"save: Transformers cannot read {type(self.trunk).__name__} trunks, "
                             "expected one of a family that it has: " + ", ".join(
                                 family.title for family in readable().values()))
        dtype = export.weight_dtype(np.float32 if dtype is None else dtype)
        layers = io.BytesIO()
        export.write_safetensors(layers, [(name, p.data) for name, p in self.named_parameters()
                                          if p.group in ("input", "output")],
                                 dtype, f"{folder}: layers.safetensors")
        export.save_folder(self.trunk, folder, dtype, provenance,
                           {"layers.safetensors": layers.getvalue()})

    def summary(self, tokens: int | None = None) -> str:
        """Return a table as text: for each group its parameters and how many are trained, with the
        names of these where they are a part, then the trained share; ``tokens`` as for
        :meth:`counts`."""
        rows, parts = self.counts(tokens), trained_parts(self)
        total, trained = (sum(n) for n in zip(*rows.values(), strict=True))
        lines = [f"{'group':8}{'':42}{'parameters':>13}{'trained':>13}"]
        for group, (n, t) in rows.items():
            lines.append(f"{group:8}{GROUPS[group]:42}{n:>13,}{f'{t:,}' if t else 'frozen':>13}")
            if group in parts:
                text = textwrap.fill(f"trained: {', '.join(parts[group])}", 68,
                                     break_on_hyphens=False)
                lines += textwrap.indent(text, " " * 8).splitlines()
        lines += [f"{'total':50}{total:>13,}{trained:>13,}",
                  f"{100 * trained / total:.2f} % of the parameters are trained"]
        return "\n".join(lines)


def orthogonal(rng, n_in, n_out, gain):
    """Return a random (n_in, n_out) matrix.  Its rows, or its columns if these are fewer, are
    orthogonal with norm ``gain``: the Q of a normal matrix's QR factors, with the signs of R's
    diagonal (Saxe et al. 2013, arXiv 1312.6120)."""
    n, m = max(n_in, n_out), min(n_in, n_out)
    q, r = np.linalg.qr(rng.standard_normal((n, m)))
    q *= gain * np.sign(np.diag(r))
    return q if n_in >= n_out else q.T
