"""The repositories of the end-to-end tests, here filled with suites that cheat."""

from tests.e2e.conftest import env, repo  # noqa: F401  # fixtures
