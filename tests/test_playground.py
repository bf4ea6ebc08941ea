"""The live page as a file: what is in it, and what it refuses.  test_playground_browser runs it."""

import base64
import csv
import json
import re
import shutil

import numpy as np
import pytest
from conftest import child

import minifpt
from minifpt import viewer
from minifpt.cli import main
from minifpt.experiments import reproduce
from minifpt.files import weights
from minifpt.viewer.live import page as playground


@pytest.fixture(scope="module")
def page():
    return playground.playground()


def data_of(page):
    return re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]


def test_the_command_writes_one_file_of_at_most_400_kB(tmp_path, capsys):
    assert main(["playground", "--out", tmp_path / "page.html", "majority"]) == 0
    file = tmp_path / "page.html"
    assert 50e3 < file.stat().st_size <= 400e3
    assert str(file) in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    data = json.loads(data_of(file.read_text(encoding="utf-8")))
    assert (data["task"], data["model"]) == ("majority", "minigpt-tiny")


def test_the_page_asks_for_nothing_outside_itself(page):
    assert not re.search(r"""(src|href)\s*=|https?://|@import|url\((?!blob)""", page)
    assert "default-src 'none'" in page


def test_the_data_cannot_end_its_script_element(page):
    assert "<" not in data_of(page)
    hostile = playground.to_json({"model": "</script><script>alert(1)</script>"})
    assert "<" not in hostile and json.loads(hostile)["model"].startswith("</script>")
    with pytest.raises(ValueError, match="not finite: try smaller"):
        playground.to_json({"loss": np.nan})


def test_every_script_element_ends_where_it_should(page):
    assert page.count("<script") == page.count("</script>") == 4
    assert "<!--" not in page
    assert "It needs JavaScript" in re.search("<noscript>(.*?)</noscript>", page, re.S)[1]


def test_the_stored_weights_are_those_of_the_trunk(page):
    data = json.loads(data_of(page))
    numbers = np.frombuffer(base64.b64decode(data["weights"]), "<f2")
    lm, at = minifpt.LanguageModel.from_pretrained("minigpt-tiny"), 0
    arrays = {**dict(lm.trunk.named_parameters()), "wte.weight": lm.wte.weight}
    for (name, p), (theirs, shape) in zip(arrays.items(), data["trunk"], strict=True):
        size = int(np.prod(shape))
        assert name == theirs
        assert np.array_equal(numbers[at:at + size].reshape(shape), p.data[:shape[0]].astype("<f2"))
        at += size
    assert at == len(numbers)


def test_a_station_has_at_most_sixty_words_and_attention_is_explained_before_it_is_used(page):
    stations = json.loads(data_of(page))["stations"]
    assert len(stations) == 11
    for n, station in enumerate(stations, 1):
        assert station["title"].endswith("?" if n > 1 else "97 % of it is frozen.")
        assert 20 < len(station["text"].split()) <= 60 and station["more"].endswith(".")
        assert len(station["options"]) == (3 if n not in (2, 6, 8) else 2 if n == 8 else 0)
    assert not any("attention" in station["text"].lower() for station in stations[:3])


def test_the_measured_numbers_of_the_page_are_those_of_the_runs(page):
    """The twenty races of station 3 and the steps of station 11, which ship in measured.json."""
    tables = pytest.importorskip("studies.runs", reason="needs a checkout")
    grids = pytest.importorskip("studies.grids")
    measured = json.loads(data_of(page))["measured"]
    with open(tables.RESULTS / "races.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "page"]
    assert measured["races"] == [[int(row["reached"]) for row in rows if row["trunk"] == trunk]
                                 for trunk in ("minigpt-language", "random")]
    runs = grids.read_rows(tables.RESULTS / "table2.csv").results["bit-memory"]
    steps = {name: reproduce.median_step(runs[arm], 0.95) for name, arm in {
        "minigpt-language": "language", "minigpt-images": "images", "minigpt-bits": "bits",
        "random": "random"}.items()}
    assert measured["memory_steps"] == {
        name: str(step).replace("never", "not in 2,000") for name, step in steps.items()}


def test_heads_that_were_trained_on_bit_memory_look_for_likeness(page):
    """What the station on pretraining shows, against the package's own measure."""
    heads = json.loads(data_of(page))["heads"]
    mean, deviation = heads["random"]
    above = {name: np.mean(np.array(traces) > mean + 2 * deviation)
             for name, traces in heads["traces"].items()}
    assert above["minigpt-bits"] == 1 and above["minigpt-images"] < above["minigpt-language"] < 0.6
    for name, traces in heads["traces"].items():
        measured = minifpt.heads(minifpt.GPT2.from_pretrained(name))
        assert np.allclose(traces, measured.trace, atol=0.006)
        assert measured.random["trace"] == pytest.approx(heads["random"], rel=1e-9)


def test_the_page_needs_the_weights_of_its_model_alone(page, tmp_path, monkeypatch):
    """As in a lesson's tab, which installs no others."""
    shutil.copy(weights.find("minigpt-tiny"), tmp_path)
    monkeypatch.setattr(weights, "folders", lambda: [tmp_path])
    assert playground.playground() == page


def test_a_notebook_shows_a_station():
    shown = minifpt.viewer.tour(8)._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "&quot;tour&quot;:8" in shown
    with pytest.raises(ValueError, match="station must be a whole .* at most 11, got 12"):
        minifpt.viewer.tour(12)


def test_the_reference_step_is_numpys(page):
    """Its loss and its entries are those of a float64 model put together by hand."""
    r = json.loads(data_of(page))["reference"]
    trunk = minifpt.GPT2.from_pretrained("minigpt-tiny", dtype=np.float64)
    model = minifpt.FPT(trunk, 1, 2, 5)
    parameters = dict(model.named_parameters())
    for name, values in r["outer"].items():
        parameters[name].data.flat = values
    task = minifpt.tasks.get("bit-xor")
    logits, cache = model.forward(np.reshape(r["x"], (4, 10, 1)).astype(float))
    loss, dlogits = task.loss(logits, np.reshape(r["y"], (4, 5)))
    model.backward(dlogits, cache)
    assert loss == pytest.approx(r["loss"], rel=1e-12)
    assert len(r["entries"]) == 40 and set(r["norms"]) == set(parameters)
    for name, at, value in r["entries"]:
        assert parameters[name].grad.flat[at] == pytest.approx(value, rel=1e-9, abs=1e-14)
    for name, norm in r["norms"].items():
        assert np.linalg.norm(parameters[name].grad) == pytest.approx(norm, rel=1e-9)


@pytest.mark.parametrize("model, message", [
    ("lstm", "is of kind LSTM, expected GPT-2"),
    ("nothing-of-that-name", "no weights"),
    ("short", "8 positions")])
def test_a_trunk_that_the_engine_cannot_run_is_refused_in_one_line(model, message, tmp_path, fails):
    if model == "short":
        model = tmp_path / "short.npz"
        minifpt.GPT2(minifpt.GPT2Config(1, 2, 8, n_positions=8, vocab_size=8)).save(model)
    assert message in fails("playground", "--model", model, "--out", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


ADDRESS = """
const D = {tour: false}, TASKS = {"bit-xor": {settings: {}, tokens: 10}}, KINDS = {random: 0};
const STARTS = {drawn: 0}, FAULTS = [{id: "transpose"}], STATIONS = [];
const PARTS = ["h.0.attn", "ln_f"], location = {hash: "", protocol: "file:"}, box = {};
const DEFAULTS = {task: "bit-xor", frozen: ["h.0.attn"], angle: 90, cut: [], seed: 0, scale: 1.4,
  look: null, beamer: false, race: null};
const by = () => box, addEventListener = () => 0;
"""


@pytest.mark.parametrize("text, value", [
    ("frozen=h.0.atn", None), ("frozen=h.0.attn,x", None), ("frozen=", None), ("frozen=none", []),
    ("frozen=ln_f,h.0.attn", ["h.0.attn", "ln_f"]), ("angle=", None), ("angle=%20", None),
    ("angle=0", 0), ("angle=181", None), ("seed=", None), ("scale=", None), ("cut=3-9", None),
    ("cut=", None), ("cut=none", []), ("cut=3-1,5-2", [[3, 1], [5, 2]]), ("cut=3-1,3-9", None),
    ("cut=3-1,x", None), ("look=null", None), ("beamer=no", None), ("beamer=true", True),
    ("race=random~1", [["random", 1, "drawn"]]), ("race=random~1,x~2", None),
    ("race=", None), ("race=random", None)])
def test_what_an_address_asks_for_is_used_or_named(text, value):
    """A list with a wrong entry is named, whether or not its other entries are used."""
    node = shutil.which("node") or pytest.skip("no node")
    script = ADDRESS + viewer.read("live/address.js") + f"""
        location.hash = "#{text}";
        const values = read_address(), key = {json.dumps(text.partition("=")[0])};
        console.log(JSON.stringify([values[key], box.textContent]));"""
    used, said = json.loads(child(node, "-e", script).stdout)
    if value is None and text != "look=null":
        assert said.startswith("This page cannot use “" + text.replace("%20", " ")[:30])
    else:
        assert (used, said) == (value, "")
