"""One side of bench/compare_generate.py: a language model that answers each line on stdin with timings of one kind of work.

usage: generate_side.py qkv|llama.cpp MODEL THREADS
Lines: "decode N" (N greedy tokens after a short prompt), "prompt N" (a prompt of N tokens, one new token), "load" (one new token from
a model that is opened for it). Answers {"seconds": ..., "tokens": ...}; for decode the time of the prompt is taken off.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

SIDE, MODEL, THREADS = sys.argv[1:4]
os.environ.update(OMP_NUM_THREADS=THREADS, QKV_NUM_THREADS=THREADS)

SHORT = "The history of the city begins"
LONG = "The river runs past the old mill and the new bridge, and on market days the boats bring apples, cheese and news from the hills. "


class LlamaCpp:
    def __init__(self) -> None:
        from llama_cpp import Llama

        self.model = Llama(MODEL, n_ctx=2048, n_batch=512, n_threads=int(THREADS), n_threads_batch=int(THREADS), verbose=False)

    def ids(self, text: str) -> list[int]:
        return self.model.tokenize(text.encode(), add_bos=False)

    def generate(self, ids: list[int], count: int) -> int:
        self.model.reset()
        made = 0
        for _ in self.model.generate(ids, temp=0.0, repeat_penalty=1.0):
            made += 1
            if made == count:
                break
        return made


class Qkv:
    def __init__(self) -> None:
        import qkv

        self.model = qkv.load(MODEL)

    def ids(self, text: str) -> list[int]:
        return list(self.model.tokenizer.encode(text, add_special_tokens=False).ids)

    def generate(self, ids: list[int], count: int) -> int:
        return len(self.model.generate(ids, max_new_tokens=count, min_new_tokens=count).tokens)


def main() -> None:
    side = {"qkv": Qkv, "llama.cpp": LlamaCpp}[SIDE]
    with contextlib.redirect_stdout(sys.stderr):
        model = side()
        short, text = model.ids(SHORT), model.ids(LONG * 80)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        kind, _, number = line.strip().partition(" ")
        begin = time.perf_counter()
        if kind == "load":
            tokens = side().generate(short, 1)
        elif kind == "prompt":
            tokens = int(number)
            model.generate(text[:tokens], 1)
        else:
            model.generate(short, 1)
            begin, first = time.perf_counter(), time.perf_counter() - begin
            tokens = model.generate(short, int(number) + 1) - 1
            begin += first
        print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
