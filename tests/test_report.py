"""Runs read back: their model, their attention, the page on them, and runs side by side."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli, tasks
from minifpt.experiments import compare, runs
from minifpt.experiments.runs import at_start, read_run
from minifpt.reports import attention, html, report

WALK = Path(__file__).parent / "extend" / "walk.py"
MODEL = "random:2x2x16"
SMALL = {"steps": 20, "batch_size": 4, "lr": 1e-2, "eval_every": 5, "test_examples": 32,
         "checkpoint_every": 10, "progress": False}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with small runs, and {name: (model, history) as training returned them}."""
    folder, back = tmp_path_factory.mktemp("made"), {}

    def run(name, task, options=None, **more):
        back[name] = runs.run(tasks.get(task, **options or {}), MODEL, folder / name,
                                 source=task, **SMALL | more)
    run("xor", "bit-xor", {"n": 3}, dropout=0.1)
    run("xor-1", "bit-xor", {"n": 3}, dropout=0.1, seed=1)
    run("xor-full", "bit-xor", {"n": 3}, dropout=0.1, freeze="full")
    run("memory", "bit-memory", {"strings": 3, "bits": 6, "patch": 3})
    run("digits", "digits", {"patch": 7, "size": 14})
    run("listops", "listops", {"length": 12})
    run("walk", f"{WALK}:Walk", {"steps": 5})
    return folder, back


@pytest.fixture
def copy(made, tmp_path):
    """A copy of a run, without its report, that may be damaged."""
    def copied(name="xor"):
        return Path(shutil.copytree(made[0] / name, tmp_path / name,
                                    ignore=shutil.ignore_patterns("*.html")))
    return copied


def change(folder, **settings):
    """Write other settings into config.json; ``None`` takes one out."""
    path = folder / "config.json"
    settings_of_run = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({k: v for k, v in settings_of_run.items() if v is not None}))


def change_trunk(folder, model):
    recipe = json.loads((folder / "config.json").read_text())["recipe"]
    change(folder, recipe=recipe | {"trunk": model})


# ----------------------------------------------------------------------- runs read back


@pytest.mark.parametrize("name", ["xor", "xor-full", "memory", "digits", "walk"])
def test_read_run_gives_the_trained_model(made, name):
    folder, back = made
    task, run = read_run(folder / name)
    trained, history = back[name]
    for (a, p), (b, q) in zip(run.model.named_parameters(), trained.named_parameters(),
                                strict=True):
        assert a == b and p.trainable == q.trainable
        np.testing.assert_array_equal(p.data, q.data)
    assert run.config == json.loads((folder / name / "config.json").read_text())
    assert (task.name, task.tokens) == (run.config["task"], task.batch(
        np.random.default_rng(0), 1, "test")[0].shape[1])
    assert run.history == history


def test_a_run_that_chose_a_rate_is_tested_on_validation_draws(tmp_path):
    """So its report says; its options make the task again."""
    job = compare.Job("bit-xor", {"n": 2}, MODEL, 0, tmp_path / "choice", SMALL | {
        "progress": False, "steps": 2}, validation=True)
    job.settings.pop("progress")
    job()
    assert isinstance(read_run(tmp_path / "choice")[0], compare.Validation)
    assert cli.main(["report", tmp_path / "choice"]) == 0
    page = (tmp_path / "choice/report.html").read_text()
    assert "% validation accuracy on 2,000 examples" in page and "test accuracy" not in page
    settings = minifpt.load(tmp_path / "choice").run
    assert tasks.get(settings["task"], **settings["options"]).options == {"n": 2}


def test_another_path_to_the_task_s_file_resumes(copy):
    folder = copy("walk")
    change(folder, source="elsewhere/walk.py:Walk")
    runs.run(tasks.get(f"{WALK}:Walk", steps=5), MODEL, folder, resume=True,
                source=f"{WALK}:Walk", **SMALL | {"steps": 25})
    assert read_run(folder)[1].settings.steps == 25


def test_a_run_on_a_task_that_get_made_from_a_file_is_read_back(tmp_path):
    task = tasks.get(f"{WALK}:Walk", steps=5)
    model = minifpt.FPT.for_task(task, MODEL)
    minifpt.train(model, task, out=tmp_path, **SMALL)
    assert read_run(tmp_path)[0].options == task.options
    change(tmp_path, source=None)                         # of an older version
    minifpt.train(minifpt.FPT.for_task(task, MODEL), task, out=tmp_path, resume=True,
                  **SMALL | {"steps": 25})
    assert read_run(tmp_path)[1].step == 25


@pytest.mark.parametrize("harm, message", [
    (lambda f: shutil.rmtree(f), "there is no such folder"),
    (lambda f: (shutil.rmtree(f), f.touch()), "it is a file, expected the folder of a run"),
    (lambda f: (f / "config.json").unlink(), "holds no run (no config.json)"),
    (lambda f: (f / "config.json").write_text("{"), "not JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "expected a JSON object"),
    (lambda f: change(f, steps=None), "has no 'steps': it is damaged, not of minifpt, or"),
    (lambda f: change(f, steps="many"), "has 'many' for 'steps'"),
    (lambda f: change(f, fingerprint=None), "has no 'fingerprint': it is damaged"),
    (lambda f: change(f, task="chess", source=None), "its task 'chess' was built in code"),
    (lambda f: change(f, task="chess"), "its task was 'chess', bit-xor now makes 'bit-xor'"),
    (lambda f: change(f, options={"m": 3}), "bit-xor has no option 'm'"),
    (lambda f: change(f, source=3), "its task cannot be made again: no task '3'"),
    (lambda f: change(f, task=["x" * 500]), "config.json: has ['xxx"),
    (lambda f: change(f, options={"x" * 999: 3}), "its task cannot be made again"),
    (lambda f: change_trunk(f, "random:0x0x0"), "its model cannot be made again"),
    (lambda f: change(f, source="gone.py:Task"), "there is no file gone.py; its paths are"),
    (lambda f: change_trunk(f, "gone.py:trunk"), "its model cannot be made again: gone.py:trunk"),
    (lambda f: change_trunk(f, "no-such-weights"), "its model cannot be made again"),
    (lambda f: change(f, recipe={}), "its model is not an FPT"),
    (lambda f: change(f, fingerprint={"data": "0"}), "was made with other data: restore it, or"),
    (lambda f: change(f, fingerprint=3), "has 3 for 'fingerprint'"),
    (lambda f: change(f, freeze="attn"), "checkpoint.npz: was written by a run with freeze"),
    (lambda f: (f / "checkpoint.npz").unlink(), "there is no checkpoint.npz"),
    (lambda f: (f / "checkpoint.npz").write_bytes(b"PK" * 50), "not a checkpoint, or damaged"),
])
def test_what_cannot_be_read_back_says_why(copy, harm, message, fails):
    folder = copy()
    harm(folder)
    line = fails("report", folder)
    assert message in line and len(line) < 600
    assert not (folder / "report.html").exists()


# ---------------------------------------------------------------------- what a task says


def test_xor_needs_both_bits():
    mask = tasks.get("bit-xor", n=3).needed(np.zeros((2, 6, 1)))
    want = np.zeros((6, 6), bool)
    for t, s in ((3, 0), (4, 1), (5, 2)):
        want[t, [s, t]] = True
    assert mask.shape == (2, 6, 6) and (mask == want).all()


def test_memory_needs_the_string_that_was_asked_for():
    task = tasks.get("bit-memory", strings=3, bits=40, patch=10)
    x, _, which = task.sample(np.random.default_rng(0), 20)
    mask = task.needed(x)
    for row, string in zip(mask, which, strict=True):
        assert {*zip(*np.nonzero(row), strict=True)} == {(12 + i, 4 * string + i) for i in range(4)}


def test_tokens_have_names():
    xor, memory = tasks.get("bit-xor", n=2), tasks.get("bit-memory", strings=2, bits=4, patch=2)
    assert xor.token_names() == ["a1", "a2", "b1", "b2"]
    assert xor.tokens_as_text(np.array([[0.], [1], [1], [0]])) == ["0", "1", "1", "0"]
    assert memory.token_names() == ["1.1", "1.2", "2.1", "2.2", "?.1", "?.2"]
    assert memory.tokens_as_text(np.array([[1, -1], [0, 1]])) == ["10", "·1"]
    assert tasks.get("listops").tokens_as_text([15, 11, 4, 14]) == ["·", "[MAX", "4", "]"]
    assert tasks.get("typos").tokens_as_text([65, 32, 10, 200]) == ["A", "␣", "↵", "\\xc8"]


# ---------------------------------------------------------------------------- attention


def test_maps_are_the_trace_s(made, monkeypatch):
    task, run = read_run(made[0] / "memory")
    x, _ = task.batch(np.random.default_rng(0), 10)
    mask = task.needed(x)
    with minifpt.trace(run.model) as t:
        run.model.forward(x)
    a = np.stack([*t.attention.values()])                 # (2, B, 2, T, T)
    monkeypatch.setattr(attention, "ROWS", 3 * task.tokens)  # in four parts
    maps = attention.maps(run.model, x, mask)
    np.testing.assert_allclose(maps.mean, a.mean(axis=1), atol=1e-6)
    rows = [[[a[i, b, h, t, mask[b, t]].sum() for b in range(10)
              for t in range(task.tokens) if mask[b, t].any()]
             for h in range(2)] for i in range(2)]
    np.testing.assert_allclose(maps.needed, np.mean(rows, axis=-1), atol=1e-6)
    assert attention.maps(run.model, x).needed is None


def test_what_a_task_says_is_checked(monkeypatch):
    task = tasks.get("bit-xor", n=2)
    monkeypatch.setattr(task, "needed", lambda x: np.ones((4, 4)), raising=False)
    with refused(r"shape \(4, 4\) and dtype float64, expected \(3, 4, 4\) and bool"):
        attention.needed(task, np.zeros((3, 4, 1)))
    monkeypatch.setattr(task, "needed", lambda x: None)
    assert attention.needed(task, np.zeros((3, 4, 1))) is None


def test_the_even_share_is_that_of_an_even_map():
    """An output token of XOR sees itself and all before, of which it needs two."""
    mean = np.tril(np.ones((1, 1, 6, 6)))
    mask = tasks.get("bit-xor", n=3).needed(np.zeros((4, 6, 1)))
    assert attention.even_share(mask, mean) == pytest.approx(np.mean([2 / 4, 2 / 5, 2 / 6]))


def test_attention_writes_maps_and_numbers(made, tmp_path, capsys):
    folder, out = made[0], tmp_path / "new" / "maps.png"
    assert cli.main(["attention", folder / "xor", folder / "xor-full", "--examples", 6,
                     "--out", out]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[-1] == str(out)
    assert out.read_bytes().startswith(b"\x89PNG")
    task, run = read_run(folder / "xor")
    x, _ = task.batch(np.random.default_rng([0, 2]), 6, "test")
    start = at_start(folder / "xor", run.config)
    for state, m in (("before", start), ("after", run.model)):
        want = attention.maps(m, x, task.needed(x)).needed
        [row] = [row for row in text if "xor " in row and f" {state} " in row]
        assert f"{100 * want.mean():.1f} %" in row and f"{100 * want.max():.1f} % (" in row
    assert "if even: the share if" in " ".join(" ".join(text).split())


def test_one_example_is_labelled_with_what_it_is():
    task = tasks.get("bit-xor", n=2)
    x = np.array([[[0], [1], [1], [0]]], np.float32)
    assert attention.token_labels(task, x) == ["a1: 0", "a2: 1", "b1: 1", "b2: 0"]
    assert attention.token_labels(task, np.repeat(x, 2, axis=0)) == ["a1", "a2", "b1", "b2"]


@pytest.mark.parametrize("words, message", [
    (["xor", "memory"], "its task is bit-memory, that of"),
    (["xor", "--examples", "0"], "examples must be a whole number, at least 1, got 0"),
    (["xor", "--out", "x.jpg"], "ends in .png")])
def test_attention_says_what_is_wrong(made, words, message, fails, monkeypatch):
    monkeypatch.chdir(made[0])
    assert message in fails("attention", *words)


def test_a_trunk_without_attention_has_a_report_and_no_maps(cwd, fails):
    runs.run(tasks.get("bit-xor", n=2), "lstm:1x8", "run", **SMALL | {"steps": 5})
    assert "has no attention layers" in fails("attention", "run")
    assert cli.main(["report", "run"]) == 0
    assert "No maps: attention: the trunk has no attention" in Path("run/report.html").read_text()


# ------------------------------------------------------------------------------- report


@pytest.fixture(scope="module")
def page(made):
    """The page on a run in a folder with an odd name, as the command makes it."""
    folder = shutil.copytree(made[0] / "xor", made[0] / "<b>&")
    assert cli.main(["report", folder]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")


def one_file(text):
    """Whether the elements are balanced, and nothing is fetched and nothing runs."""
    opened = []
    for end, tag in re.findall(r"<(/?)(\w+)\b[^>]*>", text):
        if end:
            assert opened.pop() == tag
        elif tag not in ("meta", "link", "img", "br"):
            opened.append(tag)
    ids, images = re.findall(r'\bid="(.*?)"', text), re.findall(r"<img [^>]*>", text)
    assert not opened and [text.count(f"<{tag}") for tag in ("h1", "main", "h2")] == [1, 1, 5]
    assert len({*ids}) == len(ids) and "http" not in text and "<script" not in text
    for link in re.findall(r'\b(?:href|src)="(.*?)"', text):
        assert link.startswith(("data:image/png;base64,", "data:,")) or link[1:] in ids
    return len(images) >= 6 and all(re.search(r'\balt="[^"]', image) for image in images)


def test_the_page_is_one_file_and_escapes_what_a_user_named(page):
    assert one_file(page) and "&lt;b&gt;&amp;" in page and "<b>" not in page


def test_the_page_s_numbers(made, page):
    folder, back = made
    model, history = back["xor"]
    last = history[-1]
    assert f"<td>{100 * last['test_accuracy']:.2f} %</td>" in page
    assert f"<td>{last['test_loss']:.4g}</td>" in page
    for group, (total, trained) in model.counts(6).items():
        assert re.search(rf'>{group}</th><td>[^<]*</td><td class="n">{total:,}</td>'
                         rf'<td class="n">{trained:,}</td>', page)
    cells = '<td>[^<]*</td><td class="n">[^<]*</td><td class="n">[^<]*</td><td class="n">'
    task, run = read_run(folder / "xor")
    start = dict(at_start(folder / "xor", run.config).named_parameters())
    pairs = [(p.data, start[n].data) for n, p in model.named_parameters() if p.group == "ln"]
    far = np.sqrt(sum(((a - b) ** 2).sum(dtype=float) for a, b in pairs))
    was = np.sqrt(sum((b ** 2).sum(dtype=float) for _, b in pairs))
    assert re.search(rf'>ln</th>{cells}{was:.4g}</td><td class="n">{far:.4g}</td>'
                     rf'<td class="n">{far / was:.4g}</td>', page)
    assert re.search(rf'>attn</th>{cells}[^<]*</td><td class="n">0</td>', page)
    assert "same bits as at the start" in page


@pytest.mark.parametrize("name", ["xor", "memory", "digits", "listops"])
def test_tests_are_the_last_row_s(made, name):
    task, run = read_run(made[0] / name)
    tested = report.test(task, run, progress=False)
    last = run.history[-1]
    assert (tested.loss, tested.accuracy) == (last["test_loss"], last["test_accuracy"])


def test_wrong_places_and_examples_are_shown(monkeypatch):
    task = tasks.get("bit-xor", n=2)
    wrong = np.array([[True, False], [True, True], [False, False], [True, False]])
    shares = []
    monkeypatch.setattr(report, "heat", lambda *args: shares.append(args[:2]))
    monkeypatch.setattr(report, "figures", lambda *a: "")
    report.wrong_places(task, wrong)
    assert shares[0][0].tolist() == [[75], [25]] and shares[0][1] == ["b1", "b2"]
    x = np.array([[0.], [1], [1], [1]])
    shown = report.wrong_example(task, x, np.array([1, 1]), np.array([1, 0]))
    assert shown == ("<pre>in      0 1\n        1 1\nright   1 0\nanswer  1 <mark>1</mark></pre>")
    memory = tasks.get("bit-memory", strings=1, bits=4, patch=2)
    shown = report.wrong_example(memory, np.array([[1, -1], [1, 1], [0, -1], [1, 0]]),
                                 np.array([0, 0, 1, 1]), np.array([1, 0, 1, 1]))
    assert shown == ("<pre>in      10 11\n        ·0 1·\nright   10 11\n"
                     "answer  <mark>0</mark>0 11</pre>")


def test_a_task_that_says_nothing_of_its_tokens(made):
    task, _ = read_run(made[0] / "walk")
    assert report.wrong_example(task, np.ones((5, 1)), np.array([1]), np.array([0])) == (
        "<pre>right   0\nanswer  <mark>1</mark></pre>")
    assert attention.token_labels(task, np.ones((1, 5, 1))) == ["1", "2", "3", "4", "5"]
    assert attention.needed(task, np.ones((1, 5, 1))) is None


def test_a_run_without_errors_has_no_wrong_places():
    task = tasks.get("bit-xor", n=2)
    x, y = task.batch(np.random.default_rng(0), 5)
    logits = np.stack([1.0 - y, 1.0 * y], axis=-1)
    text = report.answers_section(task, report.Tested(x, y, logits, 0.0, 1.0))
    assert "0 of 5 test examples" in text and "<figure" not in text


def test_a_stopped_run_says_where_it_stands(copy):
    folder = copy()
    change(folder, steps=40)
    task, run = read_run(folder)
    tested = report.Tested(np.zeros(3), None, None, 0.5, 0.5)
    text = report.result_section(folder, task, run, tested)
    assert "after 20 of 40 steps, where the run stopped" in text


# ------------------------------------------------------------------------------ browser


def test_images_are_small_pictures_with_a_line():
    text = html.images(np.arange(32.0).reshape(2, 4, 4), ["1, not 2", "<3"])
    assert text.count('src="data:image/png;base64,') == 2
    assert 'alt="1, not 2"' in text and ">&lt;3</p>" in text


@pytest.mark.slow
@pytest.mark.parametrize("scheme, width", [("light", 1280), ("dark", 390)])
def test_the_page_in_a_browser(made, tmp_path, drawn, browser, scheme, width):
    """No error, no request, nothing wider than the window; each picture is drawn."""
    complaints, requests = [], []
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    for name in ("xor", "digits", "memory", "listops", "walk"):
        path = tmp_path / f"{name}.html"
        assert cli.main(["report", made[0] / name, "--out", path]) == 0
        assert one_file(path.read_text(encoding="utf-8"))
        page.goto(f"file://{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("[...document.images].every(i => i.width <= innerWidth)")
        assert page.evaluate("getComputedStyle(document.querySelector('.plot img')).filter "
                             "!== 'none'") == (scheme == "dark")
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth)")
        page.get_by_role("link", name="Answers").click()
        assert page.get_by_role("heading", name="Answers").is_visible()
    page.close()
    assert not complaints and all(url.startswith(("file:", "data:")) for url in requests)
