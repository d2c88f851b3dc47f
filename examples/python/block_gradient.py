"""An encoder block and its gradient check.

L = sum(w * block(x)) for fixed w. The backward pass gives dL/dx and dL/d(every parameter). Each is compared with
(L(p + e) - L(p - e)) / 2e, which needs no theory at all. In double precision both agree to about nine digits.
"""
import sys

import numpy as np

import qkv

STEP, LENGTHS = 1e-5, [4, 1, 6]


def worst_difference(values, gradient, loss):
    """Largest difference over the largest gradient, on some 20 elements of `values`, which `loss` depends on."""
    flat, analytic = values.reshape(-1), gradient.reshape(-1)  # views: what is written to them is seen by the block
    worst, largest = 0.0, 1e-3
    for i in range(0, flat.size, max(1, flat.size // 20)):
        before = flat[i]
        flat[i] = before + STEP
        above = loss()
        flat[i] = before - STEP
        below = loss()
        flat[i] = before
        numeric = (above - below) / (2 * STEP)
        worst, largest = max(worst, abs(numeric - analytic[i])), max(largest, abs(numeric))
    return worst / largest


def check_block(title, **options):
    """Prints one line for each tensor; False if one of them is off."""
    print(title)
    block = qkv.EncoderBlock(d_model=16, num_heads=4, d_ff=32, seed=7, dtype="float64", **options)
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, sum(LENGTHS), 16))

    def loss():
        return float((w * block.forward(x, LENGTHS)).sum())

    block.forward(x, LENGTHS)
    checks = [("x", x, block.backward(w))]
    checks += [(name, block.parameter(name), block.gradient(name).copy()) for name in block.parameter_names()]
    good = True
    for name, values, gradient in checks:
        worst = worst_difference(values, gradient, loss)
        good &= worst < 1e-6
        print(f"  {name:<28} {str(list(values.shape)):<10} {worst:.1e}{'' if worst < 1e-6 else '  WRONG'}")
    return good


def main():
    print("difference between the backward pass and finite differences, relative\n")
    classic = check_block("post-norm block as in BERT: LayerNorm, GELU", norm_placement="post")
    modern = check_block("modern block: pre-norm RMSNorm, SwiGLU, rotary positions, grouped heads", norm="rms", norm_placement="pre",
                         activation="swiglu", num_kv_heads=2, rope=True, bias=False)
    return 0 if classic and modern else 1


if __name__ == "__main__":
    sys.exit(main())
