"""The doctor on functions of NumPy and PyTorch: every mutant is found by its own rule first, healthy twins raise nothing."""
import json
import time

import numpy as np
import pytest

import doctor_mutants as mutants
import qkv
from qkv import doctor

torch = mutants.torch
needs_torch = pytest.mark.skipif(torch is None, reason="needs PyTorch")


def own(report):
    """Ids of errors that are not marked as consequences."""
    return {f.id for f in report.errors if not f.follows}


def attention_of(module, fault, keywords):
    window = keywords.get("window")
    return mutants.numpy_attention(fault, window) if module == "numpy" else mutants.torch_attention(fault)


CASES = [("numpy", f, *x) for f, x in mutants.NUMPY.items()] + [
    pytest.param("torch", f, *x, marks=needs_torch) for f, x in mutants.TORCH.items()]


@pytest.mark.parametrize("module, fault, rule, keywords", CASES)
def test_mutant_is_found_by_its_own_rule(module, fault, rule, keywords):
    start = time.process_time()
    report = doctor.check(attention=attention_of(module, fault, keywords), mask="keep", framework=module, **keywords)
    assert report.errors and report.errors[0].id == rule, str(report)
    assert own(report) == {rule}, str(report)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("keywords", [{}, {"kv_heads": 2}, {"window": 3}, {"head_size": 5}, {"framework": "numpy"}])
def test_healthy_numpy(keywords):
    report = doctor.check(attention=mutants.numpy_attention(None, keywords.get("window")), mask="keep", **keywords)
    assert not report.errors and not report.warnings, str(report)


@needs_torch
@pytest.mark.parametrize("keywords", [{}, {"kv_heads": 2}, {"head_size": 5}])
def test_healthy_torch(keywords):
    start = time.process_time()
    report = doctor.check(attention=mutants.torch_attention(None), mask="keep", **keywords)
    assert not report.errors and not report.warnings, str(report)
    assert time.process_time() - start < 10
    assert not {"gradient", "gradient-missing"} & {o.id for o in report.skipped}


def test_report():
    report = doctor.check(attention=mutants.numpy_attention("no_scale"))
    assert not report.ok and len(report) >= 1 and report[0] is next(iter(report))
    finding = report[0]
    assert (finding.id, finding.severity, finding.doc) == ("scale", "error", "docs/doctor/scale.md")
    assert finding.evidence["measured factor"] == pytest.approx(1, rel=1e-3)
    assert finding.why and finding.remedy and finding.where
    assert "scale" in str(report) and "remedy" in str(report)
    assert json.loads(report.to_json())["findings"][0]["id"] == "scale"
    assert {"mask-ignored"} <= {o.id for o in report.skipped}
    assert doctor.check(attention=mutants.numpy_attention("no_scale"), scale=1.0).ok


def test_frameworks_are_tried_in_turn():
    def only_numpy(q, k, v):
        assert isinstance(q, np.ndarray)
        return mutants.numpy_attention()(q, k, v)

    assert doctor.check(attention=only_numpy).ok
    if torch is not None:
        with pytest.raises(qkv.ArgumentError):
            doctor.check(attention=only_numpy, framework="jax")
        report = doctor.check(attention=only_numpy, framework="torch")
        assert report.errors[0].id == "exception" and "AssertionError" in report.errors[0].evidence["what"]


def test_engine_itself():
    def attention(q, k, v, mask=None, is_causal=False):
        keep = None if mask is None else qkv.Mask.keep(mask)
        return qkv.scaled_dot_product_attention(q, k, v, mask=keep, causal=is_causal)

    report = doctor.check(attention=attention, mask="keep", kv_heads=2)
    assert not report.findings, str(report)


@pytest.mark.parametrize("fault, rule", [(None, None), ("causal_sees_next", "future-leak"), ("causal_ignored", "future-leak"),
                                         ("causal_without_itself", "causal-corner"), ("no_scale", "scale"),
                                         ("mask_ignored", "mask-ignored")])
def test_stated_to_be_causal(fault, rule):
    inner = mutants.numpy_attention("causal_without_itself" if fault == "causal_without_itself" else fault)

    def attention(q, k, v, mask=None):
        out = inner(q, k, v, mask, True)
        if fault == "causal_without_itself":
            out[:, :, 0] = np.nan
        return out

    report = doctor.check(attention=attention, causal=True, mask="keep", framework="numpy")
    assert own(report) == ({rule} if rule else set()), str(report)


@pytest.mark.parametrize("mask", ["block", "additive"])
def test_other_conventions(mask):
    def attention(q, k, v, mask=None, is_causal=False):
        keep = None if mask is None else (np.isfinite(mask) if mask.dtype != bool else ~mask)
        out = mutants.numpy_attention()
        if mask is None or mask.dtype == bool:
            return out(q, k, v, keep, is_causal)
        n, s = q.shape[2], k.shape[2]
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + mask
        if is_causal:
            scores = np.where(np.arange(s) <= np.arange(n)[:, None] + s - n, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        e = np.exp(scores - np.where(np.isfinite(top), top, 0))
        return (e / np.maximum(e.sum(-1, keepdims=True), 1e-30)) @ v

    report = doctor.check(attention=attention, mask=mask, framework="numpy")
    assert not report.errors and not report.warnings, str(report)
    other = "keep" if mask == "block" else None
    if other:
        assert doctor.check(attention=attention, mask=other, framework="numpy").errors[0].id == "mask-polarity"


def test_a_mask_that_must_be_given():
    def attention(q, k, v, mask):
        return mutants.numpy_attention()(q, k, v, mask.astype(bool))

    assert doctor.check(attention=attention, mask="keep", framework="numpy").ok


def test_bad_arguments():
    for keywords in ({}, {"attention": 3}, {"attention": len, "model": len}, {"attention": len, "mask": "keeps"},
                     {"attention": len, "kv_heads": 0}, {"attention": len, "time_limit": 0}, {"model": len},
                     {"model": len, "vocab_size": 2, "max_length": 9}):
        with pytest.raises((qkv.ArgumentError, ValueError)):
            doctor.check(**keywords)
    with pytest.raises(qkv.ArgumentError):
        doctor.check("/no/such/folder")


def test_interrupt_passes_through():
    def attention(q, k, v):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        doctor.check(attention=attention, framework="numpy")


def test_random_numbers_of_the_caller_go_on():
    np.random.seed(1)
    doctor.check(attention=mutants.numpy_attention("dropout"))
    drawn = np.random.rand()
    np.random.seed(1)
    assert drawn == np.random.rand()


def test_machine():
    assert doctor.check("machine").ok


@needs_torch
@pytest.mark.parametrize("fault, rule, causal", [(f, *x) for f, x in mutants.MODELS.items()])
def test_model_mutant(fault, rule, causal):
    report = doctor.check(model=mutants.torch_model(fault, causal=bool(causal)), vocab_size=40, max_length=24, causal=causal)
    assert report.errors and report.errors[0].id == rule, str(report)
    assert own(report) == {rule}, str(report)


@needs_torch
@pytest.mark.parametrize("causal", [None, True])
def test_healthy_model(causal):
    report = doctor.check(model=mutants.torch_model(causal=bool(causal)), vocab_size=40, max_length=24, causal=causal)
    assert not report.errors, str(report)


@needs_torch
def test_numpy_model():
    table = np.random.default_rng(1).standard_normal((40, 8))
    places = np.random.default_rng(2).standard_normal((16, 8))

    def model(ids, attention_mask):
        assert isinstance(ids, np.ndarray)
        x = table[ids] + places[: ids.shape[1]]
        keep = attention_mask[:, None, :].astype(bool)
        return x + mutants._softmax(np.where(keep, x @ x.swapaxes(1, 2) / 8**0.5, -1e30)) @ x

    report = doctor.check(model=model, vocab_size=40, max_length=16)
    assert report.ok, str(report)


@needs_torch
class TestPyTorch:
    """PyTorch's own attention raises no error, only notes on its conventions."""

    def test_function_as_it_is(self):
        report = doctor.check(attention=torch.nn.functional.scaled_dot_product_attention, mask="keep")
        assert not report.errors and not report.warnings, str(report)
        assert "causal-corner" in {f.id for f in report if f.severity == "note"}, str(report)

    def test_function_wrapped(self):
        def attention(q, k, v, mask=None, is_causal=False):
            if mask is not None and is_causal:
                n, s = mask.shape[-2:]
                mask, is_causal = mask & torch.ones(n, s, dtype=torch.bool).tril(), False
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=True)

        report = doctor.check(attention=attention, mask="keep", kv_heads=2)
        assert not report.errors, str(report)

    def test_additive(self):
        def attention(q, k, v, mask=None):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        report = doctor.check(attention=attention, mask="additive")
        assert not report.errors and not report.warnings, str(report)

    @pytest.mark.parametrize("need_weights", [True, False])
    def test_multihead_attention(self, need_weights):
        size, heads = 16, 3
        module = torch.nn.MultiheadAttention(size * heads, heads, batch_first=True, bias=False).eval()
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.eye(size * heads).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(size * heads))

        def attention(q, k, v, mask=None):
            q, k, v = (x.transpose(1, 2).flatten(2) for x in (q, k, v))
            blocked = None if mask is None else ~mask.expand(-1, heads, -1, -1).flatten(0, 1)
            out, weights = module(q, k, v, attn_mask=blocked, need_weights=need_weights, average_attn_weights=False)
            return out.unflatten(2, (heads, size)).transpose(1, 2), weights

        report = doctor.check(attention=attention, mask="keep", head_size=size, framework="torch")
        assert not report.errors, str(report)

    def test_memory_of_the_naive_form_is_a_note(self):
        report = doctor.check(attention=mutants.torch_attention())
        assert "quadratic-memory" in {f.id for f in report if f.severity == "note"}, str(report)
        fused = doctor.check(attention=torch.nn.functional.scaled_dot_product_attention)
        assert "quadratic-memory" not in {f.id for f in fused}, str(fused)


def tiny(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    small = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
             "max_position_embeddings": 40}
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(**small)).eval()
    if name == "gpt2":
        return transformers.GPT2Model(transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=40)).eval()
    if name == "roberta":
        return transformers.RobertaModel(transformers.RobertaConfig(**small, pad_token_id=1)).eval()
    return transformers.LlamaModel(transformers.LlamaConfig(**small, num_key_value_heads=2)).eval()


@needs_torch
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "roberta"])
def test_transformers_raise_no_error(name):
    model = tiny(name)
    report = doctor.check(model=model)
    assert not report.errors, str(report)
    wrapped = doctor.check(model=lambda ids, mask: model(ids, attention_mask=mask).last_hidden_state, vocab_size=60, max_length=38,
                           causal=True if name in ("gpt2", "llama") else None)
    assert not wrapped.errors, str(wrapped)
