"""The nsys, driver and GPUs of an export."""

from perfci.model.text import escaped, version_numbers
from perfci.profilers.cuda import gpus
from perfci.profilers.nsys.events import Events
from perfci.profilers.nsys.export import fault
from perfci.system.gpu import cuda_version

SCHEMA = 3
"""The newest major version tried: nsys 2022.4 to 2025.6."""


def version_of(events: Events) -> str:
    """Return the exporting nsys's version; note an unknown schema."""
    facts = [events.facts(table, "EXPORT_%_VERSION") for table in ("EXPORT_META_DATA", "META_DATA_EXPORT")]
    said = {name: escaped(value) for own in facts for name, value in own}
    schema = said.get("EXPORT_SCHEMA_VERSION", "")
    major = schema.partition(".")[0]
    if major.isascii() and major.isdigit() and len(major) < 6 and int(major) > SCHEMA:
        text = f"it is of schema {schema}, and perfci knows those up to {SCHEMA}: it is read by its columns"
        events.general.append(fault("incompatible", text, "update perfci where a value seems wrong", aside=True))
    return said.get("EXPORT_PRODUCT_VERSION", "")


def driver_cuda(events: Events) -> str:
    """Return the traced driver's CUDA version, such as `13.0`, or empty."""
    found = next((value for _, value in events.facts("TARGET_INFO_SYSTEM_ENV", "CudaDriverVersion")), "")
    if not (found.isascii() and found.isdigit() and len(found) < 8):
        return ""
    return cuda_version(int(found)) if int(found) >= 1000 else ""  # 1000 · major + 10 · minor


def gpus_of(events: Events) -> tuple[str, tuple[int, int] | None]:
    """Return what `cuda.gpus` tells."""
    has = events.columns("TARGET_INFO_GPU")
    if "name" not in has:
        return "", None
    told = [f"x.{column}" if column in has else "NULL" for column in ("smMajor", "smMinor")]
    return gpus(events.rows(f"SELECT x.name, {', '.join(told)} FROM t.TARGET_INFO_GPU x LIMIT 100"))


_CUDA = {(2022, 4): 11, (2023, 4): 12, (2025, 3): 13}
"""nsys → the major version of the CUDA toolkits that ship it and later ones (NVIDIA's redistributable manifests)."""


def behind(version: str, driver_cuda: str) -> str:
    """Return in one line why an nsys may lose events of a driver, or empty.

    `driver_cuda`: such as `13.0`, or empty. Seen with nsys 2023.4 on a driver of CUDA 13: its importer meets a function
    that CUDA 12.4 did not have, and drops all that follows.
    """
    release, driver = version_numbers(version)[:2], version_numbers(driver_cuda)
    known = [cuda for nsys, cuda in _CUDA.items() if nsys <= release]
    if not known or not driver or known[-1] >= min(driver[0], max(_CUDA.values())):
        return ""
    return f"it is of CUDA {known[-1]}, older than CUDA {driver_cuda} of the driver: it may lose events"
