"""The lessons: notebooks agree with their sources, and run from a clean kernel.

The quick tests read files.  ``pytest -m slow tests/test_lessons.py`` runs every notebook and
needs the extras ``lessons`` and ``dev``.
"""

import inspect
import itertools
import json
import math
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import child, load_module

import minifpt
from minifpt import functional as F
from minifpt.exercises import engine, lesson, own
from minifpt.exercises.track import written
from minifpt.layers import Linear

LESSONS = Path(__file__).resolve().parent.parent / "lessons"
build, measure = (load_module(LESSONS / name) for name in ("build.py", "measure.py"))
SOURCES = build.sources()
pytestmark = pytest.mark.skipif(not SOURCES, reason="the lessons are not in this checkout")
each_lesson = pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)


@each_lesson
def test_the_committed_outputs_come_from_this_code(source):
    problems = build.problems(source)
    assert not problems, "\n".join(problems)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A lesson's source and its notebook, copied into an empty folder of lessons."""
    monkeypatch.setattr(build, "HERE", tmp_path)
    return tuple(Path(shutil.copy(path, tmp_path)) for path in (
        SOURCES[2], LESSONS / f"{SOURCES[2].stem}.ipynb"))


def change_shown(path, old, new):
    """Replace a text in all sources that a notebook shows; how many have it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    shown = [output["data"] for _, output in build.shown_sources(notebook)]
    changed = sum(old in "".join(data["text/plain"]) for data in shown)
    for data in shown:
        for kind, lines in data.items():
            data[kind] = "".join(lines).replace(old, new).splitlines(keepends=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return changed


def test_a_change_of_the_code_is_noticed(copied):
    source, notebook = copied
    text, good = source.read_text(encoding="utf-8"), notebook.read_text(encoding="utf-8")
    assert build.problems(source) == []
    source.write_text(f"{text}\nprint()\n", encoding="utf-8")
    assert "has changed" in build.problems(source)[0]
    source.write_text(text, encoding="utf-8")
    change_shown(notebook, "def", "deff")
    assert "shows an older" in build.problems(source)[0]
    changed = json.loads(good)
    changed["cells"][1]["source"] = ["edited by hand"]
    notebook.write_text(json.dumps(changed), encoding="utf-8")
    assert "edited by hand" in build.problems(source)[0]
    notebook.unlink()
    assert "is missing" in build.problems(source)[0]


def test_shown_sources_are_mended_without_jupyter(copied, monkeypatch, capsys):
    """By ``build.py --sources``, but not where the code of a source has changed."""
    source, notebook = copied
    for package in ("jupytext", "nbformat", "nbclient", "IPython"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "path", list(sys.path))      # main() puts the library first
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(build, "sources", lambda: [source])
    monkeypatch.setattr(sys, "argv", ["build.py", "--sources"])

    def refreshed():
        assert build.main() == 0
        return capsys.readouterr().out.splitlines()
    refreshed()
    good, n = notebook.read_bytes(), change_shown(notebook, "\n", "\n# an older comment\n")
    assert n and sum("--sources" in p for p in build.problems(source)) == n
    lines = refreshed()
    assert len(lines) == n and not any("run 'python lessons/build.py" in line for line in lines)
    assert notebook.read_bytes() == good
    n, lines = change_shown(notebook, "(", "_other("), refreshed()
    again = f"run 'python lessons/build.py {source.stem[:2]}'"
    assert n and [again in line for line in lines] == n * [True]
    assert notebook.read_bytes() == good
    assert refreshed() == ["every notebook shows the library's sources as they are"]


@pytest.mark.slow
def test_changed_text_gets_into_a_notebook_and_changed_code_does_not(copied):
    pytest.importorskip("jupytext")
    source, notebook = copied
    text, good = source.read_text(encoding="utf-8"), notebook.read_bytes()
    assert build.retext(source) is None and notebook.read_bytes() == good
    source.write_text(text.replace("# # 2. ", "# # 2. Again: ", 1), encoding="utf-8")
    assert build.problems(source) and "brought up to date" in build.retext(source)
    assert not build.problems(source)
    assert notebook.read_text(encoding="utf-8").count("# 2. Again: ") == 1
    mended = notebook.read_bytes()
    source.write_text(f"{text}\n# %%\nprint()\n", encoding="utf-8")
    assert "code has changed" in build.retext(source) and notebook.read_bytes() == mended


@each_lesson
def test_a_lesson_has_its_parts(source):
    text = source.read_text(encoding="utf-8")
    assert re.match(r"# %% \[markdown\]\n# # \d+\. ", text)
    assert "After this lesson you can" in text
    assert "guess = ..." in text and "reveal(" in text
    assert re.search(r"\b(picture|curves|bars)\(", text) and "show(" in text and "$$" in text
    assert "*Open.*" in text


@each_lesson
def test_a_notebook_is_small_its_pictures_described_and_its_answers_folded(source):
    path = build.notebook_of(source)
    assert path.stat().st_size < 300 * 1024
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        is_answer = cell["cell_type"] == "code" and "reveal(guess" in "".join(cell["source"])
        assert cell["metadata"].get("jupyter", {}).get("outputs_hidden", False) == is_answer
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert output["metadata"]["image/png"]["alt"]
    assert "outputs_hidden" not in lesson.without_outputs(path)     # a reader's own are shown


def test_the_notebooks_together_are_small():
    assert sum(build.notebook_of(s).stat().st_size for s in SOURCES) < 4.5 * 1024 ** 2


@each_lesson
def test_the_map_for_teachers_has_the_lesson(source):
    readme = (LESSONS / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if f"({source.stem}.ipynb)" in line)
    asked = re.findall(r'^check\("(\w+)"', source.read_text(encoding="utf-8"), re.M)
    assert re.findall(r"`(\w+)`", row.split("|")[-2]) == asked


@pytest.mark.parametrize("source", [
    pytest.param(s, id=s.stem, marks=[pytest.mark.slow] * (s.stem[:2] != "03")) for s in SOURCES])
def test_the_solutions_run(source, capsys):
    runpy.run_path(str(LESSONS / "solutions" / source.name), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines and all("passed" in line for line in lines)


@pytest.mark.slow
@each_lesson
def test_a_notebook_runs_from_a_clean_kernel(source, tmp_path):
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package)
    notebook = build.read(source)
    build.run(notebook, tmp_path)                         # raises where a cell does
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    assert not [o for o in outputs if o.get("name") == "stderr"]
    assert list(tmp_path.iterdir()) == []                 # a lesson leaves nothing behind


@pytest.mark.slow
def test_a_notebook_goes_back_into_its_source(copied):
    pytest.importorskip("jupytext")
    build.pull(copied[0])
    assert build.cells_digest(build.read(copied[0])) == build.cells_digest(build.read(SOURCES[2]))


@pytest.mark.parametrize(("text", "left"), [
    ("bit-xor   0/500 |     | ? left\rbit-xor 500/500 |███| 00:00 left\nloss 1\n", "loss 1\n"),
    ("film:  8%|▊  | 39/500 [00:01<00:12]\x1b[A\n", ""), ("12it [00:00]", ""),
    ("50 %, not 7/8\n", "50 %, not 7/8\n")])
def test_a_progress_bar_is_not_kept(text, left):
    output = build.tidy({"output_type": "stream", "name": "stdout", "text": text})
    assert output["text"] == left
    assert build.is_progress(output) == (not left)


@pytest.mark.parametrize(("guess", "answer", "unit", "line"), [
    ("5 %", 5.1, "%", "Your guess: 5 %. Answer: 5.1 %: right."),
    ("5%", 50.0, "%", "Your guess: 5 %. Answer: 50 %: off by a factor of 10."),
    (" 4 of 8", 4, "of 8", "Your guess: 4 of 8. Answer: 4 of 8: right."),
    ("Stays", "stays", "", "Your guess: Stays. Answer: stays: right."),
    ("none", 3, "", "Your guess: none. Answer: 3."),
    (1, 9.0, "powers of ten", "Your guess: 1 power of ten. Answer: 9 powers of ten: 8 more."),
    (16, 10, "digits", "Your guess: 16 digits. Answer: 10 digits: 6 less."),
    (..., 3, "digits", "No guess yet. Answer: 3 digits.")])
def test_a_guess_is_printed_beside_the_answer(guess, answer, unit, line, capsys, monkeypatch):
    monkeypatch.setattr(lesson, "wrong_runs", {})
    lesson.reveal(guess, answer, unit)
    assert capsys.readouterr().out == f"{line}\n"


def test_layers_in_a_row_descend_the_gradient_of_their_loss():
    """A step moves a weight by the slope that a central difference measures."""
    rng = np.random.default_rng(0)
    x, targets = rng.standard_normal((8, 3)), rng.integers(0, 4, 8)
    layers = [Linear(3, 5, float), Linear(5, 4, float)]
    for p in (p for layer in layers for p in layer.parameters()):
        p.data[...] = rng.standard_normal(p.data.shape)
    weight = layers[0].weight.data

    def loss_at(step):
        weight[1, 2] += step
        loss, = lesson.descend(layers, x, targets, 0.0, 1)
        weight[1, 2] -= step
        return loss
    slope, before = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5, weight[1, 2]
    first, = lesson.descend(layers, x, targets, 0.1, 1)
    assert np.isclose(before - weight[1, 2], 0.1 * slope, rtol=1e-6)
    assert lesson.descend(layers, x, targets, 0.1, 50)[-1] < first / 2


@pytest.mark.parametrize("source", [s for s in SOURCES if int(s.stem[:2]) in build.SPINE],
                         ids=lambda s: s.stem)
def test_a_lesson_of_the_spine_begins_with_the_whole_model(source):
    notebook = json.loads(build.notebook_of(source).read_text(encoding="utf-8"))
    pictures = [output["metadata"]["image/png"]["alt"] for cell in notebook["cells"]
                for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert any(alt.startswith("The whole model; in colour: ") for alt in pictures[:2])


# ------------------------------------------------------------------------ the map and the plans


def table_rows(text, heading):
    """The cells of each row of the first table below a heading."""
    lines = text.partition(heading)[2].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first + 2:])
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


README = (LESSONS / "README.md").read_text(encoding="utf-8") if SOURCES else ""
SPINE, SIDE = (table_rows(README, heading) if README else []
               for heading in ("## A course on one page", "## Side roads"))
MAP = {int(row[0].partition(".")[0]): (math.prod(map(int, re.findall(r"\d+", row[1]))),
                                       {int(n) for n in re.findall(r"\d+", row[2])})
       for row in SPINE + SIDE}                           # lesson -> minutes, lessons before it


def test_every_lesson_is_on_the_map_once():
    assert sorted(MAP) == [int(source.stem[:2]) for source in SOURCES]
    assert len(MAP) == len(SPINE) + len(SIDE)
    assert [int(row[0].partition(".")[0]) for row in SPINE] == build.SPINE
    assert all(len(row) == 5 and all(row) for row in SPINE)
    assert sum(MAP[number][0] for number in build.SPINE) <= 540


@pytest.mark.parametrize("row", SPINE, ids=lambda row: row[0].partition(".")[0])
def test_a_lesson_of_the_spine_begins_with_its_question_and_ends_with_what_to_keep(row):
    """The map has the question and no answer."""
    number, question = int(row[0].partition(".")[0]), row[3]
    text = next(LESSONS.glob(f"src/{number:02}_*.py")).read_text(encoding="utf-8")
    _, first, *_, last = (" ".join(re.sub("^# ?", "", cell, flags=re.M).split())
                          for cell in re.split(r"^# %%.*\n", text, flags=re.M))
    assert question.endswith("?")
    assert first.index("**What we know by now") < first.index(f"**The question:** {question}")
    places = [last.index(words) for words in (
        "**The picture to keep:** ", "**The sentence to remember:** *", "**What we do not know yet",
        "**Next**")]
    sentence = last[places[1]:places[2]].split("** *")[1].strip(" *")
    assert places == sorted(places) and sentence not in README and MAP[number][0] <= 50


@each_lesson
def test_a_lesson_stays_short(source):
    """Words, code, cells, exercises, functions of the reader's file, seconds; README's minutes."""
    length = measure.measure(source)
    assert not length.excess, length
    assert MAP[int(source.stem[:2])][0] == 5 * round(length.minutes / 5), (
        "run 'python lessons/measure.py --write'")


def test_each_plan_follows_the_map():
    """No lesson stands before one that it uses, and 90 minutes are enough for a meeting."""
    teaching = (LESSONS / "teaching.md").read_text(encoding="utf-8")
    meetings, others = ({row[0]: [int(n) for n in row[1].split(",")]
                         for row in table_rows(teaching, f"## {heading}")}
                        for heading in ("Six meetings", "Other plans"))
    spine = [number for numbers in meetings.values() for number in numbers]
    assert len(meetings) == 6 and spine == build.SPINE
    for name, numbers in [("six meetings", spine), *others.items()]:
        for i, number in enumerate(numbers):
            missing = MAP[number][1] - {*numbers[:i]}
            assert not missing, f"{name}: lesson {number} stands before {missing}"
    for name, numbers in meetings.items():
        assert sum(MAP[number][0] for number in numbers) <= 90, f"meeting {name}"


def test_teachers_get_a_misconception_and_a_question_for_each_lesson():
    teaching = (LESSONS / "teaching.md").read_text(encoding="utf-8")
    rows = table_rows(teaching, "## A misconception and a question")
    assert [int(row[0]) for row in rows] == sorted(MAP)
    assert all(row[1].startswith("*") and row[2].endswith("?") for row in rows)


def test_the_glossary_is_made_from_the_lessons():
    text = (LESSONS / "glossary.md").read_text(encoding="utf-8")
    assert text == build.glossary(), "run 'python lessons/build.py --glossary'"
    assert "- **softmax** (" in text.lower()


# ------------------------------------------------------------------------- the reader's own file


def test_a_curve_says_whose_functions_it_shows(cwd, capsys):
    names, file = ("linear", "linear_backward"), "mine.py"

    def owners(*names):
        with written(file, *names) as whose:
            F.linear(np.ones((1, 2)), np.ones((2, 3)), np.ones(3))
        return whose, capsys.readouterr().out
    whose, out = owners(*names)
    assert whose == "the library's: linear, linear_backward"
    assert 'minifpt.new("mine.py", lesson=1) begins yours' in out
    several = "linear", "softmax", "gelu", "relu", "dropout"
    assert owners(*several)[0] == "all 5 functions are the library's"
    own.new(file)
    own.put(file, linear)
    whose, out = owners(*names)
    assert whose == "yours: linear; the library's: linear_backward" and "linear: passed" in out
    assert owners(*several)[0] == "1 of 5 functions are yours"


def test_a_wrong_function_runs_and_shows_what_it_costs(cwd, capsys):
    own.new("mine.py")
    own.put("mine.py", linear, linear_backward)
    capsys.readouterr()
    dy, inputs = np.ones((4, 3)), (np.ones((4, 2)), np.ones((2, 3)), np.ones(3))
    with written("mine.py", "linear_backward") as whose:
        np.testing.assert_array_equal(F.linear_backward(dy, F.linear(*inputs)[1])[2], [1, 1, 1])
    out = capsys.readouterr().out
    assert whose == "yours: linear_backward" and out.count("\n") == 2
    assert "what it costs: linear_backward\n" in out and "A mean for a sum" in out
    lesson.reveal(0.25, 0.5)
    assert "With a wrong linear_backward the answer is 0.5. Mend it" in capsys.readouterr().out
    lesson.reveal(0.25, 0.5)                              # of another cell
    assert "off by a factor of 2" in capsys.readouterr().out
    with written("mine.py", "softmax"):                   # where it is not needed
        np.testing.assert_array_equal(F.linear_backward(dy, F.linear(*inputs)[1])[2], [4, 4, 4])
    out = capsys.readouterr().out
    assert "linear_backward is wrong; it is not needed here, and the library's runs" in out


def endless_backward(dy, cache):
    while True:
        pass


def test_a_function_whose_check_did_not_end_does_not_run(cwd, capsys, monkeypatch):
    monkeypatch.setattr(engine, "SECONDS", 0.2)
    own.new("mine.py")
    own.put("mine.py", linear)
    Path("mine.py").write_text(Path("mine.py").read_text() + inspect.getsource(
        endless_backward).replace("endless", "linear"))
    capsys.readouterr()
    with written("mine.py", "linear", "linear_backward") as whose:
        _, cache = F.linear(np.ones((4, 2)), np.ones((2, 3)), np.ones(3))
        np.testing.assert_array_equal(F.linear_backward(np.ones((4, 3)), cache)[2], [4, 4, 4])
    out = capsys.readouterr().out
    assert whose == "the library's: linear, linear_backward" and "what it costs" not in out
    assert "is there a loop?\nSo that this cell ends, the library's linear and linear_back" in out


def softmax(x):
    return np.exp(x) / np.exp(x).sum(), SoftmaxCache(x)  # noqa: F821, it is put into a file


def attention(q, k, v, p=0.0, rng=None, causal=True):
    A, _ = softmax(q @ k.swapaxes(-1, -2))
    return A @ v, AttentionCache(q, k, v, A, None, False)  # noqa: F821


def test_what_is_to_be_mended_first_is_needed(cwd, capsys):
    own.new("mine.py")
    own.put("mine.py", softmax, attention, linear)
    with written("mine.py", "attention", "linear_backward"):
        pass
    out = capsys.readouterr().out
    assert "Mend softmax first" in out and "what it costs: softmax, attention\n" in out
    assert "not needed here" not in out


@pytest.mark.parametrize(("text", "message"), [
    ("def linear(x, w, b, need=())\n    return x", "mine.py, line 1: SyntaxError"),
    ("def linear(x, w, b, need=()):\n    return 1 / 0",
     "mine.py, line 2: linear raised ZeroDivisionError"),
    ("def linear(x, w, b, need=()):\n    return x @ w, None",
     "with a wrong linear, this ended in ValueErr"),
    ("def linear(x, w, b, need=()):\n    y = None\n    return y, None", "linear returns nothing")])
def test_a_file_that_cannot_run_ends_a_cell_in_one_line(cwd, text, message):
    """As IPython asks for it; an error of the cell's own keeps its traceback."""
    Path("mine.py").write_text(text)
    with pytest.raises(own.Raised, match=message) as error, written("mine.py", "linear"):
        if F.linear(np.ones((1, 2)), np.ones((2, 3)), np.ones(3))[1] is None:
            raise ValueError("of a layer")
    (line,) = error.value._render_traceback_()
    assert len(line.splitlines()) == 1
    Path("mine.py").write_text("")
    with pytest.raises(KeyError), written("mine.py", "linear"):
        raise KeyError("of the cell")


def linear(x, w, b, need=(True, True, True)):
    return x @ w + b, LinearCache(x, w, need)  # noqa: F821, it is put into a file


def linear_backward(dy, cache):
    x, w, need = cache
    rows = dy.reshape(-1, w.shape[1])
    return dy @ w.T, x.reshape(-1, w.shape[0]).T @ rows, rows.mean(axis=0)


def test_the_spine_asks_for_each_function_that_an_fpt_runs():
    names = set()
    for number in range(8):
        text = next(LESSONS.glob(f"src/{number:02}_*.py")).read_text(encoding="utf-8")
        names |= {name for name in own.FUNCTIONS if f"`{name}" in text or f'"{name}"' in text}
    task = minifpt.tasks.get("bit-xor")
    model = minifpt.FPT.for_task(task, "random:1x1x8@1", dropout=0.0)
    x, y = task.batch(np.random.default_rng(0), 2)
    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=np.random.default_rng(0))
        model.backward(task.loss(logits, y)[1], cache)
    assert {step.op for step in t.steps} <= names


@pytest.mark.slow
def test_a_reader_goes_the_whole_way_with_a_file_of_their_own(cwd):
    """In a clean folder: before each lesson of the spine the reader writes what it asks for."""
    answers, names = load_module(own.solution()), []
    for source in (s for s in SOURCES if f"({s.stem}.ipynb)" in str(SPINE)):
        text = source.read_text(encoding="utf-8")
        asked = measure.functions_asked(text)
        number = int(source.name[:2])
        assert asked == [name for name, lesson in own.FUNCTIONS.items() if lesson == number]
        if asked:
            minifpt.new("mine.py", lesson=number)
        own.put("mine.py", *(vars(answers)[name] for name in asked))
        names += asked
        answered = re.sub(r'^check\("(\w+)", \1\)', r'check("\1", EXERCISES["\1"].solution)', text,
                          flags=re.M)
        # Long runs are read, as in a browser: each notebook is run whole by another test.
        Path("lesson.py").write_text(
            "from minifpt.exercises import EXERCISES, load_exercises, records\n"
            f"load_exercises()\nrecords.IN_BROWSER = True\n{answered}", encoding="utf-8")
        run = child(sys.executable, "lesson.py", encoding="utf-8", timeout=600,
                    env=os.environ | {"MPLBACKEND": "agg", "PYTHONUTF8": "1"})
        assert "\u2717" not in run.stdout, f"{source.stem}\n{run}"
        assert {f"\u2713 {name}: passed" for name in asked} <= {*run.stdout.splitlines()}
    checked = own.results("mine.py")
    assert {r.name: r.status for r in checked if r.status != own.NOT_WRITTEN} == dict.fromkeys(
        names, own.PASSED)
    task = minifpt.tasks.get("bit-xor")
    model = minifpt.FPT.for_task(task, "minigpt-language", dropout=0.0)
    language_model = minifpt.LanguageModel.from_pretrained("minigpt-language")
    start = np.array([list(b"The old man ")])
    with own.using("mine.py", checked=checked) as mine:
        history = minifpt.train(model, task, 300, batch_size=8, lr=3e-3, eval_every=300)
        text = language_model.generate(start, 20, seed=0)
    assert history[-1]["test_accuracy"] > 0.9
    assert np.array_equal(text, language_model.generate(start, 20, seed=0))
    assert {"linear_backward", "layer_norm_backward", "attention_backward"} <= {*mine.calls}
