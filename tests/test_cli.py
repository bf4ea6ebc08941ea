"""The commands: what they print and write, and one line with exit status 2 for bad input."""

import json
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import child
from short_runs import checkpoint

import minifpt
from minifpt import cli, functional, tasks
from minifpt.cli import viewing
from minifpt.experiments import pretrain
from minifpt.trunks import names as trunks

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 256}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder without data or weights, where ``random`` is tiny; its path."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MINIFPT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in "pooch", "distributed":
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)
    monkeypatch.setattr(pretrain, "SHAPE", TINY)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The weights of a small language model."""
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    minifpt.LanguageModel(minifpt.GPT2Config(**TINY), seed=1).save(path)
    return path


@pytest.fixture
def own(folder, weights):
    """A user's own file, a text, and the weights of a small language model."""
    (folder / "mine.py").write_text(OWN)
    (folder / "text").write_text("Call me Ishmael. " * 20)
    shutil.copy(weights, folder)
    return folder / "mine.py"


@pytest.fixture
def output(capsys):
    """Run a command, which has to succeed, and return what it prints."""
    def run(line):
        capsys.readouterr()
        assert status_of(line) == 0
        return capsys.readouterr().out
    return run


@pytest.fixture
def fails(folder, capsys):
    """Run a command, which has to exit 2 with one line, and to write nothing."""
    def run(line, part):
        before = contents(folder.parent)
        capsys.readouterr()
        assert status_of(line) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith("minifpt"), err
        assert part in err and len(err) < 500 and contents(folder.parent) == before, err
    return run


def status_of(line):
    """Return the exit status of ``minifpt LINE``."""
    try:
        return cli.main(shlex.split(line))
    except SystemExit as e:
        return e.code


def contents(folder):
    """Return {path: its bytes} of all files below a folder; ``None`` for a folder."""
    return {p: None if p.is_dir() else p.read_bytes() for p in folder.rglob("*")}


def names(folder):
    """Return the names in a folder."""
    return sorted(p.name for p in Path(folder).iterdir())


def config_of(folder):
    """Return the settings of a run."""
    return json.loads(Path(folder, "config.json").read_text())


TRAIN = "train bit-xor --model random --steps 3 --batch-size 2 "

OWN = """
import numpy as np
from minifpt import GPT2, GPT2Config
from minifpt.tasks import BitXOR

class Noisy(BitXOR):
    name = "noisy"

    def __init__(self, n=2, noise=0.0, steps=3, model="m", hard=False, task=1, at_most: int = None,
                 hardest: "bool | None" = None, sizes=(2, 3), words: "list | None" = ["a"],
                 share=np.float64(0.5), table={}):
        super().__init__(n)
        self.options = {"n": n, "noise": noise, "steps": steps, "model": model, "hard": hard,
                        "task": task, "at_most": at_most, "sizes": sizes, "words": words,
                        "share": share}

def needy(share):
    return Noisy(noise=share)

def trunk(seed=0, dropout=0.0):
    return GPT2(GPT2Config(1, 2, 8, 64, 11, dropout), seed)
"""


@pytest.mark.parametrize("option, text, value", [
    ("n", "7", 7), ("noise", "1e-3", 1e-3), ("noise", "2", 2.0), ("hard", "true", True),
    ("hard", "False", False), ("model", "7", "7"), ("at_most", "9", 9), ("n", 7, 7),
    ("hard", True, True), ("sizes", "7", (7,)), ("sizes", "7,8,9", (7, 8, 9)),
    ("sizes", [7, 8], (7, 8)), ("words", "x,7", ["x", "7"]), ("share", "1", np.float64(1))])
def test_options_are_read_as_what_their_defaults_are(own, option, text, value):
    task = tasks.get("mine.py:Noisy", **{option: text})
    assert task.options[option] == value and type(task.options[option]) is type(value)



# ------------------------------------------------------------------ what a command prints


PRINTS = [                                                # (line, parts in this order, files)
    ("", ["Start here:", "train", "Look inside:", "Compare:", "Weights:", "Lessons:"], []),
    ("--version", [f"minifpt {minifpt.__version__}\n"], []),
    ("train bit-xor --n 1 --model random@1.41 --steps 200 --lr 0.03 --eval-every 20 --until 0.95", [
        "bit-xor: 100.00 % test accuracy (256 random examples) after 80 steps",
        "\n95 % after 40 steps; ",
        " parameters trained\n"], ["runs"]),
    (TRAIN, ["bit-xor: ", "% test accuracy (256 random examples) after 3 steps",
             "runs/bit-xor: config.json metrics.csv checkpoint.npz curves.png\n",
             "next: minifpt report runs/bit-xor\n"], ["runs"]),
    ("train mine.py:Noisy --help", [
        "options of mine.py:Noisy:", "--at-most VALUE", "(default: none)", "--n VALUE",
        "(default: 2)", "--noise VALUE", "(default: 0.0)", "--task-steps VALUE"], []),
    ("train mine.py:Noisy --help", ["--hard VALUE", "true or false (default: False)"], []),
    *((f"summary {words} --model {model}", [
        f"{model} on {name}: in {tokens} x ", "attn    self-attention", "frozen",
        " % of the parameters are trained\n"], [])       # mnist's needs no data
      for words, name, model, tokens in (
          ("", "bit-xor", "random", 10), ("bit-memory", "bit-memory", "random", 30),
          ("mnist", "mnist", "random", 49),
          ("bit-xor --n 999", "bit-xor", "lstm:1x8", 1998),         # an LSTM has no positions
          ("mine.py:Noisy --n 4", "noisy", "mine.py:trunk", 8))),
    ("info", [minifpt.__version__, np.__version__, "kernels", "limited by", "MINIFPT_DATA is not",
              "cache/minifpt/data"], []),
    ("pretrain bits -o v.2 --shape 1x1x8 --steps 1 --batch-size 1", ["v.2.npz: "], [
        "v.2", "v.2.npz"]),
    ("perplexity text --model tiny.npz", ["text: perplexity ", "339 bytes scored"], []),
    ("generate Call --tokens 3 --model tiny.npz", ["Call"], []),
    ("lessons . --no-open", ["files copied; existing files stay unchanged"], None)]


@pytest.mark.parametrize("line, parts, files", PRINTS)
def test_a_command_prints_its_result_and_writes_its_files(line, parts, files, folder, own, output):
    before, text = {*names(folder)}, output(line)
    for part in parts:
        assert part in text
        text = text.partition(part)[2]
    assert files is None or {*names(folder)} - before == {*files}


def test_train_makes_a_new_folder_each_time_with_the_options_of_the_command_line(folder, own):
    for _ in range(2):
        assert status_of(TRAIN + "--n 2 --clip 0.5 --warmup 2 --eval-every 2") == 0
    assert names("runs/bit-xor-2") == ["checkpoint.npz", "config.json", "curves.png", "metrics.csv"]
    config = config_of("runs/bit-xor-2")
    recipe = {"trunk": "random", "freeze": "attn,mlp", "dropout": 0.0}
    expected = {"task": "bit-xor", "options": {"n": 2}, "steps": 3, "batch_size": 2, "lr": 3e-3,
                "seed": 0, "clip": 0.5, "warmup": 2, "eval_every": 2, "recipe": recipe}
    config["recipe"] = {key: config["recipe"][key] for key in recipe}
    assert {key: config[key] for key in expected} == expected


def test_resume_goes_on_with_the_newest_run_of_the_task(folder, fails):
    for more in ("-o a --steps 6", "-o runs/bit-xor", "--resume --steps 6",
                 "-o runs/bit-xor-memory"):               # a newer one of another task
        assert status_of(TRAIN + more) == 0
    np.testing.assert_equal(checkpoint(folder / "a")[0], checkpoint(folder / "runs/bit-xor")[0])
    Path("a/metrics.csv").unlink()
    assert status_of(TRAIN + "--resume --steps 6 -o a") == 0            # finished: no harm
    assert len(minifpt.History.load("a/metrics.csv")) == 1              # what was lost is back
    assert status_of("train bit-xor --model random --batch-size 2 --resume -o a") == 0
    assert minifpt.History.load("a/metrics.csv")[-1]["step"] == 6       # its end, not the task's
    (folder / "runs/bit-xor-2").mkdir()                   # a newer one that failed
    (folder / "runs/bit-xor-2/config.json").write_text("{}")
    assert status_of(TRAIN + "--resume --steps 6") == 0
    fails(TRAIN + "--resume --steps 6 --seed 3", "the run has seed = 0, not 3")


# ------------------------------------------------------------------------------ bad input


NO_TASK = f"no TASK given: expected one of {', '.join(tasks.names())}, or FILE.py:CLASS"
COMPARE = "compare bit-xor --models random --steps 1 "
REFUSED = [                                               # rows that differ in kind
    # a misspelt word
    ("trian", "no command 'trian' (did you mean 'train'?) (see minifpt --help)"),
    ("xyzzy", "no command 'xyzzy' (see minifpt --help)"),
    ("--versoin", "unrecognized arguments: --versoin (did you mean '--version'?) (see minifpt --"),
    ("train --versoin", "arguments: --versoin (did you mean 'minifpt --version'?)"),
    ("bit-xor", "no command 'bit-xor' (did you mean 'train bit-xor'?)"),
    ("train bitxor", "no task 'bitxor' (did you mean 'bit-xor'?)"),
    ("reproduce table1 --task bit-xor", "(did you mean '--tasks'?)"),
    ("train bit-xor --stepz 3",
     "unrecognized arguments: --stepz 3 (did you mean '--steps'?) (see minifpt train --help)"),
    ("train bit-memory --strngs=3", "(did you mean '--strings'?) (see minifpt train --help)"),
    ("train bit-xor --schedule consine", "no 'consine' (did you mean 'cosine'?): expected one of"),
    ("train bit-xor --model minigpt-langage", "(did you mean 'minigpt-language'?)"),
    ("train bit-xor --freeze atn", "'atn' (did you mean 'attn'?) is neither"),
    # what is missing, or too much
    ("--traceback", "required: COMMAND"), ("train", NO_TASK), ("compare", NO_TASK),
    ("pretrain", "required: SOURCE"), ("train bit-xor --steps", "expected one argument"),
    ("train bit-xor bit-memory", "expected one TASK, got bit-xor bit-memory"),
    ("info nonsense", "nonsense"), (COMPARE + "--seeds 0 1", "unrecognized arguments: 1 (see"),
    (TRAIN + "--bits 5", "bit-xor has no option 'bits'"),
    (COMPARE + "--bits 5", "none of the tasks has an option 'bits'"),
    (COMPARE + "--choices 3", "choices is for rates, among which it"),
    (COMPARE + "--rates 1 2 --lr 3", "expected lr or rates, not both"),
    # a wrong value
    (TRAIN + "--steps 1.5", "argument --steps: invalid int value: '1.5'"),
    (COMPARE + "--rates fast", "--rates: invalid float value: 'fast'"),
    (TRAIN + "--steps 0", "steps must be a whole number, at least 1"),
    (TRAIN + f"--batch-size {'9' * 400}", "at most 2,147,483,647"),
    (TRAIN + "--lr -1", "lr is -1.0, expected a positive number"),
    (TRAIN + "--n 2.5", "n must be a whole number, got '2.5'"),
    (TRAIN + "--n 33 --freeze attn,mlp,pos", "66 tokens, the trunk has 64 positions"),
    (TRAIN + "--freeze fpt,attn", "stands alone"),
    (TRAIN + "--freeze input,output,pos,ln,attn,mlp", "every parameter is frozen"),
    (TRAIN + "--resume", "no run of bit-xor"), (TRAIN + "--resume --out none", "no run to resume"),
    (TRAIN + "--out text", "text is a file, expected a folder"),
    (COMPARE + "--seeds 1001", "seeds must be a whole number, at least 1 and at most 1,000"),
    (COMPARE + "--jobs 0", "jobs must be a whole number, at least 1, got 0"),
    (COMPARE + "--first-seed -1", "seed must be a whole number, at least 0, got -1"),
    (COMPARE + "--jobs 2 --dask tcp://x:1", "--dask: not allowed with argument --jobs"),
    (COMPARE + "--dask tcp://x:1", "needs the package distributed: pip install distributed"),
    ("steps bit-xor --model random:gpt2", "at most 20,000,000 can be stepped through"),
    ("lessons 99", "there is no lesson 99: expected a low"),
    # data and models
    ("train mnist --model random", "MINIFPT_DATA"),
    ("train mnist --data ~nosuchuser/x", "~nosuchuser/x does not hold"),
    ("pretrain language --text .", "no *.txt"),
    ("pretrain bits --data nowhere", "data is for images and vision"),
    (TRAIN + "--model .", "holds none of"), ("summary bit-xor --model no", "'no'"),
    ("summary bit-xor --model random:", "no weights 'random:'"),
    ("summary --model statistics", "expected statistics:NAME, the name or path of weights"),
    ("summary bit-xor --model random+full=random", "the mask 'full' names no parameter"),
    ("summary bit-xor --model random+attn=random:1x2x16", "the trunks have different shapes"),
    ("generate a --model random:1x1x8", "no weights 'random:1x1x8' (it is drawn, not read)"),
    ("convert minigpt-tiny", "convert: minigpt-tiny needs --out, the folder to write"),
    # a user's own file
    ("train nowhere.py:Task", "there is no file nowhere.py"),
    ("train mine.py:Noisy --noise much", "noise must be a number, got 'much'"),
    ("train mine.py:Noisy --task-steps 1.5", "steps must be a whole number, got '1.5'"),
    ("train mine.py:Noisy --hardest 1", "hardest must be true or false, got '1'"),
    ("train mine.py:Noisy --at-most few", "at_most must be a whole number, got 'few'"),
    ("train mine.py:Noisy --sizes 3,x", "sizes must be a whole number, got 'x'"),
    ("train mine.py:Noisy --table x", "table must be of the kind dict, got 'x'"),
    ("train mine.py:Noisy --bits 3", "mine.py:Noisy has no option 'bits': its options are n, no"),
    ("train bit-xor --task-steps 9", "--task-steps"),
    ("train mine.py:needy", "mine.py:needy needs the option 'share'"),
    ("train mine.py:noisy", "no function or class 'noisy' (did you mean 'Noisy'?)"),
    ("train mine.py:Niosy", "no function or class 'Niosy' (did you mean 'Noisy'?)"),
    ("train mine.py:trunk --model random", "mine.py:trunk is not a task: it has no 'name'"),
    ("compare mine.py:Noisy mine.py:needy --models random --share 1", "two tasks have one name"),
    # a text
    ("generate ''", "empty"), ("generate a --stop ''", "--stop is empty"),
    ("generate Call --top-k 0", "top_k"), ("generate \udcff", "surrogates not allowed"),
    ("perplexity nowhere", "nowhere: there is no such file"), ("perplexity .", "Is a directory")]


@pytest.mark.parametrize("line, part", REFUSED)
def test_wrong_input_is_refused_in_one_line(line, part, own, fails):
    fails(line, part)


def test_a_folder_with_a_run_is_not_written_over(fails):
    assert status_of(TRAIN + "-o a") == 0
    fails(TRAIN + "-o a", "already holds a run")
    fails(TRAIN + "-o a --resume --lr 1", "lr = 0.003, not 1.0")
    for line in ("lessons a/config.json/b --no-open", "lessons a/config.json --no-open",
                 "compare bit-xor --models random -o a/config.json/b",
                 TRAIN + "-o a/config.json/b", "convert minigpt-tiny -o a/config.json/b",
                 "pretrain bits -o a/config.json/b", "new a/config.json/b.py",
                 "steps bit-xor --out a/config.json/b.html", "report a --out a/config.json/b"):
        fails(line, "a/config.json is a file, expected a folder")


# ------------------------------------------------------------------------- other commands


def test_compare_prints_a_table_and_runs_nothing_twice(folder, own, output):
    line = ("compare bit-xor mine.py:Noisy --models tiny.npz random+mlp=mine.py:trunk --seeds 2 "
            "--steps 3 --n 3 --noise 0.5 --task-steps 7 --task-model y --hard true")
    text = output(line)
    assert text.startswith(Path("runs/compare/table.md").read_text().split("\n\n")[0])
    for part in ("2 seeds", "\n| tiny | ", "\n| random + mlp of trunk | ", "In brackets after an",
                 "in points, with a 95 % interval", "runs/compare: table.md runs.csv curves.png\n"):
        assert part in text
    assert names("runs/compare") == ["bit-xor", "curves.png", "noisy", "runs.csv", "table.md"]
    for run in Path("runs/compare").glob("*/*/0"):
        options = {"n": 3, "noise": 0.5, "steps": 7, "model": "y", "hard": True, "task": 1,
                   "at_most": None, "sizes": [2, 3], "words": ["a"],
                   "share": 0.5} if "noisy" in run.parts else {"n": 3}
        assert (config_of(run)["options"], config_of(run)["steps"]) == (options, 3)
    assert output(line) == text                           # all is there already


def test_compare_chooses_learning_rates(output):
    text = output(COMPARE + "--seeds 1 --rates 0.001 --rates 0.003 --choices 3 -o g")
    assert "1 seed, lr 0.0" in text and "(edge): the smallest" in text and "brackets" not in text
    assert len(Path("g/runs.csv").read_text().splitlines()) == 1 + 1 + 2 * 3


def test_gradcheck_lists_every_operation_and_model_and_finds_a_wrong_gradient(
        capsys, output, monkeypatch, fails):
    check = viewing.gradients.gradcheck                   # of each parameter one direction
    monkeypatch.setattr(viewing.gradients, "gradcheck",
                        lambda *args, **kw: check(*args, **kw, elementwise=0, directions=1,
                                                  far=None))
    *lines, last = output("gradcheck --seed 3").splitlines()[1:]
    assert last == f"{len(lines)} passed, 0 failed"
    models = ["GPT2, gelu_new, causal", "GPT2, gelu", "GPT2, relu", "LanguageModel", "LSTM",
              "FPT, full", "FPT, fpt", "FPT, output_only"]
    checked = [line[:24].strip() for line in lines]
    assert checked[-len(models):] == models
    assert {name.removesuffix("_backward") for name in vars(functional)
            if name.endswith("_backward")} <= {*checked}
    relu_backward = functional.relu_backward
    monkeypatch.setattr(functional, "relu_backward", lambda dy, cache: (
        1.001 * relu_backward(dy, cache)))
    monkeypatch.setattr(viewing.tracing, "OPERATIONS", ["relu", "silu"])
    assert status_of("gradcheck") == 1
    out = capsys.readouterr().out
    failed = [line.split()[0] for line in out.splitlines() if line.endswith("FAILED")]
    assert failed == ["relu"] and "they are 1.001 times what they should be" in out
    for end in ("", "_backward"):                         # an operation that somebody adds
        monkeypatch.setattr(functional, f"swish{end}", relu_backward, raising=False)
    monkeypatch.setattr(viewing.tracing, "OPERATIONS", ["swish"])
    fails("gradcheck", part="'swish' has no example inputs: add it to `examples` in")


def test_pretrain_writes_weights_and_resumes(folder, own, output, fails):
    line = "pretrain language --text text --tokens 8 --steps 3 --batch-size 2 --seed 4"
    assert "the next byte of a text" in output(line)
    assert {"minigpt-language", "minigpt-language.npz"} <= {*names(folder)}
    weights = Path("minigpt-language.npz").read_bytes()
    fails(line, "minigpt-language.npz is there already")
    assert status_of(line + " --resume") == 0
    assert Path("minigpt-language.npz").read_bytes() == weights


def test_generate_repeats_its_text_for_a_seed(own, output):
    texts = [output(f"generate Call --tokens 20 --model tiny.npz {more}") for more in (
        "--seed 1", "--seed 1", "--seed 2", "--temperature 0", "--top-k 1")]
    assert texts[0] == texts[1] != texts[2] and texts[3] == texts[4]


def test_lessons_are_copied_and_never_over_the_reader_s_work(output):
    assert status_of("lessons here --no-open") == 0
    first, second, *_ = notebooks = sorted(Path("here").glob("*.ipynb"))
    for path in notebooks:                                # no output gives an answer away
        assert not any(cell.get("outputs") for cell in json.loads(path.read_text())["cells"])
    first.write_text("mine")
    second.unlink()
    assert "1 files" in output("lessons here --no-open")
    assert first.read_text() == "mine" and second.exists()
    assert status_of("lessons there --no-open --no-solutions") == 0
    assert "solutions" in names("here") and "solutions" not in names("there")


def test_lessons_are_opened_by_number_and_import_nothing_from_their_folder(tmp_path, monkeypatch):
    if find_spec("jupyterlab") is None:                   # its import takes seconds
        pytest.skip("JupyterLab is not installed")
    for name in ("jupyterlab", "random", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    calls = []
    monkeypatch.setattr(subprocess, "call", lambda args, **kw: calls.append(args) or 0)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert status_of(f"lessons {tmp_path}") == 0
    code = "import json, random; from importlib.util import find_spec; find_spec('jupyterlab')"
    child(*calls[0][:2], "-c", code, cwd=tmp_path)
    assert calls[0][2:4] == ["-m", "jupyterlab"] and not (tmp_path / "ran").exists()
    assert status_of("lessons 2") == 0 and calls[1][4].startswith("02_")
    assert names(".") == ["minifpt-lessons"]


@pytest.mark.parametrize("line, page", [
    ("playground -o p.html", "p.html"), ("report runs/bit-xor", "runs/bit-xor/report.html"),
    ("steps bit-xor --n 2 --model random --differences 0 --out s.html", "s.html")])
def test_a_page_is_opened(line, page, folder, capsys, output, monkeypatch):
    urls = []
    monkeypatch.setattr(viewing.webbrowser, "open", lambda url: urls.append(url) or False)
    output(TRAIN)
    assert f"{page}: " in output(line) and not urls
    assert status_of(f"{line} --open --force") == 0
    assert "no browser was found" in capsys.readouterr().err
    assert urls == [(folder / page).as_uri()]


@pytest.mark.parametrize("line", [TRAIN, "pretrain bits --steps 2 ", COMPARE])
def test_a_batch_too_large_for_memory_leaves_no_folder(line, fails, monkeypatch):
    """Not even the folders above the run's own stay."""
    def batch(self, rng, size, split="train", batch=tasks.Classification.batch):
        if size == 12345:
            raise MemoryError("Unable to allocate\n8 EiB")
        return batch(self, rng, size, split)
    monkeypatch.setattr(tasks.Classification, "batch", batch)
    fails(line + "--batch-size 12345", "minifpt: not enough memory: Unable to allocate 8 EiB\n")


def test_the_environment_says_where_data_and_home_are(fails, output, monkeypatch):
    monkeypatch.setenv("MINIFPT_DATA", "~nosuchuser/x")
    fails("train mnist --model random", "~nosuchuser/x")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert "~nosuchuser/x" in output("info")
