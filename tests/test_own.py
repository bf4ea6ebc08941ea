"""The reader's own functional.py: skeleton, check, and training on it."""

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from test_grids import needs_sessions, session, until

import minifpt
from minifpt import cli, fast, layers, tracing
from minifpt import functional as F
from minifpt.exercises import apart, operations, own
from minifpt.exercises.mistakes import MISTAKES

SOURCE, SKELETON = inspect.getsource(F), own.skeleton()


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


def body(name, **changes):
    """The library's own body of a function."""
    function = ast.parse(textwrap.dedent(inspect.getsource(vars(F)[name]))).body[0]
    return "\n".join(map(ast.unparse, function.body[1:]))


def results(path, seed=0):
    """What ``own.results`` finds, in this process: {name: Result}."""
    loaded = own.load(path)
    return {name: operations.examine(loaded.functions, name, seed) for name in own.FUNCTIONS}


def small(activation="gelu_new"):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=128, vocab_size=11,
                                dropout=0.1, activation_function=activation)
    return minifpt.LanguageModel(config, seed=0)


# ------------------------------------------------------------------------ the skeleton


def test_the_skeleton_has_each_function_its_docstring_and_no_body():
    tree, library = ast.parse(own.skeleton()), ast.parse(SOURCE)
    ours = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    theirs = {n.name: n for n in library.body if isinstance(n, ast.FunctionDef)}
    assert ours.keys() == theirs.keys()
    for name, function in ours.items():
        assert ast.dump(function.args) == ast.dump(theirs[name].args)
        assert ast.get_docstring(function) == ast.get_docstring(theirs[name])
        if name in own.FUNCTIONS:
            assert own.is_stub(function) and len(function.body) == 2
        else:
            assert ast.dump(function) == ast.dump(theirs[name])
    pairs = {n for op in tracing.OPERATIONS for n in (op, f"{op}_backward")}
    assert set(own.FUNCTIONS) == pairs
    assert max(map(len, own.skeleton().splitlines())) <= 100


def test_the_bare_skeleton_has_the_forward_definitions_and_no_gradient(tmp_path, capsys):
    assert cli.main(["new", tmp_path / "my bare.py", "--bare"]) == 0
    assert f"next: minifpt check '{tmp_path}/my bare.py'\n" in capsys.readouterr().out
    assert (tmp_path / "test_my bare.py").exists()
    text = (tmp_path / "my bare.py").read_text(encoding="utf-8")
    ours = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    for name in own.FUNCTIONS:
        docstring, library = ast.get_docstring(ours[name]), inspect.getdoc(vars(F)[name].raw)
        if not name.endswith("_backward"):
            assert docstring == library
        else:
            assert docstring.startswith("Return d") and "``" not in docstring
            for formula in re.findall(r"``(d\w* = .*?)``", library):
                assert formula not in text
    assert "Stuck?" in text and "Stuck?" not in own.skeleton()
    assert max(map(len, text.splitlines())) <= 100
    assert own.load(tmp_path / "my bare.py").functions == {}


def test_a_new_file_is_one_of_python(tmp_path):
    with pytest.raises(ValueError, match="Python file"):
        own.new(tmp_path / "mine")


# --------------------------------------------------------------------------- the check


def test_the_librarys_bodies_are_right(file):
    path = file(**{name: body(name) for name in own.FUNCTIONS})
    assert {str(r) for r in results(path).values() if r.status != "passed"} == set()


@pytest.mark.parametrize("name", own.FUNCTIONS)
def test_one_function_alone_is_right_and_falls_back_on_the_library(file, name):
    verdicts = results(file(**{name: body(name)}))
    assert {n for n, r in verdicts.items() if r.status == "passed"} == {name}
    assert {n for n, r in verdicts.items() if r.status == operations.WRONG} == set()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_named(tmp_path, name):
    path = tmp_path / "full.py"
    path.write_text(SOURCE, encoding="utf-8")
    full = own.load(path)
    for hint, answer in operations.OPERATIONS[name].wrong_answers:
        full.functions[name] = answer
        result = operations.examine(full.functions, name, 0)
        assert result.status == operations.WRONG, hint
        assert hint.lower() in result.hint.lower(), (hint, result)


@pytest.mark.parametrize(("name", "text", "part"), [
    ("linear", "return x @ w + b", "Return two things"),
    ("linear", "return x @ w + b, LinearCache(x, w, need, 3)", "TypeError"),
    ("softmax", "x -= x.max(-1, keepdims=True)\n    y = np.exp(x)\n"
                "    return y / y.sum(-1, keepdims=True), SoftmaxCache(y)", "in place"),
    ("gelu", "c = np.sqrt(2 / np.pi)\n"
             "    y = 0.5 * x * (1 + np.tanh(c * (x + 0.044715 * x ** 3)))\n"
             "    return y, ActivationCache(x)", "float32"),
    ("relu_backward", "return (dy * (cache.x > 0),)", "shape (1, 3, 4), expected (3, 4)"),
    ("relu_backward", "dy *= cache.x > 0\n    return dy", "in place"),
    ("linear_backward", "x, w, need = cache\n    return dy @ w.T", "3 gradients: dx, dw, db"),
    ("linear_backward", "x, w, need = cache\n    d = dy.reshape(-1, w.shape[1])\n    return "
     "x.reshape(-1, w.shape[0]).T @ d, dy @ w.T, d.sum(0)", "order"),
    ("linear_backward", "x, w, need = cache\n    d = dy.reshape(-1, w.shape[1])\n    return "
     "None, x.reshape(-1, w.shape[0]).T @ d, d.sum(0)", "dx is wrong. It returns a NoneType"),
    ("linear_backward", "return 1 / 0, 0, 0", "It raised ZeroDivisionError in line "),
    ("softmax_backward", "return 2.0 * (cache.y * (dy - np.vecdot(dy, cache.y)[..., None]))",
     "dx is wrong. All entries are 2 times as large"),
    ("linear_backward", "x, w, need = cache\n    return dy @ w.T, x.T @ dy, dy.sum((0, 1))",
     "arguments: dy (2, 3, 4), cache LinearCache(x (2, 3, 5), w (5, 4), need (True, True, True))"),
    ("cross_entropy", "return -logits[np.arange(len(targets)), targets].mean(), None",
     "arguments: logits (2, 3, 6), targets (2, 3)"),
    ("positions_backward", "tokens, shape, need = cache\n    start, stop = tokens",
     "cache PositionsCache(tokens slice(2, 5, None), shape (7, 4)"),
    ("positions_backward", "dw = np.zeros(cache.shape)\n    dw[cache.tokens] = dy.sum(0)\n"
     "    return dy, dw", "dw is float64"),
    ("dropout", "mask = (rng.random(x.shape) >= p) / (1 - p)\n"
                "    return x * mask, DropoutCache(mask)", "y is float64"),
    ("dropout", "mask = (rng.random(x.shape) >= p).astype(x.dtype)\n"
                "    return x * mask, DropoutCache(mask)", "factor is missing"),
    ("dropout", "mask = (rng.random(x.shape) < p) / max(1 - p, 0.1)\n"
                "    return (x * mask, DropoutCache(mask)) if p else (x, DropoutCache(None))",
     "share that is dropped"),
    ("gelu", "e = np.exp(2 * GELU_A * (x + GELU_B * x ** 3))\n"
             "    return x / 2 * (1 + (e - 1) / (e + 1)), ActivationCache(x)", "Here x is large"),
    ("silu", "e = np.exp(x)\n    return x * e / (1 + e), ActivationCache(x)", "Here x is large"),
    ("dropout", "rng = np.random.default_rng(1)\n"
                "    mask = (rng.random(x.shape) >= p) / (1 - p)\n"
                "    return x * mask, DropoutCache(mask)", "Draw from rng"),
])
def test_what_else_may_be_wrong(file, name, text, part):
    result = results(file(**{name: text}))[name]
    assert result.status == operations.WRONG and part in result.hint, result


def test_a_file_that_windows_wrote_is_read(file):
    path = file(relu=body("relu"))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    own.put(path, F.relu_backward)
    assert {r.name for r in own.results(path, 0) if r.status == "passed"} == {
        "relu", "relu_backward"}


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("last_tokens", "x[:, -n:]", "x[:, -n:-1 or None]"),
    ("grouped_heads", "n_head // G", "G")])
def test_a_mistake_that_one_size_hides_is_found(file, name, right, wrong):
    text = body(name)
    assert right in text
    assert results(file(**{name: text.replace(right, wrong)}))[name].status == operations.WRONG


def test_a_dropout_of_whole_rows_is_wrong(file):
    for shape in "(*x.shape[:-1], 1)", "x.shape[1:]", "x.shape[-1]":
        path = file(dropout=f"""
        mask = (rng.random({shape}) >= p).astype(x.dtype) / x.dtype.type(1 - p)
        return x * mask, DropoutCache(mask)""")
        hint = results(path)["dropout"].hint             # by chance they are of another share
        assert "Whole rows or columns" in hint or "p is the share" in hint, hint


def test_a_dropout_that_raises_is_named_and_the_others_are_judged(file):
    raising = "return x * (rng.random(x.shape) >= p) / x.dtype.type(1 - p), None"
    right = {name: body(name) for name in ("softmax", "softmax_backward", "attention")}
    found = results(file(dropout=raising, **right))
    assert "With p = 0, y is x, and rng may be None. It raised Attrib" in found["dropout"].hint
    assert "Mend dropout first" in found["attention"].hint
    assert {found[name].status for name in ("softmax", "softmax_backward")} == {"passed"}
    swapped = """
        mask = (rng.random(x.shape) >= p) / (1 - p) if p else None
        return (DropoutCache(mask), x * mask) if p else (x, DropoutCache(mask))"""
    found = results(file(dropout=swapped, **right))
    assert "Mend dropout first" in found["attention"].hint


def test_a_dropout_that_draws_in_another_way_is_right(file):
    """And attention, which calls it, is held against the library's with that dropout."""
    dropout = """
        if p == 0:
            return x, DropoutCache(None)
        mask = (rng.random(x.shape, dtype=x.dtype) >= p).astype(x.dtype) / (1 - p)
        return x * mask, DropoutCache(mask)"""
    verdicts = results(file(dropout=dropout, attention=body("attention")))
    assert {verdicts[name].status for name in ("dropout", "attention")} == {"passed"}, verdicts


def test_a_backward_beside_a_wrong_forward_is_held_against_the_librarys(file):
    """Here y = 2 max(x, 0)."""
    verdicts = {}
    for back in ("return dy * (cache.x > 0)", "return dy * 2.0 * (cache.x > 0)"):
        verdicts = results(file(relu="return 2.0 * np.maximum(x, 0.0), ActivationCache(x)",
                                relu_backward=back))
        assert verdicts["relu"].status == operations.WRONG
        assert verdicts["relu_backward"].hint.startswith("Mend relu first") == ("2.0" in back)


# The forward pass alone, right, with a cache that the library's backward pass misreads.
HALF = {
    "layer_norm": ("LayerNormCache(xhat if any(need[:2]) else None", "LayerNormCache(x",
                   "xhat is (2, 3, 5), with other values"),
    "gelu": ("ActivationCache(x)", "ActivationCache(t)", "x is (3, 4), with other values"),
    "gelu_exact": ("ActivationCache(x)", "ActivationCache(ndtr(x))", "x is (3, 4), with other"),
    "relu": ("ActivationCache(x)", "ActivationCache(-x)", "x is (3, 4), with other"),
    "attention": ("AttentionCache(q,", "AttentionCache(q / math.sqrt(q.shape[-1]),",
                  "(q, k, v, probabilities, mask), q is (2, 2, 4, 3), with other"),
    "cross_entropy": ("CrossEntropyCache(lse_cache,", "CrossEntropyCache(lse,",
                      "log_sum_exp is (2, 3, 1), expected LogSumExpCache(e (2, 3, 6))"),
    "positions": ("PositionsCache(tokens, w.shape", "PositionsCache(np.arange(9), x.shape",
                  "shape is (2, 3, 4), expected (7, 4)"),
    "last_tokens": ("LastTokensCache(x.shape, n)", "LastTokensCache(n, n)",
                    "shape is 2, expected (2, 5, 3)"),
    "linear": ("LinearCache(x if need[1] else None, w", "LinearCache(x, w.T", "w is (4, 5), exp"),
    "unembedding": ("(x if need[1] else None, w", "(x, 2.0 * w", "w is (5, 4), with other"),
    "embedding": ("EmbeddingCache(ids, w.shape)", "(ids, len(w))", "shape is 7, expected (7, 4)"),
    "softmax": ("SoftmaxCache(y)", "y", "expected SoftmaxCache(y), yours is (2, 3, 4)"),
    "dropout": ("DropoutCache(mask)", "DropoutCache(mask > 0)", "mask is (30, 40), with other"),
    "log_sum_exp": ("LogSumExpCache(e)", "(e,)", "not a plain tuple"),
    "lstm": ("i, f, g, o, c, h if", "i, f, g, o, np.tanh(c), h if", "cell is (2, 5, 2), with"),
}


@pytest.mark.parametrize("name", HALF)
def test_a_forward_alone_keeps_what_the_librarys_backward_reads(file, name):
    """Else a model trains on wrong gradients, while both are called right or not written."""
    right, wrong, hint = HALF[name]
    alone = ast.unparse(ast.parse(right)) if right.endswith(")") else right
    text = body(name).replace(alone, wrong)
    assert text != body(name)
    path = file(**{name: text})
    result = results(path)[name]
    assert result.status == operations.WRONG, result
    assert "the library's, which stands in, cannot read your cache: " in result.hint
    assert hint in result.hint, result


def test_a_pair_of_ones_own_may_have_another_cache(file):
    verdicts = results(file(relu="return np.maximum(x, 0.0), x > 0",
                            relu_backward="return dy * cache"))
    assert verdicts["relu"].status == verdicts["relu_backward"].status == "passed"


@pytest.mark.parametrize(("op", "there", "back", "caller"), [
    ("softmax", "e = np.exp(x - x.max(-1, keepdims=True))\ny = e / e.sum(-1, keepdims=True)\n"
     'return y, {"y": y}', "y = cache['y']\nreturn y * (dy - (dy * y).sum(-1, keepdims=True))",
     "attention"),
    ("dropout", "if not p:\n    return x, 1.0\nmask = (rng.random(x.shape) >= p) / x.dtype.type"
     "(1 - p)\nreturn x * mask, mask", "return dy * cache", "attention")])
def test_but_not_where_the_library_hands_it_on(file, op, there, back, caller):
    """The library's attention builds these caches itself."""
    pair = {op: there, f"{op}_backward": back}
    result = results(file(**pair))[f"{op}_backward"]
    assert f"the library's {caller} calls both" in result.hint, result
    assert "keep to" in result.hint


def test_a_pair_that_another_of_the_librarys_calls_may_have_its_own_cache(file):
    """Cross-entropy hands log-sum-exp's cache on, and does not look into it."""
    verdicts = results(file(
        log_sum_exp="top = x.max(-1, keepdims=True)\ne = np.exp(x - top)\n"
                    "s = e.sum(-1, keepdims=True)\nreturn top + np.log(s), e / s",
        log_sum_exp_backward="return dy * cache",
        cross_entropy_backward=body("cross_entropy_backward")))
    for name in ("log_sum_exp", "log_sum_exp_backward", "cross_entropy_backward"):
        assert verdicts[name].status == "passed", verdicts[name]


def test_what_returns_nothing_does_not_run(file, monkeypatch):
    monkeypatch.setattr(own, "results", lambda path: list(results(path).values()))
    path = file(relu_backward="dy * (cache.x > 0)")
    with pytest.raises(ValueError, match="relu_backward returns nothing"), own.using(path):
        pass
    for text in ("dx = ...\nreturn dx", "return ..."):
        assert "relu_backward" not in own.load(file(relu_backward=text)).functions


def test_the_librarys_half_does_not_raise_from_within(file, unchecked):
    """Even where nobody has checked."""
    with own.using(file(last_tokens="return x[:, -n:], LastTokensCache(x.shape, n)")):
        y, cache = F.last_tokens(np.ones((2, 5, 3)), 2)
        cache = cache._replace(shape=(1, 1, 1))
        with pytest.raises(ValueError, match="mine.py: the library's last_tokens_backward raised"):
            F.last_tokens_backward(y, cache)


def test_what_is_to_be_mended_first_is_named(file):
    layer_norm = body("layer_norm").replace(
        "(centred * centred).mean(axis=-1, keepdims=True)",
        "((centred * centred).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1))")
    assert "- 1" in layer_norm
    verdicts = results(file(
        layer_norm=layer_norm, layer_norm_backward=body("layer_norm_backward"),
        softmax=body("softmax").replace("e.sum(axis=-1", "e.sum(axis=0"),
        attention=body("attention"), attention_backward=body("attention_backward"),
        log_sum_exp_backward="return cache.e", cross_entropy=body("cross_entropy"),
        cross_entropy_backward=body("cross_entropy_backward"),
        linear=body("linear").replace("@ w + b", "@ w - b"), linear_backward="return dy, dy, dy"))
    assert verdicts["layer_norm"].status == operations.WRONG
    assert verdicts["layer_norm_backward"].status == "passed"
    assert "Mend softmax first" in verdicts["attention"].hint
    assert verdicts["attention_backward"].status == "passed"
    assert "Mend log_sum_exp_backward first" in verdicts["cross_entropy_backward"].hint
    assert "Mend linear first" in verdicts["linear_backward"].hint


def test_need_may_be_left_alone_but_not_half_heeded(file):
    forward = "return x @ w + b, LinearCache(x, w, need)"
    backward = """
        x, w, need = cache
        d = dy.reshape(-1, w.shape[1])
        return dy @ w.T, x.reshape(-1, w.shape[0]).T @ d, d.sum(axis=0)"""
    verdicts = results(file(linear=forward, linear_backward=backward))
    assert verdicts["linear"].status == verdicts["linear_backward"].status == "passed"
    half = forward.replace("(x, w", "(x if need[0] else None, w")
    result = results(file(linear=half, linear_backward=backward))["linear_backward"]
    assert "With need = (False, True, False): It raised" in result.hint, result


def test_the_check_prints_what_is_next(file, capsys, monkeypatch):
    path = file(linear=body("linear"), linear_backward="return dy, dy, dy",
                relu="while True: pass", relu_backward="return dy * (cache.x > 0)",
                gelu="import os\n    os._exit(3)",
                residual="print('/tmp/a/mine.py:3: here')\n    return x - branch, None",
                softmax="x = softmax(x)")
    monkeypatch.setattr(apart, "QUIET", 1.5)
    assert own.check(path) == 5
    out = capsys.readouterr().out.splitlines()
    lines = {line.split()[3].rstrip(":"): line for line in out}
    assert "✓ linear: done" in lines["linear"]
    assert "wrong. dx is wrong. The result has shape" in lines["linear_backward"]
    assert "✓ relu_backward: done" in lines["relu_backward"]    # with the library's forward pass
    assert "is there a loop" in lines["relu"] and "exit status 3" in lines["gelu"]
    assert "It printed: mine.py:3: here" in lines["residual"]
    assert "RecursionError" in lines["softmax"]
    assert out[-5] == "lesson 15  · not written: lstm, lstm_backward"
    assert out[-2].startswith("lesson 21  · not written: rms_norm, rms_norm_backward, gelu_exact")
    assert "Next: linear_backward, lesson 1." in out[-1]
    assert sum("not written:" in line for line in out) == 9      # all but lesson 1, which is begun


def test_a_function_that_was_left_out_is_not_the_next_one(file, capsys):
    own.check(file(linear=body("linear"), softmax=body("softmax")))
    assert "Next: softmax_backward, lesson 2." in capsys.readouterr().out


def test_a_file_that_was_just_begun_has_a_line_for_each_lesson(file, capsys):
    assert own.check(file()) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len({*own.FUNCTIONS.values()}) + 1
    for name, lesson in own.FUNCTIONS.items():
        assert any(line.startswith(f"lesson {lesson:2}") and name in line for line in out)


# Each of these pairs trains to nothing or not at all, while each half alone is right.
BACK = """
    x, w, need = cache
    d = dy.reshape(-1, w.shape[1])
    grads = dy @ w.T, x.reshape(-1, w.shape[0]).T @ d, d.sum(axis=0)
    {}
    return grads"""
FORWARD = "return x @ w + b, LinearCache(x, w, need)"


@pytest.mark.parametrize(("there", "back", "part"), [
    ("global kept\nkept = x, w, need\nreturn x @ w + b, None",
     BACK.format("").replace("= cache", "= kept"), "not a global variable"),
    (f"linear.x = x\n{FORWARD}", BACK.format("").replace("x.resh", "linear.x.resh"), "global"),
    (FORWARD, BACK.format("w *= 0.5"), "in place, cache"),
    (FORWARD, BACK.format("x[...] = 0"), "in place, cache"),
    (FORWARD, BACK.format("dy *= 2"), "in place, dy"),
    ("return x @ w + b, {'parts': [x, w, need]}",
     BACK.format("w += 1").replace("= cache", "= cache['parts']"), "in place, cache"),
    ("return x @ w + b, lambda dy: (x, w, need)",
     BACK.format("w += 1").replace("= cache", "= cache(dy)"), "neither its cache nor a weight"),
    ("return x @ w + b, [x, w, need]", BACK.format("cache.clear()"), "in place, cache"),
    (FORWARD, BACK.format("if need != (True, True, True): dy = np.ones_like(dy); grads = dy @ w.T, "
                          "x.reshape(-1, w.shape[0]).T @ np.ones_like(d), grads[2]"),
     "With need = (True, False, False): dx is wrong"),
])
def test_what_trains_to_nothing_is_wrong(file, there, back, part):
    verdicts = results(file(linear=there, linear_backward=back))
    assert verdicts["linear_backward"].status == operations.WRONG
    assert part in verdicts["linear_backward"].hint, verdicts["linear_backward"]


def test_a_variance_that_loses_its_digits_is_wrong(file):
    layer_norm = """
        mean = x.mean(axis=-1, keepdims=True)
        rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) - mean * mean + eps)
        xhat = (x - mean) * rstd
        return xhat * w + b, LayerNormCache(xhat, rstd, w, need)"""
    loaded = own.load(file(layer_norm=layer_norm))
    for seed in range(20):
        result = operations.examine(loaded.functions, "layer_norm", seed)
        assert "E[x^2] - E[x]^2 loses its digits" in result.hint, result


@pytest.mark.parametrize(("text", "part"), [
    ("raise KeyError('x')", "line 1: it raised KeyError"),
    ("\nraise SystemExit(4)", "line 2: it raised SystemExit"),
    ("def f(:", "line 1: not Python (invalid syntax)"),
    ("import os; os._exit(5)", "exit status 5"), ("while True: pass", "is there a loop"),
    ("return 3", "'return' outside function"), ("x = '\0'", "not Python")])
def test_a_bad_file_is_one_line(tmp_path, monkeypatch, capsys, text, part):
    monkeypatch.setattr(apart, "QUIET", 1.5)
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert cli.main(["check", path]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and part in err and err.count("bad.py") == 1


def test_a_file_that_is_missing(tmp_path, fails):
    assert "minifpt new" in fails("check", tmp_path / "none.py")


# ------------------------------------------------------------------------------ running


def test_the_librarys_bodies_train_to_the_same_history(file, unchecked):
    """Beyond 64 tokens, where tiled attention gives way to the simple form."""
    task = minifpt.tasks.get("bit-memory", bits=140, patch=2)

    def go():
        trunk = minifpt.GPT2(minifpt.GPT2Config(2, 2, 16, 512, 11, 0.1), seed=0)
        model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
        model.freeze(minifpt.FreezeMask.fpt())
        return minifpt.train(model, task, steps=4, lr=1e-2, eval_every=2, test_examples=4,
                             progress=False)

    before = dict(vars(F)), dict(vars(fast)), dict(layers.ACTIVATIONS), dict(tracing.OPERATIONS)
    plain = go()
    with own.using(file(**{name: body(name) for name in own.FUNCTIONS})) as mine:
        history = go()
    for key in ("train_loss", "test_loss", "train_accuracy"):
        np.testing.assert_allclose(history[key], plain[key], rtol=1e-5)
    assert before == (vars(F), vars(fast), layers.ACTIVATIONS, tracing.OPERATIONS)
    elsewhere = ("gelu_exact", "relu", "lstm", "embedding", "bias", "unembedding",    # other models
                 "rms_norm", "silu", "swiglu", "rope", "grouped_heads")
    inside = ("softmax", "log_sum_exp")                   # called by the reader's own functions
    for name in own.FUNCTIONS:
        skipped = name.removesuffix("_backward") in elsewhere + inside
        assert (mine.calls[name] > 0) != skipped, name


@pytest.mark.parametrize("op", tracing.OPERATIONS)
@pytest.mark.parametrize("half", [0, 1])
def test_what_is_written_runs_and_the_rest_is_the_librarys(file, unchecked, op, half):
    """Of each pair one half alone: the gradients of a model stay what they are."""
    lm = small(activation={"relu": "relu", "gelu_exact": "gelu"}.get(op, "gelu_new"))
    trunk = minifpt.LSTM(minifpt.LSTMConfig(1, 16, dropout=0.0)) if op == "lstm" else lm.trunk
    if op in ("rms_norm", "silu", "swiglu", "rope", "grouped_heads"):
        trunk = minifpt.trunks.get("random:llama:2x2/1x16", dropout=0.1)
    model = lm
    if op not in ("embedding", "unembedding"):
        model = minifpt.FPT(trunk, 3, 4, 2)
        model.freeze(minifpt.FreezeMask.parse("attn,mlp,h.0.ln_1.*"))
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 11, (2, 70)) if model is lm else
         rng.integers(0, 3, (2, 70)) if op == "bias" else
         rng.standard_normal((2, 70, 3)).astype(np.float32))

    def gradients():
        model.zero_grad()
        logits, cache = model.forward(x, train=True, rng=np.random.default_rng(1))
        _, loss_cache = F.cross_entropy(logits, np.ones(logits.shape[:-1], int))
        model.backward(F.cross_entropy_backward(1.0, loss_cache), cache)
        assert logits.dtype == np.float32
        return {n: p.grad for n, p in model.named_parameters()}

    plain, name = gradients(), [op, f"{op}_backward"][half]
    with own.using(file(**{name: body(name)})) as mine:
        grads = gradients()
    assert mine.calls[name] > 0 and set(mine.calls) == {name}
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


def test_text_is_generated_by_the_readers_attention(file, unchecked):
    lm = small()
    text = lm.generate(np.arange(5), 8, seed=3)
    with own.using(file(attention=body("attention"))) as mine:
        np.testing.assert_array_equal(lm.generate(np.arange(5), 8, seed=3), text)
    assert mine.calls == {"attention": 16}


def test_an_error_while_it_runs_is_one_line(file, unchecked):
    with own.using(file(gelu="if x.shape[-1] == 64:\n    raise KeyError('x')\nreturn x, None")):
        with pytest.raises(ValueError, match=r"mine.py, line \d+: gelu raised KeyError"):
            small().logits(np.arange(5)[None])


LINE = ["train", "bit-xor", "--model", "random:1x2x8", "--steps", "2", "--batch-size", "2",
        "--functional", "mine.py", "--out", "run"]


def test_a_wrong_backward_is_named_before_training(file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = body("layer_norm_backward").replace(
        "dw = (dy * xhat).reshape(-1, len(w)).sum", "dw = (dy * xhat).reshape(-1, len(w)).mean")
    file(layer_norm_backward=wrong)
    assert cli.main(LINE) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "layer_norm_backward is wrong. dw is wrong. A mean for a sum" in err
    assert not (tmp_path / "run").exists()

    monkeypatch.setattr(own, "results", lambda path: [])
    assert cli.main([*LINE, "--skip-check"]) == 0
    assert "1 of its functions ran, " in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["functional"] == "mine.py" and len(config["functional_hash"]) == 16

    assert cli.main([*LINE, "--resume"]) == 0             # the same file: it has come to its end
    assert cli.main([*LINE[:-4], "--out", "run", "--resume"]) == 2
    assert "--functional must name the same functions" in capsys.readouterr().err
    file(layer_norm_backward=wrong + " # changed")
    assert cli.main([*LINE, "--resume"]) == 2
    assert "--functional must name the same functions" in capsys.readouterr().err
    assert cli.main(["train", "bit-xor", "--skip-check"]) == 2
    assert "--skip-check needs --functional" in capsys.readouterr().err


def test_a_file_without_a_written_function_is_not_trained_on(file, unchecked, fails, monkeypatch):
    monkeypatch.chdir(file().parent)
    assert "none of its functions is written" in fails(*LINE)
    assert not Path("run").exists()


def test_train_names_the_functions_that_a_model_never_called(file, capsys, unchecked, monkeypatch):
    monkeypatch.chdir(file(gelu=body("gelu"), relu=body("relu")).parent)
    assert cli.main(LINE) == 0
    out = capsys.readouterr().out
    assert "1 of its functions ran" in out and "never called relu\n" in out


@needs_sessions
def test_a_loop_ends_with_its_parent(tmp_path):
    """Were the check itself killed, the reader's loop would go on for ever."""
    pid, mine = tmp_path / "pid", tmp_path / "mine.py"
    mine.write_text(f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
                    "while True: pass\n")
    parent = subprocess.Popen([sys.executable, "-m", "minifpt", "check", mine])
    try:
        until(lambda: pid.exists() and pid.read_text())
        parent.kill()
        parent.wait()
        until(lambda: not session(int(pid.read_text())))  # it began one of its own
    finally:
        parent.kill()


def test_a_forward_of_another_shape_is_what_is_mended_first(file):
    """The library's backward pass, which refuses a gradient of that shape, is not to blame."""
    path = file(log_sum_exp="""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.log(e.sum(axis=1, keepdims=True)) + x, LogSumExpCache(e)""",
                log_sum_exp_backward="""
    return dy * cache.e""")
    (result,) = [r for r in own.results(path) if r.name == "log_sum_exp_backward"]
    assert result.status == own.WRONG and "log_sum_exp" in result.hint


def test_the_test_beside_a_file_runs_its_checks(tmp_path, capsys):
    """As in the CI of a class: what is right passes, what is wrong fails with its hint, and what is
    not written is skipped."""
    mine = tmp_path / "mine.py"
    assert cli.main(["new", mine]) == 0
    text = with_bodies(mine.read_text(encoding="utf-8"), relu_backward="return dy",
                       residual="return x + branch, None")
    mine.write_text(text, encoding="utf-8")
    process = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                              "test_mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1
    assert "no dy gets through" in process.stdout and "relu_backward" in process.stdout
    assert f"1 failed, 1 passed, {len(own.FUNCTIONS) - 2} skipped" in process.stdout

    (tmp_path / "test_mine.py").write_text("# changed", encoding="utf-8")
    assert own.new_test(mine).read_text(encoding="utf-8") == "# changed"
