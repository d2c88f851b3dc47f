#!/usr/bin/env python3
"""Writes tests/golden/decoders/NAME/: a tiny random decoder of each family, as `transformers` saves it, and golden.safetensors with what it
computes: logits, the mean next-token loss, gradients of it, greedy continuations and beam search.

Needs torch and transformers (a development tool; no build or test needs them).  make_decoder_goldens.py [NAME ...]
"""
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/decoders"
SIZES = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=48,
             bos_token_id=1, eos_token_id=2, pad_token_id=None)
LENGTHS = (11, 1, 23)
NEW = 12
ENDS = [2, 17, 31, 40, 52]


def llama(**more):
    return transformers.LlamaConfig(**{**SIZES, "num_key_value_heads": 2, **more})


FAMILIES = {
    "gpt2": transformers.GPT2Config(vocab_size=61, n_embd=16, n_layer=2, n_head=4, n_positions=48, bos_token_id=1, eos_token_id=2,
                                    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "llama": llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True, head_dim=6),
    "llama3": llama(tie_word_embeddings=True, rope_theta=500000.0,
                    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                      original_max_position_embeddings=16)),
    "mistral": transformers.MistralConfig(**{**SIZES, "num_key_value_heads": 2, "sliding_window": 7}),
    "qwen2": transformers.Qwen2Config(**{**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True, "use_sliding_window": True,
                                         "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": transformers.Qwen3Config(**{**SIZES, "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": True}),
    "gemma3": transformers.Gemma3TextConfig(**{**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 6, "sliding_window": 6,
                                               "query_pre_attn_scalar": 9, "rope_theta": 100000.0,
                                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
}


def build(config):
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():  # large enough that heads differ and norms matter
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.35 if parameter.dim() > 1 else 0.1))
            if "norm" in name or ".ln_" in name:
                if name.endswith("weight") and "gemma" not in config.model_type:
                    parameter.add_(1)
    model.generation_config.eos_token_id = ENDS
    return model


def golden(model):
    values = {}
    vocab = model.config.vocab_size
    ids = [torch.randint(3, vocab, (n,)) for n in LENGTHS]
    values["lengths"] = torch.tensor(LENGTHS)
    values["ids"] = torch.cat(ids).to(torch.int32)
    values["logits"] = torch.cat([model(i[None]).logits[0] for i in ids]).detach()
    total, count = 0.0, 0
    for i in ids:  # the mean over all next tokens of all texts
        logits = model(i[None]).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits[:-1], i[1:], reduction="sum") if len(i) > 1 else total
        count += len(i) - 1
    loss = total / count
    loss.backward()
    values["loss"] = loss.detach().reshape(1)
    for name, parameter in model.named_parameters():
        values["gradient." + name] = parameter.grad
    settings = dict(max_new_tokens=NEW, pad_token_id=0)
    for number, i in enumerate(ids):
        out = model.generate(i[None], do_sample=False, **settings)[0, len(i):]
        values[f"greedy.{number}"] = out.to(torch.int32)
        out = model.generate(i[None], do_sample=False, repetition_penalty=1.4, min_new_tokens=NEW, **settings)[0, len(i):]
        values[f"penalised.{number}"] = out.to(torch.int32)
        for penalty, stopping in ((1.0, False), (0.3, True), (2.0, "never")):
            beams = model.generate(i[None], do_sample=False, num_beams=3, num_return_sequences=3, length_penalty=penalty,
                                   early_stopping=stopping, return_dict_in_generate=True, output_scores=True, **settings)
            key = f"beams.{number}.{stopping}"
            values[key] = beams.sequences[:, len(i):].to(torch.int32).contiguous()
            values[key + ".scores"] = beams.sequences_scores
    return values


def main():
    for name in sys.argv[1:] or FAMILIES:
        model = build(FAMILIES[name])
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        values = golden(model)
        save_file({k: v.contiguous() for k, v in values.items()}, folder / "golden.safetensors")
        print(name, float(values["loss"]), values["greedy.0"].tolist(), values["beams.0.False.scores"].tolist(),
              sum(f.stat().st_size for f in folder.iterdir()))


main()
