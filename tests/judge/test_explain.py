"""Why a case changed: what the recorded pairs must say, made ones that show one cause each, and any profile at all."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.judge.explain.case import case_profile
from perfci.judge.explain.causes import FIRST, LONGEST, Explanation, explain, explain_one
from perfci.judge.judge import judge
from perfci.model.kernels import identify
from perfci.model.profile import Call, Copy, Counters, Fault, KernelCounters, KernelUse, Profile, RangeUse, Rule, Trace
from perfci.model.results import Case, CaseSide
from tests.render.shown import golden

from . import build

HERE = Path(__file__).parent
RECORDED = {
    side: {
        case: Profile.model_validate(found)
        for case, found in json.loads((HERE.parent / "data/profiles" / f"{side}.json").read_text("utf-8")).items()
    }
    for side in ("base", "head")
}
"""Real nsys and ncu data of an H200: base and head differ on purpose."""


def use(name="void ns::stencil<float, (int)128>(float *)", seconds=45e-6, count=1.0, **more):
    fields = {"grid": (4096, 1, 1), "block": (256, 1, 1), "registers": 64, "static_shared": 0, "dynamic_shared": 0}
    return KernelUse(name=name, count=count, seconds=seconds, **(fields | {"local": 0} | more))


def trace(*kernels, calls=(), wall=None, span=None, busy=None, **more):
    device = sum(kernel.seconds for kernel in kernels)
    busy = device if busy is None else busy
    span = busy if span is None else span
    wall = span + 8e-6 if wall is None else wall
    return Trace(
        source="nsys", executions=10, wall=wall, busy=busy, span=span, kernels=[*kernels], calls=[*calls], **more
    )


def counted(name="void ns::stencil<float, 128>(float *)", seconds=48e-6, rules=(), **values):
    return KernelCounters(
        name=name, count=1, seconds=seconds, grid=(4096, 1, 1), block=(256, 1, 1), values=values, rules=[*rules]
    )


def counters(*kernels):
    return Counters(source="ncu", version="2025.3.1", chip="gh100", passes=2, kernels=[*kernels])


def launch(count=1.0):
    return Call(name="cudaLaunchKernel", kind="launch", count=count, seconds=3e-6 * count)


USUAL = {"occupancy": 50.0, "dram_bytes": 120e6, "instructions": 4e6, "spills": 0.0, "tensor_active": 0.0}
USUAL["stall_barrier"] = 0.2


def stencil(seconds=45e-6, registers=64, local=0, rules=(), **values):
    """A profile of one kernel whose counters are the usual ones but for `values`."""
    kernel = use(seconds=seconds, registers=registers, local=local)
    return Profile(trace=trace(kernel, calls=[launch()]), counters=counters(counted(rules=rules, **(USUAL | values))))


PLAIN = stencil()
SYNC = Call(name="cudaStreamSynchronize", kind="synchronisation", count=3, seconds=60e-6)
MALLOC = Call(name="cudaMalloc", kind="allocation", count=1, seconds=890e-6)
FREE = Call(name="cudaFree", kind="allocation", count=1, seconds=1e-6)
SPIN = "triton_poi_fused_add_{}"
NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_execute_kernel__5x_cublas"
CUTLASS = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_128x256_32x3>(P)"
FORBIDDEN = Fault(
    tool="ncu",
    part="counters",
    kind="forbidden",
    text="ERR_NVGPUCTRPERM: counters are for administrators",
    remedy="set NVreg_RestrictProfilingToAdminUsers=0 or run as root with --cap-add=SYS_ADMIN",
)


KILLED = Fault(
    tool="nsys", part="trace", kind="timeout", text="killed after 60 s", remedy="give the profile a larger timeout"
)
UNSEEN = Fault(tool="nsys", part="trace", kind="empty", text="no range of the case arrived")
PARTS = ("add_0", 30e-6), ("mul_1", 31e-6), ("relu_2", 32e-6)


def traced(*kernels, counters=None, **more):
    return Profile(trace=trace(*kernels, **more), counters=counters)


def many(n, seconds=2e-6, **more):
    return traced(*(use(SPIN.format(i), seconds) for i in range(n)), calls=[launch(n)], **more)


SPILLING = [
    Rule(name="Occupancy", message="Local only.", speedup=None),
    Rule(
        name="Local Memory",
        message="Registers spill. Spills cause 41% of the traffic. See the guide and Memory.",
        speedup=41.0,
    ),
]

MADE: dict[str, tuple[Profile, Profile, float | None]] = {
    "registers": (PLAIN, stencil(90e-6, 128, occupancy=25.0), 2.0),
    "registers-trace-only": (
        Profile(trace=PLAIN.trace, metrics={"occupancy_theoretical": 50.0}),
        traced(use(seconds=90e-6, registers=128)).model_copy(update={"metrics": {"occupancy_theoretical": 25.0}}),
        2.0,
    ),
    "spills": (
        PLAIN,
        stencil(150e-6, local=256, rules=SPILLING, dram_bytes=540e6, instructions=9e6, spills=3.2e6),
        3.3,
    ),
    "synchronises": (PLAIN, traced(use(), calls=[SYNC, launch()], wall=120e-6, counters=PLAIN.counters), 2.3),
    "allocates": (PLAIN, traced(use(), calls=[MALLOC, launch(), FREE], wall=1e-3, counters=PLAIN.counters), 18.0),
    "launch-bound": (many(4, 20e-6), many(40, span=400e-6, wall=405e-6), 5.0),
    "tensor-cores-lost": (
        traced(
            use(NVJET, 170e-6, block=(384, 1, 1)),
            counters=counters(counted(NVJET, 176e-6, tensor_active=95.0, dram_bytes=176e6)),
        ),
        traced(use(SGEMM, 2.8e-3), counters=counters(counted(SGEMM, 2.9e-3, tensor_active=0.01, dram_bytes=310e6))),
        16.0,
    ),
    "another-library": (traced(use(NVJET, 170e-6)), traced(use(CUTLASS, 230e-6)), 1.35),
    "more-launches": (
        traced(use(count=2), calls=[launch(2)]),
        traced(use(count=20, seconds=450e-6), calls=[launch(20)]),
        10.0,
    ),
    "split": (
        traced(use("triton_poi_fused_add_mul_relu_0", 40e-6)),
        traced(*(use(f"triton_poi_fused_{name}", seconds) for name, seconds in PARTS)),
        2.3,
    ),
    "same-code-slower": (PLAIN, stencil(60e-6), 1.33),
    "stalls": (PLAIN, stencil(70e-6, instructions=4.4e6, stall_barrier=2.6), 1.5),
    "nothing": (PLAIN, PLAIN, 1.06),
    "counters-only": (Profile(counters=PLAIN.counters), Profile(counters=stencil(dram_bytes=480e6).counters), 1.8),
    "no-counters-in-head": (PLAIN, Profile(trace=PLAIN.trace, faults=[FORBIDDEN]), 1.2),
    "nothing-of-head": (PLAIN, Profile(faults=[KILLED, FORBIDDEN]), 1.2),
    "empty-trace-of-head": (
        PLAIN,
        Profile(trace=Trace(source="nsys", executions=1, wall=0, busy=0, span=0), faults=[UNSEEN]),
        1.2,
    ),
    "static-metrics-only": (
        Profile(metrics={"registers": 64.0, "peak_memory": 1e9}),
        Profile(metrics={"registers": 96.0, "peak_memory": 3e9}),
        None,
    ),
}


def written(explanation: Explanation) -> str:
    steps = [f"-> {step}" for step in explanation.next_steps]
    return "\n".join([*explanation.sentences, *steps]) + "\n"


@pytest.mark.parametrize("case", RECORDED["base"])
def test_recorded(case):
    base, head = RECORDED["base"][case], RECORDED["head"][case]
    parts = {
        "compare": explain(base, head),
        "improvement": explain(head, base),
        "base alone": explain_one(base),
        "head alone": explain_one(head),
    }
    text = "\n".join(f"[{name}]\n{written(one)}" for name, one in parts.items())
    assert text == golden(HERE / "golden" / f"explain-{case}.txt", text)


@pytest.mark.parametrize("name", MADE)
def test_made(name):
    base, head, change = MADE[name]
    text = f"[compare]\n{written(explain(base, head, change))}\n[head alone]\n{written(explain_one(head))}"
    assert text == golden(HERE / "golden" / f"explain-{name}.txt", text)


def test_no_golden_file_without_a_case():
    files = {file.stem.removeprefix("explain-") for file in (HERE / "golden").glob("explain-*.txt")}
    assert files == {*RECORDED["base"], *MADE}


def test_a_command_has_no_loop():
    base, head = (one.model_copy(update={"reports": 1}) for one in MADE["synchronises"][:2])
    assert explain(base, head).sentences[0].startswith("synchronises now: `cudaStreamSynchronize` 0 → 3")


def test_what_could_not_be_seen_is_said_and_not_compared():
    assert explain(Profile(), Profile()).sentences == ["neither base nor head was profiled"]
    assert explain_one(Profile()).sentences == ["the case was not profiled"]
    assert explain(Profile(trace=PLAIN.trace), Profile(counters=PLAIN.counters)).sentences


def test_ncu_has_nothing_to_count_of_a_case_that_only_copies():
    none = Fault(
        tool="ncu", part="counters", kind="empty", text="ncu has no kernel in range upload", remedy="see ncu's log"
    )
    base, head = (RECORDED[side]["upload-mib64"].model_copy(update={"faults": [none]}) for side in ("base", "head"))
    said = explain(base, head)
    assert said.sentences == ["the upload is pageable now: 55.4 → 12.1 GB/s"]
    lost = Profile(trace=PLAIN.trace, faults=[none])
    assert explain(PLAIN, lost).sentences[1] == "counters: not seen in head"


def test_times_of_the_host_are_not_compared_between_tools():
    other = PLAIN.trace.model_copy(update={"source": "torch.profiler", "calls": [SYNC], "wall": 1e-3})
    said = explain(PLAIN, Profile(trace=other, counters=PLAIN.counters)).sentences
    assert said[0].startswith("nothing moved")
    assert said[1] == "the traces are of nsys and torch.profiler: what the host did was not compared"


def test_a_quantity_of_one_side_is_not_compared():
    bare = Profile(trace=PLAIN.trace, counters=counters(counted()))
    for said in (explain(PLAIN, bare).sentences, explain(bare, PLAIN).sentences):
        assert not any(word in " ".join(said) for word in ("DRAM", "occupancy", "instructions"))


def test_the_measured_change_decides_what_points_its_way():
    """An allocation came and a kernel got faster: what explains a slow-down is not what explains a speed-up."""
    base = traced(use(seconds=200e-6), calls=[launch()])
    head = traced(use(seconds=100e-6, registers=32), calls=[MALLOC], wall=1e-3)
    assert explain(base, head, 4.0).sentences[0].startswith("allocates")
    assert explain(base, head, 0.5).sentences[0].startswith("`stencil`: registers 64 → 32")


SAME = {
    "torch lerp_tensor": [
        "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::"
        "<unnamed>::lerp_tensor_kernel(at::TensorIteratorBase &)::[lambda() (instance 2)]::operator ()() const::"
        "[lambda(c10::BFloat16, c10::BFloat16) (instance 1)]>(at::TensorIteratorBase &, const T1 &)>(int, T3)",
        "void at::elementwise_kernel<128, 2, void at::gpu_kernel_impl_nocast<at::<unnamed>::lerp_tensor_kernel("
        "at::TensorIteratorBase &)::[lambda() (instance 2)]::operator ()() const::[lambda(float, float) (instance 1)]>"
        "(at::TensorIteratorBase &, const T1 &)>(int, T3)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::(anonymous "
        "namespace)::lerp_tensor_kernel(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float, "
        "float)#1}>(at::TensorIteratorBase&)>(int)",
    ],
    "triton_poi_fused_add_mul": ["triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_17"],
    "add_kernel": ["add_kernel", "add_kernel_0d1d2d3de", "add_kernel_6c9a12bd44"],
    "saxpy": ["void ns::saxpy<float, (int)128>(float *, int)", "saxpy", "void ns::saxpy<float, 256>(float*, int)"],
}


@pytest.mark.parametrize("key", SAME)
def test_a_kernel_is_the_same_from_build_to_build_and_tool_to_tool(key):
    assert {identify(name).key for name in SAME[key]} == {key}


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("void pytorch_flash::flash_fwd_splitkv_kernel<X>(P)", "flash attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<X>)", "memory-efficient attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6", "cuDNN attention"),
        ("triton_tem_fused_flex_attention_0", "flex attention"),
        ("softmax_warp_forward", ""),
    ],
)  # fmt: skip
def test_fused_attention_is_known_by_name(name, attention):
    assert identify(name).attention == attention


def test_attention_that_moves_to_another_backend_is_not_left():
    base = traced(use("void pytorch_flash::flash_fwd_kernel<X>(P)"))
    head = traced(use("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::P)", 90e-6))
    assert explain(base, head).sentences[0].startswith("moved from flash attention to memory-efficient attention")


def test_an_inserted_float32_copy_of_torch_is_a_cast_and_a_plain_copy_is_not():
    names = [one.name for one in RECORDED["head"]["trajectory_resample-batch32"].trace.kernels]
    casts = {identify(name).cast for name in names} - {None}
    assert casts == {("", "float32"), ("float32", "bfloat16")}
    plain = (
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>>(int)"
    )
    assert identify(plain).cast is None
    assert identify(plain).family == "copy"


def ruled(speedup, name="void k(P)"):
    rules = [Rule(name="Occupancy", message="Of 12 warps 3 are active.", speedup=speedup)] if speedup else []
    return traced(use(name), counters=counters(counted(name, rules=rules)))


@pytest.mark.parametrize(
    ("base", "head", "told"),
    [
        (ruled(None), ruled(40.0), True),
        (ruled(10.0), ruled(40.0), True),
        (ruled(40.0), ruled(40.0), False),
        (ruled(39.0), ruled(40.0), False),
        (ruled(40.0, "void other(P)"), ruled(40.0), True),
        (traced(use("void k(P)")), ruled(40.0), False),
    ],
)
def test_a_rule_of_ncu_is_told_only_where_it_says_more_than_of_base(base, head, told):
    assert any("ncu estimates" in step for step in explain(base, head, 1.5).next_steps) is told


# ---------------------------------------------------------------- any profile

NAMES = [
    *(one.name for side in RECORDED.values() for found in side.values() for one in found.trace.kernels),
    NVJET, SGEMM, "triton_poi_fused_add_0", "k", "",
]  # fmt: skip
names = st.one_of(st.sampled_from(NAMES), st.text(max_size=40))
amounts = st.one_of(
    st.floats(0, 1e-3), st.sampled_from([0.0, 1.0, 5e-324, 1e308, 1.7e308]), st.floats(0, allow_infinity=False)
)
values = st.one_of(amounts, st.floats(allow_nan=False, allow_infinity=False))
sides = st.tuples(*[st.integers(-1, 2**31)] * 3)
VALUES = [*USUAL, "registers", "l1_hit_rate"]
uses = st.builds(
    KernelUse, name=names, count=amounts, seconds=amounts, grid=sides, block=sides,
    registers=st.none() | st.integers(0, 255), static_shared=st.none() | amounts, dynamic_shared=st.none() | amounts,
    local=st.none() | amounts,
)  # fmt: skip
kinds = ["host to device", "device to host", "device to device", "host to host", "peer to peer", "other"]
memory = st.sampled_from(["pageable", "pinned", "device", "managed", "array", "unknown"])
moves = st.builds(
    Copy, kind=st.sampled_from(kinds), source=memory, target=memory, count=amounts, bytes=amounts, seconds=amounts
)
functions = st.builds(
    Call, name=st.sampled_from(["cudaMalloc", "cudaFree", "cudaStreamSynchronize"]) | st.text(max_size=20), count=amounts,
    seconds=amounts, kind=st.sampled_from(["launch", "allocation", "synchronisation", "copy", "other"]),
)  # fmt: skip
own = st.builds(RangeUse, name=st.text(max_size=20), count=amounts, host=amounts, device=amounts)
traces = st.builds(
    Trace, source=st.sampled_from(["nsys", "torch.profiler"]), executions=st.integers(1, 20), wall=amounts, busy=amounts,
    span=amounts, kernels=st.lists(uses, max_size=5), copies=st.lists(moves, max_size=3), sets=amounts,
    calls=st.lists(functions, max_size=4), ranges=st.lists(own, max_size=2),
)  # fmt: skip
rules = st.builds(Rule, name=st.text(max_size=20), message=st.text(max_size=400), speedup=st.none() | amounts)
counted_kernels = st.builds(
    KernelCounters, name=names, count=st.integers(1, 9), seconds=amounts, grid=sides, block=sides,
    values=st.dictionaries(st.sampled_from(VALUES), values, max_size=6), rules=st.lists(rules, max_size=2),
)  # fmt: skip
all_counters = st.builds(Counters, source=st.just("ncu"), kernels=st.lists(counted_kernels, max_size=4))
faults = st.builds(
    Fault, tool=st.sampled_from(["nsys", "ncu", "torch.profiler"]), part=st.sampled_from(["trace", "counters", "code"]), text=st.text(max_size=400), remedy=st.text(max_size=40),
    kind=st.sampled_from(["absent", "forbidden", "timeout", "crash", "empty", "incomplete"]),
)  # fmt: skip
METRICS = ["registers", "peak_memory", "kernel_launches", "occupancy_theoretical", "dram_bytes"]
profile = st.builds(
    Profile, trace=st.none() | traces, counters=st.none() | all_counters, faults=st.lists(faults, max_size=2),
    metrics=st.dictionaries(st.sampled_from(METRICS), values, max_size=3),
)  # fmt: skip
ratios = st.none() | st.floats()


def whole(explanation: Explanation) -> None:
    """One line each, not too long, no number that is none."""
    assert explanation.sentences
    assert len(explanation.sentences[0]) <= FIRST
    for line in [*explanation.sentences, *explanation.next_steps]:
        assert line == " ".join(line.split())
        assert line.isprintable()
        assert 0 < len(line) <= LONGEST


@settings(deadline=None, max_examples=150)
@given(profile, profile, ratios)
def test_any_two_records_are_explained(base, head, change):
    found = explain(base, head, change)
    whole(found)
    assert found == explain(base.model_copy(deep=True), head.model_copy(deep=True), change)


@settings(deadline=None, max_examples=80)
@given(profile)
def test_any_record_is_explained_alone(head):
    whole(explain_one(head))


@settings(deadline=None, max_examples=80)
@given(traces, st.none() | all_counters, ratios)
def test_a_record_beside_itself_has_not_moved(timeline, counts, change):
    one = Profile(trace=timeline, counters=counts, metrics={"registers": 64.0})
    said = explain(one, one, change).sentences
    assert len(said) == 1
    assert said[0].startswith("nothing moved")


def test_the_machine_is_not_suspected_where_no_kernel_was_seen():
    """Where profilers had no time, the checks' own numbers stand alone: they do not tell what took eight times longer."""
    alike = Profile(metrics={"peak_memory": 1e9})
    said = explain(alike, alike, 7.8).sentences
    assert said[0] == "nothing moved in what was seen of base and head, but their kernels were not"
    assert not any("suspect" in one for one in said)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", NVJET]), amounts, amounts, amounts, values), max_size=4), st.data()
)
def test_no_text_holds_a_number_that_is_none(kernels, data):
    def record():
        scale = data.draw(st.sampled_from([1.0, 3.0, 0.2]))
        return Profile(
            trace=Trace(
                source="nsys", executions=1, wall=data.draw(amounts), busy=data.draw(amounts), span=data.draw(amounts),
                kernels=[
                    KernelUse(name=n, count=min(c, 1e9) * scale, seconds=s, grid=(1, 1, 1), block=(1, 1, 1), local=b)
                    for n, c, s, b, _ in kernels
                ],
            ),
            counters=counters(*(counted(n, s, dram_bytes=min(b, 1e300) * scale, occupancy=v) for n, _, s, b, v in kernels)),
        )  # fmt: skip

    for one in (explain(record(), record()), explain_one(record())):
        for line in [*one.sentences, *one.next_steps]:
            words = {word.strip("(),;:`").lower() for word in line.split()}
            assert not words & {"nan", "inf", "-inf", "+inf"}


def test_the_report_names_what_marked_the_executions_in_place_of_the_package():
    why = "torch.cuda.nvtx: nsys 2023.4.4 records no range of nvtx 0.2.17"
    sides = {
        "base": CaseSide(profile=Profile(trace=trace(use(), version="2023.4.4"))),
        "head": CaseSide(profile=Profile(trace=trace(use(), version="2023.4.4", marked=why))),
    }
    found = case_profile(Case(id="a", kernel="a", device="cuda", sides=sides), [], {})
    assert found.sources == ["nsys 2023.4.4", f"nsys 2023.4.4 (ranges by {why})"]


def caused(base: Profile, head: Profile) -> str:
    slower = build.case(ratio=1.5, base=build.side(profile=base), head=build.side(profile=head))
    (row,) = judge(build.results([slower])).rows
    assert row.class_ == "regression"
    return row.cause


def test_the_cause_of_a_row_is_what_moved_and_nothing_else_that_is_said():
    base, head, _ = MADE["registers"]
    assert caused(base, head).startswith("`stencil`: registers 64 → 128")
    assert caused(base, base).startswith("nothing moved")
    assert caused(base, Profile(faults=[KILLED])) == ""
    assert caused(Profile(trace=PLAIN.trace), Profile(counters=PLAIN.counters)) == ""
    several = head.model_copy(update={"reports": 3})
    assert caused(base, several) == "", "it may be of another case"
