"""Tokenizers, training, and the models that come out of it."""
import json
import pathlib

import numpy as np
import pytest

import qkv

TEXTS = [f"{verb} {colour} {thing}" for verb in ("where is my", "please cancel the", "how much is a")
         for colour in ("red", "blue", "green") for thing in ("lamp", "chair", "power bank")]
LABELS = [label for label in ("where", "cancel", "price") for _ in range(9)]
CONFIG = {
    "task": "classify",
    "model": {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "max_positions": 24, "dropout": 0.0},
    "tokenizer": {"kind": "wordpiece", "vocab_size": 90},
    "train": {"epochs": 12, "batch_tokens": 64, "learning_rate": 0.01, "seed": 3},
}


def write_table(path):
    path.write_text("text\tlabel\n" + "".join(f"{t}\t{x}\n" for t, x in zip(TEXTS, LABELS)))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny trained model: (outcome, steps that progress saw)."""
    folder, seen = tmp_path_factory.mktemp("model"), []
    table = write_table(folder / "train.tsv")
    config = {**CONFIG, "data": {"train": table, "validation": str(table)}}
    return qkv.train(config, folder / "run", progress=seen.append), seen


def test_training_tells_how_it_went(run):
    outcome, seen = run
    assert outcome.metric == "accuracy" and outcome.value > 0.9
    assert outcome.step == seen[-1]["step"] == seen[-1]["total_steps"] == len(seen)
    assert (outcome.folder / "model.safetensors").exists() and outcome.test_accuracy is None


def test_a_file_gives_the_same_bits_as_a_dict(run, tmp_path):
    write_table(tmp_path / "train.tsv")
    lines = ['task = "classify"']
    for name, section in {**CONFIG, "data": {"train": "train.tsv", "validation": "train.tsv"}}.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in section.items() if k != "epochs")]
    (tmp_path / "tiny.toml").write_text("\n".join(lines))
    before = qkv.num_threads()
    try:
        qkv.set_num_threads(1)
        outcome = qkv.train(tmp_path / "tiny.toml", tmp_path / "run", overrides={"train.epochs": 12})
    finally:
        qkv.set_num_threads(before)
    assert (outcome.folder / "model.safetensors").read_bytes() == (run[0].folder / "model.safetensors").read_bytes()


def test_what_progress_raises_stops_and_resume_goes_on(run, tmp_path):
    table = write_table(tmp_path / "train.tsv")
    config = {**CONFIG, "data": {"train": table, "validation": table}}

    def stop(state):
        if state["step"] == 5:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        qkv.train(config, tmp_path / "run", progress=stop)
    outcome = qkv.train(config, tmp_path / "run", resume=True)
    assert (outcome.folder / "model.safetensors").read_bytes() == (run[0].folder / "model.safetensors").read_bytes()


def test_classify(run):
    model = run[0].model()
    assert sorted(model.labels) == ["cancel", "price", "where"]
    answers = model.classify(TEXTS)
    assert np.mean([a.label == x for a, x in zip(answers, LABELS)]) > 0.9
    one = model.classify(TEXTS[0])
    assert one.label == answers[0].label and one.text == TEXTS[0] and one.score == max(one.scores.values())
    table = model.predict(TEXTS)
    assert table.shape == (27, 3) and np.allclose(table.sum(1), 1) and table[0].tolist() == list(one.scores.values())
    assert model.predict(TEXTS[0]).shape == (3,) and model.classify([]) == [] and model.predict([]).shape == (0, 3)
    for bad in ("", " ", "lamp " * 30):
        with pytest.raises(qkv.DataError):
            model.classify(bad)
    assert model.classify("lamp " * 30, truncate=True).score > 0
    with pytest.raises(TypeError, match="expected text as str, got int"):
        model.classify([3])


def test_attention_of_a_text(run):
    model = run[0].model()
    seen = model.attention(TEXTS[0])
    n = len(seen.tokens)
    assert seen.tokens == model.tokenizer.encode(TEXTS[0]).tokens and len(seen.words) == n
    assert [w.shape for w in seen.weights] == [(2, n, n)] and np.allclose(seen.weights[0].sum(-1), 1, atol=1e-5)
    assert len(seen.figures) == 2 and seen.figures[0]["class"] and seen.label == model.classify(TEXTS[0]).label


def test_configurations_that_cannot_work(tmp_path):
    with pytest.raises(qkv.ConfigError, match="epochs"):
        qkv.train({**CONFIG, "train": {"epoch": 3}}, tmp_path / "a")
    with pytest.raises(qkv.ConfigError, match="got <object"):
        qkv.train({"train": {"epochs": object()}}, tmp_path / "b")
    with pytest.raises((qkv.ConfigError, qkv.IoError)):
        qkv.train(tmp_path / "none.toml", tmp_path / "c")
    assert not list(pathlib.Path(tmp_path).iterdir())


def test_folders_without_a_model(tmp_path):
    with pytest.raises(qkv.ArgumentError, match="expected the folder of a model"):
        qkv.load(tmp_path / "none")
    with pytest.raises(qkv.Error):
        qkv.load(tmp_path)


@pytest.mark.parametrize("kind", ["char", "bpe", "wordpiece"])
def test_tokenizer(kind, tmp_path):
    tokenizer = qkv.Tokenizer.train(TEXTS, kind=kind, vocab_size=300)
    tokenizer.save(tmp_path)
    loaded = qkv.Tokenizer.load(tmp_path)
    assert len(loaded) == loaded.vocab_size == len(tokenizer)
    encoding = loaded.encode("where is my lamp")
    assert encoding.ids == tokenizer.encode("where is my lamp").ids and len(encoding) == len(encoding.tokens) == len(encoding.offsets)
    assert loaded.decode(encoding.ids).replace(" ", "") == "whereismylamp"
    assert loaded.decode(np.array(encoding.ids)) == loaded.decode(encoding.ids)
    assert [loaded.id_to_token(i) for i in encoding.ids] == encoding.tokens
    assert loaded.token_to_id("[CLS]") == loaded.special_id("cls") == encoding.ids[0] and loaded.token_to_id("nothing") is None
    assert [e.ids for e in loaded.encode_batch(TEXTS)] == [loaded.encode(t).ids for t in TEXTS]
    assert len(loaded.encode("[MASK]", add_special_tokens=False)) == 1 and loaded.encode("").ids


def test_tokenizer_refuses():
    tokenizer = qkv.Tokenizer.train(TEXTS, kind="char")
    with pytest.raises(qkv.DataError, match="surrogate"):
        tokenizer.encode("a\ud800")
    with pytest.raises(TypeError, match="expected text as str, got bytes"):
        tokenizer.encode(b"a")
    with pytest.raises(TypeError, match="use encode"):
        tokenizer.encode_batch("several?")
    for ids in ([10**6], [-1], np.array([2**40])):
        with pytest.raises((qkv.ArgumentError, TypeError)):
            tokenizer.decode(ids)
    with pytest.raises(qkv.ArgumentError):
        tokenizer.id_to_token(-1)
    with pytest.raises(qkv.ArgumentError, match="'char', 'bpe' or 'wordpiece', got 'words'"):
        qkv.Tokenizer.train(TEXTS, kind="words")
    with pytest.raises(TypeError, match="whole numbers"):
        tokenizer.decode(["a"])


def test_encoder_block():
    block = qkv.EncoderBlock(d_model=8, num_heads=2, d_ff=16, dtype="float64", seed=1)
    x = np.random.default_rng(0).standard_normal((5, 8))
    y = block.forward(x, [3, 2])
    assert y.shape == x.shape and np.allclose(block.forward(x[3:], [2]), y[3:])
    block.forward(x, [3, 2])
    assert block.backward(np.ones_like(y)).shape == x.shape
    name = block.parameter_names()[0]
    block.parameter(name)[...] = 0  # the block's own memory
    assert not block.parameter(name).any() and block.gradient(name).shape == block.parameter(name).shape
    with pytest.raises(TypeError, match="'d_modell'"):
        qkv.EncoderBlock(d_modell=8)
    with pytest.raises(qkv.ConfigError):
        qkv.EncoderBlock(d_model=9, num_heads=2)
    with pytest.raises(qkv.ArgumentError, match="'float16'"):
        qkv.EncoderBlock(dtype="float16")
    with pytest.raises(qkv.ArgumentError):
        block.backward(y)
