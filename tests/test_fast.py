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
def pieces_of(size):
    """Within, no piece has more than so many numbers, where it can be helped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "PIECE", size)
        patch.setattr(fast, "TILES", size)
        yield


both = pytest.mark.parametrize("size", [5000, 1 << 30])


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, tolerance):
    """To ``tolerance`` of the largest entry: what a sum of many terms can promise."""
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max(initial=1.0))


# ------------------------------------------------------------------------------ GELU


@both
@given(st.sampled_from([(1,), (7, 5), (2, 3, 4), (fast.PIECE - 1,), (fast.PIECE + 1,),
                        (3, fast.PIECE)]), dtypes, st.floats(0.1, 20))
def test_gelu(size, shape, kind, factor):
    dtype, tolerance = kind
    x, dy = normal(shape, dtype) * dtype(factor), normal(shape, dtype, 1)
    with pieces_of(size):
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
def test_attention(size, shape, kind):
    (B, T, H, D), (dtype, tolerance) = shape, kind
    qkv, dy = normal((B, T, 3 * H * D), dtype), normal((B, T, H * D), dtype, 1)
    with pieces_of(size):
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
def test_attention_with_dropout(size, shape, kind, p):
    """With the masks that the fast form drew, the simple form's products give the same."""
    (B, T, H, D), (dtype, tolerance) = shape, kind
    qkv, dy = normal((B, T, 3 * H * D), dtype), normal((B, T, H * D), dtype, 1)
    with pieces_of(size):
        y, cache = fast.attention(qkv, H, p, np.random.default_rng(2))
        dqkv = fast.attention_backward(dy, cache)
    whole, tiled = cache
    assert (tiled is None) == (T <= fast.TILE)            # a single tile takes the simple form
    if tiled:
        kept, drop = tiled[-2:]
        assert drop == round(p * 65536)
        mask = whole_mask(kept, fast._tiles(T), shape, drop, dtype)
    else:
        mask = whole[-1]
    _, (q, k, v, a, _) = F.attention(qkv, H)
    close(y, F.merge_heads((a * mask) @ v), 3 * tolerance)
    close(dqkv, F.attention_backward(dy, (q, k, v, a, mask)), 10 * tolerance)


def test_dropout_keeps_the_share_it_should_and_the_mean():
    qkv = normal((2, 200, 3 * 8), np.float64)
    kept, drop = fast.attention(qkv, 2, 0.3, np.random.default_rng(0))[1][1][-2:]
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


@pytest.mark.parametrize("size", [1.0, 6.0, 1e4])
@pytest.mark.parametrize("T", [5, 64, 70])
def test_scores_of_any_size(size, T):
    qkv = normal((2, T, 24), np.float64)
    qkv[1] *= size
    dy = normal((2, T, 8), np.float64, 1)
    y, cache = fast.attention(qkv, 2)
    want, simple = F.attention(qkv, 2)
    close(y, want, 1e-11)
    close(fast.attention_backward(dy, cache), F.attention_backward(dy, simple), 1e-11)


def test_large_scores_stay_finite():
    qkv = 1e4 * normal((1, 70, 12), np.float32)
    y, cache = fast.attention(qkv, 2)
    close(y, F.attention(qkv, 2)[0], 1e-5)
    assert np.isfinite(fast.attention_backward(np.ones_like(y), cache)).all()


# ------------------------------------------------------------------- threads and BLAS


@contextmanager
def on(cores):
    """Within, this machine has so many cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "cores", lambda: cores)
        yield


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7])
def test_shared_does_every_piece_once(n, pieces):
    done = []
    with on(n):
        fast.shared(done.append, list(range(pieces)))
    assert sorted(done) == list(range(pieces))


def test_shared_uses_other_threads():
    together, seen = threading.Barrier(2, timeout=20), []

    def work(i):
        together.wait()                                   # passed by two at once, or never
        seen.append(threading.get_ident())
    with on(2):
        fast.shared(work, [0, 1])
    assert len(set(seen)) == 2


@pytest.mark.parametrize("cores", [1, 2])
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
