"""Parameter groups and freeze masks."""

import dataclasses

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
    groups = {n.removeprefix("trunk."): p.group for n, p in model().named_parameters()}
    assert {*groups.values()} == set(GROUPS) - {"adapter"}
    parts = {"input": "input.", "output": "output.", "pos": "wpe.", "attn": ".attn.",
             "mlp": ".mlp.", "ln": "ln_"}
    assert groups == {name: next(group for group, part in parts.items() if part in name)
                      for name in groups}
    table = dict(minifpt.LanguageModel(CONFIG, seed=None).named_parameters())["wte.weight"]
    assert table.group == "input"                         # it stands where the input layer does


ALL_BUT_OUTPUT = {"input", "pos", "ln", "attn", "mlp"}


@pytest.mark.parametrize("text, frozen, patterns", [
    ("full", set(), ()), ("fpt", {"attn", "mlp"}, ()), ("output_only", ALL_BUT_OUTPUT, ()),
    ("output-only", ALL_BUT_OUTPUT, ()), (" ln , pos,", {"ln", "pos"}, ()),
    ("attn, h.1.ln_1.*,*.bias", {"attn"}, ("h.1.ln_1.*", "*.bias")),
    ("*bias,mlp", {"mlp"}, ("*bias",))])
def test_texts_are_parsed(text, frozen, patterns):
    mask = FreezeMask.parse(text)
    assert mask == FreezeMask(**dict.fromkeys(frozen, True), patterns=patterns)
    assert FreezeMask.parse(mask) is mask


@given(groups=st.sets(st.sampled_from(list(GROUPS))),
       patterns=st.lists(st.sampled_from(["h.0.*", "*.bias", "trunk.ln_f.*", "wpe.w?ight",
                                              "trunk?wpe?weight"])))
def test_the_text_of_a_mask_parses_to_the_mask(groups, patterns):
    mask = FreezeMask(**dict.fromkeys(groups, True), patterns=tuple(patterns))
    assert FreezeMask.parse(str(mask)) == mask


def test_equal_masks_compare_equal():
    assert str(FreezeMask.full()) == "full" and str(FreezeMask.fpt()) == "attn,mlp"
    assert len({FreezeMask.fpt(), FreezeMask.parse("attn,mlp"), FreezeMask()}) == 2
    assert FreezeMask.output_only() == FreezeMask.parse("output_only")
    assert len({FreezeMask.parse("h.0.*"), FreezeMask(patterns=["h.0.*"])}) == 1


@pytest.mark.parametrize("pattern", ["h.1.ln_1.weight", "trunk.h.1.ln_1.weight",
                                     "h.1.ln_1.w*", "trunk.h.1-2.ln_?.weight"])
def test_patterns_with_or_without_the_prefix(pattern):
    mask = FreezeMask(patterns=(pattern,))
    assert mask.frozen("trunk.h.1.ln_1.weight", "ln")
    assert mask.frozen("h.1.ln_1.weight", "ln") != pattern.startswith("trunk.")
    assert not mask.frozen("trunk.h.0.ln_1.weight", "ln")
    assert matches("trunk.h.1.ln_1.weight", pattern)


@pytest.mark.parametrize("text, is_frozen", [
    ("fpt", lambda name, group: group in ("attn", "mlp")),
    ("output_only", lambda name, group: group != "output"),
    ("input,h.0.ln_1.bias", lambda name, group: group == "input" or "h.0.ln_1.bias" in name),
    ("attn,*.bias", lambda name, group: group == "attn" or name.endswith("bias"))])
def test_a_mask_freezes_what_it_names_and_touches_no_number(text, is_frozen):
    """What is frozen loses its gradient."""
    m = model()
    before = [p.data.copy() for p in m.parameters()]
    for p in m.parameters():
        p.grad = p.data
    frozen = FreezeMask.parse(text).select(m)
    assert all(p.trainable for p in m.parameters())       # select changes nothing
    m.freeze(text)
    for name, p in m.named_parameters():
        assert frozen[name] == is_frozen(name, p.group)
        assert p.trainable is (p.grad is not None) is not frozen[name]
    np.testing.assert_equal([p.data for p in m.parameters()], before)
    m.freeze("full")
    assert all(p.trainable for p in m.parameters())


@pytest.mark.parametrize("thirds", [(0,), (1,), (0, 1)])
def test_a_third_of_the_attention_s_matrix_has_a_name(thirds):
    """Its gradient is 0; with all three the whole matrix is frozen."""
    m, names = model(), [f"h.0.attn.c_attn.weight.{part}" for part in ("queries", "keys", "values")]
    m.freeze(",".join(names[i] for i in thirds))
    weight = m.trunk.h[0].attn.c_attn.weight
    y, cache = m.forward(np.ones((1, 2, 2)))
    m.backward(np.ones_like(y), cache)
    assert weight.trained_size() == 2 * 2 * (3 - len(thirds))
    assert not any(weight.grad[:, 2 * i:2 * i + 2].any() for i in thirds)
    assert weight.grad[:, 4:].any()
    m.freeze(",".join(names))
    assert not weight.trainable and m.trunk.h[0].attn.c_attn.bias.trainable
    m.freeze("*.weight.keys")
    assert weight.trainable and weight.frozen_columns == (slice(2, 4),)
    m.freeze("full")
    assert weight.frozen_columns == ()


@pytest.mark.parametrize("text, trained", [
    ("only:ln", lambda name: "ln_" in name),
    ("only: input, output,h.1.ln_1.*", lambda name: "put." in name or "h.1.ln_1." in name),
    ("only:h.1-12.ln_*", lambda name: "h.1.ln_" in name or "h.2.ln_" in name)])
def test_only_trains_what_it_names_and_freezes_the_rest(text, trained):
    m = minifpt.FPT(minifpt.GPT2(dataclasses.replace(CONFIG, n_layer=3), seed=None), 2, 2)
    m.freeze(text)
    for name, p in m.named_parameters():
        assert p.trained_size() == (p.data.size if trained(name) else 0)
    assert str(FreezeMask.parse(text)) == text.replace(" ", "") == m.recipe.freeze


def test_a_range_is_one_of_blocks():
    """Its numbers are whole parts of a name: 1-3 is neither 10 nor 31."""
    blocks = [i for i in range(40) if matches(f"trunk.h.{i}.ln_1.weight", "h.1-3.*")]
    assert blocks == [1, 2, 3]
    assert [i for i in range(40) if matches(f"h.{i}.ln_1.weight", "h.9-11.ln_1.*")] == [9, 10, 11]
    assert not matches("h.1-3x.weight", "h.1-3.*") and matches("h.x1-3.weight", "h.x1-3.*")


@pytest.mark.parametrize("name", ["random:2x4x16", "random:llama:2x4/2x16", "random:t5:2x4x16",
                                  "random:bert:2x4x16", "random:vit:2x4x16",
                                  "random:longformer:4:2x4x16"])
def test_each_head_s_queries_keys_and_values_have_a_name(name):
    """A mask freezes, or trains, the columns that only this head reads."""
    m = minifpt.FPT(minifpt.trunks.get(name), 2, 2)
    attn, x = m.trunk.h[1].attn, np.ones((1, 3, 2), np.float32)
    for text in "h.1.*.queries.3,*.keys.1,*.values", "only:h.1.*.queries.3,h.1.*.keys":
        m.freeze(text)
        y, cache = m.forward(x + np.arange(3, dtype=np.float32)[:, None])
        m.backward(y * y, cache)
        if hasattr(attn, "c_attn"):
            grads = np.split(attn.c_attn.weight.grad, 3, axis=1)
        else:
            grads = [layer.weight.grad for layer in (attn.q_proj, attn.k_proj, attn.v_proj)]
        heads = [None if g is None else [bool(h.any()) for h in np.split(g, g.shape[1] // 4, 1)]
                 for g in grads]
        if not text.startswith("only:"):
            assert heads[0] == [True, True, True, False]
            assert heads[1] == [i != 1 for i in range(len(heads[1]))]
            assert not any(heads[2] or ())
        else:
            assert heads[0] == [False, False, False, True] and all(heads[1])
            assert not any(heads[2] or ()) and m.trunk.h[0].learns() is False
        m.zero_grad()


def unknown_group():
    m = model()
    m.trunk.wpe.weight.group = "place"
    return m


@pytest.mark.parametrize("call, message", [
    *((lambda text=text: FreezeMask.parse(text), f"^freeze: {message}") for text, message in (
        *((text, "'.* is neither a preset ") for text in ("atn", "attn,mpl", "attn mlp", "FPT")),
        *((f"{prefix}{text}", "'.*' has brackets, .*: a range of blocks is h.3-5.*")
          for text in ("h.[0-10].*", "h.[1", "attn,h.1].*") for prefix in ("", "only:")),
        ("h.5-3.*", "'h.5-3.*' counts down, expected 3-5"), ("only:", "empty"),
        ("attn,only:h.3.*", "write only: once, at the start"), ("only:lnn", "'lnn' .did"),
        ("w", "'w' is neither .* nor a pattern, which has a dot, [*] or [?]"),
        *((text, "a preset stands alone")
          for text in ("fpt,full", "fpt,h.1.ln_1.*", "attn,output-only", "only:fpt")),
        ("", "empty"), (3, "3, expected a FreezeMask, or its text"))),
    *((lambda patterns=patterns: FreezeMask(patterns=patterns),
       "^FreezeMask: patterns is .*, expected a tuple of texts")
      for patterns in ("*.bias", (1,), ("*.bias", None))),
    (lambda: FreezeMask(attn=True, only=("ln",)), "^FreezeMask: only= stands alone"),
    (lambda: FreezeMask(only=("ln", "x.*")).apply(model()), "^freeze: the pattern 'x.*' matches"),
    (lambda: FreezeMask(patterns=("h.9.ln_1.bias",)).apply(model()),
     r"the nearest name is 'trunk.h.\d.ln_1.bias'"),
    (lambda: FreezeMask("fpt"), "^FreezeMask: input is 'fpt', expected True or False"),
    (lambda: FreezeMask(attn="yes"), "^FreezeMask: attn is 'yes', expected True or False"),
    (lambda: FreezeMask().frozen("a.b", "tok"),
     "^parameter 'a.b': its group is 'tok', expected one of input, pos, ln, attn, mlp, output, ad"),
    *((lambda patterns=patterns: FreezeMask(patterns=patterns).apply(model()),
       "^freeze: the pattern '.*' matches no parameter")
      for patterns in (("h.2.*",), ("h.0.*", "x.*"), ("ln_1.*",), ("wte.*",)))])
def test_wrong_masks_are_refused(call, message):
    with refused(message):
        call()


@pytest.mark.parametrize("m, mask", [(unknown_group(), "output_only"), (model(), "attn,x.*")])
def test_a_refused_mask_freezes_nothing_half_way(m, mask):
    with refused("place|x.*"):
        m.freeze(mask)
    assert all(p.trainable for p in m.parameters())
