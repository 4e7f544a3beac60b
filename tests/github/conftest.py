"""The process that runs are forked of in the end-to-end tests, here for `perfci ci` and `perfci publish`."""

from tests.e2e.conftest import two_users, warm  # noqa: F401  # fixtures
