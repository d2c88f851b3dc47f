"""Models, training and the machine: the parts of the package that are more than one call of the library."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from . import _core
from ._core import Tokenizer
from .errors import ArgumentError, ConfigError


def info(*, peak: bool = False) -> dict[str, Any]:
    """The machine, and what qkv uses of it and why, as `qkv info --json` says it.

    With `peak` also "peaks", measured now on all threads in some 0.2 s.
    """
    return json.loads(_core._info(peak))


@dataclass(frozen=True)
class Prediction:
    """The label of one text."""

    text: str
    label: str  # of the largest score
    score: float  # its probability
    scores: dict[str, float]  # of every label


@dataclass(frozen=True)
class Attention:
    """Who looked at whom in one text."""

    text: str
    tokens: list[str]  # pieces of the vocabulary
    words: list[str]  # what each token stands for in the text; empty for tokens that were added
    label: str
    score: float
    weights: list[np.ndarray]  # of each layer [heads, tokens, tokens]: row i is what token i looks at; sums to 1
    figures: list[dict[str, Any]]  # of each head, layer by layer: "entropy", "mean_distance", "class", ...


class Model:
    """A trained text classifier. Immutable; usable from several threads."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._classifier = _core._Classifier.load(os.fspath(folder))
        #: Labels in the order of the columns of predict().
        self.labels: list[str] = self._classifier.labels
        self.tokenizer: Tokenizer = self._classifier.tokenizer

    def predict(self, texts: str | Iterable[str], *, truncate: bool = False) -> np.ndarray:
        """Probabilities [texts, labels] in float64; [labels] for a single text.

        A text that is empty, or longer than the model takes, is a DataError; with `truncate` a longer one is cut.
        """
        if isinstance(texts, str):
            return self._classifier.predict([texts], truncate)[0]
        return self._classifier.predict(_strings(texts), truncate)

    @overload
    def classify(self, texts: str, *, truncate: bool = False) -> Prediction: ...
    @overload
    def classify(self, texts: Iterable[str], *, truncate: bool = False) -> list[Prediction]: ...

    def classify(self, texts: str | Iterable[str], *, truncate: bool = False) -> Prediction | list[Prediction]:
        """The label of one text, or of each of several. Errors as in predict()."""
        several = [texts] if isinstance(texts, str) else _strings(texts)
        answers = [self._answer(text, row) for text, row in zip(several, self._classifier.predict(several, truncate))]
        return answers[0] if isinstance(texts, str) else answers

    def attention(self, text: str) -> Attention:
        """The attention weights of one text, of every layer and head, as they were in the computation itself."""
        return Attention(text, *_unpack_attention(self._classifier.attention(_strings([text])[0])))

    def _answer(self, text: str, row: np.ndarray) -> Prediction:
        best = int(row.argmax())
        return Prediction(text, self.labels[best], float(row[best]), dict(zip(self.labels, row.tolist())))

    def __repr__(self) -> str:
        return f"qkv.Model({str(self.folder)!r}, {len(self.labels)} labels)"


def _unpack_attention(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*parts[:-1], json.loads(parts[-1]))


def _strings(texts: Iterable[str]) -> list[str]:
    several = list(texts)
    for text in several:
        if not isinstance(text, str):
            raise TypeError(f"[classify] expected text as str, got {type(text).__name__}")
    return several


def load(folder: str | os.PathLike[str]) -> Model:
    """A model from the folder that training leaves (config.json, model.safetensors, tokenizer.json)."""
    return Model(folder)


@dataclass(frozen=True)
class TrainOutcome:
    """How a training run ended. docs/training.md says what each figure is."""

    folder: Path
    step: int
    best_step: int
    epochs: int
    loss: float
    metric: str
    value: float
    test_accuracy: float | None
    test_macro_f1: float | None
    seconds: float
    tokens_per_second: float
    peak_bytes: int

    def model(self) -> Model:
        """The best model of the run."""
        return load(self.folder)


def train(
    config: str | os.PathLike[str] | Mapping[str, Mapping[str, Any] | Any],
    out: str | os.PathLike[str] | None = None,
    *,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    resume: bool = False,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> TrainOutcome:
    """Trains a text classifier as a configuration says (docs/configuration.md).

    config: a TOML file, or the same as a dict of sections; paths in a file are relative to its folder, in a dict to the
    working directory. out: a new or empty folder, default out/NAME of the file, or out/train. overrides: {"train.steps": 100}
    or ["train.steps=100"], over the configuration. progress: called after every step with a dict; what it raises, and
    Ctrl-C, end the run once it has saved, and resume=True continues it.
    """
    assignments = [f"{k}={_toml_value(v, k)}" for k, v in overrides.items()] if isinstance(overrides, Mapping) else list(overrides)
    if isinstance(config, Mapping):
        file, toml = None, _toml(config)
        folder = Path("out/train") if out is None else Path(out)
    else:
        file, toml = os.fspath(config), ""
        folder = Path("out") / Path(config).stem if out is None else Path(out)
    if not os.fspath(folder):
        raise ArgumentError("[train] expected a folder for the results, got an empty name")
    return TrainOutcome(folder=folder, **json.loads(_core._train(file, toml, folder, assignments, resume, progress)))


def _toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML text: plain values first, then the sections."""
    plain = [f"{_toml_key(k)} = {_toml_value(v, k)}" for k, v in config.items() if not isinstance(v, Mapping)]
    for name, section in config.items():
        if isinstance(section, Mapping):
            plain.append(f"[{_toml_key(name)}]")
            plain += [f"{_toml_key(k)} = {_toml_value(v, f'{name}.{k}')}" for k, v in section.items() if v is not None]
    return "\n".join(plain) + "\n"


def _toml_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"[config] expected names as str, got {key!r}")
    return json.dumps(key)


def _toml_value(value: Any, key: str) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(v, key) for v in value) + "]"
    raise ConfigError(f"[config] expected text, a number, a truth value or a list for {key}, got {value!r}")
