"""What the captures of an H200 hold, by plain sqlite3 and csv, with nothing of perfci.

`python -m tests.measure.imported.independent` writes the table that is committed as tests/data/import/seeds.csv.
"""

import csv
import lzma
import sqlite3
import tempfile
from collections import defaultdict
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
ITEMS = 32
"""Samples that an execution is said to have."""
SEEDS: dict[str, tuple[str, str, float]] = {
    "sm_throughput": ("min", "85%", 85.0), "dram_throughput": ("min", "80%", 80.0), "occupancy": ("min", "70%", 70.0),
    "l1_hit_rate": ("min", "85%", 85.0), "dram_bandwidth": ("min", "2TB/s", 2e12), "tensor_active": ("min", "70%", 70.0),
    "device_busy": ("min", "60%", 60.0), "launch_overhead": ("max", "5%", 5.0), "time": ("max", "5ms", 5e-3),
    "throughput": ("min", "5000samples/s", 5e3),
}  # fmt: skip
"""The limits of scripts that judge a report of Nsight: metric → kind, as it is written, in the table's unit."""
SUMS = ("kernel_launches", "device_time")
"""Without a limit there."""
COUNTED = {
    "sm_throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_throughput": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1_hit_rate": "l1tex__t_sector_hit_rate.pct",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}


def unpacked(folder: Path) -> dict[str, Path]:
    """The captures, unpacked: `nsys_base`, `ncu_head` …"""
    packed = {
        **{f"nsys_{side}": DATA / "nsys" / f"{side}.sqlite.xz" for side in ("base", "head")},
        **{f"ncu_{side}": DATA / "ncu" / f"ncu_{side}.csv.xz" for side in ("base", "head")},
    }
    for name, path in packed.items():
        (folder / f"{name}{Path(path.stem).suffix}").write_bytes(lzma.decompress(path.read_bytes()))
    return {name: folder / f"{name}{Path(path.stem).suffix}" for name, path in packed.items()}


def by_sql(path: Path) -> dict[str, dict[str, float]]:
    """Range → launches, device time and wall time of an execution, by plain SQL: calls in the range, and their work."""
    db = sqlite3.connect(path)

    def done(kind: str, *within: int) -> list[tuple[int, int]]:
        sql = f"SELECT w.start, w.end FROM CUPTI_ACTIVITY_KIND_{kind} w JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        sql += "ON r.correlationId = w.correlationId WHERE r.start >= ? AND r.end <= ? AND r.globalTid = ?"
        return db.execute(sql, within).fetchall()

    def called(like: str, *within: int) -> list[tuple[int, int]]:
        sql = "SELECT r.start, r.end FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId "
        sql += "WHERE s.value LIKE ? AND r.start >= ? AND r.end <= ? AND r.globalTid = ?"
        return db.execute(sql, (like, *within)).fetchall()

    found = {}
    for (name,) in db.execute(
        "SELECT DISTINCT coalesce(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "WHERE n.eventType = 59"
    ).fetchall():
        ranges = db.execute(
            "SELECT n.start, n.end, n.globalTid FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "WHERE n.eventType = 59 AND coalesce(n.text, s.value) = ? ORDER BY n.start",
            (name,),
        ).fetchall()
        launches, seconds, wall, ended, union, done_until = 0, 0.0, 0.0, 0, 0.0, 0
        calling: set[tuple[int, int]] = set()
        busy: set[tuple[int, int]] = set()
        for start, end, tid in ranges:
            work = done("KERNEL", start, end, tid)
            copies = done("MEMCPY", start, end, tid)
            sets = done("MEMSET", start, end, tid)
            calling |= {*called("cu%Launch%", start, end, tid)}
            busy |= {*work, *copies, *sets}
            launches += len(work)
            seconds += sum(last - first for first, last in work) * 1e-9
            last = max([end, *(last for _, last in work), *(last for _, last in copies)])
            wall += max(0, last - max(start, ended)) * 1e-9  # the next begins before the last one's work is done
            ended = max(ended, last)
            for first, last in sorted(work + copies + sets):
                union += max(0, last - max(first, done_until)) * 1e-9
                done_until = max(done_until, last)
        n = len(ranges)
        moments = {moment for first, last in calling for moment in range(first, last)}  # nanosecond by nanosecond
        for first, last in busy:
            moments -= set(range(first, last))
        found[name] = {
            "kernel_launches": launches / n,
            "device_time": seconds / n,
            "time": wall / n,
            "launch_overhead": 100 * len(moments) * 1e-9 / wall,
            "device_busy": 100 * union / wall,
            "throughput": ITEMS * n / wall,
        }
    return found


def by_csv(path: Path) -> dict[str, dict[str, float]]:
    """Range → what ncu counted, by plain CSV: sums, and percentages weighted by the kernels' times."""
    names, _, *rows = csv.reader(path.open(encoding="utf-8"))
    (at,) = [
        n
        for n, name in enumerate(names)
        if name.endswith("Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg")
    ]
    launches: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        told = dict(zip(names, row, strict=True))
        asked = {**COUNTED, "seconds": "gpu__time_duration.sum", "dram_bytes": "dram__bytes.sum"}
        launches[row[at].split(":")[1]].append({name: float(told[key].replace(",", "")) for name, key in asked.items()})
    found = {}
    for name, some in launches.items():
        nanoseconds = sum(one["seconds"] for one in some)
        size = sum(one["dram_bytes"] for one in some)
        found[name] = {"dram_bytes": size, "dram_bandwidth": size / nanoseconds * 1e9}
        for metric in COUNTED:
            found[name][metric] = sum(one[metric] * one["seconds"] for one in some) / nanoseconds
    return found


def table(files: dict[str, Path]) -> list[tuple[str, str, str, float]]:
    """Side, case, metric and value of all that the limits of SEEDS are on, and of SUMS."""
    rows = []
    for side in ("base", "head"):
        sql, counted = by_sql(files[f"nsys_{side}"]), by_csv(files[f"ncu_{side}"])
        for case in sorted(sql):
            known = sql[case] | counted.get(case, {})
            rows += [(side, case, metric, known[metric]) for metric in (*SEEDS, *SUMS) if metric in known]
    return rows


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as folder, (DATA / "import" / "seeds.csv").open("w", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["side", "case", "metric", "value"])
        writer.writerows((*row[:3], repr(row[3])) for row in table(unpacked(Path(folder))))


if __name__ == "__main__":
    main()
