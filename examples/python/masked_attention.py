"""Masked multi-head attention, step by step, with the shape of everything on the way.

Each step is a plain line of NumPy that can be read beside its formula. At the end the library does all of it in one call, and both
must agree. Letters: B batch, N words, H heads, D channels of a head, C = H D.
"""
import sys

import numpy as np

import qkv

BATCH, WORDS, HEADS, WIDTH = 2, 5, 4, 16
HEAD_SIZE = WIDTH // HEADS
LENGTHS = np.array([5, 3])  # the second sentence has three words; the rest of its row is padding


def show(step, array, meaning):
    print(f"  {step:<24} {str(list(array.shape)):<16} {meaning}")


def main():
    rng = np.random.default_rng(0)
    print("masked multi-head attention, two sentences of 5 and 3 words\n")
    x = rng.standard_normal((BATCH, WORDS, WIDTH))
    show("x", x, "[B, N, C]")
    w_qkv = rng.standard_normal((WIDTH, 3 * WIDTH)) / np.sqrt(WIDTH)
    show("w_qkv", w_qkv, "[C, 3C] one matrix for queries, keys and values")
    projected = (x @ w_qkv).reshape(BATCH, WORDS, 3, HEADS, HEAD_SIZE)
    show("x w_qkv", projected, "[B, N, 3, H, D] the same memory, seen differently")
    q, k, v = projected.transpose(2, 0, 3, 1, 4)
    show("q, k, v", q, "[B, H, N, D] views, nothing is copied")

    scores = q @ k.swapaxes(-1, -2) / np.sqrt(HEAD_SIZE)
    show("q k^T / sqrt(D)", scores, "[B, H, N, N] how well each query fits each key")
    words = np.arange(WORDS)
    visible = (words <= words[:, None]) & (words < LENGTHS[:, None, None, None])
    show("visible", visible, "[B, 1, N, N] no later word, and no padding")
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    show("softmax", weights, "[B, H, N, N] every row sums to 1")
    mixed = weights @ v
    show("weights v", mixed, "[B, H, N, D] every head's mixture")
    joined = mixed.swapaxes(1, 2).reshape(BATCH, WORDS, WIDTH)
    show("heads joined", joined, "[B, N, C]")

    print("\n  what head 0 of sentence 1 looks at (rows: words; a word sees no later one)")
    for row in weights[0, 0]:
        print("   ", " ".join(f"{w:.3f}" for w in row))

    # The same in one call: same views, typed masks, no score matrix in memory.
    mask = qkv.Mask.causal() & qkv.Mask.lengths(LENGTHS)
    out = qkv.scaled_dot_product_attention(q, k, v, mask=mask)
    difference = np.abs(out - mixed).max()
    print(f"\nlargest difference to qkv.scaled_dot_product_attention: {difference:.2e}")
    return 0 if difference < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main())
