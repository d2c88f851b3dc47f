"""scaled_dot_product_attention of PyTorch at given shapes, forward and forward with backward, fp32.

usage: attention_turns.py SHAPES.json [--turns]

SHAPES.json: a list of {"name", "heads", "d", "lengths": [...], "causal"}. Sequences of unequal length are padded to the
longest with a boolean key mask (PyTorch has no ragged form that is fast on processors). Both of PyTorch's paths, fused and plain, are
tried once; the faster one is timed. Prints one JSON object per shape: name, forward, both (seconds, best of the turn). With --turns
it repeats that for each line read on stdin.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"fused": SDPBackend.FLASH_ATTENTION, "plain": SDPBackend.MATH}


class Case:
    def __init__(self, spec: dict):
        lengths, heads, d = spec["lengths"], spec["heads"], spec["d"]
        n = max(lengths)
        self.spec = spec
        shape = (len(lengths), heads, n, d)
        self.q, self.k, self.v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        self.gradient = torch.randn(shape)
        self.causal = bool(spec.get("causal", False))
        self.mask = None
        if min(lengths) < n:
            keep = torch.arange(n)[None, :] < torch.tensor(lengths)[:, None]
            self.mask = keep[:, None, None, :]
            if self.causal:
                self.mask = self.mask & torch.ones(n, n, dtype=torch.bool).tril()
        self.backend = min(BACKENDS, key=self.try_backend)

    def forward(self) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.q, self.k, self.v, attn_mask=self.mask, is_causal=self.causal and self.mask is None)

    def both(self) -> None:
        torch.autograd.grad(self.forward(), (self.q, self.k, self.v), self.gradient)

    def try_backend(self, name: str) -> float:
        try:
            with sdpa_kernel(BACKENDS[name]):
                self.both()
                return min(timed(self.both) for _ in range(2))
        except RuntimeError:
            return float("inf")

    def measure(self, seconds: float) -> dict:
        with sdpa_kernel(BACKENDS[self.backend]):
            with torch.no_grad():
                forward = repeat(self.forward, seconds)
            both = repeat(self.both, seconds)
        return {"name": self.spec["name"], "backend": self.backend, "forward": forward, "both": both}


def timed(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def repeat(f, seconds: float) -> float:
    """Median of at least 3 runs that fill `seconds`, after one that is not counted."""
    f()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        times.append(timed(f))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="time spent on each figure in a turn")
    parser.add_argument("--turns", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    cases = [Case(spec) for spec in json.loads(args.shapes.read_text())]
    if args.turns:
        print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
    for _ in sys.stdin if args.turns else [""]:
        results = [case.measure(args.seconds) for case in cases]
        if args.turns:
            print(json.dumps(results), flush=True)
        else:
            for result in results:
                print(json.dumps(result))


if __name__ == "__main__":
    main()
