"""Short names of kernels: one line, never empty, never longer, and never the same for two kernels of a case."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.explain.names import LONGER, SHORT, short_names
from perfci.model.kernels import identify

DATA = Path(__file__).parent.parent / "data"
RECORDED = sorted(
    {
        kernel["name"]
        for side in ("base", "head")
        for case in json.loads((DATA / "profiles" / f"{side}.json").read_text()).values()
        for part in ("trace", "counters")
        for kernel in (case.get(part) or {}).get("kernels", [])
    }
    | {
        event["name"]
        for event in json.loads((DATA / "kineto" / "cuda.json").read_text())["traceEvents"]
        if event.get("cat") == "kernel"
    }
)
"""Names as nsys, ncu and Kineto tell them."""
NUMBER = re.compile(r" #\d+$")


def holds(names):
    short = short_names(names)
    assert list(dict.fromkeys(names)) and set(short) == set(names)
    assert len(set(short.values())) == len(short)
    for name, shown in short.items():
        bare = NUMBER.sub("", shown)
        assert bare.strip() and shown.isprintable() and "`" not in shown
        assert len(bare) <= max(len(name), 1)
    return short


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void f<float>(float*)", "f<float>"),
        (
            "void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *, const T1 *, int)",
            "softmax_warp_forward<float, float, float, 9, 0, 0>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
            "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
            "vectorized_elementwise_kernel<CUDAFunctor_add, float32>",
        ),
        ("void k<(f)->g<int>>(int)", "k<(f)->g<int>>"),
        ("a`b", "a'b"),
        ("\x00\n", "?"),
        ("", "?"),
    ],
)  # fmt: skip
def test_the_function_and_its_telling_argument(name, short):
    assert holds([name]) == {name: short}


def test_recorded_names():
    assert len(RECORDED) > 20
    assert max(map(len, holds(RECORDED).values())) <= LONGER
    for name in RECORDED:
        assert len(short_names([name])[name]) <= SHORT


def test_more_is_told_where_less_is_not_unique():
    four, two = (
        f"void at::native::vectorized_elementwise_kernel<{n}, at::native::FillFunctor<float>>(int)" for n in (4, 2)
    )
    assert list(holds([four, two]).values()) == [
        "vectorized_elementwise_kernel<4, FillFunctor<float>>",
        "vectorized_elementwise_kernel<2, FillFunctor<float>>",
    ]
    assert list(holds(["void f(int)", "void f(long)", "f #1"]).values()) == ["f #2", "f #3", "f #1"]


PIECES = st.sampled_from(
    ["void ", "at::native::", "f", "g<", "<", ">", "(int)4", "(", ")", ", ", "::", "float", " #1", "…", "`", "\n", "->"]
)


@given(
    st.lists(
        st.lists(PIECES, max_size=30).map("".join) | st.sampled_from(RECORDED) | st.text(max_size=200),
        min_size=1,
        max_size=12,
    )
)
def test_no_two_kernels_share_a_name(names):
    holds(names)


@given(st.sampled_from(RECORDED), st.lists(st.tuples(st.integers(0, 400), PIECES), min_size=1, max_size=8))
def test_nor_do_variants_of_one(name, edits):
    holds([name, *(name[:at] + piece + name[at:] for at, piece in edits)])


@pytest.mark.parametrize(
    "text",
    [
        "_" + "1" * 20_000 + "dx",
        "_1" * 10_000 + "x",
        "_GLOBAL__N__" * 1600,
        "_INTERNAL_" * 2000,
        "cudnn" * 4000,
        "volta_" * 3000,
        "vectorized_elementwise_kernel<" + "aFunctor " * 2000,
        "vectorized_elementwise_kernel<" + "lambda(((" * 2000,
    ],
)
def test_names_made_to_be_slow(text: str) -> None:
    """Each of them took up to hours, and a stranger may bring thousands: four times as long is no sixteen times as much
    for the processor, whatever else it does meanwhile."""

    def seconds(name: str) -> float:
        begin = time.process_time()
        identify(name)
        return time.process_time() - begin

    name = text[-20_000:]
    short = name[: len(name) // 8] + name[-len(name) // 8 :]
    assert min(seconds(name + str(end)) for end in range(6)) < 14 * max(
        min(seconds(short + str(end)) for end in range(6)), 1e-4
    )


@pytest.mark.slow
def test_many_names_that_nothing_short_tells_apart() -> None:
    names = [f"{'a' * 200}<{'b' * 200}{i}>" for i in range(5_000)]
    assert len(set(short_names(names).values())) == len(names)


def test_names_that_a_library_spells_out_are_short_and_told_apart():
    """Kernels of cuBLAS as an H200 ran them: the same tile twice needs more than the tile."""
    gemm = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{}_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"
    one, other = gemm.format("128x128x8"), gemm.format("64x64x8")
    assert short_names([one, other]) == {one: "xmma 128x128x8", other: "xmma 64x64x8"}
    alike = one.replace("_tn_n_", "_nn_n_")
    found = short_names([one, alike])
    assert len(set(found.values())) == 2 and "xmma 128x128x8" not in found.values()
    mine = "my_own_kernel_with_a_rather_long_name_of_words_alone"
    assert short_names([mine]) == {mine: mine}
