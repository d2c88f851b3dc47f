"""Attention from its definition, in double precision: what the package is held against."""
import numpy as np


def visible_and_bias(shape, *, causal=False, window=None, keep=None, block=None, additive=None, lengths=None, slopes=None, tokens=None):
    """(visible, bias) of shape [B, H, N, S]."""
    batch, heads, n, s = shape
    visible, bias = np.ones(shape, bool), np.zeros(shape)
    distance = np.arange(s)[None, :] - (np.arange(n)[:, None] + s - n)  # j - i'
    if causal:
        visible &= distance <= 0
    if window is not None:
        left, right = (window - 1, window - 1) if isinstance(window, int) else window
        inside = np.ones((n, s), bool)
        if left >= 0:
            inside &= distance >= -left
        if right >= 0:
            inside &= distance <= right
        for token in tokens or ():
            inside |= (np.arange(s) == token)[None, :] | (np.arange(n) + s - n == token)[:, None]
        visible &= inside
    if slopes is not None:
        bias = bias - np.asarray(slopes)[None, :, None, None] * np.abs(distance)
    if keep is not None:
        visible &= np.broadcast_to(np.asarray(keep) != 0, shape)
    if block is not None:
        visible &= ~np.broadcast_to(np.asarray(block) != 0, shape)
    if lengths is not None:
        visible &= np.arange(s)[None, None, None, :] < np.asarray(lengths)[:, None, None, None]
    if additive is not None:
        bias = bias + np.asarray(additive, float)
        visible &= ~np.isneginf(bias)
    return visible, bias


def weights_of(q, k, scale=None, softcap=None, **mask):
    """(weights, lse) of q [B, H, N, D] and k [B, Hkv, S, D]; rows without keys are 0 and -inf."""
    q, k = np.asarray(q, float), np.asarray(k, float)
    batch, heads, n, d = q.shape
    s = k.shape[2]
    k = np.repeat(k, heads // k.shape[1], axis=1)
    visible, bias = visible_and_bias((batch, heads, n, s), **mask)
    scores = np.einsum("bhnd,bhsd->bhns", q, k) * (d**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(visible, scores + np.where(visible, bias, 0), -np.inf)
    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    sums = np.where(visible, np.exp(np.where(visible, scores - np.where(np.isfinite(largest), largest, 0), 0)), 0)
    total = sums.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isfinite(largest), largest, 0))[..., 0]
    return np.divide(sums, total, out=np.zeros_like(sums), where=total > 0), lse


def forward(q, k, v, **options):
    """(out, lse)"""
    weights, lse = weights_of(q, k, **options)
    v = np.repeat(np.asarray(v, float), q.shape[1] // v.shape[1], axis=1)
    return np.einsum("bhns,bhsd->bhnd", weights, v), lse


def backward(dout, q, k, v, scale=None, softcap=None, **mask):
    """(dq, dk, dv, gradient of the bias [B, H, N, S])"""
    dout, q, k, v = (np.asarray(x, float) for x in (dout, q, k, v))
    heads, kv_heads, d = q.shape[1], k.shape[1], q.shape[3]
    scale = d**-0.5 if scale is None else scale
    weights, _ = weights_of(q, k, scale, softcap, **mask)
    wide_k, wide_v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    dweights = np.einsum("bhnd,bhsd->bhns", dout, wide_v)
    dbias = weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    dscores = dbias * scale
    if softcap is not None:
        dscores = dscores * (1 - np.tanh(np.einsum("bhnd,bhsd->bhns", q, wide_k) * scale / softcap) ** 2)
    dk = np.einsum("bhns,bhnd->bhsd", dscores, q)
    dv = np.einsum("bhns,bhnd->bhsd", weights, dout)

    def grouped(x):
        return x.reshape(x.shape[0], kv_heads, heads // kv_heads, *x.shape[2:]).sum(2)

    return np.einsum("bhns,bhsd->bhnd", dscores, wide_k), grouped(dk), grouped(dv), dbias


def linear(q, k, v, causal=False):
    """elu + 1 linear attention of [B, H, N, D]."""
    q, k, v = (np.asarray(x, float) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    phi = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k)]
    weights = np.einsum("bhnd,bhsd->bhns", *phi)
    if causal:
        weights = np.tril(weights)
    return np.einsum("bhns,bhsd->bhnd", weights / weights.sum(-1, keepdims=True), v)


def error(got, wanted):
    """Largest difference over largest value; a difference in what is not finite is infinite."""
    got, wanted = np.asarray(got, float), np.asarray(wanted, float)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if got.size == 0:
        return 0.0
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return np.inf
    largest = np.max(np.abs(wanted[finite]), initial=1e-30)
    return np.max(np.abs(got[finite] - wanted[finite]), initial=0) / max(largest, 1e-3)
