"""No command replaces a file of the user's, and a run is read back only where all of it is as it
was."""

import shutil
from pathlib import Path

import pytest
from test_compare import history

import minifpt
from minifpt import cli
from minifpt.experiments import compare, tables
from minifpt.viewer.steps import page as steps

TINY = "--n 3 --model random:1x2x16 --steps 4 --batch-size 2"
OWN = """
import minifpt

class Walk(minifpt.tasks.BitXOR):
    '''Which bits differ.'''
    name = "walk"
    def __init__(self, n=3):
        super().__init__(n=n)
        self.options = {"n": n}
    def batch(self, rng, size, split):
        x, y = super().batch(rng, size, split)
        return x, y

def trunk(seed):
    config = minifpt.GPT2Config(1, 2, 16, 6, 256, dropout=0.0, activation_function="gelu_new")
    return minifpt.GPT2(config, seed)
"""


def train(out, line=f"bit-xor {TINY}", seed=0):
    assert cli.main([*f"train {line} --seed {seed} --out".split(), str(out)]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that differ in their seed, and one with a task and a trunk of the user's own."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("own.py").write_text(OWN)
        train("r0")
        train("r1", seed=1)
        train("own", "own.py:Walk --model own.py:trunk --steps 4 --batch-size 2")
    return folder


@pytest.fixture
def here(runs, tmp_path, monkeypatch):
    """A copy of these runs, in the working folder."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(fails):
    """``refused(line)``: the one line of a command that exits 2."""
    return lambda line: fails(*line.split())


def contents():
    return {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}


# ----------------------------------------------------------- files of the user's


@pytest.mark.parametrize("line, file", [
    ("attention r0 --out mine.png", "mine.png"), ("report r0", "r0/report.html"),
    ("steps bit-xor --out mine.py", "mine.py"),
    (f"compare bit-xor --models random:1x2x16 --out c {TINY[TINY.index('--steps'):]}",
     "c/table.md"),
    ("reproduce table3 --out c", "c/table3.csv"), ("new mine.py", "mine.py"),
    ("playground --out mine.html", "mine.html"), ("pretrain bits --out w", "w.npz"),
    ("convert r0 --out w.npz", "w.npz")])
def test_a_file_is_not_replaced_without_force(here, refused, monkeypatch, line, file):
    monkeypatch.setattr(compare, "perform", None)         # refused before anything is computed
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text("step,notes\n1,mine\n")
    before = contents()
    assert f"{path} is there already: choose another name, or replace it with --force" in (
        refused(line))
    assert contents() == before


@pytest.mark.parametrize("line, file", [
    ("attention r0 --out mine.png", "mine.png"), ("report r0 --out mine.html", "mine.html"),
    ("new mine.py", "mine.py"), ("convert r0 --out w.npz", "w.npz"),
    ("compare bit-xor --models random:1x2x16 --seeds 1 --n 3 --steps 4 --batch-size 2 --out c",
     "c/table.md")])
def test_force_replaces_a_file(here, line, file):
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert cli.main(line.split() + ["--force"]) == 0
    assert path.read_bytes() != b"mine"


def test_a_comparison_whose_curves_still_rise_says_so():
    runs = {"language": [history(0.7, 0.9, 0.995, 1.0)], "random": [history(0.5, 0.5, 0.54, 0.6)]}
    line = tables.still_rising(tables.Grid({"bit-xor": runs}, {}, {}, [0]))
    assert line == "Still rising at the end: random on bit XOR. More --steps may change the order."
    del runs["random"]
    runs["short"] = [history(0.5)]
    assert tables.still_rising(tables.Grid({"bit-xor": runs}, {}, {}, [0])) == ""


# --------------------------------------------------- checked before it is computed


@pytest.mark.parametrize("place", ["own.py/x{}", "r0/" + 300 * "x" + "{}", "/proc/x{}", "folder{}"])
@pytest.mark.parametrize("line, ending", [
    ("report r0 --out", ".html"), ("attention r0 --out", ".png"),
    ("steps bit-xor --out", ".html"),
    ("reproduce table3 --out", "/"),
    ("compare bit-xor --out", "/")])
def test_a_place_that_cannot_be_written_is_refused_first(here, refused, monkeypatch, line, ending,
                                                         place):
    for ending_ in ".html", ".png":
        Path(f"folder{ending_}").mkdir()
    if ending == "/":
        Path("folder").write_text("")
    for module, name in ((steps, "of_task"), (compare, "perform")):
        monkeypatch.setattr(module, name, lambda *args, **options: pytest.fail("computes"))
    monkeypatch.setattr("minifpt.experiments.runs.read_run", None)
    refused(f"{line} {place.format(ending)}")


# --------------------------------------------------------- runs that have changed


COMMANDS = "report own", "attention own"


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("old, new", [
    ("return x, y", "return x, 1 - y"), ('"gelu_new"', '"relu"'), ("return x, y", "return x y")])
def test_a_run_of_changed_code_is_refused(here, refused, line, old, new):
    assert old in OWN
    Path("own.py").write_text(OWN.replace(old, new))
    before = contents()
    output = refused(line)
    assert "made with other code" in output or "SyntaxError" in output
    assert contents() == before


def test_a_model_is_not_saved_over_a_file_without_force(tmp_path):
    trunk = minifpt.GPT2(minifpt.GPT2Config(1, 2, 8, 8, 8), seed=0)
    trunk.save(tmp_path / "w.npz")
    with pytest.raises(ValueError, match="w.npz is there already"):
        trunk.save(tmp_path / "w.npz")
    trunk.save(tmp_path / "w.npz", force=True)
