"""Programs that take turns: each waits for a line on stdin, works, and answers with one line of JSON."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Turns:
    def __init__(self, name: str, command: list[str]):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.ready = self._answer()

    def _answer(self) -> dict | list:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, request: object) -> dict | list:
        self.process.stdin.write(f"{request}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def benchmark_lock():
    """The lock that `qkv bench` takes as well: one benchmark at a time."""
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    with open(pathlib.Path(folder) / f"qkv-bench-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_results(out: pathlib.Path, name: str, results: dict, plot: dict) -> None:
    """NAME.json with the results and the plot's data, and NAME.svg drawn from it by qkv."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({**results, "plot": plot}, indent=1) + "\n")
    subprocess.run([str(program()), "bench", "--plot", str(path), "--out", str(out)], check=True, cwd=ROOT)


def program() -> pathlib.Path:
    return pathlib.Path(os.environ.get("QKV_PROGRAM", ROOT / "build/release/qkv"))
