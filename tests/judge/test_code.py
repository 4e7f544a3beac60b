"""Things that machine code explains, and things that it says nothing of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.explain.causes import explain, explain_one
from perfci.model.profile import KernelCode, KernelUse, Profile, Trace

LIBRARY = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"


def seen(*kernels, source="nsys", local=0, device=None):
    """A profile of kernels given as name, seconds, registers and the fields of their code, or None for none."""
    used, codes = [], []
    for name, seconds, registers, fields in kernels:
        used.append(KernelUse(name=name, count=1, seconds=seconds, grid=(64, 1, 1), block=(128, 1, 1), registers=registers, local=local))  # fmt: skip
        if fields is not None:
            codes.append(KernelCode(name=name, arch="sm_90", **({"registers": registers} | fields)))
    total = sum(one.seconds for one in used)
    trace = Trace(source=source, executions=10, wall=total, busy=total, span=total, kernels=used)
    return Profile(trace=trace, code=codes)


def kernel(name="_scale", seconds=50e-6, registers=64, **fields):
    return name, seconds, registers, fields


def uncoded(name="_scale", seconds=50e-6, registers=64):
    return name, seconds, registers, None


def of_code(base, head, change=None):
    return [one for one in explain(base, head, change).sentences if "machine code" in one]


HMMA, HGMMA = {"HMMA": 64}, {"HGMMA": 16}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (HMMA, {}, "`_scale` uses tensor cores no longer: 64 HMMA → no tensor instruction in its machine code"),
        ({}, HGMMA, "`_scale` uses tensor cores now: no tensor instruction → 16 HGMMA in its machine code"),
        (HGMMA, HMMA, "`_scale` uses other tensor instructions: 16 HGMMA → 64 HMMA in its machine code"),
    ],
)
def test_tensor_cores_of_a_kernel(before, after, said):
    base, head = seen(kernel(tensor=before)), seen(kernel(tensor=after, seconds=200e-6))
    assert explain(base, head, 4.0).sentences[0] == said
    steps = explain(base, head, 4.0).next_steps
    assert any("no tensor instruction" in step for step in steps) == (after == {})


def test_how_often_an_instruction_stands_in_the_code_tells_nothing():
    assert of_code(seen(kernel(tensor=HMMA)), seen(kernel(tensor={"HMMA": 32}, seconds=80e-6)), 1.6) == []


def test_local_memory_and_the_stack_where_the_timeline_does_not_tell_it():
    base = seen(kernel(stack=0), source="torch.profiler", local=None)
    head = seen(kernel(stack=128, local_loads=20, local_stores=12), source="torch.profiler", local=None)
    said = "`_scale`: loads and stores of local memory 0 → 32 in its machine code, stack 0 → 128 B a thread"
    assert of_code(base, head, 2.0) == [said]
    assert any("launch bounds" in step for step in explain(base, head, 2.0).next_steps)
    assert of_code(head, base, 0.5) == [
        "`_scale`: loads and stores of local memory 32 → 0 in its machine code, stack 128 → 0 B a thread"
    ]
    told = of_code(seen(kernel(stack=0)), seen(kernel(stack=128, local_loads=20, local_stores=12)), 2.0)
    assert "stack" not in told[0]
    assert of_code(seen(kernel(local_loads=100)), seen(kernel(local_loads=104)), 1.1) == []


def test_kernels_that_replace_each_other_where_all_of_their_code_is_known():
    base = seen(kernel("mm_tensor", tensor=HMMA), uncoded("at::sum_kernel"))
    head = seen(kernel("mm_plain", tensor={}, seconds=400e-6), uncoded("at::sum_kernel"))
    assert of_code(base, head, 4.0) == [
        "tensor cores are used no longer: HMMA in the machine code of `mm_tensor`, none in `mm_plain`"
    ]
    assert of_code(head, base, 0.2) == [
        "tensor cores are used now: HMMA in the machine code of `mm_tensor`, none in `mm_plain`"
    ]
    with_library = seen(kernel("mm_plain", tensor={}), uncoded(LIBRARY), uncoded("at::sum_kernel"))
    assert of_code(base, with_library, 4.0) == [], "a library's kernel may use them"
    assert of_code(base, seen(uncoded("at::sum_kernel")), 0.5) == []


@pytest.mark.parametrize(
    "head",
    [
        seen(uncoded(seconds=200e-6)),
        seen(kernel(seconds=200e-6), uncoded(registers=255)),
        seen(("_scale", 200e-6, 128, {"registers": 64})),
    ],
    ids=["no code", "of one configuration only", "of another build"],
)
def test_nothing_is_said_of_a_kernel_without_all_of_its_code(head):
    assert of_code(seen(kernel(tensor=HMMA)), head, 4.0) == []


def test_a_kernel_that_takes_next_to_no_time_explains_nothing():
    base = seen(kernel("long", seconds=1e-3), kernel(tensor=HMMA, seconds=5e-6))
    head = seen(kernel("long", seconds=2e-3), kernel(tensor={}, seconds=5e-6))
    assert of_code(base, head, 2.0) == []


def test_a_kernel_that_left_fused_attention_is_told_first():
    base = seen(uncoded("flash_fwd_kernel", seconds=1e-3), kernel(tensor=HMMA, seconds=50e-6))
    head = seen(uncoded("softmax_kernel", seconds=4e-3), kernel(tensor={}, seconds=100e-6))
    said = explain(base, head, 4.0).sentences
    assert said[0].startswith("left flash attention")
    assert any("no longer" in one for one in said[1:])


def test_one_side_alone_tells_tensor_use_of_its_longest_kernels():
    head = seen(kernel("mm", tensor=HMMA, seconds=80e-6), kernel("add", seconds=19e-6), kernel("tiny", seconds=1e-6))
    assert [one for one in explain_one(head).sentences if "machine code" in one] == [
        "`mm` (80.0 % of the device time) has 64 HMMA in its machine code",
        "`add` (19.0 % of the device time) has no tensor instruction in its machine code",
    ]
    assert not any("machine code" in one for one in explain_one(seen(uncoded(LIBRARY))).sentences)


CODES = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "tensor": st.dictionaries(st.sampled_from(["HMMA", "IMMA", "HGMMA"]), st.integers(1, 99), max_size=2),
            "local_loads": st.integers(0, 200),
            "stack": st.one_of(st.none(), st.integers(0, 4096)),
        }
    ),
)
KERNELS = st.lists(
    st.tuples(st.sampled_from(["a_k", "b_k", LIBRARY]), st.floats(0, 1e-3), st.sampled_from([32, 64]), CODES),
    max_size=4,
)


@given(KERNELS)
def test_the_same_code_explains_nothing(kernels):
    assert of_code(seen(*kernels), seen(*kernels), 1.2) == []


@given(KERNELS, KERNELS)
def test_tensor_cores_are_told_only_of_kernels_with_code(base, head):
    for one in of_code(seen(*base), seen(*head), 1.2):
        assert "nvjet" not in one or any(name == LIBRARY and code for name, _, _, code in [*base, *head])
