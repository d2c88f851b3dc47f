"""Models: text classifiers that qkv trained, published encoders and language models, behind one class."""
from __future__ import annotations

import json
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from . import _core
from ._core import Encoding, Tokenizer
from .errors import ArgumentError, DataError, UnsupportedError


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


@dataclass(frozen=True)
class Fill:
    """One token for the place of a mask."""

    token: str
    id: int
    score: float  # its probability
    sequence: str  # the text with it


@dataclass(frozen=True)
class Token:
    """One token of a text that was generated or scored."""

    id: int
    piece: str  # as in the vocabulary
    logprob: float | None  # natural logarithm; None where it was not asked for, or nothing stands before the token


@dataclass(frozen=True)
class Generation:
    """How one prompt went on."""

    text: str  # without the prompt
    tokens: list[Token]
    finish_reason: str  # "stop", "length", "cancelled"
    logprobs: list[float] | None  # of the tokens, if asked
    score: float | None = None  # of beam search


@dataclass(frozen=True)
class Score:
    """How probable a text is."""

    text: str
    tokens: list[Token]
    logprobs: list[float | None]
    perplexity: float
    is_greedy: bool  # no other token is more probable, at any place

    @property
    def total(self) -> float:
        """Sum of the logarithms."""
        return sum(x for x in self.logprobs if x is not None)


_DECODERS = ("ForCausalLM", "LMHeadModel")


class Model:
    """A model from a folder or file. What it cannot do is an UnsupportedError. Immutable; usable from several threads."""

    def __init__(self, path: str | os.PathLike[str], *, tokenizer: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(path)
        self.config = _read_config(self.folder)
        self._lock = threading.Lock()
        self._vectors: Any = None
        self._classifier = self._encoder = self._language = None
        self.kind = _kind_of(self.folder, self.config)
        if self.kind == "classifier":
            self._classifier = _core._Classifier.load(os.fspath(path))
        elif self.kind == "language model":
            self._language = _core._LanguageModel.load(os.fspath(path), "" if tokenizer is None else os.fspath(tokenizer))
        else:
            self._encoder = _core._Encoder.load(os.fspath(path), False)
        part = self._classifier or self._language or self._encoder
        self.tokenizer: Tokenizer = part.tokenizer
        #: Labels in the order of the columns of predict(); empty for a model without.
        self.labels: list[str] = [] if self._language is not None else part.labels

    # Encoders.

    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int = 256,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
    ) -> np.ndarray:
        """Vectors of texts, [texts, width] in float32; [width] for a single one.

        Pooling, length and prompts are those of the files of sentence-transformers; without them the mean, of length 1. A text that
        is longer than the model takes is cut with a warning; with truncate=False it is a DataError. batch_size: texts
        between two steps of the progress bar, which goes to stderr; it changes no number.
        """
        several, vectors = _several(texts), self._for_vectors()
        if batch_size < 1:
            raise ArgumentError(f"[embed] expected batch_size of at least 1, got {batch_size}")
        several = [self._prompt(prompt_name, prompt) + text for text in several]
        parts, cut = [], 0
        for begin in range(0, len(several), batch_size):
            part, part_cut = vectors.embed(several[begin:begin + batch_size], truncate)
            parts.append(part)
            cut += part_cut
            if show_progress_bar:
                _show_progress(min(begin + batch_size, len(several)), len(several))
        if cut:
            warnings.warn(f"{cut} of {len(several)} texts were cut to {vectors.max_length} tokens", stacklevel=2)
        found = np.concatenate(parts) if parts else vectors.embed([], truncate)[0]
        if normalize_embeddings:
            found = found / np.maximum(np.linalg.norm(found, axis=-1, keepdims=True), 1e-12)
        return found[0] if isinstance(texts, str) else found

    def embed(self, texts: str | Iterable[str], *, truncate: bool = False) -> np.ndarray:
        """encode() that refuses texts which are too long, as `qkv embed` does."""
        return self.encode(texts, truncate=truncate)

    def fill(self, text: str, top: int = 5, *, truncate: bool = False) -> list[Fill] | list[list[Fill]]:
        """The likeliest tokens for the mask in a text, best first; for several masks a list for each."""
        if self._encoder is None:
            raise self._cannot("fill", "a masked language model")
        if top < 1:
            raise ArgumentError(f"[fill] expected top of at least 1, got {top}")
        ids, places, logits = self._encoder.mask_logits(_several([text])[0], truncate)
        found = []
        for place, row in zip(places, _softmax(logits)):
            row = row[:self.tokenizer.vocab_size]  # an embedding may have more rows than there are tokens
            best = np.lexsort((np.arange(row.size), -row))[:top]
            answers = []
            for token in best.tolist():
                filled = [*ids[:place], token, *ids[place + 1:]]
                answers.append(Fill(self.tokenizer.decode([token], skip_special_tokens=False), token, float(row[token]),
                                    self.tokenizer.decode(filled)))
            found.append(answers)
        return found[0] if len(found) == 1 else found

    # Classifiers.

    def predict(self, texts: str | Iterable[str], *, truncate: bool = False, pairs: Sequence[str] | None = None) -> np.ndarray:
        """Probabilities [texts, labels] in float64; [labels] for a single text.

        A text that is empty, or longer than the model takes, is a DataError; with `truncate` a longer one is cut. pairs: the second text
        of each, for models of pairs; a cross-encoder gives one score.
        """
        several = _several(texts)
        second = [] if pairs is None else _several([pairs] if isinstance(pairs, str) else pairs)
        if pairs is not None and len(second) != len(several):
            raise ArgumentError(f"[classify] expected as many pairs as texts, got {len(second)} and {len(several)}")
        if self._classifier is not None:
            if pairs is not None:
                raise self._cannot("classify", "a model of pairs of texts")
            scores = self._classifier.predict(several, truncate)
        elif self._encoder is not None:
            for text in several:
                if not text.strip():
                    raise DataError("[classify] expected a text, got an empty one")
            scores = self._scores(self._encoder.label_logits(several, second, truncate)[0].astype(np.float64))
        else:
            raise self._cannot("classify", "a classifier")
        return scores[0] if isinstance(texts, str) else scores

    @overload
    def classify(self, texts: str, *, truncate: bool = False, pairs: Sequence[str] | None = None) -> Prediction: ...
    @overload
    def classify(self, texts: Iterable[str], *, truncate: bool = False, pairs: Sequence[str] | None = None) -> list[Prediction]: ...

    def classify(self, texts: str | Iterable[str], *, truncate: bool = False,
                 pairs: Sequence[str] | None = None) -> Prediction | list[Prediction]:
        """The label of one text, or of each of several. Errors as in predict()."""
        several = _several(texts)
        answers = [self._answer(text, row) for text, row in zip(several, self.predict(several, truncate=truncate, pairs=pairs))]
        return answers[0] if isinstance(texts, str) else answers

    def attention(self, text: str) -> Attention:
        """The attention weights of one text, of every layer and head, as they were in the computation itself."""
        if self._classifier is None:
            raise self._cannot("attention", "a classifier that qkv trained")
        return Attention(text, *_unpack_attention(self._classifier.attention(_several([text])[0])))

    # Language models.

    @overload
    def generate(self, prompts: str, **settings: Any) -> Generation: ...
    @overload
    def generate(self, prompts: Iterable[str], **settings: Any) -> list[Generation]: ...

    def generate(
        self,
        prompts: str | Iterable[str],
        *,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        banned: Sequence[int] = (),
        num_beams: int = 1,
        length_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
        seed: int = 0,
        logprobs: bool = False,
        batch_size: int = 8,
        on_text: Callable[[int, str], bool | None] | None = None,
    ) -> Generation | list[Generation]:
        """Goes on from each prompt. Temperature 0 takes the likeliest token; else equal seeds draw equal texts.

        on_text(index, text) is called with whole characters as they come; False ends that continuation. num_beams > 1: beam search.
        A prompt that leaves no room in the model's context is a DataError. Prompts do not change one another's results.
        """
        language = self._need_language("generate")
        several = _several(prompts)
        if not isinstance(num_beams, int) or num_beams < 1:
            raise ArgumentError(f"[generate] expected num_beams of at least 1, got {num_beams!r}")
        settings = {
            "max_new_tokens": int(max_new_tokens), "min_new_tokens": int(min_new_tokens), "temperature": float(temperature), "top_k": int(top_k),
            "top_p": float(top_p), "min_p": float(min_p), "repetition_penalty": float(repetition_penalty),
            "presence_penalty": float(presence_penalty), "frequency_penalty": float(frequency_penalty),
            "logit_bias": [(int(k), float(v)) for k, v in (logit_bias or {}).items()], "banned": [int(x) for x in banned],
            "stop": [stop] if isinstance(stop, str) else list(stop), "ignore_end": bool(ignore_end), "seed": seed, "logprobs": bool(logprobs),
            "batch_size": int(batch_size), "num_beams": num_beams, "num_return_sequences": 1, "length_penalty": float(length_penalty),
        }
        if num_beams > 1:
            for name, used in (("stop", settings["stop"]), ("on_text", on_text), ("temperature", temperature)):
                if used:
                    raise UnsupportedError(f"[generate] expected beam search without {name}")
            found = [_beam_result(language.beam_search(prompt, settings)[0], logprobs) for prompt in several]
        else:
            found = [_generation(x, logprobs) for x in language.generate(several, settings, on_text)]
        return found[0] if isinstance(prompts, str) else found

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The text of generate(prompt, ...) as it comes. Leaving the loop ends the work."""
        self._need_language("generate")
        pieces: queue.Queue[Any] = queue.Queue()
        left = threading.Event()

        def on_text(_: int, text: str) -> bool:
            pieces.put(text)
            return not left.is_set()

        def work() -> None:
            try:
                self.generate(prompt, on_text=on_text, **settings)
                pieces.put(None)
            except BaseException as error:  # raised in the loop
                pieces.put(error)

        worker = threading.Thread(target=work, name="qkv.generate", daemon=True)
        worker.start()
        try:
            while True:
                piece = pieces.get()
                if isinstance(piece, BaseException):
                    raise piece
                if piece is None:
                    return
                yield piece
        finally:
            left.set()
            worker.join()

    @overload
    def score(self, texts: str, continuation: str | None = None, *, window: int = 0, stride: int = 0) -> Score: ...
    @overload
    def score(self, texts: Iterable[str], continuation: None = None, *, window: int = 0, stride: int = 0) -> list[Score]: ...

    def score(self, texts: str | Iterable[str], continuation: str | None = None, *, window: int = 0,
              stride: int = 0) -> Score | list[Score]:
        """Log-probabilities of each token after those before it, and the perplexity.

        continuation: only its tokens count, after the text, divided as lm-eval does. A text longer than the context is a DataError
        unless `window` (and `stride`) cut it into windows.
        """
        language = self._need_language("score")
        if continuation is not None:
            if not isinstance(texts, str):
                raise ArgumentError("[score] expected one text beside a continuation, got several")
            return _score(continuation, language.score_continuation(_several([texts])[0], _several([continuation])[0]))
        several = _several(texts)
        found = [_score(text, language.score(text, window, stride)) for text in several]
        return found[0] if isinstance(texts, str) else found

    # All.

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Ids, pieces and offsets of a text."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def __repr__(self) -> str:
        more = f", {len(self.labels)} labels" if self.labels else ""
        return f"qkv.Model({str(self.folder)!r}, {self.kind}{more})"

    def _cannot(self, what: str, needs: str) -> UnsupportedError:
        return UnsupportedError(f"[{what}] expected {needs}, got a {self.kind}: {self.folder}")

    def _need_language(self, what: str) -> Any:
        if self._language is None:
            raise self._cannot(what, "a language model")
        return self._language

    def _for_vectors(self) -> Any:
        if self._encoder is None:
            raise self._cannot("embed", "a published encoder")
        if self._encoder.head == "none":
            return self._encoder
        with self._lock:
            if self._vectors is None:
                self._vectors = _core._Encoder.load(os.fspath(self.folder), True)
            return self._vectors

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return prompt
        known = dict(self._encoder.prompts)
        name = self._encoder.default_prompt if name is None else name
        if name and name not in known:
            raise ArgumentError(f"[embed] expected prompt_name to be one of {', '.join(known) or 'none'}, got {name!r}")
        return known[name] if name else ""

    def _scores(self, logits: np.ndarray) -> np.ndarray:
        """As the model was trained: one of all labels, or each by itself."""
        problem = self.config.get("problem_type")
        if problem == "regression":
            return logits
        if logits.shape[1] == 1 or problem == "multi_label_classification":
            return 1 / (1 + np.exp(-logits))
        return _softmax(logits)

    def _answer(self, text: str, row: np.ndarray) -> Prediction:
        best = int(row.argmax())
        return Prediction(text, self.labels[best], float(row[best]), dict(zip(self.labels, row.tolist())))


def load(path: str | os.PathLike[str], *, tokenizer: str | os.PathLike[str] | None = None) -> Model:
    """A model from a folder in Hugging Face layout, one that training leaves, a .gguf file or a llama2.c .bin file.

    tokenizer: a folder or file to take it from, for a language model without one.
    """
    return Model(path, tokenizer=tokenizer)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the loaders say what is wrong
        return {}
    return config if isinstance(config, dict) else {}


def _kind_of(path: Path, config: Mapping[str, Any]) -> str:
    if path.is_file():
        return "language model"
    if not config or (path / "run.json").exists() or config.get("model_type") == "qkv":
        return "classifier"
    architectures = config.get("architectures") or [""]
    return "language model" if str(architectures[0]).endswith(_DECODERS) else "encoder"


def _several(texts: str | Iterable[str]) -> list[str]:
    several = [texts] if isinstance(texts, str) else list(texts)
    for text in several:
        if not isinstance(text, str):
            raise TypeError(f"[text] expected text as str, got {type(text).__name__}")
    return several


def _softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def _show_progress(done: int, total: int) -> None:
    print(f"\r{done} of {total} texts", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _unpack_attention(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*parts[:-1], json.loads(parts[-1]))


def _tokens(ids: Sequence[int], pieces: Sequence[str], logprobs: Sequence[float | None]) -> list[Token]:
    known = list(logprobs) if logprobs else [None] * len(ids)
    return [Token(i, p, x) for i, p, x in zip(ids, pieces, known)]


def _generation(parts: tuple[Any, ...], with_logprobs: bool) -> Generation:
    text, ids, pieces, logprobs, finish = parts
    return Generation(text, _tokens(ids, pieces, logprobs), finish, list(logprobs) if with_logprobs else None)


def _beam_result(parts: tuple[Any, ...], with_logprobs: bool) -> Generation:
    text, ids, pieces, logprobs, score, ended = parts
    return Generation(text, _tokens(ids, pieces, logprobs if with_logprobs else ()), "stop" if ended else "length",
                      list(logprobs) if with_logprobs else None, score)


def _score(text: str, parts: tuple[Any, ...]) -> Score:
    ids, pieces, logprobs, greedy, perplexity = parts
    padded = [None] * (len(ids) - len(logprobs)) + list(logprobs)
    return Score(text, _tokens(ids, pieces, padded), padded, perplexity, all(greedy))
