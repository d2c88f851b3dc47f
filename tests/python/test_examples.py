"""The worked examples run to their end and find what they say."""
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
SAYS = {
    "masked_attention": r"largest difference to qkv\.scaled_dot_product_attention: \d\.\d\de-1[4-9]",
    "check_my_attention": r"(?s)as_found: not right.*\bscale\b.*with_scale: not right.*mask-value.*mended: fine",
    "manual_and_fused": r"a bare array is refused: \[attention\] expected a qkv\.Mask",
    "block_gradient": r"(?s)post-norm block.*attention.*e-\d\d\n.*modern block.*e-\d\d\n",
}


def test_every_example_is_run():
    assert {p.stem for p in FOLDER.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name):
    done = subprocess.run([sys.executable, FOLDER / f"{name}.py"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(SAYS[name], done.stdout) and "WRONG" not in done.stdout
