"""Token ids, labels and batch plans for the classifier benchmarks.

Two sources: a folder that `qkv bench train --export DIR` wrote (ids, labels and the exact batches of the engine, so both
sides see the same work), or tables with a tokenizer.json, for a run of the peer alone.
"""

from __future__ import annotations

import csv
import pathlib
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Split:
    """Samples of one split: ids[starts[i]:starts[i + 1]] are the tokens of sample i."""

    ids: np.ndarray
    starts: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self) -> np.ndarray:
        return self.starts[1:] - self.starts[:-1]


@dataclass
class ClassifierData:
    train: Split
    test: Split
    vocab_size: int
    num_labels: int
    batches: list[np.ndarray] = field(default_factory=list)  # sample indices of each training step, in order


def load_export(folder: pathlib.Path) -> ClassifierData:
    """Reads data.safetensors: {train,test}.{ids,starts,labels}, plan.samples, plan.starts, sizes [vocabulary, labels]."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "data.safetensors")
    split = lambda name: Split(*(tensors[f"{name}.{part}"].astype(np.int64) for part in ("ids", "starts", "labels")))
    starts = tensors["plan.starts"]
    batches = [tensors["plan.samples"][a:b].astype(np.int64) for a, b in zip(starts[:-1], starts[1:])]
    vocab_size, num_labels = (int(n) for n in tensors["sizes"])
    return ClassifierData(split("train"), split("test"), vocab_size, num_labels, batches)


def read_rows(path: pathlib.Path, text: str, label: str) -> tuple[list[str], list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as f:
        rows = list(csv.DictReader(f))
    return [row[text] for row in rows], [row[label] for row in rows]


def train_tokenizer(texts: list[str], kind: str, vocab_size: int):
    """A stand-in for the engine's tokenizer when none is given: byte-level BPE, or one id per character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "char":
        characters = sorted({c for t in texts for c in t})
        tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(special + characters)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        return tokenizer
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def from_tables(train: pathlib.Path, test: pathlib.Path, text: str, label: str, tokenizer_file: pathlib.Path | None,
                kind: str, vocab_size: int) -> ClassifierData:
    train_texts, train_labels = read_rows(train, text, label)
    test_texts, test_labels = read_rows(test, text, label)
    if tokenizer_file is not None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    else:
        tokenizer = train_tokenizer(train_texts, kind, vocab_size)
    names = {name: i for i, name in enumerate(sorted(set(train_labels)))}

    def split(texts: list[str], labels: list[str]) -> Split:
        encoded = [e.ids for e in tokenizer.encode_batch(texts)]
        starts = np.concatenate([[0], np.cumsum([len(e) for e in encoded])])
        return Split(np.concatenate(encoded).astype(np.int64), starts.astype(np.int64),
                     np.array([names[name] for name in labels], dtype=np.int64))

    return ClassifierData(split(train_texts, train_labels), split(test_texts, test_labels), tokenizer.get_vocab_size(), len(names))


def plan_epoch(lengths: np.ndarray, batch_tokens: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffles, sorts by length inside pools of some 50 batches, cuts at batch_tokens padded tokens, shuffles the batches."""
    order = rng.permutation(len(lengths))
    pool = max(1, int(50 * batch_tokens / max(1.0, lengths.mean())))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), pool):
        part = order[start:start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        current: list[int] = []
        for i in part:
            if current and int(lengths[i]) * (len(current) + 1) > batch_tokens:
                batches.append(np.array(current))
                current = []
            current.append(int(i))
        if current:
            batches.append(np.array(current))
    return [batches[i] for i in rng.permutation(len(batches))]


def eval_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    order = np.argsort(lengths, kind="stable")
    batches, current = [], []
    for i in order:
        if current and int(lengths[i]) * (len(current) + 1) > batch_tokens:
            batches.append(np.array(current))
            current = []
        current.append(int(i))
    return batches + [np.array(current)]


def padded(split: Split, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids [B, N] padded with 0, lengths [B], labels [B])."""
    lengths = split.starts[samples + 1] - split.starts[samples]
    ids = np.zeros((len(samples), int(lengths.max())), dtype=np.int64)
    for row, sample in enumerate(samples):
        ids[row, : lengths[row]] = split.ids[split.starts[sample]:split.starts[sample + 1]]
    return ids, lengths, split.labels[samples]
