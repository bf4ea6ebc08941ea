"""Trunks by name: the values of ``--model``."""

import ast
import importlib.util
import inspect
import os
import re
import sys
import zlib
from dataclasses import dataclass, replace
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path

import numpy as np

from ..checks import brief
from ..files import MOST_CODE, one_line, read_bytes, weights
from ..freeze import FreezeMask
from ..gpt2 import GPT2, SHAPES, GPT2Config
from ..layers import standard_normal
from ..users import message, shown, users_code
from . import bert, forms, llama_files
from .base import check_trunk
from .llama import Llama
from .llama_files import LlamaConfig
from .lstm import LSTM, LSTMConfig
from .mimetic import mimetic

USERS_OWN = re.compile(r"(?s)(.+\.py):([A-Za-z_]\w*)")
# Settings besides its arrays that say what a part computes.
COMPUTES = {"attn": ("n_head", "rope_base"), "mlp": ("activation_function",)}
LSTM_NAME = re.compile(r"lstm(?::(\d{1,3})x(\d{1,5}))?(,residual)?(,positions)?(?:@(.*))?")


def load_object(text):
    """Return the class or function ``FILE.py:NAME``; a file that has changed is run again."""
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
    """Return a Python file as a module; it may import modules beside it."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"minifpt_user_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module                       # as dataclasses and pickle expect
    try:
        code = compile(code, path, "exec")                # leaves no *.pyc behind
    except (ValueError, SyntaxError, RecursionError, MemoryError) as e:
        line = f", line {e.lineno}" if getattr(e, "lineno", None) else ""
        raise ValueError(f"{shown(path)}{line}: {message(e)}") from e
    with users_code():
        exec(code, vars(module))
    return module


def code_crc(*texts):
    """Return a CRC-32 of the code, without comments and layout, of every ``FILE.py:NAME`` in names
    of tasks and trunks, and of modules beside these files that they import; or ``None``."""
    names = [name for text in texts for name in own_names(text)]
    for name in names:
        if not Path(name[1]).is_file():
            raise FileNotFoundError(f"{name[0]}: there is no file {name[1]}")
    try:
        code = [ast.unparse(ast.parse(read_bytes(path, MOST_CODE)))
                for name in names for path in with_imports(Path(name[1]))]
    except (SyntaxError, RecursionError, ValueError) as e:
        raise ValueError(f"{names[0][1]}: not Python ({one_line(e)})") from None
    return f"{zlib.crc32(''.join(code).encode()):08x}" if code else None


def own_names(text):
    """Return the match of every ``FILE.py:NAME`` in the name of a task or trunk."""
    whole = USERS_OWN.fullmatch(text)
    parts = [text] if whole and Path(whole[1]).is_file() else re.split("[+=]", text)
    return [match for part in parts if (match := USERS_OWN.fullmatch(part))]


def with_imports(path):
    """Return a Python file, and the modules that it imports from its folder or from folders in it,
    without running them."""
    finder = ModuleFinder([str(path.parent)], excludes=["minifpt"])
    finder.run_script(str(path))
    files = {module.__file__ for module in finder.modules.values() if module.__file__}
    return [path, *sorted(Path(file) for file in files - {str(path)} if file.endswith(".py"))]


def shape_of(name, where=""):
    """Return a shape, given by name or as blocks x heads x channels, as a dict for
    ``GPT2Config``, or after ``llama:`` for ``LlamaConfig``.  ``where`` begins the error's text."""
    if name in SHAPES:
        return SHAPES[name]
    if name.startswith("llama:"):
        sizes = re.fullmatch(r"llama:(\d{1,4})x(\d{1,4})(?:/(\d{1,4}))?x(\d{1,5})", name)
        if not sizes:
            raise ValueError(f"{where}: no shape '{name}', expected llama: and blocks x heads x "
                             "channels, as in llama:6x4x128, or with fewer heads of keys and "
                             "values, as in llama:6x4/2x128")
        keys = "n_layer", "n_head", "n_group", "n_embd"
        return {key: int(size) for key, size in zip(keys, sizes.groups(), strict=True) if size}
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})x(\d{1,5})", name)
    if not match:
        raise ValueError(f"{where}: no shape '{name}', expected one of "
                         f"{', '.join(SHAPES)}, or blocks x heads x channels, as in 1x4x256")
    return dict(zip(("n_layer", "n_head", "n_embd"), map(int, match.groups()), strict=True))


PAPER_SPREAD = 0.02 * 768 ** 0.5                          # of the paper's random GPT-2


def read_spread(spread, text, names=()):
    """Return the number after the @ of a random trunk's name, ``None`` without an @.

    ``names`` are words that are allowed instead of a number.  Raises ``ValueError``.
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
    """A description of a trunk, which :meth:`make` builds.  Its text is a value of ``--model``:

    ===================  ===================================================================
    ``NAME`` or a path   pretrained weights; a folder that Transformers saved may hold a BERT
    ``random``           random weights in the shape of the shipped ones.  ``random:SHAPE`` has
                         another shape: a name in ``SHAPES``, or blocks x heads x channels
                         (``random:1x4x256``).  With ``@SPREAD`` the standard deviation is
                         SPREAD / sqrt(channels); GPT-2's 0.02 is a spread of 0.55
    ``random:llama:...`` a random Llama, see :class:`minifpt.trunks.llama.Llama`, with its shape:
                         ``random:llama:6x4x128``, or ``random:llama:6x4/2x128`` for 2 heads of
                         keys and values beside 4 of queries
    ``random@paper``     random weights as in the paper: every matrix has GPT-2's spread.  In
                         ``random`` and ``random@SPREAD`` the matrices that write into the
                         residual stream are divided by sqrt(2 blocks)
    ``mimetic``          random weights, but attention that looks pretrained, see
                         :func:`minifpt.trunks.mimetic.mimetic`; also ``mimetic:SHAPE`` and
                         ``@SPREAD``, which acts on the other weights
    ``statistics:NAME``  random weights; each array has the mean and the standard deviation of
                         the pretrained one
    ``spectrum:NAME``    random weights; each matrix has the singular values of the pretrained
                         one, see :func:`with_spectrum`; other arrays as in statistics
    ``lstm``             a random LSTM of 3 layers and 128 channels, see :class:`LSTMSpec`
    ``A+MASK=B``         the trunk A with the parameters of B that a freeze mask names
    ``...,qk=105``       after a random trunk: in each head ``W_k = cos(105 deg) W_q + sin(105 deg)
                         Z``.  0 to 180 degrees, ``positive`` (0), ``negative`` (180), or
                         ``antisymmetric``: ``W_q = [U, V], W_k = [V, -U]``
    ``...,qk=PART``      after another named trunk: of each head's form ``W_q W_k'`` its
                         ``symmetric``, ``antisymmetric``, ``positive`` or ``negative`` part alone,
                         see :func:`minifpt.trunks.forms.part_of`
    ``FILE.py:NAME``     your own function or class, which may take ``seed``, ``dropout`` and
                         ``dtype`` and returns a trunk
    ===================  ===================================================================
    """

    text: str
    kind: str                                             # a word of the table, own or mixed
    name: str = ""                                        # of weights, or of a shape
    base: "TrunkSpec" = None                              # A of a mixed trunk
    other: "TrunkSpec" = None                             # B of a mixed trunk
    mask: FreezeMask = None
    spread: float | str = None                            # in 1 / sqrt(channels), or "paper"
    qk: float | str = None                                # an angle, or a part of the heads' form

    @classmethod
    def parse(cls, text):
        """Return the description of a text.  Raises ``ValueError``."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, (str, os.PathLike)):
            raise ValueError(f"--model: got {brief(text)}, expected a name or a path")
        text = str(text)
        if text.endswith(".py"):
            raise ValueError(f"--model {text}: expected the class or function in this file, too: "
                             f"{text}:CLASS")
        users = USERS_OWN.fullmatch(text)
        if users and ("+" not in text or Path(users[1]).is_file()):
            return cls(text, "own", text)
        if "+" in text and not Path(text).exists():
            base, _, part = text.rpartition("+")
            mask, equals, other = part.partition("=")
            if not (mask and equals and other):
                raise ValueError(f"--model: '+{part}', expected +MASK=MODEL, as in +attn=random")
            return cls(text, "mixed", base=cls.parse(base), other=cls.parse(other),
                       mask=FreezeMask.parse(mask))
        whole, comma, qk = text.rpartition(",qk=")
        if comma and not Path(text).exists():
            spec = cls.parse(whole)
            return replace(spec, text=text, qk=forms.read_switch(qk, spec, text))
        kind, _, rest = text.partition(":")
        if kind in ("statistics", "spectrum"):
            if not rest:
                raise ValueError(f"--model {text}: expected {kind}:NAME, the name or path of "
                                 f"weights, as in {kind}:minigpt-language")
            return cls(text, kind, rest)
        match = re.fullmatch(r"(random|mimetic)(?::([^@]+))?(?:@(.*))?", text)
        if match:
            kind, shape, spread = match[1], match[2] or "minigpt", match[3]
            shape_of(shape, f"--model {text}")
            if kind == "mimetic" and shape.startswith("llama:"):
                raise ValueError(f"--model {text}: mimetic weights are for a GPT-2's shape")
            return cls(text, kind, shape,
                       spread=read_spread(spread, text, ["paper"] if kind == "random" else []))
        if re.match(r"lstm(?![^:,@])", text):
            match = LSTM_NAME.fullmatch(text)
            if not match:
                raise ValueError(f"--model {text}: expected lstm, or lstm:LAYERSxCHANNELS, as in "
                                 "lstm:3x128, then ,residual, then ,positions, then @SPREAD")
            spec = LSTMSpec(text, "lstm", spread=read_spread(match[5], text))
            spec.config()                                 # raises for 0 layers or channels
            return spec
        if ".py:" in text and not Path(text).exists():
            raise ValueError(f"--model {text}: expected FILE.py:NAME alone; for another size write "
                             "a function in FILE.py that returns the trunk")
        return cls(text, "weights", text)

    def make(self, seed=0, dropout=None, dtype=np.float32):
        """Build the trunk.  ``dropout`` replaces that of the weights; random ones have 0.1."""
        if self.qk is not None:
            trunk = replace(self, qk=None).make(seed, dropout, dtype)
            return forms.switch(trunk, self.qk, self.kind == "random", self.text)
        if self.kind == "own":
            function = load_object(self.name)
            options = {"seed": seed, "dtype": dtype} | (
                {} if dropout is None else {"dropout": dropout})
            takes = inspect.signature(function).parameters
            if all(p.kind != p.VAR_KEYWORD for p in takes.values()):
                options = {k: v for k, v in options.items() if k in takes}
            trunk = function(**options)
            check_trunk(trunk)
            return trunk
        if self.kind == "mixed":
            return self._make_mixed(seed, dropout, dtype)
        if self.kind in ("random", "mimetic"):
            config = self.config(0.1 if dropout is None else dropout)
            trunk = (Llama if isinstance(config, LlamaConfig) else GPT2)(config, seed, dtype)
            return mimetic(trunk, seed) if self.kind == "mimetic" else trunk
        kind = bert.BERT if bert.is_bert(self.name) else (
            Llama if llama_files.is_llama(self.name) else GPT2)
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
        for ours, theirs in self._pairs(trunk, self.other.make(seed, dropout, dtype)):
            ours[...] = theirs
        return trunk

    def _pairs(self, trunk, other):
        """Yield (array of the trunk, the other trunk's) for each that a mixed trunk replaces, a
        parameter or some of its columns.  Of more positions than the trunk has, the first serve."""
        whole = (slice(None),)
        replaced = {name: whole if is_whole else self.mask.columns(name, p) for (name, p), is_whole
                    in zip(trunk.named_parameters(), self.mask.select(trunk).values(), strict=True)}
        theirs = {name: p.data for name, p in other.named_parameters()}
        if not any(replaced.values()):
            raise ValueError(f"--model {self.text}: the mask '{self.mask}' names no parameter of "
                             "the trunk")
        for name, p in trunk.named_parameters():
            if replaced[name]:
                if name == "wpe.weight" and name in theirs:
                    theirs[name] = theirs[name][:len(p.data)]
                if name not in theirs or theirs[name].shape != p.data.shape:
                    raise ValueError(f"--model {self.text}: the trunks have different shapes, "
                                     f"see {name}")
                for field in COMPUTES.get(p.group, ()):
                    a, b = (getattr(t.config, field, None) for t in (trunk, other))
                    if a != b:
                        raise ValueError(f"--model {self.text}: the trunks have {field} {a} and "
                                         f"{b}, so their {p.group} computes something else")
                for columns in replaced[name]:
                    yield p.data[..., columns], theirs[name][..., columns]
        for name, is_whole in self.mask.select(other).items():
            # More blocks than the trunk has are left out, as more positions are.
            if is_whole and re.sub(r"^h\.\d+", "h.0", name) not in replaced:
                raise ValueError(f"--model {self.text}: the other trunk has {name}, this one "
                                 "lacks it")

    def config(self, dropout=None):
        """Return the trunk's :class:`minifpt.GPT2Config` without building it; ``None`` for a
        user's trunk.  Without weights of a name, a shape with that name is enough."""
        if self.kind == "own":
            return None
        if self.kind == "mixed":
            base, other = self.base.config(dropout), self.other.config(dropout)
            if isinstance(base, GPT2Config) and isinstance(other, GPT2Config):
                list(self._pairs(GPT2(base, seed=None), GPT2(other, seed=None)))  # raises as make
            return base
        if self.qk is not None:
            config = replace(self, qk=None).config(dropout)
            forms.check_switch(self.qk, config, self.text)
            return config
        if self.kind not in ("random", "mimetic"):
            try:
                path = weights.find(self.name)
                if bert.is_bert(self.name):
                    return bert.read_config(path, dropout)
                if llama_files.is_llama(self.name):
                    return llama_files.load(path, dropout)[0]
                settings, tensors = weights.read(path, dropout)
                config = weights.config_of(settings, path, GPT2Config)
                weights.check_size(path, config, tensors)
                return config
            except FileNotFoundError:
                if self.name not in SHAPES:
                    raise
        shape = shape_of(self.name) | ({} if dropout is None else {"dropout": dropout})
        if self.spread is not None:
            spread = PAPER_SPREAD if self.spread == "paper" else self.spread
            shape |= {"initializer_range": spread / shape["n_embd"] ** 0.5,
                      "scaled_residual_init": self.spread != "paper"}
        return (LlamaConfig if self.name.startswith("llama:") else GPT2Config)(**shape)

    @property
    def drawn(self):
        """Whether some of its weights are, or may be, drawn from the seed."""
        if self.kind == "mixed":
            return self.base.drawn or self.other.drawn
        return self.kind != "weights"

    @property
    def label(self):
        """The name in tables and pictures: "language" for ``minigpt-language``, "statistics" for
        ``statistics:minigpt-language``."""
        if self.qk is not None:
            angle = self.qk if isinstance(self.qk, str) else f"{self.qk:g} degrees"
            return f"{replace(self, qk=None).label}, {angle}"
        if self.kind == "mixed":
            return f"{self.base.label} + {self.mask} of {self.other.label}"
        if self.kind in ("random", "mimetic"):
            details = [] if self.name == "minigpt" else [self.name]
            if self.spread == "paper":
                details.append("paper")
            elif self.spread is not None:
                details.append(f"spread {self.spread:g}")
            return f"{self.kind} ({', '.join(details)})" if details else self.kind
        if self.kind in ("statistics", "spectrum"):
            return self.kind
        if self.kind == "own":
            return self.name.rpartition(":")[2]
        return Path(self.name).stem.removeprefix("minigpt-")

    @property
    def folder(self):
        """The name of the folder of its runs, which no other model has."""
        name = re.sub(r"[^\w.+=,-]", "-", self.text).lstrip(".-")
        return name if name == self.text else f"{name}-{zlib.crc32(self.text.encode()):08x}"


def with_spectrum(matrix, seed, name):
    """Return a matrix with the singular values of ``matrix`` and random singular vectors, uniform
    among all orthonormal ones, drawn from the seed and the name."""
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    factors = [np.linalg.qr(standard_normal((n, len(values)), seed, f"{name}.{side}"))
               for n, side in zip(matrix.shape, ("left", "right"), strict=True)]
    # The signs of Q are not random; with the signs of R's diagonal the vectors are uniform.
    u, v = (q * np.sign(np.diag(r)) for q, r in factors)
    return (u * values) @ v.T


class LSTMSpec(TrunkSpec):
    """A description of a random :class:`minifpt.trunks.lstm.LSTM`.

    Its text is ``lstm:LAYERSxCHANNELS`` (``lstm:3x128``), then ``,residual``, ``,positions`` or
    both in this order, then ``@SPREAD`` as for ``random``; PyTorch's spread is 0.577.
    """

    def make(self, seed=0, dropout=None, dtype=np.float32):
        """Build the trunk."""
        return LSTM(self.config(dropout), seed, dtype)

    def config(self, dropout=None):
        """Return the trunk's :class:`minifpt.trunks.lstm.LSTMConfig` without building it."""
        layers, channels, residual, positions, _ = LSTM_NAME.fullmatch(self.text).groups()
        options = {} if dropout is None else {"dropout": dropout}
        if layers:
            options |= {"n_layer": int(layers), "n_embd": int(channels)}
        config = LSTMConfig(residual=bool(residual), positions=bool(positions), **options)
        if self.spread is not None:
            config = replace(config, initializer_range=self.spread / config.n_embd ** 0.5)
        return config

    @property
    def label(self):
        """The name in tables and pictures: ``LSTM (3x128, residual, spread 1)``."""
        c = self.config()
        details = [f"{c.n_layer}x{c.n_embd}",
                   *(name for name in ("residual", "positions") if getattr(c, name))]
        if self.spread is not None:
            details.append(f"spread {self.spread:g}")
        return f"LSTM ({', '.join(details)})"
