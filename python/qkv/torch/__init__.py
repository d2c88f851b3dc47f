"""Attention for PyTorch on the CPU, with PyTorch's own signature and meaning.

    from qkv.torch import scaled_dot_product_attention      # instead of torch.nn.functional's
    qkv.torch.packed_attention(q, k, v, cu_seqlens)         # sequences of many lengths without padding
    with qkv.torch.patched(): model(**inputs)               # any model that calls PyTorch's
    AutoModel.from_pretrained(..., attn_implementation="qkv")   # transformers, once qkv.torch has been imported

The operators are torch.ops.qkv.attention and its backward pass: they have gradients, and torch.compile keeps one graph.
"""
from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("qkv.torch needs PyTorch: pip install torch", name="torch") from error

from ._attention import scaled_dot_product_attention
from ._packed import packed_attention
from ._patch import patched
from ._transformers import register_when_imported as _register_when_imported

__all__ = ["packed_attention", "patched", "scaled_dot_product_attention"]

_register_when_imported()
