"""patched(): PyTorch's attention function replaced for a while."""
from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as functional

from ._attention import _NATIVE, scaled_dot_product_attention

_lock = threading.Lock()
_users = 0
_original = functional.scaled_dot_product_attention


def _takes(query, key, value, attn_mask, is_causal) -> bool:
    """Whether qkv computes it: plain CPU tensors of the types that it is fast in."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    for t in tensors:
        if not isinstance(t, torch.Tensor) or t.device.type != "cpu" or t.layout != torch.strided or t.is_nested:
            return False
    if query.dtype not in _NATIVE or key.dtype != query.dtype or value.dtype != query.dtype or torch.is_autocast_enabled("cpu"):
        return False
    if query.dim() != 4 or query.shape[3] == 0 or value.shape[-1] == 0:
        return False
    return attn_mask is None or (not is_causal and attn_mask.dtype in (torch.bool, torch.float32, torch.float64))


@functools.wraps(_original)
def _replacement(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    chosen = scaled_dot_product_attention if _takes(query, key, value, attn_mask, is_causal) else _original
    return chosen(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@contextmanager
def patched() -> Iterator[None]:
    """Lets every caller of torch.nn.functional.scaled_dot_product_attention in the process use qkv.

    What qkv has no fast path for (other devices, half precision, nested tensors) stays with PyTorch. May be
    nested, and entered by several threads; the last one to leave puts PyTorch's function back.
    """
    global _users
    with _lock:
        _users += 1
        functional.scaled_dot_product_attention = _replacement
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                functional.scaled_dot_product_attention = _original
