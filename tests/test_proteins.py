"""Folds of proteins, from TAPE's files."""

import gzip
import json

import numpy as np
import pytest
from test_data import nowhere  # noqa: F401 (a fixture)

from minifpt import cli, tasks
from minifpt.experiments import plan
from minifpt.files import data
from minifpt.tasks.proteins import LETTERS, PAD, padded

SPLITS = "train", "valid", "test_fold_holdout", "test_superfamily_holdout", "test_family_holdout"
RECORD = {"id": "d1a0aa_", "primary": "MKTB", "protein_length": 4, "class_label": 0,
          "fold_label": 1194, "superfamily_label": 0, "family_label": 0,
          "evolutionary": [[0.0] * 20] * 4, "secondary_structure": [[1.0, 0.0, 0.0]] * 4}


def rng(seed=0):
    return np.random.default_rng(seed)


def record(primary, fold):
    return RECORD | {"primary": primary, "protein_length": len(primary), "fold_label": fold}


def write_homology(folder, seed=0):
    """TAPE's five files with a few proteins each, in ``folder``; {split: [(protein, fold)]}."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, written = rng(seed), {}
    for split in SPLITS:
        written[split] = [("".join(draw.choice(list(LETTERS), n)), int(draw.integers(1195)))
                          for n in draw.integers(3, 30, 8)]
        text = json.dumps([record(*pair) for pair in written[split]])
        (folder / f"remote_homology_{split}.json").write_text(text)
    return written


def decode(ids):
    """Ids (length,) -> the protein; what is filled up stands before it."""
    text = "".join(LETTERS[i] if i < PAD else " " for i in ids)
    assert " " not in text.lstrip()
    return text.lstrip()


# ------------------------------------------------------------------------ TAPE's files


@pytest.mark.parametrize("inner", [".", "homology", "remote_homology"])
def test_files_are_found_and_read(tmp_path, inner, monkeypatch):
    written = write_homology(tmp_path / inner)
    monkeypatch.setenv("MINIFPT_DATA", str(tmp_path))
    for split in SPLITS:
        proteins, folds = data.remote_homology(split)
        assert [*zip(proteins, folds.tolist(), strict=True)] == written[split]


def test_a_file_is_read_gzipped_or_not(tmp_path):
    path = tmp_path / "remote_homology_valid.json"
    text = json.dumps([record("MKV", 3), record("ACD", 0)], indent=1)
    for write in (text.encode(), f"\n {text}\n".encode(), gzip.compress(text.encode())):
        path.write_bytes(write)
        proteins, folds = data.remote_homology("valid", tmp_path)
        assert proteins == ["MKV", "ACD"] and folds.tolist() == [3, 0]


@pytest.mark.parametrize("text, message", [
    ("{}", "train.json: expected a JSON list of records"),
    ("[]", "holds no record"), ("[1]", "record 1: expected primary"),
    *[(text, "train.json: not JSON, or cut short") for text in (
        "", json.dumps([RECORD])[:-1], json.dumps([RECORD])[:-9], "[" * 99999, "[nonsense]")],
    (json.dumps([RECORD, RECORD | {"fold_label": 1195}]), "record 2: expected [^\n]*0 to 1194"),
    (json.dumps([RECORD | {"fold_label": -1}]), "record 1"),
    (json.dumps([RECORD | {"fold_label": True}]), "record 1"),
    (json.dumps([RECORD | {"fold_label": 1.0}]), "record 1"),
    (json.dumps([RECORD | {"primary": [4, 5]}]), "record 1: expected primary, a string"),
    (json.dumps([RECORD | {"primary": "", "protein_length": 0}]), "record 1"),
    (json.dumps([RECORD | {"protein_length": 5}]), "record 1: [^\n]*of protein_length letters"),
    (json.dumps([RECORD, RECORD | {"primary": "MKTJ"}]), "record 2 has 'J', expected amino acids"),
    (json.dumps([RECORD | {"primary": "mktb"}]), "record 1 has 'm'"),
    (json.dumps([RECORD | {"primary": "MK\u03b1B"}]), "record 1 has '\u03b1'"),
])
def test_damaged_files_are_refused(tmp_path, text, message):
    write_homology(tmp_path)
    (tmp_path / "remote_homology_train.json").write_text(text)
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        tasks.get("homology", data=tmp_path).batch(rng(), 1)


def test_missing_files_say_where_they_are(tmp_path, nowhere, fails):  # noqa: F811
    for folder, part in ((None, "give the folder as MINIFPT_DATA or --data$"),
                         (tmp_path, "unpack it$")):
        with pytest.raises(FileNotFoundError, match="^homology: [^\n]*remote_homology_train.json"
                           "[^\n]*data_raw_pytorch/remote_homology.tar.gz[^\n]*" + part):
            tasks.get("homology", data=folder).batch(rng(), 1)
    fails("train", "homology", "--length", 64, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------- the task


def test_the_last_token_is_the_last_amino_acid(tmp_path):
    written = write_homology(tmp_path)
    task = tasks.get("homology", length=40, data=tmp_path)
    assert (task.tokens, task.input_dim, task.output_dim) == (40, 26, 1195)
    x, y = task.test_set()
    assert x.shape == (8, 40) and x.dtype == np.int64
    assert [*zip(map(decode, x), y[:, 0].tolist(), strict=True)] == written["test_fold_holdout"]
    assert all(LETTERS[row[-1]] == protein[-1]
               for row, (protein, _) in zip(x, written["test_fold_holdout"], strict=True))
    assert len(LETTERS) == 25 and "J" not in LETTERS and tasks.get("homology").tokens == 1024


@pytest.mark.parametrize("holdout", ["fold", "superfamily", "family"])
def test_each_split_is_its_file(tmp_path, holdout):
    written = write_homology(tmp_path)
    task = tasks.get("homology", length=32, holdout=holdout, data=tmp_path)
    for split, stem in (("train", "train"), ("validation", "valid"),
                        ("test", f"test_{holdout}_holdout")):
        x, y = task.batch(rng(), 100, split)
        assert {*zip(map(decode, x), y[:, 0].tolist(), strict=True)} == {*written[stem]}


def test_longer_proteins_are_left_out(tmp_path):
    written = write_homology(tmp_path)
    lengths = sorted(len(protein) for protein, _ in written["test_fold_holdout"])
    x, _ = tasks.get("homology", length=lengths[4], data=tmp_path).test_set()
    assert len(x) == sum(n <= lengths[4] for n in lengths) and x.shape[1] == lengths[4]
    with pytest.raises(ValueError, match=f"^homology: test_fold_holdout has no protein of at most "
                                         f"length=1 amino acids, the shortest has {lengths[0]}$"):
        tasks.get("homology", length=1, data=tmp_path).test_set()


def test_fingerprint_sees_one_amino_acid(tmp_path):
    write_homology(tmp_path)
    before = tasks.get("homology", length=40, data=tmp_path).fingerprint()
    assert before == tasks.get("homology", length=40, data=tmp_path).fingerprint()
    path = tmp_path / "remote_homology_valid.json"
    text = json.loads(path.read_text())
    text[3]["primary"] = ("A" if text[3]["primary"][0] != "A" else "C") + text[3]["primary"][1:]
    path.write_text(json.dumps(text))
    assert tasks.get("homology", length=40, data=tmp_path).fingerprint() != before


def test_a_plan_needs_no_files(capsys):
    x, y = plan.examples(tasks.get("homology"), rng(), 2)
    assert x.shape == (2, 1024) and x.dtype == np.int64 and x.max() <= 25 and y.shape == (2, 1, 1)
    args = ["plan", "homology", "--model", "random:1x1x8", "--batch-size", 1]
    assert cli.main(args) == 0 and "1024" in capsys.readouterr().out


def test_a_long_protein_loses_its_beginning():
    chains = [np.arange(n, dtype=np.uint8) for n in (0, 2, 4, 6)]
    assert padded(chains, 4).tolist() == [[PAD] * 4, [PAD, PAD, 0, 1], [0, 1, 2, 3], [2, 3, 4, 5]]
