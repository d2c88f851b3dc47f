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

    def count(self, text: str) -> int:
        return len(self.model.tokenize(text.encode(), add_bos=False))

    def generate(self, text: str, count: int) -> int:
        self.model.reset()
        made = 0
        for _ in self.model.generate(self.model.tokenize(text.encode(), add_bos=False), temp=0.0, repeat_penalty=1.0):
            made += 1
            if made == count:
                break
        return made


class Qkv:
    def __init__(self) -> None:
        import qkv

        self.model = qkv.load(MODEL)

    def count(self, text: str) -> int:
        return len(self.model.tokenize(text, add_special_tokens=False).ids)

    def generate(self, text: str, count: int) -> int:
        return len(self.model.generate(text, max_new_tokens=count, min_new_tokens=count).tokens)


def of_length(side: LlamaCpp | Qkv, tokens: int) -> str:
    """A text of at most so many tokens, and nearly as many."""
    words = (LONG * (tokens // 20 + 1)).split(" ")
    least, most = 1, len(words)
    while least < most:
        middle = (least + most + 1) // 2
        if side.count(" ".join(words[:middle])) <= tokens:
            least = middle
        else:
            most = middle - 1
    return " ".join(words[:least])


def main() -> None:
    side = {"qkv": Qkv, "llama.cpp": LlamaCpp}[SIDE]
    with contextlib.redirect_stdout(sys.stderr):
        model = side()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        kind, _, number = line.strip().partition(" ")
        text = of_length(model, int(number)) if kind == "prompt" else SHORT
        begin = time.perf_counter()
        if kind == "load":
            tokens = side().generate(text, 1)
        elif kind == "prompt":
            model.generate(text, 1)
            tokens = model.count(text)
        else:
            model.generate(text, 1)
            begin, first = time.perf_counter(), time.perf_counter() - begin
            tokens = model.generate(text, int(number) + 1) - 1
            begin += first
        print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
