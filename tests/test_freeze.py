"""Parameter groups and freeze masks."""

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt.freeze import GROUPS, FreezeMask, matches

CONFIG = minifpt.GPT2Config(n_layer=2, n_head=1, n_embd=2, n_positions=3, vocab_size=4)


def model():
    return minifpt.FPT(minifpt.GPT2(CONFIG), 2, 2)


def test_each_parameter_is_in_its_group():
    """The layer that owns a parameter says its group; those of a model without an
    adapter are the paper's."""
    groups = {n: p.group for n, p in model().named_parameters()}
    assert {group for group in groups.values()} == set(GROUPS) - {"adapter"}
    for name, group in groups.items():
        name = name.removeprefix("trunk.")
        want = next(group for group, part in {
            "input": "input.", "output": "output.", "pos": "wpe.", "attn": ".attn.",
            "mlp": ".mlp.", "ln": "ln_"}.items() if part in name)
        assert group == want, name
    table = dict(minifpt.LanguageModel(CONFIG, seed=None).named_parameters())["wte.weight"]
    assert table.group == "input"                         # it stands where the input layer does


def test_an_unknown_group_is_refused():
    with pytest.raises(ValueError, match="^parameter 'a.b': its group is 'tok', expected one of "
                                         "input, pos, ln, attn, mlp, output, adapter$"):
        FreezeMask().frozen("a.b", "tok")
    m = model()
    m.trunk.wpe.weight.group = "place"
    with pytest.raises(ValueError, match="'trunk.wpe.weight': its group is 'place'"):
        m.freeze(FreezeMask.output_only())
    assert all(p.trainable for p in m.parameters())       # and nothing was frozen half-way


@pytest.mark.parametrize("text, frozen", [
    ("full", set()), ("fpt", {"attn", "mlp"}), ("output_only", set(GROUPS) - {"output", "adapter"}),
    ("output-only", set(GROUPS) - {"output", "adapter"}), ("attn,mlp", {"attn", "mlp"}),
    (" ln , pos,", {"ln", "pos"}), ("input", {"input"})])
def test_groups_are_parsed(text, frozen):
    mask = FreezeMask.parse(text)
    assert {g for g in GROUPS if getattr(mask, g)} == frozen and mask.patterns == ()


def test_presets_freeze_their_groups():
    assert FreezeMask.parse("fpt") == FreezeMask.fpt() == FreezeMask(attn=True, mlp=True)
    assert FreezeMask.parse("full") == FreezeMask.full() == FreezeMask()
    assert FreezeMask.parse("output_only") == FreezeMask.output_only()


def test_patterns_are_parsed():
    mask = FreezeMask.parse("attn, h.1.ln_1.*,*.bias")
    assert mask == FreezeMask(attn=True, patterns=("h.1.ln_1.*", "*.bias"))
    assert mask.select(model()) == {
        n: ".attn." in n or "h.1.ln_1" in n or n.endswith("bias")
        for n, _ in model().named_parameters()}


def test_a_pattern_without_a_dot_and_the_text_of_a_mask():
    mask = FreezeMask.parse("*bias,attn")
    assert mask == FreezeMask(attn=True, patterns=("*bias",)) and str(mask) == "attn,*bias"
    assert str(FreezeMask()) == "full" and str(FreezeMask.fpt()) == "attn,mlp"


@pytest.mark.parametrize("patterns", ["*.bias", (1,), ("*.bias", None)])
def test_patterns_other_than_texts_are_refused(patterns):
    with pytest.raises(ValueError, match="^FreezeMask: patterns is .*, expected a tuple of texts"):
        FreezeMask(patterns=patterns)


@pytest.mark.parametrize("pattern", ["h.1.ln_1.weight", "trunk.h.1.ln_1.weight",
                                     "h.1.ln_1.w*", "trunk.h.[1].ln_1.weight"])
def test_patterns_with_or_without_the_prefix(pattern):
    mask = FreezeMask(patterns=(pattern,))
    assert mask.frozen("trunk.h.1.ln_1.weight", "ln")
    assert mask.frozen("h.1.ln_1.weight", "ln") != pattern.startswith("trunk.")
    assert not mask.frozen("trunk.h.0.ln_1.weight", "ln")
    assert matches("trunk.h.1.ln_1.weight", pattern)


@pytest.mark.parametrize("text, message", [
    *((text, "'.* is neither a preset ") for text in ("atn", "attn,mpl", "attn mlp", "FPT")),
    ("fpt,full", "a preset stands alone"), ("fpt,h.1.ln_1.*", "a preset stands alone"),
    ("attn,output-only", "a preset stands alone"), ("", "empty")])
def test_wrong_masks_are_refused(text, message):
    with refused(f"^freeze: {message}"):
        FreezeMask.parse(text)


@given(groups=st.sets(st.sampled_from(list(GROUPS))),
       patterns=st.lists(st.sampled_from(["h.0.*", "*.bias", "trunk.ln_f.*", "wpe.w?ight"])))
def test_the_text_of_a_mask_parses_to_the_mask(groups, patterns):
    mask = FreezeMask(**dict.fromkeys(groups, True), patterns=tuple(patterns))
    assert FreezeMask.parse(str(mask)) == mask


def test_apply_sets_and_unsets():
    m = model()
    for text in ("fpt", "output_only", "input,h.0.ln_1.bias", "full"):
        mask = FreezeMask.parse(text)
        mask.apply(m)
        for name, p in m.named_parameters():
            assert p.trainable is not mask.frozen(name, p.group)
        assert mask.select(m) == {n: not p.trainable for n, p in m.named_parameters()}
    assert all(p.trainable for p in m.parameters())


def test_freeze_touches_no_data_and_drops_gradients_of_what_is_frozen():
    m = model()
    before = [p.data.copy() for p in m.parameters()]
    for p in m.parameters():
        p.grad = p.data
    m.freeze(FreezeMask.fpt())
    assert all((p.grad is not None) == p.trainable for p in m.parameters())
    np.testing.assert_equal([p.data for p in m.parameters()], before)


def test_select_changes_no_parameter():
    m = model()
    assert sum(FreezeMask.fpt().select(m).values()) == 16
    assert all(p.trainable for p in m.parameters())


@pytest.mark.parametrize("patterns", [("h.2.*",), ("h.0.*", "x.*"), ("ln_1.*",), ("wte.*",)])
def test_a_pattern_that_matches_nothing_is_refused(patterns):
    m = model()
    with pytest.raises(ValueError, match="^freeze: the pattern '[^\n]*' matches no parameter"):
        FreezeMask(patterns=patterns).apply(m)
    assert all(p.trainable for p in m.parameters())       # and nothing was frozen half-way


def test_equal_masks_compare_equal():
    assert len({FreezeMask.fpt(), FreezeMask.parse("attn,mlp"), FreezeMask()}) == 2
    assert len({FreezeMask.parse("h.0.*"), FreezeMask(patterns=["h.0.*"])}) == 1
