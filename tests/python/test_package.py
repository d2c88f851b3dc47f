"""The package itself: names, stubs, and what the machine is."""
import ast
import inspect
import pathlib

import pytest

import qkv
from qkv import _core

FOLDER = pathlib.Path(qkv.__file__).parent


def stub_names():
    """Names of the stub, and of each class in it."""
    tree = ast.parse((FOLDER / "_core.pyi").read_text())
    names, members = set(), {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            members[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    return names, members


def test_stubs_name_what_is_there():
    names, members = stub_names()
    there = {n for n in vars(_core) if not n.startswith("__") or n == "__version__"}
    assert names == there
    for name, stubbed in members.items():
        own = {n for n in vars(getattr(_core, name)) if not n.startswith("_") or n in ("__len__", "__init__", "__and__")}
        assert stubbed - {"__init__"} == own - {"__init__"}, name


def test_stubs_and_functions_take_the_same_keywords():
    tree = ast.parse((FOLDER / "_core.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.args.kwonlyargs:
            signature = getattr(_core, node.name).__doc__.splitlines()[0]
            for argument in node.args.kwonlyargs + node.args.args:
                assert f"{argument.arg}:" in signature, (node.name, argument.arg)


def test_typed_and_complete():
    assert (FOLDER / "py.typed").exists()
    for name in set(qkv.__all__) - {"torch"}:
        assert hasattr(qkv, name), name
    assert set(qkv.__all__) <= set(dir(qkv))
    with pytest.raises(AttributeError, match="no attribute 'attention'"):
        qkv.attention


def test_signature_is_the_promised_one():
    signature = qkv.scaled_dot_product_attention.__doc__
    for name in ("mask", "causal", "window", "scale", "softcap", "backend", "dropout_p", "seed", "return_lse"):
        assert f"{name}:" in signature


def test_public_things_say_what_they_are():
    for name in qkv.__all__:
        if name not in ("torch", "__version__"):
            assert inspect.getdoc(getattr(qkv, name)), name


def test_info():
    machine = qkv.info()
    assert machine["version"] == qkv.__version__ and machine["threads"] == qkv.num_threads()
    assert "peaks" not in machine and machine["threads_reason"] == qkv.num_threads_reason()
    assert qkv.info(peak=True)["peaks"]["gflops"] > 0


def test_lab():
    assert "score-variance" in qkv.lab.names()
    result = qkv.lab.run("score-variance")
    assert result.name == "score-variance" and result.holds is True
    assert result.measured and result.rows and len(result.columns) == len(result.rows[0])
    assert result.claim in str(result) and result.verdict in str(result)
    with pytest.raises(qkv.ArgumentError, match="score-variance"):
        qkv.lab.run("score-varianse")
