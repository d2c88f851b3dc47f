"""attn_implementation="qkv" for Hugging Face transformers."""
from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from types import ModuleType

import torch

from ..errors import UnsupportedError
from ._attention import attend

_MODULE = "transformers.modeling_utils"


def _forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs):
    """transformers' interface: query [B, H, N, D], key and value [B, Hkv, S, D] -> [B, N, H, D]."""
    if kwargs.get("s_aux") is not None:
        raise UnsupportedError("[attention] expected a model without attention sinks, got s_aux: use attn_implementation='eager'")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # One query is the newest: it sees every key. More of them without a mask start at the first key.
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    bias = kwargs.get("position_bias")
    if bias is not None and attention_mask is not None:
        hidden = attention_mask.dtype == torch.bool
        bias = bias.masked_fill(~attention_mask, float("-inf")) if hidden else bias + attention_mask
    mask = attention_mask if bias is None else bias
    out = attend(query, key, value, mask, dropout, is_causal, scaling, True, kwargs.get("softcap"))
    return out.transpose(1, 2).contiguous(), None


def register() -> None:
    """Makes the name known to transformers, with the masks of its own "sdpa"."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register("qkv", _forward)
    AttentionMaskInterface.register("qkv", sdpa_mask)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of transformers, which takes seconds and may never come."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner) -> None:
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        register()


def register_when_imported() -> None:
    if _MODULE in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _Finder())


