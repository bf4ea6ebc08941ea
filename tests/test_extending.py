"""What a user adds in a file of their own: an activation, three trunks, a task.

The files are in ``tests/extend``, written to be read.  Each is trained, summarised, planned and
compared from the command line, checked by its gradients, and traced.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import traced
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt import cli
from minifpt import functional as F
from minifpt.experiments import plan
from minifpt.files.runs import History
from minifpt.layers import ACTIVATIONS, Parameter
from minifpt.trunks.names import TrunkSpec, load_object

FOLDER = Path(__file__).parent / "extend"
TRUNKS = ["silu.py:make_trunk", "bidirectional.py:make_trunk", "rnn.py:RNN", "decay.py:Decay"]
WALK = "walk.py:Walk"
GPT2 = ["wpe", "h.0.ln_1", "h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.attn", "h.0.ln_2",
        "h.0.mlp.c_fc", "h.0.mlp.act", "h.0.mlp.c_proj", "h.0.mlp", "h.0", "ln_f"]
INNER = {"rnn.py:RNN": ["inputs", "ln_f"], "decay.py:Decay": []}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the user's files, in which the command line runs."""
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "SECONDS", 0.0)
    before = dict(ACTIVATIONS)
    yield tmp_path
    ACTIVATIONS.clear()
    ACTIVATIONS.update(before)


@pytest.fixture
def minifpt_says(capsys):
    """Runs a command that has to succeed; what it printed, without the progress bar."""
    def run(*argv):
        assert cli.main(argv) == 0, capsys.readouterr().err
        return capsys.readouterr().out
    return run


def make(spec, dtype=np.float64, **options):
    return TrunkSpec.parse(spec).make(dtype=dtype, **options)


def fpt(trunk, mask="full", dim=3, output_tokens=2):
    model = minifpt.FPT(trunk, dim, 4, output_tokens)
    model.freeze(minifpt.FreezeMask.parse(mask))
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
    assert json.loads(Path("run/config.json").read_text())["model"] == spec
    first = History.load("run/metrics.csv")
    assert "after 4 steps" in minifpt_says(*argv, "--resume")
    assert History.load("run/metrics.csv") == first and Path("run/curves.png").exists()


def test_a_recurrent_trunk_learns(minifpt_says):
    out = minifpt_says("train", "bit-xor", "--n", 3, "--model", "rnn.py:RNN", "--steps", 250,
                       "--freeze", "full", "--lr", 1e-2)
    assert float(out.split()[1]) > 99                     # per cent


SUMMARIES = {
    # 5 + 5 layer norms of 32 scales and biases; 2 blocks of 4 C^2 + 4 C and 8 C^2 + 5 C.
    "silu.py:make_trunk": ["ln 320 320", "attn 8,448 frozen", "mlp 16,704 frozen"],
    "bidirectional.py:make_trunk": ["ln 320 320", "attn 8,448 frozen", "mlp 16,704 frozen"],
    "rnn.py:RNN": ["ln 64 64", "attn 1,024 frozen", "mlp 1,056 frozen"],
    "decay.py:Decay": ["attn 32 frozen"]}


@pytest.mark.parametrize("spec", TRUNKS)
def test_summary_lists_the_trunk_s_parameters(spec, minifpt_says):
    out = minifpt_says("summary", WALK, "--model", spec)
    assert out.startswith(f"{spec} on walk: in 15 x 1, out 1 x 2 (tokens x numbers)\n")
    rows = [" ".join([line.split()[0], *line.split()[-2:]]) for line in out.splitlines()]
    for row in [*SUMMARIES[spec], "input 64 64", "output 66 66"]:
        assert row in rows


# ----------------------------------------------------------------------- every trunk


@pytest.mark.parametrize("spec", TRUNKS)
def test_gradients_equal_differences(spec, randomise):
    trunk = randomise(make(spec), size=0.2)
    report = minifpt.gradcheck(trunk, x_of(2, 5, 32), elementwise=0, directions=2)
    assert report and report.tolerance == 1e-6
    assert report.errors.keys() == {"x", *dict(trunk.named_parameters())}


@pytest.mark.parametrize("spec", TRUNKS)
@pytest.mark.parametrize("mask", ["full", "fpt"])
def test_a_trace_has_the_trunk_s_layers(spec, mask, randomise):
    """By the names of its layers; the results are those without a trace."""
    model = fpt(randomise(make(spec), size=0.2), mask)
    t = traced(model, x_of(2, 6, 3))
    names = INNER.get(spec) or [] if spec in INNER else [
        n for i in range(2) for n in GPT2 if n.startswith("h.0")]
    expected = {f"trunk.{n}" for n in names} | {"input", "trunk", "output", ""}
    if spec not in INNER:
        expected |= {n.replace("h.0", "h.1") for n in expected} | {"trunk.wpe", "trunk.ln_f"}
    assert set(t.outputs) == set(t.grads) == expected and not t.reasons
    assert t.outputs["trunk"].shape[0::2] == (2, 32) and t.grads["trunk"].shape[0::2] == (2, 32)
    assert all(step.partner for step in t.steps)


# ---------------------------------------------------------------------- one by one


def test_silu_is_what_runs():
    model = fpt(make("silu.py:make_trunk"))
    with minifpt.trace(model) as t:
        y, cache = model.forward(x_of(2, 6, 3))
        model.backward(y, cache)
    steps = [s for s in t.steps if s.op == "silu" and not s.backward]
    assert [s.name for s in steps] == ["trunk.h.0.mlp.act.silu", "trunk.h.1.mlp.act.silu"]
    assert (steps[0].function, steps[0].partner.function) == ACTIVATIONS["silu"]
    np.testing.assert_array_equal(t.outputs["trunk.h.0.mlp.act"],
                                  steps[0].function(t.outputs["trunk.h.0.mlp.c_fc"])[0])
    with pytest.raises(ValueError, match="activation_function is 'mish', expected one of .*, silu"):
        minifpt.GPT2Config(activation_function="mish")


@given(T=st.integers(2, 100), at=st.integers(0, 10**6))
def test_without_a_causal_mask_every_output_sees_every_token(T, at):
    """Whichever token changes, every output does; in a causal one none before it."""
    config = dict(n_layer=1, n_head=2, n_embd=8, n_positions=100, vocab_size=4)
    both, left = (minifpt.GPT2(minifpt.GPT2Config(**config, causal=causal), dtype=np.float64)
                  for causal in (False, True))
    x, at = x_of(1, T, 8), at % T
    changed = x.copy()
    changed[0, at] = np.roll(x[0, at], 1)

    def differs(trunk):
        return (trunk.forward(x)[0] != trunk.forward(changed)[0]).any(-1)[0]
    assert differs(both).all()
    assert not differs(left)[:at].any() and differs(left)[at:].all()
    for block in left.h:                                  # as the user's file says of weights
        block.attn.causal = False
    np.testing.assert_array_equal(left.forward(x)[0], both.forward(x)[0])


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


def test_a_trunk_may_be_made_of_functions():
    """Not even a class is needed."""
    w = Parameter(np.full(3, 2.0), "mlp")
    trunk = SimpleNamespace(
        config=SimpleNamespace(n_embd=3), dtype=np.dtype(np.float64),
        forward=lambda x, train=False, rng=None, *, last: (x[:, -last:] * w.data, (x, last)),
        named_parameters=lambda: [("w", w)])

    def backward(dy, cache):
        x, last = cache
        w.add_grad((dy * x[:, -last:]).sum(axis=(0, 1)))
        return F.last_tokens_backward(dy * w.data, F.LastTokensCache(x.shape, dy.shape[1]))
    trunk.backward = backward
    model = fpt(trunk)
    assert minifpt.gradcheck(model, x_of(2, 5, 3))
    with minifpt.trace(model) as t:
        model.forward(x_of(2, 5, 3))
    assert list(t.outputs) == ["input", "trunk", "output", ""]
    assert t.outputs["trunk"].shape == (2, 2, 3)


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


# ------------------------------------------------------------------- files that fail


NEW_OPERATION = '''
ScaledCache = namedtuple("ScaledCache", "x s")


def scaled(x, s):
    """``y = x * s``.  x (..., C), s (C,) -> y (..., C)."""
    cache = ScaledCache(x, s)
    return x * s, cache


def scaled_backward(dy, cache):
    """``dx = dy * s``, ``ds = sum of dy * x over all rows``."""
    x, s = cache
    same_shape(dy, x.shape)
    return dy * s, (dy * x).reshape(-1, len(s)).sum(axis=0)
'''
ITS_USERS = """
import numpy as np
import minifpt
from minifpt import examples, fast, tracing
from minifpt.exercises import own
from minifpt.viewer import formulas
assert "scaled" in tracing.OPERATIONS and examples.check("scaled")
assert fast.scaled is minifpt.functional.scaled
x, s = np.ones((2, 3)), np.arange(3.0)
with minifpt.trace(minifpt.layers.Linear(3, 3)) as t:
    y, cache = fast.scaled(x, s)
    fast.scaled_backward(y, cache)
assert [step.op for step in t.steps] == ["scaled", "scaled"]
assert np.array_equal(t.steps[0].gradients["s"], [0, 2, 4])
operands = formulas.operands(t.steps[1], {})
assert formulas.formulas(t.steps[1], operands)["s"].put == "dy[~c] * x[~c]"
assert "def scaled_backward" in own.skeleton()
own.new("mine.py")
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
            ("fast.py", "    silu,\n", "    scaled,\n    scaled_backward,\n"),
            ("examples.py", '        "linear": ', '        "scaled": lambda: '
                                                  '[((n((2, 3, 4)), n(4)), {})],\n'),
            ("viewer/formulas.py", '    "bias": {', """    "scaled": {
        "x": Formula("~c", "dy[~c] * s[c]"),
        "s": Formula("c", "dy[~c] * x[~c]", "~")},\n""")):
        text = (copy / name).read_text(encoding="utf-8")
        text = text.replace(before, more + before, 1) if before else text + more
        (copy / name).write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", ITS_USERS], cwd=tmp_path, env=environment,
                             capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
