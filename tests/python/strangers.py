"""Attentions and models as strangers write them, each in its own way: right ones that look odd, and wrong ones.

Every entry is (name, rule or None, keywords of check, function). None: no error.
"""
from __future__ import annotations

import math

import numpy as np

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    torch = None


def softmax(x, axis=-1):
    m = x.max(axis=axis, keepdims=True)
    m = np.where(np.isfinite(m), m, 0)
    e = np.exp(x - m)
    s = e.sum(axis=axis, keepdims=True)
    return np.divide(e, s, out=np.zeros_like(e), where=s > 0)


# Right, in NumPy.


def float64_inside(q, k, v, mask=None, is_causal=False):
    s = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k.astype(np.float64)) / math.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    if is_causal:
        i, j = np.ogrid[: s.shape[2], : s.shape[3]]
        s = np.where(j <= i + s.shape[3] - s.shape[2], s, -np.inf)
    return (softmax(s) @ v).astype(q.dtype)


def not_contiguous(q, k, v, mask=None):
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    out = np.matmul(softmax(s), v)
    return np.ascontiguousarray(out.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def with_weights(q, k, v, attention_mask=None):
    w = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    w = softmax(w if attention_mask is None else w + attention_mask)
    return np.einsum("bhij,bhjd->bhid", w, v), w


def row_by_row(q, k, v, mask=None, causal=False):
    """Online softmax over one key at a time."""
    out = np.zeros(q.shape[:3] + v.shape[3:], q.dtype)
    n, s = q.shape[2], k.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(n):
                top, total, acc = -np.inf, 0.0, np.zeros(v.shape[3])
                for j in range(s):
                    if (mask is not None and not mask[b, 0, i, j]) or (causal and j > i + s - n):
                        continue
                    x = float(q[b, h, i] @ k[b, h, j]) / math.sqrt(q.shape[3])
                    new = max(top, x)
                    old = math.exp(top - new)
                    total, acc = total * old + math.exp(x - new), acc * old + math.exp(x - new) * v[b, h, j]
                    top = new
                if total > 0:
                    out[b, h, i] = acc / total
    return out


def grouped(q, k, v):
    b, h, n, d = q.shape
    g = k.shape[1]
    q = q.reshape(b, g, h // g, n, d)
    w = softmax(np.einsum("bgrid,bgjd->bgrij", q, k) / d**0.5)
    return np.einsum("bgrij,bgjd->bgrid", w, v).reshape(b, h, n, v.shape[-1]).astype(q.dtype)


def rotate_half(x, base=10000.0, upto=None):
    d = x.shape[-1]
    at = np.arange(x.shape[2])[:, None] * base ** (-np.arange(0, d, 2) / d)
    if upto is not None:
        at = np.minimum(np.arange(x.shape[2]), upto)[:, None] * base ** (-np.arange(0, d, 2) / d)
    c, s = np.cos(np.concatenate([at, at], -1)), np.sin(np.concatenate([at, at], -1))
    half = np.concatenate([-x[..., d // 2:], x[..., : d // 2]], -1)
    return (x * c + half * s).astype(x.dtype)


def rotate_pairs(x):
    d = x.shape[-1]
    at = np.arange(x.shape[2])[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * at)
    return np.stack([z.real, z.imag], -1).reshape(x.shape).astype(x.dtype)


def rotary_half(q, k, v, mask=None):
    return not_contiguous(rotate_half(q), rotate_half(k), v, mask)


def rotary_pairs(q, k, v, mask=None, is_causal=False):
    return float64_inside(rotate_pairs(q), rotate_pairs(k), v, mask, is_causal)


# Wrong, in NumPy.


def rotary_without_keys(q, k, v):
    return not_contiguous(rotate_half(q), k, v)


def rotary_cut_off(q, k, v):
    return not_contiguous(rotate_half(q, upto=300), rotate_half(k, upto=300), v)


def scale_by_keys(q, k, v, mask=None):
    """1 / sqrt(length) in place of 1 / sqrt(width)."""
    s = q @ k.swapaxes(-1, -2) / math.sqrt(k.shape[2])
    return softmax(s if mask is None else np.where(mask, s, -np.inf)) @ v


def scaled_after(q, k, v, mask=None):
    """The scale is applied to the weights after softmax."""
    s = q @ k.swapaxes(-1, -2)
    return softmax(s if mask is None else np.where(mask, s, -np.inf)) / math.sqrt(q.shape[-1]) @ v


def mask_as_factor(q, k, v, mask=None):
    """Masks by multiplying what softmax gives and dividing again, but leaves out a small number for safety."""
    w = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
    if mask is not None:
        w = w * mask
        w = w / (w.sum(-1, keepdims=True) + 0.05)
    return w @ v


def mask_minus_50(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return softmax(s if mask is None else s - 50.0 * (1 - mask.astype(q.dtype))) @ v


def mask_on_queries(q, k, v, mask=None):
    """Hides rows in place of columns."""
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return softmax(s if mask is None else np.where(mask.swapaxes(-1, -2), s, -np.inf)) @ v


def causal_by_float(q, k, v, is_causal=False):
    """tril of ones added in place of masking."""
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        s = s + np.tril(np.ones(s.shape[-2:]), s.shape[-1] - s.shape[-2])
    return softmax(s) @ v


def causal_upper(q, k, v, is_causal=False):
    """triu where tril was meant."""
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        s = np.where(np.triu(np.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2]), s, -np.inf)
    return softmax(s) @ v


def cached_scores(q, k, v, seen={}):  # noqa: B006
    """Keeps the first scores of a shape for ever."""
    shape = (q.shape, k.shape)
    if shape not in seen:
        seen[shape] = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return softmax(seen[shape]) @ v


def values_of_next_key(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ np.roll(v, 1, axis=2)


def heads_joined(q, k, v):
    """Reshapes [B, H, N, D] to [B, N, H D] without a transpose, and back."""
    b, h, n, d = q.shape
    q, k, v = (x.reshape(b, -1, h, d).transpose(0, 2, 1, 3) for x in (q, k, v))
    return (softmax(q @ k.swapaxes(-1, -2) / math.sqrt(d)) @ v).transpose(0, 2, 1, 3).reshape(b, h, n, d)


def blocks_of_four(q, k, v):
    """Forgets the last block when the length is not a multiple of four."""
    s = max(4, k.shape[2] // 4 * 4) if k.shape[2] >= 4 else k.shape[2]
    return softmax(q @ k[:, :, :s].swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v[:, :, :s]


def float16_softmax(q, k, v):
    return (softmax((q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])).astype(np.float16)) @ v.astype(np.float16)).astype(q.dtype)


def temperature(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) * 1.2) @ v


def clipped_scores(q, k, v):
    return softmax(np.clip(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -1, 1)) @ v


NUMPY = [
    ("float64_inside", None, {"mask": "keep"}, float64_inside),
    ("not_contiguous", None, {"mask": "keep"}, not_contiguous),
    ("with_weights", None, {"mask": "additive"}, with_weights),
    ("row_by_row", None, {"mask": "keep"}, row_by_row),
    ("grouped", None, {"kv_heads": 2}, grouped),
    ("rotary_half", None, {"mask": "keep"}, rotary_half),
    ("rotary_half", None, {"mask": "keep", "rope": "half"}, rotary_half),
    ("rotary_pairs", None, {"mask": "keep"}, rotary_pairs),
    ("rotary_pairs", "rope-pairing", {"rope": "half"}, rotary_pairs),
    ("rotary_without_keys", "rope-pairing", {"rope": "half"}, rotary_without_keys),
    ("rotary_without_keys", "rope-pairing", {}, rotary_without_keys),
    ("rotary_cut_off", "position-shift", {"rope": "half"}, rotary_cut_off),
    ("rotary_cut_off", "position-shift", {}, rotary_cut_off),
    ("scale_by_keys", "scale", {"mask": "keep"}, scale_by_keys),
    ("scaled_after", "rows-sum", {"mask": "keep"}, scaled_after),
    ("mask_as_factor", "rows-sum", {"mask": "keep"}, mask_as_factor),
    ("mask_minus_50", "mask-value", {"mask": "keep"}, mask_minus_50),
    ("mask_on_queries", "padding-leak", {"mask": "keep"}, mask_on_queries),
    ("causal_by_float", ("mask-value", "future-leak"), {}, causal_by_float),
    ("causal_upper", "future-leak", {}, causal_upper),
    ("cached_scores", "nondeterminism", {}, cached_scores),
    ("values_of_next_key", ("reference", "batch-mates"), {}, values_of_next_key),
    ("heads_joined", "batch-mates", {}, heads_joined),
    ("blocks_of_four", ("rows-sum", "reference"), {}, blocks_of_four),
    ("float16_softmax", "dtype-drift", {}, float16_softmax),
    ("temperature", "scale", {}, temperature),
    ("temperature", None, {"scale": 0.3, "head_size": 16}, temperature),
    ("clipped_scores", "reference", {}, clipped_scores),
]

if torch is not None:

    def einops_style(q, k, v, mask=None, is_causal=False):
        b, h, n, d = q.shape
        s = torch.baddbmm(torch.zeros(b * h, n, k.shape[2], dtype=q.dtype), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=d**-0.5).unflatten(0, (b, h))
        keep = torch.ones(n, k.shape[2], dtype=torch.bool).tril(k.shape[2] - n) if is_causal else torch.ones((), dtype=torch.bool)
        keep = keep if mask is None else keep & mask
        return s.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0.0) @ v

    def lowest_of_type(q, k, v, attn_mask=None):
        """As many published models: the lowest finite number, and zeros for rows without keys."""
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            s = s.masked_fill(~attn_mask, torch.finfo(s.dtype).min)
        w = F.softmax(s, dim=-1, dtype=torch.float32 if s.dtype != torch.float64 else s.dtype).to(v.dtype)
        return w @ v if attn_mask is None else (w * attn_mask.any(-1, keepdim=True)) @ v, w

    def additive_float(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), None

    class Wrapped(nn.Module):
        """A module with dropout that is off."""

        def __init__(self, p=0.1):
            super().__init__()
            self.drop = nn.Dropout(p)

        def forward(self, q, k, v, mask=None):
            s = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
            if mask is not None:
                s = torch.where(mask, s, torch.tensor(-torch.inf, dtype=s.dtype))
            return torch.einsum("bhij,bhjd->bhid", self.drop(torch.nan_to_num(s.softmax(-1))), v)

    def rotary_torch(q, k, v, is_causal=True):
        n, d = max(q.shape[2], k.shape[2]), q.shape[3]
        at = torch.outer(torch.arange(n, dtype=torch.float32), 500000.0 ** (-torch.arange(0, d, 2) / d))
        turn = torch.polar(torch.ones_like(at), at)
        q, k = (torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()) * turn[: x.shape[2]]).flatten(-2).to(x.dtype)
                for x in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def forgets_to_transpose_back(q, k, v):
        b, h, n, d = q.shape
        out = (q @ k.mT / d**0.5).softmax(-1) @ v
        return out.transpose(1, 2).reshape(b, h, n, d)

    def half_inside(q, k, v, mask=None):
        s = (q.bfloat16() @ k.bfloat16().mT) / q.shape[-1] ** 0.5
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        return (s.softmax(-1).nan_to_num() @ v.bfloat16()).to(q.dtype)

    def mask_of_batch_0(q, k, v, mask=None):
        s = q @ k.mT / q.shape[-1] ** 0.5
        return (s if mask is None else s.masked_fill(~mask[:1], -torch.inf)).softmax(-1).nan_to_num() @ v

    def blocked_for_kept(q, k, v, mask=None):
        s = q @ k.mT / q.shape[-1] ** 0.5
        return (s if mask is None else s.masked_fill(mask, -torch.inf)).softmax(-1).nan_to_num() @ v

    def scale_before_and_in(q, k, v):
        return F.scaled_dot_product_attention(q / q.shape[-1] ** 0.5, k, v)

    def no_gradient_through_keys(q, k, v):
        with torch.no_grad():
            k = k * 1.0
        return F.scaled_dot_product_attention(q, k, v)

    def straight_through(q, k, v):
        """Hard choice forward, soft gradient."""
        w = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        hard = F.one_hot(w.argmax(-1), w.shape[-1]).to(w.dtype)
        return (hard + w - w.detach()) @ v

    TORCH = [
        ("einops_style", None, {"mask": "keep"}, einops_style),
        ("lowest_of_type", None, {"mask": "keep"}, lowest_of_type),
        ("additive_float", None, {"mask": "additive"}, additive_float),
        ("wrapped", None, {"mask": "keep"}, Wrapped().eval()),
        ("rotary_torch", None, {}, rotary_torch),
        ("wrapped in training", "dropout-alive", {"mask": "keep"}, Wrapped().train()),
        ("forgets_to_transpose_back", ("batch-mates", "reference"), {}, forgets_to_transpose_back),
        ("half_inside", "dtype-drift", {"mask": "keep"}, half_inside),
        ("mask_of_batch_0", "batch-mates", {"mask": "keep"}, mask_of_batch_0),
        ("blocked_for_kept", "mask-polarity", {"mask": "keep"}, blocked_for_kept),
        ("scale_before_and_in", "scale", {}, scale_before_and_in),
        ("no_gradient_through_keys", "gradient-missing", {}, no_gradient_through_keys),
        ("straight_through", "saturated", {}, straight_through),
    ]

    def sinusoids(n, d):
        at = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        return torch.cat([at.sin(), at.cos()], -1)

    class Encoder(nn.Module):
        """Built of PyTorch's own layers, with sinusoids."""

        def __init__(self, fault=None, width=32):
            super().__init__()
            torch.manual_seed(3)
            self.fault = fault
            self.tokens = nn.Embedding(50, width)
            nn.init.normal_(self.tokens.weight, std=width**-0.5)
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids, attention_mask):
            n, d = ids.shape[1], self.tokens.weight.shape[1]
            x = self.tokens(ids) * (1 if self.fault == "no sqrt" else d**0.5)
            at = torch.arange(n)
            if self.fault == "positions over padding":
                at = torch.arange(n) - (attention_mask == 0).sum()
            if self.fault == "first token later":
                at = at.clamp(min=4)
            places = sinusoids(200, d)[at % 200]
            x = x + places * (200.0 if self.fault == "loud positions" else 1.0)
            if self.fault == "half precision":
                x = x.bfloat16().to(x.dtype)
            hidden = attention_mask == 0
            out = self.layers(x, src_key_padding_mask=None if self.fault == "no mask" else ~hidden if self.fault == "polarity" else hidden)
            if self.fault == "batch mean":
                out = out - out.mean((0, 1), keepdim=True)
            return out

    class Decoder(nn.Module):
        """A causal model with rotary positions that is called with ids alone."""

        def __init__(self, fault=None):
            super().__init__()
            torch.manual_seed(4)
            self.fault = fault
            self.tokens, self.qkv, self.out = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 32)
            nn.init.normal_(self.qkv.weight, std=0.4)

        def forward(self, ids):
            x = self.tokens(ids)
            q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            n = ids.shape[1]
            at = torch.arange(n).clamp(max=9) if self.fault == "cut off" else torch.arange(n)
            angles = torch.outer(at.float(), 10000.0 ** (-torch.arange(0, 8, 2) / 8))
            turn = torch.polar(torch.ones_like(angles), angles)
            if self.fault != "no positions":
                q, k = (torch.view_as_real(torch.view_as_complex(y.to(torch.promote_types(y.dtype, torch.float32)).unflatten(-1, (4, 2)).contiguous())
                                           * turn).flatten(-2).to(y.dtype) for y in (q, k))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.fault != "bidirectional")
            return x + self.out(y.transpose(1, 2).flatten(2))

    # (name, rule or None, causal, takes a mask, model)
    MODELS = [
        ("encoder", None, None, Encoder().eval()),
        ("encoder no mask", "mask-ignored", None, Encoder("no mask").eval()),
        ("encoder polarity", ("mask-polarity", "non-finite"), None, Encoder("polarity").eval()),
        ("encoder in training", "dropout-alive", None, Encoder().train()),
        ("encoder loud positions", "embedding-scale", None, Encoder("loud positions").eval()),
        ("encoder half precision", "dtype-drift", None, Encoder("half precision").eval()),
        ("encoder positions over padding", ("padding-amount", "batch-mates", "padding-leak", "position-shift"), None,
         Encoder("positions over padding").eval()),
        ("encoder first token later", "position-shift", None, Encoder("first token later").eval()),
        ("encoder batch mean", "batch-mates", None, Encoder("batch mean").eval()),
        ("decoder", None, True, Decoder().eval()),
        ("decoder cut off", "position-shift", True, Decoder("cut off").eval()),
        ("decoder no positions", "order-blind", True, Decoder("no positions").eval()),
        ("decoder bidirectional", "future-leak", True, Decoder("bidirectional").eval()),
    ]
else:
    TORCH, MODELS = [], []
