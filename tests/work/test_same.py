"""The proof that base and head give the GPU the same work, over what an H200 recorded and over what never was."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.work.code import same_function
from perfci.work.lists import WorkList
from perfci.work.same import Recorded, rows, walk, why_not_same

from .recorded import NOT_SHOWN, SAME, case, documents, images, recorded

PLANTED = {
    "another_behind": "what else is compiled in its file differs",
    "another_kernel": "what else is compiled in its file differs",
    "architecture": "function attribute PTX version 90 → 80",
    "block": "block (128, 1, 1) → (256, 1, 1)",
    "bounds": "most threads 1024 → 128",
    "callee": "its machine code differs",
    "cluster": "launch attribute cluster",
    "constant": "registers 14 → 16",
    "constant_memory": "constant",
    "cooperative": "launch attribute cooperative",
    "copied_to_symbol": "variable",
    "device_table": "global",
    "fast_math": "registers 23 → 16",
    "grid": "grid (256, 1, 1) → (512, 1, 1)",
    "lines": "the kind of build differs",
    "host_node": "host: such nodes are not compared",
    "memset": "value 0 → 1",
    "memset_size": "width 4096 → 8192",
    "most_shared": "most dynamic shared memory 16384 → 32768",
    "printf": "",
    "priority": "launch attribute priority",
    "registers": "registers 26 → 24",
    "shared": "bytes of dynamic shared memory 0 → 1024",
    "value": "parameter 3, bytes from 0 00000040 → 00004040",
    "copied": "kind kernel → copy",
    "dtype": "function",
    "extra_copy": "allocation 1 → 2",
    "from_host": "allocation 0 of 262144 bytes holds other values",
    "index": "base differs from process to process",
    "slice": "another kernel",
    "streams": "allocation 2 → 0",
    "tf32": "another kernel, `xmma 64x128x32`",
    "transposed": "function",
    "triton_block": "grid (64, 1, 1) → (128, 1, 1)",
    "triton_value": "machine code",
    "triton_warps": "block (128, 1, 1) → (256, 1, 1)",
    "workspace": "allocation 1: 8192 → 16384 bytes",
}


def answer(lists: dict[str, list[dict]]) -> str:
    return why_not_same(recorded(lists["base"]), recorded(lists["head"]), same_function)


def test_every_recorded_case_is_one_of_them() -> None:
    assert documents()["cases"].keys() == SAME | NOT_SHOWN | PLANTED.keys()


@pytest.mark.parametrize("name", sorted(SAME))
def test_the_same_work_is_proved(name: str) -> None:
    assert answer(case(name)) == ""


@pytest.mark.parametrize("name", sorted(NOT_SHOWN))
def test_what_is_not_shown_to_be_padding_is_data(name: str) -> None:
    assert "differs from process to process: " in answer(case(name)) and "parameter " in answer(case(name))


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_change_is_named(name: str) -> None:
    why = answer(case(name))
    assert why
    assert PLANTED[name] in why


def leaves(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all values of a document that are no containers; of empty containers the container's own."""
    if isinstance(value, dict) and value:
        return [leaf for key, one in value.items() for leaf in leaves(one, (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for key, one in enumerate(value) for leaf in leaves(one, (*path, key))]
    return [path]


def at(document: Any, path: tuple) -> Any:
    for key in path:
        document = document[key]
    return document


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and value and set(value) <= set("0123456789abcdef") and len(value) % 2 == 0:
        return f"{int(value[:2], 16) ^ 1:02x}{value[2:]}"
    return f"{value}x" if isinstance(value, str) else value


def no_data(document: dict, path: tuple) -> bool:
    """Whether a value may differ: it says only what is compared, or which machine code, which is another test."""
    return (
        path[-1] in ("own", "image", "title")
        or {"host", "unwritten"} & set(path)
        or at(document, path) in ([], {}, None)
    )


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(sorted(SAME)), st.data())
def test_a_difference_anywhere_is_none_of_the_same_work(name: str, data: st.DataObject) -> None:
    """Base against itself, but for one value of head that is another in both of its processes."""
    lists = {"base": case(name)["base"], "head": copy.deepcopy(case(name)["base"])}
    first = lists["head"][0]
    path = data.draw(st.sampled_from(leaves(first)))
    if no_data(first, path):
        return
    parameter = at(first, path[:-1]) if path[-1] == "bytes" and "parameters" in path else None
    for one in lists["head"]:
        at(one, path[:-1])[path[-1]] = changed(at(one, path))
    if parameter is not None and (
        0 in parameter.get("unwritten", []) or set(parameter.get("host", [])) & set(range(-7, 1))
    ):
        return  # the first byte is padding
    try:
        assert answer(lists) != "", path
    except ValueError:  # of pydantic: no work list any more
        return


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["triton_same", "softmax", "streams_same"]), st.data())
def test_what_is_left_out_is_a_difference(name: str, data: st.DataObject) -> None:
    lists = {"base": case(name)["base"], "head": copy.deepcopy(case(name)["base"])}
    places = [path for path in leaves(lists["head"][0]) if isinstance(path[-1], int)]
    lengths = {path[:-1] for path in places if path[:-1] and not {"host", "unwritten"} & set(path)}
    path = data.draw(st.sampled_from(sorted(lengths, key=str)))
    try:
        for one in lists["head"]:
            at(one, path).pop()
        assert answer(lists) != "", path
    except ValueError:
        return


def simple(**more: Any) -> dict:
    node = {
        "kind": "kernel", "function": "f", "image": "ab" * 32, "own": False, "grid": [1, 1, 1], "block": [32, 1, 1],
        "shared": 0, "launch": {}, "attributes": {"registers": 10},
        "parameters": [{"offset": 0, "bytes": "00" * 16, "places": [[0, 0, 0, 512]]}],
    } | more  # fmt: skip
    return {
        "nodes": [node], "edges": [], "memory": [{"kind": "tensor", "bytes": 8, "digest": "1"}], "variables": [],
        "context": {}, "settings": {}, "executions": 1, "unread": [],
    }  # fmt: skip


def of(*lists: dict) -> list[Recorded]:
    works = [WorkList.model_validate(one) for one in lists]
    return [Recorded(work, {node.image: b"" for _, node in walk(work) if node.image}) for work in works]


def told(base: list[dict], head: list[dict]) -> str:
    return why_not_same(of(*base), of(*head), lambda base, head, name: "other code")


def parameter(held: str, **more: Any) -> dict:
    return {"parameters": [{"offset": 0, "bytes": held, "places": [], **more}]}


def test_one_process_proves_nothing() -> None:
    assert "one process" in told([simple()], [simple(), simple()])
    assert told([simple(), simple()], [simple(), simple()]) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unread": ["kernel f: it is not known which machine code was loaded for it"]}, "base: kernel f: it is not"),
        ({"memory": [{"kind": "managed", "bytes": 8, "digest": ""}]}, "allocation 0 is managed memory"),
        ({"memory": [{"kind": "freed", "bytes": 8, "digest": ""}]}, "allocation 0 is freed memory"),
        ({"memory": [{"kind": "tensor", "bytes": 8, "digest": ""}]}, "not known what allocation 0 holds"),
        ({"memory": [{"kind": "tensor", "bytes": 8, "digest": "1:names addresses"}]}, "allocation 0 holds addresses"),
        ({"variables": [{"image": "ab" * 32, "name": "t", "bytes": 4, "digest": ""}]}, "what the variable t holds"),
    ],
)
def test_what_is_not_known_is_not_the_same(change: dict, words: str) -> None:
    lists = [simple() | change] * 2
    assert words in told(lists, lists)


def test_code_that_was_not_recorded_is_not_the_same() -> None:
    works = of(simple(own=True), simple(own=True))
    assert "was not recorded" in why_not_same(works, [Recorded(one.work, {}) for one in works], same_function)
    assert "was not recorded" in told([simple(image="")] * 2, [simple(image="")] * 2)
    works = of(simple(), simple())
    without = [Recorded(one.work, {}) for one in works]
    assert why_not_same(without, without, same_function) == "", "a library's need not be: it is the same file"
    other = [Recorded(one.work, {}) for one in of(*[simple(image="cd" * 32)] * 2)]
    assert "it is of another library" in why_not_same(without, other, same_function)
    assert "parameters of kernel `f` were not recorded" in told([simple(parameters=None)] * 2, [simple()] * 2)


PLACE = {"kind": 2, "place": [0, 0, 512], "x": 0, "y": 0, "z": 0, "lod": 0, "pitch": 0, "height": 0}
COPY = {"kind": "copy", "source": PLACE, "target": PLACE, "width": 8, "rows": 1, "depth": 1}


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"kind": "host"}, "host: such nodes are not compared"),
        ({"kind": "conditional"}, "conditional: such nodes are not compared"),
        ({"kind": "made up"}, "made up: such nodes are not compared"),
        ({"kind": "child graph"}, "the graph of child graph were not recorded"),
        ({"kind": "empty", "graph": {"nodes": [], "edges": []}}, "holds a graph and is none"),
        (COPY | {"source": PLACE | {"place": []}}, "memory that the driver does not know"),
        (COPY | {"width": None}, "the width of copy were not recorded"),
        (COPY | {"target": [0, 0, 512]}, "memory that the driver does not know"),
        (COPY, ""),
    ],
)
def test_nodes_are_whole_or_not_compared(node: dict, words: str) -> None:
    lists = [simple() | {"nodes": [node]}] * 2
    why = told(lists, lists)
    assert words in why
    assert bool(why) == bool(words)


def test_padding_of_a_librarys_kernel_is_no_data() -> None:
    """It is what every process shows that nobody writes; of own code, that is a difference."""
    base = [simple(**parameter(held, unwritten=[1])) for held in ("00112233", "00552233")]
    head = [simple(**parameter(held, unwritten=[1, 2])) for held in ("00992233", "00772233")]
    assert told(base, head) == ""
    assert "bytes from 0 00__2233 → 00__2244" in told(base, [simple(**parameter("00992244", unwritten=[1]))] * 2)
    written = [base[0], simple(**parameter("00552233"))]
    assert "parameter 0, bytes from 0 00112233 → 00552233" in told(written, head), "one process writes it"
    own = [simple(own=True, **parameter(held, unwritten=[1])) for held in ("00112233", "00552233")]
    assert "base differs from process to process" in told(own, own[:1] * 2)


def test_padding_is_none_where_another_image_may_read_it() -> None:
    base = [simple(**parameter(held, unwritten=[1])) for held in ("00112233", "00552233")]
    head = [simple(image="cd" * 32, **parameter("00112233", unwritten=[1]))] * 2
    assert "differs from process to process" in told(base, head)


def test_an_address_of_the_host_is_no_data_where_each_process_has_another() -> None:
    """A number within the heap, such as a length, or beside half an address, is the same in both processes of a side."""
    first, second, third = ([simple(**parameter(f"{n}0" * 8, host=[0]))] for n in (1, 2, 3))
    assert told(first + second, third + first) == ""
    assert "parameter 0, bytes from 0" in told(first * 2, second * 2)
    assert "head differs from process to process" in told(first * 2, second + third)
    assert "differs from process to process" in told(first + second, [*third, simple(**parameter("40" * 8))])


def test_what_differs_within_a_side_is_no_work_to_compare() -> None:
    changing = [simple(grid=[1, 1, 1]), simple(grid=[2, 1, 1])]
    assert "head differs from process to process: node 1 of 1, kernel `f`: grid" in told([simple()] * 2, changing)


def test_nodes_of_child_graphs_and_what_waits_for_what_count() -> None:
    inner = {"nodes": [*simple()["nodes"], *simple()["nodes"]], "edges": []}
    base = simple() | {"nodes": [{"kind": "child graph", "graph": inner}]}
    head = copy.deepcopy(base)
    head["nodes"][0]["graph"]["edges"] = [[0, 1, "00" * 8]]
    assert told([base] * 2, [base] * 2) == ""
    assert told([base] * 2, [head] * 2) == "nodes wait for others"
    head["nodes"][0]["graph"]["nodes"][1]["block"] = [64, 1, 1]
    assert "node 3 of 3, kernel `f`: block" in told([base] * 2, [head] * 2)


def test_rows_show_child_graphs_within_theirs() -> None:
    work = simple() | {"nodes": [{"kind": "child graph", "graph": {"nodes": simple()["nodes"], "edges": []}}]}
    assert rows(WorkList.model_validate(work)) == ["child graph", "  kernel `f` 1 × 1 × 1 blocks of 32 × 1 × 1"]


def test_images_of_the_cases_are_there() -> None:
    """So that machine code is really compared where sides have images of their own."""
    for name in ("rebuilt", "triton_same", "another_kernel"):
        for one in recorded([*case(name)["base"], *case(name)["head"]]):
            assert all(images(one.work).values()), json.dumps(name)


def test_kernels_have_short_names_for_people() -> None:
    title = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
    base, head = simple(function="_Zadd", title=title), simple(function="_Zmul", title=title.replace("_add", "_mul"))
    assert rows(WorkList.model_validate(base)) == ["kernel `add` 1 × 1 × 1 blocks of 32 × 1 × 1"]
    assert told([base] * 2, [head] * 2) == "node 1 of 1, kernel `add`: another kernel, `mul`"
    assert "function _Zadd → _Zadd2" in told([base] * 2, [simple(function="_Zadd2", title=title)] * 2)


def using(*images: str, tables: dict[str, str], function: str = "f", own: bool = True, name: str = "table") -> dict:
    """A list of kernels of these images, which have a variable each."""
    node = simple(own=own, function=function)["nodes"][0]
    variables = [{"image": one * 32, "name": name, "bytes": 4, "digest": held} for one, held in tables.items()]
    return simple() | {"nodes": [{**node, "image": one * 32} for one in images], "variables": variables}


def rebuilt(base: dict, head: dict) -> str:
    """The answer where all code that is compared is the same."""
    return why_not_same(of(base, base), of(head, head), lambda *_: "")


def test_variables_of_one_name_are_each_of_their_image() -> None:
    """Two libraries may have one each: where they change places, what the kernels read does."""
    held = {"ab": "1", "cd": "2"}
    base = using("ab", "cd", "ab", tables=held)
    assert rebuilt(base, base) == ""
    assert rebuilt(base, using("ab", "cd", "ab", tables={"ab": "2", "cd": "1"})) == "the variable table is not the same"
    other = using("ab", "cd", "cd", tables=held)
    assert rebuilt(base, other) == "the images whose variables are read are used in another order"
    assert rebuilt(base, using("01", "23", "01", tables={"01": "1", "23": "2"})) == ""
    assert rebuilt(using("ab", "ab", tables={}), using("ab", "ab", tables=held | {"ab": "1"})) != ""
    plain = rebuilt(using("ab", "01", "cd", tables=held), using("ab", "23", "cd", tables=held))
    assert plain == "", "images without variables have no part in it"
    assert rebuilt(base, using("01", "23", "23", tables={"01": "1", "23": "2"})) != ""


HIDDEN = "_ZN37_INTERNAL_{}_7_cuda_cu_012c2c226hiddenEPf"


def test_names_of_files_in_two_folders_are_the_same_in_two_images_alone() -> None:
    """In one image they are two functions, or two variables."""
    names = [HIDDEN.format(digest) for digest in ("7cba65fd", "d1a69025")]
    base, head = (using("ab", tables={"ab": "1"}, function=name, name=name) for name in names)
    assert "another kernel" in rebuilt(base, head)
    head = using("cd", tables={"cd": "1"}, function=names[1], name=names[1])
    assert rebuilt(base, head) == ""
    left, right = (using("ab", tables={}, function=name, own=False) for name in names)
    assert "another kernel" in rebuilt(left, right), "a library's, whose code is not read"
    head = using("ab", tables={"ab": "1"}, function=names[0], name=names[1])
    assert rebuilt(base, head) == f"the variable {names[0]} is not the same"
    head = using("cd", tables={"cd": "2"}, function=names[1], name=names[1])
    assert "is not the same" in rebuilt(base, head)
