"""The steps that a tracer watches, as in a timed process."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from typing import Any

from .. import bench, discover
from ..gpu import give_back

LATE = "it is not known in time what it reads in as many executions as a pair has"


def prove(server: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Import the suite files `first`, check and execute `cases`, and import the files `last`, whose code differs.

    `cases` of the answer: why each was not executed as often as in a pair, or empty. `mark` is named before each of
    these steps and after. Cases end after `seconds`.
    """
    sys.dont_write_bytecode = True  # as in workers that are timed
    end = time.monotonic() + message["seconds"]
    root = server.setup["tree"]
    for number, file in enumerate(message["first"]):
        os.access(message["mark"], os.F_OK)
        if number == 0:
            bench.seed_generators(message["imports"])  # behind the mark: torch may name files
        for kernel in discover.discover(root, [file])["kernels"]:
            server.kernels.setdefault(kernel.name, kernel)
    os.access(message["mark"], os.F_OK)
    gc.collect()
    gc.freeze()  # as in workers that are timed
    cases = []
    for case in message["cases"]:
        if time.monotonic() > end:
            cases.append(LATE)
            continue
        if case["kernel"] not in server.kernels:
            cases.append(f"{case['kernel']} is declared by no file that is the same")
            continue
        try:
            cases.append(_executed(server, case, message, end))
        except Exception as error:  # its own alone; where it is none of the tracer's, the check says so
            cases.append(f"it failed as it was traced: {type(error).__name__}: {error}")
    os.access(message["mark"], os.F_OK)
    discover.discover(root, message["last"])
    os.access(message["mark"], os.F_OK)
    return {"cases": cases}


def _executed(server: Any, case: dict[str, Any], message: dict[str, Any], end: float) -> str:
    checked = server.do_check(dict(case, seed=message["seed"], fuzz=message["fuzz"]))
    if not checked["ok"]:
        return f"its check failed as it was traced: {checked['text']}"
    batch, samples, cuda = 1, message["samples"], case["device"] == "cuda"
    for number, (seed, blocks) in enumerate(zip(message["draws"], message["blocks"])):
        if cuda:
            one = bench.prepare(server.kernels[case["kernel"]], case["params"], "cuda", seed, number, False)
            for _ in range(blocks * (samples + 1)):
                one.fn()
            sys.modules["torch"].cuda.synchronize()
            one.bench.release()
            del one
            gc.collect()
            give_back()
        else:
            server.do_open(dict(case, mode="cpu", sets=1, seed=seed, placement=number))
            if number == 0:
                seconds = server.sampler.cpu_seconds(server.setup["threads"])
                batch = math.ceil(message["sample_time"] / seconds)
                samples = max(1, min(samples, round(message["block_time"] / (seconds * batch))))
            for _ in range(blocks):
                if time.monotonic() < end:
                    server.do_block({"batch": batch, "samples": samples, "bracket": True})
            after = server.do_close({"verify": number == len(message["draws"]) - 1})
            if not after["ok"]:
                return f"its check failed as it was traced: {after['text']}"
        if time.monotonic() > end:
            return LATE
    return ""
