"""A gallery of broken attentions and models in NumPy and PyTorch, one fault each.

`numpy_attention(fault)` and `torch_attention(fault)` give a function; fault None gives the healthy twin.
"""
from __future__ import annotations

import math
import time

import numpy as np

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

# fault -> (rule that must find it first, keywords for check)
NUMPY = {
    "no_scale": ("scale", {}),
    "scale_by_root_of_root": ("scale", {}),
    "softmax_over_queries": ("rows-sum", {}),
    "softmax_over_heads": ("rows-sum", {}),
    "not_divided": ("rows-sum", {}),
    "off_by_one_softmax": ("rows-sum", {}),
    "mask_ignored": ("mask-ignored", {}),
    "mask_inverted": ("mask-polarity", {}),
    "mask_zero_filled": ("mask-value", {}),
    "mask_times_scores": ("mask-value", {}),
    "mask_minus_100": ("mask-value", {}),
    "mask_minus_1e9": ("mask-value", {}),
    "mask_after_softmax": ("rows-sum", {}),
    "empty_rows_nan": ("empty-row", {}),
    "masks_or": ("mask-combination", {}),
    "causal_wins_over_mask": ("mask-combination", {}),
    "causal_ignored": ("future-leak", {}),
    "causal_sees_next": ("future-leak", {}),
    "causal_top_left": ("causal-corner", {}),
    "causal_without_itself": ("causal-corner", {}),
    "heads_tiled": ("head-groups", {"kv_heads": 2}),
    "normalised": ("normalised-qk", {}),
    "dropout": ("dropout-alive", {}),
    "noise": ("nondeterminism", {}),
    "float16": ("dtype-drift", {}),
    "no_maximum": ("non-finite", {}),
    "tokens_first": ("shape", {}),
    "raises": ("exception", {}),
    "nan": ("non-finite", {}),
    "in_place": ("views", {}),
    "last_query_alone": ("cache", {}),
    "window_too_wide": ("window-edge", {"window": 3}),
    "batch_mixed": ("batch-mates", {}),
    "padding_counted": ("padding-amount", {}),
}


def _softmax(x, axis=-1):
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


def numpy_attention(fault=None, window=None):
    generator = np.random.default_rng(3)

    def attention(q, k, v, mask=None, is_causal=False):
        if fault == "raises":
            raise RuntimeError("no kernel for this")
        if fault == "in_place":
            q *= np.float32(0.5)
            q, k = q * 2, k
        if fault == "float16":
            q, k, v = (x.astype(np.float16) for x in (q, k, v))
        d, n, s = q.shape[-1], q.shape[2], k.shape[2]
        if q.shape[1] != k.shape[1]:
            group = q.shape[1] // k.shape[1]
            repeat = (lambda x: np.tile(x, (1, group, 1, 1))) if fault == "heads_tiled" else (lambda x: np.repeat(x, group, 1))
            k, v = repeat(k), repeat(v)
        if fault == "normalised":
            q = q / np.linalg.norm(q, axis=-1, keepdims=True)
        if fault == "batch_mixed":
            k = k.mean(0, keepdims=True) + 0 * k
        scale = {"no_scale": 1.0, "scale_by_root_of_root": d**-0.25}.get(fault, d**-0.5)
        if fault == "padding_counted" and mask is not None:
            scale *= 1 + 0.01 * (s - 9)
        scores = q @ k.swapaxes(-1, -2) * np.asarray(scale, q.dtype)
        i, j = np.arange(n)[:, None] + (0 if fault == "causal_top_left" else s - n), np.arange(s)
        past = j <= i + {"causal_sees_next": 1, "causal_without_itself": -1}.get(fault, 0)
        if not is_causal or fault == "causal_ignored":
            past = np.ones_like(past)
        if window:
            past = past & (abs(i - j) < window + (fault == "window_too_wide"))
        keep = np.ones((1, 1, 1, 1), bool) if mask is None or fault == "mask_ignored" else mask
        keep = ~keep if fault == "mask_inverted" and mask is not None else keep
        if fault == "causal_wins_over_mask" and is_causal:
            keep = np.ones_like(keep)
        if fault == "mask_after_softmax":
            return (_softmax(np.where(past, scores, -np.inf)) * keep) @ v
        visible = keep | past if fault == "masks_or" and mask is not None and is_causal else keep & past
        fill = {"mask_zero_filled": 0.0, "mask_minus_100": -100.0, "mask_minus_1e9": -1e9}.get(fault, -np.inf)
        hidden = np.where(past, fill, -np.inf).astype(q.dtype)
        scores = scores * keep if fault == "mask_times_scores" else np.where(visible, scores, hidden)
        if fault == "mask_times_scores":
            scores = np.where(past, scores, -np.inf)
        if fault == "last_query_alone" and n == 1:
            scores[..., -1] = -np.inf if s > 1 else 0
        weights = {"softmax_over_queries": lambda: _softmax(scores, 2), "softmax_over_heads": lambda: _softmax(scores, 1),
                   "not_divided": lambda: np.exp(scores - scores.max(-1, keepdims=True)),
                   "off_by_one_softmax": lambda: np.exp(scores) / (1 + np.exp(scores).sum(-1, keepdims=True)),
                   "no_maximum": lambda: np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)}
        with np.errstate(over="ignore", invalid="ignore"):
            w = weights.get(fault, lambda: _softmax(scores))()
        if fault != "empty_rows_nan":
            w = np.where(visible.any(-1, keepdims=True), w, 0) if fault not in ("mask_minus_1e9",) else w
        if fault == "dropout":
            w = w * (generator.random(w.shape) > 0.1) / 0.9
        out = np.where(w == 0, 0, w) @ v
        if fault == "noise":
            out = out + 1e-3 * generator.random(out.shape)
        if fault == "nan":
            out = out * np.nan
        return out.swapaxes(1, 2) if fault == "tokens_first" else out.astype(q.dtype)

    return attention


TORCH = {
    "no_scale": ("scale", {}),
    "scale_by_width": ("scale", {}),
    "softmax_over_queries": ("rows-sum", {}),
    "mask_ignored": ("mask-ignored", {}),
    "mask_inverted": ("mask-polarity", {}),
    "mask_zero_filled": ("mask-value", {}),
    "mask_minus_1e4": ("mask-value", {}),
    "empty_rows_nan": ("empty-row", {}),
    "masks_or": ("mask-combination", {}),
    "causal_ignored": ("future-leak", {}),
    "causal_top_left": ("causal-corner", {}),
    "heads_tiled": ("head-groups", {"kv_heads": 2}),
    "layer_norm_on_keys": ("normalised-qk", {}),
    "dropout": ("dropout-alive", {}),
    "state": ("nondeterminism", {}),
    "bfloat16": ("dtype-drift", {}),
    "detached_keys": ("gradient-missing", {}),
    "detached_weights": ("gradient-missing", {}),
    "values_through_numpy": ("gradient-missing", {}),
    "own_backward": ("gradient", {}),
    "as_strided": ("views", {}),
    "sleeps": ("exception", {"time_limit": 0.3}),
    "spins": ("exception", {"time_limit": 0.3}),
    "returns_none": ("exception", {}),
    "returns_raw_scores": ("rows-sum", {}),
}


def torch_attention(fault=None):
    calls = []

    class Softmax(torch.autograd.Function):
        """Forgets the sum over the row that softmax subtracts."""

        @staticmethod
        def forward(ctx, x):
            w = x.softmax(-1)
            ctx.save_for_backward(w)
            return w

        @staticmethod
        def backward(ctx, grad):
            return ctx.saved_tensors[0] * grad

    def attention(q, k, v, mask=None, is_causal=False):
        calls.append(1)
        if fault == "sleeps":
            time.sleep(3)
        while fault == "spins":
            pass
        d, n, s = q.shape[-1], q.shape[2], k.shape[2]
        if fault == "as_strided":
            q = torch.as_strided(q, q.shape, (q.shape[1] * n * d, n * d, d, 1))
        if q.shape[1] != k.shape[1]:
            group = q.shape[1] // k.shape[1]
            k, v = ((x.repeat(1, group, 1, 1) if fault == "heads_tiled" else x.repeat_interleave(group, 1)) for x in (k, v))
        if fault == "layer_norm_on_keys":
            k = nn.functional.layer_norm(k, (d,))
        if fault == "detached_keys":
            k = k.detach()
        if fault == "values_through_numpy":
            v = torch.from_numpy(v.detach().numpy())
        dtype = q.dtype
        if fault == "bfloat16":
            q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
        scale = {"no_scale": 1.0, "scale_by_width": (d * q.shape[1]) ** -0.5}.get(fault, d**-0.5)
        scores = q @ k.transpose(-1, -2) * scale
        past = torch.ones(n, s, dtype=torch.bool)
        if is_causal and fault != "causal_ignored":
            past = past.tril(0 if fault == "causal_top_left" else s - n)
        keep = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None or fault == "mask_ignored" else mask
        keep = ~keep if fault == "mask_inverted" and mask is not None else keep
        visible = keep | past if fault == "masks_or" and mask is not None and is_causal else keep & past
        fill = {"mask_zero_filled": 0.0, "mask_minus_1e4": -1e4}.get(fault, -math.inf)
        filled = scores.masked_fill(~visible, fill).masked_fill(~past & (visible == 0), -math.inf)
        if fault == "own_backward":
            weights = Softmax.apply(filled)
        else:
            weights = filled.softmax(2 if fault == "softmax_over_queries" else -1)
        if fault == "detached_weights":
            weights = weights.detach()
        if fault != "empty_rows_nan":
            weights = weights.masked_fill(~visible.any(-1, keepdim=True), 0)
        if fault == "dropout":
            weights = nn.functional.dropout(weights, 0.1)
        out = (weights @ v).to(dtype)
        if fault == "state":
            out = out + 0.01 * len(calls)
        if fault == "returns_none":
            return None
        return (out, scores) if fault == "returns_raw_scores" else out

    return attention


MODELS = {
    "mask_ignored": ("mask-ignored", None),
    "mask_zero_filled": ("padding-leak", None),
    "causal_ignored": ("future-leak", True),
    "no_positions": ("order-blind", None),
    "positions_from_one": ("position-shift", None),
    "positions_cut_off": ("position-shift", None),
    "positions_from_the_end": ("padding-amount", None),
    "train_mode": ("dropout-alive", None),
    "batch_norm": ("batch-mates", None),
    "detached_attention": ("gradient-missing", None),
    "pooled": ("shape", None),
}


def torch_model(fault=None, causal=False, length=24):
    """A small encoder, or a causal one, with learned positions."""
    torch.manual_seed(5)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(40, 16), nn.Embedding(length, 16)
            self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
            self.dropout = nn.Dropout(0.1)

        def forward(self, ids, attention_mask):
            b, n = ids.shape
            at = torch.arange(n) + (fault == "positions_from_one")
            at = n - 1 - at if fault == "positions_from_the_end" else at.clamp(max=11) if fault == "positions_cut_off" else at
            x = self.tokens(ids) + (0 if fault == "no_positions" else self.positions(at))
            q, k, v = (y.view(b, n, 2, 8).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            scores = q @ k.transpose(-1, -2) / 8**0.5
            if fault != "mask_ignored":
                scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, 0.0 if fault == "mask_zero_filled" else -1e30)
            if causal and fault != "causal_ignored":
                scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 16)
            y = self.dropout(self.out(y.detach() if fault == "detached_attention" else y))
            x = self.norm(x + y)
            if fault == "batch_norm":
                x = x - 0.5 * x.mean(0)
            return x.mean(1) if fault == "pooled" else x

    model = Model()
    return model.train() if fault == "train_mode" else model.eval()
