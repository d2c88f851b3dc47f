"""scaled_dot_product_attention as in torch.nn.functional, over the operator."""
from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ArgumentError, ShapeError
from ._operators import attention

_NATIVE = (torch.float32, torch.float64)
_HALF = (torch.bfloat16, torch.float16)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale * query key^T + attn_mask) value, as torch.nn.functional.scaled_dot_product_attention means it.

    attn_mask: boolean, True may attend; or floating, added to the scores; it broadcasts to [..., heads, L, S]. is_causal: query i
    sees keys j <= i, counted from the first key (not from the last, as qkv.Mask.causal does). dropout_p: always applied; its numbers
    come from PyTorch's generator. A query without visible keys gives zeros. bfloat16 and float16 are types of storage:
    scores, softmax and sums are float32.
    """
    if is_causal and attn_mask is not None:
        raise ArgumentError("[attention] expected attn_mask or is_causal, got both: put the triangle into the mask")
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap=None) -> Tensor:
    """The function above, with a soft-cap, and with a mask beside the triangle."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = _autocast(query, key, value)
    dtype, device = query.dtype, query.device
    if dtype not in _NATIVE or device.type != "cpu" or key.dtype != dtype or value.dtype != dtype or attn_mask is not None:
        _check(query, key, value, attn_mask)
    elif key.device != device or value.device != device:
        _check(query, key, value, attn_mask)
    shape, keys_shape, values_shape = query.shape, key.shape, value.shape
    if (len(shape) != 4 or len(keys_shape) != 4 or len(values_shape) != 4 or shape[0] != keys_shape[0] or shape[0] != values_shape[0]
            or keys_shape[1] != values_shape[1] or (shape[1] != keys_shape[1] and not enable_gqa)):
        query, key, value, shape = _as_four(query, key, value, enable_gqa)
    if attn_mask is not None:
        attn_mask = _mask_as_four(attn_mask, shape)
    queries, keys = query.shape[2], key.shape[2]
    if is_causal and keys > queries:  # nobody sees the keys behind the last query
        key, value = key[:, :, :queries], value[:, :, :queries]
        if attn_mask is not None and attn_mask.shape[3] != 1:
            attn_mask = attn_mask[..., :queries]
    seed = None
    if dropout_p > 0.0:
        seed = torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
    out = attention(query, key, value, attn_mask, seed, dropout_p, is_causal, scale, softcap)
    if len(shape) != 4:
        out = out.reshape(*shape[:-1], value.shape[3])
    return out


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(t.to(dtype) if t.dtype in (torch.float32, torch.bfloat16, torch.float16) else t for t in tensors)


def _check(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if tensor is not None and tensor.device.type not in ("cpu", "meta"):
            raise ShapeError(f"[attention] expected {name} on the CPU, got {tensor.device}")
    if query.dtype not in _NATIVE + _HALF or key.dtype != query.dtype or value.dtype != query.dtype:
        raise ShapeError(f"[attention] expected query, key and value of one floating type, got {query.dtype}, {key.dtype} and "
                         f"{value.dtype}")
    if attn_mask is not None and attn_mask.dtype != torch.bool and not attn_mask.dtype.is_floating_point:
        raise ShapeError(f"[attention] expected attn_mask of type bool (True may attend) or floating (added to the scores), got "
                         f"{attn_mask.dtype}")


def _as_four(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """The three as [B, H, N, D], and the shape that query stands for. Leading dimensions broadcast; so do heads, unless they are
    grouped."""
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ShapeError(f"[attention] expected tensors [..., length, channels], got {list(query.shape)}, {list(key.shape)} and "
                         f"{list(value.shape)}")
    dims = max(3, query.dim(), key.dim(), value.dim())
    wide = [t[(None,) * (dims - t.dim())] for t in (query, key, value)]
    heads = [t.shape[-3] for t in wide]
    if not enable_gqa:
        if len({h for h in heads if h != 1}) > 1:
            raise ShapeError(f"[attention] expected query, key and value with equal heads, got {heads[0]}, {heads[1]} and {heads[2]}: "
                             "enable_gqa=True groups them")
        widest = max(heads)
        wide = [wide[0].expand(*(-1,) * (dims - 3), widest, -1, -1), *wide[1:]]
        if heads[1] != heads[2]:
            wide[1:] = [t.expand(*(-1,) * (dims - 3), widest, -1, -1) for t in wide[1:]]
    lead = torch.broadcast_shapes(*(t.shape[:-3] for t in wide))
    wide = [t.expand(*lead, *t.shape[-3:]) for t in wide]
    least = max(query.dim(), key.dim(), value.dim())  # what the caller sees: no heads where nobody brought any
    shape = tuple(wide[0].shape[-least:]) if least >= 2 else tuple(wide[0].shape)
    if dims == 3:
        return *(t[None] for t in wide), shape
    return *(t.flatten(0, dims - 4) for t in wide), shape


def _mask_as_four(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    if mask.dtype in _HALF:
        mask = mask.float()
    dims = max(len(shape), 4)
    if mask.dim() > dims:
        raise ShapeError(f"[attention] expected attn_mask that broadcasts to the scores of query {list(shape)}, got {list(mask.shape)}")
    mask = mask[(None,) * (dims - mask.dim())]
    if dims == 4:
        return mask
    return mask.expand(*shape[: dims - 3], *mask.shape[-3:]).flatten(0, dims - 4)
