"""The operators qkv::attention and qkv::attention_backward: kernel, shapes, gradient.

All tensors have four dimensions [B, H, N, D]; k and v may have fewer heads. mask is boolean (True may attend) or floating
(added to the scores) and broadcasts to [B, H, N, S]. is_causal is PyTorch's: query i sees keys j <= i, and S <= N.
"""
from __future__ import annotations

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .. import _core
from .._core import Mask
from ..errors import UnsupportedError

_LIBRARY = torch.library.Library("qkv", "DEF")
_OPTIONS = "Tensor? mask, Tensor? seed, float dropout_p, bool is_causal, float? scale, float? softcap"
_LIBRARY.define(f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
_LIBRARY.define(  # the fourth result is the gradient of a floating mask, empty where it is not asked for
    f"attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, "
    "bool mask_gradient) -> (Tensor, Tensor, Tensor, Tensor)")


def _keywords(q, k, mask, seed, dropout_p, is_causal, scale, softcap):
    typed = None
    if mask is not None:
        mask = mask.detach()
        typed = Mask.keep(mask) if mask.dtype == torch.bool else Mask.additive(mask)
    window = (-1, q.shape[2] - k.shape[2]) if is_causal else None
    seed = None if seed is None else seed.item()
    return {"mask": typed, "window": window, "scale": scale, "softcap": softcap, "dropout_p": dropout_p, "seed": seed}


@torch.library.impl(_LIBRARY, "attention", "CPU")
def _attention(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap):
    q, k, v = q.detach(), k.detach(), v.detach()
    keywords = _keywords(q, k, mask, seed, dropout_p, is_causal, scale, softcap)
    return _core.scaled_dot_product_attention(q, k, v, **keywords, return_lse=True)


@torch.library.impl(_LIBRARY, "attention_backward", "CPU")
def _attention_backward(dout, q, k, v, out, lse, mask, seed, dropout_p, is_causal, scale, softcap, mask_gradient):
    arrays = [x.detach() for x in (dout, q, k, v, out, lse)]
    keywords = _keywords(q, k, mask, seed, dropout_p, is_causal, scale, softcap)
    if not mask_gradient:
        return *_core.scaled_dot_product_attention_backward(*arrays, **keywords), q.new_empty(0)
    *gradients, dmask = _core.scaled_dot_product_attention_backward(*arrays, **keywords, dbias_shape=tuple(mask.shape))
    return *gradients, dmask.to(mask.dtype)


def _empty(like, channels):
    """What the kernel gives for `like`: heads and tokens follow each other in memory as there."""
    batch, heads, tokens, _ = like.shape
    if heads > 1 and tokens > 1 and like.stride(1) < like.stride(2):
        return like.new_empty((batch, tokens, heads, channels)).transpose(1, 2)
    return like.new_empty((batch, heads, tokens, channels))


@torch.library.register_fake("qkv::attention", lib=_LIBRARY)
def _attention_shapes(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap):
    return _empty(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


@torch.library.register_fake("qkv::attention_backward", lib=_LIBRARY)
def _attention_backward_shapes(dout, q, k, v, out, lse, mask, seed, dropout_p, is_causal, scale, softcap, mask_gradient):
    return *(_empty(x, x.shape[3]) for x in (q, k, v)), mask.new_empty(mask.shape) if mask_gradient else q.new_empty(0)


def _keep(ctx, inputs, output):
    q, k, v, mask, seed, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, mask, seed)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, dout, _):
    q, k, v, out, lse, mask, seed = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3]
    dq, dk, dv, dmask = torch.ops.qkv.attention_backward(dout, q, k, v, out, lse, mask, seed, *ctx.options, wanted)
    return dq, dk, dv, dmask if wanted else None, *(None,) * 5


def _refuse_second(ctx, *_):
    raise UnsupportedError("[attention] expected to be differentiated once, got a second time: gradients of gradients are not there; use "
                           "torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)")


torch.library.register_autograd("qkv::attention", _gradients, setup_context=_keep, lib=_LIBRARY)
torch.library.register_autograd("qkv::attention_backward", _refuse_second, lib=_LIBRARY)
_operator = torch.ops.qkv.attention.default


class _Direct(torch.autograd.Function):
    """The operator with its gradient, for tensors that nobody traces or transforms: without the dispatcher's 50 microseconds."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _attention(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, dout, _):
        q, k, v, out, lse, mask, seed = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3]
        # Under create_graph the operator, which refuses a second gradient in words.
        run = torch.ops.qkv.attention_backward.default if torch.is_grad_enabled() else _attention_backward
        dq, dk, dv, dmask = run(dout, q, k, v, out, lse, mask, seed, *ctx.options, wanted)
        return dq, dk, dv, dmask if wanted else None, *(None,) * 5


def _is_plain(tensor):
    return tensor is None or type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _is_watched():
    """Whether a mode, a transform or a tracer has to see the operator."""
    return is_in_torch_dispatch_mode() or torch._C._are_functorch_transforms_active() or torch.jit.is_tracing()


def attention(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap):
    """The result of the operator, alone."""
    plain = not torch.compiler.is_compiling() and _is_plain(q) and _is_plain(k) and _is_plain(v) and _is_plain(mask)
    if not plain or q.device.type != "cpu" or _is_watched():
        return _operator(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap)[0]
    if q.requires_grad or k.requires_grad or v.requires_grad or (mask is not None and mask.requires_grad):
        if torch.is_grad_enabled():
            return _Direct.apply(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap)[0]
        q, k, v = q.detach(), k.detach(), v.detach()
    if mask is None and seed is None and not is_causal:
        return _core.scaled_dot_product_attention(q, k, v, scale=scale, softcap=softcap, dropout_p=dropout_p)
    keywords = _keywords(q, k, mask, seed, dropout_p, is_causal, scale, softcap)
    return _core.scaled_dot_product_attention(q, k, v, **keywords)
