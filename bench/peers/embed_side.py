"""One side of bench/compare_embed.py: loads a sentence encoder, then embeds all texts once for every line on stdin.

usage: embed_side.py SIDE MODEL TEXTS.json OUT.npy THREADS
Answers with one line of JSON: first {"load": seconds}, then {"seconds": ...} a turn. OUT.npy: the embeddings of the first turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time

SIDE, MODEL, TEXTS, OUT, THREADS = sys.argv[1:6]
os.environ.update(OMP_NUM_THREADS=THREADS, QKV_NUM_THREADS=THREADS, TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS=THREADS, KMP_BLOCKTIME="1", HF_HUB_OFFLINE="1")

import numpy as np  # noqa: E402

LIMIT, BATCH = 256, 32


def batches(tokenizer, texts):
    """Padded batches of texts of like length, with their places: what sentence-transformers does."""
    encoded = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda i: -len(encoded[i].ids))
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        longest = len(encoded[places[0]].ids)
        ids = np.zeros((len(places), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, place in enumerate(places):
            n = len(encoded[place].ids)
            ids[row, :n], mask[row, :n] = encoded[place].ids, 1
        yield places, ids, mask


def pooled(hidden, mask):
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def padded_side(hidden):
    """embed(texts) of a function from (ids, mask) to hidden states, as NumPy arrays."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{MODEL}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(LIMIT)

    def embed(texts):
        out = np.empty((len(texts), json.loads(pathlib.Path(MODEL, "config.json").read_text())["hidden_size"]), np.float32)
        for places, ids, mask in batches(tokenizer, texts):
            out[places] = pooled(hidden(ids, mask), mask.astype(np.float32))
        return out

    return embed


def transformers_side():
    import torch
    from transformers import AutoModel

    torch.set_num_threads(int(THREADS))
    model = AutoModel.from_pretrained(MODEL, dtype=torch.float32).eval()

    def hidden(ids, mask):
        with torch.inference_mode():
            return model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state.numpy()

    return padded_side(hidden)


def exported(path):
    """The model as ONNX, written once."""
    import torch
    from transformers import AutoModel

    if path.exists():
        return
    model = AutoModel.from_pretrained(MODEL, attn_implementation="eager").eval()
    ids = torch.ones(2, 8, dtype=torch.int64)
    axes = {0: torch.export.Dim("batch", min=1, max=512), 1: torch.export.Dim("length", min=2, max=512)}

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    torch.onnx.export(Hidden(), (ids, torch.ones_like(ids)), str(path), input_names=["ids", "mask"], output_names=["hidden"],
                      dynamic_shapes=(axes, axes), dynamo=True, external_data=False, verbose=False)


def onnxruntime_side():
    import onnxruntime

    path = pathlib.Path(OUT).with_suffix(".onnx")
    exported(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(THREADS)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return padded_side(lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])


def ctranslate2_side():
    import ctranslate2

    folder = pathlib.Path(OUT).with_suffix(".ct2")
    if not folder.exists():
        ctranslate2.converters.TransformersConverter(MODEL).convert(str(folder))
    encoder = ctranslate2.Encoder(str(folder), device="cpu", intra_threads=int(THREADS), compute_type="float32")

    def hidden(ids, mask):
        rows = [row[: int(n)].tolist() for row, n in zip(ids, mask.sum(1))]
        return np.array(encoder.forward_batch(rows).last_hidden_state)

    return padded_side(hidden)


def qkv_side():
    import qkv

    model = qkv.load(MODEL)
    return lambda texts: np.asarray(model.encode(texts))


def main() -> None:
    begin = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):  # answers alone go to stdout
        embed = {"qkv": qkv_side, "transformers": transformers_side, "onnxruntime": onnxruntime_side, "ctranslate2": ctranslate2_side}[SIDE]()
    texts = json.loads(pathlib.Path(TEXTS).read_text())
    print(json.dumps({"load": time.perf_counter() - begin}), flush=True)
    np.save(OUT, embed(texts))
    for _ in sys.stdin:
        begin = time.perf_counter()
        embed(texts)
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
