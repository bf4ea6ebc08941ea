"""Remote homology: predict the fold of a protein."""

import numpy as np

from ..checks import one_of, whole
from ..files import data as files
from .base import COSINE, FileTask

LETTERS = "ABCDEFGHIKLMNOPQRSTUVWXYZ"                     # TAPE's (IUPAC); ids are indices
PAD = len(LETTERS)
CODES = np.full(256, 255, np.uint8)                       # ids by ASCII
CODES[list(LETTERS.encode())] = np.arange(PAD)


class Homology(FileTask):
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

    input_dim, output_tokens, ids = PAD + 1, 1, True
    splits = "train", "validation", "test"
    name = "homology"
    label = "remote homology"
    chance = 1 / files.FOLDS
    output_dim = classes = files.FOLDS
    defaults = COSINE | {"steps": 2000}

    def __init__(self, length=1024, holdout="fold", data=None):
        one_of(self.name, "holdout", holdout, ("fold", "superfamily", "family"))
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

    def prepare(self, chains, folds, rng=None):
        return chains.astype(np.int64), folds[:, None].astype(np.int64)


def encode(label, protein):
    """Return the ids uint8 (n,) of a string of letters; ``label`` begins the error."""
    ids = CODES[np.frombuffer(protein.encode("latin-1", "replace"), np.uint8)]
    if (ids == 255).any():
        raise ValueError(f"{label} has {protein[int((ids == 255).argmax())]!r}, expected amino "
                         f"acids, {LETTERS}")
    return ids


def padded(chains, tokens):
    """Return ids uint8 (N, tokens), with padding on the left."""
    ids = np.full((len(chains), tokens), PAD, np.uint8)
    for row, chain in zip(ids, chains, strict=True):
        row[tokens - len(chain):] = chain
    return ids
