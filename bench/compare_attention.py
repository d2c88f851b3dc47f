#!/usr/bin/env python3
"""Attention of qkv beside PyTorch's scaled_dot_product_attention, forward and forward with backward, fp32.

Shapes: batches of the two examples (ragged for qkv; padded and masked for PyTorch, sorted by length), and long sequences by
head size and length, full and causal. The sides take turns; figures are medians, ratios are taken turn by turn.

usage: bench/compare_attention.py [--turns 5] [--quick]
Writes out/bench/attention.json and attention.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from turns import ROOT, BenchmarkLock, Turns, program, write_results  # noqa: E402

BATCHES = 4  # of each example's plan


def example_shapes(task: str, out: pathlib.Path) -> list[dict]:
    """Lengths of the first batches that the example trains on."""
    import numpy as np
    from classifier_data import load_export

    export = out / f"shapes-{task}"
    shutil.rmtree(export, ignore_errors=True)
    export.mkdir(parents=True)
    subprocess.run([str(program()), "bench", "train", "--config", f"examples/{task}.toml", "--export", str(export), "--set", "train.epochs=1"],
                   check=True, cwd=ROOT)
    recipe = json.loads((export / "recipe.json").read_text())
    data = load_export(export)
    lengths = data.train.lengths()
    shapes = [{"name": f"{task} batch {i + 1}", "heads": recipe["heads"], "d": recipe["width"] // recipe["heads"],
               "lengths": np.asarray(lengths[batch]).tolist(), "causal": False, "group": task} for i, batch in enumerate(data.batches[:BATCHES])]
    shutil.rmtree(export)
    return shapes


def long_shapes(quick: bool) -> list[dict]:
    lengths = [128] if quick else [128, 512, 1024, 4096]
    return [{"name": f"D={d} N={n}{' causal' if causal else ''}", "heads": 512 // d, "d": d, "lengths": [n] * (4096 // n), "causal": causal,
             "group": "long, causal" if causal else "long"} for causal in (False, True) for d in (64, 128) for n in lengths]


def run_qkv(shapes: pathlib.Path, args: argparse.Namespace, lock: BenchmarkLock) -> dict[str, dict]:
    command = [str(program()), "--json", "--threads", str(args.threads), "bench", "attention", "--shapes", str(shapes)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, **lock.shared()).stdout.splitlines()
    seconds = {record["name"]: record["seconds"] for record in map(json.loads, lines)}
    names = [spec["name"] for spec in json.loads(shapes.read_text())]
    return {name: {"forward": seconds[f"attention/forward {name}"],
                   "both": seconds[f"attention/forward {name}"] + seconds[f"attention/backward {name}"]} for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    shapes = example_shapes("banking77", args.out) + example_shapes("massive_zh", args.out) + long_shapes(args.quick)
    shapes_file = args.out / "attention-shapes.json"
    shapes_file.write_text(json.dumps(shapes))
    with BenchmarkLock() as lock:
        peer = Turns("torch", [sys.executable, str(ROOT / "bench/peers/attention_turns.py"), str(shapes_file), "--threads", str(args.threads), "--turns"])
        ours, theirs = [], []
        for turn in range(args.turns):
            ours.append(run_qkv(shapes_file, args, lock))
            theirs.append({r["name"]: r for r in peer.ask("turn")})
            print(f"turn {turn + 1} of {args.turns}", file=sys.stderr)
        peer.close()
    results = []
    for spec in shapes:
        name = spec["name"]
        record = {"name": name, "group": spec["group"], "torch_backend": theirs[0][name]["backend"]}
        for what in ("forward", "both"):
            record[what] = {"qkv_seconds": statistics.median(t[name][what] for t in ours), "torch_seconds": statistics.median(t[name][what] for t in theirs),
                            "ratio": statistics.median(b[name][what] / a[name][what] for a, b in zip(ours, theirs))}
        results.append(record)
    groups = sorted({spec["group"] for spec in shapes})
    mean = lambda group, what: math.exp(statistics.fmean(math.log(r[what]["ratio"]) for r in results if r["group"] == group))
    summary = {group: {what: mean(group, what) for what in ("forward", "both")} for group in groups}
    plot = {"title": "Attention beside PyTorch, fp32", "subtitle": "how many times as fast; geometric means over shapes, interleaved turns", "y_label": "times PyTorch's speed",
            "categories": groups, "series": [{"name": label, "y": [summary[g][what] for g in groups]} for what, label in
                                             (("forward", "forward"), ("both", "forward and backward"))], "references": [{"name": "PyTorch", "y": 1}]}
    write_results(args.out, "attention", {"benchmark": "attention", "against": "torch", "results": results, "summary": summary}, plot)
    for r in results:
        print(f"{r['name']:<28} forward {1e3 * r['forward']['qkv_seconds']:8.3f} ms, torch {1e3 * r['forward']['torch_seconds']:8.3f} ({r['forward']['ratio']:.2f}x)   "
              f"with backward {1e3 * r['both']['qkv_seconds']:8.3f} ms, torch {1e3 * r['both']['torch_seconds']:8.3f} ({r['both']['ratio']:.2f}x)")
    for group, values in summary.items():
        print(f"{group}: forward {values['forward']:.2f}x, forward and backward {values['both']:.2f}x")


if __name__ == "__main__":
    main()
