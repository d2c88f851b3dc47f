"""qkv: a Transformer engine for machines without a GPU.

    out = qkv.scaled_dot_product_attention(q, k, v, causal=True)      # [..., heads, length, channels]
    model = qkv.load("out/demo"); model.classify("where is my order?")
    qkv.load("all-MiniLM-L6-v2").encode(["a text", "another"]); qkv.load("model.gguf").generate("Once upon a time")

Arrays are NumPy's, or anything's with DLPack on the CPU; results come back in the form of `q`. docs/python.md has the rest.
"""
from __future__ import annotations

import importlib
from typing import Any

from . import errors
from ._api import TrainOutcome, info, train
from ._core import (
    Encoding,
    EncoderBlock,
    Mask,
    Tokenizer,
    __version__,
    alibi_slopes,
    explain_attention,
    linear_attention,
    linear_attention_backward,
    merge_attention,
    merge_attention_backward,
    num_threads,
    num_threads_reason,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
    set_num_threads,
)
from ._models import Attention, Fill, Generation, Model, Prediction, Score, Token, load
from .errors import (
    ArgumentError,
    ConfigError,
    DataError,
    Error,
    InternalError,
    IoError,
    ModelError,
    NumericError,
    ShapeError,
    UnsupportedError,
)

__all__ = [
    "ArgumentError", "Attention", "ConfigError", "DataError", "EncoderBlock", "Encoding", "Error", "Fill", "Generation", "InternalError", "IoError",
    "Mask", "Model", "ModelError", "NumericError", "Prediction", "Score", "ShapeError", "Token", "Tokenizer", "TrainOutcome", "UnsupportedError",
    "__version__", "alibi_slopes", "doctor", "errors", "explain_attention", "info", "lab", "linear_attention", "linear_attention_backward", "load",
    "merge_attention", "merge_attention_backward",
    "num_threads", "num_threads_reason", "scaled_dot_product_attention", "scaled_dot_product_attention_backward",
    "set_num_threads", "torch", "train",
]

# Parts that are imported when they are first asked for: `qkv.torch` needs PyTorch.
_LAZY = ("doctor", "lab", "torch")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
