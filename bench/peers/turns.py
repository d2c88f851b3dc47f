"""Programs that take turns: each waits for a line on stdin, works, and answers with one line of JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import subprocess
import sys
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


class BenchmarkLock:
    """The lock that `qkv bench` takes as well: one benchmark at a time."""

    def __enter__(self) -> BenchmarkLock:
        folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        self.fd = os.open(pathlib.Path(folder) / f"qkv-bench-{os.getuid()}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another benchmark is running, waiting for it", file=sys.stderr)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def shared(self) -> dict:
        """Options of subprocess.run for a `qkv bench` that is a part of this benchmark: it holds this lock, and does not wait for it."""
        return {"pass_fds": (self.fd,), "env": {**os.environ, "QKV_BENCH_LOCK_FD": str(self.fd)}}


def write_results(out: pathlib.Path, name: str, results: dict, plot: dict) -> None:
    """NAME.json with the results and the plot's data, and NAME.svg drawn from it by qkv."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({**results, "plot": plot}, indent=1) + "\n")
    subprocess.run([str(program()), "bench", "--plot", str(path), "--out", str(out)], check=True, cwd=ROOT)


def program() -> pathlib.Path:
    return pathlib.Path(os.environ.get("QKV_PROGRAM", ROOT / "build/release/qkv"))
