"""Made-up proteins, a task for ``benchmarks.simple``.  A transformer trains on them by

    minifpt train benchmarks/families.py:Families
"""

import itertools

import numpy as np

from minifpt.checks import whole
from minifpt.tasks.base import COSINE, Choices
from minifpt.tasks.proteins import LETTERS, PAD, padded

COMMON = np.array([LETTERS.index(a) for a in "ACDEFGHIKLMNPQRSTVWY"], np.uint8)   # the usual 20
MOTIFS = 6                                                # motifs of a generated protein
HELD_OUT = 4                                              # families of a fold in each other split


class Families(Choices):
    """Classify a generated protein by its fold, as in ``minifpt.tasks.Homology`` but without files.

    All folds have the same six motifs, short chains of amino acids.  A fold is the order of the
    motifs on a circle, and an example may begin with any of them.  Before each motif and at the
    end is a spacer of random length with random amino acids.  So neither the amino acids, nor the
    pairs of neighbours, nor their places give away the fold: a linear classifier of these is at
    chance.  Each family of a fold has its own variants of the motifs, and the families in
    validation and test are not in training.

    x (B, length) int64, with padding as there; y (B, 1).

    folds      number of folds, which are the classes, at most 120.
    families   training families of each fold; validation and test have 4 more each.
    length     number of tokens.  A motif has a twelfth of it, a spacer at most an eighth; a
               longer chain loses its beginning.
    distance   share of a motif's amino acids that a family replaces.
    mutation   share of amino acids that an example replaces.
    world      seed of the motifs, the folds and the families.
    """

    input_dim, output_tokens, ids = PAD + 1, 1, True
    splits = "train", "validation", "test"
    name = "families"
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


if __name__ == "__main__":
    print(__doc__)                                        # no command: it is imported
