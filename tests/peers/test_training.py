"""What training leaves behind, read by others: TensorBoard its events, scikit-learn the scores of eval."""

import json
import os
import pathlib
import subprocess

import pytest

pytest.importorskip("tensorboard")
pytest.importorskip("sklearn")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QKV_BUILD", ROOT / "build" / "release"))
QKV = str(BUILD / "qkv")

CONFIG = """
task = "classify"
[model]
d_model = 16
num_layers = 1
num_heads = 2
d_ff = 32
max_positions = 64
[tokenizer]
kind = "char"
[data]
train = "train.csv"
validation = "test.csv"
[train]
steps = 12
eval_every = 5
batch_tokens = 256
learning_rate = 5e-3
"""


def table(lines, first):
    colours, things = ["red", "green", "blue", "grey"], ["car", "house", "tree", "river bank"]
    rows = [f"I see the {colours[i % 4]} {things[i // 3 % 4]} {i},{colours[i % 4]}" for i in range(first, first + lines)]
    return "text,label\n" + "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    (folder / "train.csv").write_text(table(80, 0))
    (folder / "test.csv").write_text(table(30, 1000))
    (folder / "tiny.toml").write_text(CONFIG)
    out = folder / "run"
    subprocess.run([QKV, "train", folder / "tiny.toml", "--out", out], check=True, stdout=subprocess.DEVNULL)
    return out


def records(run, kind):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def test_tensorboard_reads_the_scalars_of_every_step(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    losses = events.Scalars("train/loss")
    steps = records(run, "train")
    assert [e.step for e in losses] == [r["step"] for r in steps] == list(range(1, 13))
    assert [e.value for e in losses] == pytest.approx([r["loss"] for r in steps], rel=1e-6)
    tags = set(events.Tags()["scalars"])
    layers = steps[0]["layers"]
    assert {f"grad_norm/{name}" for name in layers} <= tags
    assert any(tag.startswith("gamma_mean/") for tag in tags)
    assert {"train/learning_rate", "train/grad_norm", "speed/tokens_per_second", "memory/bytes"} <= tags
    evaluated = records(run, "eval")
    assert [e.value for e in events.Scalars("validation/accuracy")] == pytest.approx([r["accuracy"] for r in evaluated])


def test_scores_are_those_of_scikit_learn(run):
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

    data = run.parent / "test.csv"
    rows = [line.rsplit(",", 1) for line in data.read_text().splitlines()[1:]]
    truth = [label for _, label in rows]
    texts = "\n".join(text for text, _ in rows) + "\n"
    answers = subprocess.run([QKV, "classify", run, "-", "--json"], input=texts, text=True, check=True, capture_output=True)
    predicted = [json.loads(line)["label"] for line in answers.stdout.splitlines()]
    scored = subprocess.run([QKV, "eval", run, "--data", data, "--json"], text=True, check=True, capture_output=True)
    metrics = {m["metric"]: m for m in map(json.loads, scored.stdout.splitlines())}
    assert metrics["accuracy"]["value"] == pytest.approx(accuracy_score(truth, predicted))
    assert metrics["macro_f1"]["value"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    confusion = metrics["accuracy"]["confusion"]
    assert confusion["counts"] == confusion_matrix(truth, predicted, labels=confusion["labels"]).tolist()
