"""The LSTM: its formula, its trunk under any mask, and the trunk as ``--model`` names it."""

import itertools
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from conftest import rng
from hypothesis import example, given
from hypothesis import strategies as st

import minifpt
from minifpt import fast
from minifpt import functional as F
from minifpt.trunks.lstm import LSTM, LSTMConfig
from minifpt.trunks.names import TrunkSpec

SMALL = LSTMConfig(n_layer=2, n_embd=4, n_positions=7, dropout=0.3, residual=True, positions=True)


def inputs(seed=0, B=2, T=5, C=3, D=4, dtype=np.float64):
    """x, w_ih, w_hh and b."""
    shapes = (B, T, C), (C, 4 * D), (D, 4 * D), (4 * D,)
    return [rng(seed, i).standard_normal(s).astype(dtype) for i, s in enumerate(shapes)]


@pytest.fixture
def trunk(randomise):
    """Two layers with all that there is, in float64."""
    return randomise(LSTM(SMALL, dtype=np.float64))


# ---------------------------------------------------------------------------- operation


@given(st.lists(st.sampled_from([3e38, -3e38, 1e30, 1e19, 1.0, 0.0, 1e-45]), min_size=52,
                max_size=52))
@example([3e38] * 52)
@example([0, 0] + [3e38] * 4 + [0, 0] * 3 + [0, 0, -3e38, -3e38, 0, 0, 0, 0] * 2
         + [0, 0, 3e38, 3e38, 0, 0, 0, 0] * 2 + [3e38, 3e38, -3e38, -3e38] + [3e38] * 4)
def test_lstm_is_finite_for_finite_numbers(numbers):
    """The last example: a forget gate's -inf from the token meets its inf from the state."""
    x, w_ih, w_hh, b = (part.reshape(shape) for part, shape in zip(
        np.split(np.array(numbers, np.float32), [12, 28, 44]),
        ((2, 3, 2), (2, 8), (2, 8), (8,)), strict=True))
    y, cache = fast.lstm(x, w_ih, w_hh, b)
    assert y.dtype == np.float32 and (np.abs(y) <= 1).all()
    assert (np.abs(cache.cell) <= x.shape[1]).all()
    y, cache = fast.lstm(x, *inputs(dtype=np.float32, C=2, D=2)[1:])
    assert all(np.isfinite(grad).all() for grad in fast.lstm_backward(np.ones_like(y), cache))


# -------------------------------------------------------------------------------- trunk


@pytest.mark.parametrize("residual, positions", [*itertools.product([False, True], repeat=2)])
def test_a_trunk_equals_the_composition_of_its_operations(randomise, residual, positions):
    """The composition that the docstrings say."""
    trunk = randomise(LSTM(replace(SMALL, residual=residual, positions=positions),
                           dtype=np.float64))
    data = {n: p.data for n, p in trunk.named_parameters()}
    x = want = rng(1).standard_normal((2, 5, 4))
    if positions:
        want = want + data["wpe.weight"][:5]
    for i in range(2):
        ln = F.layer_norm(want, *(data[f"h.{i}.ln_1.{n}"] for n in ("weight", "bias")))[0]
        h = F.lstm(ln, *(data[f"h.{i}.lstm.{n}"] for n in ("weight_ih", "weight_hh", "bias")))[0]
        want = want + h if residual else h
    want, _ = F.layer_norm(want, data["ln_f.weight"], data["ln_f.bias"])
    np.testing.assert_allclose(trunk.forward(x)[0], want, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------ initialisation


def test_initialisation_is_pytorch_s():
    """Uniform within 1 / sqrt(C), as PyTorch's; at another spread the same numbers, scaled."""
    config = LSTMConfig(2, 64, 100, positions=True)
    data = {n: p.data for n, p in LSTM(config, 3).named_parameters()}
    for name, w in data.items():
        if ".lstm." in name:
            assert 0.99 / 8 < np.abs(w).max() <= 1 / 8 or w.ndim == 1, name
            assert w.std() == pytest.approx(1 / math.sqrt(3 * 64), rel=0.02 if w.ndim == 2 else 0.2)
            assert abs(w.mean()) < 5 * w.std() / math.sqrt(w.size)
        elif "ln" in name:
            assert (w == name.endswith("weight")).all()
    assert data["wpe.weight"].std() == pytest.approx(0.02, rel=0.05)
    wide = LSTM(replace(config, initializer_range=0.25), 3).h[1].lstm.weight_hh.data
    np.testing.assert_allclose(wide, 0.25 * math.sqrt(3 * 64) * data["h.1.lstm.weight_hh"],
                               rtol=1e-5)


def test_a_seed_means_what_it_meant():
    """Its generators are not to change, or no run could be repeated with a later version."""
    default, drawn = (dict(LSTM(SMALL, *seed).named_parameters()) for seed in ((), (0,)))
    for name in ("wpe.weight", "h.0.lstm.weight_ih", "h.1.lstm.bias"):
        got = drawn[name].data
        np.testing.assert_array_equal(got, default[name].data)
        draws = np.random.default_rng([0, zlib.crc32(name.encode())])
        want = (0.02 * draws.standard_normal(got.shape, np.float32) if name == "wpe.weight" else
                (2 * draws.random(got.shape, np.float32) - 1) / 2)        # 1 / sqrt(4 channels)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("wrong, message", [
    ({"n_layer": 0}, "n_layer must .*got 0"), ({"n_layer": True}, "n_layer must .*got True"),
    ({"n_embd": 2.0}, "n_embd must .*got 2.0"), ({"n_positions": 0}, "n_positions must .*got 0"),
    ({"dropout": 1.0}, "dropout is 1.0"),
    ({"residual": 1}, "residual is 1, expected True or False"),
    ({"positions": "yes"}, "positions is 'yes', expected True or False"),
    ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon is 0.0"),
    ({"initializer_range": math.inf}, "initializer_range is inf")])
def test_wrong_configs_are_refused(wrong, message):
    with pytest.raises(ValueError, match="expected an instance of LSTMConfig"):
        LSTM({"n_embd": 8})
    with pytest.raises(ValueError, match=f"^LSTMConfig: {message}[^\n]*$"):
        replace(SMALL, **wrong)


# -------------------------------------------------------------------------- by its name


@pytest.mark.parametrize("text, label, config", [
    ("lstm", "LSTM (3x128)", LSTMConfig()),
    ("lstm:12x64", "LSTM (12x64)", LSTMConfig(12, 64)),
    ("lstm,residual", "LSTM (3x128, residual)", LSTMConfig(residual=True)),
    ("lstm:2x16,positions", "LSTM (2x16, positions)", LSTMConfig(2, 16, positions=True)),
    ("lstm:2x16,residual,positions@2", "LSTM (2x16, residual, positions, spread 2)",
     LSTMConfig(2, 16, residual=True, positions=True, initializer_range=0.5))])
def test_a_name_gives_label_and_config(text, label, config):
    spec = TrunkSpec.parse(text)
    assert (spec.kind, spec.label) == ("lstm", label)
    assert spec == TrunkSpec.parse(text) and TrunkSpec.parse(spec) is spec
    assert minifpt.trunks.config_for(spec) == config
    assert minifpt.trunks.config_for(spec, 0.4) == replace(config, dropout=0.4)
    trunk = minifpt.trunks.get(spec, seed=2, dropout=0.0, dtype=np.float64)
    assert trunk.config == replace(config, dropout=0.0) and trunk.dtype == np.float64
    np.testing.assert_array_equal(trunk.h[0].lstm.bias.data,
                                  LSTM(config, 2, np.float64).h[0].lstm.bias.data)


@pytest.mark.parametrize("text, message", [
    ("lstm:", "expected lstm, or lstm:LAYERSxCHANNELS"), ("lstm:3", "expected lstm, or"),
    ("lstm:1x4x256", "expected lstm, or"), ("lstm:3x128,deep", "expected lstm, or"),
    ("lstm,positions,residual", "then ,residual, then ,positions"),
    ("lstm:0x8", "n_layer must be"), ("lstm:2x0", "n_embd must be"),
    ("lstm@0", "the spread is '0'"),
    ("lstm@much", "the spread is 'much', expected a positive number")])
def test_wrong_names_are_refused(fails, text, message):
    assert message in fails("summary", "bit-xor", "--model", text)
