"""Measurements in one small file: the common form of what was recorded once and of what `collect` records live.

Arrays, by key:

- `pairs|kernel|timing mode|slow`: worker pairs of perfci, shape (pairs, 8): per side (base, head) the worker value in
  seconds, the SM clock in hertz, and the two sums of `perfci.model.results.Clock`, variance and covariance, of
  BLOCKS blocks. The clock is NaN where it was not measured.
- `workers|kernel|timing mode|slow`: one number of each worker in seconds, shape (pairs, 2): base, head. The median of
  its samples where these were recorded, else its worker value.
- `samples|kernel|timing mode|variant`: samples in seconds of separate processes, shape (processes, samples), filled up
  with NaN. Variants: `base`, or a nominal slow-down such as `0.02`; `again` where the same code was timed twice in
  each process.
- `verdicts|kernel|slow`: what nvbench-compare-robust said, shape (base processes, head processes), indices into
  VERDICTS; 255 where it was not asked.

`slow` is the nominal slow-down: "0" or "0.01". `meta` holds facts of the machine, realised slow-downs, and the
seconds that a decision cost.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RECORDED = Path(__file__).with_name("data") / "h200.npz"
KERNELS = ["add64k", "gemm1024", "resample", "attention", "copy512m", "gemm8192"]
SLOW = [0.0, 0.005, 0.01, 0.02, 0.05]
VERDICTS = ["SAME", "FAST", "SLOW", "AMBG", "????"]
UNASKED = 255


@dataclass
class Recording:
    """Arrays by key, and `meta`; every value as described above."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def get(self, *key: object) -> NDArray[Any] | None:
        """The array of `kind, kernel, …`, None where there is none."""
        return self.arrays.get("|".join(map(text, key)))

    def put(self, array: NDArray[Any], *key: object) -> None:
        """Keep an array under `kind, kernel, …`."""
        self.arrays["|".join(map(text, key))] = array

    def modes(self, kind: str) -> list[str]:
        """Timing modes under which there are arrays of this kind, in order of appearance."""
        return list(dict.fromkeys(key.split("|")[2] for key in self.arrays if key.startswith(f"{kind}|")))

    @property
    def kernels(self) -> list[str]:
        """Kernels that have any data, short ones first."""
        have = dict.fromkeys(key.split("|")[1] for key in self.arrays)
        return [name for name in KERNELS if name in have] + [name for name in have if name not in KERNELS]

    def save(self, path: Path) -> None:
        """Write everything, as one file that is whole or not there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez_compressed(part, allow_pickle=False, meta=np.array(json.dumps(self.meta)), **self.arrays)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Read what `save` wrote."""
        with np.load(path) as file:
            arrays = {key: file[key] for key in file.files if key != "meta"}
            return cls(arrays, json.loads(str(file["meta"])))


def text(part: object) -> str:
    """A part of a key: slow-downs as `0`, `0.005`, `0.05`."""
    return f"{part:g}" if isinstance(part, float) else str(part)
