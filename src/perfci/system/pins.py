"""The contents of perfci's images, from pins.toml.

`python -m perfci.system.pins VARIANT` prints arguments of `docker build`, quoted for xargs.
"""

import functools
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from perfci import __version__
from perfci.model.base import Document, UsageError

FILE = Path(__file__).with_name("pins.toml")
DEFAULT = "cuda13"
VARIABLE = "PERFCI_IMAGE"
"""Set inside an image: its variant."""

Version = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+){2}$")]


class Variant(Document):
    """One image; pins.toml says what the fields are."""

    base: str
    digest: Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")]
    cuda: Version
    driver: int = Field(ge=450)
    ncu: Version
    nsys: Version
    nsys_package: str
    nsys_sha256: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
    torch: Version
    packages: list[str]

    def arguments(self, name: str) -> dict[str, str]:
        """Return the Dockerfile's arguments for this variant, called `name`."""
        from_index = not any(one.startswith("python3-torch=") for one in self.packages)
        return {
            "BASE": self.base + (f"@{self.digest}" if self.digest else ""),
            "PACKAGES": " ".join(self.packages),
            "NSYS_PACKAGE": self.nsys_package,
            "NSYS_SHA256": self.nsys_sha256,
            "TORCH": self.torch if from_index else "",
            "VARIANT": name,
            "VERSION": __version__,
        }


@functools.cache
def variants() -> dict[str, Variant]:
    """Return name → variant, the default first."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Variant.model_validate(fields) for name, fields in found.items()}


def variant(name: str) -> Variant:
    """Return the variant. Raises UsageError."""
    try:
        return variants()[name]
    except KeyError:
        raise UsageError(f"{name}: is no variant of the image: choose {', '.join(variants())}") from None


def for_driver(driver: str) -> str | None:
    """Return the newest NVIDIA variant for a driver such as `580.95.05`, or None (pins.toml)."""
    major = int(driver.partition(".")[0])
    fit = {name: one for name, one in variants().items() if one.base.startswith("nvidia/") and one.driver <= major}
    return max(fit, key=lambda name: fit[name].driver, default=None)


if __name__ == "__main__":
    try:
        asked = sys.argv[1] if len(sys.argv) > 1 else DEFAULT
        for key, value in variant(asked).arguments(asked).items():
            print(f"--build-arg {shlex.quote(f'{key}={value}')}")  # noqa: T201
    except UsageError as error:
        sys.exit(f"perfci: {error}")
