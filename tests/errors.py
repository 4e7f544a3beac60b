"""What an error says."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perfci.model.base import PerfciError, UsageError


@contextmanager
def refused(*words: str, by: type[PerfciError] = UsageError) -> Iterator["pytest.ExceptionInfo[PerfciError]"]:
    """Expect an error of one short line that holds these words."""
    with pytest.raises(by) as error:
        yield error
    text = str(error.value)
    assert "\n" not in text and len(text) < 500
    for word in words:
        assert word in text
