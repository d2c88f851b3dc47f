"""Tokenizers against Hugging Face's `tokenizers`: the same ids, pieces, offsets and decoded texts.

Run with pytest from the repository; needs the built program (QKV_BUILD, default build/release) and the
packages `tokenizers` and, for one test, `transformers`. Data outside the repository is optional (QKV_SHARED).
"""
import csv
import json
import os
import pathlib
import random
import subprocess

import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QKV_BUILD", ROOT / "build" / "release"))
SHARED = pathlib.Path(os.environ.get("QKV_SHARED", ROOT.parent / "shared"))
PROGRAM = BUILD / "qkv"
TRAINER = BUILD / "tests" / "train_tokenizer"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"needs the program {PROGRAM}")

TEXTS = [
    "Hello, world!", "a", "", " ", "  leading and trailing  ", "tabs\tand\nlines\r\n\r\nhere", "I'll I'LL we're don't they've I'd I'm it's",
    "x=12345 foo_bar(baz) [ok] {no}", "我昨天买的那个红色的充电宝什么时候到？", "你好，世界！东京タワー 한국어 조선말", "naïve café Ünïcödé İstanbul ǅ ẞ ß",
    "emoji 😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️", "mixed 中文 and English 混合 text 123 ４５６", "a\u00adb a\u200bb a\ufffdc a\u3000b a\u00a0b", "e\u0301 vs é, ﬁ ligature, ½ ² Ⅷ",
    "[CLS] in the text [MASK] and [SEP]", "[MASK][MASK]x[MASK]", "[mask] [Mask", "$100.50 + 20% = a^b `code` ~tilde~", "русский текст и ελληνικά",
    "עברית العربية हिन्दी ไทย", "supercalifragilisticexpialidocious" * 4, "\u2028line\u2029sep\u0085nel", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀𠀁 㐀x", "a" * 101, "é" * 60,
    "...!!!??? -- --- __init__", "end with space ", "\t\t", "1 2  3   4    5", "don't won't 'quoted' 's", "ﷺ ſ K Å", "\U0001F1E9\U0001F1EA flags \U0001F1E8\U0001F1F3",
]


def random_texts(count, seed):
    rng = random.Random(seed)
    ranges = [(0x20, 0x7E)] * 4 + [(0x4E00, 0x9FFF)] * 2 + [(0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x5FF), (0x900, 0x97F), (0x2000, 0x206F), (0x3040, 0x30FF),
                                                             (0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x20, 0x20), (0x09, 0x0D)]
    texts = []
    for _ in range(count):
        chars = []
        for _ in range(rng.randrange(1, 40)):
            low, high = rng.choice(ranges)
            chars.append(chr(rng.randrange(low, high + 1)))
        texts.append("".join(chars))
    return texts


def run(*arguments, stdin=None):
    done = subprocess.run([str(a) for a in arguments], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def encode_all(folder, texts, *flags):
    """One answer a text; arguments carry any character but NUL."""
    answers = []
    for begin in range(0, len(texts), 500):
        out = run(PROGRAM, "tokenize", folder, "--json", *flags, "--", *texts[begin:begin + 500])
        answers += [json.loads(line) for line in out.split("\n") if line]
    assert len(answers) == len(texts)
    return answers


def compare(folder, peer, texts, special=True):
    """Ids, pieces and offsets of both; then both decode."""
    texts = [t for t in texts if t != "-"]
    flags = [] if special else ["--no-special"]
    for text, ours in zip(texts, encode_all(folder, texts, *flags)):
        theirs = peer.encode(text, add_special_tokens=special)
        assert ours["ids"] == theirs.ids, text
        assert ours["tokens"] == theirs.tokens, text
        assert [tuple(o) for o in ours["offsets"]] == theirs.offsets, text
    items = [" ".join(map(str, peer.encode(t).ids)) for t in texts]
    for flags, skip in ([], True), (["--keep-special"], False):
        out = run(PROGRAM, "tokenize", folder, "--json", "--decode", *flags, "--", *items)
        for item, line in zip(items, [x for x in out.split("\n") if x]):
            assert json.loads(line)["text"] == peer.decode([int(i) for i in item.split()], skip_special_tokens=skip), item


def shared_texts():
    texts = []
    path = SHARED / "data" / "banking77" / "test.csv"
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            texts += [row["text"] for row in csv.DictReader(file)][::5]
    path = SHARED / "data" / "massive_zh" / "zh-CN_test.csv"
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            texts += [row["text"] for row in csv.DictReader(file)][::5]
    path = SHARED / "data" / "tiny_shakespeare" / "input.txt"
    if path.exists():
        text = path.read_text(encoding="utf-8")
        texts += [text[i:i + 300] for i in range(0, 30000, 300)]
    return texts


def training_lines():
    return [t.replace("\n", " ").replace("\r", " ") for t in TEXTS * 2 + shared_texts() + random_texts(200, 1)]


@pytest.fixture(scope="module", params=[("char", 1200, "keep"), ("char", 1200, "lower"), ("bpe", 900, "keep"), ("bpe", 3000, "lower"), ("wordpiece", 2000, "keep"),
                                        ("wordpiece", 2000, "lower")], ids=lambda p: "-".join(map(str, p)))
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "a folder 文件夹"
    run(TRAINER, *request.param, folder, stdin="\n".join(training_lines()).encode())
    return folder


def test_trained_tokenizers_read_alike(trained):
    peer = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    texts = TEXTS + shared_texts() + random_texts(500, 2)
    compare(trained, peer, texts)
    compare(trained, peer, TEXTS, special=False)


def test_trained_tokenizers_load_in_transformers(trained):
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(str(trained))
    for text, ours in zip(TEXTS, encode_all(trained, TEXTS)):
        assert ours["ids"] == peer(text)["input_ids"], text
    assert (peer.pad_token_id, peer.unk_token_id, peer.cls_token_id, peer.sep_token_id, peer.mask_token_id) == (0, 1, 2, 3, 4)


def test_special_tokens_as_plain_text(trained):
    peer = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    peer.encode_special_tokens = True
    texts = ["x[CLS]y", "[MASK] [SEP]"]
    for text, ours in zip(texts, encode_all(trained, texts, "--plain")):
        assert ours["ids"] == peer.encode(text).ids


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased", "bert-base-chinese"])
def test_bert(name, tmp_path):
    source = SHARED / "data" / "tokenizers" / name
    if not source.exists():
        pytest.skip(f"needs {source}")
    lower = name != "bert-base-cased"
    (tmp_path / "vocab.txt").write_bytes((source / "vocab.txt").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    vocab = {t: i for i, t in enumerate((source / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n"))}
    peer = tokenizers.BertWordPieceTokenizer(vocab, lowercase=lower)
    texts = TEXTS + shared_texts() + random_texts(1000, 3)
    compare(tmp_path, peer, texts)
    if (source / "tokenizer.json").exists():
        peer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
        peer.no_truncation()
        peer.no_padding()
        compare(source, peer, texts)


def test_gpt2():
    source = SHARED / "data" / "tokenizers" / "gpt2"
    if not source.exists():
        pytest.skip(f"needs {source}")
    peer = tokenizers.ByteLevelBPETokenizer(str(source / "vocab.json"), str(source / "merges.txt"))
    peer.add_special_tokens(["<|endoftext|>"])
    compare(source, peer, TEXTS + shared_texts() + random_texts(1000, 4) + ["x<|endoftext|>y", "a" * 5000, "ab" * 3000, " " * 1000])


def test_added_tokens(tmp_path):
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers
    peer = tokenizers.Tokenizer(models.BPE(vocab={chr(c): c - 32 for c in range(32, 127)} | {"Ġ": 95, "ab": 96}, merges=[("a", "b")]))
    peer.normalizer = normalizers.Lowercase()
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    peer.add_special_tokens(["<|end|>", "<|endoftext|>", AddedToken("<mask>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True)])
    peer.add_tokens([AddedToken("Word", single_word=True), AddedToken("UPPER", normalized=True), AddedToken("RaW", normalized=False), AddedToken("<both>", lstrip=True, rstrip=True)])
    peer.save(str(tmp_path / "tokenizer.json"))
    texts = ["a <mask> b", "<|end|>of<|endoftext|>", "<|endoftext", "x<r>  y", "Word words word aWord Word.", "upper UPPER uPPer RaW raw", "  <mask>  <r>  <both>  ab",
             "ab <both><both> ab", "<mask><mask> <mask>", "wordword word_word word-word éword", "", "<|end|>"]
    for text, ours in zip(texts, encode_all(tmp_path, texts)):
        theirs = peer.encode(text)
        assert ours["ids"] == theirs.ids, text
        if text.isascii():  # é is in no piece here: the peer leaves it out and shifts every offset behind it
            assert [tuple(o) for o in ours["offsets"]] == theirs.offsets, text


def test_post_processors(tmp_path):
    from tokenizers import models, pre_tokenizers, processors
    peer = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(["<s>", "</s>", "Ġ", "a", "b", "Ġa", "ĠĠ"])}, merges=[("Ġ", "a"), ("Ġ", "Ġ")]))
    texts = ["a b  a", " a", "   a  ", "", "aab"]
    for prefix in False, True:
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        for post in (processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=prefix),
                     processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=False, add_prefix_space=prefix),
                     processors.BertProcessing(("</s>", 1), ("<s>", 0)), processors.ByteLevel(trim_offsets=True),
                     processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                          processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 0)])])):
            peer.post_processor = post
            peer.save(str(tmp_path / "tokenizer.json"))
            for text, ours in zip(texts, encode_all(tmp_path, texts)):
                theirs = peer.encode(text)
                assert ours["ids"] == theirs.ids, (post, text)
                assert [tuple(o) for o in ours["offsets"]] == theirs.offsets, (post, prefix, text)


def test_tokenizers_trained_by_the_peer(tmp_path):
    lines = training_lines()
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(lines, vocab_size=1000, special_tokens=["<pad>", "<unk>"])
    word_piece = tokenizers.BertWordPieceTokenizer(lowercase=False)
    word_piece.train_from_iterator(lines, vocab_size=2000)
    for name, peer in ("bpe", bpe), ("wordpiece", word_piece):
        folder = tmp_path / name
        folder.mkdir()
        peer.save(str(folder / "tokenizer.json"))
        compare(folder, peer, TEXTS + random_texts(300, 5))
