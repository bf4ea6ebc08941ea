"""What a user adds in a file of their own: an activation, three trunks, a task.

The files are in ``tests/extend``, written to be read.  Each is trained from the command line,
checked by its gradients, and traced.
"""

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import child, traced

import minifpt
from minifpt import cli
from minifpt.files.runs import History
from minifpt.layers import ACTIVATIONS
from minifpt.plugins import load_object

FOLDER = Path(__file__).parent / "extend"
TRUNKS = ["silu.py:make_trunk", "bidirectional.py:make_trunk", "rnn.py:RNN", "decay.py:Decay"]
WALK = "walk.py:Walk"
GPT2 = ["wpe", "ln_f", *(f"h.{i}{name}" for i in range(2) for name in (
    "", ".ln_1", ".attn", ".attn.c_attn", ".attn.c_proj", ".ln_2", ".mlp", ".mlp.c_fc", ".mlp.act",
    ".mlp.c_proj"))]
INNER = {"rnn.py:RNN": ["inputs", "ln_f"], "decay.py:Decay": []}


@pytest.fixture(autouse=True)
def folder(cwd):
    """A folder with the user's files, in which the command line runs."""
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, cwd)
    before = dict(ACTIVATIONS)
    yield cwd
    ACTIVATIONS.clear()
    ACTIVATIONS.update(before)


@pytest.fixture
def minifpt_says(capsys):
    """Runs a command that has to succeed; what it printed, without the progress bar."""
    def run(*argv):
        assert cli.main(argv) == 0, capsys.readouterr().err
        return capsys.readouterr().out
    return run


def make(spec):
    return minifpt.trunks.get(spec, dtype=np.float64)


def fpt(trunk, mask):
    model = minifpt.FPT(trunk, 3, 4, 2)
    model.freeze(mask)
    return model


def x_of(*shape):
    return np.random.default_rng(1).standard_normal(shape)


# -------------------------------------------------------------------- the command line


def command_in(file):
    """The command line that a file's docstring shows."""
    text = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8")))
    line, = [line for line in text.splitlines() if line.strip().startswith("minifpt ")]
    return line.split()[1:]


@pytest.mark.parametrize("spec", TRUNKS)
def test_a_trunk_of_ones_own_trains_and_goes_on(spec, minifpt_says):
    """As the file says; and a run that was stopped goes on."""
    argv = [*command_in(spec.partition(":")[0]), "--steps", 4, "--batch-size", 2, "--out", "run"]
    assert argv[:4] == ["train", "bit-xor", "--model", spec]
    assert "after 4 steps" in minifpt_says(*argv)
    assert json.loads(Path("run/config.json").read_text())["recipe"]["trunk"] == spec
    first = History.load("run/metrics.csv")
    assert "after 4 steps" in minifpt_says(*argv, "--resume")
    assert History.load("run/metrics.csv") == first and Path("run/curves.png").exists()


# ----------------------------------------------------------------------- every trunk


@pytest.mark.parametrize("spec", TRUNKS)
def test_gradients_equal_differences(spec, randomise):
    trunk = randomise(make(spec), size=0.2)
    report = minifpt.gradcheck(trunk, x_of(2, 5, 32), elementwise=0, directions=1, far=None)
    assert report and report.tolerance == 1e-6
    assert report.errors.keys() == {"x", *dict(trunk.named_parameters())}


@pytest.mark.parametrize("spec", TRUNKS)
@pytest.mark.parametrize("mask", ["full", "fpt"])
def test_a_trace_has_the_trunk_s_layers(spec, mask, randomise):
    """By the names of its layers; the results are those without a trace."""
    model = fpt(randomise(make(spec), size=0.2), mask)
    t = traced(model, x_of(2, 6, 3))
    names = {f"trunk.{name}" for name in INNER.get(spec, GPT2)} | {"input", "trunk", "output", ""}
    assert set(t.outputs) == set(t.grads) == names
    assert t.outputs["trunk"].shape[0::2] == (2, 32) and t.grads["trunk"].shape[0::2] == (2, 32)
    assert all(step.partner for step in t.steps)


# ---------------------------------------------------------------------- one by one


def test_a_trunk_needs_only_the_protocol():
    """It inherits from no class of ours, and is trained, saved and frozen as any."""
    Decay = load_object("decay.py:Decay")
    assert Decay.__mro__ == (Decay, object)
    trunk = Decay(np.float64, n_embd=3)
    trunk.keep.data[:] = 0.0, 0.5, 1.0
    y, _ = trunk.forward(np.ones((1, 4, 3)))
    np.testing.assert_allclose(y[0].T, [[1, 1, 1, 1], [1, 1.5, 1.75, 1.875], [1, 2, 3, 4]])
    model = fpt(trunk, "attn")
    assert not trunk.keep.trainable and model.counts()["attn"] == (3, 0)


# ------------------------------------------------------------------------------- the task


def test_a_task_of_ones_own_trains_with_its_options(minifpt_says):
    out = minifpt_says(*command_in("walk.py"), "--model", "rnn.py:RNN", "--steps", 3, "--out",
                       "run")
    assert out.startswith("walk: ")
    config = json.loads(Path("run/config.json").read_text())
    assert config["options"] == {"steps": 31, "noise": 0.3} and config["steps"] == 3


@pytest.mark.parametrize("argv", [
    ["--model", "rnn.py:RNN", WALK, "--task-steps", "7"], [WALK, "--task-steps=7"],
    ["--freeze", "full", WALK, "--task-steps", "7", "--model=rnn.py:RNN"]])
def test_a_task_s_option_with_the_name_of_an_option_of_a_run_gets_a_prefix(argv, minifpt_says):
    """In every command, also in one without --steps."""
    argv = argv if any("model" in a for a in argv) else [*argv, "--model", "decay.py:Decay"]
    assert "on walk: in 7 x 1, out 1 x 2" in minifpt_says("summary", *argv, "--noise", "0")


@pytest.mark.parametrize("argv, message", [
    (["--task-steps", "8"], "walk: steps must be odd, got 8"),
    (["--noise", "-1"], "scale < 0")])
def test_an_error_of_the_task_is_one_line(argv, message, fails):
    assert message in fails("train", WALK, "--model", "decay.py:Decay", "--steps", 2, *argv)


# ------------------------------------------------------------ an operation of the package


NEW_OPERATION = '''
ScaledCache = namedtuple("ScaledCache", "x s")


@shapes("x (..., C), s (C,) -> y (..., C)")
def scaled(x, s):
    """``y = x * s``."""
    cache = ScaledCache(x, s)
    return x * s, cache


@shapes("dy (..., C), x (..., C), s (C,) -> dx (..., C), ds (C,)")
def scaled_backward(dy, cache):
    """``dx = dy * s``, ``ds = sum of dy * x over all rows``."""
    x, s = cache
    return dy * s, (dy * x).reshape(-1, len(s)).sum(axis=0)
'''
ITS_USERS = """
import numpy as np
import minifpt
from minifpt import fast, tracing
from minifpt.gradients import examples
from minifpt.exercises import own
from minifpt.viewer.steps import formulas
assert "scaled" in tracing.OPERATIONS and examples.check("scaled")
assert fast.scaled is minifpt.functional.scaled.__wrapped__
x, s = np.ones((2, 3)), np.arange(3.0)
with minifpt.trace(minifpt.layers.Linear(3, 3)) as t:
    y, cache = fast.ops().scaled(x, s)
    fast.ops().scaled_backward(y, cache)
assert [step.op for step in t.steps] == ["scaled", "scaled"]
assert np.array_equal(t.steps[0].gradients["s"], [0, 2, 4])
operands = formulas.operands(t.steps[1], {})
assert formulas.formulas(t.steps[1], operands)["s"].put == "dy[~c] * x[~c]"
own.new("mine.py")
assert "def scaled_backward" in open("mine.py", encoding="utf-8").read()
own.put("mine.py", minifpt.functional.scaled)
mine = own.load("mine.py")
assert own.examine(mine.functions, "scaled", 0).status == "passed"
assert own.examine(mine.functions, "scaled_backward", 0).status == "not answered yet"
"""


def test_an_operation_takes_four_places_of_the_package(tmp_path):
    """The fifth is its test against PyTorch.  See CONTRIBUTING.md."""
    package = Path(minifpt.__file__).parent
    copy = tmp_path / "minifpt"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, more in (
            ("functional.py", "", NEW_OPERATION),
            ("fast.py", "silu, silu_backward",
             "scaled, scaled_backward = bare(F.scaled), bare(F.scaled_backward)\n"),
            ("gradients/examples.py", '        "linear": ', '        "scaled": lambda: '
                                                  '[((n((2, 3, 4)), n(4)), {})],\n'),
            ("viewer/steps/formulas.py", '    "bias": {', """    "scaled": {
        "x": Formula("~c", "dy[~c] * s[c]"),
        "s": Formula("c", "dy[~c] * x[~c]", "~")},\n""")):
        text = (copy / name).read_text(encoding="utf-8")
        text = text.replace(before, more + before, 1) if before else text + more
        (copy / name).write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    child(sys.executable, "-c", ITS_USERS, cwd=tmp_path, env=environment)
