"""The fast forms equal the simple ones, on one core and on several; settings of the process."""

import itertools
import os
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minifpt
from minifpt import fast, layers, machine
from minifpt import functional as F

TOKENS = [1, 63, 64, 65, 130, 200]
shapes = st.tuples(st.integers(1, 3), st.sampled_from(TOKENS), st.integers(1, 3),
                   st.integers(1, 8))                     # B, T, H, D
dtypes = st.sampled_from([(np.float32, 1e-5), (np.float64, 1e-12)])


@contextmanager
def pieces_of(size):
    """Limit pieces to ``size`` numbers within a ``with``, as far as possible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "MAX_PIECE", size)
        patch.setattr(fast, "MAX_TILE_SCORES", size)
        yield


both = pytest.mark.parametrize("size", [5000, 1 << 30])


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, tolerance):
    """Compare to ``tolerance`` times the largest entry, as sums of many terms allow."""
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max(initial=1.0))


def close_gradients(grads, expected, tolerance):
    """Compare the gradients that a backward pass returned, ``None`` among them."""
    for grad, want in zip(grads, expected, strict=True):
        assert (grad is None) == (want is None)
        if grad is not None:
            close(grad, want, tolerance)


# ------------------------------------------------------------------------ layer norm


@pytest.mark.parametrize("need", list(itertools.product([True, False], repeat=3)))
@given(st.sampled_from([(1, 1), (7, 5), (2, 3, 4), (2, 3, 130)]), dtypes,
       st.sampled_from([1e-6, 1.0, 1e6]))
def test_layer_norm_equals_the_simple_form(need, shape, kind, size):
    dtype, tolerance = kind
    x, dy = normal(shape, dtype) * dtype(size), normal(shape, dtype, 1)
    w, b = normal((2, shape[-1]), dtype, 2)
    y, cache = fast.layer_norm(x, w, b, 1e-3, need)
    want, simple = F.layer_norm(x, w, b, 1e-3, need)
    close(y, want, tolerance)
    close_gradients(fast.layer_norm_backward(dy.copy(), cache),
                    F.layer_norm_backward(dy, simple), 10 * tolerance)


# ------------------------------------------------------------------------------ GELU


@both
@given(st.sampled_from([(1,), (7, 5), (2, 3, 4), (fast.MAX_PIECE - 1,), (fast.MAX_PIECE + 1,),
                        (3, fast.MAX_PIECE)]), dtypes, st.floats(0.1, 20))
def test_gelu_equals_the_simple_form(size, shape, kind, factor):
    dtype, tolerance = kind
    x, dy = normal(shape, dtype) * dtype(factor), normal(shape, dtype, 1)
    with pieces_of(size):
        y, cache = fast.gelu(x)
        dx = fast.gelu_backward(dy.copy(), cache)
    want, simple = F.gelu(x)
    close(y, want, tolerance)
    close(dx, F.gelu_backward(dy, simple), tolerance)


# ------------------------------------------------------------------------- attention


@both
@settings(max_examples=60)
@given(shapes, dtypes, st.one_of(st.just(0.0), st.floats(0.05, 0.9)), st.booleans())
def test_attention_equals_the_simple_form(size, shape, kind, p, causal):
    """With dropout, both forms draw the same mask, and equally much from the generator."""
    (B, T, H, D), (dtype, tolerance) = shape, kind
    qkv, dy = normal((B, T, 3 * H * D), dtype), normal((B, T, H * D), dtype, 1)
    before = qkv.copy(), dy.copy()
    one, other = np.random.default_rng(2), np.random.default_rng(2)
    with pieces_of(size):
        y, cache = fast.attention(qkv, H, p, one, causal)
        dqkv = fast.attention_backward(dy, cache)
        small = T <= fast.TILE and B * H * T * T <= 4 * fast.MAX_TILE_SCORES
    want, simple = F.attention(qkv, H, p, other, causal)
    assert isinstance(cache, F.AttentionCache) == small
    assert small or cache.top.dtype == cache.total.dtype == dtype
    close(y, want, 3 * tolerance)
    close(dqkv, F.attention_backward(dy, simple), 10 * tolerance)
    assert one.bytes(8) == other.bytes(8)
    np.testing.assert_equal((qkv, dy), before)


# ------------------------------------------------------------------- threads and BLAS


@contextmanager
def on(cores):
    """Let this machine have ``cores`` cores within a ``with``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cores", lambda: cores)
        yield


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7])
def test_shared_does_every_piece_once(n, pieces):
    done = []
    with on(n):
        machine.shared(done.append, list(range(pieces)))
    assert sorted(done) == list(range(pieces))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("bad", range(4))
def test_a_worker_s_exception_comes_out(cores, bad):
    def work(i):
        if i == bad:
            raise ZeroDivisionError(f"piece {i}")
    done = []
    with on(cores):
        with pytest.raises(ZeroDivisionError, match=f"piece {bad}"):
            machine.shared(work, [0, 1, 2, 3])
        machine.shared(done.append, [0, 1])                  # and the threads still work
    assert sorted(done) == [0, 1]


def test_within_one_core_nothing_is_shared():
    """Within ``one_core`` nobody helps; a piece that shares its work does not wait for itself."""
    seen = []
    with on(3), machine.one_core:
        machine.shared(lambda i: seen.append(threading.get_ident()), range(5))
    assert seen == 5 * [threading.get_ident()]
    done = []
    with on(2):
        machine.shared(lambda i: machine.shared(done.append, [i, i]), range(4))
    assert sorted(done) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_helper_has_the_caller_s_settings():
    """For example NumPy's reaction to an overflow.  A helper is another thread."""
    together, settings_seen = threading.Barrier(2, timeout=20), []

    def work(i):
        together.wait()
        settings_seen.append(np.geterr()["over"])
    with on(2), np.errstate(over="raise"):
        machine.shared(work, [0, 1])
    assert settings_seen == ["raise", "raise"]


def test_after_an_interrupt_nothing_runs_on():
    """Running pieces end, no other piece begins, and then Ctrl-C is raised."""
    begun, together = [], threading.Barrier(2, timeout=20)

    def work(i):
        begun.append(i)
        if i < 2:
            together.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.02)
        begun.append("ended")
    with on(2), pytest.raises(KeyboardInterrupt):
        machine.shared(work, range(50))
    assert "ended" in begun and len(begun) < 50
    n = len(begun)
    time.sleep(0.02)
    assert len(begun) == n


@pytest.mark.parametrize("files, group, cores", [
    ({"cpu.max": "max 100000"}, "/", np.inf), ({"cpu.max": "250000 100000"}, "/", 2.5),
    ({"a/cpu.max": "max 100000", "cpu.max": "50000 100000"}, "/a", 0.5),
    ({"cpu.max": "50000 100000"}, "/a", 0.5),
    ({"a/cpu.max": "300000 100000", "cpu.max": "400000 100000"}, "/a", 3.0),
    ({"cpu.max": "nonsense"}, "/", np.inf), ({}, "/", np.inf), ({}, None, np.inf),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "/", np.inf),
    ({"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "100000",
      "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "/a", 1.5),
    ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000",
      "cpu/b/cpu.cfs_quota_us": "50000", "cpu/b/cpu.cfs_period_us": "100000"}, "/a:b", 1.5),
    ({"cpu/cpu.cfs_quota_us": "50000"}, "/", np.inf)])
def test_the_quota_of_a_container_is_read(tmp_path, files, group, cores):
    for folder in ("a", "cpu/a", "cpu/b"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "root" / name).write_text(text + "\n")
    if group:
        (tmp_path / "group").write_text(f"7:memory:/b\n4:cpu,cpuacct:{group}\n0::{group}\n")
    assert machine.quota(tmp_path / "root", tmp_path / "group") == cores


def test_cores_listen_to_the_quota(monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for quota, cores in ((2.0, 2), (2.5, 2), (0.5, 1), (np.inf, 64)):
        monkeypatch.setattr(machine, "quota", lambda quota=quota: quota)
        n, why = machine.cores_and_why.__wrapped__()
        assert n == cores and ("quota" in why) == (n < 64)


# ------------------------------------------------------------------------- products


@contextmanager
def products_are_cut():
    """Cut products of any size within a ``with``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "MIN_MULTIPLICATIONS", 1)
        patch.setattr(fast, "MIN_WIDTH", 64)
        patch.setattr(fast, "MIN_SIZE_TO_SWAP", 1)
        yield


@given(st.sampled_from([(1,), (2, 3), (130,), (2, 200)]), st.integers(1, 300), st.integers(1, 300),
       dtypes, st.tuples(st.booleans(), st.booleans(), st.booleans()), st.integers(1, 4))
@settings(max_examples=50)                                # eight left out dw
def test_linear_equals_the_simple_form(lead, n, m, kind, need, cores):
    dtype, tolerance = kind
    x, w, b, dy = (normal(shape, dtype, i) for i, shape in enumerate(
        [(*lead, n), (n, m), (m,), (*lead, m)]))
    want, simple = F.linear(x, w, b, need)
    with products_are_cut(), on(cores):
        y, cache = fast.linear(x, w, b, need)
        grads = fast.linear_backward(dy, cache)
    assert all(g is None or g.flags.c_contiguous for g in grads)
    close(y, want, 10 * tolerance)
    close_gradients(grads, F.linear_backward(dy, simple), 20 * tolerance)


@given(st.sampled_from([(1,), (2, 3), (2, 100)]), st.integers(1, 9), st.integers(1, 300), dtypes,
       st.tuples(st.booleans(), st.booleans()), st.integers(1, 4))
@settings(max_examples=30)
def test_unembedding_equals_the_simple_form(lead, C, V, kind, need, cores):
    dtype, tolerance = kind
    x, w, dy = normal((*lead, C), dtype), normal((V, C), dtype, 1), normal((*lead, V), dtype, 2)
    want, simple = F.unembedding(x, w, need)
    with products_are_cut(), on(cores):
        y, cache = fast.unembedding(x, w, need)
        grads = fast.unembedding_backward(dy, cache)
    close(y, want, 10 * tolerance)
    close_gradients(grads, F.unembedding_backward(dy, simple), 20 * tolerance)


def test_products_of_few_rows_equal_numpys():
    """With a transposed weight, with and without a bias, up to the limit for few rows."""
    w = normal((400, 100), np.float64).T
    for rows in (3, 48, 49):
        for columns in (48, 400):
            x, by = normal((rows, 100), np.float64, rows), w[:, :columns]
            with products_are_cut():
                y = fast.product(x, by)
                assert y.flags.c_contiguous
                np.testing.assert_allclose(y, x @ by, atol=1e-12)
                np.testing.assert_allclose(fast.product(x, by, by[0]), x @ by + by[0], atol=1e-12)
                single = [a.astype(np.float32) for a in (x, by)]
                assert fast.product(*single).dtype == np.float32


def test_a_linear_layer_keeps_only_what_its_gradients_need():
    x, w, b = (normal(shape, np.float64) for shape in ((3, 7), (7, 5), (5,)))
    assert fast.linear(x, w, b, (True, False, True))[1].x is None
    assert fast.linear(x, w, b, (False, True, False))[1].x is x


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_number_of_cores_changes_no_bit(dropout):
    """Outputs and gradients are equal even if all operations are cut."""
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=130, n_positions=80, dropout=dropout)
    model = minifpt.FPT(minifpt.GPT2(config), 3, 2)
    model.freeze(minifpt.FreezeMask())

    def step():
        model.zero_grad()
        y, cache = model.forward(normal((5, 70, 3), np.float32), True, np.random.default_rng(0))
        model.backward(np.ones_like(y), cache)
        return y, {name: p.grad for name, p in model.named_parameters()}
    results = []
    with products_are_cut(), pieces_of(5000):
        for cores in (1, 2, 3, 4):
            with on(cores):
                results.append(step())
    for other in results[1:]:
        np.testing.assert_equal(other, results[0])


# -------------------------------------------------------------- settings of the process


def recorded_setting():
    """Return a ``ProcessSetting`` and the list of its events."""
    events = []

    @machine.ProcessSetting
    def setting():
        """A docstring."""
        events.append("made")
        yield
        events.append("undone")
    return setting, events


def test_a_nested_setting_is_made_once():
    setting, did = recorded_setting()
    for _ in range(2):                                    # and again
        with setting:
            assert did == ["made"]
            with setting:
                assert did == ["made"]
            assert did == ["made"]
        assert did == ["made", "undone"]
        did.clear()
    assert setting.__doc__ == "A docstring."


def test_the_last_of_four_threads_undoes_a_setting():
    """The first thread makes it, and the last one to end undoes it."""
    setting, did = recorded_setting()
    inside, turns = threading.Barrier(5, timeout=20), [threading.Event() for _ in range(4)]

    def work(i):
        with setting, setting:
            inside.wait()
            assert turns[i].wait(20)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    inside.wait()                                         # all four are inside
    for i in (0, 2, 3, 1):                                # and leave one by one
        assert did == ["made"]
        turns[i].set()
        threads[i].join(20)
    assert did == ["made", "undone"]


def in_a_child(work):
    """Return the result or error of ``work()`` in a forked process, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = repr(work())
        except BaseException as e:                        # it must not come back
            answer = repr(e)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read) as f:
        answer = f.read()
    os.waitpid(child, 0)
    return answer


def forks(test):
    """Mark a test that forks."""
    quiet = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")(quiet(test))


@forks
def test_a_forked_child_starts_its_own_threads():
    """The child has none of its parent's threads, and starts its own."""
    def together():
        barrier = threading.Barrier(2, timeout=10)        # passed by two at once, or never
        with on(2):
            machine.shared(lambda i: barrier.wait(), [0, 1])
        return "two"
    assert together() == "two" and in_a_child(together) == "'two'"


@pytest.fixture
def blas():
    """Yield (set, get) of BLAS's thread count, which is restored after the test."""
    if machine._get_threads is None or machine._set_threads is None:
        pytest.skip("NumPy's BLAS is no OpenBLAS")

    def put(n):
        machine._set_threads(n)
        if machine._get_threads() != n:
            pytest.skip(f"this OpenBLAS cannot have {n} threads")
    assert "get_num" in machine._get_threads.__name__ and "set" in machine._set_threads.__name__
    before = machine._get_threads()
    yield put, machine._get_threads
    machine._set_threads(before)


@pytest.mark.parametrize("before", [1, 2])
def test_single_threaded_blas_restores_the_count(blas, before):
    put, get = blas
    put(before)
    with machine.single_threaded_blas:
        assert get() == 1
        with machine.single_threaded_blas:
            assert get() == 1
        assert get() == 1
    assert get() == before
    with pytest.raises(ZeroDivisionError), machine.single_threaded_blas:
        raise ZeroDivisionError
    assert get() == before
    model, threads = minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8, 2, 0.0)), []
    attn = model.h[0].attn
    forward = attn.forward
    attn.forward = lambda *args, **reads: (threads.append(get()), forward(*args, **reads))[1]
    y, cache = model.forward(normal((2, 5, 4), np.float32))
    model.backward(y, cache)
    assert threads == [1] and get() == before
    with pytest.raises(ValueError, match="x has shape"):
        model.forward(normal((2, 5, 3), np.float32))
    assert get() == before


def test_lstm_has_the_bits_of_the_simple_form(blas):
    put, get = blas
    put(2)
    arrays = [normal(shape, np.float32) for shape in ((2, 5, 3), (3, 16), (4, 16), (16,))]
    want, simple = F.lstm(*arrays)
    y, cache = fast.lstm(*arrays)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_equal(fast.lstm_backward(y, cache), F.lstm_backward(want, simple))
    assert get() == 2


def resident():
    """Return the megabytes of this process that are in memory."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc; glibc's malloc")
def test_kept_memory_is_given_back_at_the_end():
    def while_it_lives():
        array = np.ones(10_000_000)                       # 80 MB
        return resident() * array[0]
    with machine.kept_memory:
        with machine.kept_memory:
            most = while_it_lives()
        assert resident() > most - 10                     # kept for the next array
    assert resident() < most - 60
    array = np.ones(10_000_000)                           # and then as by default: a large array
    small = [np.ones(10_000) for _ in range(500)]         # lies apart from small ones
    most = resident()
    del array
    assert resident() < most - 60 and len(small) == 500


@pytest.mark.parametrize("variables, most", [
    ({"OPENBLAS_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "1"}, 1),
    ({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "64"}, 1), ({}, None),
    ({"OMP_NUM_THREADS": "many"}, None), ({"OMP_NUM_THREADS": "0"}, None),
    ({"OMP_NUM_THREADS": "9999"}, None)])
def test_cores_listen_to_the_environment(monkeypatch, variables, most):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {*range(pid, 3)},
                        raising=False)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "quota", lambda: np.inf)
    n, why = machine.cores_and_why.__wrapped__()
    assert n == (most or 3) and (why in variables if most else why == "the machine")


@pytest.mark.parametrize("T", [16, 128])
def test_attention_stays_finite_for_the_largest_values(T):
    qkv = np.random.default_rng(T).standard_normal((2, T, 24)).astype(np.float32)
    qkv[..., 16:] = np.copysign(np.finfo(np.float32).max, qkv[..., 16:])
    assert np.isfinite(fast.attention(qkv, 2)[0]).all()


def test_the_first_tokens_of_a_text_have_the_bits_of_attention_without_a_past():
    qkv, past = normal((1, 3 * fast.TILE, 24), np.float32), layers.KeyValues(4 * fast.TILE)
    np.testing.assert_array_equal(fast.attention(qkv, 2, past=past)[0], fast.attention(qkv, 2)[0])


def test_a_gradient_of_gelu_in_another_memory_order_is_right():
    x, dy = normal((6, 5), np.float64), np.asfortranarray(normal((6, 5), np.float64))
    want = F.gelu_backward(dy, F.gelu(x)[1])
    close(fast.gelu_backward(dy, fast.gelu(x)[1]), want, 1e-12)
