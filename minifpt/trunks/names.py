"""The names of trunks, which are the values of ``--model``: what a name says, and its label."""

import os
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from .. import checks
from ..files.families import registry
from ..freeze import FreezeMask
from ..gpt2 import SHAPES
from ..plugins import USERS_OWN
from .forms import PARTS

LSTM_NAME = re.compile(r"lstm(?::(\d{1,3}x\d{1,5}))?(,residual)?(,positions)?(?:@(.*))?")


def shape_of(name, where=""):
    """Return a shape, given by name or as blocks x heads x channels, as a dict for
    ``GPT2Config``, or with a ``model_type`` for another config.  ``where`` begins the error's
    text."""
    if name in SHAPES:
        return SHAPES[name]
    for family in registry().values():
        match = re.fullmatch(f"{family.name}:{family.shape}", name if ":" in name else f":{name}")
        if match:
            return {key: int(value) for key, value in match.groupdict().items() if value} | (
                {"model_type": family.model_type} if family.name else {})
    raise ValueError(f"{where}: no shape '{name}', expected one of {', '.join(SHAPES)}, or blocks "
                     f"x heads x channels, as in 1x4x256, or after one of these: {others()}")


def others():
    """Return the families of random trunks other than GPT-2's, as text."""
    named = [family for family in registry().values() if family.name]
    return "; ".join([", ".join(f"{family.name}:" for family in named),
                      *(family.note for family in named if family.note)])


@dataclass(frozen=True)
class TrunkSpec:
    """A description of a trunk, which :func:`minifpt.trunks.get` builds.  Its text is a value of
    ``--model``:

    ===================  ===================================================================
    ``NAME`` or a path   pretrained weights; a folder that Transformers saved may hold a model of
                         any family in :func:`minifpt.files.families.registry`
    ``random``           random weights in the shape of the shipped ones, drawn as the paper draws
                         them: each matrix has the standard deviation 0.55 / sqrt(channels), which
                         is 0.02 at GPT-2's 768 channels.  ``random:SHAPE`` has another shape: a
                         name in ``SHAPES``, or blocks x heads x channels (``random:1x4x256``)
    ``random@SPREAD``    the standard deviation is SPREAD / sqrt(channels), and the matrices that
                         write into the residual stream are divided by sqrt(2 blocks)
    ``random@gpt2``      the standard deviation is GPT-2's 0.02 whatever the width, and the same
                         matrices are divided: too small for 128 channels
    ``random:FAMILY:SHAPE``  a random trunk of another family; its ``name`` and its ``shape`` are
                         in that registry
    ``statistics:NAME``  random weights; each array has the mean and the standard deviation of
                         the pretrained one
    ``lstm``             a random LSTM of 3 layers and 128 channels; ``lstm:LAYERSxCHANNELS``, then
                         ``,residual``, ``,positions`` or both in this order, then ``@SPREAD``, of
                         which PyTorch's is 0.577
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
    kind: str                                             # weights, random, lstm, ... as parse has
    name: str = ""                                        # of weights, a shape, or FILE.py:NAME
    base: "TrunkSpec" = None                              # A of a mixed trunk
    other: "TrunkSpec" = None                             # B of a mixed trunk
    mask: FreezeMask = None
    spread: float | str = None                            # in 1 / sqrt(channels), or "gpt2"
    qk: float | str = None                                # an angle, or a part of the heads' form

    @classmethod
    def parse(cls, text):
        """Return the description of a text.  Raises ``ValueError``."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, (str, os.PathLike)):
            raise ValueError(f"--model: got {checks.brief(text)}, expected a name or a path")
        text = str(text)
        where, is_path = f"--model {text}", Path(text).exists()
        if text.endswith(".py"):
            raise ValueError(f"{where}: expected the class or function in this file, too: "
                             f"{text}:CLASS")
        users = USERS_OWN.fullmatch(text)
        if users and ("+" not in text or Path(users[1]).is_file()):
            return cls(text, "own", text)
        if "+" in text and not is_path:
            base, _, part = text.rpartition("+")
            mask, equals, other = part.partition("=")
            if not (mask and equals and other):
                raise ValueError(f"--model: '+{part}', expected +MASK=MODEL, as in +attn=random")
            return cls(text, "mixed", base=cls.parse(base), other=cls.parse(other),
                       mask=FreezeMask.parse(mask))
        whole, comma, qk = text.rpartition(",qk=")
        if comma and not is_path:
            spec = cls.parse(whole)
            return replace(spec, text=text, qk=read_qk(qk, spec, where))
        kind, _, name = text.partition(":")
        if kind == "statistics":
            if not name:
                raise ValueError(f"{where}: expected statistics:NAME, the name or path of weights, "
                                 "as in statistics:minigpt-language")
            return cls(text, "statistics", name)
        if match := re.fullmatch(r"random(?::([^@]+))?(?:@(.*))?", text):
            shape = match[1] or "minigpt"
            shape_of(shape, where)                        # raises
            return cls(text, "random", shape, spread=read_spread(match[2], where, "gpt2"))
        if re.match(r"lstm(?![^:,@])", text):
            match = LSTM_NAME.fullmatch(text)
            if not match:
                raise ValueError(f"{where}: expected lstm, or lstm:LAYERSxCHANNELS, as in "
                                 "lstm:3x128, then ,residual, then ,positions, then @SPREAD")
            name = "".join([match[1] or "3x128", match[2] or "", match[3] or ""])
            return cls(text, "lstm", name, spread=read_spread(match[4], where))
        if ".py:" in text and not is_path:
            raise ValueError(f"{where}: expected FILE.py:NAME alone; for another size write a "
                             "function in FILE.py that returns the trunk")
        return cls(text, "weights", text)

    @property
    def label(self):
        """The name in tables and pictures: "language" for ``minigpt-language``, "statistics" for
        ``statistics:minigpt-language``, ``LSTM (3x128, residual, spread 1)``."""
        if self.qk is not None:
            angle = self.qk if isinstance(self.qk, str) else f"{self.qk:g} degrees"
            return f"{replace(self, qk=None).label}, {angle}"
        if self.kind == "mixed":
            return f"{self.base.label} + {self.mask} of {self.other.label}"
        if self.kind == "own":
            return self.name.rpartition(":")[2]
        if self.kind == "weights":
            return Path(self.name).stem.removeprefix("minigpt-")
        title = "LSTM" if self.kind == "lstm" else self.kind
        details = self.name.split(",") if self.kind in ("random", "lstm") else []
        if self.spread is not None:
            details.append("0.02" if self.spread == "gpt2" else f"spread {self.spread:g}")
        details = [detail for detail in details if detail != "minigpt"]
        return f"{title} ({', '.join(details)})" if details else title

    @property
    def folder(self):
        """The name of the folder of its runs, which no other model has."""
        name = re.sub(r"[^\w.+=,-]", "-", self.text).lstrip(".-")
        return name if name == self.text else f"{name}-{zlib.crc32(self.text.encode()):08x}"


def read_spread(text, where, word=None):
    """Return the number after the @ of a name, or ``word``; ``None`` without an @.  Raises
    ``ValueError``."""
    if text in (None, word):
        return text
    try:
        return checks.number(where, "the spread", float(text))
    except ValueError:
        expected = "a positive number, as in @0.55" + (
            f", or {word}, or no @ for the paper's random weights" if word else "")
        raise ValueError(f"{where}: the spread is '{text}', expected {expected}") from None


def read_qk(text, spec, where):
    """Return the value after ``,qk=`` for the ``TrunkSpec`` before it: a part's name, or for a
    random trunk an angle in degrees.  Raises ``ValueError``."""
    if spec.qk is not None or spec.kind in ("own", "mixed", "lstm"):
        raise ValueError(f"{where}: qk= comes once, after a named trunk with attention")
    if spec.kind != "random":
        if text not in PARTS:
            raise ValueError(f"{where}: qk is '{text}', expected {', '.join(PARTS)}; angles are "
                             "for random trunks")
        return text
    if text == "antisymmetric":
        return text
    try:
        angle = {"positive": 0.0, "negative": 180.0}.get(text) if text.isalpha() else float(text)
        if not 0 <= angle <= 180:
            raise ValueError
    except (ValueError, TypeError):
        raise ValueError(f"{where}: qk is '{text}', expected 0 to 180 degrees, positive, negative "
                         "or antisymmetric") from None
    return angle
