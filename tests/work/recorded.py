"""Work lists that `perfci explain` recorded on an NVIDIA H200 (torch 2.11, CUDA 13) of the cases of
`tests/e2e/gpu/test_gpu_work.py`: two processes of each side. Images of torch's own libraries are left out."""

import json
import lzma
from functools import cache
from pathlib import Path

from perfci.work.lists import WorkList
from perfci.work.same import Recorded, walk

FILE = Path(__file__).parent.parent / "data" / "work" / "h200.json.xz"
SAME = {
    "comment", "docstring", "rebuilt", "indirect", "triton_same", "streams_same", "product", "product_bf16", "softmax",
}  # fmt: skip
NOT_SHOWN = {"index_same", "sum", "sort", "embedding"}
"""The same, but nothing filled the stack then, which would show their padding."""


@cache
def documents() -> dict:
    found = json.loads(lzma.decompress(FILE.read_bytes()))
    for lists in (one for sides in found["cases"].values() for one in sides.values()):
        for work in lists:
            work["settings"] = {"the environment": "0" * 64}  # which were not recorded then
            for node in work["nodes"]:
                for parameter in node.get("parameters") or []:
                    parameter["unwritten"] = parameter.pop("loose", [])  # bytes that differed from capture to capture
    return found


def images(work: WorkList) -> dict[str, bytes]:
    held = documents()["images"]
    return {node.image: bytes.fromhex(held.get(node.image, "")) for _, node in walk(work) if node.image}


def recorded(lists: list[dict]) -> list[Recorded]:
    works = [WorkList.model_validate(one) for one in lists]
    return [Recorded(work, images(work)) for work in works]


def case(name: str) -> dict[str, list[dict]]:
    return documents()["cases"][name]
