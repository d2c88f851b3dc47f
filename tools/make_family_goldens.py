#!/usr/bin/env python3
"""Writes tests/golden/families: tiny random models of every encoder family, each a folder as
transformers saves it, with the logits, the loss and the gradients that transformers computes in
double precision for three texts of different lengths.

Needs torch and transformers. The files are committed; run this only to add a family.
"""

import pathlib

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "families"
LENGTHS = [9, 4, 12]
VOCAB = 40


def bert(wide):
    return transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=16 if wide else 8, num_hidden_layers=2 if wide else 1, num_attention_heads=2,
        intermediate_size=32 if wide else 16, max_position_embeddings=16, type_vocab_size=2)


def roberta(wide, kind=transformers.RobertaConfig):
    return kind(
        vocab_size=VOCAB, hidden_size=16 if wide else 8, num_hidden_layers=2 if wide else 1, num_attention_heads=2,
        intermediate_size=32 if wide else 16, max_position_embeddings=18, type_vocab_size=1, pad_token_id=1,
        layer_norm_eps=1e-5)


def xlm_roberta(wide):
    return roberta(wide, transformers.XLMRobertaConfig)


def distilbert(wide):
    return transformers.DistilBertConfig(
        vocab_size=VOCAB, dim=16 if wide else 8, n_layers=2 if wide else 1, n_heads=2, hidden_dim=32 if wide else 16,
        max_position_embeddings=16, dropout=0.0, attention_dropout=0.0, qa_dropout=0.0, seq_classif_dropout=0.0)


def mpnet(wide):
    return transformers.MPNetConfig(
        vocab_size=VOCAB, hidden_size=16 if wide else 8, num_hidden_layers=2 if wide else 1, num_attention_heads=2,
        intermediate_size=32 if wide else 16, max_position_embeddings=18, layer_norm_eps=1e-5)


def modernbert(wide):
    return transformers.ModernBertConfig(
        vocab_size=VOCAB, hidden_size=16 if wide else 8, num_hidden_layers=4 if wide else 2, num_attention_heads=2,
        intermediate_size=24 if wide else 12, max_position_embeddings=32, local_attention=4, pad_token_id=0,
        bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
        classifier_pooling="cls" if wide else "mean")


FAMILIES = {
    "bert": (bert, "Bert"), "roberta": (roberta, "Roberta"), "xlm_roberta": (xlm_roberta, "XLMRoberta"),
    "distilbert": (distilbert, "DistilBert"), "mpnet": (mpnet, "MPNet"), "modernbert": (modernbert, "ModernBert"),
}
HEADS = {
    "masked_lm": "ForMaskedLM", "sequence": "ForSequenceClassification", "tokens": "ForTokenClassification",
    "answer": "ForQuestionAnswering", "trunk": "Model",
}


def randomise(model, generator):
    """Values that make every weight count: norms and biases too."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name.lower() and name.endswith("weight"):
            parameter.data = 1 + 0.2 * noise
        else:
            parameter.data = 0.3 * noise


def run(model, ids, types):
    """Each text by itself, so that no padding is there: the outputs, one by one, joined over the texts."""
    outs, start = [], 0
    for n in LENGTHS:
        inputs = {"input_ids": ids[None, start:start + n]}
        if types is not None:
            inputs["token_type_ids"] = types[None, start:start + n]
        outs.append(model(**inputs))
        start += n
    return {key: torch.cat([out[key].flatten(0, 1) if out[key].dim() > 2 or key.endswith("_logits") else out[key]
                            for out in outs]) for key in outs[0].keys()}


def make(name, head, seed):
    config_of, prefix = FAMILIES[name]
    config = config_of(head == "masked_lm")
    config._attn_implementation = "eager"
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    if head in ("sequence", "tokens"):
        config.id2label = {0: "no", 1: "perhaps", 2: "yes"}
        config.label2id = {label: i for i, label in config.id2label.items()}
    generator = torch.Generator().manual_seed(seed)
    model = getattr(transformers, prefix + HEADS[head])(config)
    randomise(model, generator)
    model.tie_weights()
    folder = OUT / f"{name}_{head}"
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    model = model.double().eval()
    total = sum(LENGTHS)
    ids = torch.randint(4, VOCAB, (total,), generator=generator)
    golden = {"ids": ids.int(), "lengths": torch.tensor(LENGTHS).int()}
    if getattr(config, "type_vocab_size", 0) > 1:
        golden["types"] = torch.randint(0, 2, (total,), generator=generator).int()
    out = run(model, ids, golden["types"].long() if "types" in golden else None)
    if head == "trunk":
        golden["hidden"] = out["last_hidden_state"]
        if "pooler_output" in out:
            golden["pooled"] = out["pooler_output"]
    else:
        logits = torch.stack([out["start_logits"], out["end_logits"]], 1) if head == "answer" else out["logits"]
        labels = torch.randint(0, logits.shape[1], (logits.shape[0],), generator=generator)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        golden["logits"], golden["labels"], golden["loss"] = logits, labels.int(), loss.reshape(1)
        for parameter_name, parameter in model.named_parameters():
            if parameter.grad is not None:  # a tied matrix goes by the embedding's name
                golden["gradient." + parameter_name.replace(
                    "lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight")] = parameter.grad
    golden = {key: value.detach().float() if value.is_floating_point() else value for key, value in golden.items()}
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")


def main():
    for i, name in enumerate(FAMILIES):
        for j, head in enumerate(HEADS):
            if name == "xlm_roberta" and head != "masked_lm":
                continue
            make(name, head, 100 * i + j)
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
