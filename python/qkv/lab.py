"""Claims about Transformers, each measured again by the engine itself (docs/lab.md)."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from . import _core


@dataclass(frozen=True)
class Result:
    """What one experiment found. str() is the report that `qkv lab NAME` prints."""

    name: str
    claim: str  # the sentence under test
    holds: bool | None  # None: undecided
    verdict: str
    measured: dict[str, Any]  # every figure by name
    columns: list[str]
    rows: list[list[str]]
    pictures: dict[str, bytes]  # by file name, SVG
    report: str

    def __str__(self) -> str:
        return self.report


def names() -> dict[str, str]:
    """All experiments and their claims."""
    return dict(_core._lab_list())


def run(
    name: str,
    *,
    full: bool = False,
    seed: int = 1,
    data: str | os.PathLike[str] = "data/support",
    model: str | os.PathLike[str] = "",
) -> Result:
    """Runs one experiment: a pure function of its options, in under a minute unless `full`.

    data, model: the support requests, and a trained run folder, for "broken-attention" alone.
    """
    found, columns, rows, pictures, report = _core._lab_run(name, full, seed, os.fspath(data), os.fspath(model))
    return Result(**json.loads(found), columns=columns, rows=rows, pictures=pictures, report=report)
