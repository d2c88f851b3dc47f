"""Manual against fused attention: the error, the time, and what a mask of the wrong polarity does.

Manual is the textbook: all scores, softmax over each row, weights times values, with the whole N x N matrix in memory. Fused walks over
blocks of keys and keeps a running maximum and sum, so its memory grows with N alone.
"""
import sys
import time

import numpy as np

import qkv

HEADS, HEAD_SIZE = 4, 64


def manual(q, k, v, visible=None):
    """q, k, v: [1, H, N, D]. Arithmetic in the type of q."""
    scores = q @ k.swapaxes(-1, -2) * q.dtype.type(HEAD_SIZE**-0.5)
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def best_seconds(times, function):
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def relative(a, b):
    """Largest difference over largest value."""
    return float(np.abs(a.astype(float) - b).max() / np.abs(b).max())


def compare(dtype, n, bound):
    """Prints one line; False if the two disagree by more than `bound`."""
    rng = np.random.default_rng(n)
    q, k, v = (rng.uniform(-2, 2, (1, HEADS, n, HEAD_SIZE)).astype(dtype) for _ in range(3))
    slow = best_seconds(2, lambda: manual(q, k, v))
    fast = best_seconds(3, lambda: qkv.scaled_dot_product_attention(q, k, v))
    error = relative(manual(q, k, v), qkv.scaled_dot_product_attention(q, k, v))
    print(f"{np.dtype(dtype).name:<8} {n:>6} {error:>12.2e} {1e3 * slow:>12.2f} {1e3 * fast:>12.2f} {slow / fast:>9.1f}x")
    return error < bound


def polarity():
    """The same array under both conventions. False if the library could be talked into guessing."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, HEADS, 6, HEAD_SIZE)) for _ in range(3))
    array = np.arange(6) < 4  # True for four words, False for two of padding
    right = manual(q, k, v, array)
    keep = qkv.scaled_dot_product_attention(q, k, v, mask=qkv.Mask.keep(array.reshape(1, 1, 1, 6)))
    block = qkv.scaled_dot_product_attention(q, k, v, mask=qkv.Mask.block(array.reshape(1, 1, 1, 6)))
    print("\none boolean array, True for words and False for padding")
    print(f"  Mask.keep(a)   True may attend    differs from the textbook by {relative(keep, right):.1e}")
    print(f"  Mask.block(a)  True is blocked    differs from the textbook by {relative(block, right):.1e}: attends to the padding alone")
    try:
        qkv.scaled_dot_product_attention(q, k, v, mask=array.reshape(1, 1, 1, 6))
    except TypeError as refusal:
        print(f"  a bare array is refused: {refusal}")
        return relative(keep, right) < 1e-12 and relative(block, right) > 0.1
    return False


def main():
    print(f"{HEADS} heads of size {HEAD_SIZE}, forward; {qkv.num_threads()} thread(s) for the fused one, NumPy's for the manual one\n")
    print(f"{'type':<8} {'N':>6} {'error':>12} {'manual ms':>12} {'fused ms':>12} {'ratio':>10}")
    good = [compare(np.float32, n, 5e-6) for n in (64, 256, 512)] + [compare(np.float64, n, 1e-13) for n in (64, 256)]
    print("\nerror: largest difference over largest value. Times depend on the machine, errors hardly do.")
    return 0 if polarity() and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
