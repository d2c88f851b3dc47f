"""Threads, forks, and memory that others let go of."""
import ctypes
import gc
import os
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import qkv
from qkv import Mask


def arrays(n=512, heads=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, heads, n, 64)).astype(np.float32) for _ in range(3)]


def test_bits_do_not_depend_on_threads_or_batch_mates():
    q, k, v = (np.concatenate([x, y]) for x, y in zip(arrays(70), arrays(70, seed=1)))
    before, results = qkv.num_threads(), []
    try:
        for n in (1, 2, 3):
            qkv.set_num_threads(n)
            assert qkv.num_threads() == n
            out, lse = qkv.scaled_dot_product_attention(q, k, v, causal=True, return_lse=True)
            results.append((out, lse, *qkv.scaled_dot_product_attention_backward(q, q, k, v, out, lse, causal=True)))
    finally:
        qkv.set_num_threads(before)
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other))
    alone = qkv.scaled_dot_product_attention(q[1:], k[1:], v[1:], causal=True)
    assert np.array_equal(alone, results[0][0][1:])


def ticks_within_a_call(inputs):
    """Whether another thread ran while the call did."""
    moments, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            moments.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        time.sleep(0.02)
        start = time.perf_counter()
        qkv.scaled_dot_product_attention(*inputs)
        end = time.perf_counter()
    finally:
        stop.set()
        ticker.join()
    # With the GIL held nobody ticks in between. The margins leave out hand-overs at both ends.
    margin = (end - start) / 10
    return any(start + margin < m < end - margin for m in moments)


def test_other_threads_run_during_a_call():
    # A busy machine may leave the other thread no core for the length of a call; with the GIL held it never runs.
    threads = qkv.num_threads()
    qkv.set_num_threads(1)
    try:
        inputs = arrays(3000)
        assert any(ticks_within_a_call(inputs) for _ in range(20))
    finally:
        qkv.set_num_threads(threads)


def test_many_callers_at_once():
    inputs = [arrays(64, seed=i) for i in range(4)]
    wanted = [qkv.scaled_dot_product_attention(*x) for x in inputs]
    wrong = []

    def work(i):
        for _ in range(50):
            if not np.array_equal(qkv.scaled_dot_product_attention(*inputs[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_array_that_another_thread_lets_go_is_kept_until_the_end():
    holder = {name: x for name, x in zip("qkv", arrays(2048))}
    copies = [x.copy() for x in holder.values()]
    names = list(holder)

    def let_go():
        time.sleep(0.01)
        holder.clear()
        gc.collect()
        for _ in range(20):
            np.full_like(copies[0], np.nan)  # takes the memory again, if it is free

    thread = threading.Thread(target=let_go)
    thread.start()
    # Popped: from here on the call alone refers to the arrays, by its arguments.
    out = qkv.scaled_dot_product_attention(*[holder.pop(n) for n in names])
    thread.join()
    assert np.array_equal(out, qkv.scaled_dot_product_attention(*copies))


def test_memory_in_use_cannot_be_resized():
    memory = bytearray(4 * 4)
    array = np.frombuffer(memory, np.uint8).reshape(4, 4)
    mask = Mask.keep(array)
    with pytest.raises(BufferError):
        memory.extend(b"more")
    del mask, array
    gc.collect()
    memory.extend(b"more")


def test_a_mask_keeps_its_array_and_lets_it_go():
    class Watched(np.ndarray):
        pass

    array = np.ones((4, 4), bool).view(Watched)
    gone = weakref.ref(array)
    mask = Mask.keep(array) & Mask.causal()
    del array
    gc.collect()
    assert gone() is not None
    q = np.ones((1, 1, 4, 2), np.float32)
    assert np.allclose(qkv.scaled_dot_product_attention(q, q, q, mask=mask), 1)
    del mask
    gc.collect()
    assert gone() is None


def test_inputs_are_released_after_the_call():
    q, k, v = arrays(8)
    before = [sys.getrefcount(x) for x in (q, k, v)]
    for _ in range(10):
        qkv.scaled_dot_product_attention(q, k, v)
    assert [sys.getrefcount(x) for x in (q, k, v)] == before


def test_results_outlive_everything():
    out = qkv.scaled_dot_product_attention(*arrays(8))
    copy = out.copy()
    gc.collect()
    for _ in range(50):
        qkv.scaled_dot_product_attention(*arrays(8, seed=7))
    assert np.array_equal(out, copy)
    out += 1  # ours to change


def test_inputs_are_not_changed():
    q, k, v = arrays(33)
    copies = [x.copy() for x in (q, k, v)]
    out, lse = qkv.scaled_dot_product_attention(q, k, v, return_lse=True)
    qkv.scaled_dot_product_attention_backward(out, q, k, v, out, lse)
    assert all(np.array_equal(a, b) for a, b in zip((q, k, v), copies))


def test_never_reads_beside_its_arrays():
    """Arrays that end where their memory ends: a byte more would be a fault of the processor."""
    libc, page = ctypes.CDLL(None, use_errno=True), os.sysconf("SC_PAGE_SIZE")
    import mmap

    held = []

    def at_the_end(values):
        pages = -(-values.nbytes // page)
        memory = mmap.mmap(-1, (pages + 1) * page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(ctypes.c_void_p(address + pages * page), ctypes.c_size_t(page), 0) == 0
        array = np.frombuffer(memory, values.dtype, values.size, pages * page - values.nbytes).reshape(values.shape)
        array[...] = values
        held.append(memory)
        return array

    rng = np.random.default_rng(0)
    for n, d in ((1, 1), (3, 7), (17, 33), (65, 65)):
        q, k, v = (at_the_end(rng.standard_normal((1, 2, n, d)).astype(np.float32)) for _ in range(3))
        mask = Mask.keep(at_the_end(rng.random((n, n)) < 0.7)) & Mask.additive(at_the_end(rng.standard_normal((n, n)).astype(np.float32)))
        out, lse = qkv.scaled_dot_product_attention(q, k, v, mask=mask, return_lse=True)
        qkv.scaled_dot_product_attention_backward(at_the_end(out), q, k, v, at_the_end(out), at_the_end(lse), mask=mask)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_too():
    q, k, v = arrays(256)
    wanted = qkv.scaled_dot_product_attention(q, k, v)  # the pool has threads now
    child = os.fork()
    if child == 0:
        good = np.array_equal(qkv.scaled_dot_product_attention(q, k, v), wanted)
        os._exit(0 if good else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert np.array_equal(qkv.scaled_dot_product_attention(q, k, v), wanted)
