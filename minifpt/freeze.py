"""Parameter groups, and masks that freeze them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from .checks import brief, one_of
from .users import suggestion

# The paper's groups.  The layer that owns a parameter gives its group.
GROUPS = {
    "input": "the input layer",
    "pos": "positional embeddings",
    "ln": "layer norms, scale and bias",
    "attn": "self-attention, or whatever mixes tokens",
    "mlp": "feed-forward",
    "output": "the output layer",
    "adapter": "adapters",
}


@dataclass(frozen=True)
class FreezeMask:
    """The frozen parameters: a flag for each group (``True`` = frozen), and name patterns.

    ``patterns`` are shell patterns such as ``h.3.ln_1.*`` for parameter names, with or without
    the prefix ``trunk.``: the parameters that match any of them are frozen, too.
    A third of ``c_attn`` has a name of its own, ``h.0.attn.c_attn.weight.queries``, ``.keys`` or
    ``.values``: ``*.c_attn.*.keys`` freezes those columns alone.
    """

    input: bool = False
    pos: bool = False
    ln: bool = False
    attn: bool = False
    mlp: bool = False
    output: bool = False
    patterns: tuple = ()
    adapter: bool = False

    def __new__(cls, *args, **flags):
        for name in flags:
            if name not in cls.__dataclass_fields__:
                raise ValueError(f"FreezeMask: '{name}' is not a group, expected one of "
                                 f"{', '.join(GROUPS)}, or patterns")
        return super().__new__(cls)

    def __post_init__(self):
        for name in GROUPS:
            if getattr(self, name) not in (True, False):
                raise ValueError(f"FreezeMask: {name} is {getattr(self, name)!r:.60}, expected "
                                 "True or False (FreezeMask.parse reads text)")
        if not (isinstance(self.patterns, (tuple, list))
                and all(isinstance(p, str) for p in self.patterns)):
            raise ValueError(f"FreezeMask: patterns is {self.patterns!r:.60}, expected a tuple of "
                             "texts, such as ('h.3.ln_1.*',)")
        object.__setattr__(self, "patterns", tuple(self.patterns))

    @classmethod
    def fpt(cls) -> "FreezeMask":
        """Return the paper's mask: self-attention and feed-forward frozen, all else trained."""
        return cls(attn=True, mlp=True)

    @classmethod
    def full(cls) -> "FreezeMask":
        """Return a mask that freezes nothing."""
        return cls()

    @classmethod
    def output_only(cls):
        """Return a mask that freezes all but the output layer and adapters."""
        return cls(input=True, pos=True, ln=True, attn=True, mlp=True)

    @classmethod
    def parse(cls, text: str) -> "FreezeMask":
        """Return the mask of a text: a preset (``fpt``, ``full``, ``output_only``), or the groups
        and patterns to freeze, such as ``"attn,mlp,h.3.ln_1.*"``.  A mask is returned as it is."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise ValueError(f"freeze: {brief(text)}, expected a FreezeMask, or its text, such as "
                             "'fpt' or 'attn,mlp'")
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise ValueError("freeze: empty, expected a preset (full freezes nothing), "
                             "groups or patterns")
        presets = {"fpt": cls.fpt, "full": cls.full, "output_only": cls.output_only}
        if len(items) == 1 and items[0].replace("-", "_") in presets:
            return presets[items[0].replace("-", "_")]()
        if any(item.replace("-", "_") in presets for item in items):
            raise ValueError(f"freeze: a preset stands alone, got '{text}'")
        patterns = tuple(item for item in items if item not in GROUPS)
        for item in patterns:
            if "." not in item and "*" not in item:
                near = suggestion(item, [*presets, *GROUPS])
                raise ValueError(f"freeze: '{item}'{near} is neither a preset "
                                 f"({', '.join(presets)}), nor a group ({', '.join(GROUPS)}), nor "
                                 "a pattern (h.3.ln_1.*)")
        return cls(**{item: True for item in items if item in GROUPS}, patterns=patterns)

    def __str__(self):
        """Return the text that :meth:`parse` reads."""
        groups = [f.name for f in fields(self) if f.name in GROUPS and getattr(self, f.name)]
        return ",".join([*groups, *self.patterns]) or "full"

    def frozen(self, name, group):
        """Return whether this mask freezes a parameter, by its name and group."""
        one_of(f"parameter '{name}'", "its group", group, GROUPS)
        return getattr(self, group) or any(matches(name, p) for p in self.patterns)

    def select(self, layer):
        """Return ``{name: whether it is frozen}`` for every parameter of a layer or model.

        Raises ``ValueError`` for a pattern that matches no parameter.
        """
        named = dict(layer.named_parameters())
        for pattern in self.patterns:
            names = [*named, *(part for name, p in named.items() for part, _ in thirds(name, p))]
            if not any(matches(name, pattern) for name in names):
                raise ValueError(f"freeze: the pattern '{pattern}' matches no parameter; "
                                 f"names look like '{next(iter(named), '(there are none)')}'")
        return {name: self.frozen(name, p.group) or len(self.columns(name, p)) == 3
                for name, p in named.items()}

    def columns(self, name, parameter):
        """Return the slices of a parameter's columns that patterns freeze."""
        return tuple(columns for part, columns in thirds(name, parameter)
                     if any(matches(part, pattern) for pattern in self.patterns))

    def apply(self, layer):
        """Set ``.trainable`` of every parameter of a layer or model.  What is frozen loses its
        gradient."""
        frozen = self.select(layer)
        for name, p in layer.named_parameters():
            p.trainable, p.frozen_columns = not frozen[name], self.columns(name, p)
            if frozen[name] or p.frozen_columns:
                p.grad = None


def matches(name, pattern):
    """Return whether a pattern matches a parameter's name, with or without ``trunk.``."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.removeprefix("trunk."), pattern)


def thirds(name, parameter) -> Iterator[tuple[str, slice]]:
    """Yield (name, slice of columns) of queries, keys and values in a ``c_attn``."""
    if f".{name}".endswith((".c_attn.weight", ".c_attn.bias")):
        width = parameter.data.shape[-1] // 3
        for i, part in enumerate(("queries", "keys", "values")):
            yield f"{name}.{part}", slice(i * width, (i + 1) * width)
