#!/usr/bin/env python3
"""Sentence embeddings of qkv beside transformers, ONNX Runtime and CTranslate2, fp32, tokenizer included.

Texts: lines of a table (as they are), and a mix of up to 256 tokens made by joining them. Each side is a process of its own; they take
turns, figures are medians, ratios are taken turn by turn. The embeddings of all sides are compared with those of transformers.

usage: bench/compare_embed.py MODEL --texts FILE.csv [--column text] [--limit 512] [--turns 5] [--sides qkv,transformers,...]
Writes out/bench/embed.json and embed.svg.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import random
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from turns import ROOT, BenchmarkLock, Turns, write_results  # noqa: E402

SIDES = ["qkv", "transformers", "onnxruntime", "ctranslate2"]


def joined(lines: list[str], seed: int, most_words: int = 180) -> list[str]:
    """Lines put together to texts of 5 to `most_words` words, evenly spread."""
    pick = random.Random(seed)
    out = []
    for _ in range(len(lines) // 4):
        words, wanted = [], pick.randint(5, most_words)
        while len(words) < wanted:
            words += pick.choice(lines).split()
        out.append(" ".join(words[:wanted]))
    return out


def compare(args: argparse.Namespace, name: str, texts: list[str], out: pathlib.Path) -> dict:
    import numpy as np

    path = out / f"embed-{name}.json"
    path.write_text(json.dumps(texts, ensure_ascii=False))
    peer = str(ROOT / "bench/peers/embed_side.py")
    sides = {side: Turns(side, [args.python, peer, side, args.model, str(path), str(out / f"embed-{side}.npy"), str(args.threads)])
             for side in args.sides}
    seconds = {side: [] for side in sides}
    for _ in range(args.turns + 1):  # the first warms up
        for side, turns in sides.items():
            seconds[side].append(turns.ask("")["seconds"])
    for turns in sides.values():
        turns.close()
    seconds = {side: values[1:] for side, values in seconds.items()}
    vectors = {side: np.load(out / f"embed-{side}.npy") for side in sides}
    result = {"texts": len(texts), "sides": {}}
    for side, values in seconds.items():
        entry = {"texts_per_second": len(texts) / statistics.median(values), "load_seconds": sides[side].ready["load"]}
        if side != "qkv" and "qkv" in seconds:
            ratios = [theirs / ours for theirs, ours in zip(values, seconds["qkv"])]
            entry["qkv_is_faster_by"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        if "transformers" in vectors:
            reference = vectors["transformers"]
            entry["largest_difference"] = float(np.abs(vectors[side] - reference).max())
            entry["least_cosine"] = float((vectors[side] * reference).sum(1).min())
        result["sides"][side] = entry
        print(f"{name:8} {side:14} {entry['texts_per_second']:8.1f} texts/s  load {entry['load_seconds']:5.2f} s"
              + (f"  qkv is faster by {entry['qkv_is_faster_by']['median']:.2f}" if "qkv_is_faster_by" in entry else "")
              + (f"  difference {entry['largest_difference']:.1e}" if "largest_difference" in entry else ""), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", required=True)
    parser.add_argument("--column", default="text")
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sides", type=lambda s: s.split(","), default=SIDES)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the sides")
    args = parser.parse_args()
    with open(args.texts, newline="") as file:
        lines = [row[args.column] for row in csv.DictReader(file)]
    random.Random(args.seed).shuffle(lines)
    lines = lines[: args.limit]
    out = ROOT / "out/bench"
    out.mkdir(parents=True, exist_ok=True)
    with BenchmarkLock():
        results = {name: compare(args, name, texts, out) for name, texts in (("short", lines), ("mixed", joined(lines, args.seed)))}
    plot = {"title": "Sentence embeddings, fp32", "subtitle": f"texts per second on {args.threads} threads, tokenizer included, medians of interleaved turns",
            "y_label": "texts per second", "categories": list(results),
            "series": [{"name": side, "y": [result["sides"][side]["texts_per_second"] for result in results.values()]} for side in args.sides]}
    write_results(out, "embed", {"benchmark": "embed", "results": results}, plot)


if __name__ == "__main__":
    main()
