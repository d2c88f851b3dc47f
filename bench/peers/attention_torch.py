#!/usr/bin/env python3
"""Attention of qkv beside PyTorch's in one process: the two take turns, figures are medians, ratios are taken turn by turn.

usage: bench/peers/attention_torch.py PART [options]      (an interpreter that has torch and qkv, and transformers for models)

  forward, backward   D 64 and 128, N 128 to 4096, full and causal, --dtype fp32 or bf16
  ragged              packed sequences of 5 to 60 and of 5 to 256 tokens, forward with backward, against batches that are sorted by
                      length and padded; real tokens per second
  decode              one query, 32 heads over 8, D 128, against 4k to 32k cached keys (PyTorch: enable_gqa), and what reading the same
                      bytes takes
  models              BERT-base and GPT-2 of transformers, random weights, B 8, N 128 and 512, inference and training step, with and
                      without qkv.torch.patched()
  overhead            a call with 16 tokens

A part ends within --limit seconds: what was not reached is named, and `--only REGEX` takes a share of the cases. PyTorch's fused and plain
paths are both tried, and the faster one is timed. Writes OUT/attention-PART-DTYPE.json, and .svg where there is something to draw.
"""
from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from turns import ROOT, BenchmarkLock, write_results  # noqa: E402

import qkv  # noqa: E402
import qkv.torch  # noqa: E402

BACKENDS = {"fused": SDPBackend.FLASH_ATTENTION, "plain": SDPBackend.MATH}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Case:
    """Two bodies that do the same. work: operations, tokens or bytes of one run; unit: what they are, per second."""

    def __init__(self, name, ours, theirs, work, unit, group="", backends=True, x=None):
        self.name, self.ours, self.theirs, self.work, self.unit, self.group, self.x = name, ours, theirs, work, unit, group, x
        self.backends = backends


def timed(body) -> float:
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def fastest_backend(case: Case) -> str | None:
    """Which of PyTorch's paths the case is timed on; None where it chooses itself."""
    if not case.backends:
        return None
    times = {}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                case.theirs()
                times[name] = min(timed(case.theirs) for _ in range(2))
        except RuntimeError:
            continue
    return min(times, key=times.get)


def measure(case: Case, seconds: float) -> dict:
    """Turns until `seconds` are spent, at least 3; short bodies are repeated within a turn."""
    backend = fastest_backend(case)
    case.ours()

    def theirs():
        if backend is None:
            return case.theirs()
        with sdpa_kernel(BACKENDS[backend]):
            return case.theirs()

    single = timed(theirs)
    repeats = max(1, int(1e-3 / max(single, 1e-6)))
    ours_seconds, their_seconds = [], []
    while len(ours_seconds) < 3 or sum(ours_seconds) + sum(their_seconds) < seconds:
        for body, into in ((case.ours, ours_seconds), (theirs, their_seconds)):
            into.append(timed(lambda body=body: [body() for _ in range(repeats)]) / repeats)
    ours, torchs = statistics.median(ours_seconds), statistics.median(their_seconds)
    return {"name": case.name, "group": case.group, "x": case.x, "turns": len(ours_seconds), "qkv_seconds": ours, "torch_seconds": torchs,
            "ratio": statistics.median(b / a for a, b in zip(ours_seconds, their_seconds)), "torch_backend": backend,
            "qkv_rate": case.work / ours, "torch_rate": case.work / torchs, "unit": case.unit}


def randn(*shape, dtype, seed=0, grad=False):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def no_grad(body):
    def run():
        with torch.no_grad():
            return body()
    return run


def shape_cases(backward: bool, dtype):
    """H 8 and 4096 tokens in all; 2 products forward and 5 backward over the visible pairs."""
    for d in (64, 128):
        for n in (128, 512, 1024, 4096):
            for causal in (False, True):
                batch = max(1, 4096 // n)
                q, k, v = (randn(batch, 8, n, d, dtype=dtype, seed=s, grad=backward) for s in range(3))
                pairs = batch * 8 * (n * (n + 1) / 2 if causal else n * n)
                bodies = []
                for attend in (qkv.torch.scaled_dot_product_attention, F.scaled_dot_product_attention):
                    if backward:
                        gradient = randn(batch, 8, n, d, dtype=dtype, seed=3)
                        bodies.append(backward_body(attend, (q, k, v), causal, gradient))
                    else:
                        bodies.append(no_grad(lambda f=attend, q=q, k=k, v=v, c=causal: f(q, k, v, is_causal=c)))
                yield Case(f"D={d} N={n}{' causal' if causal else ''}", *bodies, (10 if backward else 4) * pairs * d, "FLOP",
                           f"D {d}{', causal' if causal else ''}", x=n)


def backward_body(attend, inputs, causal, gradient):
    """The backward pass alone: the forward pass is run once for each path that is asked for."""
    kept = {}

    def run():
        key = (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled())
        if key not in kept:
            kept[key] = attend(*inputs, is_causal=causal)
        return torch.autograd.grad(kept[key], inputs, gradient, retain_graph=True)

    return run


def draw_lengths(longest: int, mean: float, tokens: int) -> list[int]:
    """Lengths like those of sentences: log-normal between 5 and the longest."""
    generator = torch.Generator().manual_seed(longest)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        length = round(math.exp(math.log(mean * 0.85) + 0.6 * torch.randn((), generator=generator).item()))
        if 5 <= length <= longest:
            lengths.append(length)
    return lengths


def padded_batches(lengths: list[int], limit: int) -> list[list[int]]:
    """Sorted by length, as many as fit into `limit` padded tokens."""
    batches: list[list[int]] = [[]]
    for length in sorted(lengths):
        if (len(batches[-1]) + 1) * length > limit:
            batches.append([])
        batches[-1].append(length)
    return batches


def ragged_cases(dtype):
    for longest, mean in ((60, 20), (256, 80)):
        for heads, d in ((8, 64), (12, 64)):
            lengths = draw_lengths(longest, mean, 8192)
            total = sum(lengths)
            starts = torch.tensor([0, *lengths]).cumsum(0)
            packed = [randn(total, heads, d, dtype=dtype, seed=s, grad=True) for s in range(3)]
            gradient = randn(total, heads, d, dtype=dtype, seed=3)
            batches = []
            for batch in padded_batches(lengths, 2048):
                n = max(batch)
                inputs = [randn(len(batch), heads, n, d, dtype=dtype, seed=s, grad=True) for s in range(3)]
                keep = (torch.arange(n)[None] < torch.tensor(batch)[:, None])[:, None, None, :]
                batches.append((inputs, None if min(batch) == n else keep, randn(len(batch), heads, n, d, dtype=dtype, seed=3)))

            def ours(packed=packed, starts=starts, gradient=gradient):
                out = qkv.torch.packed_attention(*packed, starts)
                return torch.autograd.grad(out, packed, gradient)

            def theirs(batches=batches):
                for inputs, mask, g in batches:
                    torch.autograd.grad(F.scaled_dot_product_attention(*inputs, attn_mask=mask), inputs, g)

            real = f"{len(lengths)} texts, mean {total / len(lengths):.0f}"
            yield Case(f"5 to {longest} tokens, {heads} heads ({real})", ours, theirs, total, "tokens", f"5 to {longest}")


def decode_cases(dtype):
    for keys in (4096, 8192, 16384, 32768):
        q, k, v = randn(1, 32, 1, 128, dtype=dtype), *(randn(1, 8, keys, 128, dtype=dtype, seed=s) for s in (1, 2))
        bodies = [no_grad(lambda f=f, q=q, k=k, v=v: f(q, k, v, enable_gqa=True))
                  for f in (qkv.torch.scaled_dot_product_attention, F.scaled_dot_product_attention)]
        yield Case(f"cache {keys}", *bodies, 2 * k.numel() * k.element_size(), "bytes", "decode", x=keys)


def read_probe(dtype) -> list[dict]:
    """What reading the bytes of each cache takes: a sum over them, on the same threads."""
    found = []
    for keys in (4096, 8192, 16384, 32768):
        memory = torch.ones(2 * 8 * keys * 128 * torch.empty((), dtype=dtype).element_size() // 4)
        memory.sum()
        seconds = statistics.median(timed(memory.sum) for _ in range(9))
        found.append({"name": f"read {keys}", "seconds": seconds, "bytes_per_second": memory.numel() * 4 / seconds})
    return found


def build_model(kind: str, dtype):
    import transformers

    torch.manual_seed(0)
    if kind == "BERT-base":
        model = transformers.BertForMaskedLM(transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                                                                     attn_implementation="sdpa"))
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                                                     attn_implementation="sdpa"))
    return model.to(dtype)


def model_cases(dtype, only: re.Pattern):
    for kind in ("BERT-base", "GPT-2"):
        model = None
        for n in (128, 512):
            for training in (False, True):
                name = f"{kind} B=8 N={n} {'training step' if training else 'inference'}"
                if not only.search(name):
                    continue
                model = model if model is not None else build_model(kind, dtype)
                ids = torch.randint(0, 30000, (8, n), generator=torch.Generator().manual_seed(n))

                def step(model=model, ids=ids, training=training):
                    if not training:
                        with torch.no_grad():
                            return (model.bert if hasattr(model, "bert") else model.transformer)(input_ids=ids)
                    model.zero_grad(set_to_none=True)
                    return model(input_ids=ids, labels=ids).loss.backward()

                def ours(step=step):
                    with qkv.torch.patched():
                        return step()

                yield Case(name, ours, step, ids.numel(), "tokens", kind, backends=False)


def overhead_cases(dtype):
    q, k, v = (randn(1, 8, 16, 64, dtype=dtype, seed=s) for s in range(3))
    theirs = no_grad(lambda: F.scaled_dot_product_attention(q, k, v))
    yield Case("qkv.torch, 8 heads", no_grad(lambda: qkv.torch.scaled_dot_product_attention(q, k, v)), theirs, 1, "calls", backends=False)
    small = [x[:, :1] for x in (q, k, v)]
    theirs_small = no_grad(lambda: F.scaled_dot_product_attention(*small))
    yield Case("qkv.torch, 1 head", no_grad(lambda: qkv.torch.scaled_dot_product_attention(*small)), theirs_small, 1, "calls", backends=False)
    if dtype == torch.float32:
        arrays = [x.numpy() for x in (q, k, v)]
        yield Case("qkv of NumPy arrays, 8 heads", lambda: qkv.scaled_dot_product_attention(*arrays), theirs, 1, "calls", backends=False)
        one = [x[:, :1].copy() for x in arrays]
        yield Case("qkv of NumPy arrays, 1 head", lambda: qkv.scaled_dot_product_attention(*one), theirs_small, 1, "calls", backends=False)


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def plot_of(part: str, dtype: str, results: list[dict]) -> dict | None:
    """Speed against length, one bar for each side and head size."""
    drawn = [r for r in results if r["x"] is not None]
    if not drawn:
        return None
    scale, unit = (1e9, "GFLOP/s") if drawn[0]["unit"] == "FLOP" else (1e9, "GB/s")
    lengths = sorted({r["x"] for r in drawn})
    series = []
    for group in dict.fromkeys(r["group"] for r in drawn):
        for side in ("qkv", "torch"):
            found = {r["x"]: r[f"{side}_rate"] / scale for r in drawn if r["group"] == group}
            if set(found) == set(lengths):
                series.append({"name": f"{side}, {group}", "y": [found[n] for n in lengths]})
    if not series:
        return None
    return {"title": f"Attention, {part}, {dtype}", "subtitle": "median of interleaved turns; more is faster", "y_label": unit,
            "categories": [str(n) for n in lengths], "series": series, "references": []}


def cases_of(part: str, dtype, only: re.Pattern):
    if part in ("forward", "backward"):
        return shape_cases(part == "backward", dtype)
    if part == "models":
        return model_cases(dtype, only)
    return {"ragged": ragged_cases, "decode": decode_cases, "overhead": overhead_cases}[part](dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["forward", "backward", "ragged", "decode", "models", "overhead"])
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case, both sides together")
    parser.add_argument("--limit", type=float, default=110.0, help="no case begins after so many seconds")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="cases whose name this expression finds")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    qkv.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    dtype, results, missed = DTYPES[args.dtype], [], []
    start = time.monotonic()
    with BenchmarkLock():
        for case in cases_of(args.part, dtype, args.only):
            if not args.only.search(case.name):
                continue
            if time.monotonic() - start > args.limit:
                missed.append(case.name)
                continue
            results.append(measure(case, args.seconds))
            r = results[-1]
            print(f"{r['name']:<44} qkv {1e3 * r['qkv_seconds']:9.3f} ms   torch {1e3 * r['torch_seconds']:9.3f} ms   {r['ratio']:5.2f}x"
                  f"   ({r['turns']} turns{', ' + r['torch_backend'] if r['torch_backend'] else ''})", flush=True)
        probes = read_probe(dtype) if args.part == "decode" else []
    for r in results:
        reads = [p for p in probes if p["name"] == f"read {r['x']}"]
        if reads:
            r["share_of_read"] = r["qkv_rate"] / reads[0]["bytes_per_second"]
            print(f"{r['name']:<44} {r['qkv_rate'] / 1e9:6.1f} GB/s, {100 * r['share_of_read']:.0f} % of a sum over as many bytes")
    if missed:
        print(f"not reached within {args.limit:g} s: {', '.join(missed)}", file=sys.stderr)
    if not results:
        raise SystemExit("no case has such a name" if not missed else 1)
    summary = {"mean_ratio": geometric_mean([r["ratio"] for r in results]), "least_ratio": min(r["ratio"] for r in results)}
    print(f"{args.part} {args.dtype}: geometric mean {summary['mean_ratio']:.2f}x, least {summary['least_ratio']:.2f}x")
    name = f"attention-{args.part}-{args.dtype}"
    record = {"benchmark": name, "torch": torch.__version__, "threads": args.threads, "isa": qkv.info()["isa"], "results": results, "probes": probes,
              "summary": summary, "missed": missed}
    plot = plot_of(args.part, args.dtype, results)
    if plot is None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    else:
        write_results(args.out.resolve(), name, record, plot)


if __name__ == "__main__":
    main()
