"""The reader's own functional.py: skeleton, check, and training on it."""

import ast
import inspect
import json
import re
import signal
import textwrap
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli, fast, layers, tracing
from minifpt import functional as F
from minifpt.exercises import engine, operations, own
from minifpt.exercises.lesson import lessons_folder
from minifpt.exercises.mistakes import MISTAKES

SOURCE = inspect.getsource(F)
SKELETON = own.IMPORTS + own.stubs(own.FUNCTIONS, (), is_bare=False)


def with_bodies(text, **bodies):
    """A skeleton in which the functions of these names have these bodies instead of their stubs."""
    for name, body in bodies.items():
        body = textwrap.indent(inspect.cleandoc(body), "    ")
        stub = f'    raise NotImplementedError("lesson {own.FUNCTIONS[name]}")'
        head, rest = text.split(f"def {name}(")
        text = f"{head}def {name}({rest.replace(stub, body, 1)}"
    return text


@pytest.fixture
def file(tmp_path):
    """``file(NAME=body)``: writes a skeleton with these bodies, and returns its path."""
    def write(**bodies):
        path = tmp_path / "mine.py"
        path.write_text(with_bodies(SKELETON, **bodies), encoding="utf-8")
        return path
    return write


@pytest.fixture
def unchecked(monkeypatch):
    """``using`` believes that a file is right; the check takes a second."""
    monkeypatch.setattr(own, "results", lambda path: [])


def body(name):
    """The library's own body of a function."""
    function = ast.parse(textwrap.dedent(inspect.getsource(vars(F)[name]))).body[0]
    return "\n".join(map(ast.unparse, function.body[1:]))


def small(activation="gelu_new"):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=128, vocab_size=11,
                                dropout=0.1, activation_function=activation)
    return minifpt.LanguageModel(config, seed=0)


# --------------------------------------------------------------------------- the stubs


def functions_in(text):
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


def test_a_new_file_has_each_function_its_docstring_and_no_body(tmp_path, capsys):
    path = tmp_path / "my file.py"
    assert cli.main(["new", path]) == 0
    assert f"next: minifpt check '{path}'\n" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    ours, theirs = functions_in(text), functions_in(SOURCE)
    for name, function in ours.items():
        assert ast.get_docstring(function) == ast.get_docstring(theirs[name])
        if name in own.FUNCTIONS:
            assert ast.dump(function.args) == ast.dump(theirs[name].args)
            assert own.is_stub(function) and len(function.body) == 2
        else:
            assert ast.dump(function) == ast.dump(theirs[name])
    assert [n for n in ours if n in own.FUNCTIONS] == [*own.FUNCTIONS] == sorted(
        own.FUNCTIONS, key=own.FUNCTIONS.get)
    assert {*own.FUNCTIONS} == {n for op in tracing.OPERATIONS for n in (op, f"{op}_backward")}
    assert max(map(len, text.splitlines())) <= 100
    assert own.load(path).functions == {}


def test_each_lesson_appends_its_own_stubs_below_what_is_there(tmp_path, capsys):
    """Also below what is no Python yet, and never twice."""
    path, written = tmp_path / "mine.py", "def linear(x, w, b):\n    return x @ w +\n"
    path.write_text(written, encoding="utf-8")
    for lesson, names in ((4, ["positions", "positions_backward", "attention"]),
                          (1, ["linear_backward"]), (5, ["attention_backward"]), (4, [])):
        before = path.read_text(encoding="utf-8")
        assert minifpt.new(path, lesson=lesson) == names
        assert path.read_text(encoding="utf-8").startswith(before.rstrip())
    for end in ("2 functions to write: last_tokens, last_tokens_backward",
                "these functions are there already"):
        assert cli.main(["new", path, "--lesson", "7"]) == 0
        assert f"{path}: {end}\n" in capsys.readouterr().out
    path.write_text(path.read_text(encoding="utf-8").replace("w +\n", "w + b, (x, w, b)\n"))
    text = path.read_text(encoding="utf-8")
    assert text.count("SoftmaxCache = ") == text.count("import math") == 1
    assert [*functions_in(text)] == [
        "linear", "positions", "positions_backward", "repeat_heads", "causal_mask", "attention",
        "linear_backward", "sum_heads", "attention_backward", "last_tokens", "last_tokens_backward"]
    assert {*own.load(path).functions} == {"linear"}


def test_a_lessons_stubs_have_the_forward_definitions_and_no_gradient(tmp_path):
    path = tmp_path / "mine.py"
    for lesson in {*own.FUNCTIONS.values()}:
        own.new(path, lesson)
    text = path.read_text(encoding="utf-8")
    functions = functions_in(text)
    for name in own.FUNCTIONS:
        docstring, library = ast.get_docstring(functions[name]), inspect.getdoc(vars(F)[name])
        if name.endswith("_backward"):
            assert docstring.startswith("Return d") and "``" not in docstring
            assert not any(formula in text for formula in re.findall(r"``(d\w* = .*?)``", library))
        else:
            assert docstring == inspect.getdoc(vars(F)[name].__wrapped__)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("file", "lesson", "message"), [
    ("mine", 1, "Python file"), ("mine.py", 9, "lesson 9 asks for no function: expected one of 1,"),
    (".", None, "Python file"), ("folder.py", 1, "is a folder")])
def test_a_file_that_cannot_be_is_refused(tmp_path, file, lesson, message):
    (tmp_path / "folder.py").mkdir()
    with refused(message):
        own.new(tmp_path / file, lesson)


# --------------------------------------------------------------------------- the check


def test_the_solution_is_right_and_is_put_into_a_skeleton(tmp_path):
    """Into one that Windows wrote."""
    path = tmp_path / "mine.py"
    own.new(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    own.put(path, F.relu)
    own.put(path, own.solution())
    assert "def relu(x):" in path.read_text(encoding="utf-8")
    rest = [str(r) for r in own.results(path, 0) if r.status != "passed"]
    assert not rest, f"lessons/solutions/18_functional.py needs a right body of each: {rest}"


@pytest.mark.parametrize("name", own.FUNCTIONS)
def test_one_function_of_the_librarys_alone_is_right(name):
    assert operations.examine({name: vars(F)[name]}, name, 0).status == "passed"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file with every function of the library."""
    path = tmp_path_factory.mktemp("own") / "full.py"
    path.write_text(SOURCE, encoding="utf-8")
    return own.load(path).functions


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_named(whole, name):
    for hint, answer in operations.OPERATIONS[name].wrong_answers:
        result = operations.examine(whole | {name: answer}, name, 0)
        assert result.status == operations.WRONG, hint
        assert hint.lower() in result.hint.lower(), (hint, result)


def changed(name, old, new):
    """The library's body of a function with one change."""
    assert old in body(name)
    return body(name).replace(old, new)


LINEAR = "return x @ w + b, LinearCache(x, w, need)"
LINEAR_BACKWARD = """
    x, w, need = cache
    d = dy.reshape(-1, w.shape[1])
    grads = dy @ w.T, x.reshape(-1, w.shape[0]).T @ d, d.sum(axis=0)
    {}
    return grads"""
DROPOUT = "mask = (rng.random(x.shape) >= p) / (1 - p)\nreturn x * mask, DropoutCache(mask)"
DROPOUT_RAISES = "return x * (rng.random(x.shape) >= p) / x.dtype.type(1 - p), None"
DROPOUT_SWAPPED = """
    mask = (rng.random(x.shape) >= p) / (1 - p) if p else None
    return (DropoutCache(mask), x * mask) if p else (x, DropoutCache(None))"""
DROPOUT_IN_FLOAT32 = """
    if p == 0:
        return x, DropoutCache(None)
    mask = (rng.random(x.shape, dtype=x.dtype) >= p).astype(x.dtype) / (1 - p)
    return x * mask, DropoutCache(mask)"""
DROPOUT_OF_SHAPE = ("mask = (rng.random({}) >= p).astype(x.dtype) / x.dtype.type(1 - p)\n"
                    "return x * mask, DropoutCache(mask)")
ATTENTION = {name: body(name) for name in ("softmax", "softmax_backward", "attention")}
MASK = """mask = ({}).astype(q.dtype) / (1 - p) if p else None
dropped = probabilities if mask is None else probabilities * mask
dropout_cache = DropoutCache(mask)"""
VARIANCE_OF_SQUARES = """
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) - mean * mean + eps)
    xhat = (x - mean) * rstd
    return xhat * w + b, LayerNormCache(xhat, rstd, w)"""
LOG_SUM_EXP = ("top = x.max(-1, keepdims=True)\ne = np.exp(x - top)\n"
               "s = e.sum(-1, keepdims=True)\nreturn top + np.log(s), e / s")
PASSED = ": passed"
# (the bodies of a file's functions, a part of what the check says of some of them)
VERDICTS = [
    # what it returns
    ({"linear": "return x @ w + b"}, {"linear": "Return two things"}),
    ({"linear": "return [x @ w + b, LinearCache(x, w, need)]"}, {"linear": PASSED}),
    ({"linear": "return LinearCache(x, w, need), x @ w + b"}, {"linear": "Return y first, then"}),
    ({"cross_entropy": "return (logits, targets), 0.7"}, {"cross_entropy": "Return y first, then"}),
    ({"linear": "return x @ w + b, LinearCache(x, w, need, 3)"}, {"linear": "TypeError"}),
    ({"relu_backward": "return (dy * (cache.x > 0),)"},
     {"relu_backward": "shape (1, 3, 4), expected (3, 4)"}),
    ({"linear_backward": "x, w, need = cache\nreturn dy @ w.T"},
     {"linear_backward": "3 gradients: dx, dw, db"}),
    ({"linear_backward": LINEAR_BACKWARD.format("grads = grads[1], grads[0], grads[2]")},
     {"linear_backward": "order"}),
    ({"linear_backward": LINEAR_BACKWARD.format("grads = None, *grads[1:]")},
     {"linear_backward": "dx is wrong. It returns a NoneType"}),
    ({"softmax_backward": "return 2.0 * (cache.y * (dy - np.vecdot(dy, cache.y)[..., None]))"},
     {"softmax_backward": "dx is wrong. All entries are 2 times as large as they"}),
    # the Jacobian, row by row, leaves rounding where the solution has 0
    ({"softmax_backward": "y = cache.y\nreturn y * dy - (y[..., None] * y[..., None, :] "
                          "@ dy[..., None])[..., 0]"}, {"softmax_backward": PASSED}),
    # a T5's bias
    ({"attention": body("attention"), "attention_backward": body("attention_backward")},
     {"attention": PASSED, "attention_backward": PASSED}),
    ({"attention": changed("attention", "scores + bias", "scores + bias.swapaxes(1, 2)")},
     {"attention": "The largest difference"}),
    *(({"attention": body("attention"), "attention_backward": changed(
        "attention_backward", "ds.sum(axis=0) if has_bias else None", result)},
       {"attention_backward": part}) for result, part in [
        ("ds[0] if has_bias else None", "dbias is"),
        ("None", "Return 4 gradients: dq, dk, dv, dbias."),
        ("ds.sum(axis=0), 0", "Return dq, dk, dv and dbias, which is None where there is no")]),
    *(({"attention": body("attention"), "attention_backward": changed(
        "attention_backward", f"sum_heads({name}, G)", f"{name}[:, :G]")},
       {"attention_backward": f"{name} is wrong"}) for name in ("dk", "dv")),
    # what it raises
    ({"linear_backward": "return 1 / 0, 0, 0"},
     {"linear_backward": "It raised ZeroDivisionError in line "}),
    ({"linear_backward": "x, w, need = cache\nreturn dy @ w.T, x.T @ dy, dy.sum((0, 1))"},
     {"linear_backward": "arguments: dy (2, 3, 4), cache LinearCache(x (2, 3, 5), w (5, 4), need "
                         "(True, True, True))"}),
    ({"cross_entropy": "return -logits[np.arange(len(targets)), targets].mean(), None"},
     {"cross_entropy": "arguments: logits (2, 3, 6), targets (2, 3)"}),
    ({"positions_backward": "tokens, shape, x_shape = cache\nstart, stop = tokens"},
     {"positions_backward": "cache PositionsCache(tokens slice(2, 5, None), shape (7, 4)"}),
    # the types of its numbers, and their size
    ({"gelu": "y = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))\n"
              "return 0.5 * y, ActivationCache(x)"}, {"gelu": "float32"}),
    ({"positions_backward": "dw = np.zeros(cache.shape)\ndw[cache.tokens] = dy.sum(0)\n"
                            "return dy, dw"}, {"positions_backward": "dw is float64"}),
    ({"gelu": "e = np.exp(2 * GELU_A * (x + GELU_B * x ** 3))\n"
              "return x / 2 * (1 + (e - 1) / (e + 1)), ActivationCache(x)"},
     {"gelu": "Here x is large"}),
    ({"silu": "e = np.exp(x)\nreturn x * e / (1 + e), ActivationCache(x)"},
     {"silu": "Here x is large"}),
    ({"layer_norm": VARIANCE_OF_SQUARES}, {"layer_norm": "E[x^2] - E[x]^2 loses its digits"}),
    # a mistake that one size hides
    ({"last_tokens": changed("last_tokens", "x[:, -n:]", "x[:, -n:-1]")},
     {"last_tokens": "not right yet"}),
    ({"attention": changed("attention", "repeat_heads(k, H)", "np.tile(k, (1, H // k.shape[1], "
                           "1, 1))")}, {"attention": "not right yet"}),
    # dropout draws its own mask
    ({"dropout": DROPOUT}, {"dropout": "y is float64"}),
    ({"dropout": DROPOUT.replace("/ (1 - p)", "* x.dtype.type(1)")},
     {"dropout": "factor is missing"}),
    ({"dropout": "mask = (rng.random(x.shape) < p) / max(1 - p, 0.1)\n"
                 "return (x * mask, DropoutCache(mask)) if p else (x, DropoutCache(None))"},
     {"dropout": "share that is dropped"}),
    ({"dropout": f"rng = np.random.default_rng(1)\n{DROPOUT}"}, {"dropout": "Draw from rng"}),
    *(({"dropout": DROPOUT_OF_SHAPE.format(shape)}, {"dropout": "Whole rows or columns"})
      for shape in ("x.shape[1:]", "x.shape[-1]")),
    ({"dropout": DROPOUT_RAISES} | ATTENTION,
     {"dropout": "With p = 0, y is x, and rng may be None. It raised Attrib",
      "attention": "Mend dropout first", "softmax": PASSED, "softmax_backward": PASSED}),
    ({"dropout": DROPOUT_SWAPPED} | ATTENTION, {"attention": "Mend dropout first"}),
    ({"dropout": DROPOUT_IN_FLOAT32} | ATTENTION, {"dropout": PASSED, "attention": PASSED}),
    *(({"attention": changed("attention", "dropped, dropout_cache = dropout(probabilities, p, rng)",
                             MASK.format(mask)), **more}, {"attention": part} | verdicts)
      for mask, part in ((
          "rng.binomial(1, 1 - p, probabilities.shape)", PASSED),
          ("(rng.random(probabilities.shape) < p)", "In the dropout of the probabilities: With p "
           "= 0.25, 25 % of the entries are kept"))
      for more, verdicts in (({}, {}), (
          {"attention_backward": body("attention_backward")}, {"attention_backward": PASSED}))),
    # a cache of one's own is an affair of the pair
    ({"relu": "return np.maximum(x, 0.0), x > 0", "relu_backward": "return dy * cache"},
     {"relu": PASSED, "relu_backward": PASSED}),
    ({"log_sum_exp": LOG_SUM_EXP, "log_sum_exp_backward": "return dy * cache",
      "cross_entropy_backward": body("cross_entropy_backward")},
     {"log_sum_exp": PASSED, "log_sum_exp_backward": PASSED, "cross_entropy_backward": PASSED}),
    ({"softmax": 'e = np.exp(x - x.max(-1, keepdims=True))\ny = e / e.sum(-1, keepdims=True)\n'
                 'return y, {"y": y}', "softmax_backward":
      "y = cache['y']\nreturn y * (dy - (dy * y).sum(-1, keepdims=True))"},
     {"softmax_backward": "the library's attention calls both"}),
    ({"dropout": "if not p:\n    return x, 1.0\nmask = (rng.random(x.shape) >= p) / "
                 "x.dtype.type(1 - p)\nreturn x * mask, mask",
      "dropout_backward": "return dy * cache"},
     {"dropout_backward": "As long as that is the library's, keep to "}),
    # the forward pass alone keeps what the library's backward pass reads
    *(({name: changed(name, old, new)}, {name: part}) for name, old, new, part in [
        ("layer_norm", "LayerNormCache(xhat", "LayerNormCache(x",
         "xhat is (2, 3, 5), with other values"),
        ("gelu", "ActivationCache(x)", "ActivationCache(t)", "x is (3, 4), with other values"),
        ("attention", "AttentionCache(q,", "AttentionCache(q / math.sqrt(q.shape[-1]),",
         "(q, k, v, probabilities, mask, has_bias), q is (2, 2, 4, 3), with other"),
        ("cross_entropy", "CrossEntropyCache(lse_cache,", "CrossEntropyCache(lse,",
         "log_sum_exp is (2, 3, 1), expected LogSumExpCache(e (2, 3, 6))"),
        ("positions", "PositionsCache(tokens, w.shape", "PositionsCache(np.arange(9), x.shape",
         "shape is (2, 3, 4), expected (7, 4)"),
        ("last_tokens", "LastTokensCache(x.shape, n)", "LastTokensCache(n, n)",
         "shape is 2, expected (2, 5, 3)"),
        ("linear", "LinearCache(x if need[1] else None, w", "LinearCache(x, w.T",
         "w is (4, 5), exp"),
        ("embedding", "EmbeddingCache(ids, w.shape)", "(ids, len(w))",
         "shape is 7, expected (7, 4)"),
        ("softmax", "SoftmaxCache(y)", "y", "which stands in, cannot read your cache: expected "
                                            "SoftmaxCache(y), yours is (2, 3, 4)"),
        ("dropout", "DropoutCache(mask)", "DropoutCache(mask > 0)",
         "mask is (30, 40), with other"),
        ("log_sum_exp", "LogSumExpCache(e)", "(e,)", "not a plain tuple"),
        ("lstm", "i, f, g, o, c, h if", "i, f, g, o, np.tanh(c), h if",
         "cell is (2, 5, 2), with")]),
    # need may be left alone, but not half heeded
    ({"linear": LINEAR, "linear_backward": LINEAR_BACKWARD.format("")},
     {"linear": PASSED, "linear_backward": PASSED}),
    ({"linear": LINEAR.replace("(x, w", "(x if need[0] else None, w"),
      "linear_backward": LINEAR_BACKWARD.format("")},
     {"linear_backward": "With need = (False, True, False): It raised"}),
    ({"linear": LINEAR, "linear_backward": LINEAR_BACKWARD.format(
        "if need != (True, True, True): dy = np.ones_like(dy); grads = dy @ w.T, *grads[1:]")},
     {"linear_backward": "With need = (True, False, False): dx is wrong"}),
    ({"linear_backward": LINEAR_BACKWARD.format("")}, {"linear_backward": PASSED}),
    # each half alone is right, and the pair trains to nothing
    ({"softmax": "x -= x.max(-1, keepdims=True)\ny = np.exp(x)\n"
                 "return y / y.sum(-1, keepdims=True), SoftmaxCache(y)"}, {"softmax": "in place"}),
    ({"relu_backward": "dy *= cache.x > 0\nreturn dy"}, {"relu_backward": "in place"}),
    *(({"linear": there, "linear_backward": back}, {"linear_backward": part})
      for there, back, part in [
        ("global kept\nkept = x, w, need\nreturn x @ w + b, None",
         LINEAR_BACKWARD.format("").replace("= cache", "= kept"), "not a global variable"),
        (f"linear.x = x\n{LINEAR}",
         LINEAR_BACKWARD.format("").replace("x.resh", "linear.x.resh"), "global"),
        (LINEAR, LINEAR_BACKWARD.format("w *= 0.5"), "in place, cache"),
        (LINEAR, LINEAR_BACKWARD.format("x[...] = 0"), "in place, cache"),
        (LINEAR, LINEAR_BACKWARD.format("dy *= 2"), "in place, dy"),
        ("return x @ w + b, {'parts': [x, w, need]}", LINEAR_BACKWARD.format("w += 1").replace(
            "= cache", "= cache['parts']"), "in place, cache"),
        ("return x @ w + b, lambda dy: (x, w, need)", LINEAR_BACKWARD.format("w += 1").replace(
            "= cache", "= cache(dy)"), "neither its cache nor a weight"),
        ("return x @ w + b, [x, w, need]", LINEAR_BACKWARD.format("cache.clear()"),
         "in place, cache")]),
    # which function is to be mended first
    ({"relu": "return 2.0 * np.maximum(x, 0.0), ActivationCache(x)",
      "relu_backward": "return dy * (cache.x > 0)"},
     {"relu": "not right yet", "relu_backward": PASSED}),
    ({"relu": "return 2.0 * np.maximum(x, 0.0), ActivationCache(x)",
      "relu_backward": "return dy * 2.0 * (cache.x > 0)"}, {"relu_backward": "Mend relu first"}),
    ({"layer_norm": changed("layer_norm", "(centred * centred).mean(axis=-1, keepdims=True)",
                            "(centred * centred).sum(-1, keepdims=True) / (x.shape[-1] - 1)"),
      "layer_norm_backward": body("layer_norm_backward")},
     {"layer_norm": "not right yet", "layer_norm_backward": PASSED}),
    ({"linear": changed("linear", "@ w + b", "@ w"), "linear_backward": LINEAR_BACKWARD.format("")},
     {"linear": "bias is missing", "linear_backward": PASSED}),
    ({"softmax": changed("softmax", "e.sum(axis=-1", "e.sum(axis=0"),
      "softmax_backward": body("softmax_backward")},
     {"softmax": "Each row sums to 1", "softmax_backward": PASSED}),
    ({"softmax": changed("softmax", "e.sum(axis=-1", "e.sum(axis=0"),
      "attention": body("attention"), "attention_backward": body("attention_backward")},
     {"attention": "Mend softmax first", "attention_backward": PASSED}),
    ({"log_sum_exp_backward": "return cache.e", "cross_entropy": body("cross_entropy"),
      "cross_entropy_backward": body("cross_entropy_backward")},
     {"cross_entropy_backward": "Mend log_sum_exp_backward first"}),
    ({"linear": changed("linear", "@ w + b", "@ w - b"), "linear_backward": "return dy, dy, dy"},
     {"linear_backward": "Mend linear first"}),
    ({"log_sum_exp": "e = np.exp(x - x.max(axis=-1, keepdims=True))\n"
                     "return np.log(e.sum(axis=1, keepdims=True)) + x, LogSumExpCache(e)",
      "log_sum_exp_backward": "return dy * cache.e"},
     {"log_sum_exp_backward": "Mend log_sum_exp first"}),
]


@pytest.mark.parametrize(("bodies", "expected"), VERDICTS)
def test_the_check_says_of_a_function_what_is_wrong(file, bodies, expected):
    functions = own.load(file(**bodies)).functions
    for name, part in expected.items():
        verdict = str(operations.examine(functions, name, 0))
        assert part in verdict, verdict


def test_the_table_has_what_is_done_wrong_and_next(file, capsys, monkeypatch):
    monkeypatch.setattr(engine, "SECONDS", 0.4)           # of the processor, for a loop
    loop = "if p:\n    while True: pass\n" + body("attention")
    path = file(linear=body("linear"), linear_backward="return dy, dy, dy",
                relu="while True: pass", relu_backward="return dy * (cache.x > 0)",
                gelu_exact="raise SystemExit(0)", silu="x = silu(x)", attention=loop,
                softmax="raise NotImplementedError('lesson 2')\nreturn x, None",
                bias="print('/tmp/a/mine.py:3: here', 'a' * 100_000)\n"
                     "return x - b, BiasCache(x.shape)")
    line = path.read_text(encoding="utf-8").partition("('lesson 2')")[0].count("\n") + 1
    assert cli.main(["check", path]) == 1
    out = capsys.readouterr().out.splitlines()
    lines = {line.split()[3].rstrip(":"): line for line in out}
    for name, part in {
            "linear": "✓ linear: done", "relu": "not end within 0.4 s: is there a loop?",
            "linear_backward": "wrong. dx is wrong. The result has shape",
            "relu_backward": "✓ relu_backward: done",     # with the library's forward pass
            "silu": "RecursionError", "attention": "not end within 0.4 s",
            "softmax": f"not written. Its line {line} still raises NotImplementedError.",
            "gelu_exact": "SystemExit in line", "bias": "It printed: mine.py:3: here"}.items():
        assert part in lines[name]
    assert "lesson 15  · not written: lstm, lstm_backward" in out
    assert f"2 of {len(own.FUNCTIONS)} done, 6 wrong. Next: linear_backward, lesson 1." in " ".join(
        out[-2:])
    assert sum("not written:" in line for line in out) == len({*own.FUNCTIONS.values()} - {1})


def test_without_an_alarm_an_endless_forward_ends_the_check_of_its_backward(file, monkeypatch):
    """As in a browser, where nothing would end a loop in the backward pass, too."""
    monkeypatch.delattr(signal, "setitimer", raising=False)
    monkeypatch.setattr(engine, "SECONDS", 0.2)
    functions = own.load(file(relu="x\nwhile True:\n    x = x",
                              relu_backward="return dy * (cache.x > 0)")).functions
    result = operations.examine(functions, "relu_backward")
    assert result.is_endless and result.hint.startswith("Mend relu first. It did not end")


@pytest.mark.parametrize(("name", "text", "part"), [
    ("bad.py", "raise KeyError('x')", "line 1: KeyError"),
    ("bad.py", "\nraise SystemExit(4)", "line 2: it ends the program"),
    ("bad.py", "\n\nwhile True: pass", "line 3: Wrong: It did not end within 0.1 s"),
    ("bad.py", "def f(:", "line 1: SyntaxError: invalid syntax"),
    ("bad.py", "x = '\0'", "not text"), ("bad.py", None, "'minifpt new bad.py' makes it"),
    ("bad.ipynb", "{}", "A notebook's own cells check its exercises")])
def test_a_file_that_cannot_be_run_is_one_line(cwd, fails, monkeypatch, name, text, part):
    monkeypatch.setattr(engine, "SECONDS", 0.1)
    if text is not None:
        (cwd / name).write_text(text)
    line = fails("check", name)
    assert part in line and line.count(name) == 1 + ("new" in part)


def test_what_returns_nothing_does_not_run(file):
    path = file(relu_backward="dy * (cache.x > 0)")
    with refused("relu_backward returns nothing"), own.using(path):
        pass
    for text in ("dx = ...\nreturn dx", "return ..."):
        assert "relu_backward" not in own.load(file(relu_backward=text)).functions


def test_a_function_that_was_left_out_is_not_the_next_one(file, capsys):
    own.print_results(own.results(file(linear=body("linear"), softmax=body("softmax"))))
    assert "Next: softmax_backward, lesson 2." in capsys.readouterr().out


# ------------------------------------------------------------------------------ running


def test_the_librarys_half_does_not_raise_from_within(file, unchecked):
    """Even where nobody has checked."""
    with own.using(file(last_tokens="return x[:, -n:], LastTokensCache(x.shape, n)")):
        y, cache = F.last_tokens(np.ones((2, 5, 3)), 2)
        with refused("mine.py: the library's last_tokens_backward raised"):
            F.last_tokens_backward(y, cache._replace(shape=(1, 1, 1)))


MODELS = {
    "lm": lambda: small(),
    "llama": lambda: minifpt.trunks.get("random:llama:2x2/1x16", dropout=0.1),
    "lstm": lambda: minifpt.LSTM(minifpt.LSTMConfig(1, 16, dropout=0.0)),
    **{name: lambda name=name: small(name).trunk for name in ("gelu_new", "gelu", "relu")}}
# Of the operations that a small GPT-2 with gelu_new and numbers as inputs does not run.
MODEL_OF = {"embedding": "lm", "unembedding": "lm", "lstm": "lstm", "relu": "relu",
            "gelu_exact": "gelu"} | dict.fromkeys(
                ("rms_norm", "silu", "multiply", "rope"), "llama")
BEYOND = 66                                               # tokens; tiles begin at 64


def gradients(model, x):
    """{parameter: gradient} of a step."""
    model.zero_grad()
    logits, cache = model.forward(x, train=True, rng=np.random.default_rng(1))
    _, loss_cache = F.cross_entropy(logits, np.ones(logits.shape[:-1], int))
    model.backward(F.cross_entropy_backward(1.0, loss_cache), cache)
    return {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("op", tracing.OPERATIONS)
def test_what_is_written_runs_and_the_rest_is_the_librarys(file, unchecked, op):
    """One half of a pair, or both: the gradients of a model stay what they are, and so do the
    library's tables."""
    model, rng = MODELS[MODEL_OF.get(op, "gelu_new")](), np.random.default_rng(0)
    x = rng.integers(0, 3, (1, BEYOND))
    if MODEL_OF.get(op) != "lm":
        model = minifpt.FPT(model, 3, 4, 2)
        model.freeze("attn,mlp,h.0.ln_1.*" if op != "lstm" else "attn,mlp")
        x = x if op == "bias" else rng.standard_normal((1, BEYOND, 3)).astype(np.float32)
    plain, before = gradients(model, x), (dict(vars(F)), dict(vars(fast)), dict(layers.ACTIVATIONS),
                                          dict(tracing.OPERATIONS))
    for names in ([op], [f"{op}_backward"], [op, f"{op}_backward"]):
        with own.using(file(**{name: body(name) for name in names})) as mine:
            grads = gradients(model, x)
        assert {*mine.calls} == {*names}, f"name in MODEL_OF a model that runs {op}"
        assert before == (vars(F), vars(fast), layers.ACTIVATIONS, tracing.OPERATIONS)
        for n, grad in plain.items():
            assert (grad is None) == (grads[n] is None), n
            if grad is not None:
                near = 1e-5 + 1e-4 * float(abs(grad).max())
                np.testing.assert_allclose(grads[n], grad, rtol=1e-3, atol=near)


def test_it_is_the_readers_function_that_runs(file, unchecked):
    """One that doubles the scale of layer norm is seen in the output, and in a trace."""
    twice = body("layer_norm").replace("xhat * w + b", "2.0 * (xhat * w + b)")
    path, lm, ids = file(layer_norm=twice), small(), np.arange(10)[None]
    plain = lm.logits(ids)
    with own.using(path) as mine, minifpt.trace(lm) as t:
        assert not np.allclose(lm.logits(ids), plain)
    step = next(s for s in t.steps if s.op == "layer_norm")
    assert "2.0 * (xhat" in inspect.getsource(step.function)
    assert mine.calls == {"layer_norm": 5}
    np.testing.assert_array_equal(lm.logits(ids), plain)


T5_TRUNK = minifpt.trunks.get("random:t5:1x2x8")


def test_a_file_from_before_an_argument_came_still_runs():
    """The attention of lesson 18's solution has no ``bias``, which a T5 needs."""
    lm, ids = small(), np.arange(10)[None]
    plain = lm.logits(ids)
    with own.using(lessons_folder() / "solutions" / "18_functional.py", True) as mine:
        assert "bias" not in inspect.signature(mine.functions["attention"]).parameters
        np.testing.assert_allclose(lm.logits(ids), plain, atol=1e-4)
        assert mine.calls["attention"] == 2
        with refused(r"18_functional.py, line [1-9]\d*: attention raised TypeError"):
            T5_TRUNK.forward(np.ones((1, 4, 8), np.float32))


def test_a_command_writes_text_by_the_readers_functions(file, capsys):
    """Also by a wrong one, which it names."""
    line = ["generate", "It was ", "--tokens", "9", "--functional"]
    assert cli.main(line[:-1]) == 0
    plain = capsys.readouterr().out
    assert cli.main([*line, file(gelu=body("gelu"))]) == 0
    assert capsys.readouterr() == (plain, "")
    assert cli.main([*line, file(gelu="return -x, ActivationCache(x)")]) == 0
    out, err = capsys.readouterr()
    assert out != plain and "mine.py: gelu is wrong. " in err


def test_an_error_while_it_runs_is_one_line(file, unchecked):
    with own.using(file(gelu="if x.shape[-1] == 64:\n    raise KeyError('x')\nreturn x, None")):
        with refused(r"mine.py, line \d+: gelu raised KeyError"):
            small().logits(np.arange(5)[None])


LINE = ["train", "bit-xor", "--model", "random:1x2x8", "--steps", "2", "--batch-size", "2",
        "--functional", "mine.py", "--out", "run"]


def test_a_wrong_backward_is_named_before_training(file, capsys, monkeypatch, fails):
    wrong = body("layer_norm_backward").replace(
        "dw = (dy * xhat).reshape(-1, len(w)).sum", "dw = (dy * xhat).reshape(-1, len(w)).mean")
    monkeypatch.chdir(file(layer_norm_backward=wrong, relu=body("relu")).parent)
    assert "layer_norm_backward is wrong. dw is wrong. A mean for a sum" in fails(*LINE)
    assert not Path("run").exists()
    assert "--skip-check needs --functional" in fails("train", "bit-xor", "--skip-check")

    monkeypatch.setattr(own, "results", lambda path: [])
    assert cli.main([*LINE, "--skip-check"]) == 0
    out = capsys.readouterr().out
    assert "1 of its functions ran, " in out and "never called relu\n" in out
    config = json.loads(Path("run/config.json").read_text())
    assert config["functional"] == "mine.py" and len(config["fingerprint"]["functions"]) == 16
    assert cli.main([*LINE, "--resume"]) == 0             # the same file: it has come to its end
    other = "other functions in the file of --functional"
    assert other in fails(*LINE[:-4], "--out", "run", "--resume")
    file(layer_norm_backward=wrong + " # changed")
    assert other in fails(*LINE, "--resume")


def test_a_file_without_a_written_function_is_not_trained_on(file, unchecked, fails, monkeypatch):
    monkeypatch.chdir(file().parent)
    assert "none of its functions is written" in fails(*LINE)
    assert not Path("run").exists()
