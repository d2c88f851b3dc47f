"""The comparisons with PyTorch run to their end in their short form, and leave results and a plot."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QKV_BUILD", ROOT / "build" / "release"))
SHARED = ROOT.parent / "shared"  # where examples/banking77.toml looks

needs_data = pytest.mark.skipif(not (SHARED / "data" / "banking77").is_dir(), reason="no shared data")


def compare(name, out, *options):
    """Runs bench/compare_NAME.py beside nothing: its lock is its own, and it must not wait for itself."""
    environment = {**os.environ, "QKV_PROGRAM": str(BUILD / "qkv"), "XDG_RUNTIME_DIR": str(out)}
    subprocess.run([sys.executable, ROOT / f"bench/compare_{name}.py", "--out", out, *options], check=True, timeout=300, env=environment,
                   stdout=subprocess.DEVNULL)
    assert "</svg>" in (out / f"{name}.svg").read_text()
    return json.loads((out / f"{name}.json").read_text())


@needs_data
def test_attention(tmp_path):
    results = compare("attention", tmp_path, "--quick", "--turns", "1")
    assert {r["group"] for r in results["results"]} == {"banking77", "massive_zh", "long", "long, causal"}
    assert all(r["both"]["ratio"] > 0 for r in results["results"])


@needs_data
def test_training(tmp_path):
    results = compare("train", tmp_path, "--tasks", "banking77", "--turns", "1", "--steps", "1", "--warm", "1")
    assert set(results["results"][0]["tokens_per_second"]) == {"qkv", "torch eager", "torch compiled"}
    assert results["results"][0]["ratio"] > 0
