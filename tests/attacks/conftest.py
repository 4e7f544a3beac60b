"""The repositories of the end-to-end tests, here filled with suites that cheat."""

from tests.e2e.conftest import env, gpu, repo  # noqa: F401  # fixtures
