"""The live page in a real browser: its engine against NumPy, and everything that can be clicked."""

import json
import re
import time
from functools import partial

import numpy as np
import pytest

import minifpt
from minifpt import functional as F
from minifpt.optim import Adam, clip_grad_norm
from minifpt.trunks import forms
from minifpt.viewer.live import page as playground
from minifpt.viewer.steps import differences

pytestmark = pytest.mark.slow
HELPERS = """
window.make = ({values, shape}, type = Float64Array) => Object.assign(type.from(values), {shape});
window.plain = a => a && (a.shape ? {values: Array.from(a), shape: a.shape} : a);
"""
FRAMES = "new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => f())))"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "playground.html"
    playground.save(file)
    return file


@pytest.fixture(scope="module")
def engine(file, browser):
    """A page that is opened once, for tests that call its functions and change nothing."""
    page = browser.new_page()
    page.goto(file.as_uri() + "#free")
    wait(page, "playground.state().agreement !== null && latest !== null")
    page.evaluate(HELPERS)
    yield page
    page.close()


@pytest.fixture
def visit(file, browser):
    """Open the page at an address, of another width or in another colour; it must ask for nothing
    and complain of nothing."""
    pages, complaints = [], []

    def visit(address, width=1280, height=844, **options):
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        page.on("console", lambda m: complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(
            (file.as_uri(), "blob:")) else None)
        page.goto(file.as_uri() + address)
        wait(page, "playground.state().agreement !== null && latest !== null")
        page.evaluate(HELPERS)
        pages.append(page)
        return page
    yield visit
    assert complaints == []
    for page in pages:
        page.close()


@pytest.fixture
def page(visit):
    """The free page."""
    return visit("#free", height=800)


def show(page, address):
    """Go to an address of the page."""
    page.evaluate("address => { latest = null; location.hash = address; }", address)
    wait(page, "latest !== null")


def wait(page, expression, seconds=120):
    """Until an expression is true, and drawn; the page forbids ``wait_for_function``'s eval."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression} is still false"
        page.wait_for_timeout(50)
    page.evaluate(FRAMES)


def state(page):
    return page.evaluate("playground.state()")


def close(theirs, ours, tolerance=1e-4):
    """Whether an array of the page equals NumPy's, relative to its largest entry."""
    theirs = np.reshape(theirs["values"], theirs["shape"])
    assert theirs.shape == ours.shape
    return np.abs(theirs - ours).max() <= tolerance * np.abs(ours).max()


def as_json(a):
    return {"values": np.asarray(a).ravel().tolist(), "shape": list(np.shape(a))}


# ---------------------------------------------------------------------- engine against NumPy

rng = np.random.default_rng(0)
normal = rng.standard_normal
X, QKV, IDS = normal((3, 5, 8)), normal((3, 5, 24)), rng.integers(0, 7, (3, 5))
# Inputs, and options for NumPy and for the page.
OPERATIONS = {
    "linear": ([X, normal((8, 6)), normal(6)], {}, ""), "positions": ([X, normal((5, 8))], {}, ""),
    "layer_norm": ([3 * X + 1, normal(8), normal(8)], {}, ""),
    "gelu": ([4 * X], {}, ""), "softmax": ([3 * X], {}, ""),
    "attention": ([QKV], {"n_head": 2}, ", 2"),
    "attention, not causal": ([QKV], {"n_head": 2, "causal": False}, ", 2, false"),
    "residual": ([X, X[::-1]], {}, ""), "last_tokens": ([X], {"n": 2}, ", 2"),
    "cross_entropy": ([normal((3, 5, 7)), IDS], {}, "")}


# The page's engine has these two operations in another form: the attention of GPT-2's joined
# queries, keys and values, and the sum of x and a branch, which a block computes with +.

def joined_attention(qkv, n_head, causal=True):
    q, k, v = (F.split_heads(part, n_head) for part in np.split(qkv, 3, axis=-1))
    y, cache = F.attention(q, k, v, causal=causal)
    return F.merge_heads(y), cache


def joined_attention_backward(dy, cache, backward=F.attention_backward):
    return F.merge_heads(*backward(F.split_heads(dy, cache.q.shape[1]), cache)[:3])


def residual(x, branch):
    return x + branch, None


def residual_backward(dy, dbranch, is_forgotten=False):
    """The gradient of x, where dbranch came back through the branch."""
    return dbranch if is_forgotten else dy + dbranch


def numpys(op):
    """Return the operation of the page's engine in NumPy, and its backward pass."""
    return {"attention": (joined_attention, joined_attention_backward),
            "residual": (residual, residual_backward)}.get(
                op) or (vars(F)[op], vars(F)[f"{op}_backward"])


@pytest.mark.parametrize("dtype, tolerance", [("Float32Array", 1e-4), ("Float64Array", 1e-10)])
@pytest.mark.parametrize("case", OPERATIONS)
def test_an_operation_and_its_backward_pass_equal_numpys(engine, case, dtype, tolerance):
    inputs, options, more = OPERATIONS[case]
    name = case.partition(",")[0]
    forward, backward = numpys(name)
    y, cache = forward(*inputs, **options)
    dy = 1.0 if name == "cross_entropy" else np.random.default_rng(1).standard_normal(y.shape)
    grads = backward(dy, dy / 2 if name == "residual" else cache)
    grads = grads if isinstance(grads, tuple) else (grads,)
    theirs, their_grads = engine.evaluate(f"""([inputs, dy]) => {{
        const arrays = inputs.map(x => make(x, {dtype}));
        dy = make(dy, {dtype});
        const [y, cache] = E.{name}(...arrays{more});
        const half = dy.map(v => v / 2);
        const grads = "{name}" === "cross_entropy" ? E.cross_entropy_backward(cache) :
          "{name}" === "residual" ? E.residual_backward(dy, half) : E.{name}_backward(dy, cache);
        return [plain(y), grads.map(plain)];
    }}""", [[as_json(x) for x in inputs], as_json(dy)])
    if name == "cross_entropy":
        assert theirs == pytest.approx(y, rel=tolerance)
    else:
        assert close(theirs, y, tolerance)
    for theirs, ours in zip(their_grads, grads, strict=True):
        assert close(theirs, ours, tolerance)


@pytest.mark.parametrize("freeze, dtype, tolerance", [
    ("fpt", "float32", 1e-4), ("full", "float64", 1e-8), ("attn,mlp,ln", "float64", 1e-8)])
def test_twenty_steps_of_training_equal_numpys(engine, freeze, dtype, tolerance):
    task = minifpt.tasks.get("bit-xor")
    config = minifpt.GPT2Config(2, 2, 32, 10, 10, dropout=0.0, initializer_range=0.25)
    model = minifpt.FPT(minifpt.GPT2(config, seed=1, dtype=np.dtype(dtype)), 1, 2, 5, seed=1)
    mask = minifpt.FreezeMask.parse(freeze)
    model.freeze(mask)
    start = {name: as_json(p.data) for name, p in model.named_parameters()}
    generator = np.random.default_rng(2)
    batches = [task.batch(generator, 4) for _ in range(20)]
    parameters = [p for p in model.parameters() if p.trainable]
    adam, losses = Adam(parameters, 1e-2), []
    for x, y in batches:
        model.zero_grad()
        logits, cache = model.forward(x.astype(dtype))
        loss, dlogits = task.loss(logits, y)
        losses.append(loss)
        model.backward(dlogits, cache)
        clip_grad_norm(parameters, 1.0)
        adam.step()
    frozen = [group for group in ("input", "pos", "ln", "attn", "mlp", "output")
              if getattr(mask, group)]
    their_losses, theirs = engine.evaluate("""([start, batches, frozen, type]) => {
        type = {float32: Float32Array, float64: Float64Array}[type];
        const config = {n_layer: 2, n_head: 2, n_embd: 32, causal: true};
        const model = E.make_model(config, TASKS["bit-xor"], {kind: "random", scale: 1}, 0, type);
        for (const [name, a] of Object.entries(start)) model.parameters[name].data.set(a.values);
        E.freeze(model, frozen);
        const losses = batches.map(([x, y]) =>
          E.train_step(model, {x: make(x, type), y}, 1e-2).loss);
        return [losses, Object.fromEntries(Object.entries(model.parameters).map(
          ([name, p]) => [name, plain(p.data)]))];
    }""", [start, [[as_json(x), y.ravel().tolist()] for x, y in batches], frozen, dtype])
    assert their_losses == pytest.approx(losses, rel=tolerance)
    for name, p in model.named_parameters():
        assert close(theirs[name], p.data, tolerance), name


def test_a_wrong_reference_step_is_a_red_warning(file, browser, tmp_path):
    text = file.read_text(encoding="utf-8")
    loss = json.loads(text.split('id="data">')[1].split("</script>")[0])["reference"]["loss"]
    other = tmp_path / "other.html"
    other.write_text(text.replace(f'"loss":{loss!r}', f'"loss":{loss * 1.01!r}'), encoding="utf-8")
    page = browser.new_page()
    page.goto(other.as_uri())
    assert "do not trust" in page.locator("#agreement.bad").inner_text()
    page.close()


# ------------------------------------------------------------------------- training

def test_the_first_screen_says_what_is_trained(page):
    s = state(page)
    assert (s["task"], s["step"], s["trained"], s["total"]) == ("bit-xor", 0, 770, 25_922)
    assert s["agreement"] < 3e-5
    assert "agrees with NumPy to" in page.locator("#agreement.good").inner_text()
    assert "770 of 25,922 numbers are being trained" in page.locator("#sentence").inner_text()
    for part in ("#train", "#answers", "#curve", "#sentence", "#tabs", "#rate", "#legend"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= 800, part
    assert page.locator("#bits button").count() == 10
    sizes = page.locator(".back.learns b").all_inner_texts()
    assert len(sizes) == 8 and "–" not in sizes           # gradients before the first step


def test_the_same_seed_trains_to_the_same_numbers(page):
    first = page.evaluate("playground.train(30)")
    page.click("#reset")
    wait(page, "latest !== null && latest.step === 0")
    assert page.evaluate("playground.train(30)") == first
    assert page.evaluate("playground.set({seed: 5}).then(() => playground.train(30))") != first


@pytest.mark.parametrize("task", ["majority", "bit-memory"])
def test_other_tasks_are_learned_too(page, task):
    before = page.evaluate("task => playground.set({task, learning_rate: 0.01})", task)
    after = page.evaluate("playground.train(300)")
    assert after["task"] == task and after["accuracy"] > before["accuracy"] + 0.05


def test_a_part_that_is_clicked_is_frozen_while_it_trains(page):
    page.click("#train")
    before = page.locator("#sentence").inner_text()
    part = page.get_by_role("button", name=re.compile("^block 1: attention"))
    assert "frozen: thaw" in part.get_attribute("aria-label")
    part.click()
    wait(page, "playground.state().trained === 770 + 4224")
    wait(page, f"document.getElementById('sentence').innerText !== {json.dumps(before)}")
    assert "trained: freeze" in part.get_attribute("aria-label")
    page.click("#train")
    assert page.evaluate("""async () => {
        const {data} = models[0].model.parameters["trunk.h.0.attn.c_attn.weight"], w = data.slice();
        await playground.train(2);
        return data.some((v, i) => v !== w[i]);
    }""")


def test_with_all_but_the_output_frozen_nothing_runs_back(page):
    page.evaluate("playground.set({frozen: ['input', 'pos', 'ln', 'attn', 'mlp']})")
    page.evaluate("playground.train(2)")
    assert state(page)["trained"] == 66
    assert page.locator(".back.ends").count() == 11 and page.locator(".back.through").count() == 0
    # In millions: half of the work is gone.
    wait(page, "document.getElementById('sentence').innerText.includes('1.0')")


def test_a_bit_that_is_clicked_changes_the_picture_before_the_next_frame(page):
    first = page.locator("#bits button").first
    before, after, same = page.evaluate("""() => {
        const seen = () => document.getElementById("picture").toDataURL();
        const before = seen(), button = document.querySelector("#bits button");
        const bit = button.textContent;
        button.click();
        return [bit, button.textContent, seen() === before];
    }""")
    assert {before, after} == {"0", "1"} and not same
    assert after in first.get_attribute("aria-label")


@pytest.mark.parametrize("values, message", [
    ("wieghts: 'random'", "no setting 'wieghts', expected one of task, weights"),
    ("task: 'xor'", "no task 'xor'"), ("frozen: ['attention']", "no part 'attention'"),
    ("faults: ['none']", "no fault 'none'"), ("learning_rate: -1", "rate cannot be -1")])
def test_a_setting_that_does_not_exist_is_refused(engine, values, message):
    before = state(engine)
    with pytest.raises(Exception, match=message):
        engine.evaluate(f"playground.set({{{values}}})")
    assert state(engine) == before


# ------------------------------------------------------------------------ cuts and forms

def weights_of(page):
    """The parameters of the model that is drawn, in float64."""
    return {name: np.reshape(a["values"], a["shape"]).astype(float) for name, a in page.evaluate(
        "Object.fromEntries(Object.entries(models[0].model.parameters).map(([n, p]) => "
        "[n, plain(p.data)]))").items()}


def answers_of(w, x, cut):
    """The answers of the package's model with these weights whose attention lacks this line."""
    model = minifpt.FPT(minifpt.GPT2(minifpt.GPT2Config(2, 2, 32, 10, 10), dtype=float), 1, 2, 5)
    for name, p in model.named_parameters():
        p.data[...] = w[name]

    def without(probabilities):
        probabilities[..., *cut] = 0
        return probabilities / probabilities.sum(axis=-1, keepdims=True)
    with minifpt.trace(model, {"trunk.h.*.attn.softmax": without} if cut else None):
        return model.predict(x).argmax(-1)


def test_a_cut_takes_the_answers_that_numpy_loses(page):
    """Also: without b3 -> a3 the answer at b3 falls and no other, without b3 -> a2 none does."""
    page.evaluate("playground.train(700)")
    wait(page, "latest.step === 700 && !running")
    x = np.array([[n >> i & 1 for i in range(10)] for n in range(1024)], float)[..., None]
    y, w = (x[:, :5] != x[:, 5:])[..., 0].astype(int), weights_of(page)
    for cut, falls in ([7, 2], [2]), ([7, 1], []):
        page.evaluate("cut => set({cut: [cut], look: 7})", cut)
        wait(page, "cut_table !== null")
        table = page.evaluate("cut_table")
        for key, line in ("before", None), ("after", cut):
            ours = (answers_of(w, x, line) == y).mean(axis=0)
            assert table[key] == pytest.approx(ours, abs=0.003)      # ties in float32
        lost = np.subtract(table["before"], table["after"])
        assert [i for i in range(5) if lost[i] > 0.2] == falls
    assert "cut=7-1" in page.evaluate("address()")
    page.get_by_role("button", name="b3 ✂ a2: mend").click()
    assert page.evaluate("S.cut.length") == 0


def test_turned_keys_and_starts_are_those_of_the_package(page):
    """Angle, eigenvalues and match of the page's block, by trunks/forms.py."""
    for start in "drawn", "aligned", "opposed":
        page.evaluate("""start => playground.set({task: "bit-memory", weights: "turned", angle: 120,
          start})""", start)
        values = page.evaluate("E.eigen(E.symmetric_form(models[0].model)).values")
        ours, w = page.evaluate("E.match(models[0].model)"), weights_of(page)
        trunk = minifpt.GPT2(minifpt.GPT2Config(1, 1, 64, 4, 4), dtype=np.float64)
        for name, p in trunk.named_parameters():
            p.data[...] = w[f"trunk.{name}"]
        m = forms.summed_form(trunk, np.eye(64))
        assert np.allclose(values, np.linalg.eigvalsh((m + m.T) / 2), atol=1e-4)
        model = minifpt.FPT(trunk, 12, 24, 1, seed=0)
        model.input.weight.data[...] = w["input.weight"]
        f = forms.summed_form(trunk, w["input.weight"])
        assert ours == pytest.approx(np.trace(f) / np.linalg.norm(f), rel=1e-3)
        if start != "drawn":
            forms.start_input(model, start)
            again = forms.summed_form(trunk, model.input.weight.data)
            assert np.trace(again) == pytest.approx(np.trace(f), rel=1e-3)
    assert page.evaluate("playground.set({weights: 'turned', start: 'drawn'})")["model"] == \
        "random:1x1x64@1.4,qk=120"


# ------------------------------------------------------------------------ the tour

@pytest.fixture
def tour(visit):
    return visit("")


def go_to(page, station):
    page.evaluate(f"go_to({station})")
    wait(page, f"S.tour === {station} && latest !== null")


def test_the_tour_goes_from_station_to_station_and_back(tour):
    for n in range(1, 12):
        wait(tour, "latest !== null")
        assert tour.locator("#place [aria-current]").inner_text() == str(n)
        assert tour.evaluate("document.documentElement.scrollWidth") <= 1280
        assert tour.locator("#next").is_visible()
        assert (tour.locator("#acts button").count() > 0) == (n != 6)
        names = tour.locator("#tour button:visible").all_inner_texts()
        assert len({re.sub(" →$", "", name) for name in names}) == len(names)
        assert tour.locator("h1 .pick").is_visible() == (n in (1, 4, 7, 8, 9, 10))    # its task
        if n > 1:
            assert tour.evaluate("[location.hash, document.activeElement.id]") == [
                f"#tour={n}", "question"]
        tour.click("#next")
    wait(tour, "location.hash === '#free' && S.tour === null")
    assert tour.locator("#tabs").is_visible() and not tour.locator("#tour").is_visible()
    tour.go_back()
    wait(tour, "S.tour === 11")
    tour.reload()
    wait(tour, "latest !== null")
    assert tour.locator("#question").inner_text() == "What did pretraining give?"


def test_a_picture_fills_its_screen_and_no_line_of_attention_comes_before_its_station(tour):
    for station in range(1, 12):
        go_to(tour, station)
        wait(tour, "layout")
        lowest = tour.evaluate("""Math.max(...["flow", "legend", "chart", "sentence", "panel",
          "forms", "points", "strip", "links", "letters"].map(by).filter(e => e.offsetHeight).map(
          e => e.getBoundingClientRect().bottom))""")
        assert 560 < lowest <= 844 + 30 * (station == 8), station
        assert tour.evaluate("drawn_rows.some(has_lines)") == (station not in (1, 2, 3, 5, 6)) or \
            not tour.locator("#flow").is_visible()


def press(page, wanted, key="Tab"):
    """Go to what a selector names, by at most six stops of Tab, and press Enter there."""
    for _ in range(6):
        page.keyboard.press(key)
        if page.evaluate(f"document.activeElement.matches({json.dumps(wanted)})"):
            return page.keyboard.press("Enter")
    raise AssertionError(f"six stops of Tab do not reach {wanted}")


def test_a_station_is_done_with_the_keys_alone(tour):
    go_to(tour, 2)
    press(tour, "#back")
    wait(tour, "S.tour === 1 && document.activeElement.id === 'question'")
    press(tour, "#guess button:last-child")
    press(tour, "#acts button")
    wait(tour, "by('judged').innerText.startsWith('You guessed right. 100 %')")
    press(tour, "#next")
    wait(tour, "S.tour === 2 && document.activeElement.id === 'question'")


@pytest.mark.parametrize("address, said", [
    ("#tour=99", "no station 99"), ("#constructor=1", "“constructor"), ("#speed=3", "“speed”"),
    ("#seed=1&rate=NaN&batch=-4", "“rate=NaN”"), ("#task=__proto__", "“task=__proto__”"),
    ("#race=,&fault=<b>&tab=x", "“race=,”"), ("#frozen=h.0.atn", "“frozen=h.0.atn”"),
    ("#frozen=h.0.attn,h.0.x", "“frozen=h.0.attn,h.0.x”"), ("#angle=", "“angle=”"),
    ("#seed=", "“seed=”"), ("#cut=3-9", "“cut=3-9”"), ("#cut=", "“cut=”"),
    ("#beamer=no", "“beamer=no”"), ("#%E0%A4%A&scale=Infinity", "cannot use")])
def test_a_wrong_address_says_so_on_the_free_page(visit, address, said):
    page = visit(address)
    assert said in page.locator("#notice").inner_text() and page.locator("#tabs").is_visible()
    assert page.evaluate("playground.train(2)")["step"] == 2


def test_a_token_of_an_address_sees_one_token_and_looks_at_none(visit):
    page = visit("#tour=4&look=null&cut=3-0,3-1,3-2,3-3,3-0,12-1,2-x")
    assert page.evaluate("[`${S.cut}`, S.look]") == ["3,0,3,1,3,2", None]
    assert "“cut=3-0,3-1" in page.locator("#notice").inner_text()


@pytest.mark.parametrize("address, step", [("#rate=1e30", 2), ("#tour=9&scale=1e30", 1)])
def test_a_loss_that_is_not_finite_ends_the_run_and_says_so(visit, address, step):
    page = visit(address)
    page.evaluate("(S.tour ? by('acts').children[0] : by('train')).click()")
    wait(page, f"by(S.tour ? 'judged' : 'reach').innerText.startsWith('Step {step}: the loss')")
    assert page.evaluate("[running, latest.step]") == [False, step]


@pytest.mark.parametrize("script, why", [
    ("Worker = null", "no workers"), ("URL.createObjectURL = null", "no workers"),
    ("Worker = class { postMessage() { setTimeout(() => this.onerror({})); } }", "no workers"),
    ("atob = null", "atob is not a function")])
def test_a_page_that_cannot_train_says_why(file, browser, script, why):
    with browser.new_page() as page:
        page.add_init_script(f"window.{script}")
        page.goto(file.as_uri())
        wait(page, f"document.getElementById('agreement').innerText.includes('{why}')")


def act(page, n=0):
    """Press one of a station's buttons and wait until its run is over; the verdict."""
    page.locator("#acts button").nth(n).click()
    wait(page, "!NOTES[S.tour - 1].busy && !running && !by('judged').innerText.includes('…')", 240)
    return page.locator("#judged").inner_text()


def rows(page):
    """The table of a verdict, {first cell: the other ones}."""
    return {name: cells for name, *cells in page.locator("#judged tr").evaluate_all(
        "rows => rows.map(row => Array.from(row.cells, cell => cell.innerText))")}


def test_the_verdicts_follow_the_run(tour):
    said = act(tour, 1)
    b3 = tour.locator("#answers .token:nth-child(8) .answer")              # the model's
    assert "answer at b3 is" in said and f"The model says {b3.inner_text()[0]}:" in said
    bits = tour.evaluate("example.bits")
    tour.get_by_role("button", name="All answers right").click()
    said = act(tour)
    assert said.startswith("You guessed right. 100 % right after") and "right ✓." in said
    go_to(tour, 3)
    assert tour.evaluate("example.bits") == bits
    assert "In this race the one that read was ahead. In 14 of twenty races the random" in act(tour)
    assert rows(tour) | {"race 1, just run": ["351", "384"]} == rows(tour)      # as it was before
    go_to(tour, 4)
    act(tour, 2)
    said = tour.locator("#judged").inner_text()           # and an input for which it is wrong:
    assert "b3 from" in said and said.endswith(
        f"In the picture b3 says {b3.inner_text()[0]} whether a3 is 0 or 1: flip a3.")
    assert b3.inner_text().endswith("✗") and tour.locator("#score").inner_text() == "4 of 5 right"
    tour.locator("#acts button").nth(3).click()
    wait(tour, "by('judged').innerText.includes('So the bit comes to b3')")
    tour.evaluate("flip(2)")
    assert "the page set a3 to" in act(tour, 2)           # it says so
    go_to(tour, 11)
    act(tour)
    assert rows(tour)["bit memory"] == ["24 of 24", "100"] and rows(tour)["language"][1] == "700"


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_bit_travels_once_where_the_line_can_be_seen(visit, motion):
    """With a 0 at a3 b3 looks elsewhere, which is what the station denies."""
    page = visit("#tour=4", reduced_motion=motion)
    page.evaluate("example.bits[2] && flip(2)")
    act(page)
    assert page.evaluate("[example.bits[2], trip.query, trip.key]") == [1, 7, 2]
    wait(page, "!dirty")                                  # it has arrived, or stands still
    still = page.evaluate("picture.toDataURL()")
    page.evaluate("send_bit(7, 2); draw()")
    assert (page.evaluate("picture.toDataURL()") == still) == (motion == "reduce")


def test_the_check_waits_until_it_is_asked_for(tour):
    go_to(tour, 5)
    tour.get_by_role("button", name="It learns, but more slowly").click()
    said = act(tour)
    assert said.startswith("You guessed right. After 600 steps the right model has 100 %")
    assert "gradients notices" not in tour.locator("body").inner_text()
    assert re.search(r"of \d+ gradients notices: \d+ are wrong", act(tour, 1))
    says, gives = rows(tour)["the code says"], rows(tour)["moving it gives"]
    assert says != gives


def test_a_station_that_is_left_stops_and_can_be_started_again(tour):
    go_to(tour, 9)
    tour.get_by_role("button", name="Train at 120°").click()
    wait(tour, "running && latest?.step > 20 && !by('acts').querySelector('[aria-disabled=false]')")
    wait(tour, "by('busy').firstElementChild.value > 20 && !by('busy').hidden")
    tour.go_back()
    wait(tour, "S.tour === 1 && !running && latest && latest.step === 0")
    tour.go_forward()
    wait(tour, "S.tour === 9 && latest !== null")
    act(tour)
    assert rows(tour)["60°"][1] == "94" and not tour.locator("#busy").is_visible()
    tour.get_by_role("button", name="Train at 120°").click()
    wait(tour, "running && latest && latest.step > 20")
    tour.locator("#train").click()                        # Stop
    wait(tour, "!running && by('judged').innerText.includes('120°')")
    assert rows(tour)["120°"][1].startswith("not in ")
    assert tour.evaluate("latest.lanes[0].curve.at(-1)[0] === latest.step")


def test_the_last_token_looks_at_the_string_that_comes_again(tour):
    go_to(tour, 8)
    assert tour.locator("#heads button:visible").all_inner_texts() == ["head 1"]
    learned = act(tour)
    tour.evaluate("Math.random = () => 0.5")              # a few inputs have two strings that fit
    assert act(tour, 1) != learned                        # another string comes again
    wait(tour, "by('looking').textContent.includes(`head 1 string ${example.which + 1} `)")


def test_paper_has_the_question_the_text_and_the_verdict(visit):
    page = visit("#tour=1")
    act(page, 1)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})
    page.evaluate(FRAMES)
    tops = [page.locator(part).bounding_box()["y"] for part in (
        "#question", "#story", "#judged", "#bits", "#answers", "#chart")]
    assert tops == sorted(tops)
    for part in "#acts", "#next", "#place", "#skip", "footer":
        assert not page.locator(part).is_visible(), part
    assert abs(page.evaluate("bits.offsetLeft - picture.offsetLeft")) < 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 720


def test_answers_stand_beside_each_other_at_every_width_and_zoom(visit):
    """640 px by 400 are a screen of 1,280 by 800 at 200 %."""
    page = visit("#free")
    for width, height in ((320, 844), (390, 844), (640, 400), (901, 700), (1024, 768), (1175, 800),
                          (1280, 800), (1920, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for address in ("#tour=1", "#tour=4", "#tour=8", "#free", "#tab=race",
                        "#tab=break&fault=transpose&weights=random"):
            show(page, address)
            page.evaluate("layout = null; draw()")
            page.evaluate(FRAMES)
            over = page.evaluate("""() => {
              const boxes = Array.from(answers.querySelectorAll(".answer"),
                answer => answer.getBoundingClientRect());
              const meet = (a, b) => a.left < b.right - 0.5 && b.left < a.right - 0.5 &&
                a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5;
              return boxes.filter((a, n) => boxes.slice(n + 1).some(b => meet(a, b))).length;
            }""")
            assert over == 0, (width, address)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, address)


def test_the_beamer_has_large_type_and_a_pointer_that_meets_its_token(visit):
    page = visit("#tour=4&beamer", 1920)
    size = "el => parseFloat(getComputedStyle(el).fontSize) * (el.currentCSSZoom || 1)"
    assert page.locator("#story").evaluate(size) > 26
    assert page.evaluate("document.documentElement.scrollWidth") <= 1920
    box = page.locator("#picture").bounding_box()
    page.mouse.move(box["x"] + 0.85 * box["width"], box["y"] + 100)       # the column of b4
    wait(page, "by('looking').textContent.startsWith('b4 needs')")
    page.click("#next")
    wait(page, "location.hash === '#tour=5&beamer=true'")


def test_axe_finds_nothing_serious(visit, axe):
    page = visit("#free")
    for address in [*(f"#tour={n}" for n in range(1, 12)), "#free", "#tab=race", "#task=bit-memory",
                    "#tab=break&fault=transpose", "#weights=turned&look=7&cut=7-2"]:
        show(page, address)
        page.evaluate("playground.train(3)")
        wait(page, "latest !== null && latest.step >= 3 && !running")
        for scheme in "light", "dark":
            page.emulate_media(color_scheme=scheme)
            page.evaluate(FRAMES)
            assert axe(page) == [], (address, scheme)


def test_an_angle_costs_steps_and_a_start_saves_them(visit):
    page = visit("#tour=9&angle=60")
    assert page.locator("#angle-value").inner_text() == "60°"
    act(page)
    assert "120° took 5.2 times as long" in act(page, 1)
    assert [cells[1] for cells in rows(page).values()] == ["steps to 95 %", "94", "493"]
    assert page.locator("#acts button").nth(2).inner_text() == "At your angle: 120°"
    go_to(page, 10)
    act(page)
    assert rows(page)["orange, 120°"] == ["493", "73"]
    assert page.evaluate("[0, 1].map(lane_color)") == ["--lane-3", "--plus"]         # as the bars


def test_the_letters_that_are_expected_are_numpys(visit):
    page = visit("#tour=2")
    lm = minifpt.LanguageModel.from_pretrained("minigpt-tiny")
    logits = lm.logits(np.frombuffer(b"the old wom", np.uint8).astype(int)[None])[0, -1]
    ours = F.softmax(logits[None].astype(float))[0][0]
    theirs = page.evaluate("expects('the old wom').map(([c, p]) => [c.charCodeAt(0), p])")
    assert len(theirs) == 256 and theirs[0][0] == ours.argmax()
    assert all(p == pytest.approx(ours[c], abs=2e-3) for c, p in theirs)   # float16 in the page


@pytest.mark.parametrize("width", [390, 768])
def test_what_one_starts_stays_in_sight_on_a_small_screen(visit, width):
    page = visit("", width)
    for station in range(1, 12):
        go_to(page, station)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, station
        fixed, small = page.evaluate("""() => {
          const all = Array.from(document.querySelectorAll("body *")).filter(e => e.offsetHeight);
          const is_small = e => { const {width, height} = e.getBoundingClientRect();
            return e.tagName === "BUTTON" && (width < 24 || height < 24); };
          return [all.filter(e => /fixed|sticky/.test(getComputedStyle(e).position)).length,
            all.filter(is_small).map(e => e.textContent)];
        }""")
        assert (fixed, small) == (0, []), station         # nothing covers, all can be hit
    for station, n, part in (1, 0, "#answers"), (4, 2, "#answers"), (11, 0, "#points svg"):
        go_to(page, station)
        act(page, n)                                      # it scrolls to the buttons
        first, last = (page.locator(p).bounding_box() for p in ("#acts", part))
        assert first["y"] >= -1, station
        assert last["y"] + last["height"] <= 844, station
    page.locator("#skip").press("Enter")                  # the free page opens at its top
    wait(page, "S.tour === null && latest !== null && document.activeElement.id === 'task'")
    assert page.evaluate("[scrollX, scrollY]") == [0, 0]


def test_the_last_links_lead_through_the_site_or_name_commands(browser, tmp_path):
    for site, tag in (None, "div"), ("../", "a"):
        text = playground.playground(tour=6, site=site)
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        wait(page, "latest !== null")
        links = page.locator(f"#links > {tag}")
        assert links.count() == 4
        assert ("minifpt steps" in links.nth(1).inner_text()) == (site is None)
        assert site is None or links.nth(1).get_attribute("href") == "../pages/step.html"
        page.close()


# ------------------------------------------------------------------------ faults

def test_finite_differences_agree_with_every_gradient(page):
    rows = page.evaluate("playground.train(20).then(() => check_parts(0, PARTS))")
    assert {row["part"] for row in rows} == set(page.evaluate("PARTS"))
    assert max(row["error"] for row in rows) < 1e-6


def test_a_gradient_check_notices_each_fault(page):
    faults = page.evaluate("FAULTS.map(f => f.id)")
    assert faults == [*(it.id for it in differences.BREAKS), "residual"]
    for fault in faults:
        worst = page.evaluate("""fault => playground.set({faults: [fault]}).then(
          () => check_parts(1, PARTS)).then(rows => Math.max(...rows.map(r => r.error)))""", fault)
        assert worst > 1e-4, fault


ARGUMENTS = {"layer_norm": [(2, 3, 8), (8,), (8,)], "linear": [(2, 3, 8), (8, 8), (8,)],
             "positions": [(2, 3, 8), (3, 8)], "residual": [(2, 3, 8), (2, 3, 8)],
             "attention": [(2, 3, 24)]}


WRONG = {it.id: (it.op, differences.broken(it).function) for it in differences.BREAKS} | {
    "residual": ("residual", partial(residual_backward, is_forgotten=True))}


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_gives_the_wrong_gradients_of_the_mistake_in_python(engine, fault):
    rng, (op, backward) = np.random.default_rng(0), WRONG[fault]
    arrays = [rng.standard_normal(shape) for shape in ARGUMENTS[op]]
    options = [2] * (op == "attention")
    y, cache = numpys(op)[0](*arrays, *options)
    dy = rng.standard_normal(y.shape)
    if op == "attention":
        wrong = joined_attention_backward(dy, cache, backward)
    else:
        wrong = backward(dy, dy if op == "residual" else cache)
    wrong = wrong if isinstance(wrong, tuple) else (wrong,)
    ours = engine.evaluate("""([fault, op, arrays, options, dy]) => {
        const E = engine(fault), put = ([values, shape]) => Object.assign(
          Float64Array.from(values), {shape}), d = put(dy);
        const [, cache] = E[op](...arrays.map(put), ...options);
        return E[`${op}_backward`](d, op === "residual" ? d : cache).map(g => Array.from(g));
    }""", [fault, op, *[[[a.ravel().tolist(), a.shape] for a in arrays], options,
                           [dy.ravel().tolist(), dy.shape]]])
    for mine, theirs in zip(ours, wrong, strict=True):
        np.testing.assert_allclose(mine, np.ravel(theirs), rtol=1e-6, atol=1e-9)


def test_a_model_with_a_fault_trains_beside_the_right_one(page):
    right = page.evaluate("playground.train(60)")
    page.get_by_role("button", name="Break it").click()
    page.get_by_role("button", name="A lost 1/√D").click()
    assert state(page)["faults"] == ["scale"]
    beside = page.evaluate("playground.train(60)")
    assert (beside["loss"], beside["accuracy"]) == (right["loss"], right["accuracy"])
    assert page.evaluate("latest.lanes[1].loss") != right["loss"]
    angles = page.evaluate("latest.lanes[1].angles")
    assert angles["output"] == pytest.approx(0, abs=0.1) and angles["h.0.ln_1"] > 1
    wait(page, "document.getElementById('verdict').innerText.includes('notices:')")
    assert page.locator(".cut").inner_text() == "dq = ds @ keys / math.sqrt(D)"
    assert page.locator(".put").inner_text() == "dq = ds @ keys"


# ------------------------------------------------------------------------ the address, the keys

def test_the_address_holds_the_state_and_back_undoes_a_step(page, visit):
    page.get_by_role("button", name=re.compile("^block 2: feed-forward")).click()
    page.get_by_role("button", name="Break it").click()
    page.get_by_role("button", name="A missing transpose").click()
    page.evaluate("playground.set({learning_rate: 0.02, seed: 3})")
    s = state(page)
    other = visit(page.url.partition("#")[1] + page.url.partition("#")[2])
    assert state(other) == s and other.evaluate("S.seed") == 3
    page.evaluate("history.back()")
    wait(page, "playground.state().learning_rate === 0.003")
    page.go_back()
    wait(page, "playground.state().faults.length === 0")
    page.go_back()
    page.go_back()
    wait(page, "playground.state().frozen.length === 4")


def test_everything_can_be_done_with_the_keys(page):
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.innerText "
                                  "|| document.activeElement.getAttribute('aria-label')"))
        if stops[-1] == "one" and stops.count("one") == 1:
            page.keyboard.press("Enter")
    assert stops.index("train") <= 2
    assert {"task", "train", "one", "reset", "seed", "slow", "rate", "batch"} <= set(stops)
    wait(page, "playground.state().step === 1")
    page.focus("#bits button:nth-child(1)")
    before = page.evaluate("document.activeElement.innerText")
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.innerText") != before
    assert "looks most at" in page.locator("#looking").inner_text()


def test_a_trunk_of_another_shape_runs_too(browser, tmp_path):
    playground.save(tmp_path / "page.html", "random:3x4x16", "majority")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())          # another model: no tour
    wait(page, "playground.state().agreement !== null")
    s = page.evaluate("playground.train(5)")
    assert s["agreement"] < 3e-5 and s["step"] == 5 and s["task"] == "majority"
    page.close()


def test_a_token_that_is_clicked_keeps_its_lines(page):
    box = page.locator("#picture").bounding_box()
    for text, needed in ("b3 needs a3 and b3", 2), ("Go to", 0):       # kept, and let go
        page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + 150)  # in the column of b3
        page.mouse.move(5, 5)
        wait(page, f"by('looking').innerText.startsWith('{text}')")
        assert page.locator(".needed").count() == needed
        wait(page, f"location.hash.includes('look=7') === {str(needed > 0).lower()}")


def test_the_bits_are_in_the_address(page, file, visit):
    page.evaluate("playground.set({bits: [1, 1, 0, 0, 1, 0, 1, 0, 1, 1]})")
    wait(page, "location.hash.includes('bits=1100101011')")
    other = visit(page.evaluate("location.hash"))
    wait(other, "latest !== null")
    assert other.evaluate("example.bits.join('')") == "1100101011"
    other.goto(file.as_uri() + f"#task=bit-memory&bits={'110' * 12}.2.{'10' * 6}")
    wait(other, "latest !== null && S.task === 'bit-memory'")
    assert other.evaluate("[example.which, example.visible.join('')]") == [2, "10" * 6]
    other.evaluate("playground.set({task: 'bit-xor'})")   # its bits are of another length
    wait(other, "latest !== null && S.task === 'bit-xor'")
    other.evaluate("playground.set({seed: 5, look: 3})")
    assert other.evaluate("[location.hash, S.bits]") == ["#seed=5&look=3", None]
