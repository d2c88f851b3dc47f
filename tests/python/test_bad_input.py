"""What is refused: the exception, its code, and that the message says what to do."""
import re

import numpy as np
import pytest

import qkv
from qkv import Mask

X = np.ones((2, 4, 6, 8), np.float32)


def sdpa(q=X, k=X, v=X, **keywords):
    return qkv.scaled_dot_product_attention(q, k, v, **keywords)


REFUSED = {
    "rank": (lambda: sdpa(X[0, 0]), qkv.ShapeError, "expected q of shape [..., heads, length, channels], got [6, 8]"),
    "scalar": (lambda: sdpa(np.float32(1)), qkv.ShapeError, "got []"),
    "dtype mix": (lambda: sdpa(k=X.astype(float)), qkv.ShapeError, "expected k as float32 like q, got float64"),
    "integers": (lambda: sdpa(X.astype(int), X.astype(int), X.astype(int)), qkv.ShapeError, "expected float32, float64, bfloat16 or float16, got int64"),
    "lengths disagree": (lambda: sdpa(v=X[:, :, :5]), qkv.ShapeError, "expected k and v of equal length, got k 6 and v 5"),
    "batches disagree": (lambda: sdpa(k=X[:1], v=X[:1]), qkv.ShapeError, "of one batch shape, got [2], [1] and [1]"),
    "ranks disagree": (lambda: sdpa(k=X[0], v=X[0]), qkv.ShapeError, "of one batch shape, got [2], [] and []"),
    "heads do not divide": (lambda: sdpa(k=X[:, :3], v=X[:, :3]), qkv.ShapeError, "whole groups per key/value head, got 4 and 3"),
    "heads of v": (lambda: sdpa(v=X[:, :2]), qkv.ShapeError, "expected k and v with equal heads"),
    "heads of none": (lambda: sdpa(X[:0], X[:0], X[:0, :2]), qkv.ShapeError, "expected k and v with equal heads"),
    "head sizes": (lambda: sdpa(k=X[..., :7]), qkv.ShapeError, "of equal head size, got q 8 and k 7"),
    "no channels": (lambda: sdpa(X[..., :0], X[..., :0]), qkv.ShapeError, "at least 1 channel"),
    "mask shape": (lambda: sdpa(mask=Mask.keep(np.ones((6, 5), bool))), qkv.ShapeError, "broadcasts to [2, 4, 6, 6], got [1, 1, 6, 5]"),
    "mask rank": (lambda: Mask.keep(np.ones((4, 6, 6), bool)), qkv.ShapeError, "[B, H, N, S], got [4, 6, 6]"),
    "float as keep": (lambda: Mask.keep(np.ones((6, 6))), qkv.ShapeError, "Mask::additive"),
    "bool as additive": (lambda: Mask.additive(np.ones((6, 6), bool)), qkv.ShapeError, "Mask::keep"),
    "bare bool array": (lambda: sdpa(mask=np.ones((6, 6), bool)), TypeError, r"Mask.keep(a) where True may attend, Mask.block(a)"),
    "bare float array": (lambda: sdpa(mask=np.ones((6, 6))), TypeError, "Mask.additive(a)"),
    "list as mask": (lambda: sdpa(mask=[[True]]), TypeError, "expected a qkv.Mask, got list"),
    "scale NaN": (lambda: sdpa(scale=float("nan")), qkv.ArgumentError, "expected a scale that is finite as float32, got nan"),
    "scale text": (lambda: sdpa(scale="1"), TypeError, "incompatible function arguments"),
    "softcap 0": (lambda: sdpa(softcap=0), qkv.ArgumentError, "expected a softcap > 0"),
    "softcap NaN": (lambda: sdpa(softcap=float("nan")), qkv.ArgumentError, "expected a softcap > 0"),
    "slopes": (lambda: sdpa(mask=Mask.alibi([1.0])), qkv.ShapeError, "got 1"),
    "globals negative": (lambda: Mask.window_with_globals(1, 1, [-1]), qkv.ArgumentError, "got -1"),
    "window 0": (lambda: sdpa(window=0), qkv.ArgumentError, "at least 1 key, got 0"),
    "window negative": (lambda: sdpa(window=(-2, 0)), qkv.ArgumentError, "got -2 and 0"),
    "window float": (lambda: sdpa(window=1.5), TypeError, "expected window as n or (left, right), got 1.5"),
    "lengths too long": (lambda: sdpa(mask=Mask.lengths([6, 7])), qkv.ShapeError, "at most 6 keys, got 7"),
    "lengths too few": (lambda: sdpa(mask=Mask.lengths([6])), qkv.ShapeError, "expected 2 lengths"),
    "lengths negative": (lambda: Mask.lengths([-1]), qkv.ArgumentError, "expected lengths >= 0, got -1"),
    "lengths float": (lambda: Mask.lengths(np.ones(2)), TypeError, "expected whole numbers as lengths, got float64"),
    "lengths rank": (lambda: Mask.lengths(np.ones((1, 2), int)), qkv.ShapeError, "expected lengths of shape [B]"),
    "lengths text": (lambda: Mask.lengths("ab"), TypeError, "expected whole numbers"),
    "dropout above 1": (lambda: sdpa(dropout_p=1.1), qkv.ArgumentError, "in [0, 1], got 1.1"),
    "dropout NaN": (lambda: sdpa(dropout_p=float("nan")), qkv.ArgumentError, "in [0, 1], got nan"),
    "seed negative": (lambda: sdpa(dropout_p=0.1, seed=-1), TypeError, "expected seed as a whole number in [0, 2^64), got -1"),
    "backend": (lambda: sdpa(backend="fast"), qkv.ArgumentError, "'auto', 'naive' or 'flash', got 'fast'"),
    "keyword": (lambda: sdpa(is_causal=True), TypeError, "incompatible function arguments"),
    "list": (lambda: sdpa([[1.0]]), TypeError, "expected q as an array (NumPy, or anything with DLPack), got list"),
    "complex": (lambda: sdpa(X.astype(complex)), TypeError, "expected q of floating"),
    "objects": (lambda: sdpa(X.astype(object)), TypeError, "expected q of floating"),
    "byte order": (lambda: sdpa(X.astype(">f4")), TypeError, "expected q of floating"),
    "threads 0": (lambda: qkv.set_num_threads(0), qkv.ArgumentError, "got 0"),
    "linear lengths": (lambda: qkv.linear_attention(X, X[:, :, :5], X[:, :, :5]), qkv.ShapeError, "of equal length, got 6 and 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=re.escape(words)) as caught:
        call()
    if isinstance(caught.value, qkv.Error):
        assert caught.value.code == kind.code and str(caught.value).startswith(f"[{caught.value.where}] expected ")


def repeated(*shape):
    """One number seen in an array that no memory holds."""
    return np.lib.stride_tricks.as_strided(np.ones(1, np.float32), shape, (0,) * len(shape), writeable=False)


@pytest.mark.parametrize("q, k", [
    (repeated(2**30, 2**30, 1, 1, 1), repeated(2**30, 2**30, 1, 1, 1)),
    (repeated(1, 2**20, 2**40, 1), X[:1, :1, :, :1]),
    (repeated(1, 1, 2**60, 1), X[:1, :1, :, :1]),
])
def test_shapes_whose_product_overflows(q, k):
    with pytest.raises((qkv.ShapeError, MemoryError)):
        sdpa(q, k, k if k.ndim == 5 else X[:1, :1])


def test_backward_wants_what_forward_gave():
    out, lse = sdpa(return_lse=True)

    def backward(dout=out, out=out, lse=lse, **keywords):
        return qkv.scaled_dot_product_attention_backward(dout, X, X, X, out, lse, **keywords)

    assert len(backward()) == 3
    for bad in ({"dbias_shape": (6, 5)}, {"dbias_shape": (6,)}, {"dbias_shape": (-1, 6)}, {"dout": out[:1]}, {"dout": out.astype(float)}, {"out": out[:, :2]}, {"lse": lse[:, :2]}, {"lse": lse.astype(float)},
                {"lse": lse[0, 0]}):
        with pytest.raises(qkv.ShapeError, match="expected"):
            backward(**bad)
    with pytest.raises(qkv.ArgumentError, match="expected the seed of the forward pass with dropout_p 0.5, got none"):
        backward(dropout_p=0.5)


class OtherDevice:
    """DLPack as an array of a graphics card has it."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("asked for memory that is not on the CPU")


def test_arrays_of_other_devices():
    with pytest.raises(qkv.ShapeError, match="expected q on the CPU, got DLPack device type 2: copy it to the CPU first"):
        sdpa(OtherDevice())


class Exporter:
    """A library with DLPack alone, of before or since version 1.0."""

    def __init__(self, array, old):
        self.array, self.old = array, old

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        if self.old and keywords:
            raise TypeError("no keywords yet")
        return self.array.__dlpack__(**keywords)


@pytest.mark.parametrize("old", [True, False])
def test_anything_with_dlpack(old):
    array = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    out = sdpa(Exporter(array, old), Exporter(array, old), array)
    assert np.array_equal(np.from_dlpack(out), sdpa(array, array, array))


def test_a_capsule_is_used_once():
    capsule = X.copy().__dlpack__()
    sdpa(k=capsule)
    with pytest.raises(TypeError, match="used already"):
        sdpa(k=capsule)


def test_errors_are_those_of_python_too():
    kinds = {ValueError: qkv.ShapeError, OSError: qkv.IoError, ArithmeticError: qkv.NumericError, NotImplementedError: qkv.UnsupportedError}
    for general, special in kinds.items():
        assert issubclass(special, general) and issubclass(special, qkv.Error)
