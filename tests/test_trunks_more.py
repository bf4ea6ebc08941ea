"""Mimetic trunks."""


import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt.layers import standard_normal
from minifpt.trunks.names import TrunkSpec

SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 49, "vocab_size": 256}
make = minifpt.trunks.get


# ---------------------------------------------------------------------------- mimetic


@pytest.mark.parametrize("layers, heads, channels", [(2, 2, 16), (1, 1, 12), (1, 4, 64)])
def test_mimetic_products_are_what_the_formula_says(layers, heads, channels):
    C, D, one = channels, channels // heads, np.eye(channels)
    trunk = make(f"mimetic:{layers}x{heads}x{C}", seed=3, dtype=np.float64)

    def z(name):
        return standard_normal((C, C), 3, name) / np.sqrt(C, dtype=np.float64)
    for i, block in enumerate(trunk.h):
        q, k, v = np.split(block.attn.c_attn.weight.data, 3, axis=1)
        product = v @ block.attn.c_proj.weight.data
        np.testing.assert_allclose(product, 0.4 * z(f"h.{i}.value_projection") - 0.4 * one,
                                   atol=1e-12)
        # The same, without knowing how Z is drawn.
        off = product[~one.astype(bool)]
        assert abs(np.diag(product).mean() + 0.4) < 5 * 0.4 / C
        assert abs(off.std() * np.sqrt(C) - 0.4) < 5 * 0.4 / np.sqrt(2 * off.size)
        for h in range(heads):
            part = np.s_[:, h * D:(h + 1) * D]
            product = q[part] @ k[part].T
            expected = 0.7 * z(f"h.{i}.query_key.{h}") + 0.7 * one
            assert np.linalg.matrix_rank(product) == D
            # No product of rank D is closer: what is left is as large as the next singular value.
            s = np.append(np.linalg.svd(expected, compute_uv=False), 0.0)
            assert np.linalg.norm(expected - product, 2) == pytest.approx(s[D], abs=1e-12)
            assert np.linalg.norm(expected - product) == pytest.approx(
                np.linalg.norm(s[D:]), abs=1e-12)
            # Both factors take their share.
            assert np.linalg.norm(q[part]) == pytest.approx(np.linalg.norm(k[part]))
        assert not block.attn.c_attn.bias.data.any() and not block.attn.c_proj.bias.data.any()


def test_mimetic_leaves_the_rest_as_random():
    for spread in ("", "@1.41"):
        a, b = make(f"mimetic:2x2x16{spread}", seed=1), make(f"random:2x2x16{spread}", seed=1)
        assert a.config == b.config and a.config.dropout == 0.1
        for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
            changed = ".attn." in name and name.endswith("weight")
            assert np.array_equal(p.data, q.data) != changed, name


def test_mimetic_seed_and_dtype():
    a, b, c = (make("mimetic:1x2x16", seed=s) for s in (0, 0, 1))
    double = make("mimetic:1x2x16", dtype=np.float64, dropout=0.3)
    assert double.config.dropout == 0.3
    for p, q, r, d in zip(*(t.parameters() for t in (a, b, c, double)), strict=True):
        assert p.data.dtype == np.float32 and d.data.dtype == np.float64
        np.testing.assert_array_equal(p.data, q.data)
        np.testing.assert_allclose(p.data, d.data, atol=1e-6)
        assert (p.data != r.data).any() or np.ptp(p.data) == 0
    heads = a.h[0].attn.c_attn.weight.data[:, :16].reshape(16, 2, 8)
    assert (heads[:, 0] != heads[:, 1]).all()             # each head has a draw of its own


@pytest.mark.parametrize("text, label", [
    ("mimetic", "mimetic"), ("mimetic:gpt2", "mimetic (gpt2)"), ("mimetic@1.41",
     "mimetic (spread 1.41)"), ("minigpt-language+attn=mimetic", "language + attn of mimetic")])
def test_mimetic_trunks_have_labels(text, label):
    assert TrunkSpec.parse(text).label == label
    assert TrunkSpec.parse("mimetic:1x2x16").config().n_embd == 16


@pytest.mark.parametrize("text, drawn", [
    ("minigpt-language", False), ("my-random.npz", False), ("random", True), ("mimetic", True),
    ("statistics:minigpt-language", True), ("lstm:1x8", True), ("mine.py:trunk", True),
    ("minigpt-language+ln=random", True), ("minigpt-language+ln=minigpt-bits", False)])
def test_only_random_trunks_are_drawn_from_the_seed(text, drawn):
    assert TrunkSpec.parse(text).drawn == drawn


@pytest.mark.parametrize("text, message", [
    ("mimetic:gpt3", "--model mimetic:gpt3: no shape 'gpt3', expected one of gpt2"),
    ("mimetic@0", "the spread is '0', expected a positive number"),
    ("mimetic@x", "the spread is 'x'")])
def test_wrong_mimetic_names_are_refused(text, message):
    with refused(message):
        make(text)
