"""The classifier of examples/*.toml in PyTorch: the peer that the engine's training speed is measured against.

A Pre-LN encoder (learned or rotary positions, GELU by erf, mean or max pooling), fused QKV projection, fused AdamW, label smoothing, clipping by
the global norm, warm-up and cosine or line. Where the configuration has `from`, the encoder is that of `transformers` instead, with
a new head. Batches are prepared (padded, masked) before the clock starts, equal-length batches drop
the mask, gradients are set to None, nothing synchronises: the fastest form that was found, eager or compiled.

Alone:        train_classifier_torch.py --train T.csv --test S.csv --kind bpe --epochs 20
With the engine's own ids, batches and initial weights (bench/compare_train.py does this):
              train_classifier_torch.py --export DIR --turns        # reads numbers of steps on stdin, answers with JSON
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import resource
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import classifier_data


def rotary_table(positions: int, size: int, base: float) -> torch.Tensor:
    """[2, N, D]: cosine and sine of position * base^(-2 i / D), channel i paired with i + D / 2."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size))
    return torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2).float()


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * table[0] + torch.cat([-b, a], -1) * table[1]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, kind: str, rotary: torch.Tensor | None):
        super().__init__()
        self.heads, self.dropout, self.kind = heads, dropout, kind
        self.register_buffer("rotary", rotary, persistent=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotary is not None:
            q, k = rotate(q, self.rotary[:, :n]), rotate(k, self.rotary[:, :n])
        p = self.dropout if self.training else 0.0
        if self.kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        else:
            scores = (q * (1.0 / math.sqrt(c // self.heads))) @ k.transpose(-1, -2)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            y = F.dropout(torch.softmax(scores, -1), p, self.training) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        width, heads, hidden, dropout, kind, eps = args.width, args.heads, args.hidden, args.dropout, args.attention, args.norm_eps
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        rotary = rotary_table(args.max_positions, width // heads, args.rope_base) if args.positions == "rope" else None
        self.attention = Attention(width, heads, dropout, kind, rotary)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = dropout

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        p, on = self.dropout, self.training
        x = x + F.dropout(self.attention(self.norm1(x), mask), p, on)
        return x + F.dropout(self.down(F.dropout(F.gelu(self.up(self.norm2(x))), p, on)), p, on)


class Classifier(nn.Module):
    def __init__(self, vocab: int, labels: int, args: argparse.Namespace):
        super().__init__()
        width = args.width
        if args.positions not in ("learned", "rope") or args.pooling not in ("mean", "max"):
            raise SystemExit(f"this peer has learned or rotary positions and mean or max pooling, not {args.positions} and {args.pooling}")
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(args.max_positions, width) if args.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(width, eps=args.norm_eps), nn.Linear(width, labels)
        self.dropout, self.pooling = args.dropout, args.pooling
        for name, p in self.blocks.named_parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def pool(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """weight [B, N, 1] is 1 / length on real tokens, 0 on padding."""
        if self.pooling == "max":
            return x.amax(1) if weight is None else x.masked_fill(weight == 0, float("-inf")).amax(1)
        return x.mean(1) if weight is None else (x * weight).sum(1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None, weight: torch.Tensor | None) -> torch.Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(F.dropout(self.pool(self.norm(x), weight), self.dropout, self.training))


class FineTuned(nn.Module):
    """A published encoder of `transformers` with a linear head."""

    def __init__(self, labels: int, args: argparse.Namespace):
        super().__init__()
        from transformers import AutoModel

        if args.pooling != "mean":
            raise SystemExit(f"this peer fine-tunes with mean pooling, not {args.pooling}")
        rates = dict(hidden_dropout_prob=args.dropout, attention_probs_dropout_prob=args.dropout)
        self.base = AutoModel.from_pretrained(args.base, add_pooling_layer=False, dtype=torch.float32, **rates)
        self.head, self.dropout = nn.Linear(args.width, labels), args.dropout

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None, weight: torch.Tensor | None) -> torch.Tensor:
        x = self.base(input_ids=ids, attention_mask=None if mask is None else mask[:, 0, 0]).last_hidden_state
        pooled = x.mean(1) if weight is None else (x * weight).sum(1)
        return self.head(F.dropout(pooled, self.dropout, self.training))


def tensors_of(split: classifier_data.Split, samples: np.ndarray):
    """(ids, key mask or None, pooling weight or None, labels, number of real tokens)"""
    ids, lengths, labels = classifier_data.padded(split, samples)
    mask = weight = None
    if lengths.min() < lengths.max():
        keep = np.arange(ids.shape[1])[None, :] < lengths[:, None]
        mask = torch.from_numpy(keep)[:, None, None, :]
        weight = torch.from_numpy((keep / lengths[:, None]).astype(np.float32))[:, :, None]
    return torch.from_numpy(ids), mask, weight, torch.from_numpy(labels), int(lengths.sum())


class Trainer:
    def __init__(self, data: classifier_data.ClassifierData, args: argparse.Namespace):
        torch.manual_seed(args.seed)
        self.data, self.args = data, args
        self.model = FineTuned(data.num_labels, args) if args.base else Classifier(data.vocab_size, data.num_labels, args)
        if args.export:
            load_initial_weights(self.model, args.export)
        if not data.batches:
            rng = np.random.default_rng(args.seed)
            for _ in range(args.epochs):
                data.batches += classifier_data.plan_epoch(data.train.lengths(), args.batch_tokens, rng)
        self.total = args.total_steps or len(data.batches)
        self.warmup = args.warmup_steps if args.warmup_steps >= 0 else round(args.warmup * self.total)
        groups = {}
        for name, p in self.model.named_parameters():
            decays = p.dim() > 1 and not any(table in name for table in ("tokens", "positions", "embeddings"))
            groups.setdefault((decays, name.startswith("head.")), []).append(p)
        self.optimizer = torch.optim.AdamW(
            [{"params": parameters, "weight_decay": args.weight_decay if decays else 0.0,
              "peak": args.head_learning_rate or args.learning_rate if head else args.learning_rate} for (decays, head), parameters in groups.items()],
            lr=args.learning_rate, betas=(args.beta1, args.beta2), eps=args.eps, fused=True)
        self.forward = torch.compile(self.model, dynamic=True) if args.compile else self.model
        self.step_number = 0

    def rate(self, update: int) -> float:
        """Share of the peak rate at an update, numbered from 1: linear warm-up, then a cosine or a line to 0 (src/train/schedule.h)."""
        if update <= self.warmup:
            return update / self.warmup
        t = update if self.warmup else update - 1
        done = min(1.0, (t - self.warmup) / max(1, self.total - self.warmup))
        return 1 - done if self.args.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))

    def hide_tokens(self, ids: torch.Tensor, *rest):
        """Token dropout: tokens that are neither special nor padding become the mask token."""
        if self.args.token_dropout:
            special = torch.isin(ids, torch.tensor(self.args.special_ids))
            ids = torch.where((torch.rand(ids.shape) < self.args.token_dropout) & ~special, self.args.mask_id, ids)
        return ids, *rest

    def run(self, steps: int) -> dict:
        """Trains `steps` steps; the clock runs over the steps alone, not over padding the batches."""
        self.model.train()
        n = len(self.data.batches)
        batches = [self.hide_tokens(*tensors_of(self.data.train, self.data.batches[(self.step_number + i) % n])) for i in range(steps)]
        parameters = list(self.model.parameters())
        losses = []
        start = time.perf_counter()
        for ids, mask, weight, labels, _ in batches:
            for group in self.optimizer.param_groups:
                group["lr"] = group["peak"] * self.rate(self.step_number + 1)
            loss = F.cross_entropy(self.forward(ids, mask, weight), labels, label_smoothing=self.args.label_smoothing)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self.args.clip_norm, foreach=True)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            self.step_number += 1
        seconds = time.perf_counter() - start
        tokens = sum(batch[4] for batch in batches)
        return {"steps": steps, "tokens": tokens, "padded_tokens": sum(batch[0].numel() for batch in batches), "seconds": seconds,
                "tokens_per_second": tokens / seconds, "losses": [round(float(loss), 6) for loss in losses]}

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        right = 0
        for samples in classifier_data.eval_batches(self.data.test.lengths(), 4096):
            ids, mask, weight, labels, _ = tensors_of(self.data.test, samples)
            right += int((self.model(ids, mask, weight).argmax(-1) == labels).sum())
        return right / len(self.data.test)


def load_initial_weights(model: nn.Module, folder: pathlib.Path) -> None:
    """Takes over the weights of `initial/model.safetensors`, so that both sides start from the same point."""
    from safetensors.torch import load_file

    renames = {"tokens.": "embeddings.token.", "positions.": "embeddings.position.", "blocks.": "encoder.layers.", "norm1.": "attention_norm.",
               "norm2.": "feed_forward_norm.", "up.": "feed_forward.up.", "down.": "feed_forward.down.", "head.": "classifier."}
    weights = load_file(folder / "initial" / "model.safetensors")
    if isinstance(model, FineTuned):  # its encoder has come from the same folder
        model.head.load_state_dict({name: weights[f"classifier.{name}"] for name in ("weight", "bias")})
        return
    state = {}
    for name in model.state_dict():
        theirs = "encoder." + name if name.startswith("norm.") else name
        for ours, other in renames.items():
            theirs = theirs.replace(ours, other)
        state[name] = weights[theirs]
    model.load_state_dict(state, strict=True)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path
    parser.add_argument("--export", type=path, help="folder written by `qkv bench train --export`")
    parser.add_argument("--train", type=path)
    parser.add_argument("--test", type=path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="category")
    parser.add_argument("--tokenizer", type=path, help="tokenizer.json; without it one is trained")
    parser.add_argument("--kind", choices=["bpe", "char"], default="bpe")
    parser.add_argument("--vocab-size", type=int, default=3000)
    parser.add_argument("--compile", action="store_true", help="torch.compile(dynamic=True)")
    parser.add_argument("--attention", choices=["sdpa", "manual"], default="sdpa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", action="store_true", help="read numbers of steps on stdin, answer each with one JSON line")
    parser.add_argument("--steps", type=int, help="stop after so many steps (default: all epochs)")
    parser.add_argument("--epochs", type=int, default=20)
    for name, default in dict(batch_tokens=2048, layers=4, width=256, heads=8, hidden=1024, max_positions=512, warmup_steps=-1,
                              total_steps=0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    parser.add_argument("--base", default="", help="folder of a published encoder to fine-tune")
    parser.add_argument("--schedule", choices=["cosine", "linear"], default="cosine")
    parser.add_argument("--positions", choices=["learned", "rope"], default="learned")
    parser.add_argument("--pooling", choices=["mean", "max"], default="mean")
    for name, default in dict(dropout=0.2, label_smoothing=0.1, learning_rate=1e-3, head_learning_rate=0.0, warmup=0.1, weight_decay=0.05, clip_norm=1.0,
                              beta1=0.9, beta2=0.999, eps=1e-8, norm_eps=1e-5, token_dropout=0.0, rope_base=10000.0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, default=default)
    args = parser.parse_args()
    if args.export:  # the recipe of the engine's run wins
        vars(args).update(json.loads((args.export / "recipe.json").read_text()))
    return args


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    if args.export:
        data = classifier_data.load_export(args.export)
    else:
        data = classifier_data.from_tables(args.train, args.test, args.text, args.label, args.tokenizer, args.kind, args.vocab_size)
    trainer = Trainer(data, args)
    mode = "compiled" if args.compile else "eager"
    if args.turns:
        print(json.dumps({"ready": True, "mode": mode, "torch": torch.__version__}), flush=True)
        for line in sys.stdin:
            if line.strip() == "accuracy":
                answer = {"accuracy": trainer.accuracy()}
            else:
                answer = trainer.run(int(line))
            print(json.dumps({**answer, "mode": mode, "peak_bytes": peak_bytes()}), flush=True)
        return
    steps = args.steps or len(data.batches)
    tokens = seconds = 0.0
    curve = []
    while trainer.step_number < steps:
        answer = trainer.run(min(50, steps - trainer.step_number))
        tokens += answer["tokens"]
        seconds += answer["seconds"]
        curve.append({"step": trainer.step_number, "loss": sum(answer["losses"]) / answer["steps"]})
        print(json.dumps({**curve[-1], "tokens_per_second": answer["tokens_per_second"]}), file=sys.stderr, flush=True)
    print(json.dumps({"mode": mode, "attention": args.attention, "steps": steps, "tokens": int(tokens), "seconds": seconds,
                      "tokens_per_second": tokens / seconds, "accuracy": trainer.accuracy(), "peak_bytes": peak_bytes(), "curve": curve}))


if __name__ == "__main__":
    main()
