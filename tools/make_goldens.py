#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: values that PyTorch computes in double precision.

    python tools/make_goldens.py            # needs torch 2.13 and safetensors

The encoders use torch.nn.TransformerEncoderLayer for the Pre-LN and Post-LN forms and plain functions for the modern one
(RoPE, RMSNorm, SwiGLU, grouped heads, no biases). Every text is also run alone, so that padding cannot leak into a value.
Weights are stored in fp32 and used as such; results are stored in fp32 (attention: in fp64).
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
WIDTH, LAYERS, HEADS, KV_HEADS, HIDDEN = 16, 2, 4, 2, 24
VOCAB, POSITIONS, CLASSES, EPS = 19, 12, 5, 1e-5
LENGTHS = [5, 1, 9, 3]
LABELS = [3, 0, 4, 3]
LEARNING_RATE, DECAY, SMOOTHING, STEPS = 5e-3, 0.05, 0.1, 10


def attention_case(name, n, s, heads, kv_heads, d, dv, mask, out, additive=None, scale=None):
    """One sequence, [heads, length, size]; mask: True where the query may attend."""
    g = torch.Generator().manual_seed(len(name) * 1000 + n * 10 + s)
    q, k, v, dout = (torch.randn(*shape, generator=g, dtype=torch.float64)
                     for shape in [(heads, n, d), (kv_heads, s, d), (kv_heads, s, dv), (heads, n, dv)])
    for t in (q, k, v):
        t.requires_grad_()
    bias = torch.zeros(n, s, dtype=torch.float64).masked_fill(~mask, float("-inf"))
    if additive is not None:
        bias = bias + additive
    group = heads // kv_heads
    kk, vv = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    y = F.scaled_dot_product_attention(q[None], kk[None], vv[None], attn_mask=bias, scale=scale)[0]
    y.backward(dout)
    scores = (q @ kk.transpose(1, 2)) * (d ** -0.5 if scale is None else scale) + bias
    values = {"q": q, "k": k, "v": v, "dout": dout, "out": y, "lse": scores.logsumexp(-1), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    if additive is not None:
        values["additive"] = additive
    for key, value in values.items():
        out[f"{name}.{key}"] = value.detach().transpose(0, 1).contiguous() if value.dim() == 3 else value.detach().contiguous()


def attention_goldens():
    out = {}
    full = lambda n, s: torch.ones(n, s, dtype=torch.bool)
    i, j = torch.arange(6)[:, None], torch.arange(9)[None, :]
    attention_case("plain", 6, 9, 2, 2, 4, 4, full(6, 9), out)
    attention_case("causal", 6, 9, 2, 2, 5, 3, j <= i + 3, out)
    attention_case("grouped", 7, 7, 4, 2, 4, 4, full(7, 7), out, scale=0.3)
    attention_case("window", 6, 9, 2, 1, 4, 4, (i + 3 - j).abs() < 3, out)
    g = torch.Generator().manual_seed(5)
    attention_case("bias", 6, 9, 2, 2, 8, 8, full(6, 9), out, additive=torch.randn(6, 9, generator=g, dtype=torch.float64))
    save_file(out, OUT / "attention.safetensors")


class Torch(torch.nn.Module):
    """torch.nn.TransformerEncoder with learned positions; norm_first as given."""

    def __init__(self, norm_first):
        super().__init__()
        self.norm_first = norm_first
        self.token, self.position = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Embedding(POSITIONS, WIDTH)
        self.embedding_norm = None if norm_first else torch.nn.LayerNorm(WIDTH, EPS)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", EPS, True, norm_first) for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(WIDTH, EPS) if norm_first else None
        self.pooler = None if norm_first else torch.nn.Linear(WIDTH, WIDTH)
        self.classifier = torch.nn.Linear(WIDTH, CLASSES)

    def names(self):
        pairs = {"token": "embeddings.token", "position": "embeddings.position", "embedding_norm": "embeddings.norm",
                 "norm": "encoder.norm", "pooler": "pooler", "classifier": "classifier"}
        for i in range(LAYERS):
            own = f"encoder.layers.{i}."
            pairs |= {f"layers.{i}.self_attn.out_proj": own + "attention.out", f"layers.{i}.norm1": own + "attention_norm",
                      f"layers.{i}.norm2": own + "feed_forward_norm", f"layers.{i}.linear1": own + "feed_forward.up",
                      f"layers.{i}.linear2": own + "feed_forward.down"}
        names = {}
        for name, parameter in self.named_parameters():
            path, kind = name.rsplit(".", 1)
            if kind.startswith("in_proj_"):
                names[f"encoder.layers.{path.split('.')[1]}.attention.qkv.{kind[8:]}"] = parameter
            else:
                names[f"{pairs[path]}.{kind}"] = parameter
        return names

    def forward(self, ids):
        n = max(map(len, ids))
        padded = torch.stack([F.pad(x, (0, n - len(x))) for x in ids])
        blocked = torch.stack([torch.arange(n) >= len(x) for x in ids])
        x = self.token(padded) + self.position(torch.arange(n))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        blocks = []
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=blocked)
            blocks.append(torch.cat([row[:len(i)] for row, i in zip(x, ids)]))
        if self.norm is not None:
            x = self.norm(x)
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(x[:, 0]))
        else:
            pooled = torch.stack([row[:len(i)].mean(0) for row, i in zip(x, ids)])
        return blocks, self.classifier(pooled)


class Modern(torch.nn.Module):
    """RoPE (half split), RMSNorm in front, SwiGLU, two key/value heads, no biases in the blocks; written out by hand."""

    def __init__(self):
        super().__init__()
        d = WIDTH // HEADS
        p = {"embeddings.token.weight": torch.randn(VOCAB, WIDTH), "encoder.norm.weight": torch.ones(WIDTH),
             "classifier.weight": torch.randn(CLASSES, WIDTH) / 4, "classifier.bias": torch.randn(CLASSES) / 10}
        for i in range(LAYERS):
            own = f"encoder.layers.{i}."
            p |= {own + "attention.qkv.weight": torch.randn((HEADS + 2 * KV_HEADS) * d, WIDTH) / 4,
                  own + "attention.out.weight": torch.randn(WIDTH, WIDTH) / 4, own + "attention_norm.weight": 1 + torch.randn(WIDTH) / 10,
                  own + "feed_forward.up.weight": torch.randn(2 * HIDDEN, WIDTH) / 4,
                  own + "feed_forward.down.weight": torch.randn(WIDTH, HIDDEN) / 5, own + "feed_forward_norm.weight": 1 + torch.randn(WIDTH) / 10}
        self.p = {name: torch.nn.Parameter(value) for name, value in p.items()}
        for name, value in self.p.items():
            self.register_parameter(name.replace(".", "_"), value)

    def names(self):
        return self.p

    @staticmethod
    def rotate(x):  # [heads, length, d]
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def forward(self, ids):
        d, p = WIDTH // HEADS, self.p
        blocks, pooled = [[] for _ in range(LAYERS)], []
        for text in ids:
            x = p["embeddings.token.weight"][text]
            for i in range(LAYERS):
                own = f"encoder.layers.{i}."
                y = F.rms_norm(x, (WIDTH,), p[own + "attention_norm.weight"], EPS)
                heads = (y @ p[own + "attention.qkv.weight"].T).view(len(text), -1, d).transpose(0, 1)
                q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS])
                o = F.scaled_dot_product_attention(self.rotate(q)[None], self.rotate(k)[None], v[None], enable_gqa=True)[0]
                x = x + o.transpose(0, 1).reshape(len(text), WIDTH) @ p[own + "attention.out.weight"].T
                y = F.rms_norm(x, (WIDTH,), p[own + "feed_forward_norm.weight"], EPS)
                gate, up = (y @ p[own + "feed_forward.up.weight"].T).chunk(2, -1)
                x = x + (F.silu(gate) * up) @ p[own + "feed_forward.down.weight"].T
                blocks[i].append(x)
            pooled.append(F.rms_norm(x, (WIDTH,), p["encoder.norm.weight"], EPS).mean(0))
        return [torch.cat(b) for b in blocks], F.linear(torch.stack(pooled), p["classifier.weight"], p["classifier.bias"])


def encoder_golden(name, model):
    for parameter in model.parameters():  # exactly what fp32 holds; biases and gains away from 0 and 1
        parameter.data = (parameter.data + 0.02 * torch.randn_like(parameter)).float().double()
    names = model.names()
    ids = [torch.randint(0, VOCAB, (n,)) for n in LENGTHS]
    labels = torch.tensor(LABELS)
    out = {"ids": torch.cat(ids).int(), "lengths": torch.tensor(LENGTHS), "labels": labels.int()}
    out |= {f"weight.{k}": v.detach().float().clone() for k, v in names.items()}
    blocks, logits = model(ids)
    for text in range(len(ids)):
        alone = model([ids[text]])[1][0]
        assert (alone - logits[text]).abs().max() < 1e-12, "padding leaks"
    loss = F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
    loss.backward()
    out |= {f"block.{i}": b.detach().float() for i, b in enumerate(blocks)}
    out["logits"] = logits.detach().float()
    out |= {f"gradient.{k}": v.grad.float() for k, v in names.items()}
    exempt = lambda k: k.endswith(".bias") or "norm" in k or k.startswith("embeddings.")
    optimizer = torch.optim.AdamW([{"params": [v for k, v in names.items() if not exempt(k)], "weight_decay": DECAY},
                                   {"params": [v for k, v in names.items() if exempt(k)], "weight_decay": 0.0}], lr=LEARNING_RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids)[1], labels, label_smoothing=SMOOTHING)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    save_file(out, OUT / f"encoder_{name}.safetensors")
    print(name, [round(x, 4) for x in losses])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    attention_goldens()
    torch.set_default_dtype(torch.float64)
    encoder_golden("pre", Torch(True))
    encoder_golden("post", Torch(False))
    encoder_golden("modern", Modern())


if __name__ == "__main__":
    main()
