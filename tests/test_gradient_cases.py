"""What ``minifpt.gradcheck`` refuses, with where and why, and what it accepts."""

import re

import pytest
from gradient_cases import RIGHT, WRONG, Silent, Unscaled, X

import minifpt


@pytest.mark.parametrize("arguments, options, words", [
    pytest.param(*case, id=name, marks=[pytest.mark.slow] if "131,072" in name else [])
    for name, case in WRONG.items()])
def test_a_wrong_backward_pass_is_refused_and_described(arguments, options, words):
    try:
        report = minifpt.gradcheck(*arguments, **options)
        assert not report
        text = str(report)
    except ValueError as e:
        text = str(e)
        assert "\n" not in text
    for word in words:
        assert re.search(word, text), (word, text)


@pytest.mark.parametrize("arguments, options", RIGHT.values(), ids=RIGHT)
def test_an_unusual_backward_pass_is_accepted(arguments, options):
    report = minifpt.gradcheck(*arguments, **options)
    assert report, report


def test_a_layer_is_checked_with_other_parameters_and_a_missing_gradient_is_noted():
    assert "with moved parameters" in str(minifpt.gradcheck(Unscaled(), (X,)))
    assert "x was not checked: its gradient is None" in minifpt.gradcheck(Silent(), (X,)).notes


def test_a_frozen_third_of_a_matrix_is_checked_like_the_rest():
    layer = minifpt.layers.Block(4, 1, dtype=float)
    layer.freeze("*.c_attn.*.keys")
    assert minifpt.gradcheck(layer, (X[None],)), layer.attn.c_attn.weight.frozen_columns
