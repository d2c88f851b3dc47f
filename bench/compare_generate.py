#!/usr/bin/env python3
"""Text generation of qkv beside llama.cpp (llama-cpp-python): decoding, a prompt, and the first token with loading.

Each side is a process of its own; they take turns, figures are medians, ratios are taken turn by turn.

usage: bench/compare_generate.py MODEL.gguf [MODEL.gguf ...] [--turns 5] [--new 64] [--prompt 512]
Writes out/bench/generate.json and generate.svg.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from turns import ROOT, BenchmarkLock, Turns, write_results  # noqa: E402

SIDES = ["qkv", "llama.cpp"]


def compare(args: argparse.Namespace, model: str) -> dict:
    peer = str(ROOT / "bench/peers/generate_side.py")
    sides = {side: Turns(side, [args.python, peer, side, model, str(args.threads)]) for side in args.sides}
    result = {"model": pathlib.Path(model).name, "work": {}}
    for name, request in (("decode", f"decode {args.new}"), ("prompt", f"prompt {args.prompt}"), ("first token", "load")):
        answers = {side: [] for side in sides}
        for _ in range(args.turns + 1):  # the first warms up
            for side, turns in sides.items():
                answers[side].append(turns.ask(request))
        entry = {}
        for side, values in answers.items():
            entry[side] = {"tokens_per_second": statistics.median(a["tokens"] / a["seconds"] for a in values[1:]),
                           "seconds": statistics.median(a["seconds"] for a in values[1:])}
        if len(sides) == 2:
            ratios = [theirs["seconds"] / theirs["tokens"] * ours["tokens"] / ours["seconds"]
                      for ours, theirs in zip(answers["qkv"][1:], answers["llama.cpp"][1:])]
            entry["qkv_is_faster_by"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        result["work"][name] = entry
        print(f"{result['model']:40} {name:12} "
              + "  ".join(f"{side} {entry[side]['tokens_per_second']:.1f} tokens/s ({1e3 * entry[side]['seconds']:.0f} ms)" for side in sides)
              + (f"  faster by {entry['qkv_is_faster_by']['median']:.2f}" if len(sides) == 2 else ""), flush=True)
    for turns in sides.values():
        turns.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", type=lambda s: s.split(","), default=SIDES)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the sides")
    args = parser.parse_args()
    with BenchmarkLock():
        results = [compare(args, model) for model in args.models]
    plot = {"title": "Generation, one stream", "subtitle": f"tokens per second on {args.threads} threads, medians of interleaved turns",
            "y_label": "tokens per second", "categories": [f"{r['model']}, {work}" for r in results for work in ("decode", "prompt")],
            "series": [{"name": side, "y": [r["work"][work][side]["tokens_per_second"] for r in results for work in ("decode", "prompt")]} for side in args.sides]}
    write_results(ROOT / "out/bench", "generate", {"benchmark": "generate", "results": results}, plot)


if __name__ == "__main__":
    main()
