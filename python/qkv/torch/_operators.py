"""The operators qkv::attention and qkv::attention_backward: kernel, shapes, gradient.

All tensors have four dimensions [B, H, N, D]; k and v may have fewer heads. mask is boolean (True may attend) or floating
(added to the scores) and broadcasts to [B, H, N, S]. is_causal is PyTorch's: query i sees keys j <= i, and S <= N.
"""
from __future__ import annotations

import functools

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


def _fold(info, dims, tensors):
    """Each [V, B, ...] as [V B, ...]; what has no axis of its own is repeated."""
    folded = []
    for dim, x in zip(dims, tensors):
        x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        folded.append(x.flatten(0, 1))
    return folded


def _fold_mask(info, dim, mask, batch, always):
    """A mask [1 or B, ...] of all calls, or of each, for V B sequences. always: with an axis of their own, for its gradient."""
    if mask is None or (dim is None and mask.shape[0] == 1 and not always):
        return mask
    mask = mask.expand(info.batch_size, *mask.shape) if dim is None else mask.movedim(dim, 0)
    return mask.expand(-1, batch, *mask.shape[2:]).flatten(0, 1)


def _refuse_seeds(dim):
    if dim is not None:
        raise UnsupportedError("[attention] expected one seed under vmap, got one for each call: draw dropout outside of it")


def _vmap_forward(run, info, in_dims, q, k, v, mask, seed, *options):
    _refuse_seeds(in_dims[4])
    q, k, v = _fold(info, in_dims[:3], (q, k, v))
    batch = q.shape[0] // info.batch_size
    mask = _fold_mask(info, in_dims[3], mask, batch, False)
    out, lse = run(q, k, v, mask, seed, *options)
    return (out.unflatten(0, (info.batch_size, batch)), lse.unflatten(0, (info.batch_size, batch))), (0, 0)


def _vmap_backward(run, info, in_dims, dout, q, k, v, out, lse, mask, seed, *options):
    _refuse_seeds(in_dims[7])
    arrays = _fold(info, in_dims[:6], (dout, q, k, v, out, lse))
    batch, wanted = arrays[1].shape[0] // info.batch_size, options[-1]
    extent = None if mask is None else mask.shape[0 if in_dims[6] is None else (1 if in_dims[6] == 0 else 0)]
    folded = _fold_mask(info, in_dims[6], mask, batch, wanted)
    *gradients, dmask = run(*arrays, folded, seed, *options)
    gradients = [x.unflatten(0, (info.batch_size, batch)) for x in gradients]
    if wanted:
        dmask = dmask.unflatten(0, (info.batch_size, batch))
        dmask = dmask if extent != 1 or batch == 1 else dmask.sum(1, keepdim=True)
    return (*gradients, dmask), (0, 0, 0, 0 if wanted else None)


torch.library.register_autograd("qkv::attention", _gradients, setup_context=_keep, lib=_LIBRARY)
torch.library.register_autograd("qkv::attention_backward", _refuse_second, lib=_LIBRARY)
_operator = torch.ops.qkv.attention.default
_backward_operator = torch.ops.qkv.attention_backward.default
torch.library.register_vmap("qkv::attention", functools.partial(_vmap_forward, _operator), lib=_LIBRARY)
torch.library.register_vmap("qkv::attention_backward", functools.partial(_vmap_backward, _backward_operator), lib=_LIBRARY)


class _Transformed(torch.autograd.Function):
    """The operator under transforms of torch.func, which do not differentiate registered operators."""

    @staticmethod
    def forward(*inputs):
        return _operator(*inputs)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx, dout, _):
        q, k, v, out, lse, mask, seed = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3]
        dq, dk, dv, dmask = _TransformedBackward.apply(dout, q, k, v, out, lse, mask, seed, *ctx.options, wanted)
        return dq, dk, dv, dmask if wanted else None, *(None,) * 5

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _vmap_forward(_Transformed.apply, info, in_dims, *inputs)


class _TransformedBackward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs):
        return _backward_operator(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        _refuse_second(ctx)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _vmap_backward(_TransformedBackward.apply, info, in_dims, *inputs)


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
    """Whether a mode or a tracer has to see the operator."""
    return is_in_torch_dispatch_mode() or torch.jit.is_tracing()


def attention(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap):
    """The result of the operator, alone."""
    if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        return _Transformed.apply(q, k, v, mask, seed, dropout_p, is_causal, scale, softcap)[0]
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
