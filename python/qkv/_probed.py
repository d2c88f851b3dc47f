"""Functions of PyTorch and NumPy in the form that the probes call: arrays of NumPy in, arrays of NumPy out.

Every call runs in a thread of its own, so that one that does not return ends the examination, not the program.
"""
from __future__ import annotations

import contextlib
import copy
import ctypes
import inspect
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .errors import ArgumentError

MASK_NAMES = ("mask", "attn_mask", "attention_mask")
CAUSAL_NAMES = ("is_causal", "causal")
WINDOW_NAMES = ("window",)


class _TimeLimit(Exception):
    """A call did not return in time."""


class _Refused(Exception):
    """The function does not take inputs that ask for a gradient."""


class _Abandoned(BaseException):
    """Raised inside a call that nobody waits for any more."""


def _run(call: Callable[[], Any], limit: float) -> Any:
    """The result of call(), or its exception, or _TimeLimit after `limit` seconds."""
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["result"] = call()
        except BaseException as error:  # handed on below
            box["error"] = error

    worker = threading.Thread(target=work, name="qkv.doctor", daemon=True)
    worker.start()
    worker.join(limit)
    if worker.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(_Abandoned))
        raise _TimeLimit(f"no result after {limit:g} s")
    if "error" in box:
        raise box["error"]
    return box["result"]


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """The global random numbers of NumPy and PyTorch go on as if nobody had been here."""
    state = np.random.get_state()
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        np.random.set_state(state)
        if torch_state is not None:
            torch.set_rng_state(torch_state)


def _reseed(seed: int) -> None:
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(fn.forward if hasattr(fn, "forward") and not inspect.isroutine(fn) else fn).parameters)
    except (TypeError, ValueError):
        torch = sys.modules.get("torch")
        if torch is not None and fn is torch.nn.functional.scaled_dot_product_attention:  # built in, without a signature
            return {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
                    for name in ("attn_mask", "is_causal")}
        return {}


def _first(names: tuple[str, ...], parameters: dict[str, inspect.Parameter]) -> str | None:
    return next((n for n in names if n in parameters), None)


def _to_numpy(value: Any) -> Any:
    """Arrays of either library as fp32 or fp64; anything else as it is."""
    if value is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        return (value if value.dtype in (torch.float32, torch.float64) else value.float()).numpy()
    value = np.asarray(value)
    if value.dtype == object or value.dtype.kind not in "fiub":
        raise TypeError(f"expected an array of numbers, got {value.dtype}")
    return value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)


class _Probed:
    """What both kinds of functions share."""

    def __init__(self, fn: Callable[..., Any], time_limit: float) -> None:
        self.fn = fn
        self.time_limit = time_limit
        self.torch: Any = None  # the module, where the function is PyTorch's
        self.reseed = _reseed

    def arrays(self, *values: np.ndarray) -> list[Any]:
        return [self.torch.from_numpy(v) for v in values] if self.torch is not None else list(values)

    def is_own(self, value: Any) -> bool:
        """Whether a result is of the framework that is assumed."""
        return isinstance(value, self.torch.Tensor) if self.torch is not None else not type(value).__module__.startswith("torch")

    def choose(self, framework: str | None, attempt: Callable[[], Any]) -> None:
        """Takes the first framework in which attempt() gives a result of its own kind; else the one of the first failure's."""
        torch = _import_torch() if framework != "numpy" else None
        if framework == "torch" and torch is None:
            raise ArgumentError("[doctor] expected PyTorch to be installed for framework='torch', found none")
        first = None
        for candidate in [torch] if framework == "torch" else [None] if torch is None else [torch, None]:
            self.torch = candidate
            try:
                if self.is_own(attempt()):
                    return
            except _TimeLimit:
                return  # the examination will say so
            except Exception:
                pass
            first = candidate if first is None else first
        self.torch = first


class _Attention(_Probed):
    def __init__(self, fn: Callable[..., Any], mask: str | None, time_limit: float) -> None:
        super().__init__(fn, time_limit)
        parameters = _parameters(fn)
        self.style = mask
        self.mask_name = _first(MASK_NAMES, parameters)
        self.causal_name = _first(CAUSAL_NAMES, parameters)
        self.window_name = _first(WINDOW_NAMES, parameters)
        self.full_mask = False  # pass a mask that hides nothing where none is asked for

    def all_visible(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        shape = (q.shape[0], 1, q.shape[2], k.shape[2])
        return np.zeros(shape, q.dtype) if self.style == "additive" else np.full(shape, self.style != "block")

    def call(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any, causal: Any, window: Any,
             inputs: list[Any] | None = None) -> Any:
        keywords: dict[str, Any] = {}
        if mask is not None and mask.dtype.itemsize == 1:
            mask = mask.view(np.bool_)
        if mask is None and self.full_mask:
            mask = self.all_visible(q, k)
        if self.mask_name is not None and (mask is not None or self.required(self.mask_name)):
            keywords[self.mask_name] = None if mask is None else self.arrays(mask)[0]
        if self.causal_name is not None and (causal is not None or self.required(self.causal_name)):
            keywords[self.causal_name] = bool(causal)
        if self.window_name is not None and (window is not None or self.required(self.window_name)):
            keywords[self.window_name] = window
        return self.fn(*(self.arrays(q, k, v) if inputs is None else inputs), **keywords)

    def required(self, name: str) -> bool:
        return _parameters(self.fn)[name].default is inspect.Parameter.empty

    def forward(self, q: Any, k: Any, v: Any, mask: Any, causal: Any, window: Any) -> tuple[Any, Any, str]:
        def work() -> tuple[Any, str]:
            with _library_watch(self.torch) as seen:
                return self.call(q, k, v, mask, causal, window), seen(bool(causal))

        result, library = _run(work, self.time_limit)
        weights = None
        if isinstance(result, (tuple, list)):
            if not result:
                raise TypeError("expected an output, got an empty tuple")
            weights = result[1] if len(result) > 1 else None
            result = result[0]
        if result is None:
            raise TypeError("expected an output, got None")
        try:
            weights = _to_numpy(weights)
        except TypeError:
            weights = None
        return _to_numpy(result), weights, library

    def _backward(self, q: Any, k: Any, v: Any, mask: Any, causal: Any, window: Any, dout: Any) -> tuple[Any, ...]:
        def work() -> tuple[Any, ...]:
            inputs = [t.clone().requires_grad_() for t in self.arrays(q, k, v)]
            try:
                out = self.call(q, k, v, mask, causal, window, inputs)
            except Exception as error:
                raise _Refused(f"it refuses inputs that ask for a gradient: {error}") from error
            out = out[0] if isinstance(out, (tuple, list)) else out
            if not out.requires_grad:
                return None, None, None
            return self.torch.autograd.grad(out, inputs, self.torch.from_numpy(dout).to(out.dtype), allow_unused=True)

        return tuple(_to_numpy(g) for g in _run(work, 3 * self.time_limit))

    def _peak_bytes(self, q: Any, k: Any, v: Any, mask: Any, causal: Any, window: Any) -> int:
        def work() -> int:
            if self.torch is not None:
                with _largest_result() as largest:
                    self.call(q, k, v, mask, causal, window)
                return largest.bytes
            if tracemalloc.is_tracing():
                raise RuntimeError("tracemalloc is in use")
            tracemalloc.start()
            try:
                self.call(q, k, v, mask, causal, window)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        return _run(work, self.time_limit)

    @property
    def backward(self) -> Any:
        return self._backward if self.torch is not None else None

    @property
    def peak_bytes(self) -> Any:
        return self._peak_bytes


def attention_adapter(fn: Callable[..., Any], framework: str | None, mask: str | None, head_size: int,
                      kv_heads: int | None, time_limit: float) -> Any:
    adapter = _Attention(fn, mask, time_limit)
    inputs = np.random.default_rng(1).standard_normal((3, 2, kv_heads or 3, 5, head_size)).astype(np.float32)

    def attempt() -> Any:
        result = _run(lambda: adapter.call(*inputs, None, False, None), time_limit)
        return result[0] if isinstance(result, (tuple, list)) else result

    adapter.choose(framework, attempt)
    if adapter.mask_name is not None and mask is not None:
        try:
            attempt()
        except Exception:  # it may need a mask
            adapter.full_mask = True
            adapter.choose(framework, attempt)
            try:
                attempt()
            except Exception:
                adapter.full_mask = False
    return adapter


@contextlib.contextmanager
def _library_watch(torch: Any) -> Iterator[Callable[[bool], str]]:
    """Notes whether the work went to PyTorch's own attention, whose documented conventions are no faults of the caller."""
    if torch is None:
        yield lambda causal: ""
        return
    functional = torch.nn.functional
    own = {functional.scaled_dot_product_attention: "torch.nn.functional.scaled_dot_product_attention",
           functional.multi_head_attention_forward: "torch.nn.functional.multi_head_attention_forward"}
    seen: list[tuple[str, bool]] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in own:
                causal = (kwargs or {}).get("is_causal", len(args) > 5 and args[5] is True)
                seen.append((own[func], bool(causal)))
            return func(*args, **(kwargs or {}))

    with Watch():
        yield lambda causal: next((name for name, its in seen if its or not causal), "")


def _largest_result() -> Any:
    """Counts the bytes of the largest result of any operation inside."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for leaf in tree_flatten(out)[0]:
                if hasattr(leaf, "untyped_storage"):
                    self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
            return out

    return Largest()


# Families of transformers whose models are causal without being asked.
_DECODERS = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "llama", "mistral", "mixtral", "qwen2", "qwen3", "opt", "bloom", "phi",
             "phi3", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "stablelm", "starcoder2", "falcon"}


class _Model(_Probed):
    def __init__(self, fn: Callable[..., Any], vocab_size: int | None, max_length: int | None, causal: bool | None,
                 time_limit: float) -> None:
        super().__init__(fn, time_limit)
        self.copy: Any = None
        self.hugging = type(fn).__module__.startswith("transformers.") and hasattr(fn, "config")
        config = getattr(fn, "config", None) if self.hugging else None
        if causal is None and self.hugging and getattr(config, "model_type", "") in _DECODERS:
            causal = True
        self.causal = causal
        self.vocab_size = vocab_size if vocab_size is not None else _count(config, "vocab_size")
        self.max_length = max_length if max_length is not None else _positions(config)
        for name, value in (("vocab_size", self.vocab_size), ("max_length", self.max_length)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 4:
                raise ArgumentError(f"[doctor] expected {name} of at least 4, got {value!r}")
        positional = [p for p in _parameters(fn).values()
                      if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        self.takes_padding = self.hugging or len(positional) != 1 or positional[0].kind == positional[0].VAR_POSITIONAL

    def call(self, ids: Any, mask: Any, module: Any = None) -> Any:
        fn = self.fn if module is None else module
        if self.hugging:
            return _hidden(fn(input_ids=ids, attention_mask=mask))
        return _hidden(fn(ids, mask) if self.takes_padding else fn(ids))

    def forward(self, ids: Any, mask: Any) -> Any:
        def work() -> Any:
            with self.torch.no_grad() if self.torch is not None else contextlib.nullcontext():
                return self.call(*self.arrays(ids, mask))

        return _to_numpy(_run(work, self.time_limit))

    def _cached(self, ids: Any, mask: Any, chunks: list[int]) -> Any:
        def work() -> Any:
            rows, masks = self.arrays(ids, mask)
            parts, past, begin = [], None, 0
            with self.torch.no_grad():
                for size in chunks:
                    end = begin + size
                    out = self.fn(input_ids=rows[:, begin:end], attention_mask=masks[:, :end], past_key_values=past, use_cache=True)
                    parts.append(_hidden(out))
                    past, begin = out.past_key_values, end
            return self.torch.cat(parts, 1)

        return _to_numpy(_run(work, self.time_limit))

    def _wide(self) -> Any:
        """A copy of the module in fp64 that shows its attention."""
        if self.copy is None:
            self.copy = copy.deepcopy(self.fn).double()
            if self.hugging and hasattr(self.copy, "set_attn_implementation"):
                self.copy.set_attn_implementation("eager")
        return self.copy

    def _widened(self, ids: Any, mask: Any) -> Any:
        def work() -> Any:
            with self.torch.no_grad():
                return self.call(*self.arrays(ids, mask), module=self._wide())

        return _to_numpy(_run(work, 3 * self.time_limit))

    def _roughness(self, ids: Any, mask: Any) -> float:
        return _run(lambda: self._second_difference(*self.arrays(ids, mask)), 6 * self.time_limit)

    def _second_difference(self, ids: Any, mask: Any) -> float:
        """In fp64 where the module runs in it: then only what it rounds itself is left."""
        torch = self.torch
        with torch.no_grad():
            module, step, allowance = self._wide(), 2e-4, 1.0
            try:
                self.call(ids, mask, module=module)
            except RuntimeError:  # it mixes fp64 with a type of its own
                module, step, allowance = copy.deepcopy(self.fn), 1e-3, 6.0
            kept = [p.detach().clone() for p in module.parameters()]
            generator, outs = torch.Generator().manual_seed(3), []
            noise = [torch.randn(p.shape, generator=generator, dtype=p.dtype) if p.is_floating_point() else None for p in kept]
            for steps in range(3):
                for parameter, start, direction in zip(module.parameters(), kept, noise):
                    if direction is not None:
                        parameter.copy_(start * (1 + steps * step * direction))
                outs.append(self.call(ids, mask, module=module).double())
            for parameter, start in zip(module.parameters(), kept):
                parameter.copy_(start)
        change = float((outs[2] - outs[0]).abs().mean())
        return float((outs[2] - 2 * outs[1] + outs[0]).abs().mean()) / change / allowance if change > 0 else 0.0

    def _attention(self, ids: Any, mask: Any) -> list[Any]:
        def work() -> list[Any]:
            rows, masks = self.arrays(ids, mask)
            with self.torch.no_grad():
                out = self._wide()(input_ids=rows, attention_mask=masks, output_attentions=True)
            return [w for w in getattr(out, "attentions", None) or () if w is not None]

        maps = _run(work, 3 * self.time_limit)
        if not maps:
            raise ValueError("the model gives no attention weights")
        return [_to_numpy(w) for w in maps]

    def _without_gradient(self, ids: Any, mask: Any) -> list[str]:
        return _run(lambda: self._find_without_gradient(*self.arrays(ids, mask)), 6 * self.time_limit)

    def _find_without_gradient(self, ids: Any, mask: Any) -> list[str]:
        """Parameters that move the output and get no gradient."""
        torch, names = self.torch, []
        parameters = {n: p for n, p in self.fn.named_parameters() if p.requires_grad}
        base = self.call(ids, mask)
        if not parameters:
            return []
        if base.requires_grad:
            pull = torch.randn(base.shape, generator=torch.Generator().manual_seed(1), dtype=base.dtype)
            grads = dict(zip(parameters, torch.autograd.grad((base * pull).sum(), parameters.values(), allow_unused=True)))
        else:
            grads = dict.fromkeys(parameters)
        for name, grad in grads.items():
            if grad is not None and bool(grad.any()):
                continue
            parameter = parameters[name]
            kept = parameter.detach().clone()
            noise = torch.randn(kept.shape, generator=torch.Generator().manual_seed(2), dtype=kept.dtype)
            with torch.no_grad():
                parameter.add_(0.1 * noise)
                moved = self.call(ids, mask)
                parameter.copy_(kept)
            if float((moved - base.detach()).abs().max()) > 1e-4 * float(base.detach().abs().max()):
                names.append(name)
        return names

    @property
    def cached(self) -> Any:
        able = self.hugging and self.causal and "past_key_values" in _parameters(self.fn)
        return self._cached if able and self.torch is not None else None

    @property
    def widened(self) -> Any:
        return self._widened if self._can_be_copied() else None

    @property
    def roughness(self) -> Any:
        return self._roughness if self._can_be_copied() else None

    @property
    def attention(self) -> Any:
        return self._attention if self.hugging and self._can_be_copied() else None

    def _can_be_copied(self) -> bool:
        """A module of fp32 weights of which there is room for another one."""
        if self.torch is None or not isinstance(self.fn, self.torch.nn.Module):
            return False
        weights = [p for p in self.fn.parameters() if p.is_floating_point()]
        return all(p.dtype == self.torch.float32 for p in weights) and sum(p.numel() for p in weights) < 2e8

    @property
    def without_gradient(self) -> Any:
        return self._without_gradient if self.torch is not None and isinstance(self.fn, self.torch.nn.Module) else None


def model_adapter(fn: Callable[..., Any], framework: str | None, vocab_size: int | None, max_length: int | None,
                  causal: bool | None, time_limit: float) -> Any:
    adapter = _Model(fn, vocab_size, max_length, causal, time_limit)
    ids = np.full((2, 4), adapter.vocab_size - 1, np.int64)
    adapter.choose("torch" if adapter.hugging else framework,
                   lambda: _run(lambda: adapter.call(*adapter.arrays(ids, np.ones_like(ids))), time_limit))
    return adapter


def _hidden(out: Any) -> Any:
    """The hidden states (or logits) of what a model returns."""
    for name in ("last_hidden_state", "logits"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    return out[0] if isinstance(out, (tuple, list)) and out else out


def _count(config: Any, name: str) -> int | None:
    return getattr(config, name, None)


def _positions(config: Any) -> int | None:
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if limit is not None and getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer"):
        limit -= (getattr(config, "pad_token_id", None) or 0) + 1  # their first rows are kept for padding
    return limit
