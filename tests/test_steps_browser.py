"""The page of ``minifpt steps`` in a real browser: stepped through with the keys alone."""

import re

import numpy as np
import pytest

import minifpt

pytestmark = pytest.mark.slow
FIRST = ["trunk.ln_f.layer_norm", "trunk.h.1.attn.c_proj.linear", "trunk.wpe.positions",
         "trunk.h.1.attn.attention"]


@pytest.fixture(scope="module")
def steps():
    task = minifpt.tasks.get("bit-xor", n=4)
    config = minifpt.GPT2Config(2, 2, 32, 32, 32, dropout=0.0)
    model = minifpt.FPT(minifpt.GPT2(config, seed=0), 1, 2, 4, seed=0)
    model.freeze(minifpt.FreezeMask.fpt())
    return minifpt.steps(model, task, progress=False)


@pytest.fixture
def page(steps, browser, tmp_path):
    """The page, which must ask for nothing and complain of nothing."""
    steps.save(tmp_path / "step.html")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong = []
    page.on("console", lambda m: wrong.append(m.text))
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("request", lambda r: wrong.append(r.url) if "step.html" not in r.url else None)
    page.goto((tmp_path / "step.html").as_uri())
    page.evaluate("state.all = true; render()")           # not the short path alone
    yield page
    assert wrong == []
    page.close()


def test_a_docstring_with_html_is_shown_and_a_fault_that_changes_nothing_is_off(browser, tmp_path):
    task = type("Task", (minifpt.tasks.BitXOR,), {"__doc__": "Has <!-- <script> in it."})(n=2)
    model = minifpt.FPT.for_task(task, "random:1x2x8")
    minifpt.steps(model, task, batch_size=1, differences=4, progress=False).save(
        tmp_path / "step.html")
    page = browser.new_page()
    page.goto((tmp_path / "step.html").as_uri())
    assert "<!-- <script>" in page.evaluate("D.about") and title(page)
    assert page.get_by_role("switch", name="One example for all").is_disabled()
    assert page.get_by_role("switch", name="A mean for a sum").is_enabled()
    page.keyboard.press("3")
    assert title(page).startswith("What goes in")
    page.close()


def test_an_address_without_a_screen_says_so_until_another_is_chosen(page):
    page.evaluate("location.hash = '#trunk.h.9.attn'")
    until(page, "!document.getElementById('notice').hidden")
    assert "no screen “trunk.h.9.attn”" in page.locator("#notice").inner_text()
    page.evaluate("location.hash = '#loss'")
    until(page, "document.getElementById('notice').hidden")
    assert title(page) == "The loss"


def go(page, steps, op, back=False, part=""):
    """Go to the first step of an operation, and return it."""
    i, step = next((i, s) for i, s in enumerate(steps.data["steps"])
                   if s["op"] == op and s["back"] == back and part in s["name"])
    page.evaluate(f"go(frameOf[{i}])")
    return step


def title(page):
    return page.locator("#frame h2").get_attribute("data-name")


def test_from_the_first_frame_to_the_last_with_the_key(page, steps):
    seen = [title(page)]
    total = page.evaluate("frames.length")
    for _ in range(total + 2):                            # and two times too often
        page.keyboard.press("ArrowRight")
        seen.append(title(page))
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        assert page.locator("#ribbon .now").count() == 1
    operations = [s["name"] + ", backward" * s["back"] for s in steps.data["steps"]]
    assert [t for t in seen[:total] if t in operations] == operations
    assert seen[0].startswith("What goes in") and seen[-1] == "Adam"
    page.keyboard.press("Home")
    assert title(page) == seen[0]
    page.keyboard.press("l")
    assert title(page) == "The loss"
    page.keyboard.press("a")
    assert title(page) == "Adam"


def test_the_short_path_has_twelve_screens_with_words_and_addresses(page, steps):
    page.evaluate("state.all = false; render()")
    seen = []
    for _ in range(12):
        seen.append([page.locator("#frame h2").inner_text(), page.evaluate("location.hash")])
        page.keyboard.press("ArrowRight")
    assert page.evaluate("path.length") == 12 and len({address for _, address in seen}) == 12
    assert ["attention of block 1", "#trunk.h.0.attn.attention"] in seen
    assert seen[10] == ["norm before attention of block 1, backward",
                        "#trunk.h.0.ln_1.layer_norm/back"]
    page.go_back()
    until(page, "location.hash === '#trunk.h.0.ln_1.layer_norm/back'")
    page.goto(page.url.split("#")[0] + "#trunk.h.1.attn.attention/back")
    page.reload()
    assert page.locator("#frame h2").inner_text() == "attention of block 2, backward"
    page.get_by_role("button", name=f"All {len(steps.data['steps'])} operations").click()
    assert page.get_by_role("button", name="The short path of 12").count() == 1
    assert f"operation {page.evaluate('frames[state.at].i') + 1} of {len(steps.data['steps'])}" in (
        page.locator(".top").inner_text())


def test_the_keys_jump_over_blocks(page):
    seen = []
    for _ in range(9):
        page.keyboard.press("ArrowDown")
        seen.append(title(page))
    assert seen[1:5] == ["trunk.h.0.ln_1.layer_norm", "trunk.h.1.ln_1.layer_norm",
                         "trunk.ln_f.layer_norm", "The loss"]
    assert seen[6] == "trunk.h.1.mlp.dropout, backward"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert title(page) == "trunk.h.1.mlp.dropout, backward"


def test_the_numbers_are_those_of_the_step(page, steps):
    rng = np.random.default_rng(0)
    for n in rng.integers(0, len(steps.data["arrays"]), 40):
        values = steps.array(n)
        theirs = page.evaluate(f"Array.from(array({n}).values)")
        assert np.array_equal(np.array(theirs, values.dtype).reshape(values.shape), values)


def test_a_number_can_be_asked_with_the_mouse_and_with_the_keys(page, steps):
    row = next(r for r in steps.data["differences"] if r["name"] == "w"
               and steps.data["steps"][r["step"]]["op"] == "layer_norm")
    page.evaluate(f"go(frameOf[{row['step']}])")
    canvas = page.locator("figure", has_text="dw ").locator("canvas")
    canvas.hover(position={"x": 4, "y": 17})              # below the indices
    dy = page.locator("figure", has_text="dy ").locator("canvas")

    def seen(locator):
        return locator.evaluate("e => e.toDataURL()")
    plain = seen(canvas)
    canvas.click(position={"x": 4, "y": 17})
    asked = page.locator("#asked")
    assert seen(canvas) != plain                          # the cell is marked
    assert canvas.bounding_box()["y"] + 33 < asked.bounding_box()["y"] < 800
    example = re.search(r"= dy\[(\d),\d,0\] · xhat\[\1,\d,0\]", asked.inner_text())[1]
    page.get_by_label("Example").get_by_role("button", name=example).click()
    assert f"outlined: those of example {example}" in asked.inner_text()
    marked = seen(dy)
    assert "= 16 terms: 4 examples × 4 tokens" in asked.inner_text()
    assert "dw = sum(dy * xhat)" in asked.inner_text()
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):     # the first one shows the first entry
        page.keyboard.press(key)
    assert "dw[1] of trunk.ln_f.weight" in asked.inner_text()
    assert "dw 1 is" in page.locator("#said").inner_text()
    page.keyboard.press("Escape")                         # closes the answer
    assert asked.inner_text() == ""
    page.keyboard.press("Escape")                         # leaves the matrix
    assert seen(canvas) == plain and seen(dy) != marked
    page.keyboard.press("ArrowRight")
    assert not title(page).startswith("trunk.ln_f")


def test_what_a_number_is_made_of_adds_up(page):
    """The terms that the page puts into a formula sum to the entry, where none is cut."""
    sums = page.evaluate("""() => S.flatMap(s => s.out.flatMap(p => {
        if (!p.formula || !p.formula.over) return [];
        const a = array(p.array), at = a.shown.map(n => Math.floor(n / 2));
        const {all, many, plus} = products(p.formula, at);
        return [[s.back, all.length === many, valueAt(a, at),
                 all.reduce((t, x) => t + x.product, plus ? plus.product : 0),
                 Math.max(...all.map(x => Math.abs(x.product)))]];
      }))""")
    whole = [row for row in sums if row[1] or not row[0]]
    assert [len(sums), sum(back for back, *_ in sums)] == [42, 30] and len(whole) > 32
    assert all(abs(total - value) <= 1e-5 * most for _, _, value, total, most in whole)


def test_the_keyboard_stays_where_it_was(page):
    page.locator("#ribbon .cell").nth(2).focus()
    page.keyboard.press("Enter")
    assert title(page) == "input.linear"
    assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "step"
    page.locator("[data-key=next]").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.key") == "next"
    page.keyboard.press("ArrowRight")
    assert title(page) == "trunk.wpe.positions"


def test_frozen_is_hatched_and_says_why(page, steps):
    go(page, steps, "linear", True, ".h.0.")
    never = page.locator(".never")
    assert never.count() == 2 and "never computed: frozen" in never.first.inner_text()
    assert "multiply-adds" in never.first.inner_text()


def test_the_stack_grows_and_is_taken(page, steps):
    def plates():
        return int(page.locator("#stack h3").inner_text().split(": ")[1].split(",")[0])
    page.evaluate("go(frameOf[0])")
    low = plates()
    page.evaluate("go(frameOf.loss)")
    high = plates()
    page.evaluate("go(frameOf[firstBack])")
    assert page.locator("#stack li.popped").count() == 1
    page.evaluate("go(frameOf[S.length - 1])")
    assert low < high and plates() == 0                   # the last one is taken
    page.keyboard.press("ArrowRight")
    assert title(page) == "Adam"


@pytest.mark.parametrize("n", range(len(FIRST)))
def test_each_switch_turns_the_first_wrong_operation_red(page, n):
    switch = page.locator(f"#break{n}")
    page.keyboard.press(str(n + 1))
    assert switch.get_attribute("aria-checked") == "true"
    assert title(page) == f"{FIRST[n]}, backward"
    red = page.locator("#ribbon .first")
    assert red.count() == 1 and red.inner_text() == "✗"
    marks = page.locator("#frame figcaption .tag.right")
    assert marks.count() == page.locator("#frame figure canvas").count() > 0
    assert page.locator(".source .put").count() >= 1 and page.locator(".source .cut").count() == 1
    assert ("✗ Gradient check: wrong" in page.locator("#frame").inner_text()) == (n in (0, 2))
    page.keyboard.press("ArrowLeft")                      # what ran before it is right
    assert "The fault does not reach its gradient" in page.locator("#frame").inner_text()
    page.keyboard.press("a")
    assert "update of the right step" in page.locator("#frame .fault").inner_text()
    switch.click()                                        # mends it
    assert title(page).startswith("What goes in")         # where the reader was
    assert switch.get_attribute("aria-checked") == "false"
    assert page.locator("#ribbon .first, #ribbon .wrong").count() == 0
    assert marks.count() == 0


def test_the_first_screen_explains_its_words_first_and_draws_counts_in_proportion(page, steps):
    first = page.locator("#frame .two > div").first.locator("> *").first
    assert "Words on this page" in first.inner_text()
    widths = page.locator("#frame .bar").evaluate_all("bars => bars.map(b => b.offsetWidth)")
    counts = [n for n, _ in steps.data["counts"].values()]
    assert widths == pytest.approx([150 * n / max(counts) for n in counts], abs=1.5)


def luminance(page):
    red, green, blue = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    return 0.3 * red + 0.6 * green + 0.1 * blue


def test_dark_where_the_reader_wants_dark_but_not_on_paper(page):
    page.evaluate("go(frameOf[firstBack + 2])")

    def corner():
        return page.evaluate("document.querySelector('#frame canvas').toDataURL()")
    assert luminance(page) > 200
    light = corner()
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("luminanceWas => document.querySelector('#frame canvas')"
                           ".toDataURL() !== luminanceWas", arg=light)
    assert luminance(page) < 50                           # and the matrices were drawn anew
    text = page.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
    assert min(text) > 180
    page.emulate_media(color_scheme="dark", media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert luminance(page) > 200 and corner() == light


def test_on_paper_nothing_lies_on_the_list_of_parameters(page):
    page.set_viewport_size({"width": 720, "height": 1000})
    page.keyboard.press("a")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    last = page.locator(".list .row").last.bounding_box()
    assert page.locator("#frame .arrays").bounding_box()["y"] >= last["y"] + last["height"]
    assert page.locator("footer").bounding_box()["y"] >= last["y"] + last["height"]
    assert not page.locator("#break0").is_visible() and not page.locator("kbd").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720


def test_a_matrix_says_its_least_value(page, steps):
    step = go(page, steps, "layer_norm", True)
    part = next(p for p in step["in"] if p["name"] == "rstd")
    label = page.locator("figure", has_text="rstd ").locator("canvas").get_attribute("aria-label")
    low, high = re.search(r"values from (\S+) to (\S+);", label).groups()
    values = steps.array(part["array"])
    assert [float(low), float(high)] == pytest.approx([values.min(), values.max()], rel=1e-3)
    assert float(low) > 0


def test_the_keyboard_reaches_the_blocks(page):
    page.keyboard.press("Tab")                            # to where the reader is in the strip
    for unfolded in (3, 2):                               # columns: both ends, and block 1
        while not page.evaluate("document.activeElement.innerText").endswith("block 1"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.closest('#ribbon') !== null")
        page.keyboard.press("Enter")
        assert page.locator("#ribbon .columns").count() == unfolded


def test_examples_and_heads(page, steps):
    go(page, steps, "softmax")
    before = page.evaluate("document.querySelector('#frame canvas').toDataURL()")
    page.get_by_label("Example").get_by_role("button", name="2").click()
    page.get_by_label("Head").get_by_role("button", name="1").click()
    assert page.evaluate("document.querySelector('#frame canvas').toDataURL()") != before
    page.locator("#frame canvas").first.hover(position={"x": 40, "y": 20})
    assert page.locator("#tip").inner_text().startswith("y[2, 1, 0, 0] = ")
    assert page.locator("#tip").inner_text().endswith(", a1 → a1")


def contrast(one, other):
    """The contrast of two sRGB colours after WCAG 2.2."""
    light, dark = sorted((sum(share * (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)
                              for share, v in zip((0.2126, 0.7152, 0.0722), color, strict=True))
                          for color in (np.divide(one, 255), np.divide(other, 255))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_digits_have_contrast_on_every_colour(page, scheme):
    page.emulate_media(color_scheme=scheme)
    cells = page.evaluate("""() => [true, false].flatMap(positive =>
        Array.from({length: 401}, (_, i) => (i - 200) / 200).concat(NaN).map(v => {
          const rgb = color(v, 1, positive); return [rgb, inkOn(rgb)]; }))""")
    inks = {"#000": (0, 0, 0), "#fff": (255, 255, 255)}
    assert {ink for _, ink in cells} == {*inks}
    assert min(contrast(rgb, inks[ink]) for rgb, ink in cells) >= 4.5


def test_a_matrix_is_a_grid_and_escape_gives_the_focus_back(page, steps):
    step = go(page, steps, "linear", part=".h.0.")
    grid = page.get_by_role("grid", name=re.compile("^y, "))
    grid.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    active = page.evaluate("document.activeElement.getAttribute('aria-activedescendant')")
    cell = page.locator(f"#{active}")
    assert cell.get_attribute("role") == "gridcell" and cell.get_attribute(
        "aria-colindex") == "2" and cell.evaluate("e => e.parentElement.ariaRowIndex") == "2"
    number = steps.array(step["out"][0]["array"])[0, 1, 1]
    assert float(cell.inner_text().replace("−", "-")) == pytest.approx(number, rel=1e-3)
    page.keyboard.press("Enter")                          # forward numbers answer, too
    asked = page.locator("#asked")
    assert "y = x @ w + b" in asked.inner_text() and "+ b[1]" in asked.inner_text()
    page.locator("#asked .close").focus()
    page.keyboard.press("Escape")
    assert asked.inner_text() == ""
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("y, ")


def test_an_entry_with_a_difference_says_that_they_agree(page, steps):
    for row in steps.data["differences"][::15]:
        page.evaluate(f"go(frameOf[{row['step']}]); state.asked = {{step: {row['step']}, "
                      f"name: 'd{row['name']}', at: {list(row['at'])}}}; answer()")
        assert "✓ they agree" in page.locator("#asked").inner_text()


def until(page, condition):
    """Wait for a condition in JavaScript; the page's policy forbids ``wait_for_function``."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never: {condition}")


def test_attention_s_map_is_above_the_fold(page):
    page.evaluate("go(frame_of('attention', false, ''))")
    box = page.locator("#frame figure").first
    assert "probabilities" in box.inner_text()
    assert box.bounding_box()["y"] + box.bounding_box()["height"] < 800


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_screen_is_wider_than_the_window_or_has_a_control_without_a_name(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    for n in range(0, page.evaluate("frames.length")):
        page.evaluate(f"go({n})")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, title(page)
        assert page.evaluate("""[...document.querySelectorAll("button,input,canvas:not(button *)")]
          .filter(e => !(e.innerText || e.getAttribute("aria-label"))).length""") == 0, title(page)


def test_without_scripts_it_lists_the_operations(steps, browser, tmp_path):
    steps.save(tmp_path / "step.html")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "step.html").as_uri())
    text = page.locator("body").inner_text()
    assert "needs JavaScript" in text and "trunk.h.0.attn.softmax" in text and "Loading" not in text
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, axe, scheme):
    page.emulate_media(color_scheme=scheme)
    page.evaluate("state.all = false; render()")          # the short path, as the page opens
    assert axe(page) == []


def test_in_a_notebook(steps, browser):
    page = browser.new_page()
    page.set_content(steps._repr_html_())
    assert page.frame_locator("iframe").locator("#frame h2").inner_text().startswith("What goes")
    page.close()


def test_a_weight_stands_beside_its_input_and_the_result_is_in_sight(page):
    page.keyboard.press("ArrowRight")
    x, w, _, y = (page.locator(".middle figure").nth(n).bounding_box() for n in range(4))
    assert w["x"] >= x["x"] + x["width"] and abs(w["y"] - x["y"]) < 40
    assert y["y"] + y["height"] <= 800
    assert page.locator(".middle .sign").all_inner_texts() == ["@", "+", "="]
