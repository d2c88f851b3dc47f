"""Training and the machine: the parts of the package that are more than one call of the library."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import _core
from ._models import Model, load
from .errors import ArgumentError, ConfigError


def info(*, peak: bool = False) -> dict[str, Any]:
    """The machine, and what qkv uses of it and why, as `qkv info --json` says it.

    With `peak` also "peaks", measured now on all threads in some 0.2 s.
    """
    return json.loads(_core._info(peak))


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
