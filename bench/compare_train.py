#!/usr/bin/env python3
"""Training speed of qkv beside PyTorch, eager and compiled: the same model, first weights, batches and optimiser.

The programs take turns of a few steps (A B C A B C ...), so that all see the same weather of a shared machine; figures are medians
over the turns, ratios are taken turn by turn against the better form of PyTorch. With --full every side trains to the end of
the schedule and says its accuracy.

usage: bench/compare_train.py [--tasks banking77,massive_zh] [--turns 7] [--steps 20] [--full] [--set key=value ...]
Needs build/release/qkv and Python with torch, numpy, safetensors (`./dev bench train --against torch` sees to both).
Writes out/bench/train.json and train.svg.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from turns import ROOT, BenchmarkLock, Turns, program, write_results  # noqa: E402

PEER = ROOT / "bench/peers/train_classifier_torch.py"


def start(task: str, args: argparse.Namespace) -> list[Turns]:
    export = args.out / f"train-{task}"
    shutil.rmtree(export, ignore_errors=True)
    export.mkdir(parents=True)
    overrides = [word for pair in args.set for word in ("--set", pair)]
    sides = [Turns("qkv", [str(program()), "--threads", str(args.threads), "bench", "train", "--config", f"examples/{task}.toml", "--export",
                           str(export), "--turns", *overrides])]
    common = [sys.executable, str(PEER), "--export", str(export), "--threads", str(args.threads), "--turns"]
    if "eager" in args.peers:
        sides.append(Turns("torch eager", common))
    if "compiled" in args.peers:
        sides.append(Turns("torch compiled", [*common, "--compile"]))
    return sides


def run_turns(sides: list[Turns], args: argparse.Namespace, total: int) -> dict[str, list[dict]]:
    """Answers of every side; the first turn, in which everything is compiled and warmed, is left out of the speeds."""
    answers: dict[str, list[dict]] = {side.name: [] for side in sides}
    done, turn = 0, 0
    while done < total and (args.full or turn <= args.turns):
        steps = min(args.warm if turn == 0 else args.steps, total - done)
        for side in sides[turn % len(sides):] + sides[: turn % len(sides)]:
            answers[side.name].append(side.ask(steps))
        done += steps
        turn += 1
        print(f"  turn {turn}: " + ", ".join(f"{name} {a[-1]['tokens_per_second']:.0f}" for name, a in answers.items()), file=sys.stderr)
    return answers


def loss_difference(a: list[dict], b: list[dict]) -> float:
    """Largest relative difference of the two loss curves, averaged over windows of 20 steps (dropout draws differ)."""
    curves = [[loss for answer in side for loss in answer["losses"]] for side in (a, b)]
    window = min(20, len(curves[0]))
    means = [[statistics.fmean(c[i:i + window]) for i in range(0, len(c) - window + 1, window)] for c in curves]
    return max(abs(x - y) / y for x, y in zip(*means))


def summarise(task: str, answers: dict[str, list[dict]], accuracies: dict[str, float]) -> dict:
    speeds = {name: [a["tokens_per_second"] for a in side[1:]] for name, side in answers.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    peers = [name for name in medians if name != "qkv"]
    best = max(peers, key=medians.get)
    ratios = [ours / theirs for ours, theirs in zip(speeds["qkv"], speeds[best])]
    memory = {name: side[-1]["peak_bytes"] for name, side in answers.items()}
    seconds = {name: sum(a["seconds"] for a in side) for name, side in answers.items()}
    return {"task": task, "tokens_per_second": medians, "better_peer": best, "ratio": statistics.median(ratios), "ratios": ratios,
            "peak_bytes": memory, "seconds": seconds, "steps": sum(a["steps"] for a in answers["qkv"]),
            "loss_difference": loss_difference(answers["qkv"], answers[best]), "accuracy": accuracies,
            "losses": {name: [loss for a in side for loss in a["losses"]] for name, side in answers.items()}}


def table(results: list[dict]) -> str:
    lines = [f"{'task':<12} {'side':<16} {'tokens/s':>9} {'peak MiB':>9} {'accuracy':>9}"]
    for r in results:
        for name, speed in r["tokens_per_second"].items():
            accuracy = r["accuracy"].get(name)
            lines.append(f"{r['task']:<12} {name:<16} {speed:>9.0f} {r['peak_bytes'][name] / 2**20:>9.0f} "
                         f"{'' if accuracy is None else format(accuracy, '.4f'):>9}")
        lines.append(f"{r['task']:<12} ratio to {r['better_peer']}: {r['ratio']:.2f} "
                     f"(turns {min(r['ratios']):.2f} to {max(r['ratios']):.2f}); loss curves differ by at most {100 * r['loss_difference']:.1f} %")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="banking77,massive_zh", type=lambda s: s.split(","))
    parser.add_argument("--peers", default="eager,compiled", type=lambda s: s.split(","))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in each turn")
    parser.add_argument("--warm", type=int, default=40, help="steps of the first turn, which is not counted")
    parser.add_argument("--full", action="store_true", help="train to the end, then the accuracy on the test texts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="override of the configuration, as for qkv train")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench")
    args = parser.parse_args()
    args.out = args.out.resolve()
    results = []
    with BenchmarkLock():
        for task in args.tasks:
            print(f"{task}:", file=sys.stderr)
            sides = start(task, args)
            total = json.loads((args.out / f"train-{task}" / "recipe.json").read_text())["total_steps"]
            answers = run_turns(sides, args, total)
            accuracies = {side.name: side.ask("accuracy")["accuracy"] for side in sides} if args.full else {}
            for side in sides:
                side.close()
            results.append(summarise(task, answers, accuracies))
    names = list(results[0]["tokens_per_second"])
    plot = {"title": "Training a text classifier, fp32", "subtitle": f"real tokens per second on {args.threads} threads, medians of interleaved turns",
            "y_label": "real tokens per second", "categories": [r["task"] for r in results],
            "series": [{"name": name, "y": [r["tokens_per_second"][name] for r in results]} for name in names]}
    write_results(args.out, "train", {"benchmark": "train", "against": "torch", "results": results}, plot)
    print(table(results))


if __name__ == "__main__":
    main()
