"""Trunks by name: what ``--model`` takes."""

import ast
import importlib.util
import inspect
import re
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ..files import MOST_CODE, one_line, read_bytes, weights
from ..freeze import FreezeMask
from ..gpt2 import GPT2, SHAPES, GPT2Config, read_config
from ..layers import standard_normal
from ..users import message, shown, users_code
from . import bert
from .base import check_trunk
from .lstm import LSTM, LSTMConfig
from .mimetic import mimetic

USERS_OWN = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
LSTM_NAME = re.compile(r"lstm(?::(\d{1,3})x(\d{1,5}))?(,residual)?(,positions)?(?:@(.*))?")


def load_object(text):
    """What ``FILE.py:NAME`` names: a class or function of a user's own file, which is run again
    when it has changed."""
    path, name = USERS_OWN.fullmatch(text).groups()
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{text}: there is no file {path}")
    module = run_file(path.resolve(), read_bytes(path, MOST_CODE))
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{path}: it has no function or class '{name}'")
    return getattr(module, name)


@cache
def run_file(path, code):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(f"minifpt_user_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module                       # as dataclasses and pickle expect
    try:
        code = compile(code, path, "exec")                # no *.pyc of a file that may change
    except (ValueError, SyntaxError, RecursionError, MemoryError) as e:
        line = f", line {e.lineno}" if getattr(e, "lineno", None) else ""
        raise ValueError(f"{shown(path)}{line}: {message(e)}") from e
    with users_code():
        exec(code, vars(module))
    return module


def code_crc(*texts):
    """CRC-32 of the code of the files that ``FILE.py:NAME`` names in what tasks and trunks are
    called, without comments and layout; ``None`` where there are none."""
    found = [own for text in texts for part in re.split("[+=]", text)
             if (own := USERS_OWN.fullmatch(part))]
    for own in found:
        if not Path(own[1]).is_file():
            raise FileNotFoundError(f"{own[0]}: there is no file {own[1]}")
    try:
        code = [ast.unparse(ast.parse(read_bytes(own[1], MOST_CODE))) for own in found]
    except (SyntaxError, RecursionError) as e:
        raise ValueError(f"{found[0][1]}: not Python ({one_line(e)})") from None
    return f"{zlib.crc32(''.join(code).encode()):08x}" if code else None


def shape_of(name, where=""):
    """A shape by its name, or by blocks x heads x channels, as a dict for a ``GPT2Config``.
    ``where`` begins the error."""
    if name in SHAPES:
        return SHAPES[name]
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})x(\d{1,5})", name)
    if not found:
        raise ValueError(f"{where}: no shape '{name}', expected one of "
                         f"{', '.join(SHAPES)}, or blocks x heads x channels, as in 1x4x256")
    return dict(zip(("n_layer", "n_head", "n_embd"), map(int, found.groups()), strict=True))


PAPER_SPREAD = 0.02 * 768 ** 0.5                          # of the paper's random GPT-2


def read_spread(spread, text, names=()):
    """Return the number after the @ of a random trunk's name, ``None`` where there is none.

    ``names`` are words that may stand in place of a number.  Raises ``ValueError``.
    """
    try:
        value = spread if spread is None or spread in names else float(spread)
        if isinstance(value, float) and not 0 < value < np.inf:
            raise ValueError
    except ValueError:
        expected = " or ".join(["a positive number, as in random@0.55", *names])
        raise ValueError(f"--model {text}: the spread is '{spread}', expected {expected}") from None
    return value


@dataclass(frozen=True)
class TrunkSpec:
    """A trunk that can be made, by what ``--model`` takes:

    ===================  ===================================================================
    ``NAME`` or a path   pretrained weights; a folder that Transformers saved may hold a BERT
    ``random``           the shape of the shipped weights, drawn from the seed;
                         ``random:SHAPE`` another one of ``SHAPES``, or blocks x heads x
                         channels (``random:1x4x256``); with ``@SPREAD`` at a
                         standard deviation of SPREAD / sqrt(channels), of which GPT-2's own
                         0.02 is 0.55 at its width
    ``random@paper``     as the paper's random trunk: every matrix at GPT-2's own spread, those
                         too that write into the residual stream, which ``random`` and
                         ``random@SPREAD`` divide by sqrt(2 blocks)
    ``mimetic``          as random, but with attention that looks pretrained, see
                         :func:`minifpt.trunks.mimetic.mimetic`; ``mimetic:SHAPE`` and ``@SPREAD``,
                         which is that of the rest, as for random
    ``statistics:NAME``  random too, but each array with the mean and the standard deviation
                         of the pretrained one
    ``spectrum:NAME``    random too, but each matrix with the singular values of the pretrained
                         one, see :func:`with_spectrum`; all other arrays as by statistics
    ``lstm``             a random LSTM of 3 layers and 128 channels, see :class:`LSTMSpec`
    ``A+MASK=B``         the trunk A with those parameters of B that a freeze mask names
    ``FILE.py:NAME``     what a function or class of a file of your own makes; it may take
                         ``seed``, ``dropout`` and ``dtype``
    ===================  ===================================================================
    """

    text: str
    kind: str                                             # one of those above, or lstm
    name: str = ""                                        # of weights, or of a shape
    base: "TrunkSpec" = None                              # of a mixed trunk
    other: "TrunkSpec" = None
    mask: FreezeMask = None
    spread: float | str = None                            # in 1 / sqrt(channels), or "paper"

    @classmethod
    def parse(cls, text):
        """Read what ``--model`` takes.  Raises ``ValueError`` with one line."""
        if isinstance(text, cls):
            return text
        text = str(text)
        own = USERS_OWN.fullmatch(text)
        if own and ("+" not in text or Path(own[1]).is_file()):
            return cls(text, "own", text)
        if "+" in text and not Path(text).exists():
            base, _, part = text.rpartition("+")
            mask, equals, other = part.partition("=")
            if not (mask and equals and other):
                raise ValueError(f"--model: '+{part}', expected +MASK=MODEL, as in +attn=random")
            return cls(text, "mixed", base=cls.parse(base), other=cls.parse(other),
                       mask=FreezeMask.parse(mask))
        kind, _, rest = text.partition(":")
        if kind in ("statistics", "spectrum"):
            if not rest:
                raise ValueError(f"--model {text}: expected {kind}:NAME, the name or path of "
                                 f"weights, as in {kind}:minigpt-language")
            return cls(text, kind, rest)
        found = re.fullmatch(r"(random|mimetic)(?::([^@]+))?(?:@(.*))?", text)
        if found:
            kind, shape, spread = found[1], found[2] or "minigpt", found[3]
            shape_of(shape, f"--model {text}")
            return cls(text, kind, shape,
                       spread=read_spread(spread, text, ["paper"] * (kind == "random")))
        if re.match(r"lstm(?![^:,@])", text):
            found = LSTM_NAME.fullmatch(text)
            if not found:
                raise ValueError(f"--model {text}: expected lstm, or lstm:LAYERSxCHANNELS, as in "
                                 "lstm:3x128, then ,residual, then ,positions, then @SPREAD")
            spec = LSTMSpec(text, "lstm", spread=read_spread(found[5], text))
            spec.config()                                 # no layers, no channels
            return spec
        return cls(text, "weights", text)

    def make(self, seed=0, dropout=None, dtype=np.float32):
        """The trunk.  ``dropout`` overrides that of the weights, which is 0.1 for random ones."""
        if self.kind == "own":
            function = load_object(self.name)
            options = {"seed": seed, "dtype": dtype} | (
                {} if dropout is None else {"dropout": dropout})
            takes = inspect.signature(function).parameters
            trunk = function(**{k: v for k, v in options.items() if k in takes})
            check_trunk(trunk)
            return trunk
        if self.kind == "mixed":
            return self._make_mixed(seed, dropout, dtype)
        if self.kind in ("random", "mimetic"):
            trunk = GPT2(self.config(0.1 if dropout is None else dropout), seed, dtype)
            return mimetic(trunk, seed) if self.kind == "mimetic" else trunk
        kind = bert.BERT if bert.is_bert(self.name) else GPT2
        trunk = kind.from_pretrained(self.name, dtype=dtype, dropout=dropout)
        for name, p in trunk.named_parameters() if self.kind in ("statistics", "spectrum") else ():
            if self.kind == "spectrum" and p.data.ndim == 2:
                p.data[...] = with_spectrum(p.data, seed, name)
            else:
                mean, std = float(p.data.mean()), float(p.data.std())
                p.data[...] = mean + std * standard_normal(p.data.shape, seed, name)
        return trunk

    def _make_mixed(self, seed, dropout, dtype):
        trunk = self.base.make(seed, dropout, dtype)
        for p, theirs in self._pairs(trunk, self.other.make(seed, dropout, dtype)):
            p.data[...] = theirs.data
        return trunk

    def _pairs(self, trunk, other):
        """(parameter of ours, the one of another trunk that takes its place) of a mixed trunk."""
        taken, theirs = self.mask.select(trunk), dict(other.named_parameters())
        if not any(taken.values()):
            raise ValueError(f"--model {self.text}: the mask '{self.mask}' names no parameter of "
                             "the trunk")
        for name, p in trunk.named_parameters():
            if taken[name]:
                if name not in theirs or theirs[name].data.shape != p.data.shape:
                    raise ValueError(f"--model {self.text}: the trunks have different shapes, "
                                     f"see {name}")
                yield p, theirs[name]

    def config(self, dropout=None):
        """The trunk's :class:`minifpt.GPT2Config`, without making it; ``None`` for a trunk of
        the user's own.  The name of a shape will do where there are no weights of that name."""
        if self.kind == "own":
            return None
        if self.kind == "mixed":
            base, other = self.base.config(dropout), self.other.config(dropout)
            if isinstance(base, GPT2Config) and isinstance(other, GPT2Config):
                # raises what make would
                list(self._pairs(GPT2(base, seed=None), GPT2(other, seed=None)))
            return base
        if self.kind not in ("random", "mimetic"):
            try:
                read = bert.read_config if bert.is_bert(self.name) else read_config
                return read(weights.find(self.name), dropout)
            except FileNotFoundError:
                if self.name not in SHAPES:
                    raise
        shape = shape_of(self.name) | ({} if dropout is None else {"dropout": dropout})
        if self.spread is not None:
            paper = self.spread == "paper"
            spread = PAPER_SPREAD if paper else self.spread
            shape |= {"initializer_range": spread / shape["n_embd"] ** 0.5,
                      "scaled_residual_init": not paper}
        return GPT2Config(**shape)

    @property
    def drawn(self):
        """Whether some of it is drawn from the seed, or may be."""
        if self.kind == "mixed":
            return self.base.drawn or self.other.drawn
        return self.kind != "weights"

    @property
    def label(self):
        """What tables and pictures call it: ``minigpt-language`` is language,
        ``statistics:minigpt-language`` statistics."""
        if self.kind == "mixed":
            return f"{self.base.label} + {self.mask} of {self.other.label}"
        if self.kind in ("random", "mimetic"):
            what = [] if self.name == "minigpt" else [self.name]
            if self.spread == "paper":
                what.append("paper")
            elif self.spread is not None:
                what.append(f"spread {self.spread:g}")
            return f"{self.kind} ({', '.join(what)})" if what else self.kind
        if self.kind in ("statistics", "spectrum"):
            return self.kind
        if self.kind == "own":
            return self.name.rpartition(":")[2]
        return Path(self.name).stem.removeprefix("minigpt-")

    @property
    def folder(self):
        """What the folder of its runs is called: no two models share one."""
        name = re.sub(r"[^\w.+=,-]", "-", self.text).lstrip(".-")
        return name if name == self.text else f"{name}-{zlib.crc32(self.text.encode()):08x}"


def with_spectrum(matrix, seed, name):
    """A matrix with the singular values of ``matrix`` and random singular vectors, uniform among
    all orthonormal ones, drawn from the seed and the name."""
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    left, right = (np.linalg.qr(standard_normal((n, len(values)), seed, f"{name}.{side}"))
                   for n, side in zip(matrix.shape, ("left", "right"), strict=True))
    # QR's own signs are not random: those of R's diagonal make the vectors uniform.
    left, right = (q * np.sign(np.diag(r)) for q, r in (left, right))
    return (left * values) @ right.T


class LSTMSpec(TrunkSpec):
    """A random :class:`minifpt.trunks.lstm.LSTM`: ``lstm:LAYERSxCHANNELS`` (``lstm:3x128``), with
    ``,residual``, ``,positions`` or both in this order, and with ``@SPREAD`` as for ``random``,
    of which PyTorch's own is 0.577."""

    def make(self, seed=0, dropout=None, dtype=np.float32):
        """The trunk."""
        return LSTM(self.config(dropout), seed, dtype)

    def config(self, dropout=None):
        """The trunk's :class:`minifpt.trunks.lstm.LSTMConfig`, without making it."""
        layers, channels, residual, positions, _ = LSTM_NAME.fullmatch(self.text).groups()
        options = {} if dropout is None else {"dropout": dropout}
        if layers:
            options |= {"n_layer": int(layers), "n_embd": int(channels)}
        config = LSTMConfig(residual=bool(residual), positions=bool(positions), **options)
        if self.spread is not None:
            config.initializer_range = self.spread / config.n_embd ** 0.5
        return config

    @property
    def label(self):
        """``LSTM (3x128, residual, spread 1)``."""
        c = self.config()
        what = [f"{c.n_layer}x{c.n_embd}", *(["residual"] if c.residual else []),
                *(["positions"] if c.positions else []),
                *([] if self.spread is None else [f"spread {self.spread:g}"])]
        return f"LSTM ({', '.join(what)})"
