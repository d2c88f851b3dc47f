"""Is this attention right? Is this model?

    report = qkv.doctor.check(attention=my_function, mask="keep")
    print(report)                      # a table: what is wrong, the figures, why, what to change
    assert report.ok

The function may be written in PyTorch or NumPy; it is called on small seeded inputs, and what comes back is compared with the
definition in double precision. docs/doctor.md lists the rules.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _core
from ._probed import attention_adapter, generators_kept, model_adapter
from .errors import ArgumentError

__all__ = ["Finding", "Omission", "Report", "check"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    id: str  # of the rule, stable: "scale"
    severity: str  # "error", "warning", "note"
    where: str  # what was called and how, tensor, key or file
    evidence: dict[str, Any]  # the figures that decided
    why: str
    remedy: str
    doc: str  # page of the rule
    follows: str | None = None  # id of the earlier error that this one may come from


@dataclass(frozen=True)
class Omission:
    """A rule that was not asked, or that had too little to go by."""

    id: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What the doctor says: an iterable of findings, errors first and causes before consequences."""

    findings: list[Finding]
    skipped: list[Omission] = field(default_factory=list)
    undecided: list[Omission] = field(default_factory=list)
    text: str = ""

    @property
    def ok(self) -> bool:
        """No error."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "warning"]

    def to_json(self, indent: int | None = None) -> str:
        """{"ok", "findings", "skipped", "undecided"} as text."""
        lists = {name: [vars(x) for x in getattr(self, name)] for name in ("findings", "skipped", "undecided")}
        return json.dumps({"ok": self.ok, **lists}, indent=indent, ensure_ascii=False)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<qkv.doctor.Report: {', '.join(f'{f.severity} {f.id}' for f in self.findings) or 'nothing found'}>"


def _report(parts: tuple[str, str]) -> Report:
    body = json.loads(parts[0])
    omissions = {name: [Omission(**o) for o in body[name]] for name in ("skipped", "undecided")}
    return Report([Finding(**f) for f in body["findings"]], text=parts[1], **omissions)


def check(
    path: str | os.PathLike[str] | None = None,
    *,
    attention: Callable[..., Any] | None = None,
    model: Callable[..., Any] | None = None,
    scale: float | None = None,
    mask: str | None = None,
    causal: bool | None = None,
    window: int | None = None,
    framework: str | None = None,
    kv_heads: int | None = None,
    head_size: int | None = None,
    rope: str | None = None,
    rope_base: float = 10000.0,
    vocab_size: int | None = None,
    max_length: int | None = None,
    time_limit: float = 10.0,
) -> Report:
    """Examines one of: an attention function, a model, or a path (a model folder, a .safetensors file, or "machine").

    attention: fn(q, k, v, **kw) of arrays [batch, heads, length, head size]. It is given `mask` ([batch, 1, queries, keys]),
    `is_causal` and `window` if it has parameters of these names; it returns the output, or (output, weights).
      mask: what its mask means: "keep" (True may attend), "block" (True is hidden), "additive"; None: masks are not probed.
      scale: if it is meant to be another than 1 / sqrt(head size). window: a window that it always applies.
      causal: True: it is causal without being asked; False: causality is not probed; None: only if it has is_causal.
      kv_heads: number of key/value heads, for grouped attention. head_size: the only one that it takes.
      rope: if it rotates q and k by their positions itself: "half" (channel c with c + D / 2) or "interleaved" (2c with 2c + 1).
    model: fn(ids, attention_mask) of integers [batch, length] (1 = real) to [batch, length, width], or a module of
    transformers. vocab_size and max_length are needed unless the module's configuration says them. causal: True if no token
    may see later ones.
    framework: "torch" or "numpy"; None tries PyTorch first. time_limit: seconds for one call.
    """
    given = [x for x in (path, attention, model) if x is not None]
    if len(given) != 1:
        raise ArgumentError(f"[doctor] expected one of a path, attention= and model=, got {len(given)}")
    if framework not in (None, "torch", "numpy"):
        raise ArgumentError(f"[doctor] expected framework 'torch', 'numpy' or None, got {framework!r}")
    if mask not in (None, "keep", "block", "additive"):
        raise ArgumentError(f"[doctor] expected mask 'keep', 'block', 'additive' or None, got {mask!r}")
    if path is not None:
        return _report(_core._check_machine() if os.fspath(path) == "machine" else _core._check_path(path))
    if not callable(given[0]):
        raise ArgumentError(f"[doctor] expected a function, got {type(given[0]).__name__}")
    with generators_kept():
        if attention is not None:
            adapter = attention_adapter(attention, framework, mask, head_size or 16, kv_heads, float(time_limit))
            return _report(_core._check_attention(
                adapter, mask=mask if adapter.mask_name else None,
                takes_causal=adapter.causal_name is not None and causal is not False,
                always_causal=causal is True and adapter.causal_name is None, takes_window=adapter.window_name is not None,
                scale=scale, head_size=head_size, kv_heads=kv_heads, window=window, rope=rope, rope_base=float(rope_base),
                time_limit=float(time_limit)))
        adapter = model_adapter(model, framework, vocab_size, max_length, causal, float(time_limit))
        return _report(_core._check_model(adapter, vocab_size=adapter.vocab_size, max_length=adapter.max_length,
                                          causal=adapter.causal, takes_padding=adapter.takes_padding,
                                          time_limit=float(time_limit)))
