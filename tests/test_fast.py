"""The fast forms equal the simple ones, on one core and on several."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minifpt import fast
from minifpt import functional as F

TOKENS = [1, 63, 64, 65, 130, 200]
shapes = st.tuples(st.integers(1, 3), st.sampled_from(TOKENS), st.integers(1, 3),
                   st.integers(1, 8))                     # B, T, H, D
dtypes = st.sampled_from([(np.float32, 1e-5), (np.float64, 1e-12)])


@contextmanager
def on(cores):
    """Within, pieces are spread over so many threads even where one would do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "cores", lambda: cores)
        patch.setattr(fast, "SMALL", 0)
        yield


both = pytest.mark.parametrize("cores", [1, 2])


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, tolerance):
    """To ``tolerance`` of the largest entry: what a sum of many terms can promise."""
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(1.0, np.abs(want).max()))


# ------------------------------------------------------------------------------ GELU


@both
@given(st.sampled_from([(1,), (7, 5), (2, 3, 4), (fast.CHUNK - 1,), (fast.CHUNK + 1,),
                        (3, fast.CHUNK)]), dtypes, st.floats(0.1, 20))
def test_gelu(cores, shape, kind, size):
    dtype, tolerance = kind
    x, dy = normal(shape, dtype) * dtype(size), normal(shape, dtype, 1)
    with on(cores):
        y, cache = fast.gelu(x)
        dx = fast.gelu_backward(dy.copy(), cache)
        alone, none = fast.gelu(x, keep=False)
    want, x_again = F.gelu(x)
    close(y, want, tolerance)
    close(dx, F.gelu_backward(dy, x_again), tolerance)
    assert none is None
    np.testing.assert_array_equal(alone, y)


def test_gelu_backward_is_written_over_dy():
    dy, (_, cache) = normal(9, np.float32, 1), fast.gelu(normal(9, np.float32))
    assert fast.gelu_backward(dy, cache) is dy


# ------------------------------------------------------------------------- attention


@both
@settings(max_examples=40)
@given(shapes, dtypes)
def test_attention(cores, shape, kind):
    (B, T, H, D), (dtype, tolerance) = shape, kind
    qkv, dy = normal((B, T, 3 * H * D), dtype), normal((B, T, H * D), dtype, 1)
    with on(cores):
        y, cache = fast.attention(qkv, H)
        dqkv = fast.attention_backward(dy, cache)
    want, simple = F.attention(qkv, H)
    close(y, want, tolerance)
    close(dqkv, F.attention_backward(dy, simple), tolerance)


def whole_mask(kept, tiles, shape, drop, dtype):
    """The dropout masks of all tiles as one, (B, H, T, T), 0 or 1 / (1 - p)."""
    B, T, H, _ = shape
    mask = np.zeros((B, H, T, T), dtype)
    for tile, (i, j) in zip(kept, tiles, strict=True):
        mask[:, :, i:j, :j] = tile
    return mask * dtype(65536 / (65536 - drop))


@both
@settings(max_examples=40)
@given(shapes, dtypes, st.floats(0.05, 0.9))
def test_attention_with_dropout(cores, shape, kind, p):
    """With the masks that the fast form drew, the simple form's products give the same."""
    (B, T, H, D), (dtype, tolerance) = shape, kind
    qkv, dy = normal((B, T, 3 * H * D), dtype), normal((B, T, H * D), dtype, 1)
    with on(cores):
        y, cache = fast.attention(qkv, H, p, np.random.default_rng(2))
        dqkv = fast.attention_backward(dy, cache)
    kept, drop = cache[-2:]
    assert drop == round(p * 65536)
    mask = whole_mask(kept, fast._tiles(T), shape, drop, dtype)
    _, (q, k, v, a, _) = F.attention(qkv, H)
    close(y, F.merge_heads((a * mask) @ v), 3 * tolerance)
    close(dqkv, F.attention_backward(dy, (q, k, v, a, mask)), 10 * tolerance)


def test_dropout_keeps_the_share_it_should_and_the_mean():
    qkv = normal((2, 200, 3 * 8), np.float64)
    kept, drop = fast.attention(qkv, 2, 0.3, np.random.default_rng(0))[1][-2:]
    share = sum(m.sum() for m in kept) / sum(m.size for m in kept)
    assert abs(share - 0.7) < 0.01 and drop == round(0.3 * 65536)
    want = F.attention(qkv, 2)[0]
    rng = np.random.default_rng(1)
    mean = sum(fast.attention(qkv, 2, 0.3, rng)[0] for _ in range(200)) / 200
    assert np.abs(mean - want).mean() < 0.05


def test_dropout_without_a_generator_is_an_error():
    with pytest.raises(ValueError, match="rng is None"):
        fast.attention(normal((1, 4, 12), np.float32), 2, 0.1)


@pytest.mark.parametrize("t", [0, 62, 63, 64, 65, 128, 199])
def test_causal(t):
    """What comes after token t changes nothing up to t, forwards; and no gradient of what
    stands up to t reaches a later token."""
    qkv = normal((1, 200, 24), np.float32)
    other = qkv.copy()
    other[:, t + 1:] = normal(other[:, t + 1:].shape, np.float32, 5)
    y, cache = fast.attention(qkv, 2)
    changed = fast.attention(other, 2)[0]
    np.testing.assert_array_equal(y[:, :t + 1], changed[:, :t + 1])
    assert t == 199 or not np.array_equal(y[:, t + 1:], changed[:, t + 1:])
    dy = np.zeros_like(y)
    dy[:, :t + 1] = 1.0
    dqkv = fast.attention_backward(dy, cache)
    assert not dqkv[:, t + 1:].any() and dqkv[:, 0].any()


def test_one_bit_of_the_future_in_a_tile_s_own_keys():
    """A query in the middle of a tile must not see the tile's later keys."""
    qkv = np.zeros((1, 130, 6), np.float32)
    qkv[0, 100, 4:] = 1.0                                 # the value of token 100
    y = fast.attention(qkv, 1)[0][0, :, 0]
    assert not y[:100].any() and (y[100:] > 0).all()


@pytest.mark.parametrize("shape", [(3, 130, 4, 8), (8, 64, 3, 16), (1, 200, 1, 4)])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_bits_do_not_depend_on_the_cores(shape, p):
    B, T, H, D = shape
    qkv = normal((B, T, 3 * H * D), np.float32)
    dy = normal((B, T, H * D), np.float32, 1)

    def bits(n):
        with on(n):
            y, cache = fast.attention(qkv, H, p, np.random.default_rng(3))
            return y, fast.attention_backward(dy, cache), *fast.gelu(qkv)
    one = bits(1)
    for n in (2, 3):
        for a, b in zip(one, bits(n), strict=True):
            np.testing.assert_array_equal(a, b)


def test_large_scores_stay_finite():
    qkv = 1e4 * normal((1, 70, 12), np.float32)
    y, cache = fast.attention(qkv, 2)
    close(y, F.attention(qkv, 2)[0], 1e-5)
    assert np.isfinite(fast.attention_backward(np.ones_like(y), cache)).all()


# ------------------------------------------------------------------- threads and BLAS


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7])
def test_shared_does_every_piece_once(n, pieces):
    done = []
    with on(n):
        fast.shared(done.append, list(range(pieces)))
    assert sorted(done) == list(range(pieces))


def test_shared_uses_another_thread():
    seen = {}
    with on(2):
        fast.shared(lambda i: seen.setdefault(i, threading.get_ident()), [0, 1])
        fast.shared(lambda i: seen.setdefault(i, threading.get_ident()), [2, 3], small=True)
    assert seen[0] == threading.get_ident() != seen[1]
    assert seen[2] == seen[3] == threading.get_ident()


@both
@pytest.mark.parametrize("bad", range(4))
def test_a_worker_s_exception_comes_out(cores, bad):
    def work(i):
        if i == bad:
            raise ZeroDivisionError(f"piece {i}")
    done = []
    with on(cores):
        with pytest.raises(ZeroDivisionError, match=f"piece {bad}"):
            fast.shared(work, [0, 1, 2, 3])
        fast.shared(done.append, [0, 1])                  # and the threads still work
    assert sorted(done) == [0, 1]


def blas_threads():
    if fast._blas_threads() is None:
        pytest.skip("NumPy's BLAS is no OpenBLAS")
    return fast._blas_threads()


@pytest.mark.parametrize("before", [1, 2])
def test_single_threaded_blas_restores_the_count(before):
    put, get = blas_threads()
    original = get()
    try:
        put(before)
        before = get()                                    # OpenBLAS may know of one core only
        with fast.single_threaded_blas():
            assert get() == 1
            with fast.single_threaded_blas():
                assert get() == 1
            assert get() == 1
        assert get() == before
        with pytest.raises(ZeroDivisionError), fast.single_threaded_blas():
            raise ZeroDivisionError
        assert get() == before
        fast.attention(normal((2, 70, 12), np.float32), 2)
        assert get() == before
        with pytest.raises(ValueError, match="channels"):
            fast.attention(normal((2, 70, 13), np.float32), 2)
        assert get() == before
    finally:
        put(original)


def test_without_openblas_nothing_changes(monkeypatch):
    monkeypatch.setattr(fast, "_blas_threads", lambda: None)
    qkv = normal((2, 70, 12), np.float32)
    close(fast.attention(qkv, 2)[0], F.attention(qkv, 2)[0], 1e-5)


@pytest.mark.parametrize("variables, most", [
    ({"OPENBLAS_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "1"}, 1),
    ({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "64"}, 1), ({}, None),
    ({"OMP_NUM_THREADS": "many"}, None), ({"OMP_NUM_THREADS": "0"}, None),
    ({"OMP_NUM_THREADS": "9999"}, None)])
def test_cores_listen_to_the_environment(monkeypatch, variables, most):
    monkeypatch.setattr(fast.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert fast.cores.__wrapped__() == (most or 3)


def test_blas_kernels_is_one_line():
    assert fast.blas_kernels().startswith("kernels ") and "\n" not in fast.blas_kernels()
