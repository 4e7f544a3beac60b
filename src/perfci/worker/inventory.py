"""The inventory of the interpreter of the code under test, for `perfci doctor`: runs there by `python -c`.

One JSON object a line, `{"topic": …}`, flushed at once: a crash leaves those before.
"""

import json
import os
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from typing import Any

TOLD = 3
"""Standard output, moved out of the way of what packages print."""


def _say(topic: str, **facts: Any) -> None:
    os.write(TOLD, (json.dumps(dict(facts, topic=topic)) + "\n").encode())


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return "{}: {}".format(type(error).__name__, lines[0].strip() if lines else "")[:300]


def _torch() -> Any:
    _say("begin", what="import torch")
    try:
        import torch
    except ModuleNotFoundError as error:
        _say("torch", there=(error.name or "").split(".")[0] != "torch", error=_short(error))
        return None
    except BaseException as error:
        _say("torch", there=True, error=_short(error))
        return None
    activities: Any = getattr(torch.profiler, "supported_activities", set)()
    _say(
        "torch",
        there=True,
        error="",
        version=torch.__version__,
        cuda=torch.version.cuda,
        profiler=any(str(one).endswith("CUDA") for one in activities),
    )
    return torch


def _cuda(torch: Any) -> None:
    _say("begin", what="torch.cuda")
    facts: "dict[str, Any]" = {"error": "", "ran": False}
    try:
        if torch.version.cuda:
            torch.cuda.init()
        if torch.cuda.is_available():
            facts["name"] = torch.cuda.get_device_name(0)
            facts["ran"] = float((torch.ones(1, device="cuda") + 1).item()) == 2.0
    except BaseException as error:
        facts["error"] = _short(error)
    _say("cuda", **facts)


def main() -> None:
    """Report everything, most important first."""
    # The folder that perfci runs in must not stand in for a package.
    sys.path[:] = [entry for entry in sys.path if entry]
    warnings.simplefilter("ignore")
    os.dup2(1, TOLD)
    os.dup2(2, 1)
    _say("python", version=".".join(map(str, sys.version_info[:3])))
    torch = _torch()
    if torch is not None:
        _cuda(torch)
    with suppress(metadata.PackageNotFoundError):
        _say("nvtx", version=metadata.version("nvtx"))
    _say("end")


if __name__ == "__main__":
    main()
