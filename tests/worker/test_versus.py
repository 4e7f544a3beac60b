"""The declaration of an alternative, and the digest by which it is recognised."""

import functools

import pytest

from perfci.worker.bench import Bench
from perfci.worker.versus import Versus, in_turns


def digest(fn) -> str:
    return Versus("a", fn).told()["code"]


def compiled(text: str):
    return eval(text)


def test_one_alternative_with_a_short_name():
    bench = Bench("cpu", 0, 0)
    for bad in ("", "  ", "a" * 41, "a\nb", "\x1b[31m", 3, None):
        with pytest.raises(ValueError, match="give it a name"):
            bench.versus(bad, int)
    with pytest.raises(TypeError, match="takes a function"):
        bench.versus("sdpa", 1)
    assert bench.declared_versus() is None
    bench.versus(" flash 2 ", int)
    assert bench.declared_versus() == Versus("flash 2", int)
    with pytest.raises(ValueError, match="in a kernel for each"):
        bench.versus("other", int)
    bench.release()
    assert bench.declared_versus() is None


def test_the_digest_is_of_what_a_function_does():
    assert digest(compiled("lambda: 1 + f(2)")) == digest(compiled("\n\nlambda:  (1 +\n f(2))"))
    different = [
        "lambda: 1 + f(3)",
        "lambda: 1 + g(2)",
        "lambda: f(2)",
        "lambda: (lambda: 1 + f(2))",
        "lambda: 1.0 + f(2)",
    ]
    digests = {digest(compiled(text)) for text in ["lambda: 1 + f(2)", *different]}
    assert len(digests) == 1 + len(different)
    inner = "lambda: [(lambda y: y * {})(x) for x in (1, 2)]"
    assert digest(compiled(inner.format(2))) != digest(compiled(inner.format(3)))
    assert digest(compiled("lambda x: x in {1, 2, 'a'}")) == digest(compiled("lambda x: x in {'a', 2, 1}"))


def test_functions_without_bytecode_have_a_digest_too():
    assert digest(len) == digest(len) != digest(sum)
    assert digest(functools.partial(len, ())) == digest(functools.partial(sum, ()))  # what it holds is not its code

    class Called:
        def __call__(self):
            return 1

    class Other:
        def __call__(self):
            return 2

    assert digest(Called()) == digest(Called()) != digest(Other())


def test_blocks_go_in_turns_and_both_samplers_finish():
    log = []

    class Sampler:
        def __init__(self, name):
            self.name = name

        def block(self, batch, samples, bracket):
            log.append((self.name, batch, samples, bracket))
            return [float(len(log))]

        def finish(self):
            log.append((self.name, "finish"))

    turns = ["other", "own", "own", "other"]
    message = {"turns": turns, "batch": 3, "samples": 5, "bracket": False}
    assert in_turns(Sampler("own"), Sampler("other"), message) == {"own": [[2.0], [3.0]], "other": [[1.0], [4.0]]}
    assert log == [*((name, 3, 5, False) for name in turns), ("own", "finish"), ("other", "finish")]
