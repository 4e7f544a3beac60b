"""Declarations: the ids that limits name, the sets that are checked, and errors that say where and what to do."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.worker.declare import CaseSpec, case_id, collecting, kernel


def declared(decorate, fn):
    with collecting() as kernels:
        assert decorate(fn) is fn, "the function stays as it is"
    (one,) = kernels
    return one


def two(bench, n, dtype="fp32"):
    return lambda: n


def test_cases_are_the_product_in_order_with_readable_ids():
    one = declared(kernel(params={"n": [4096, 1024], "dtype": ["bf16", "fp32"]}, name="matmul"), two)
    assert [case.id for case in one.cases("cuda")] == [
        "matmul/n=4096/dtype=bf16",
        "matmul/n=4096/dtype=fp32",
        "matmul/n=1024/dtype=bf16",
        "matmul/n=1024/dtype=fp32",
    ]
    spec = one.cases("cpu")[0]
    assert spec == CaseSpec(spec.id, "matmul", {"n": 4096, "dtype": "bf16"}, "cpu", __file__, spec.line)
    assert Path(spec.file).read_text().splitlines()[spec.line - 1] == 'def two(bench, n, dtype="fp32"):'


def test_bare_decorator_gives_one_case_named_like_the_function():
    def scan(bench):
        return lambda: None

    assert [case.id for case in declared(kernel, scan).cases("cpu")] == ["scan"]
    assert [case.id for case in declared(kernel(), scan).cases("cuda")] == ["scan"]


def test_a_device_has_sizes_and_fuzz_of_its_own():
    one = declared(
        kernel(
            params={"n": [1024], "dtype": ["bf16"]},
            fuzz={"n": [1000]},
            devices={"cuda": None, "cpu": {"params": {"n": [64, 65]}, "fuzz": {"n": [1], "dtype": ["fp32"]}}},
        ),
        two,
    )
    assert [case.id for case in one.cases("cuda")] == ["two/n=1024/dtype=bf16"]
    assert [case.id for case in one.cases("cpu")] == ["two/n=64/dtype=bf16", "two/n=65/dtype=bf16"]
    assert one.fuzz_sets("cuda", {"n": 1024, "dtype": "bf16"}) == [{"n": 1000, "dtype": "bf16"}]
    assert one.fuzz_sets("cpu", {"n": 64, "dtype": "bf16"}) == [{"n": 1, "dtype": "fp32"}]


def test_a_device_that_is_not_named_has_no_cases():
    one = declared(kernel(params={"n": [1]}, devices=["cuda"]), two)
    assert one.cases("cpu") == []
    assert one.fuzz_sets("cpu", {"n": 1}) == []


def test_fuzz_reaches_parameters_with_defaults_and_leaves_out_the_case_itself():
    one = declared(kernel(params={"n": [8, 9]}, fuzz={"n": [8, 3], "dtype": ["fp32", "bf16"]}), two)
    assert one.fuzz_sets("cuda", {"n": 8, "dtype": "fp32"}) == [
        {"n": 8, "dtype": "bf16"},
        {"n": 3, "dtype": "fp32"},
        {"n": 3, "dtype": "bf16"},
    ]


def test_limits_stay_plain_data():
    limits = [{"metric": "time", "regression": "5%"}]
    one = declared(kernel(params={"n": [1]}, limits=limits), two)
    assert one.limits == limits
    assert one.limits[0] is not limits[0]


def test_nothing_is_collected_outside_a_suite():
    """A suite file stays importable by its own tests, where nobody collects."""
    assert kernel(params={"n": [1]})(two) is two


values = st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())


@given(st.dictionaries(st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True), values, max_size=4))
def test_ids_hold_only_characters_that_globs_and_files_can_name(params):
    assert re.fullmatch(r"[A-Za-z0-9_.+\-/=]+", case_id("k", {k: v for k, v in params.items() if k.isascii()}))


@given(st.lists(values, min_size=1, max_size=5))
def test_ids_of_one_kernel_are_distinct_or_the_declaration_fails(items):
    try:
        one = declared(kernel(params={"n": items}), two)
    except ValueError as error:
        assert "same id" in str(error)
    else:
        ids = [case.id for case in one.cases("cuda")]
        assert len(set(ids)) == len(ids) == len(items)


def no_bench(n):
    return lambda: n


def only_bench(bench):
    return lambda: None


def anything(bench, **rest):
    return lambda: rest


@pytest.mark.parametrize(
    ("arguments", "fn", "says"),
    [
        ({"params": {"m": [1]}}, two, "two() has no parameter 'm': it takes n, dtype"),
        ({"params": {"n": [1]}, "fuzz": {"m": [1]}}, two, "two() has no parameter 'm'"),
        ({"params": {"n": [1]}, "devices": {"cpu": {"params": {"m": [1]}}}}, two, "has no parameter 'm'"),
        ({}, two, "two() needs values for 'n' on cuda: add it to params"),
        ({"params": {"n": [1]}}, no_bench, "takes 'bench' as its first parameter"),
        ({"params": {"n": []}}, two, "params['n'] is empty: give at least one value"),
        ({"params": {"n": "fp16"}}, two, "params['n'] is a list of values, not 'fp16'"),
        ({"params": {"n": [None]}}, two, "None is no str, int, float or bool"),
        ({"params": {"n": [float("nan")]}}, two, "nan is not finite"),
        ({"params": {"n": [1, "1"]}}, two, "make the same id 'two/n=1'"),
        ({"params": {"n": [1]}, "name": "my kernel"}, two, "'my kernel' cannot name a kernel"),
        ({"params": {"n": [1]}, "devices": ["gpu"]}, two, "'gpu' is unknown: write 'cuda' or 'cpu'"),
        ({"params": {"n": [1]}, "devices": []}, two, "devices names at least one"),
        ({"params": {"n": [1]}, "devices": {"cpu": {"n": [1]}}}, two, "'n' is unknown: write 'params' or 'fuzz'"),
        ({"params": {"n": [1]}, "devices": {"cpu": [1]}}, two, "is None or a mapping"),
        ({"params": {"n": [1]}, "limits": [{"cases": "*", "max": "1s"}]}, two, "leave out 'cases'"),
        ({"params": {"n": [1]}, "limits": {"max": "1s"}}, two, "limits is a list of mappings"),
        ({"params": {"n": [1]}, "limits": ["2%"]}, two, "'2%' is no mapping"),
        ({"params": {"bench": [1]}}, anything, "'bench' is no parameter of a case"),
        ({"params": [1]}, two, "params is a mapping"),
        ({"timing": ["cold"]}, only_bench, "timing=['cold'] is unknown: write one of 'auto', 'rotating'"),
        ({"timings": "cold"}, only_bench, "@perfci.kernel takes no argument 'timings'"),
    ],
)
def test_mistakes_are_one_line_with_place_and_remedy(arguments, fn, says):
    with collecting() as kernels, pytest.raises((TypeError, ValueError)) as caught:
        kernel(**arguments)(fn)
    text = str(caught.value)
    assert says in text
    assert text.startswith(f"{__file__}:{fn.__code__.co_firstlineno}: ")
    assert "\n" not in text
    assert kernels == []


def test_only_functions_are_declared():
    with pytest.raises(TypeError, match="not before a int"):
        kernel(params={"n": [1]})(5)
