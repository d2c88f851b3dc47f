"""qkv.torch against PyTorch itself: values, gradients, compilation, patched models, transformers."""
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not in this environment")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import qkv  # noqa: E402
import qkv.torch  # noqa: E402
from qkv.torch import scaled_dot_product_attention as sdpa  # noqa: E402

settings.register_profile("qkv-torch", deadline=None, max_examples=80, derandomize=True)
settings.load_profile("qkv-torch")

theirs = torch.nn.functional.scaled_dot_product_attention


def randn(*shape, dtype=torch.float64, grad=False, seed=0):
    made = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.requires_grad_(grad)


def by_definition(q, k, v, mask=None, is_causal=False, scale=None, enable_gqa=False):
    """PyTorch's documented formula; a row without keys gives zeros."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0) @ v


@st.composite
def calls(draw):
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, s, d, dv = (draw(st.sampled_from(x)) for x in ([1, 2, 7, 20], [1, 3, 7, 33], [1, 8, 20], [1, 5, 16]))
    rank_two = draw(st.integers(0, 9)) == 0
    q, k, v = (randn(*shape) for shape in ((n, d), (s, d), (s, dv))) if rank_two else (
        randn(*lead, kv_heads * group, n, d), randn(*lead, kv_heads, s, d), randn(*lead, kv_heads, s, dv))
    if draw(st.booleans()) and not rank_two:  # [B, N, H, D] in memory
        q, k, v = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q, k, v))
    options = {"enable_gqa": not rank_two and group > 1}
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.1, 1.0, -1.0]))
    kind = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        scores = (n, s) if rank_two else (*lead, kv_heads * group, n, s)
        shape = draw(st.sampled_from([scores[-2:], (1, s), (s,), scores, tuple(1 if i % 2 else x for i, x in enumerate(scores))]))
        mask = randn(*shape, seed=7)
        options["mask"] = mask > -0.8 if kind == "bool" else mask.masked_fill(mask < -1, -math.inf)
    return q, k, v, options


@settings(max_examples=40)
@given(calls())
def test_values_and_gradients_are_pytorchs(call):
    q, k, v, options = call
    mask = options.pop("mask", None)
    leaves = [q, k, v] + ([mask] if mask is not None and mask.is_floating_point() else [])
    for x in leaves:
        x.requires_grad_()
    wanted = by_definition(q, k, v, mask, **options)
    got = sdpa(q, k, v, mask, **options)
    assert got.shape == wanted.shape == theirs(q, k, v, mask, **options).shape
    assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12)
    dout = torch.cos(torch.arange(got.numel(), dtype=got.dtype)).reshape(got.shape)
    for a, b in zip(torch.autograd.grad(got, leaves, dout), torch.autograd.grad(wanted, leaves, dout)):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_broadcasts_as_pytorch_does():
    shapes = [((2, 3, 4, 8), (1, 3, 5, 8), (2, 3, 5, 8)), ((1, 3, 4, 8), (2, 3, 5, 8), (2, 1, 5, 8)), ((2, 1, 4, 8), (2, 3, 5, 8), (3, 5, 8)),
              ((4, 8), (2, 3, 5, 8), (2, 3, 5, 8))]
    for shape in shapes:
        q, k, v = (randn(*s, grad=True) for s in shape)
        wanted, got = by_definition(q, k, v), sdpa(q, k, v)
        assert torch.allclose(got, wanted, atol=1e-12)
        for a, b in zip(torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(wanted.sum(), (q, k, v))):
            assert a.shape == b.shape and torch.allclose(a, b, atol=1e-11)


def test_the_triangle_hangs_at_the_first_key():
    q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1)
    v = torch.tensor([1.0, 2, 3, 4]).reshape(1, 1, 4, 1)
    assert sdpa(q, k, v, is_causal=True).flatten().tolist() == [1, 1.5]
    assert qkv.scaled_dot_product_attention(q, k, v, causal=True).flatten().tolist() == [2, 2.5]  # ours, at the last


def test_gradcheck():
    q, k, v = randn(1, 4, 5, 3, grad=True), randn(1, 2, 6, 3, grad=True), randn(1, 2, 6, 4, grad=True)
    keep = randn(5, 6) > -0.5
    bias = randn(1, 4, 1, 6, grad=True)
    assert torch.autograd.gradcheck(lambda *x: sdpa(*x, enable_gqa=True), (q, k, v, bias))
    for options in ({}, {"is_causal": True}, {"attn_mask": keep}, {"scale": 0.3}):
        assert torch.autograd.gradcheck(lambda *x, o=options: sdpa(*x, enable_gqa=True, **o), (q, k, v), fast_mode=True)


def test_second_gradients_are_refused_in_words():
    q, k, v = (randn(1, 1, 3, 2, grad=True) for _ in range(3))
    first = torch.autograd.grad(sdpa(q, k, v).sum(), q, create_graph=True)[0]
    assert torch.allclose(first, torch.autograd.grad(by_definition(q, k, v).sum(), q)[0])
    with pytest.raises(qkv.UnsupportedError, match="expected to be differentiated once, got a second time"):
        torch.autograd.gradgradcheck(sdpa, (q, k, v))


def test_tracers_see_the_operator():
    x = randn(2, 1, 2, 5, 4)
    wanted = torch.stack([sdpa(y, y, y) for y in x])
    with Watch() as watch:
        assert torch.allclose(sdpa(x[0], x[0], x[0]), wanted[0])
    assert "qkv.attention.default" in watch.seen
    graph = torch.export.export(Attend(), (x[0],)).graph
    assert any("qkv.attention" in str(node.target) for node in graph.nodes)


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Attend(torch.nn.Module):
    def forward(self, x):
        return sdpa(x, x, x)


def test_opcheck():
    for grad, major in itertools.product((False, True), (False, True)):
        q, k, v = (randn(2, 3, 5, 4) for _ in range(3))
        if major:
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        inputs = [x.requires_grad_(grad) for x in (q, k, v)]
        torch.library.opcheck(torch.ops.qkv.attention.default, (*inputs, randn(5, 5, grad=grad), None, 0.0, False, None, None))


def test_dropout_uses_pytorchs_generator():
    q = torch.zeros(1, 1, 4, 8)
    k, v = torch.zeros(1, 1, 4096, 8), torch.ones(1, 1, 4096, 8)

    def call(seed):
        torch.manual_seed(seed)
        return sdpa(q, k, v, dropout_p=0.5)

    assert torch.equal(call(1), call(1)) and not torch.equal(call(1), call(2))
    assert (call(1) - 1).abs().max() < 0.08
    assert not sdpa(q, k, v, dropout_p=1.0).any()
    x = randn(1, 1, 6, 4, grad=True)

    def same(x):
        torch.manual_seed(4)
        return sdpa(x, x, x, dropout_p=0.3)

    assert torch.autograd.gradcheck(same, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    q, k, v = (randn(1, 2, 40, 16).to(dtype).requires_grad_() for _ in range(3))
    mask = (torch.randn(40, 40) - 1).to(dtype)
    out = sdpa(q, k, v, mask)
    wanted = by_definition(q.double(), k.double(), v.double(), mask.double())
    assert out.dtype == dtype and (out.double() - wanted).abs().max() < 2e-2
    out.sum().backward()
    assert q.grad.dtype == dtype


def test_autocast():
    x = randn(1, 2, 8, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sdpa(x, x, x).dtype == theirs(x, x, x).dtype == torch.bfloat16


def test_compiles_to_one_graph():
    torch._dynamo.reset()

    def step(q, k, v, mask):
        out = sdpa(q * 2, k, v, mask, enable_gqa=True) + sdpa(q, k, v, is_causal=True, enable_gqa=True)
        return (out.transpose(1, 2).reshape(out.shape[0], -1) ** 2).sum()

    def inputs(n):
        q = randn(2, n, 4, 8, dtype=torch.float32, grad=True)
        return q, *(randn(2, 2, n, 8, dtype=torch.float32, grad=True, seed=s) for s in (1, 2)), randn(n, n) > -1

    compiled = torch.compile(lambda q, *x: step(q.transpose(1, 2), *x), fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (5, 6, 9):
        leaves = inputs(n)
        eager = step(leaves[0].transpose(1, 2), *leaves[1:])
        got = compiled(*leaves)
        assert torch.allclose(got, eager, rtol=1e-5)
        for a, b in zip(torch.autograd.grad(got, leaves[:3]), torch.autograd.grad(eager, leaves[:3])):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_compiles_with_inductor_to_one_graph():
    torch._dynamo.reset()
    q, k, v = (randn(1, 2, 6, 8, dtype=torch.float32, grad=True, seed=s) for s in range(3))

    def step(q, k, v):
        return (sdpa(torch.tanh(q), k, v, is_causal=True) * 2).square().sum()

    compiled = torch.compile(step, fullgraph=True)
    got, wanted = compiled(q, k, v), step(q, k, v)
    assert torch.allclose(got, wanted, rtol=1e-5)
    for a, b in zip(torch.autograd.grad(got, (q, k, v)), torch.autograd.grad(wanted, (q, k, v))):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    assert torch._dynamo.explain(step)(q, k, v).graph_count == 1


def test_vmap():
    q, k, v = randn(3, 2, 4, 5, 3), randn(3, 2, 2, 6, 3), randn(2, 2, 6, 3)
    bias = randn(3, 1, 4, 5, 6)

    def one(q, k, bias):
        return sdpa(q, k, v, bias, enable_gqa=True)

    wanted = torch.stack([one(*x) for x in zip(q, k, bias)])
    assert torch.allclose(torch.func.vmap(one)(q, k, bias), wanted)
    assert torch.allclose(torch.func.vmap(one, in_dims=(1, 2, 3))(q.movedim(0, 1), k.movedim(0, 2), bias.movedim(0, 3)), wanted)
    assert torch.allclose(torch.func.vmap(one, in_dims=(0, 0, None))(q, k, bias[0]), torch.stack([one(a, b, bias[0]) for a, b in zip(q, k)]))
    gradients = torch.func.vmap(torch.func.grad(lambda *x: one(*x).square().sum(), argnums=(0, 1, 2)))(q, k, bias)
    for i in range(3):
        single = torch.func.grad(lambda *x: one(*x).square().sum(), argnums=(0, 1, 2))(q[i], k[i], bias[i])
        for a, b in zip(gradients, single):
            assert torch.allclose(a[i], b, atol=1e-12)
    per_sample = torch.func.vmap(torch.func.grad(lambda b, q: one(q, k[0], b).square().sum()), in_dims=(None, 0))(bias[0], q)
    for i in range(3):
        assert torch.allclose(per_sample[i], torch.func.grad(lambda b, i=i: one(q[i], k[0], b).square().sum())(bias[0]), atol=1e-12)


def test_vmap_over_dropout_is_refused_in_words():
    x = randn(2, 1, 2, 3, 4)
    with pytest.raises((qkv.UnsupportedError, RuntimeError), match="one seed under vmap|randomness"):
        torch.func.vmap(lambda x: sdpa(x, x, x, dropout_p=0.5), randomness="different")(x)


def test_packed_attention():
    lengths, keys = [3, 0, 5], [4, 2, 5]
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0) for n in (lengths, keys))
    q, k, v = randn(8, 4, 3, grad=True), randn(11, 2, 3, grad=True), randn(11, 2, 5, grad=True)

    def packed(q, k, v, **options):
        return qkv.torch.packed_attention(q, k, v, cu_q, cu_k, **options)

    out = packed(q, k, v, is_causal=True)
    for b, n in enumerate(lengths):
        single = [x[cu[b]:cu[b + 1]].transpose(0, 1) for x, cu in ((q, cu_q), (k, cu_k), (v, cu_k))]
        keep = torch.ones(n, keys[b], dtype=torch.bool).tril(keys[b] - n)
        assert torch.allclose(out[cu_q[b]:cu_q[b + 1]].transpose(0, 1), by_definition(*single, keep, enable_gqa=True), atol=1e-12)
    for options in ({}, {"window": 2}, {"window": (1, 0), "softcap": 2.0}, {"scale": 0.3, "is_causal": True}):
        assert torch.autograd.gradcheck(lambda *x, o=options: packed(*x, **o), (q, k, v), fast_mode=True)
    alike = qkv.torch.packed_attention(q, q, q, cu_q)
    assert torch.equal(alike, qkv.torch.packed_attention(q, q, q, cu_q, cu_q))
    torch.library.opcheck(torch.ops.qkv.packed_attention.default, (q, k, v, cu_q, cu_k, None, 0.0, True, -1, -1, None, None))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: packed(*x).sum(), fullgraph=True, backend="aot_eager")(q, k, v)
    assert torch.allclose(compiled, packed(q, k, v).sum())
    torch.manual_seed(1)
    dropped = packed(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(dropped, packed(q, k, v, dropout_p=0.5)) and torch.autograd.grad(dropped.sum(), v)[0].isfinite().all()


def test_packed_attention_refuses_in_the_librarys_words():
    x = torch.zeros(4, 1, 2)
    with pytest.raises(qkv.ShapeError, match="cu_seqlens_q in ascending order"):
        qkv.torch.packed_attention(x, x, x, torch.tensor([0, 3, 2, 4]))
    with pytest.raises(qkv.ShapeError, match="to end with the 4 tokens"):
        qkv.torch.packed_attention(x, x, x, torch.tensor([0, 3]))
    with pytest.raises(qkv.ArgumentError, match="at least 1 key"):
        qkv.torch.packed_attention(x, x, x, torch.tensor([0, 4]), window=0)
    first = torch.autograd.grad(qkv.torch.packed_attention(x.clone().requires_grad_(), x, x.requires_grad_(), [0, 4]).sum(), x, create_graph=True)
    assert first[0].shape == x.shape


def test_compiled_dropout_has_its_gradient():
    torch._dynamo.reset()
    x = randn(1, 1, 6, 4, grad=True)
    compiled = torch.compile(lambda x: sdpa(x, x, x, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    out = compiled(x)
    assert out.shape == x.shape and torch.autograd.grad(out.sum(), x)[0].isfinite().all()


def test_works_on_meta_tensors():
    x = torch.empty(2, 4, 5, 8, device="meta")
    assert sdpa(x, x, x).shape == x.shape and sdpa(x, x, x).device.type == "meta"


def test_refused():
    x = torch.zeros(1, 2, 3, 4)
    refused = [
        ({"key": x.double()}, qkv.ShapeError, "of one floating type"),
        ({"query": x.long(), "key": x.long(), "value": x.long()}, qkv.ShapeError, "of one floating type"),
        ({"key": x[:, :, :2]}, qkv.ShapeError, "of equal length"),
        ({"query": torch.zeros(1, 4, 3, 4)}, qkv.ShapeError, "enable_gqa=True groups them"),
        ({"query": torch.zeros(1, 3, 3, 4), "enable_gqa": True}, qkv.ShapeError, "in whole groups"),
        ({"query": x[0, 0, 0]}, qkv.ShapeError, r"\[..., length, channels\]"),
        ({"attn_mask": torch.ones(3, 3, dtype=torch.int64)}, qkv.ShapeError, "bool .True may attend. or floating"),
        ({"attn_mask": torch.ones(3, 2, dtype=torch.bool)}, qkv.ShapeError, "broadcasts to"),
        ({"attn_mask": torch.ones(3, 3, dtype=torch.bool), "is_causal": True}, qkv.ArgumentError, "got both"),
        ({"dropout_p": 1.5}, qkv.ArgumentError, "got 1.5"),
        ({"scale": math.nan}, qkv.ArgumentError, "got nan"),
    ]
    for changes, kind, words in refused:
        with pytest.raises(kind, match=words):
            sdpa(**{"query": x, "key": x, "value": x, **changes})


def test_tensors_in_and_out_without_copies():
    q = randn(1, 2, 5, 4)
    out, lse = qkv.scaled_dot_product_attention(q, q, q, return_lse=True)
    assert isinstance(out, torch.Tensor) and isinstance(lse, torch.Tensor) and out.dtype == torch.float64
    assert np.allclose(out.numpy(), qkv.scaled_dot_product_attention(q.numpy(), q.numpy(), q.numpy()))
    mixed = qkv.scaled_dot_product_attention(q, q.numpy(), q, mask=qkv.Mask.keep(torch.ones(5, 5, dtype=torch.bool)))
    assert torch.equal(mixed, out)
    with pytest.raises(qkv.UnsupportedError, match="use qkv.torch.scaled_dot_product_attention, or detach"):
        qkv.scaled_dot_product_attention(q.clone().requires_grad_(), q, q)
    with pytest.raises(TypeError, match="bare bool array"):
        qkv.scaled_dot_product_attention(q, q, q, mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(qkv.ShapeError, match="on the CPU"):
        qkv.scaled_dot_product_attention(torch.empty(1, 1, 2, 2, device="meta"), q, q)


def test_patched_is_for_a_while_and_for_what_it_takes():
    f = torch.nn.functional
    x = randn(1, 2, 5, 4)
    with qkv.torch.patched():
        with qkv.torch.patched():
            assert f.scaled_dot_product_attention is not theirs
        assert f.scaled_dot_product_attention is not theirs
        assert torch.allclose(f.scaled_dot_product_attention(x, x, x), theirs(x, x, x))
        half = x.bfloat16()
        assert torch.equal(f.scaled_dot_product_attention(half, half, half), theirs(half, half, half))
        attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().train()
        attention(randn(2, 3, 8), randn(2, 3, 8), randn(2, 3, 8), need_weights=False)[0].sum().backward()
    assert f.scaled_dot_product_attention is theirs
    with pytest.raises(RuntimeError, match="of the body"), qkv.torch.patched():
        raise RuntimeError("of the body")
    assert f.scaled_dot_product_attention is theirs


def tiny(kind, implementation):
    transformers = pytest.importorskip("transformers", reason="transformers is not in this environment")
    shape = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {
        "bert": lambda: transformers.BertConfig(**shape, intermediate_size=64),
        "gpt2": lambda: transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0),
        "llama": lambda: transformers.LlamaConfig(**shape, intermediate_size=64, num_key_value_heads=2),
        "gemma2": lambda: transformers.Gemma2Config(**shape, intermediate_size=64, num_key_value_heads=2, head_dim=8, sliding_window=4,
                                                    attn_logit_softcapping=0.5),
        "t5": lambda: transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
                                            decoder_start_token_id=0),
        "mistral": lambda: transformers.MistralConfig(**shape, intermediate_size=64, num_key_value_heads=2, sliding_window=4),
    }[kind]()
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    heads = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    head = heads.get(kind, transformers.AutoModelForCausalLM)
    return head.from_config(config, attn_implementation=implementation)


def run_model(model, ids, mask):
    model.train()
    model.zero_grad()
    out = model(input_ids=ids, attention_mask=mask, labels=ids)
    out.loss.backward()
    return out.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mistral", "gemma2", "t5"])
def test_transformers(kind):
    ids = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    eager = run_model(tiny(kind, "eager"), ids, mask)
    ours = [run_model(tiny(kind, "qkv"), ids, mask)]
    if kind != "gemma2":  # PyTorch's function has no soft-cap
        with qkv.torch.patched():
            ours.append(run_model(tiny(kind, "sdpa"), ids, mask))
    for logits, gradients in ours:
        assert torch.allclose(logits[mask.bool()], eager[0][mask.bool()], atol=1e-4)
        assert gradients.keys() == eager[1].keys()
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, eager[1][name], atol=1e-4), name
    if kind != "bert":
        with torch.no_grad():
            wanted, got = (tiny(kind, i).eval().generate(ids[:1], max_new_tokens=5, do_sample=False) for i in ("eager", "qkv"))
        assert torch.equal(wanted, got)


@pytest.mark.parametrize("order", [["torch", "qkv"], ["qkv", "torch"], ["qkv", "torch", "transformers"], ["transformers", "qkv"]])
def test_any_order_of_imports(order):
    for name in order:
        pytest.importorskip(name)
    lines = [f"import {name}" for name in order] + [
        "import torch, qkv, qkv.torch",
        "x = torch.ones(1, 1, 3, 2)",
        "assert torch.equal(qkv.torch.scaled_dot_product_attention(x, x, x), x)",
        "assert torch.equal(qkv.scaled_dot_product_attention(x, x, x), x)"]
    if "transformers" in order:
        lines.append("import transformers.modeling_utils; assert 'qkv' in transformers.AttentionInterface()")
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=120)
