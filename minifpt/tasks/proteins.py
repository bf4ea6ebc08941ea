"""Tasks on proteins: predict the fold of a chain of amino acids, real or generated."""

import itertools

import numpy as np

from ..checks import whole
from ..files import data as files
from ..files.runs import crc
from .base import COSINE, Choices

LETTERS = "ABCDEFGHIKLMNOPQRSTUVWXYZ"                     # TAPE's (IUPAC); ids are indices
PAD = len(LETTERS)
COMMON = np.array([LETTERS.index(a) for a in "ACDEFGHIKLMNPQRSTVWY"], np.uint8)   # the usual 20
CODES = np.full(256, 255, np.uint8)                       # ids by ASCII
CODES[list(LETTERS.encode())] = np.arange(PAD)
MOTIFS = 6                                                # motifs of a generated protein
HELD_OUT = 4                                              # families of a fold in each other split


class Proteins(Choices):
    """The base class of both tasks: ids (B, tokens) with a 26th symbol as padding on the left.
    The answer is read at the last token, which is the chain's last amino acid."""

    input_dim, output_tokens, ids = PAD + 1, 1, True
    splits = "train", "validation", "test"


class Homology(Proteins):
    """Remote homology: classify a protein by its fold, one of 1,195.  The proteins are SCOP's, in
    TAPE's files (Rao et al. 2019, arXiv 1906.08230).

    x (B, length) int64: 25 amino acids, and a 26th symbol as padding on the left; y (B, 1).
    Proteins of more than ``length`` amino acids are left out, also in tests.  The paper leaves out
    proteins of more than 1,024 and counts them as wrong.

    holdout   TAPE's test file: "fold" has superfamilies that are not in training, "superfamily"
              has families that are not in training, "family" has more proteins of the training
              families.  The paper's code tests on TAPE's validation file instead.
    data      the folder of the files, see :func:`minifpt.files.data.remote_homology`.
    """

    name = "homology"
    label = "remote homology"
    chance = 1 / 1195
    output_dim = classes = files.FOLDS
    defaults = COSINE | {"steps": 2000}

    def __init__(self, length=1024, holdout="fold", data=None):
        if holdout not in ("fold", "superfamily", "family"):
            raise ValueError(f"{self.name}: holdout must be fold, superfamily or family, "
                             f"got {holdout!r}")
        self.tokens, self.holdout = whole(self.name, "length", length), holdout
        self.data = None if data is None else str(data)
        self.options = {"length": self.tokens, "holdout": holdout, "data": self.data}
        self.read = {}                                    # {split: (ids, folds)}

    def stored(self, split):
        """Return all ids uint8 (N, length) and folds uint16 (N,) of a split."""
        if split not in self.read:
            stem = {"train": "train", "validation": "valid",
                    "test": f"test_{self.holdout}_holdout"}[split]
            proteins, folds = files.remote_homology(stem, self.data)
            chains = [encode(f"{self.name}: {stem}: record {n}", protein)
                      for n, protein in enumerate(proteins, 1)]
            rows = [n for n, chain in enumerate(chains) if len(chain) <= self.tokens]
            if not rows:
                raise ValueError(f"{self.name}: {stem} has no protein of at most length="
                                 f"{self.tokens} amino acids, the shortest has "
                                 f"{min(map(len, chains))}")
            self.read[split] = padded([chains[n] for n in rows], self.tokens), folds[rows]
        return self.read[split]

    def fingerprint(self):
        """Return a CRC-32 of all ids and folds."""
        return crc(a for split in self.splits for a in self.stored(split))

    def draw(self, rng, size, split):
        chains, folds = self.stored(split)
        chosen = rng.integers(0, len(chains), size)       # with replacement: no epoch to keep
        return chains[chosen].astype(np.int64), folds[chosen, None].astype(np.int64)

    def test_set(self):
        """Return ``(x, y)`` of all test proteins of at most ``length`` amino acids."""
        chains, folds = self.stored("test")
        return chains.astype(np.int64), folds[:, None].astype(np.int64)


class Families(Proteins):
    """Classify a generated protein by its fold, as in :class:`Homology` but without files.

    All folds have the same six motifs, short chains of amino acids.  A fold is the order of the
    motifs on a circle, and an example may begin with any of them.  Before each motif and at the
    end is a spacer of random length with random amino acids.  So neither the amino acids, nor the
    pairs of neighbours, nor their places give away the fold: a linear classifier of these is at
    chance.  Each family of a fold has its own variants of the motifs, and the families in
    validation and test are not in training.

    x (B, length) int64, with padding as in :class:`Homology`; y (B, 1).

    folds      number of folds, which are the classes, at most 120.
    families   training families of each fold; validation and test have 4 more each.
    length     number of tokens.  A motif has a twelfth of it, a spacer at most an eighth; a
               longer chain loses its beginning.
    distance   share of a motif's amino acids that a family replaces.
    mutation   share of amino acids that an example replaces.
    world      seed of the motifs, the folds and the families.
    """

    name = "families"
    label = "made-up families"
    chance = 0.1
    defaults = COSINE | {"steps": 2000}
    redrawn = "world"                                     # the option that a grid sets to the seed

    def __init__(self, folds=10, families=16, length=64, distance=0.2, mutation=0.05, world=0):
        self.folds = self.output_dim = self.classes = whole(self.name, "folds", folds, 2)
        self.chance = 1 / self.folds
        self.families = whole(self.name, "families", families)
        self.tokens = whole(self.name, "length", length, 12)
        self.world = whole(self.name, "world", world, 0, np.inf)
        for option, share in (("distance", distance), ("mutation", mutation)):
            if not isinstance(share, (int, float)) or not 0 <= share < 1:
                raise ValueError(f"{self.name}: {option} must be at least 0 and below 1, "
                                 f"got {share!r}")
        orders = [(0, *order) for order in itertools.permutations(range(1, MOTIFS))]
        if self.folds > len(orders):
            raise ValueError(f"{self.name}: folds is {folds}, expected at most {len(orders)}")
        self.distance, self.mutation = float(distance), float(mutation)
        self.options = {"folds": self.folds, "families": self.families, "length": self.tokens,
                        "distance": self.distance, "mutation": self.mutation, "world": self.world}
        rng = np.random.default_rng([self.world, 0xFA3])
        self.motifs = rng.choice(COMMON, (MOTIFS, self.tokens // 12))
        self.orders = rng.permutation(orders)[:self.folds]
        # {split: the motifs of each fold's families, (folds, families, MOTIFS, tokens // 12)}
        self.variants = {split: replaced(rng, np.broadcast_to(self.motifs, (
            self.folds, self.families if split == "train" else HELD_OUT, *self.motifs.shape)),
            self.distance) for split in self.splits}

    def draw(self, rng, size, split):
        variants = self.variants[split]
        fold = rng.integers(0, self.folds, size)
        family = rng.integers(0, variants.shape[1], size)
        motifs = replaced(rng, variants[fold, family], self.mutation)
        first = rng.integers(0, MOTIFS, size)
        spacers = rng.integers(0, self.tokens // 8 + 1, (size, MOTIFS + 1))
        chains = []
        for i in range(size):
            parts = []
            for motif, n in zip(np.roll(self.orders[fold[i]], first[i]), spacers[i], strict=False):
                parts += [rng.choice(COMMON, n), motifs[i, motif]]
            chains.append(np.concatenate([*parts, rng.choice(COMMON, spacers[i, -1])]))
        return padded(chains, self.tokens).astype(np.int64), fold[:, None]

    def test_set(self):
        """Return ``(x, y)`` of 1,000 test examples, which depend on ``world`` alone."""
        return self.draw(np.random.default_rng(0xFA3), 1000, "test")


def replaced(rng, chains, share):
    """Return ``chains``, each amino acid replaced by a random one with probability ``share``."""
    return np.where(rng.random(chains.shape) < share, rng.choice(COMMON, chains.shape), chains)


def encode(label, protein):
    """Return the ids uint8 (n,) of a string of letters; ``label`` begins the error."""
    ids = CODES[np.frombuffer(protein.encode("latin-1", "replace"), np.uint8)]
    if (ids == 255).any():
        raise ValueError(f"{label} has {protein[int((ids == 255).argmax())]!r}, expected amino "
                         f"acids, {LETTERS}")
    return ids


def padded(chains, tokens):
    """Return ids uint8 (N, tokens): short chains have padding on the left, long ones lose their
    beginning."""
    ids = np.full((len(chains), tokens), PAD, np.uint8)
    for row, chain in zip(ids, chains, strict=True):
        row[max(0, tokens - len(chain)):] = chain[-tokens:]
    return ids
