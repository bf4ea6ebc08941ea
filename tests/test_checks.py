"""Arguments: each check takes what it means and refuses every other kind, in one line."""

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import checks

HUGE = 10 ** 400
SHAPE = {"shape": (2, 3)}


@pytest.mark.parametrize("check, good, wrong, message", [
    (lambda x: checks.whole("f", "n", x), [1, np.int8(3), 2**31 - 1],
     [None, "8", 8.0, True, 0, -8, 2**31, HUGE, (), np.ones(3)],
     "n must be a whole number, at least 1"),
    (lambda x: checks.number("f", "lr", x), [1, np.float32(0.5), 1e-30],
     [None, "x", (), [1e-3], 1j, 0, -1.0, np.nan, np.inf, HUGE, True],
     "lr is .*expected a positive number"),
    (lambda x: checks.seed("f", x), [0, np.int64(3), 10**30], [None, -1, 1.5, "3", {"a": 1}],
     "seed must be a whole number, at least 0"),
    (lambda x: checks.one_of("f", "split", x, ["train", "test"]), ["train"],
     [None, "dev", ["test"]], "split is .*, expected one of train, test"),
    (lambda x: checks.dtype("f", x), ["float32", np.float64], [None, "x", 3, int, "float16", [1]],
     "dtype is .*, expected float32 or float64"),
    (lambda x: checks.generator("f", x), [np.random.default_rng(0)],
     [None, 0, np.random.default_rng], "rng is .*, expected np.random.default_rng"),
    (lambda x: checks.flag("f", "train", x), [True, np.bool_(False)],
     ["False", "", None, 1, 0.0, (), np.ones(2)], "train is .*, expected True or False"),
    (lambda x: checks.array("f", "x", x), [np.ones(2), np.ones((1, 2), int)],
     [None, [1.0], np.ones((0, 2)), np.ones(2, complex), np.ones(2).astype(str)],
     "f: x "),
    (lambda x: checks.incoming_gradient("f", x, SHAPE, np.float32), [np.ones((2, 3))],
     [None, [[0.0]], np.ones((2, 1)), np.float64(3), np.ones((2, 3), complex)],
     "the gradient is .*, expected numbers of the shape"),
    (lambda x: checks.incoming_gradient("f", np.ones((2, 3)), x, np.float32), [SHAPE],
     [3, "x", {}, [], ()], "the cache is .*, expected the one that forward returned"),
    (lambda x: checks.incoming_gradient("f", np.ones((2, 3)), x, np.float32), [SHAPE], [None],
     "the cache is None: in the forward pass everything was frozen"),
    (lambda x: checks.active_dropout("f", 0.1, True, x), [np.random.default_rng(0)], [None, 0],
     "rng is .*: pass rng=np.random.default_rng")])
def test_a_check_takes_its_kind_and_refuses_others(check, good, wrong, message):
    for value in good:
        check(value)
    for value in wrong:
        with refused(f"^f: .*{message}" if not message.startswith("f: ") else message):
            check(value)


def test_a_value_of_many_lines_is_refused_in_one():
    for value in np.ones((3, 9)), minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8)):
        with refused("n must be a whole number"):
            checks.whole("f", "n", value)
