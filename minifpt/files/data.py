"""Data sets: find their files, or download them, and read them."""

import gzip
import hashlib
import json
import math
import os
import shutil
import sys
import tarfile
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from . import cache_folder, one_line, refuse_damage, refuse_pointer, write_beside

URLS = {"mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "cifar10": "https://www.cs.toronto.edu/~kriz/"}
# The names of a data set's folder: ours, and the one in its archive.
FOLDERS = {"cifar10": ("cifar10", "cifar-10-batches-bin"),
           "homology": ("homology", "remote_homology")}
CIFAR10 = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
ARCHIVES = {"cifar10": ("cifar-10-binary.tar.gz",         # name, and SHA-256
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")}
# Data sets that minifpt cannot download, because nobody published their checksums.
ELSEWHERE = {"homology": "they are in http://s3.amazonaws.com/songlabdata/proteindata/"
                         "data_raw_pytorch/remote_homology.tar.gz (TAPE, as JSON): unpack it"}
FOLDS = 1195                                              # classes of remote homology
SHA256 = {                                                # of MNIST's files
    "train-images-idx3-ubyte.gz":
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz":
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz":
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz":
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
OFFICIAL = {                                              # of what is in them, without gzip
    (60000, 28, 28): "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    (60000,): "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    (10000, 28, 28): "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    (10000,): "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    # The training files of CIFAR-10 one behind the other, and its test file.
    (50000, 3073): "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b",
    (10000, 3073): "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"}


def find(name, files, data=None):
    """Return the paths of the ``files`` of the data set ``name``, in their order.

    The files may be in the folder ``data``, or if it is ``None`` in ``$MINIFPT_DATA`` or in the
    user's cache folder; otherwise they are downloaded into the cache folder.  In each place they
    may also be in a folder with the data set's name (see ``FOLDERS``).  Raises
    ``FileNotFoundError`` if they are not in ``data``, or cannot be downloaded.
    """
    if data is not None and not str(data).strip():
        raise ValueError(f"{name}: data is empty, expected a folder")
    cache = cache_folder() / "data"
    user_folder = data or os.environ.get("MINIFPT_DATA")
    places = ([Path(os.path.expanduser(user_folder))] if user_folder else []) + (
        [] if data else [cache])
    inner = FOLDERS.get(name, (name,))
    for place in places:
        for folder in (*(place / n for n in inner), place):
            paths = [path for file in files for path in spellings(folder, file)[:1]]
            if len(paths) == len(files):
                return paths
    refuse_pickles(name, places)
    if data:
        raise FileNotFoundError(f"{name}: {data} does not hold {' and '.join(files)}, "
                                f"neither itself nor in its folder {' or '.join(inner)}"
                                + (f"; {ELSEWHERE[name]}" if name in ELSEWHERE else ""))
    missing = f"{name}: {' and '.join(files)} not found in {' or '.join(map(str, places))}"
    if name in ELSEWHERE:
        raise FileNotFoundError(f"{missing}; {ELSEWHERE[name]} and give the folder as "
                                "MINIFPT_DATA or --data")
    if name in ARCHIVES:
        unpack(download(name, *ARCHIVES[name], cache / name, missing), CIFAR10)
        return [cache / name / file for file in files]
    return [download(name, file, SHA256[file], cache / name, missing) for file in files]


def spellings(folder, file):
    """Return the paths of ``file`` in ``folder``: gzipped or not, ``-idx`` or ``.idx``."""
    plain = file.removesuffix(".gz")
    names = [spelling + end for spelling in (plain, plain.replace("-idx", ".idx"))
             for end in (".gz", "")]
    return [folder / name for name in names if (folder / name).is_file()]


def refuse_pickles(name, places):
    """Raise ``FileNotFoundError`` if a place holds CIFAR-10's Python version."""
    for folder in [f for place in places for f in (place, place / "cifar-10-batches-py")]:
        if name == "cifar10" and (folder / "data_batch_1").is_file():
            raise FileNotFoundError(
                f"cifar10: {folder} holds the Python version, whose pickles minifpt does not open: "
                "convert them as docs/guide/data.md shows, or take the binary version")


def download(name, file, sha256, folder, missing):
    """Download a file into a folder, check its hash, return its path; ``missing`` begins errors."""
    try:
        import pooch
    except ImportError:
        raise FileNotFoundError(f"{missing}: install pooch to download them, or give their folder "
                                "as MINIFPT_DATA or --data") from None
    try:                                                  # pooch renames the file after its check
        return Path(pooch.retrieve(URLS[name] + file, "sha256:" + sha256, fname=file,
                                   path=folder, progressbar=sys.stderr.isatty()))
    except (OSError, ValueError) as e:
        raise FileNotFoundError(f"{missing}, the download from {URLS[name]} failed "
                                f"({one_line(e)}): give their folder as MINIFPT_DATA or --data"
                                ) from None


def unpack(archive, files):
    """Write the ``files`` of CIFAR-10's archive beside it, and delete the archive."""
    with refuse_damage(f"{archive}: not CIFAR-10's archive"), tarfile.open(archive) as tar:
        for file in files:
            data = tar.extractfile(f"cifar-10-batches-bin/{file}")
            write_beside(archive.with_name(file), partial(shutil.copyfileobj, data))
    archive.unlink()


@contextmanager
def unzipped(path):
    """Open a file, gzipped or not, to read its bytes."""
    refuse_pointer(path)
    with open(path, "rb") as f:                           # some programs unzip and keep the .gz
        zipped = f.read(2) == b"\x1f\x8b"
    try:
        with (gzip.open if zipped else open)(path, "rb") as f:
            yield f
    except (OSError, EOFError, zlib.error) as e:
        raise ValueError(f"{path}: damaged or cut short ({e})") from None


def read_idx(path, ndim):
    """Return the uint8 array with ``ndim`` axes in an IDX file, gzipped or not.

    The file has the bytes ``00 00 08 ndim``, then each axis' length in four bytes, then the
    numbers.  Raises ``ValueError`` if it is another file, or damaged.
    """
    magic, start = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
    with unzipped(path) as f:
        head, raw = f.read(start), f.read()
    if head[:4] != magic:
        raise ValueError(f"{path}: starts with '{head[:4].hex(' ')}', expected "
                         f"'{magic.hex(' ')}', an IDX file of bytes with {ndim} axes")
    shape = [int.from_bytes(head[i:i + 4], "big") for i in range(4, start, 4)]
    if len(head) < start or len(raw) != math.prod(shape):
        raise ValueError(f"{path}: its header says {math.prod(shape):,} bytes of numbers, the file "
                         f"has {len(raw):,}: damaged or cut short")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def name_difference(paths, array, head=b""):
    """Say so on stderr where an array of an official shape has another SHA-256, ``head`` before
    it, than what is in the official files."""
    official = OFFICIAL.get(array.shape)
    if official and hashlib.sha256(head + array.tobytes()).hexdigest() != official:
        print(f"minifpt: {' and '.join(map(str, paths))}: another SHA-256 than the official "
              "file's: damaged, or another data set of this form, such as Fashion-MNIST",
              file=sys.stderr)


def mnist(split, data=None):
    """Return the digits of a split: images uint8 (N, 28, 28), labels uint8 (N,) in 0 ... 9.

    ``split`` is "train" or "test"; see :func:`find` for ``data``.  The arrays are read-only.  Files
    of the official size with other contents are named on stderr.
    """
    stem = {"train": "train", "test": "t10k"}[split]
    paths = find("mnist", [file for file in SHA256 if file.startswith(stem)], data)
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    for path, array in zip(paths, (images, labels), strict=True):
        lengths = b"".join(n.to_bytes(4, "big") for n in array.shape)
        name_difference([path], array, bytes([0, 0, 8, array.ndim]) + lengths)
    if images.shape != (len(labels), 28, 28) or len(labels) == 0 or labels.max() > 9:
        raise ValueError(f"{paths[0]}: images {images.shape} with {len(labels)} labels, "
                         "expected (N, 28, 28), N at least 1, with N labels from 0 to 9")
    return images, labels


def cifar10(split, data=None):
    """Return the pictures of a split: images uint8 (N, 3, 32, 32), labels uint8 (N,) in 0 ... 9.

    ``split`` is "train" or "test"; see :func:`find` for ``data``.  The files are the binary
    version, which has for each picture a byte for the label, then 1,024 bytes each for red,
    green and blue, row by row.  Files of the official size with other contents are named on
    stderr.
    """
    paths = find("cifar10", CIFAR10[:-1] if split == "train" else CIFAR10[-1:], data)
    rows = np.concatenate([read_cifar10(path) for path in paths])
    name_difference(paths, rows)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def read_cifar10(path):
    """Return the uint8 (N, 3073) in a file of CIFAR-10's binary version: labels, then pixels."""
    with unzipped(path) as f:
        raw = f.read()
    if not raw or len(raw) % 3073:
        raise ValueError(f"{path}: {len(raw):,} bytes, expected 3,073 for each picture, a label "
                         "and 3 x 32 x 32 pixels: damaged, cut short, or another file")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
    if rows[:, 0].max() > 9:
        n = int((rows[:, 0] > 9).argmax())
        raise ValueError(f"{path}: picture {n + 1} has the label {rows[n, 0]}, expected 0 to 9")
    return rows


def remote_homology(split, data=None):
    """Return the proteins of a split, a list of strings with a letter for each amino acid, and
    their folds, uint16 (N,) in 0 ... 1194.

    ``split`` is "train", "valid", "test_fold_holdout", "test_superfamily_holdout" or
    "test_family_holdout"; see :func:`find` for ``data``.  The files are TAPE's in JSON (Rao et
    al. 2019, arXiv 1906.08230): lists of records with ``primary``, ``fold_label`` and
    ``protein_length``.
    """
    path, = find("homology", [f"remote_homology_{split}.json"], data)
    proteins, folds = [], []
    for n, record in enumerate(records(path), 1):
        record = record if isinstance(record, dict) else {}
        protein, fold = record.get("primary"), record.get("fold_label")
        if not (isinstance(protein, str) and type(fold) is int and 0 <= fold < FOLDS
                and len(protein) == record.get("protein_length", len(protein)) > 0):
            raise ValueError(f"{path}: record {n}: expected primary, a string of protein_length "
                             f"letters, and fold_label, 0 to {FOLDS - 1}")
        proteins.append(protein)
        folds.append(fold)
    if not proteins:
        raise ValueError(f"{path}: holds no record")
    return proteins, np.array(folds, np.uint16)


def records(path):
    """Return the records of a JSON file that holds a list of them, with the fields that are read:
    TAPE's files have 25 numbers for each amino acid, too."""
    def read(record):
        return {key: record[key] for key in ("primary", "fold_label", "protein_length")
                if key in record}
    with unzipped(path) as f:
        try:
            values = json.load(f, object_hook=read)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{path}: not JSON, or cut short ({one_line(e)})") from None
    if not isinstance(values, list):
        raise ValueError(f"{path}: expected a JSON list of records")
    return values
