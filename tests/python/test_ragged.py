"""Packed sequences, weights on request, and partial results put together, against the definition in NumPy."""
import re

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import Mask

settings.register_profile("qkv", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("qkv")


def starts_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@st.composite
def packed_problems(draw):
    """(q, k, v, cu_q, cu_k, keywords, facts), q and k packed as [tokens, heads, channels]."""
    batch, kv_heads, group = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    lengths = st.lists(st.sampled_from([0, 1, 2, 5, 17, 33]), min_size=batch, max_size=batch)
    queries = draw(lengths)
    keys = queries if draw(st.booleans()) else draw(lengths)
    d, dv, dtype = draw(st.sampled_from([1, 8, 17])), draw(st.sampled_from([1, 5, 16])), draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if keys is queries and draw(st.booleans()):  # parts of one packed array
        all_three = rng.standard_normal((sum(queries), 3, kv_heads, d)).astype(dtype)
        q, k, v = (all_three[:, i] for i in range(3))
    else:
        q, k, v = (rng.standard_normal((sum(n), h, c)).astype(dtype)
                   for n, h, c in ((queries, kv_heads * group, d), (keys, kv_heads, d), (keys, kv_heads, dv)))
    keywords = {}
    if draw(st.booleans()):
        keywords["causal"] = True
    if draw(st.booleans()):
        keywords["window"] = draw(st.integers(1, 20))
    if draw(st.booleans()):
        keywords["softcap"] = 2.0
    facts = dict(keywords)
    if draw(st.booleans()):
        facts["slopes"] = qkv.alibi_slopes(q.shape[1])
        keywords["mask"] = Mask.alibi(facts["slopes"])
    return q, k, v, starts_of(queries), starts_of(keys), keywords, facts


def sequence(array, starts, b):
    """Sequence b as [1, heads, tokens, channels]."""
    return array[starts[b]:starts[b + 1]].swapaxes(0, 1)[None]


@given(packed_problems())
def test_packed_sequences_equal_single_ones(problem):
    q, k, v, cu_q, cu_k, keywords, facts = problem
    tolerance = {np.float32: 2e-5, np.float64: 1e-12}[q.dtype.type]
    boundaries = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    out, lse, weights = qkv.scaled_dot_product_attention(q, k, v, **keywords, **boundaries, return_lse=True, return_weights=True)
    assert out.shape == (len(q), q.shape[1], v.shape[2]) and lse.shape == (q.shape[1], len(q)) and len(weights) == len(cu_q) - 1
    fast = qkv.scaled_dot_product_attention(q, k, v, **keywords, **boundaries)
    dout = np.cos(np.arange(out.size, dtype=q.dtype)).reshape(out.shape)
    gradients = qkv.scaled_dot_product_attention_backward(dout, q, k, v, out, lse, **keywords, **boundaries)
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
    for b in range(len(cu_q) - 1):
        single = [sequence(x, cu, b) for x, cu in ((q, cu_q), (k, cu_k), (v, cu_k))]
        if single[0].shape[2] == 0:
            assert not any(sequence(g, cu_k, b).any() for g in gradients[1:])
            continue
        right, right_lse = reference.forward(*single, **facts)
        assert reference.error(sequence(out, cu_q, b), right) < tolerance
        assert reference.error(sequence(fast, cu_q, b), right) < tolerance
        assert reference.error(lse[:, cu_q[b]:cu_q[b + 1]], right_lse[0]) < tolerance
        assert reference.error(weights[b], reference.weights_of(*single[:2], **facts)[0][0]) < tolerance
        for got, wanted, cu in zip(gradients, reference.backward(sequence(dout, cu_q, b), *single, **facts), (cu_q, cu_k, cu_k)):
            assert reference.error(sequence(got, cu, b), wanted) < 10 * tolerance


def test_a_sequence_does_not_see_its_neighbours():
    rng = np.random.default_rng(3)
    q = rng.standard_normal((12, 2, 8)).astype(np.float32)
    kept = qkv.scaled_dot_product_attention(q, q, q, cu_seqlens_q=[0, 5, 12])
    q[5:] = np.nan
    again = qkv.scaled_dot_product_attention(q, q, q, cu_seqlens_q=[0, 5, 12])
    assert np.array_equal(kept[:5], again[:5]) and np.isnan(again[5:]).all()
    assert np.array_equal(kept[:5], qkv.scaled_dot_product_attention(q[:5], q[:5], q[:5], cu_seqlens_q=np.array([0, 5])))


def test_explains_its_choice():
    q = np.ones((9, 1, 8), np.float32)
    names = qkv.explain_attention(q, q, q, cu_seqlens_q=[0, 4, 9])
    assert names[-1][1] == "" and all(refusal for _, refusal in names[:-1])
    assert "naive" in qkv.explain_attention(q, q, q, cu_seqlens_q=[0, 4, 9], return_weights=True)[-1][0]


def test_gradient_of_a_bias_over_packed_sequences():
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((9, 2, 4)) for _ in range(3))
    bias, cu = rng.standard_normal((5, 5)), [0, 5, 9]
    keywords = {"mask": Mask.additive(bias), "cu_seqlens_q": cu}
    out, lse = qkv.scaled_dot_product_attention(q, k, v, **keywords, return_lse=True)
    *_, dbias = qkv.scaled_dot_product_attention_backward(np.ones_like(out), q, k, v, out, lse, **keywords, dbias_shape=(5, 5))
    wanted = np.zeros((5, 5))
    for b, n in enumerate((5, 4)):
        parts = [sequence(x, cu, b) for x in (q, k, v)]
        wanted[:n, :n] += reference.backward(np.ones((1, 2, n, 4)), *parts, additive=bias[:n, :n])[3].sum((0, 1))
    assert np.abs(dbias - wanted).max() < 1e-12


X = np.ones((6, 2, 4), np.float32)


def packed(q=X, k=X, v=X, **keywords):
    return qkv.scaled_dot_product_attention(q, k, v, **keywords)


REFUSED = {
    "descending": ({"cu_seqlens_q": [0, 4, 3, 6]}, qkv.ShapeError, "expected cu_seqlens_q in ascending order, got 3 after 4"),
    "beyond the end": ({"cu_seqlens_q": [0, 7]}, qkv.ShapeError, "within the 6 tokens that it divides, got 7"),
    "beyond any end": ({"cu_seqlens_q": np.array([0, 2**62])}, qkv.ShapeError, "within the 6 tokens"),
    "before the end": ({"cu_seqlens_q": [0, 5]}, qkv.ShapeError, "expected cu_seqlens_q to end with the 6 tokens that it divides, got 5"),
    "not from 0": ({"cu_seqlens_q": [1, 6]}, qkv.ShapeError, "expected cu_seqlens_q to start with 0, got 1"),
    "negative": ({"cu_seqlens_q": [-1, 6]}, qkv.ShapeError, "to start with 0, got -1"),
    "none": ({"cu_seqlens_q": []}, qkv.ShapeError, "to start with 0, got no boundary"),
    "of keys descending": ({"cu_seqlens_q": [0, 6], "cu_seqlens_k": [0, -1]}, qkv.ShapeError, "cu_seqlens_k in ascending order"),
    "fewer sequences of keys": ({"cu_seqlens_q": [0, 3, 6], "cu_seqlens_k": [0, 6]}, qkv.ShapeError, "as many sequences of keys as of queries"),
    "keys alone": ({"cu_seqlens_k": [0, 6]}, qkv.ArgumentError, "expected cu_seqlens_q beside cu_seqlens_k"),
    "other tokens": ({"k": X[:5], "v": X[:5], "cu_seqlens_q": [0, 6]}, qkv.ShapeError, "expected cu_seqlens_k for 5 tokens of k"),
    "k and v": ({"v": X[:5], "cu_seqlens_q": [0, 6]}, qkv.ShapeError, "expected k and v of equal tokens"),
    "rank": ({"q": X[None], "cu_seqlens_q": [0, 6]}, qkv.ShapeError, "of shape [tokens, heads, channels] beside cu_seqlens, got [1, 6, 2, 4]"),
    "floats": ({"cu_seqlens_q": np.array([0.0, 6.0])}, TypeError, "expected whole numbers as cu_seqlens_q, got float64"),
    "two dimensions": ({"cu_seqlens_q": np.array([[0, 6]])}, qkv.ShapeError, "expected cu_seqlens_q of shape [B + 1], got [1, 2]"),
    "text": ({"cu_seqlens_q": "06"}, TypeError, "expected whole numbers"),
    "mask of another shape": (lambda: {"cu_seqlens_q": [0, 6], "mask": Mask.keep(np.ones((5, 5), bool))}, qkv.ShapeError, "broadcasts to [1, 2, 6, 6]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    keywords, kind, words = REFUSED[name]
    with pytest.raises(kind, match=re.escape(words)):
        packed(**(keywords() if callable(keywords) else keywords))


def test_backward_of_packed_sequences_wants_what_forward_gave():
    out, lse = packed(cu_seqlens_q=[0, 6], return_lse=True)
    for bad in ({"lse": lse.T}, {"out": out[:5]}, {"dout": out[:, :1]}):
        with pytest.raises(qkv.ShapeError, match="expected"):
            qkv.scaled_dot_product_attention_backward(**{"dout": out, "q": X, "k": X, "v": X, "out": out, "lse": lse, "cu_seqlens_q": [0, 6], **bad})


@given(st.lists(st.integers(0, 2), max_size=2), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_weights_on_request(lead, causal, dtype):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((*lead, 2, n, 4)).astype(dtype) for n in (3, 5, 5))
    out, weights = qkv.scaled_dot_product_attention(q, k, v, causal=causal, return_weights=True)
    assert weights.shape == (*lead, 2, 3, 5) and weights.dtype == dtype
    if q.size:
        right, _ = reference.weights_of(q.reshape(-1, 2, 3, 4), k.reshape(-1, 2, 5, 4), causal=causal)
        assert reference.error(weights.reshape(right.shape), right) < 1e-5
        assert reference.error(weights @ v, out) < 1e-5
    names = qkv.explain_attention(q, k, v, return_weights=True) if q.size else [("naive", "")]
    assert "naive" in names[-1][0] and all("weights are asked for" in refusal for _, refusal in names[:-1])


@given(st.integers(0, 8), st.booleans(), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_partial_results_put_together(border, token_major, causal, dtype):
    rng = np.random.default_rng(border)

    def array(n, d):
        a = rng.standard_normal((2, 3, n, d) if not token_major else (2, n, 3, d)).astype(dtype)
        return a.swapaxes(1, 2) if token_major else a

    q, k, v = array(5, 4), array(8, 4), array(8, 6)
    keep = np.tril(np.ones((5, 8), bool), 1) if causal else np.ones((5, 8), bool)  # some rows have no keys on one side
    sides = [qkv.scaled_dot_product_attention(q, k[:, :, part], v[:, :, part], mask=Mask.keep(keep[:, part]), return_lse=True)
             for part in (slice(border), slice(border, None))]
    out, lse = qkv.merge_attention(*sides[0], *sides[1])
    right, right_lse = reference.forward(q, k, v, keep=keep)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    assert out.dtype == dtype and reference.error(out, right) < tolerance and reference.error(lse, right_lse) < tolerance
    dout, dlse = rng.standard_normal(out.shape).astype(dtype), rng.standard_normal(lse.shape).astype(dtype)
    gradients = qkv.merge_attention_backward(dout, *sides[0], *sides[1], out, lse, dlse=dlse)
    if dtype == np.float32:
        return
    arrays = [*sides[0], *sides[1]]
    for i, gradient in enumerate(gradients):
        finite = np.isfinite(arrays[i])
        direction = np.where(finite, rng.standard_normal(arrays[i].shape), 0)

        def loss(step, i=i, direction=direction):
            moved = [np.where(np.isfinite(x), x, x) + step * direction if j == i else x for j, x in enumerate(arrays)]
            merged, sums = qkv.merge_attention(*moved)
            return (merged * dout).sum() + np.where(np.isfinite(sums), sums * dlse, 0).sum()

        assert np.isclose((gradient * direction).sum(), (loss(1e-6) - loss(-1e-6)) / 2e-6, rtol=1e-5, atol=1e-6)


def test_packed_partial_results_put_together():
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((n, 2, 4)) for n in (5, 9, 9))
    whole = qkv.scaled_dot_product_attention(q, k, v, cu_seqlens_q=[0, 2, 5], cu_seqlens_k=[0, 4, 9], return_lse=True)
    first, last = np.r_[0:1, 4:6], np.r_[1:4, 6:9]
    sides = [qkv.scaled_dot_product_attention(q, k[at], v[at], cu_seqlens_q=[0, 2, 5], cu_seqlens_k=cu, return_lse=True)
             for at, cu in ((first, [0, 1, 3]), (last, [0, 3, 6]))]
    for got, wanted in zip(qkv.merge_attention(*sides[0], *sides[1], packed=True), whole):
        assert reference.error(got, wanted) < 1e-12


def test_partial_results_that_do_not_fit():
    out, lse = qkv.scaled_dot_product_attention(*[np.ones((2, 2, 3, 4), np.float32)] * 3, return_lse=True)
    for bad in ((out, lse, out[:1], lse[:1]), (out, lse, out, lse[:, :1]), (out, lse, out.astype(float), lse), (out, lse.astype(float), out, lse),
                (out, lse[:1], out, lse), (out[0, 0], lse, out, lse)):
        with pytest.raises(qkv.ShapeError, match="expected"):
            qkv.merge_attention(*bad)
