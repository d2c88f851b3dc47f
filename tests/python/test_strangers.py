"""Functions that the doctor's rules were not made on: each wrong one is named, no right one is blamed, in seconds."""
import time

import pytest
import strangers

from qkv import doctor


def judge(report, rule, seconds):
    own = {f.id for f in report.errors if not f.follows}
    if rule is None:
        assert not report.errors and not {f.id for f in report.warnings} - {"position-shift"}, str(report)  # of padding in front
    else:
        wanted = {rule} if isinstance(rule, str) else set(rule)
        assert report.errors and report.errors[0].id in wanted and own <= wanted, str(report)
    assert seconds < 10


def ids(entries):
    return [entry[0] for entry in entries]


@pytest.mark.parametrize("name, rule, keywords, function", strangers.NUMPY, ids=ids(strangers.NUMPY))
def test_numpy(name, rule, keywords, function):
    start = time.process_time()
    judge(doctor.check(attention=function, framework="numpy", **keywords), rule, time.process_time() - start)


@pytest.mark.parametrize("name, rule, keywords, function", strangers.TORCH, ids=ids(strangers.TORCH))
def test_torch(name, rule, keywords, function):
    start = time.process_time()
    judge(doctor.check(attention=function, **keywords), rule, time.process_time() - start)


@pytest.mark.parametrize("name, rule, causal, model", strangers.MODELS, ids=ids(strangers.MODELS))
def test_model(name, rule, causal, model):
    start = time.process_time()
    judge(doctor.check(model=model, vocab_size=50, max_length=40, causal=causal), rule, time.process_time() - start)
