"""Attention against its definition in NumPy, over shapes, strides, masks and element types; and known faults by name."""
import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import Mask

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}
settings.register_profile("qkv", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("qkv")


def column(values):
    return np.asarray(values, np.float32).reshape(1, 1, -1, 1)


@st.composite
def problems(draw):
    """Arrays, the keywords of the call, and the same for the reference."""
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, s = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    d, dv = draw(st.sampled_from([1, 3, 8, 17, 64])), draw(st.sampled_from([1, 5, 16, 33]))
    heads, dtype = kv_heads * group, draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def array(*shape):
        return lay_out(draw, rng.standard_normal(shape).astype(dtype))

    mask, keywords, facts = Mask(), {}, {}
    if draw(st.booleans()):
        keywords["causal"] = facts["causal"] = True
    if draw(st.booleans()):
        keywords["softcap"] = facts["softcap"] = draw(st.sampled_from([0.5, 2.0, 30]))
    if draw(st.booleans()):
        window = draw(st.one_of(st.integers(1, 50), st.tuples(st.integers(-1, 40), st.integers(-1, 40))))
        keywords["window"] = facts["window"] = window
    if draw(st.booleans()):
        keywords["scale"] = facts["scale"] = draw(st.sampled_from([0.0, -0.5, 0.3, 1, 2.0]))
    kind = draw(st.sampled_from(["none", "keep", "block", "additive"]))
    if kind != "none":
        shape = draw(st.sampled_from([(n, s), (batch, 1, 1, s), (1, 1, n, s), (batch, 1, n, s), (batch, heads, n, s), (1, heads, 1, 1)]))
        if kind == "additive":
            values = rng.standard_normal(shape)
            values = np.where(rng.random(shape) < 0.2, -np.inf, values).astype(draw(st.sampled_from([np.float32, np.float64])))
        else:
            values = (rng.random(shape) < 0.6).astype(draw(st.sampled_from([bool, np.uint8, np.int64, np.int32, np.uint16])))
        mask = mask & getattr(Mask, kind)(lay_out(draw, values))
        facts[kind] = values
    if draw(st.booleans()):
        facts["slopes"] = qkv.alibi_slopes(heads)
        mask = mask & Mask.alibi(facts["slopes"])
    if "window" not in facts and draw(st.booleans()):
        facts["window"], facts["tokens"] = (draw(st.integers(0, 9)), draw(st.integers(0, 9))), draw(st.lists(st.integers(0, 50), max_size=3))
        mask = mask & Mask.window_with_globals(*facts["window"], facts["tokens"])
    if draw(st.booleans()):
        facts["lengths"] = rng.integers(0, s + 1, batch)
        mask = Mask.lengths(facts["lengths"]) & mask
    keywords["mask"] = mask
    return array(batch, heads, n, d), array(batch, kv_heads, s, d), array(batch, kv_heads, s, dv), keywords, facts


def lay_out(draw, a):
    """The same values in another place and with other strides."""
    form = draw(st.sampled_from(["plain", "token first", "inner", "backwards", "misaligned", "read-only", "part"]))
    if form == "token first":
        order = list(range(a.ndim))
        order[-2:-1], order[-3:-2] = order[-3:-2], order[-2:-1]
        return np.ascontiguousarray(a.transpose(order)).transpose(order)
    if form == "inner":
        return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if form == "backwards":
        return a[..., ::-1, :].copy()[..., ::-1, :]
    if form == "misaligned":
        memory = np.empty(a.nbytes + 1, np.uint8)
        moved = memory[1:].view(a.dtype).reshape(a.shape)
        moved[...] = a
        return moved
    if form == "read-only":
        a = a.copy()
        a.flags.writeable = False
        return a
    if form == "part":  # inside a larger array whose rest would be seen
        wide = np.full((*a.shape[:-1], a.shape[-1] + 3), 1 if a.dtype == bool else 77, a.dtype)
        wide[..., 1:-2] = a
        return wide[..., 1:-2]
    return a


@given(problems())
def test_forward_and_backward_equal_the_definition(problem):
    q, k, v, keywords, facts = problem
    tolerance = TOLERANCE[q.dtype.type]
    for backend in ("auto", "naive"):
        out, lse = qkv.scaled_dot_product_attention(q, k, v, **keywords, backend=backend, return_lse=True)
        wanted, wanted_lse = reference.forward(q, k, v, **facts)
        assert out.dtype == lse.dtype == q.dtype
        assert reference.error(out, wanted) < tolerance
        assert reference.error(lse, wanted_lse) < tolerance
        dout = np.cos(np.arange(out.size, dtype=q.dtype)).reshape(out.shape)
        got = qkv.scaled_dot_product_attention_backward(dout, q, k, v, out, lse, **keywords, backend=backend)
        for gradient, right, of in zip(got, reference.backward(dout, q, k, v, **facts), (q, k, v)):
            assert gradient.dtype == of.dtype
            assert reference.error(gradient, right) < 10 * tolerance


@given(problems(), st.integers(0, 5))
def test_gradient_of_a_bias(problem, form):
    q, k, v, keywords, facts = problem
    (batch, heads, n, _), s = q.shape, k.shape[2]
    shape = [(n, s), (batch, 1, 1, s), (1, 1, n, s), (batch, 1, n, s), (batch, heads, n, s), (1, heads, 1, 1)][form]
    out, lse = qkv.scaled_dot_product_attention(q, k, v, **keywords, return_lse=True)
    dout = np.cos(np.arange(out.size, dtype=q.dtype)).reshape(out.shape)
    *_, dbias = qkv.scaled_dot_product_attention_backward(dout, q, k, v, out, lse, **keywords, dbias_shape=shape)
    full = (1,) * (4 - len(shape)) + shape
    wanted = reference.backward(dout, q, k, v, **facts)[3]
    wanted = wanted.sum(axis=tuple(i for i in range(4) if full[i] == 1), keepdims=True).reshape(shape)
    assert dbias.shape == shape and dbias.dtype == q.dtype
    assert np.abs(dbias - wanted).max() < 100 * TOLERANCE[q.dtype.type] * max(np.abs(dout).max(), 1)


@given(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(["c", "broadcast", "reversed"]), st.booleans())
def test_any_leading_dimensions(lead, form, causal):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((*lead, 2, n, 4)) for n in (3, 5, 5))
    if form == "broadcast":
        k = np.broadcast_to(k[(0,) * len(lead)] if k.size else k, k.shape)
    if form == "reversed":
        q = q.copy(order="F")
    out, lse = qkv.scaled_dot_product_attention(q, k, v, causal=causal, return_lse=True)
    assert out.shape == (*lead, 2, 3, 4) and lse.shape == (*lead, 2, 3)
    if q.size:
        wanted, _ = reference.forward(q.reshape(-1, 2, 3, 4), k.reshape(-1, 2, 5, 4), v.reshape(-1, 2, 5, 4), causal=causal)
        assert reference.error(out, wanted.reshape(out.shape)) < 1e-12


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 30), st.booleans(), st.booleans())
def test_linear_attention(batch, kv_heads, group, n, causal, token_major):
    rng = np.random.default_rng(n)

    def array(heads, d):
        a = rng.standard_normal((batch, n, heads, d) if token_major else (batch, heads, n, d))
        return a.swapaxes(1, 2) if token_major else a

    q, k, v = array(kv_heads * group, 8), array(kv_heads, 8), array(kv_heads, 5)
    assert reference.error(qkv.linear_attention(q, k, v, causal=causal), reference.linear(q, k, v, causal)) < 1e-12
    dout = rng.standard_normal((batch, kv_heads * group, n, 5))
    gradients = qkv.linear_attention_backward(dout, q, k, v, causal=causal)
    step = 1e-6
    for of, gradient in zip((q, k, v), gradients):
        assert gradient.shape == of.shape
        direction = np.random.default_rng(3).standard_normal(of.shape)

        def loss(sign, of=of, direction=direction):
            moved = [x + sign * step * direction if x is of else x for x in (q, k, v)]
            return (dout * reference.linear(*moved, causal)).sum()

        assert math.isclose((gradient * direction).sum(), (loss(1) - loss(-1)) / (2 * step), rel_tol=1e-5, abs_tol=1e-6)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (0, 0, 0, 4)])
def test_nothing_in_gives_nothing_out(shape):
    q = np.ones(shape, np.float32)
    out, lse = qkv.scaled_dot_product_attention(q, q, q, return_lse=True)
    assert out.shape == shape and lse.shape == shape[:3]
    for gradient in qkv.scaled_dot_product_attention_backward(out, q, q, q, out, lse):
        assert gradient.shape == shape


def test_no_keys_gives_zeros_and_no_channels_gives_none():
    q, none = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 0, 4), np.float32)
    out, lse = qkv.scaled_dot_product_attention(q, none, none, return_lse=True)
    assert not out.any() and np.isneginf(lse).all()
    assert qkv.scaled_dot_product_attention_backward(out, q, none, none, out, lse)[1].shape == none.shape
    flat = np.ones((1, 2, 3, 0), np.float32)
    out, lse = qkv.scaled_dot_product_attention(q, q, flat, return_lse=True)
    assert out.shape == (1, 2, 3, 0) and np.allclose(lse, 2 + math.log(3))


def test_results_lie_in_memory_as_q_does():
    packed = np.random.default_rng(0).standard_normal((2, 5, 3, 4, 8)).astype(np.float32)  # [B, N, 3, H, D]
    q, k, v = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    out = qkv.scaled_dot_product_attention(q, k, v)
    assert out.transpose(0, 2, 1, 3).flags.c_contiguous  # joins its heads without a copy
    assert np.array_equal(out, qkv.scaled_dot_product_attention(q.copy(), k.copy(), v.copy()))


def test_dropout_is_a_function_of_its_seed():
    q = np.zeros((1, 1, 4, 8), np.float32)
    v = np.ones((1, 1, 4096, 8), np.float32)
    k = np.zeros_like(v)

    def call(**keywords):
        return qkv.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **keywords)

    assert np.array_equal(call(seed=1), call(seed=1)) and not np.array_equal(call(seed=1), call(seed=2))
    assert not np.array_equal(call(), call())
    assert np.abs(call(seed=2**64 - 1) - 1).max() < 0.08  # five sigma
    whole, lse = qkv.scaled_dot_product_attention(q, k, v, dropout_p=1.0, seed=0, return_lse=True)
    assert not whole.any()
    gradients = qkv.scaled_dot_product_attention_backward(np.ones_like(whole), q, k, v, whole, lse, dropout_p=1.0, seed=0)
    assert not any(g.any() for g in gradients)


def test_dropout_draws_the_same_numbers_backward():
    rng = np.random.default_rng(5)
    q, k, v, dout = (rng.standard_normal((1, 2, 6, 4)) for _ in range(4))
    keywords = {"dropout_p": 0.3, "seed": 9}
    out, lse = qkv.scaled_dot_product_attention(q, k, v, **keywords, return_lse=True)
    step, gradients = 1e-6, qkv.scaled_dot_product_attention_backward(dout, q, k, v, out, lse, **keywords)
    for i in range(3):
        direction = rng.standard_normal(q.shape)
        moved = [[x + sign * step * direction * (j == i) for j, x in enumerate((q, k, v))] for sign in (1, -1)]
        above, below = ((dout * qkv.scaled_dot_product_attention(*x, **keywords)).sum() for x in moved)
        assert math.isclose((gradients[i] * direction).sum(), (above - below) / (2 * step), rel_tol=1e-6)


def test_explains_its_choice():
    q = np.ones((1, 1, 8, 8), np.float32)
    names = [name for name, refusal in qkv.explain_attention(q, q, q) if not refusal]
    assert len(names) == 1
    assert [r for _, r in qkv.explain_attention(q, q, q, backend="naive")][-1] == ""


# Known faults of other engines, by their number in the collection.


def test_b01_row_without_keys():
    q, k, v = column([0, 0]), column([0, 0, 0]), column([1, 2, 6])
    mask = Mask.keep(np.array([[1, 1, 1], [0, 0, 0]]))
    for backend in ("auto", "naive", "flash"):
        out, lse = qkv.scaled_dot_product_attention(q, k, v, mask=mask, scale=1, backend=backend, return_lse=True)
        assert np.allclose(out.ravel(), [3, 0]) and np.isneginf(lse.ravel()[1])
        dq, dk, dv = qkv.scaled_dot_product_attention_backward(np.ones_like(out), q, k, v, out, lse, mask=mask, scale=1, backend=backend)
        assert np.allclose(dv.ravel(), 1 / 3) and not dq.any() and not dk.any()
    finite = Mask.additive(np.array([[0, 0, 0], [np.finfo(np.float32).min] * 3], np.float32))
    assert np.allclose(qkv.scaled_dot_product_attention(q, k, v, mask=finite, scale=1).ravel(), [3, 3])


def test_b04_causal_is_anchored_at_the_last_key():
    def run(n, values):
        return qkv.scaled_dot_product_attention(column([0] * n), column(np.zeros(len(values))), column(values), causal=True).ravel()

    assert np.allclose(run(2, [1, 2, 3, 4]), [2, 2.5])
    assert np.allclose(run(1, [1, 2, 3, 4]), [2.5])
    assert np.allclose(run(4, [1, 3]), [0, 0, 1, 2])


def test_b07_what_is_masked_is_not_read():
    for poison in (math.nan, math.inf, -math.inf):
        q, k, v = column([1]), column([1, poison]), column([2, poison])
        out, lse = qkv.scaled_dot_product_attention(q, k, v, mask=Mask.keep(np.array([[1, 0]])), return_lse=True)
        assert out.ravel()[0] == 2
        gradients = qkv.scaled_dot_product_attention_backward(
            np.ones_like(out), q, k, v, out, lse, mask=Mask.keep(np.array([[1, 0]])))
        assert all(np.isfinite(g).all() for g in gradients) and gradients[1].ravel()[1] == 0 == gradients[2].ravel()[1]


@pytest.mark.parametrize("heads, kv_heads", [(4, 2), (28, 4), (48, 2), (9, 3)])
def test_b08_grouped_heads(heads, kv_heads):
    q = np.zeros((1, heads, 1, 1), np.float32)
    v = np.arange(kv_heads, dtype=np.float32).reshape(1, kv_heads, 1, 1)
    out, lse = qkv.scaled_dot_product_attention(q, v * 0, v, return_lse=True)
    assert np.array_equal(out.ravel(), np.arange(heads) // (heads // kv_heads))
    dv = qkv.scaled_dot_product_attention_backward(np.ones_like(out), q, v * 0, v, out, lse)[2]
    assert np.allclose(dv, heads // kv_heads)


def test_b11_masks_of_two_kinds():
    q, k, v = column([0]), column([0, 0, 0]), column([1, 2, 9])
    for dtype in (bool, np.uint8, np.int64):
        keep = Mask.keep(np.array([[1, 1, 0]], dtype))
        assert np.isclose(qkv.scaled_dot_product_attention(q, k, v, mask=keep).item(), 1.5)
        block = Mask.block(np.array([[0, 0, 1]], dtype))
        assert np.isclose(qkv.scaled_dot_product_attention(q, k, v, mask=block).item(), 1.5)
    for bias, right in (([0, 0, -np.inf], 1.5), ([0, np.log(3), -np.inf], 1.75)):
        mask = Mask.additive(np.array([bias], np.float32))
        assert np.isclose(qkv.scaled_dot_product_attention(q, k, v, mask=mask).item(), right)


def test_b13_window_counts_the_query():
    q, v = column([0] * 6), column(range(6))

    def run(n):
        return qkv.scaled_dot_product_attention(q, q, v, causal=True, window=n).ravel()

    assert np.allclose(run(3), [0, 0.5, 1, 2, 3, 4]) and np.allclose(run(1), range(6))
    assert np.allclose(run(6), [0, 0.5, 1, 1.5, 2, 2.5]) and np.allclose(run(100), run(6))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_types_of_sixteen_bits_are_for_storage(name):
    dtype = np.dtype(name) if name == "float16" else pytest.importorskip("ml_dtypes", reason="ml_dtypes is not in this environment").bfloat16
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 9, 8)).astype(dtype).swapaxes(1, 2).copy().swapaxes(1, 2) for _ in range(3))
    out, lse = qkv.scaled_dot_product_attention(q, k, v, causal=True, return_lse=True)
    wanted, wanted_lse = reference.forward(*(x.astype(float) for x in (q, k, v)), causal=True)
    assert out.dtype == dtype and lse.dtype == np.float32 and reference.error(lse, wanted_lse) < 1e-5
    assert reference.error(out.astype(float), wanted) < 2**-7
    gradients = qkv.scaled_dot_product_attention_backward(out, q, k, v, out, lse, causal=True, dbias_shape=(9, 9))
    right = reference.backward(*(x.astype(float) for x in (out, q, k, v)), causal=True)
    for gradient, r in zip(gradients[:3], right):
        assert gradient.dtype == dtype and reference.error(gradient.astype(float), r) < 2**-6
    assert gradients[3].dtype == np.float32
    assert qkv.scaled_dot_product_attention(q[:0], k[:0], v[:0], return_lse=True)[1].dtype == np.float32
