"""Exceptions with the words and codes of the library: `[where] expected X, got Y`.

Each is an `Error` and, beside it, the exception of Python that means the same.
"""
from __future__ import annotations


class Error(Exception):
    """Any refusal or failure of qkv."""

    #: Stable name, as in JSON and on the command line: "shape", "invalid_argument", ...
    code: str = "internal"
    #: The part of the library that complains: "attention", "tokenizer", ...
    where: str = ""


class InternalError(Error, RuntimeError):
    """A fault of the library itself."""

    code = "internal"


class ArgumentError(Error, ValueError):
    """A value outside its range, or an option that is not understood."""

    code = "invalid_argument"


class ShapeError(Error, ValueError):
    """Shapes or element types that do not fit together."""

    code = "shape"


class ConfigError(Error, ValueError):
    """A configuration that cannot work, refused before any work."""

    code = "config"


class DataError(Error, ValueError):
    """Input data: text, tables, labels."""

    code = "data"


class ModelError(Error, ValueError):
    """Files of a model: weights, config.json, tokenizer."""

    code = "model"


class IoError(Error, OSError):
    """The file system said no."""

    code = "io"


class NumericError(Error, ArithmeticError):
    """A NaN or an infinity where none may be."""

    code = "numeric"


class UnsupportedError(Error, NotImplementedError):
    """Not there for this combination; never a silent fallback."""

    code = "unsupported"


class InterruptedError(Error):  # noqa: A001 - the name of the code; qkv.errors.InterruptedError
    """Stopped after saving."""

    code = "interrupted"


_CLASSES = {c.code: c for c in (InternalError, ArgumentError, ShapeError, ConfigError, DataError, ModelError, IoError, NumericError,
                                UnsupportedError, InterruptedError)}


def _make(code: str, where: str, message: str) -> Error:
    error = _CLASSES[code](message)
    error.where = where
    return error
