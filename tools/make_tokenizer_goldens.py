#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small tokenizers of every kind with what the reference libraries answer.

Needs the packages `tokenizers` and `sentencepiece`. The files depend on the versions of both; they were made with
tokenizers 0.23.3 and sentencepiece 0.2. Usage: tools/make_tokenizer_goldens.py (from anywhere).
"""
import json
import pathlib
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm_proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "tokenizers"

CORPUS = [
    "the card was charged twice and the payment is still pending", "how do I top up my card by bank transfer?", "I'll pay 12345 euros, they've paid 99.5!",
    "lower lowest newer newest wider widest", "红色的充电宝什么时候到 红色的 充电", "naïve café naïve café", "the exchange rate isn't right, isn't it",
    "foo_bar(baz) = {x: 1}; return x;", "which fees are charged for a top-up by card?", "my card hasn't arrived yet, when will it arrive?",
]
TEXTS = [
    "", " ", "a", "Hello, world!", "  leading and trailing  ", "tabs\tand\nlines\r\n\r\nhere", "I'll I'LL they've THEY'VE it's ſ'S", "x=12345 foo_bar(baz) 9 99",
    "我昨天买的那个红色的充电宝什么时候到？", "你好，世界！東京タワー 한국어", "naïve café Ünïcödé İstanbul", "emoji 😀 👍🏽 👩‍👩‍👧‍👦 ❤️", "a\u00adb a\u200bb a\u3000b a\u00a0b",
    "e\u0301 é ﬁ ½ ² Ⅷ Å ㎏", "q\u0323\u0307 q\u0307\u0323 \u0301x", "русский ελληνικά", "עברית العربية हिन्दी ไทย", "\u2028line\u2029\u0085nel", "𝔘𝔫𝔦 𠀀 㐀x", "▁a ▁▁b ▁",
    "the lowest   card", "end with space ", "\r\n\r", "...!!!??? -- __init__", "한국 각 ㄱㅏ", "<s> </s> <unk> <mask> [X]", "card cards acard  <mask>  pay", "\x00nul\x01",
]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def case(tokenizer, text, pair=None, special=True):
    done = tokenizer.encode(text, pair, add_special_tokens=special)
    answer = {"text": text, "special": special, "ids": done.ids, "offsets": done.offsets, "type_ids": done.type_ids, "decoded": tokenizer.decode(done.ids)}
    if pair is not None:
        answer["pair"] = pair
    return answer


def save(name, tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    cases = [case(tokenizer, text, special=special) for text in TEXTS for special in (False,)]
    cases += [case(tokenizer, a, b) for a, b in zip(TEXTS[3:8], TEXTS[8:13])] + [case(tokenizer, TEXTS[3])]
    whole = {"tokenizer": json.loads(tokenizer.to_str()), "cases": cases}
    (OUT / f"{name}.json").write_text(json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def byte_level(pre, **post):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>", "<mask>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=post.get("trim", True), add_prefix_space=post.get("prefix", False))
    return tokenizer


def fallback_bpe():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


def words(pre):
    """Every word is unknown: its offsets show where words were cut."""
    tokenizer = Tokenizer(models.WordLevel(vocab={"<unk>": 0, "the": 1, "card": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre
    return tokenizer


def train_spm(folder, name, **options):
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / name), minloglevel=2, num_threads=1, **options)
    data = spm_proto.ModelProto.FromString((folder / f"{name}.model").read_bytes())
    data.trainer_spec.ClearField("input")  # paths
    data.trainer_spec.ClearField("model_prefix")
    data.normalizer_spec.ClearField("normalization_rule_tsv")
    return data


def rules(folder):
    """A small table of replacements, since the usual ones take 200 KB."""
    pairs = [("\ufb01", "fi"), ("\xbd", "1\u20442"), ("e\u0301", "\xe9"), ("\xe9", "e"), ("\u3000", " "), ("\xa0", " "), ("\t", " "), ("\n", " "), ("\u212b", "A"), ("\u200b", ""),
             ("\uff01", "!"), ("\uff1f", "?")]
    path = folder / "rules.tsv"
    path.write_text("".join("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in pair) + "\n" for pair in pairs), encoding="utf-8")
    return str(path)


def save_spm(name, data):
    blob = data.SerializeToString()
    processor = sentencepiece.SentencePieceProcessor(model_proto=blob)
    cases = []
    for text in TEXTS:
        if "\x00" in text:
            continue
        ids = processor.encode(text)
        cases.append({"text": text, "ids": ids} | ({} if processor.unk_id() in ids else {"decoded": processor.decode(ids)}))
    (OUT / f"{name}.model").write_bytes(blob)
    (OUT / f"{name}.model.json").write_text(json.dumps({"cases": cases}, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def make_words():
    byte_pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    kinds = {
        "whitespace": pre_tokenizers.Whitespace(), "whitespace_split": pre_tokenizers.WhitespaceSplit(), "digits": pre_tokenizers.Digits(), "digit": pre_tokenizers.Digits(True),
        "punctuation": pre_tokenizers.Punctuation("contiguous"), "char": pre_tokenizers.CharDelimiterSplit("a"), "scripts": pre_tokenizers.UnicodeScripts(),
        "fixed": pre_tokenizers.FixedLength(3), "metaspace_first": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
        "llama3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_pre]),
        "inverted": pre_tokenizers.Split(Regex(r"\w+|^"), "contiguous", invert=True), "empty": pre_tokenizers.Split(Regex("(?=[A-Z])"), "contiguous"),
    }
    for behaviour in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        kinds[f"split_{behaviour}"] = pre_tokenizers.Split(Regex(r"\d+|[ao ]"), behaviour)
    whole = {}
    for name, pre in kinds.items():
        tokenizer = words(pre)
        whole[name] = {"pre_tokenizer": json.loads(tokenizer.to_str())["pre_tokenizer"], "offsets": [tokenizer.encode(text).offsets for text in TEXTS]}
    (OUT / "words.json").write_text(json.dumps({"texts": TEXTS, "kinds": whole}, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def make_normalized(table):
    n = normalizers
    kinds = {
        "nfc": n.NFC(), "nfd": n.NFD(), "nfkc": n.NFKC(), "nfkd": n.NFKD(), "accents": n.Sequence([n.NFD(), n.StripAccents()]), "strip": n.Strip(), "strip_left": n.Strip(right=False),
        "nmt": n.Nmt(), "replace": n.Replace(Regex(r"\s+"), "▁"), "lines": n.Replace(Regex("^|(?i:s)$"), "é!"), "prepend": n.Prepend("▁x"), "bytes": n.ByteLevel(), "lower": n.Lowercase(),
        "bert": n.BertNormalizer(lowercase=False, strip_accents=True), "precompiled": n.Precompiled(table),
        "sequence": n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁"), n.NFKC(), n.Lowercase()]),
    }
    whole = {}
    for name, normalizer in kinds.items():
        tokenizer = Tokenizer(models.BPE(vocab={"<unk>": 0}, merges=[], unk_token="<unk>"))
        tokenizer.normalizer = normalizer
        whole[name] = {"normalizer": json.loads(tokenizer.to_str())["normalizer"], "texts": [normalizer.normalize_str(text) for text in TEXTS],
                       "offsets": [tokenizer.encode(text).offsets for text in TEXTS]}
    (OUT / "normalized.json").write_text(json.dumps({"texts": TEXTS, "kinds": whole}, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pre = pre_tokenizers
    save("gpt2", byte_level(pre.ByteLevel(add_prefix_space=False)))
    save("llama3", byte_level(pre.Sequence([pre.Split(Regex(LLAMA3), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]), trim=False))
    save("smollm", byte_level(pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=False)])))
    falcon = pre.Sequence([pre.Punctuation("contiguous"), pre.ByteLevel(add_prefix_space=False), pre.Digits(), pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    save("falcon", byte_level(falcon))
    roberta = byte_level(pre.ByteLevel(add_prefix_space=True), prefix=True)
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    save("roberta", roberta)
    save("llama", fallback_bpe())
    gemma = fallback_bpe()
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    save("gemma", gemma)
    newer = fallback_bpe()
    newer.normalizer = None
    newer.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    newer.decoder = decoders.Metaspace(prepend_scheme="first")
    save("metaspace_first", newer)
    clip = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    clip.pre_tokenizer = pre.Whitespace()
    clip.decoder = decoders.BPEDecoder()
    clip.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=160, end_of_word_suffix="</w>", special_tokens=["<unk>"], show_progress=False))
    save("suffix", clip)
    prefixed = Tokenizer(models.BPE(continuing_subword_prefix="##", unk_token="<unk>", fuse_unk=True))
    prefixed.pre_tokenizer = pre.Whitespace()
    prefixed.decoder = decoders.WordPiece()
    prefixed.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=160, continuing_subword_prefix="##", special_tokens=["<unk>"], show_progress=False))
    save("prefix", prefixed)
    added = byte_level(pre.ByteLevel(add_prefix_space=False))
    added.normalizer = normalizers.Lowercase()
    added.add_tokens([AddedToken("card", normalized=True), AddedToken("pay", single_word=True), AddedToken("<mask>", lstrip=True, normalized=False),
                      AddedToken("[X]", lstrip=True, rstrip=True, normalized=False)])
    save("added", added)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        unigram = train_spm(folder, "unigram", model_type="unigram", hard_vocab_limit=False, vocab_size=150, normalization_rule_tsv=rules(folder), user_defined_symbols=["<u>", "card"])
        table = unigram.normalizer_spec.precompiled_charsmap
        save_spm("unigram", unigram)
        save_spm("unigram_bytes", train_spm(folder, "bytes", model_type="unigram", hard_vocab_limit=False, vocab_size=400, byte_fallback=True, normalization_rule_name="identity"))
        save_spm("bpe", train_spm(folder, "bpe", model_type="bpe", vocab_size=420, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98))
        save_spm("bpe_own", train_spm(folder, "own", model_type="bpe", vocab_size=150, add_dummy_prefix=False, normalization_rule_name="identity", user_defined_symbols=["▁▁", "\t", "card"]))
        save_spm("bpe_suffix", train_spm(folder, "suffix", model_type="bpe", vocab_size=150, treat_whitespace_as_suffix=True, normalization_rule_name="identity"))
    for fallback in (False, True):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=150 + 256 * fallback, special_tokens=["<unk>", "<s>", "</s>"] + BYTES * fallback, unk_token="<unk>",
                                                                      show_progress=False))
        content = json.loads(tokenizer.to_str())
        content["model"]["byte_fallback"] = fallback
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(table), normalizers.Replace(Regex(" {2,}"), " ")])
        if fallback:
            tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
        save("xlmr_bytes" if fallback else "xlmr", tokenizer)
    make_words()
    make_normalized(table)


if __name__ == "__main__":
    main()
