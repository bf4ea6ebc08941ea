"""Parameter groups, and masks that freeze them."""

import difflib
import re
from dataclasses import dataclass, fields

import numpy as np

from .checks import brief, crc, flag, one_of
from .spelling import suggestion

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
RANGE = re.compile(r"(?<![^.])([0-9]+)-([0-9]+)(?![^.])")      # of blocks: the 3-5 in h.3-5.*


@dataclass(frozen=True)
class FreezeMask:
    """The frozen parameters: a flag for each group (``True`` = frozen), and name patterns.

    ``patterns`` are for parameter names, with or without the prefix ``trunk.``: the parameters that
    match any of them are frozen, too.  ``*`` stands for any text, ``?`` for any character and
    ``3-5`` for a number from 3 to 5: ``h.3-5.ln_1.*``.  The columns of queries, keys and values
    have names in every family, and so has each head's: ``*.keys`` freezes the keys alone,
    ``h.0.*.keys.1`` those of block 0's head 1.

    ``only`` holds groups and patterns, too: these are trained, and all else is frozen.
    """

    input: bool = False
    pos: bool = False
    ln: bool = False
    attn: bool = False
    mlp: bool = False
    output: bool = False
    patterns: tuple = ()
    adapter: bool = False
    only: tuple = ()

    def __post_init__(self):
        for name in GROUPS:
            flag("FreezeMask", name, getattr(self, name))
        for field in ("patterns", "only"):
            value = getattr(self, field)
            if not (isinstance(value, (tuple, list)) and all(isinstance(p, str) for p in value)):
                raise ValueError(f"FreezeMask: {field} is {brief(value)}, expected a tuple of "
                                 "texts, such as ('h.3.ln_1.*',)")
            for pattern in value:
                check_pattern(pattern)
            object.__setattr__(self, field, tuple(value))
        if self.only and (self.patterns or any(getattr(self, name) for name in GROUPS)):
            raise ValueError("FreezeMask: only= stands alone, it freezes all else")

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
        """Return the mask of a text: a preset (``fpt``, ``full``, ``output_only``), the groups and
        patterns to freeze, such as ``"attn,mlp,h.3.ln_1.*"``, or those to train, such as
        ``"only:ln,output"``.  A mask is returned as it is."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise ValueError(f"freeze: {brief(text)}, expected a FreezeMask, or its text, such as "
                             "'fpt' or 'attn,mlp'")
        is_only, listed = text.strip().startswith("only:"), text.strip().removeprefix("only:")
        items = [item.strip() for item in listed.split(",") if item.strip()]
        if not items:
            raise ValueError("freeze: empty, expected a preset (full freezes nothing), "
                             "groups or patterns")
        presets = {"fpt": cls.fpt, "full": cls.full, "output_only": cls.output_only}
        if not is_only and len(items) == 1 and items[0].replace("-", "_") in presets:
            return presets[items[0].replace("-", "_")]()
        if any(item.replace("-", "_") in presets for item in items):
            raise ValueError(f"freeze: a preset stands alone, got '{text}'")
        patterns = tuple(item for item in items if item not in GROUPS)
        for item in patterns:
            if item.startswith("only:"):
                raise ValueError(f"freeze: write only: once, at the start, got '{text}'")
            if not re.search(r"[.*?]", item):
                near = suggestion(item, [*presets, *GROUPS])
                raise ValueError(f"freeze: '{item}'{near} is neither a preset "
                                 f"({', '.join(presets)}), nor a group ({', '.join(GROUPS)}), nor "
                                 "a pattern, which has a dot, * or ? (h.3.ln_1.*, trunk.w)")
        if is_only:
            return cls(only=tuple(items))
        return cls(**{item: True for item in items if item in GROUPS}, patterns=patterns)

    def __str__(self):
        """Return the text that :meth:`parse` reads."""
        if self.only:
            return f"only:{','.join(self.only)}"
        groups = [f.name for f in fields(self) if f.name in GROUPS and getattr(self, f.name)]
        return ",".join([*groups, *self.patterns]) or "full"

    def frozen(self, name, group):
        """Return whether this mask freezes a parameter, by its name and group."""
        one_of(f"parameter '{name}'", "its group", group, GROUPS)
        if self.only:
            return group not in self.only and not self.matches(name)
        return getattr(self, group) or self.matches(name)

    def matches(self, name):
        """Return whether any pattern of this mask matches a name."""
        return any(matches(name, pattern) for pattern in self.only or self.patterns)

    def select(self, layer):
        """Return ``{name: whether it is frozen}`` for every parameter of a layer or model.

        Raises ``ValueError`` for a pattern that matches no parameter.
        """
        named = dict(layer.named_parameters())
        names = [*named, *(part for name, p in named.items()
                           for third, (_, heads) in qkv_columns(name, p).items()
                           for part in (third, *heads))]
        groups = {p.group for p in named.values()}
        for pattern in self.only or self.patterns:
            if pattern not in groups and not any(matches(name, pattern) for name in names):
                near = difflib.get_close_matches(pattern, names, 1, 0.0) or ["(there are none)"]
                raise ValueError(f"freeze: the pattern '{pattern}' matches no parameter; "
                                 f"the nearest name is '{near[0]}'")
        frozen = {}
        for name, p in named.items():
            frozen[name] = self.frozen(name, p.group)
            if p.heads:
                width = sum(columns.stop - columns.start for columns in self.columns(name, p))
                frozen[name] = width == p.data.shape[-1] or (frozen[name] and not self.only)
        return frozen

    def columns(self, name, parameter):
        """Return the slices of a parameter's columns that patterns freeze."""
        slices = []
        if self.only and not self.frozen(name, parameter.group):
            return ()
        for third, (all_columns, heads) in qkv_columns(name, parameter).items():
            frozen = [columns for head, columns in heads.items()
                      if (self.matches(third) or self.matches(head)) != bool(self.only)]
            slices += [all_columns] if len(frozen) == len(heads) else frozen
        return tuple(slices)

    def apply(self, layer):
        """Set ``.trainable`` of every parameter of a layer or model.  What is frozen loses its
        gradient."""
        frozen = self.select(layer)
        for name, p in layer.named_parameters():
            p.trainable = not frozen[name]
            p.frozen_columns = self.columns(name, p) if p.trainable else ()
            if frozen[name] or p.frozen_columns:
                p.grad = None


def check_pattern(pattern):
    """Raise ``ValueError`` for a pattern with brackets, or with a range that counts down."""
    if "[" in pattern or "]" in pattern:
        raise ValueError(f"freeze: '{pattern}' has brackets, which no pattern takes: a range of "
                         "blocks is h.3-5.*")
    for first, last in RANGE.findall(pattern):
        if int(first) > int(last):
            raise ValueError(f"freeze: '{pattern}' counts down, expected {last}-{first}")


def matches(name, pattern):
    """Return whether a pattern matches a parameter's name, with or without ``trunk.``."""
    ranges = RANGE.findall(pattern)
    parts = [re.escape(part).replace(r"\*", ".*").replace(r"\?", ".")
             for part in RANGE.sub("\n", pattern).split("\n")]
    for text in (name, name.removeprefix("trunk.")):
        match = re.fullmatch("([0-9]+)".join(parts), text)
        if match and all(int(first) <= int(number) <= int(last) for number, (first, last)
                         in zip(match.groups(), ranges, strict=True)):
            return True
    return False


def qkv_columns(name, parameter):
    """Return ``{name: (columns, {head's name: its columns})}`` for each of queries, keys and values
    that a parameter makes, such as ``h.0.attn.c_attn.weight.keys`` with the heads ``.keys.0`` ...;
    columns are a slice."""
    result = {}
    for i, (part, n_head) in enumerate(parameter.heads.items()):
        width = parameter.data.shape[-1] // len(parameter.heads)
        start, size = i * width, width // n_head
        result[f"{name}.{part}"] = slice(start, start + width), {
            f"{name}.{part}.{j}": slice(start + j * size, start + (j + 1) * size)
            for j in range(n_head)}
    return result


def trained_parts(layer):
    """Return ``{group: names}`` for each group that is trained in part: the names of what is
    trained, with blocks in a row as a range, as patterns take it."""
    groups = {}
    for name, p in layer.named_parameters():
        groups.setdefault(p.group, []).append((name.removeprefix("trunk."), p))
    return {group: in_ranges([part for name, p in pairs for part in trained_columns(name, p)])
            for group, pairs in groups.items()
            if 0 < sum(p.trained_size() for _, p in pairs) < sum(p.data.size for _, p in pairs)}


def trained_columns(name, parameter):
    """Return the names of what is trained of a parameter: its own, or those of columns."""
    if not (parameter.trainable and parameter.frozen_columns):
        return [name] if parameter.trainable else []
    is_trained = np.ones(parameter.data.shape[-1], bool)
    for columns in parameter.frozen_columns:
        is_trained[columns] = False
    names = []
    for third, (all_columns, heads) in qkv_columns(name, parameter).items():
        names += [third] if is_trained[all_columns].all() else [
            head for head, columns in heads.items() if is_trained[columns].all()]
    return names or [f"{name} in part"]


def in_ranges(names):
    """Return names with those that differ in the block's number as one, ``h.3-5.ln_1.weight``."""
    ranges = {}                                           # {the name behind the number: [[3, 5]]}
    for name in names:
        number, rest = re.fullmatch(r"(?:h\.([0-9]+))?(.*)", name).groups()
        blocks = ranges.setdefault(rest, [])
        if number and blocks and blocks[-1][1] == int(number) - 1:
            blocks[-1][1] += 1
        elif number:
            blocks.append([int(number), int(number)])
    return [text for rest, blocks in ranges.items() for text in (
        [f"h.{first}-{last}{rest}" if last > first else f"h.{first}{rest}"
         for first, last in blocks] or [rest])]


def frozen_crc(model):
    """Return a CRC-32 of all frozen parameters, which are not in the checkpoint, and of all frozen
    columns."""
    return crc(array for _, p in model.named_parameters() for array in (
        [p.data[..., columns] for columns in p.frozen_columns] if p.trainable else [p.data]))


def trained_record(model):
    """Return ``{name: frozen columns}`` of the trained parameters, for ``config.json``; columns
    are lists of first, end and step, as of a slice."""
    return {name: [[columns.start, columns.stop, columns.step] for columns in p.frozen_columns]
            for name, p in model.named_parameters() if p.trainable}


def train_as_recorded(model, record):
    """Freeze the parameters of a model as :func:`trained_record` says, whoever froze them."""
    parameters = dict(model.named_parameters())
    for name in record:
        if name not in parameters:
            raise ValueError(f"the model has no parameter '{name}'")
    for name, p in parameters.items():
        p.trainable = name in record
        if p.trainable:
            p.frozen_columns = tuple(slice(*columns) for columns in record[name])
