"""A store in a bucket of S3, or of what speaks like it: objects that are created only where there is none."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from perfci.history.stores.base import LARGEST, MOST_LISTED, TOP, Listed, Store, Unreadable
from perfci.model.base import MachineError, UsageError
from perfci.model.text import escaped, one_line

_TRIES = 3
"""Of a write that did not come through, as reading back tells."""
_CONNECT, _READ = 10, 30
"""Seconds."""
_NAME = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9!_.*'()-]+)*)/?", re.ASCII)


def open_bucket(text: str) -> "BucketStore":
    """Return the store `s3://BUCKET/PREFIX`. Credentials, region and endpoint are those of the environment, as for
    AWS's own tools.

    Raises UsageError.
    """
    match = _NAME.fullmatch(text)
    if match is None or {".", ".."} & set(match["prefix"].split("/")):
        raise UsageError(f"{escaped(text, 200)}: names no place in a bucket: write s3://BUCKET/PREFIX")
    try:
        from s3fs import S3FileSystem
    except ImportError:
        raise UsageError(f'{text}: s3fs is not installed here: pip install "perfci[history]"') from None
    system = S3FileSystem(
        use_listings_cache=False,
        skip_instance_cache=True,
        config_kwargs={
            "connect_timeout": _CONNECT,
            "read_timeout": _READ,
            "retries": {"max_attempts": 3, "mode": "standard"},
        },
    )
    system.retries = 2  # of an answer that breaks off; botocore does all others
    return BucketStore(text.rstrip("/"), system, match["bucket"], match["prefix"].strip("/"))


class BucketStore(Store):
    """The nights below a prefix of a bucket."""

    def __init__(self, text: str, system: Any, bucket: str, prefix: str) -> None:
        super().__init__(text)
        self._system, self._bucket = system, bucket
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def key(self) -> str:
        """Endpoint, bucket and prefix."""
        try:
            endpoint = self._system.s3.meta.endpoint_url
        except Exception as error:  # noqa: BLE001 - of botocore's several dozens, told in one line
            raise self._error("cannot be reached", error) from None
        return f"s3:{endpoint}/{self._bucket}/{self._prefix}"

    def _path(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{name}"

    def _list(self) -> Iterator[Listed]:
        number, more = 0, dict[str, str]()
        while True:
            asked = {"Bucket": self._bucket, "Prefix": f"{self._prefix}{TOP}/", **more}
            try:
                page = self._system.call_s3("list_objects_v2", **asked)
            except Exception as error:  # noqa: BLE001 - likewise
                raise self._error("cannot be listed", error) from None
            for entry in page.get("Contents", []):
                name = entry["Key"].removeprefix(self._prefix)
                number += 1
                if number > MOST_LISTED:
                    self.fault(TOP, f"holds more than {MOST_LISTED} names: the others were not read")
                    return
                if name.endswith("/") and entry["Size"] == 0:
                    continue  # a folder, as consoles draw one
                yield Listed(name, entry["Size"], str(entry["ETag"]))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _fetch(self, names: Sequence[str]) -> Iterator[bytes | Unreadable]:
        found = self._system.cat_ranges([self._path(name) for name in names], 0, LARGEST + 1, on_error="return")
        for name, content in zip(names, found, strict=True):
            if isinstance(content, FileNotFoundError):
                yield Unreadable("is listed, and not there")
            elif isinstance(content, BaseException):
                raise self._error(f"{name} cannot be read", content)
            else:
                yield content

    def _content(self, name: str) -> bytes:
        (content,) = self._fetch([name])
        if isinstance(content, Unreadable):
            raise content
        return content

    def _create(self, name: str, content: bytes) -> bool:
        # Before the write, too: not all that speak like S3 know a write that only creates.
        if self._found(name) is not None:
            return False
        for _ in range(_TRIES):
            try:
                self._system.pipe_file(self._path(name), content, mode="create")
            except Exception as error:  # noqa: BLE001 - what became of it is seen by reading back
                failed = error
                if (there := self._found(name)) is not None:
                    return there == content
            else:
                return True
        raise self._error(f"{name} cannot be written", failed)

    def _found(self, name: str) -> bytes | None:
        """Return what is there under a name; None for nothing."""
        try:
            return self._content(name)
        except Unreadable:
            return None

    def _error(self, what: str, error: BaseException) -> MachineError:
        error = error.__cause__ or error  # botocore's own, which has the code
        told = one_line(escaped(error), 200) or type(error).__name__
        return MachineError(f"{self.text}: {what}: {told}: see that its credentials and its endpoint are set")
