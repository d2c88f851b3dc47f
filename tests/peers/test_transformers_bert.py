"""A Post-LN BERT-like model goes to transformers and comes from there with equal logits.

`./dev test --peers` runs it. The C++ half is the program test_models (its EncoderPeer tests).
"""

import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("QKV_BUILD", ROOT / "build" / "release")) / "tests" / "test_models"


def run(folder, test):
    if not PROGRAM.exists():
        pytest.skip(f"needs {PROGRAM}: run ./dev test first")
    done = subprocess.run([PROGRAM, f"--gtest_filter=EncoderPeer.{test}"], env=os.environ | {"QKV_PEER_FOLDER": str(folder)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def expected_logits(model, outputs):
    """Every text alone, in double: what the weights mean, without padding."""
    model = model.double().eval()
    rows = []
    with torch.no_grad():
        for ids in outputs["ids"].long().split(outputs["lengths"].tolist()):
            rows.append(model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None])).logits[0])
    return torch.stack(rows)


def assert_equal_logits(model, folder):
    outputs = load_file(folder / "outputs.safetensors")
    expected = expected_logits(model, outputs)
    worst = (outputs["logits"].double() - expected).abs().max() / expected.abs().max()
    assert worst <= 2e-5, worst


def test_transformers_computes_our_logits(tmp_path):
    run(tmp_path, "writes_berts_for_transformers")
    folders = sorted(tmp_path.glob("ours_*"))
    assert len(folders) == 4
    for folder in folders:
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
        assert type(model).__name__ == "BertForSequenceClassification"
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
        assert model.config.id2label == dict(enumerate("abcde"))
        assert_equal_logits(model, folder)


def test_we_compute_transformers_logits(tmp_path):
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=19, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
                                     max_position_embeddings=12, type_vocab_size=2, num_labels=5, initializer_range=0.3)
    model = transformers.BertForSequenceClassification(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "theirs")
    run(tmp_path, "reads_berts_of_transformers")
    assert_equal_logits(model, tmp_path / "theirs")
