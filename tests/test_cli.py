"""The command line: what it prints and writes, and one line with exit status 2 for bad input."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_data import write_mnist
from test_train import checkpoint, same_checkpoint

import minifpt
from minifpt import cli, functional, tasks
from minifpt.cli import viewing
from minifpt.experiments import plan, pretrain
from minifpt.gradients import GradcheckReport
from minifpt.trunks import names as trunks

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 256}
COMMANDS = ["train", "compare", "attention", "report", "summary", "plan", "steps",
            "playground", "new", "check", "gradcheck", "pretrain", "convert", "generate",
            "perplexity", "lessons", "info"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder without data or weights, where ``random`` is tiny; its path."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MINIFPT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)
    monkeypatch.setattr(pretrain, "SHAPE", TINY)
    return folder


@pytest.fixture
def weight_file(tmp_path):
    minifpt.LanguageModel(minifpt.GPT2Config(**TINY), seed=1).save(tmp_path / "tiny.npz")
    return tmp_path / "tiny.npz"


def main(line, *more):
    """The exit status of ``minifpt LINE MORE...``; a list is taken word by word."""
    try:
        return cli.main([*(line.split() if isinstance(line, str) else line), *map(str, more)])
    except SystemExit as e:
        return e.code


@pytest.mark.parametrize("line, part", [
    ("trian", "no command 'trian' (did you mean 'train'?) (see minifpt --help)"),
    ("xyzzy", "no command 'xyzzy' (see minifpt --help)"),
    ("train bit-xr", "no task 'bit-xr' (did you mean 'bit-xor'?)"),
    ("train bit-xor --stepz 3",
     "unrecognized arguments: --stepz 3 (did you mean '--steps'?) (see minifpt train --help)"),
    ("train bit-xor --m 3", "unrecognized arguments: --m 3 (see minifpt train --help)"),
    ("train bit-memory --strngs=3", "(did you mean '--strings'?) (see minifpt train --help)"),
    ("train bit-xor --schedule consine", "no 'consine' (did you mean 'cosine'?): expected one of"),
    ("train bit-xor --model minigpt-langage", "(did you mean 'minigpt-language'?)"),
    ("train bit-xor --freeze atn", "'atn' (did you mean 'attn'?) is neither"),
    ("playground bit-memry", "no 'bit-memry' (did you mean 'bit-memory'?)"),
    ("pretrain langage", "no 'langage' (did you mean 'language'?)")])
def test_a_misspelt_word_gets_one_line_with_its_neighbour(folder, capsys, line, part):
    fails(capsys, folder, line, part=part)


def test_the_command_alone_prints_help(capsys):
    assert main("") == 0
    assert "Start here:" in capsys.readouterr().out


@pytest.mark.parametrize("line, page", [
    ("playground --open", "playground.html"), ("report runs/bit-xor --open", "report.html"),
    ("steps bit-xor --n 2 --model random --differences 0 --open", "bit-xor-step.html")])
def test_pages_open_in_a_browser(folder, capsys, monkeypatch, line, page):
    opened = []
    monkeypatch.setattr(viewing.webbrowser, "open", lambda url: opened.append(url) or False)
    assert main(TRAIN) == 0 and "next: minifpt report runs/bit-xor\n" in capsys.readouterr().out
    assert main(line) == 0
    assert opened[0].startswith("file:///") and opened[0].endswith(page)
    assert "no browser was found" in capsys.readouterr().err


def fails(capsys, folder, line, *more, part=""):
    """Exit status 2, one line on stderr, nothing on stdout, nothing written."""
    before = sorted(folder.parent.rglob("*"))
    status = main(line, *more)
    out, err = capsys.readouterr()
    assert status == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("minifpt") and "Traceback" not in err
    assert part in err and len(err) < 500, err
    assert sorted(folder.parent.rglob("*")) == before
    return err


def names(folder):
    return sorted(p.name for p in folder.iterdir())


TRAIN = "train bit-xor --model random --steps 3 --batch-size 2 "
RUN = ["checkpoint.npz", "config.json", "curves.png", "metrics.csv"]


# ------------------------------------------------------------------------------- train


def test_train_makes_a_new_folder_each_time(folder, capsys):
    for i in range(3):
        assert main(TRAIN, "--n", 2) == 0
        path = ["runs/bit-xor", "runs/bit-xor-2", "runs/bit-xor-3"][i]
        out = capsys.readouterr().out.splitlines()
        assert out[0].startswith("bit-xor: ") and "% test accuracy (fresh draws)" in out[0]
        assert "after 3 steps" in out[0]
        assert out[1] == f"{path}: config.json metrics.csv checkpoint.npz curves.png"
        assert names(folder / path) == RUN
    config = json.loads((folder / "runs/bit-xor/config.json").read_text())
    want = {"task": "bit-xor", "options": {"n": 2}, "model": "random", "freeze": "attn,mlp",
            "steps": 3, "batch_size": 2, "lr": 3e-3, "seed": 0, "dropout": 0.0}
    assert {k: config[k] for k in want} == want


def test_train_s_options_arrive(folder, weight_file):
    assert main("train bit-memory --strings 2 --bits 6 --patch 3 --freeze output_only --steps 4 "
                "--batch-size 3 --lr 0.01 --dropout 0.2 --seed 7 --checkpoint-every 2 --out here "
                "--model", weight_file) == 0
    config = json.loads((folder / "here" / "config.json").read_text())
    want = {"options": {"strings": 2, "bits": 6, "patch": 3}, "model": str(weight_file),
            "freeze": str(minifpt.FreezeMask.output_only()), "steps": 4, "batch_size": 3,
            "lr": 0.01, "dropout": 0.2, "seed": 7}
    assert {k: config[k] for k in want} == want
    assert set(checkpoint(folder / "here")[0]) == {
        f"{m}output.{k}" for m in ("", "m/", "v/") for k in ("weight", "bias")}


@pytest.mark.parametrize("task", ["bit-xor", "bit-memory", "mnist"])
def test_defaults_are_the_task_s(task, folder, tmp_path):
    write_mnist(tmp_path / "data")
    data = f"--data {tmp_path / 'data'}" * (task == "mnist")
    assert main(f"train {task} --steps 1 --out a {data}") == 0
    config = json.loads((folder / "a" / "config.json").read_text())
    want = tasks.defaults_of(tasks.TASKS[task]) | {
        "steps": 1, "model": "minigpt-language", "freeze": "attn,mlp", "seed": 0, "clip": 1.0,
        "eval_every": 100, "test_examples": 256,
        "warmup": 0}
    assert {k: config[k] for k in want} == want


def test_the_paper_s_accuracy_is_that_of_the_whole_test_set(tmp_path, capsys):
    write_mnist(tmp_path / "data")
    assert main("train mnist --model random --steps 2 --data", tmp_path / "data") == 0
    assert "test accuracy (10 examples)" in capsys.readouterr().out


def test_resume_goes_on_with_the_newest_run_of_the_task(folder, capsys):
    assert main(TRAIN, "--out", "a", "--steps", 6) == 0
    assert main(TRAIN, "--out", "runs/bit-xor", "--steps", 3) == 0
    assert main(TRAIN, "--resume", "--steps", 6) == 0     # the newest run below runs/
    assert names(folder / "runs") == ["bit-xor"]
    a, b = (checkpoint(folder / f)[0] for f in ("a", "runs/bit-xor"))
    np.testing.assert_equal(a, b)
    (folder / "a" / "metrics.csv").unlink()
    assert main(TRAIN, "--resume", "--steps", 6, "--out", "a") == 0       # finished: no harm
    assert len(minifpt.History.load(folder / "a" / "metrics.csv")) == 1   # what is lost is back
    assert main(TRAIN, "--out", "runs/bit-xor-memory") == 0               # a newer one of another
    (folder / "runs/bit-xor-2").mkdir()
    (folder / "runs/bit-xor-2/config.json").write_text("{}")              # and one that failed
    assert main(TRAIN, "--resume", "--steps", 6) == 0
    assert main(TRAIN, "--resume", "--steps", 6, "--seed", 3) == 2        # not: other weights
    assert "the run has seed = 0, not 3" in capsys.readouterr().err


# ------------------------------------------------------- tasks and trunks of the user's own


OWN = """
from minifpt import GPT2, GPT2Config
from minifpt.tasks import BitXOR

class Noisy(BitXOR):
    name = "noisy"

    def __init__(self, n=2, noise=0.0, steps=3, model="m", hard=False, task=1, at_most: int = None,
                 hardest: "bool | None" = None):
        super().__init__(n)
        self.options = {"n": n, "noise": noise, "steps": steps, "model": model, "hard": hard,
                        "task": task, "at_most": at_most}

def needy(share):
    return Noisy(noise=share)

def trunk(seed=0, dropout=0.0):
    return GPT2(GPT2Config(1, 2, 8, 64, 11, dropout), seed)
"""


@pytest.fixture
def own(folder):
    """The user's own file, in the working folder."""
    (folder / "mine.py").write_text(OWN)
    return folder / "mine.py"


SHORT = "--model random --steps 4 --batch-size 2 --out a "


@pytest.mark.parametrize("named", ["train mine.py:Noisy " + SHORT,
                                   "train " + SHORT + "mine.py:Noisy"])
def test_a_task_of_the_user_s_own(folder, own, named):
    """Its options are read as what their defaults are; one that has the name of an option of the
    command is --task-NAME."""
    assert main(f"{named} --task-steps 9 --noise 0.25 --task-model y --hard true "
                "--task 2 --at-most 7 --n 3") == 0
    config = json.loads((folder / "a/config.json").read_text())
    assert config["options"] == {"n": 3, "noise": 0.25, "steps": 9, "model": "y", "hard": True,
                                 "task": 2, "at_most": 7}
    assert (config["task"], config["model"], config["steps"]) == ("noisy", "random", 4)
    # The run goes on with the same options, and no others.
    assert main(f"{named} --task-steps 9 --noise 0.25 --task-model y --hard true --task 2 "
                "--at-most 7 --n 3 --resume") == 0


@pytest.mark.parametrize("option, text, value", [
    ("n", "7", 7), ("noise", "1e-3", 1e-3), ("noise", "2", 2.0), ("hard", "true", True),
    ("hard", "False", False), ("model", "7", "7"), ("at_most", "9", 9), ("n", 7, 7),
    ("hard", True, True)])
def test_options_are_read_as_what_their_defaults_are(own, option, text, value):
    task = tasks.get("mine.py:Noisy", **{option: text})
    assert task.options[option] == value and type(task.options[option]) is type(value)


@pytest.mark.parametrize("line, part", [
    ("train mine.py:Noisy --noise much", "noise must be a number, got 'much'"),
    ("train mine.py:Noisy --task-steps 1.5", "steps must be a whole number, got '1.5'"),
    ("train mine.py:Noisy --steps 1.5", "argument --steps: invalid int value: '1.5'"),
    ("train mine.py:Noisy --hard 1", "hard must be true or false, got '1'"),
    ("train mine.py:Noisy --hardest 1", "hardest must be true or false, got '1'"),
    ("train mine.py:Noisy --at-most few", "at_most must be a whole number, got 'few'"),
    ("train mine.py:Noisy --colour red", "--colour"),
    ("train mine.py:Noisy --bits 3", "mine.py:Noisy has no option 'bits': its options are n, no"),
    ("train bit-xor --noise 0.5", "--noise"), ("train bit-xor --task-steps 9", "--task-steps"),
    ("train mine.py:needy", "mine.py:needy needs the option 'share'"),
    ("train mine.py:nothing", "mine.py: it has no function or class 'nothing'"),
    ("train mine.py:trunk --model random", "mine.py:trunk is not a task: it has no 'name'"),
    ("compare mine.py:Noisy --models random --noise x", "noise must be a number, got 'x'"),
    ("compare mine.py:Noisy mine.py:needy --models random --share 1", "two tasks have one name")])
def test_bad_options_of_the_user_s_own_files_are_refused(capsys, folder, own, line, part):
    fails(capsys, folder, line, part=part)


def test_a_required_option_of_a_task_is_passed_as_text(folder, own):
    assert main("train mine.py:needy --share 0.5 --model random --steps 2 --out a") == 0
    assert json.loads((folder / "a/config.json").read_text())["options"]["noise"] == "0.5"


def test_help_shows_the_options_of_the_user_s_own(own, capsys):
    assert main("train mine.py:Noisy --help") == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in ("options of mine.py:Noisy:", "--noise VALUE (default: 0.0)", "--task-steps VALUE",
                 "--at-most VALUE (default: none)", "--n VALUE (default: 2)"):
        assert part in out


def test_a_trunk_of_the_user_s_own(folder, own, capsys):
    assert main("train bit-xor --model mine.py:trunk --steps 2 --dropout 0.5 --seed 3 --out a") == 0
    config = json.loads((folder / "a/config.json").read_text())
    assert (config["model"], config["dropout"]) == ("mine.py:trunk", 0.5)
    assert main("summary mine.py:Noisy --model mine.py:trunk --n 4") == 0
    assert "mine.py:trunk on noisy: in 8 x 1, out 4 x 2" in capsys.readouterr().out
    assert main("plan mine.py:Noisy --n 3 --model mine.py:trunk --batch-size 2") == 0
    out = capsys.readouterr().out
    assert "noisy with mine.py:trunk: 8 channels, 2 x 6 tokens" in out and "the whole trunk" in out


def test_compare_with_the_user_s_own(folder, own, capsys):
    assert main("compare mine.py:Noisy bit-xor --models mine.py:trunk random+mlp=mine.py:trunk "
                "--seeds 1 --steps 3 --n 3 --noise 0.5 --task-steps 7") == 0
    out = capsys.readouterr().out
    rows = [" ".join(line.split()[:3]) for line in out.splitlines()]
    assert rows[0] == "trunk noisy bit" and out.count("1 seed") == 4
    assert "\ntrunk   " in out and "\nrandom + mlp of trunk  " in out
    for task, want in (("bit-xor", {"n": 3}),
                       ("noisy", {"n": 3, "noise": 0.5, "steps": 7, "model": "m", "hard": False,
                                  "task": 1, "at_most": None})):
        configs = [*(folder / "runs/compare" / task).glob("*/0/config.json")]
        assert len(configs) == 2
        for path in configs:
            config = json.loads(path.read_text())
            assert (config["options"], config["steps"]) == (want, 3)


# -------------------------------------------------------------------------- bad input


NO_TASK = f"no TASK given: expected one of {', '.join(tasks.names())}, or FILE.py:CLASS"
AT_LEAST_1 = "must be a whole number, at least 1"


@pytest.mark.parametrize("line, part", [
    ("--traceback", "required: COMMAND"), ("train", NO_TASK), ("compare", NO_TASK),
    ("train bit-xor --steps", "expected one argument"),
    (TRAIN + "--steps 0", "steps " + AT_LEAST_1), (TRAIN + "--steps 1.5", "--steps"),
    (TRAIN + "--batch-size 0", "batch_size " + AT_LEAST_1),
    (TRAIN + "--lr -1", "lr is -1.0, expected a positive number"), (TRAIN + "--lr fast", "--lr"),
    (TRAIN + "--checkpoint-every 0", "checkpoint_every " + AT_LEAST_1),
    (TRAIN + "--seed -1", "--seed"), (TRAIN + "--dropout 1", "dropout"),
    (TRAIN + "--n 0", "n must be"), (TRAIN + "--n 2.5", "n must be a whole number, got '2.5'"),
    (TRAIN + "--n 33 --freeze attn,mlp,pos", "66 tokens, the trunk has 64 positions"),
    (TRAIN + "--bits 5", "bit-xor has no option 'bits'"),
    ("train bit-xor bit-memory", "expected one TASK, got bit-xor bit-memory"),
    ("train nowhere.py:Task", "there is no file nowhere.py"),
    (TRAIN + "--freeze fpt,attn", "stands alone"), (TRAIN + "--freeze *", "frozen"),
    (TRAIN + "--freeze h.9.*", "matches no parameter"),
    (TRAIN + "--model .", "holds none of"),
    (TRAIN + "--resume", "no run of bit-xor"), (TRAIN + "--resume --out none", "no run to resume"),
    ("train mnist --model random", "MINIFPT_DATA"),
    ("train mnist --model random --data nowhere", "nowhere does not hold"),
    ("summary --bits 4 --model random", "no option 'bits'"),
    ("compare nonsense", "no task 'nonsense': expected one of"),
    ("compare bit-xor --models random --seeds 0", "seeds must be"),
    ("compare bit-xor --models random --rates fast", "--rates: invalid float value: 'fast'"),
    ("compare bit-xor --models random --rates 0.1 --choices 0", "validation seeds must be"),
    ("compare bit-xor --models random --bits 5", "none of the tasks has an option 'bits'"),
    ("pretrain", "required: SOURCE"), ("pretrain language", "needs text"),
    ("pretrain nonsense --text x", "expected one of"), ("pretrain language --text none", "none"),
    ("pretrain language --text .", "no *.txt"), ("gradcheck --seed x", "--seed"),
    ("info nonsense", "nonsense")])
def test_wrong_arguments_are_refused_in_one_line(capsys, folder, line, part):
    fails(capsys, folder, line, part=part)


def test_a_folder_with_a_run_is_not_written_over(capsys, folder):
    assert main(TRAIN, "--out", "a") == 0
    capsys.readouterr()
    before = {p: p.read_bytes() for p in (folder / "a").iterdir()}
    fails(capsys, folder, TRAIN, "--out", "a", part="already holds a run")
    fails(capsys, folder, TRAIN, "--out", "a", "--resume", "--lr", 1, part="lr = 0.003, not 1.0")
    for line in (TRAIN + " --out a/config.json", "lessons a/config.json --no-open",
                 "compare bit-xor --out a/config.json", "compare a --out a/config.json/b",
                 "report a --html a/config.json/b"):
        fails(capsys, folder, line, part="a/config.json is a file, expected a folder")
    assert {p: p.read_bytes() for p in (folder / "a").iterdir()} == before


# ---------------------------------------------------------------------- other commands


def test_compare_prints_a_table_and_runs_nothing_twice(folder, capsys, weight_file):
    line = f"compare bit-xor bit-memory --models {weight_file} random --seeds 2 --steps 3"
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.count("2 seeds") == 4 and "\ntiny    " in out and "|" not in out
    assert out.endswith("runs/compare: table.md runs.csv curves.png\n")
    assert "in points, with a 95 % interval" in out and "In brackets after an accuracy" in out
    assert names(folder / "runs/compare") == ["bit-memory", "bit-xor", "curves.png", "runs.csv",
                                              "table.md"]
    table = (folder / "runs/compare/table.md").read_text().partition("\n<!--")[0]
    assert "| tiny | " in table
    assert out.split()[:5] == ["trunk", "bit", "XOR", "bit", "memory"]
    assert main(line) == 0                                # all is there already
    assert capsys.readouterr().out == out


def test_compare_chooses_learning_rates(folder, capsys):
    assert main("compare bit-xor --models random --seeds 1 --steps 3 --rates 0.001 0.003 "
                "--choices 3 --out g") == 0
    out = capsys.readouterr().out
    assert "1 seed, lr 0.0" in out and "(edge): the smallest" in out and "brackets" not in out
    assert names(folder / "g") == ["bit-xor", "choice", "curves.png", "runs.csv", "sweep.png",
                                   "table.md"]
    lines = (folder / "g/runs.csv").read_text().splitlines()
    assert len(lines) == 1 + 1 + 2 * 3 and lines[0].startswith("task,trunk,lr,seed,choice,")


@pytest.mark.parametrize("task, model, tokens", [
    ("bit-xor", "random", 10), ("bit-memory", "random", 30), ("mnist", "random", 49),
    ("bit-xor --n 999", "lstm:1x8", 1998)])               # more than an LSTM's positions, if any
def test_summary_counts_parameters_without_data(capsys, folder, task, model, tokens):
    assert main(f"summary {task} --model {model}") == 0   # mnist's needs no data
    out = capsys.readouterr().out
    assert out.startswith(f"{model} on {task.split()[0]}: in {tokens} x ")
    assert "attn    self-attention" in out and "frozen" in out
    assert out.endswith(" % of the parameters are trained\n") and not names(folder)


def test_plan_prints_time_and_memory(capsys, folder, weight_file):
    assert main("plan bit-xor --batch-size 6 --steps 250 --freeze attn --model", weight_file) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith(f"bit-xor with {weight_file}: 1 blocks, 8 channels, 6 x 10 tokens, "
                           "frozen: attn")
    assert [line[:18].strip() for line in out] == ["run", "a step", "250 steps", "2 tests",
                                                   "last test", "in all", "memory", "measured on"]
    assert out[3].endswith("256 examples every 100 steps") and out[4].endswith(", 256 examples")
    assert "MB at most" in out[6] and "the whole trunk" in out[7] and not names(folder)


def test_plan_takes_the_paper_s_mask_and_the_task_s_batch_size(capsys, monkeypatch):
    calls = []

    def planned(*args):
        calls.append(args)
        task, spec, mask, batch, dropout, adapt = args
        trunk = minifpt.GPT2(minifpt.trunks.config_for(spec, dropout), seed=None)
        model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
        return plan.Plan(3.6, 0.5, 2.5e9, 2_000_000_000, model)
    monkeypatch.setattr(plan, "plan", planned)
    assert main("plan mnist --model gpt2-xl --patch 7") == 0              # no weights, no data
    (task, spec, mask, batch, dropout, adapt), out = calls[0], capsys.readouterr().out.splitlines()
    assert task.tokens == 16 and (spec.kind, spec.name, dropout) == ("weights", "gpt2-xl", 0)
    assert adapt is None
    assert out[0].endswith("mnist with gpt2-xl: 48 blocks, 1600 channels, 16 x 16 tokens, "
                           "frozen: attn,mlp")
    assert mask == minifpt.FreezeMask.fpt() and batch == tasks.MNIST.defaults["batch_size"]
    values = [line[19:] for line in out]
    assert values[1:4] == ["3.6 s", "5 h 0 min", "1 h 45 min, 256 examples every 100 steps"]
    assert values[4].startswith("8 min 20 s for each 1,000 examples") and not values[5].isdigit()
    assert values[5].startswith("6 h 53 min, with 1,000") and values[6].startswith("2,500 MB")
    assert main("plan bit-xor --dropout 0.1") == 0 and calls[1][4] == 0.1
    assert "2 min 8 s, 256 examples" in capsys.readouterr().out      # each test draws fresh ones


def test_plan_counts_the_examples_of_the_last_test(monkeypatch):
    assert plan.last_test(tasks.get("bit-xor"), 256) == 256
    assert plan.last_test(tasks.get("listops"), 256) == 256
    assert plan.last_test(tasks.get("digits"), 256) > 256
    assert plan.last_test(tasks.get("mnist"), 256) is None          # its data are not here


@pytest.mark.parametrize("line, part", [
    ("plan", NO_TASK), ("plan bit-xor --model no", "'no'"),
    ("plan bit-xor --model random:no", "no shape 'no'"), ("plan bit-xor --steps 0", "steps is 0"),
    ("plan bit-xor --batch-size 0", "batch_size must be"), ("plan bit-xor --patch 2", "patch"),
    ("plan bit-xor --freeze no", "'no'"), ("plan bit-xor --dropout 1", "dropout is 1"),
    ("plan bit-xor --model lstm@1e40", "initializer_range is"),
    ("plan bit-xor --n 33 --model random --freeze attn,mlp,pos",
     "66 tokens, the trunk has 64 positions"),
    ("plan bit-xor --freeze input,output,pos,ln,attn,mlp", "every parameter is frozen")])
def test_plan_refuses_wrong_arguments_in_one_line(capsys, folder, line, part):
    fails(capsys, folder, line, part=part)


@pytest.mark.parametrize("seconds, text", [
    (0.00123, "1.2 ms"), (0.9, "900.0 ms"), (59, "59.0 s"), (59.96, "1 min 0 s"),
    (200, "3 min 20 s"), (12000, "3 h 20 min"), (190_000, "2 d 5 h")])
def test_durations_are_printed_in_two_units(seconds, text):
    assert plan.duration(seconds) == text


@pytest.fixture
def few_places(monkeypatch):
    """Of each parameter of a model one direction and one entry are checked, not all."""
    check = viewing.gradients.gradcheck
    monkeypatch.setattr(viewing.gradients, "gradcheck",
                        lambda *args, **kw: check(*args, **kw, elementwise=0, directions=1))


@pytest.mark.slow
def test_gradcheck_passes_with_every_entry(capsys):
    assert main("gradcheck --seed 3") == 0
    assert capsys.readouterr().out.endswith(" passed, 0 failed\n")


def test_gradcheck_lists_every_operation_and_model(capsys, few_places):
    assert main("gradcheck --seed 3") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"{len(out) - 2} passed, 0 failed" and "FAILED" not in "".join(out)
    checked = [line[:24].strip() for line in out[1:-1]]
    operations = {name.removesuffix("_backward") for name in vars(functional)
                  if name.endswith("_backward")}
    assert operations <= {*checked}                       # and in these models all of them
    assert checked[len(operations):] == [
        "GPT2, gelu_new, causal", "GPT2, gelu", "GPT2, relu", "LanguageModel", "LSTM",
        "FPT, full", "FPT, fpt", "FPT, output_only"]


@pytest.mark.parametrize("op", ["linear", "embedding", "layer_norm", "unembedding", "positions",
                                "gelu", "gelu_exact", "relu", "softmax", "dropout", "attention",
                                "lstm", "log_sum_exp", "cross_entropy"])
def test_gradcheck_finds_a_broken_backward(capsys, monkeypatch, op):
    right = getattr(functional, f"{op}_backward")

    def broken(dy, cache, *args, **kw):
        grads = right(dy, cache, *args, **kw)
        return grads * 1.001 if isinstance(grads, np.ndarray) else tuple(
            g if g is None else g * 1.001 for g in grads)
    monkeypatch.setattr(functional, f"{op}_backward", broken)
    users = {"softmax": "attention", "dropout": "attention", "log_sum_exp": "cross_entropy"}
    expected = [op, users[op]] if op in users else [op]
    monkeypatch.setattr(viewing.tracing, "OPERATIONS", [*expected, "residual"])  # all take a second
    monkeypatch.setattr(viewing.gradients, "gradcheck",                     # and so do whole models
                        lambda *a: GradcheckReport(0.0, ("x", (0,), 1.0, 1.0), {"x": 0.0}, 1e-6))
    assert main("gradcheck") == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out if line.endswith("FAILED")] == expected
    assert out[-1].endswith(f" {len(expected)} failed")


def test_info_shows_versions_and_folders(capsys, folder, tmp_path, monkeypatch):
    assert main("info") == 0
    out = capsys.readouterr().out
    for part in (minifpt.__version__, np.__version__, "kernels", "limited by", "OPENBLAS_CORETYPE",
                 "MINIFPT_DATA is not set", str(tmp_path / "cache" / "minifpt" / "data")):
        assert part in out
    monkeypatch.setenv("MINIFPT_DATA", "/some/where")
    assert main("info") == 0 and "/some/where" in capsys.readouterr().out
    assert not names(folder)


def test_info_warns_of_kernels_without_avx512(monkeypatch):
    from minifpt.cli.weights import slow_kernels
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    assert slow_kernels("kernels for SkylakeX", ["X86_V4"]) == ""
    assert slow_kernels("kernels for Haswell", ["X86_V3"]) == ""
    for extensions in (["X86_V3", "X86_V4"], ["AVX2", "AVX512F"]):
        assert "try OPENBLAS_CORETYPE" in slow_kernels("kernels for Haswell", extensions)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert "Haswell, unset it" in slow_kernels("kernels for Haswell", ["X86_V4"])


def test_pretrain_writes_weights_and_resumes(folder, capsys):
    (folder / "book.txt").write_text("the quick brown fox jumps over. " * 100)
    line = "pretrain language --text book.txt --steps 3 --batch-size 2 --seed 4"
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.startswith("minigpt-language.npz: ") and "the next byte of a text" in out
    assert names(folder) == ["book.txt", "minigpt-language", "minigpt-language.csv",
                             "minigpt-language.npz"]
    with np.load("minigpt-language.npz") as file:
        config = json.loads(str(file["config"]))
    assert config["text"] == ["book.txt"] and "--seed 4" in config["command"]
    assert main("summary --model minigpt-language.npz") == 0
    capsys.readouterr()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    fails(capsys, folder, line, part="minigpt-language.npz is there already")
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert main(line + " --resume") == 0
    assert before[folder / "minigpt-language.npz"] == (folder / "minigpt-language.npz").read_bytes()
    capsys.readouterr()
    assert main("pretrain bits --out v.2 --shape 1x1x8 --steps 1 --batch-size 1") == 0
    assert capsys.readouterr().out.startswith("v.2.npz: ") and (folder / "v.2.npz").exists()
    (folder / "d").mkdir()
    (folder / "d" / "x").touch()
    fails(capsys, folder, "pretrain bits --out d", part="would be d, which holds other files")


# ------------------------------------------- convert, generate, perplexity, the lessons


GOLDEN = Path(__file__).parent / "golden" / "plain"


def test_convert_writes_a_file_and_the_cache(folder, capsys, tmp_path):
    assert main("convert", GOLDEN, "--dtype", "float32", "--out", "here.npz") == 0
    assert capsys.readouterr().out == "here.npz\n"
    converted = minifpt.GPT2.from_pretrained("here.npz")
    source = minifpt.GPT2.from_pretrained(GOLDEN)
    for p, q in zip(converted.parameters(), source.parameters(), strict=True):
        np.testing.assert_array_equal(p.data, q.data)
    fails(capsys, folder, "convert", GOLDEN, "--out", "here.npz", part="is there already")
    assert main("convert", GOLDEN) == 0                   # into the user's cache, by name
    assert capsys.readouterr().out.startswith(str(tmp_path / "cache"))
    assert main("summary --model plain") == 0


def test_generate_repeats_its_text_for_a_seed(folder, capsys, weight_file):
    texts = []
    for more in ("--seed 1", "--seed 1", "--seed 2", "--temperature 0", "--top-k 1"):
        assert main(f"generate Call --tokens 20 {more}", "--model", weight_file) == 0
        texts.append(capsys.readouterr().out)
    assert all(text.startswith("Call") for text in texts)
    assert texts[0] == texts[1] != texts[2] and texts[3] == texts[4]


def test_generate_reads_like_english(folder, capsys):
    """The weights that ship: most words of a sample are words of the novels."""
    assert main(["generate", "She said that she would not ", "--tokens", "300",
                 "--temperature", "0.5"]) == 0
    words = capsys.readouterr().out.split()
    common = {"the", "a", "and", "to", "of", "in", "that", "he", "she", "it", "was", "his", "her",
              "with", "had", "not", "i", "you", "at", "for", "as", "be", "would", "said"}
    assert sum(word.strip(",.").lower() in common for word in words) > len(words) / 4


def test_perplexity_is_lower_with_trained_weights(folder, capsys, weight_file):
    (folder / "text").write_text("Call me Ishmael. " * 20)
    assert main("perplexity text", "--model", weight_file) == 0
    out = capsys.readouterr().out
    assert out.startswith("text: perplexity ") and "339 bytes scored" in out
    assert main("perplexity text") == 0                   # a trained one predicts better
    better = capsys.readouterr().out
    assert float(better.split()[2]) < float(out.split()[2]) / 4


@pytest.mark.parametrize("line, part", [
    ("convert nowhere", "neither a path"), ("generate Call --temperature -1", "temperature"),
    ("generate Call --tokens -1", "n_tokens"), ("generate Call --top-k 0", "top_k"),
    ("perplexity nowhere", "nowhere: there is no such file"), ("perplexity .", "a folder"),
    ("generate Call --model nope", "no weights 'nope'"), (["generate", ""], "empty")])
def test_bad_input_to_the_language_model(folder, capsys, line, part):
    fails(capsys, folder, line, part=part)


def test_lessons_are_copied_and_never_over_the_reader_s_work(folder, capsys):
    assert main("lessons here --no-open") == 0
    notebooks = sorted((folder / "here").glob("*.ipynb"))
    assert len(notebooks) >= 3 and (folder / "here" / "solutions").is_dir()
    for path in notebooks:                                # no output gives an answer away
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells)
    notebooks[0].write_text("mine")
    notebooks[1].unlink()
    assert main("lessons here --no-open") == 0
    assert notebooks[0].read_text() == "mine" and notebooks[1].exists()
    assert "1 files" in capsys.readouterr().out.splitlines()[-1]
    assert main("lessons there --no-open --no-solutions") == 0
    assert {path.suffix for path in (folder / "there").rglob("*")} == {".ipynb"}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_names_each_command(capsys, command):
    assert main(f"{command} --help") == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: minifpt {command}".rstrip()) and not err
    assert "SUPPRESS" not in out and "None" not in out
    assert command or all(name in out for name in COMMANDS)


def test_version_prints_the_version(capsys):
    assert main("--version") == 0
    assert capsys.readouterr().out == f"minifpt {minifpt.__version__}\n"


# ------------------------------------------------------------------------- as a process


def process(*args):
    return subprocess.run([sys.executable, "-m", "minifpt", *map(str, args)], text=True,
                          capture_output=True)


def test_a_process_trains_to_the_same_bits(folder, weight_file):
    line = [*TRAIN.split(), "--model", weight_file, "--out", "p"]
    run = process(*line)
    assert run.returncode == 0 and "% test accuracy" in run.stdout
    assert run.stderr == ""                               # a bar is for a terminal only
    assert main(TRAIN, "--model", weight_file, "--out", "q") == 0
    same_checkpoint(folder / "p", folder / "q")           # the same bits as in this process
    again = process(*line)
    assert again.returncode == 2 and again.stdout == ""
    assert again.stderr == ("minifpt: p already holds a run (config.json, checkpoint.npz, "
                            "metrics.csv, curves.png): resume it, or choose another folder\n")


def test_divergence_is_one_line_after_the_bar(folder, weight_file):
    """Threads warn, too: not a word of NumPy's reaches the user."""
    run = process(*TRAIN.split(), "--model", weight_file, "--lr", "1e38")
    assert run.returncode == 2 and "Warning" not in run.stderr
    line = run.stderr.splitlines()[-1]
    assert line.startswith("minifpt: step ") and "first in " in line
    assert names(folder / "runs" / "bit-xor") == ["config.json"]


def test_a_terminal_that_cannot_spell_it(weight_file, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main("generate é --tokens 1 --model", weight_file) == 0
    assert raw.getvalue().startswith(b"?")


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe breaks otherwise there")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(folder, weight_file, unbuffered):
    """``minifpt summary | true``."""
    reads, writes = os.pipe()
    os.close(reads)
    run = subprocess.run([sys.executable, "-m", "minifpt", "summary", "--model", weight_file],
                         stdout=writes, stderr=subprocess.PIPE, text=True,
                         env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    os.close(writes)
    assert run.returncode == 1 and run.stderr == ""
