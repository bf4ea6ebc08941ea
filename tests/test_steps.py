"""A training step to step through: what the file holds is what the step computed."""

import ast
import base64
import copy
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import layers, machine, tracing, training
from minifpt.exercises import rewriting
from minifpt.gradients import examples
from minifpt.optim import Adam
from minifpt.viewer.steps import differences, formulas
from minifpt.viewer.steps import page as stepping
from minifpt.viewer.steps.frames import PLAIN, watch

EXTEND = Path(__file__).resolve().parent / "extend"
CONFIG = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 24, "vocab_size": 32}


def build(task, mask="fpt", **config):
    """A small model for a task, its layer norms and biases off 1 and 0."""
    trunk = minifpt.GPT2(minifpt.GPT2Config(**CONFIG | {"dropout": 0.0} | config), seed=0)
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
    rng = np.random.default_rng(0)
    for p in trunk.parameters():
        p.data += 0.2 * rng.standard_normal(p.data.shape).astype(np.float32)
    model.freeze(minifpt.FreezeMask.parse(mask))
    return model


@pytest.fixture(scope="module")
def task():
    return minifpt.tasks.get("bit-xor", n=3)


@pytest.fixture(scope="module")
def model_and_steps(task):
    """(model, Steps) of one step on bit XOR."""
    model = build(task)
    return model, minifpt.steps(model, task, progress=False)


def find(steps, name, back=False):
    return next(s for s in steps.data["steps"] if (s["name"], s["back"]) == (name, back))


def array_of(steps, step, name, side="out"):
    """An array of a step, by its name, as the file holds it."""
    return steps.array(next(p["array"] for p in step[side] if p["name"] == name))


# ---------------------------------------------------------------- the step is training's


def first_step(model, task):
    """A copy of the model, the batch of its first step, and a function that trains that step."""
    trained = copy.deepcopy(model)
    optimizer = Adam([p for p in trained.parameters() if p.trainable], task.defaults["lr"])
    rng = np.random.default_rng([0, 0])
    x, y = task.batch(rng, task.defaults["batch_size"], "train")
    return trained, (x, y), lambda: training.step(trained, task, optimizer, x, y, 1.0, rng)


def test_it_is_the_step_of_training(model_and_steps, task):
    model, steps = model_and_steps
    trained, (x, y), step = first_step(model, task)
    with minifpt.trace(trained):                          # which runs the same simple forms
        loss, accuracy = step()
    assert steps.data["loss"] == loss and steps.data["accuracy"] == accuracy
    after = dict(trained.named_parameters())
    for row in steps.data["adam"]["rows"]:
        if row["trained"] and "after" in row:
            numbers = steps.array(row["after"])
            now = after[row["name"]].data[tuple(slice(n) for n in numbers.shape)]
            assert numbers.dtype == np.float32 and np.array_equal(numbers, now)
    assert {r["name"] for r in steps.data["adam"]["rows"] if r["moved"] == 0} == {
        n for n, p in trained.named_parameters() if not p.trainable}
    assert steps.data["losses"][1] == training.evaluate(trained, task, x, y)[0] < loss


def test_without_a_trace_training_does_the_same_to_rounding(model_and_steps, task):
    model, steps = model_and_steps
    loss, _ = first_step(model, task)[-1]()
    assert steps.data["fast"] == loss == pytest.approx(steps.data["loss"], rel=1e-6)


def test_the_model_stays_as_it_was(task):
    model = build(task)
    before = {n: p.data.copy() for n, p in model.named_parameters()}
    minifpt.steps(model, task, batch_size=1, progress=False)
    assert all(np.array_equal(p.data, before[n]) and p.grad is None
               for n, p in model.named_parameters())


def test_every_operation_is_there_in_order_with_its_arrays(model_and_steps, task):
    model, steps = model_and_steps
    rng = np.random.default_rng([0, 0])
    x, y = task.batch(rng, task.defaults["batch_size"], "train")
    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        _, dlogits = task.loss(logits, y)
        model.backward(dlogits, cache)
    grads = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    for step, true in zip(steps.data["steps"], t.steps, strict=True):
        assert (step["name"], step["back"]) == (true.name, true.backward)
        assert (step["inside"], step["partner"]) == tuple(
            other and t.steps.index(other) for other in (true.inside, true.partner))
        # Parameters as they were before Adam, and the gradients that model.backward left there.
        known = true.inputs | {part["name"]: true.output for part in step["out"]}
        if step["back"]:
            known = {part["name"]: grads[part["parameter"]] for part in step["out"]
                     if "parameter" in part}
        for part in step["in"] + step["out"]:
            value = known.get(part["name"])
            if "array" in part and value is not None:
                numbers = steps.array(part["array"])
                assert np.array_equal(numbers, value[tuple(map(slice, numbers.shape))])
    trained = {n for n, p in model.named_parameters() if p.trainable}
    assert trained == {p["parameter"] for s in steps.data["steps"] if s["back"]
                       for p in s["out"] if "parameter" in p}


def test_what_is_told_of_adam_gives_the_new_parameters(model_and_steps):
    _, steps = model_and_steps
    A = steps.data["adam"]
    assert A["factor"] == min(1.0, A["clip"] / A["norm"]) and A["t"] == 1
    rows = [r for r in A["rows"] if "grad" in r]
    assert len(rows) == sum(r["trained"] for r in A["rows"])
    for row in rows:
        x, m, v, after = (steps.array(row[key]) for key in ("before", "m", "v", "after"))
        m, v = m / (1 - A["betas"][0]), v / (1 - A["betas"][1])
        assert np.allclose(x - steps.data["lr"] * m / (np.sqrt(v) + A["eps"]), after, atol=1e-6)


def test_frozen_gradients_say_what_they_would_have_cost(model_and_steps):
    _, steps = model_and_steps
    linear = find(steps, "trunk.h.0.attn.c_attn.linear")
    rows = 4 * 6                                          # examples x tokens
    assert {(m["name"], m["why"], m["cost"]) for m in linear["missing"]} == {
        ("dw", "frozen", rows * 16 * 48), ("db", "frozen", rows * 48)}
    assert find(steps, "input.linear")["missing"][0]["why"] == "nothing below learns"
    assert not find(steps, "trunk.h.0.ln_1.layer_norm")["missing"]


def test_what_a_backward_pass_reads_from_its_cache_is_marked(model_and_steps):
    _, steps = model_and_steps
    for step in steps.data["steps"]:
        if step["back"]:
            assert [p["name"] for p in step["in"] if not p["cached"]] == (
                ["dy", "dbranch"] if step["op"] == "residual" else ["dy"]), step["name"]


def test_caches_are_a_stack(model_and_steps):
    _, steps = model_and_steps
    caching = [s for s in steps.data["steps"] if not s["back"] and s["inside"] is None
               and s["form"] != "NoneType"]
    assert all(s["partner"] is not None for s in caching)
    attention = find(steps, "trunk.h.0.attn.attention")
    assert attention["form"] == "AttentionCache" and [k["name"] for k in attention["keeps"]] == [
        "q", "k", "v", "probabilities", "mask", "has_bias"]
    assert attention["bytes"] == 4 * (3 * 4 * 2 * 6 * 8 + 4 * 2 * 6 * 6)
    linear = find(steps, "trunk.h.0.attn.c_attn.linear")  # w is the model's own, x is not caching
    assert linear["bytes"] == 0


# ---------------------------------------------------------------- formulas, differences


def evaluate(formula, names):
    """A formula over whole arrays: what the page puts in entry by entry."""
    letters = sorted(set(re.findall(r"\[(\w*)\]", formula.put)) | {formula.at, formula.over})
    axes = sorted({c for word in letters for c in word if c != "0"})

    def put(found):
        a = np.asarray(names[found[1]], np.float64)
        at = found[2]
        a = a[tuple(0 if c == "0" else slice(None) for c in at)] if at else a
        at = at.replace("0", "")
        order = sorted(range(len(at)), key=lambda i: at[i])
        shape = [a.shape[at.index(c)] if c in at else 1 for c in axes]
        values.append(a.transpose(order).reshape(shape))
        return f"values[{len(values) - 1}]"
    values = []
    text = re.sub(r"(\w+)\[(\w*)\]", put, formula.put)
    y = np.asarray(eval(text, {"values": values}))
    y = np.broadcast_to(y, np.broadcast_shapes(*(v.shape for v in values), y.shape))
    y = y.sum(tuple(axes.index(c) for c in formula.over))
    remaining = [c for c in axes if c not in formula.over]
    return y.transpose([remaining.index(c) for c in formula.at]) * (
        names[formula.times] if formula.times else 1)


# Operations whose output the page shows without a formula.
NO_FORMULA = "rms_norm", "multiply", "rope", "lstm", "last_tokens", "log_sum_exp", "cross_entropy"


@pytest.mark.parametrize("op", tracing.OPERATIONS)
def test_the_formulas_give_the_outputs_and_the_gradients(op):
    """On the examples of each operation.  The page has no formula for an LSTM, whose gradients go
    back through time."""
    rng = np.random.default_rng(1)
    assert op in PLAIN, f"describe {op} in PLAIN in minifpt/viewer/steps/frames.py"
    for forward, backward, inputs, keywords in examples.pairs(op, rng):
        for key in keywords:                              # parameters are w, w_ih and so on
            assert formulas.cost(op, key, dict(zip(keywords, inputs, strict=True))) or (
                key[0] != "w"), f"add {op} to cost in minifpt/viewer/steps/formulas.py"
        with minifpt.trace(layers.LayerNorm(1)) as t:
            y, cache = forward(*inputs)
            backward(rng.standard_normal(np.shape(y)), cache)
        for step in t.steps:
            if step.backward:
                table, values = "FORMULAS", formulas.gradients(step)
                names = formulas.operands(step, {s.op: s for s in t.steps if s.inside is step})
                known = formulas.formulas(step, names)
            else:
                table, values = "FORWARD", {"y": step.output}
                names = formulas.forward_operands(step)
                formula = formulas.forward_formula(step, names)
                known = {"y": formula} if formula or op in NO_FORMULA else {}
            assert known.keys() >= values.keys() or op == "lstm" or (
                step.op == "attention" and formulas.is_shared(names)), (
                    f"add {step.op} to {table} in minifpt/viewer/steps/formulas.py")
            rows = names.get("tokens", ...)               # of positions, that were read
            for key, value in values.items():
                formula = known.get(key)
                if formula and not formula.put.startswith(step.op):      # gelu(x) has no terms
                    operands = names | ({"w": names["w"][rows]} if key == "y" and "w" in names
                                        else {})
                    terms = evaluate(formulas.spelled(formula, names), operands)
                    np.testing.assert_allclose(
                        terms + (names["b"] if formula.plus else 0),
                        value[rows] if key == "w" else value, 1e-9, 1e-12, err_msg=f"{step}, {key}")


def agree(steps):
    """Check that a step has finite differences, and that they agree with its gradients."""
    rows = steps.data["differences"]
    assert rows and max(row["error"] for row in rows) < 1e-6 and not steps.data["unchecked"]
    return rows


def test_differences_agree(model_and_steps):
    model, steps = model_and_steps
    rows = agree(steps)
    trained = [n for n, p in model.named_parameters() if p.trainable]
    owners = {p["parameter"] for row in rows for p in steps.data["steps"][row["step"]]["out"]
              if p["name"] == f"d{row['name']}"}
    assert len(rows) == 60 and owners == set(trained)     # each parameter that is trained
    for row in rows:                                      # and both are the step's own number
        step = steps.data["steps"][row["step"]]
        grad = array_of(steps, step, f"d{row['name']}")
        assert grad[row["at"]] == pytest.approx(row["value"], rel=1e-3, abs=1e-2 * row["scale"])
        if grad.ndim == 1:                                # it is among the largest
            assert abs(row["value"]) >= np.sort(np.abs(grad))[-6:][0] * (1 - 1e-5)


def test_a_difference_is_what_two_forward_passes_give(model_and_steps, task):
    model, steps = model_and_steps
    row = next(r for r in steps.data["differences"] if r["name"] == "w"
               and steps.data["steps"][r["step"]]["name"] == "trunk.h.1.ln_2.layer_norm")
    double, rng = differences.in_float64(model), np.random.default_rng([0, 0])
    x, y = task.batch(rng, task.defaults["batch_size"], "train")
    w = double.trunk.h[1].ln_2.weight.data
    losses = []
    for sign in (1, -1):
        w[row["at"]] += sign * row["nudge"]
        losses.append(task.loss(double.forward(x)[0], y)[0])
        w[row["at"]] -= sign * row["nudge"]
    assert (losses[0] - losses[1]) / (2 * row["nudge"]) == pytest.approx(row["numerical"],
                                                                         rel=1e-6)


def test_with_dropout_a_difference_drops_the_same(task):
    agree(minifpt.steps(build(task, dropout=0.3), task, batch_size=2, differences=20,
                        progress=False))


FIRST = {"A mean for a sum": "trunk.ln_f.layer_norm",
         "A missing transpose": "trunk.h.1.attn.c_proj.linear",
         "One example for all": "trunk.wpe.positions",
         "A lost 1/√D": "trunk.h.1.attn.attention"}


def test_each_break_turns_its_operation_red(model_and_steps):
    _, steps = model_and_steps
    rows, breaks = steps.data["differences"], steps.data["breaks"]
    assert {b["title"]: steps.data["steps"][b["first"]]["name"] for b in breaks} == FIRST
    for b in breaks:
        assert b["op"] == steps.data["steps"][b["first"]]["op"]
        assert b["wrong"][b["first"]] > 1e-4 and min(b["wrong"]) == b["first"]
        for row, value in zip(rows, b["values"], strict=True):     # a difference tells the same
            is_wrong = abs(value - row["value"]) > 1e-4 * max(abs(value), row["scale"])
            assert is_wrong <= (row["step"] in b["wrong"])
    ops = [{steps.data["steps"][i]["op"] for i in b["wrong"]} for b in breaks]
    assert ops[0] == {"layer_norm"}                       # it is wrong there and nowhere else
    assert ops[2] == {"positions"}
    assert len(breaks[1]["wrong"]) == 23                  # and this goes all the way down
    assert steps.data["steps"][max(breaks[1]["wrong"])]["name"] == "input.linear"


def test_a_break_is_what_the_exercises_call_a_mistake(model_and_steps, task):
    """With its source in place of the library's, training has the gradients of the page."""
    model, steps = model_and_steps
    it, b = differences.BREAKS[0], steps.data["breaks"][0]
    before = dict(tracing.OPERATIONS)
    assert differences.broken(it).text == b["instead"] == (
        "dw = (dy * xhat).reshape(-1, len(w)).mean(axis=0)")
    right = array_of(steps, steps.data["steps"][b["first"]], "dw")
    of_row = {tuple(row["at"]): value for row, value in zip(steps.data["differences"], b["values"],
                                                           strict=True)
              if (row["step"], row["name"]) == (b["first"], "w")}
    for at, value in of_row.items():                      # 4 examples x 3 tokens that are read
        assert value == pytest.approx(right[at] / 12, rel=1e-5)
    assert of_row and tracing.OPERATIONS == before        # all is as before


def normalised(values, scale,
               shift):
    """Layer norm by other names and in another layout."""
    spread = values - values.mean(axis=-1, keepdims=True)
    spread = spread / np.sqrt((spread
                               * spread).mean(axis=-1, keepdims=True))
    return (spread * scale
            + shift)


def test_a_break_survives_rewording():
    x, w, b = np.random.default_rng(0).standard_normal((3, 4))
    right = normalised(x, w, b)
    for changes, want in ((["xhat * w + b -> xhat * w"], right - b),
                          (["xhat * w + b -> b + xhat"], (right - b) / w + b),
                          (["_ * _1 + b -> _1 * _ - b"], right - 2 * b),
                          (["_ + b -> _ - b", "_ - b -> _"], right - b)):
        it = rewriting.rewrite(normalised, *changes)
        np.testing.assert_allclose(it.function(x, w, b), want)
        source, first = inspect.getsourcelines(normalised)
        lines = source[it.lines[0] - first:it.lines[1] - first + 1]
        assert [line.strip() for line in lines] == ["return (spread * scale", "+ shift)"]
        assert it.text.startswith("return ")
    for pattern in ("xhat * w + xhat", "np.exp(_)", "x + x"):
        with pytest.raises(ValueError, match="is not in normalised"):
            rewriting.rewrite(normalised, f"{pattern} -> 0")


class Uncopied:
    def __deepcopy__(self, memo):
        raise AssertionError("a copy of another tree")


def test_a_change_does_not_copy_what_a_notebook_puts_on_shared_nodes(monkeypatch):
    """IPython's traceback gives each node its parent, and the tree of a whole file so hangs on
    the ``ctx`` of every name in the process: a hint took longer than its 20 seconds."""
    shared = ast.parse("x").body[0].value.ctx
    monkeypatch.setattr(shared, "parent", Uncopied(), raising=False)
    rewriting.rewrite(normalised, "_ * _1 -> _1 * _")


def test_a_break_shows_the_lines_that_it_changes(model_and_steps):
    """By the numbers that the page shows beside its source."""
    _, steps = model_and_steps
    for b in steps.data["breaks"]:
        step = next(s for s in steps.data["steps"] if s["back"] and s["op"] == b["op"])
        shown = dict(steps.data["sources"][step["source"]]["lines"])
        assert set(b["lines"]) <= shown.keys() and b["instead"]
    assert steps.data["breaks"][3]["instead"] == "dq = ds @ keys"


def test_one_example_hides_that_the_others_are_forgotten(task):
    steps = minifpt.steps(build(task), task, batch_size=1, differences=0, progress=False)
    assert {b["title"]: b["first"] for b in steps.data["breaks"]}["One example for all"] is None
    assert steps.data["differences"] == []


# ---------------------------------------------------------------- source, cut


def test_the_lines_that_ran(model_and_steps):
    _, steps = model_and_steps
    step = find(steps, "trunk.h.0.attn.c_attn.linear", back=True)
    source = dict(steps.data["sources"][step["source"]]["lines"])
    ran = steps.data["runs"][step["run"]]
    by_text = {text.strip(): ran.get(n) for n, text in source.items()}
    assert by_text["db = rows.sum(axis=0)"] is None       # frozen: it did not run
    assert by_text["if need[2]:"] == ""
    assert "dx (4, 6, 16)" in by_text["dx = dy @ w.T"]
    assert not any('"""' in text for text in source.values())


def test_watching_leaves_a_tracer_alone(task):
    with minifpt.trace(build(task)) as t:
        minifpt.functional.relu(np.ones(3))
    before, tracer = sys.gettrace(), lambda *args: None
    sys.settrace(tracer)
    watch(t.steps[0])
    after = sys.gettrace()
    sys.settrace(before)
    assert after is tracer


@pytest.mark.parametrize("name", ["listops", "digits", "typos"])
def test_the_last_tokens_are_kept_and_named(name, monkeypatch):
    """The answer is read there; listops pads at the front."""
    task = minifpt.tasks.get(name)
    monkeypatch.setattr(stepping, "TIGHTER", [(2, 8, 24)])
    steps = minifpt.steps(build(task, n_positions=64), task, batch_size=2, differences=0,
                          progress=False)
    x, _ = task.batch(np.random.default_rng([0, 0]), 2, "train")
    a = steps.data["arrays"][steps.data["x"]]
    assert a["first"][1] == task.tokens - 8 and np.array_equal(
        steps.array(steps.data["x"]), x[:, -8:, :24] if x.ndim == 3 else x[:, -8:])
    for a in steps.data["arrays"]:
        for n, shown, first, axis in zip(a["shape"], a["shown"], a["first"], a["axes"],
                                         strict=True):
            if axis in ("token", "query", "key"):
                assert first + shown == n
    if name == "digits":
        assert steps.data["names"][-1] == task.token_names()[-1]
        assert steps.data["images"]["shape"] == [2, task.size, task.size]
    else:
        assert steps.data["texts"] == [task.tokens_as_text(x[0]), task.tokens_as_text(x[1])]


def test_large_arrays_are_cut_and_say_so(monkeypatch):
    task = minifpt.tasks.get("bit-memory", bits=14, patch=2)
    model = build(task, n_positions=64, n_embd=32)
    monkeypatch.setattr(stepping, "ROOM", 200_000)
    steps = minifpt.steps(model, task, batch_size=6, differences=0, progress=False)
    for a in steps.data["arrays"]:
        assert len(a["axes"]) == len(a["shape"]) == len(a["shown"])
        assert np.prod(a["shown"], dtype=int) * np.dtype(a["dtype"]).itemsize == len(
            base64.b64decode(a["data"]))
    scores = next(a for a in steps.data["arrays"] if a["axes"][2:] == ["query", "key"])
    assert scores["shape"] == [6, 2, 42, 42] and max(scores["shown"]) <= 32
    assert sum(len(a["data"]) for a in steps.data["arrays"]) < 200_000 * 1.4


@pytest.mark.parametrize(("file", "name", "mask"), [
    ("rnn", "RNN", "full"), ("decay", "Decay", "full"), ("silu", "make_trunk", "fpt"),
    ("bidirectional", "make_trunk", "output_only")])
def test_a_trunk_of_ones_own(task, file, name, mask):
    trunk = minifpt.trunks.get(f"{EXTEND / file}.py:{name}")
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=0)
    model.freeze(minifpt.FreezeMask.parse(mask))
    steps = minifpt.steps(model, task, batch_size=1, differences=20, progress=False,
                          trunk="/home/me/x.py:Mine")
    agree(steps)
    assert steps.data["trunk"] == "x.py:Mine"
    assert steps.data["unseen"] == {"rnn": ["trunk.state"], "decay": ["trunk.keep"]}.get(file, [])
    assert all("formula" in p for s in steps.data["steps"] if s["back"] for p in s["out"])


def test_an_lstm_has_its_costs_and_differences(task):
    model = minifpt.FPT(minifpt.trunks.get("lstm:2x16"), task.input_dim, task.output_dim,
                        task.output_tokens)
    model.freeze(minifpt.FreezeMask.fpt())
    steps = minifpt.steps(model, task, batch_size=2, differences=20, progress=False)
    agree(steps)
    missing = {m["name"]: m["cost"] for s in steps.data["steps"] if s["op"] == "lstm"
               and not s["back"] for m in s["missing"]}
    assert missing == {"dw_ih": 2 * 6 * 16 * 64, "dw_hh": 2 * 6 * 16 * 64, "db": 2 * 6 * 64}


def test_a_model_that_has_only_float32_has_breaks_but_no_differences(task, monkeypatch):
    model = build(task)
    stubborn = copy.deepcopy(model)
    monkeypatch.setattr(stubborn, "forward", lambda *args, **kwargs: 1 / "x", raising=False)
    monkeypatch.setattr(differences, "in_float64", lambda model: stubborn)
    steps = minifpt.steps(model, task, batch_size=1, progress=False)
    assert "unsupported operand" in steps.data["unchecked"] and not steps.data["differences"]
    assert [b["first"] for b in steps.data["breaks"]].count(None) == 1


def test_an_activation_may_be_two_lambdas(task, monkeypatch):
    square = lambda x: (x * x, x), lambda dy, x: 2 * x * dy  # noqa: E731
    monkeypatch.setitem(layers.ACTIVATIONS, "square", square)
    steps = minifpt.steps(build(task, activation_function="square"), task, differences=20,
                          progress=False)
    step = find(steps, "trunk.h.0.mlp.act.<lambda>")
    assert "lambda x: (x * x, x)" in steps.data["sources"][step["source"]]["lines"][0][1]
    agree(steps)


# ---------------------------------------------------------------- files


def test_the_file_holds_the_data_and_loads_nothing(model_and_steps, tmp_path):
    _, steps = model_and_steps
    size = steps.save(tmp_path / "deep" / "step.html")
    text = (tmp_path / "deep" / "step.html").read_text(encoding="utf-8")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["step.html"]
    assert size == len(text.encode()) < 1e6
    assert "<!--" not in text                             # no mark is left
    assert not re.search(r"""(src|href)=|https?://(?!www\.w3\.org)|@import|url\(""", re.sub(
        r'<script type="application/json".*?</script>', "", text, flags=re.S))
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert json.loads(script[1]) == json.loads(json.dumps(steps.data))
    assert text.count("<li>") == len(steps.data["steps"])     # for where scripts do not run
    assert steps._repr_html_().startswith("<iframe srcdoc=") and "<script" not in (
        steps._repr_html_())


@pytest.mark.parametrize(("options", "words"), [
    ({"batch_size": 0}, "batch_size must be"), ({"differences": -1}, "differences must be"),
    ({"seed": -1}, "seed must be"), ({"model": 5}, "the model is 5"),
    ({"task": "bit-xor"}, "'bit-xor'"),
    ({"batch_size": 10 ** 6}, "choose a smaller batch"),
    ({"mask": "input,pos,ln,attn,mlp,output"}, "every parameter is frozen")])
def test_wrong_arguments_are_refused(task, options, words):
    with refused(words):
        minifpt.steps(**{"model": build(task, options.pop("mask", "fpt")), "task": task} | options)


def test_the_products_of_a_step_run_on_one_core(monkeypatch):
    """Small products that are shared wait for each other: on a busy machine ten times as long."""
    threads, measure = [], differences.difference
    monkeypatch.setattr(differences, "difference", lambda *arguments: (
        threads.append(machine.blas_threads()), measure(*arguments))[1])
    before = machine.blas_threads()
    machine.blas_threads(2)
    task = minifpt.tasks.get("bit-xor")
    minifpt.steps(build(task), task, batch_size=2, differences=1, progress=False)
    after = machine.blas_threads(), machine.blas_threads(before)
    assert threads in ([1], [None]) and after in ((2, before), (None, None))


@pytest.mark.parametrize("function, name, text", [
    ("linear_backward", "dw", "dw = x.T @ dy"),
    ("positions", "y", "y[:, t] = x[:, t] + w[start + t]"),
    ("attention_backward", "dq", "dQ = dS K / sqrt(D)"), ("last_tokens_backward", "dx", "")])
def test_a_formula_is_read_from_the_docstring(function, name, text):
    assert formulas.text_of(vars(minifpt.functional)[function], name) == text
