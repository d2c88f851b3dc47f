"""Check my own attention: the doctor on a function that looks fine and is not.

The first version below has the two faults of the incident in README.md: the scores are not divided by sqrt(d), and the padding mask
multiplies by zero where it should exclude. The doctor finds one after the other; the third version is right.

    python examples/python/check_my_attention.py
"""
import numpy as np

import qkv.doctor


def softmax(x):
    top = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)  # a row without keys gives zeros


def as_found(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = scores * mask
    return softmax(scores) @ v


def with_scale(q, k, v, mask=None):
    return as_found(q / np.sqrt(q.shape[-1], dtype=q.dtype), k, v, mask)


def mended(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


for version in (as_found, with_scale, mended):
    report = qkv.doctor.check(attention=version, mask="keep")  # True = may attend
    print(f"--- {version.__name__}: {'fine' if report.ok else 'not right'}")
    for finding in report.errors:
        if finding.follows is None:
            print(f"{finding.id} ({finding.where})\n  figures: {finding.evidence}\n  why: {finding.why}\n  do: {finding.remedy}")

assert not qkv.doctor.check(attention=as_found, mask="keep").ok
assert qkv.doctor.check(attention=mended, mask="keep").ok
