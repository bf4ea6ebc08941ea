"""Parameter groups, and masks that say which of them are frozen."""

from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

# The paper's groups.  The layer that owns a parameter says which one it belongs to.
GROUPS = {
    "input": "the input layer",
    "pos": "positional embeddings",
    "ln": "layer norms, scale and bias",
    "attn": "self-attention, or whatever mixes tokens",
    "mlp": "feed-forward",
    "output": "the output layer",
}


@dataclass(frozen=True)
class FreezeMask:
    """What is frozen: a flag for each group (``True`` = frozen), and name patterns.

    ``patterns`` are shell patterns on parameter names, with or without the ``trunk.``
    prefix (``h.3.ln_1.*``): a parameter that one of them matches is frozen too.
    """

    input: bool = False
    pos: bool = False
    ln: bool = False
    attn: bool = False
    mlp: bool = False
    output: bool = False
    patterns: tuple = ()

    def __new__(cls, *args, **given):
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise ValueError(f"FreezeMask: there is no group '{name}', expected one of "
                                 f"{', '.join(GROUPS)}, or patterns")
        return super().__new__(cls)

    def __post_init__(self):
        for name in GROUPS:
            if getattr(self, name) not in (True, False):
                raise ValueError(f"FreezeMask: {name} is {getattr(self, name)!r:.60}, expected "
                                 "True or False (FreezeMask.parse reads text)")
        if isinstance(self.patterns, str) or not all(isinstance(p, str) for p in self.patterns):
            raise ValueError(f"FreezeMask: patterns is {self.patterns!r:.60}, expected a tuple of "
                             "texts, as ('h.3.ln_1.*',)")

    @classmethod
    def fpt(cls) -> "FreezeMask":
        """The paper's: self-attention and feed-forward frozen, all else trained."""
        return cls(attn=True, mlp=True)

    @classmethod
    def full(cls) -> "FreezeMask":
        """Nothing frozen: train everything."""
        return cls()

    @classmethod
    def output_only(cls):
        """All frozen but the output layer."""
        return cls(input=True, pos=True, ln=True, attn=True, mlp=True)

    @classmethod
    def parse(cls, text: str) -> "FreezeMask":
        """From text: a preset (``fpt``, ``full``, ``output_only``), or a list of groups
        and patterns to freeze: ``"attn,mlp"``, ``"attn,mlp,h.3.ln_1.*"``."""
        if not isinstance(text, str):
            raise ValueError(f"freeze: {text!r:.60} is no text, as 'fpt' or 'attn,mlp'")
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise ValueError("freeze: empty, expected a preset (full freezes nothing), groups or "
                             "patterns")
        presets = {"fpt": cls.fpt, "full": cls.full, "output_only": cls.output_only}
        if len(items) == 1 and items[0].replace("-", "_") in presets:
            return presets[items[0].replace("-", "_")]()
        if any(item.replace("-", "_") in presets for item in items):
            raise ValueError(f"freeze: a preset stands alone, got '{text}'")
        patterns = tuple(item for item in items if item not in GROUPS)
        for item in patterns:
            if "." not in item and "*" not in item:
                raise ValueError(f"freeze: '{item}' is neither a preset ({', '.join(presets)}), "
                                 f"nor a group ({', '.join(GROUPS)}), nor a pattern (h.3.ln_1.*)")
        return cls(**{item: True for item in items if item in GROUPS}, patterns=patterns)

    def __str__(self):
        """The text that :meth:`parse` reads."""
        groups = [f.name for f in fields(self) if f.name in GROUPS and getattr(self, f.name)]
        return ",".join([*groups, *self.patterns]) or "full"

    def frozen(self, name, group):
        """Whether this mask freezes the parameter of that name and group."""
        if group not in GROUPS:
            raise ValueError(f"parameter '{name}' is in the group '{group}', expected one of "
                             f"{', '.join(GROUPS)}")
        return getattr(self, group) or any(matches(name, p) for p in self.patterns)

    def select(self, layer):
        """``{name: whether it is frozen}`` for every parameter of a layer or model.

        Raises ``ValueError`` for a pattern that matches no parameter.
        """
        named = dict(layer.named_parameters())
        for pattern in self.patterns:
            if not any(matches(name, pattern) for name in named):
                raise ValueError(f"freeze: the pattern '{pattern}' matches no parameter; "
                                 f"names look like '{next(iter(named), '(there are none)')}'")
        return {name: self.frozen(name, p.group) for name, p in named.items()}

    def apply(self, layer):
        """Set ``.trainable`` of every parameter of a layer or model."""
        frozen = self.select(layer)
        for name, p in layer.named_parameters():
            p.trainable = not frozen[name]


def matches(name, pattern):
    """Whether a pattern matches a parameter's name, with or without the ``trunk.`` prefix."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.removeprefix("trunk."), pattern)
