"""Attention over sequences packed without padding: the operators qkv::packed_attention and its backward pass.

q is [T, H, D], k and v are [S, Hkv, D]; sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1].
"""
from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from ..errors import ShapeError, UnsupportedError

_LIBRARY = torch.library.Library("qkv", "FRAGMENT")
_OPTIONS = "Tensor cu_q, Tensor cu_k, Tensor? seed, float dropout_p, bool causal, int left, int right, float? scale, float? softcap"
_LIBRARY.define(f"packed_attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
_LIBRARY.define(f"packed_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}) "
                "-> (Tensor, Tensor, Tensor)")


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v of each sequence, [T, H, Dv], with gradients for query, key and value.

    cu_seqlens: whole numbers [B + 1] from 0 to the number of tokens, never falling; those of keys default to those of queries.
    is_causal hangs at the last key of each sequence: query i sees keys j <= i + S - N. window as in
    qkv.scaled_dot_product_attention. Fewer heads of key and value are grouped. dropout_p draws from PyTorch's generator.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.device.type not in ("cpu", "meta"):
            raise ShapeError(f"[attention] expected {name} on the CPU, got {tensor.device}")
    left, right = (-1, -1) if window is None else (window - 1, window - 1) if isinstance(window, int) else window
    if isinstance(window, int) and window < 1:  # the library's words
        _core.Mask.window(window)
    cu_q = torch.as_tensor(cu_seqlens_q)
    cu_k = cu_q if cu_seqlens_k is None else torch.as_tensor(cu_seqlens_k)
    seed = torch.randint(0, 2**63 - 1, (), dtype=torch.int64) if dropout_p > 0.0 else None
    return torch.ops.qkv.packed_attention(query, key, value, cu_q, cu_k, seed, dropout_p, is_causal, left, right, scale, softcap)[0]


def _keywords(cu_q, cu_k, seed, dropout_p, causal, left, right, scale, softcap):
    return {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "seed": None if seed is None else seed.item(), "dropout_p": dropout_p, "causal": causal,
            "window": None if left < 0 and right < 0 else (left, right), "scale": scale, "softcap": softcap}


@torch.library.impl(_LIBRARY, "packed_attention", "CPU")
def _forward(q, k, v, *options):
    return _core.scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), **_keywords(*options), return_lse=True)


@torch.library.impl(_LIBRARY, "packed_attention_backward", "CPU")
def _backward(dout, q, k, v, out, lse, *options):
    arrays = [x.detach() for x in (dout, q, k, v, out, lse)]
    return _core.scaled_dot_product_attention_backward(*arrays, **_keywords(*options))


@torch.library.register_fake("qkv::packed_attention", lib=_LIBRARY)
def _shapes(q, k, v, *_):
    statistic = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2])), q.new_empty((q.shape[1], q.shape[0]), dtype=statistic)


@torch.library.register_fake("qkv::packed_attention_backward", lib=_LIBRARY)
def _backward_shapes(dout, q, k, v, *_):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx, inputs, output):
    q, k, v, cu_q, cu_k, seed, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k, seed)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, dout, _):
    q, k, v, out, lse, cu_q, cu_k, seed = ctx.saved_tensors
    gradients = torch.ops.qkv.packed_attention_backward(dout, q, k, v, out, lse, cu_q, cu_k, seed, *ctx.options)
    return *gradients, *(None,) * 9


def _refuse_second(ctx, *_):
    raise UnsupportedError("[attention] expected to be differentiated once, got a second time: gradients of gradients are not there")


torch.library.register_autograd("qkv::packed_attention", _gradients, setup_context=_keep, lib=_LIBRARY)
torch.library.register_autograd("qkv::packed_attention_backward", _refuse_second, lib=_LIBRARY)
