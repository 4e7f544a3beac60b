"""The repositories of the end-to-end tests, here filled with suites that cheat."""

from tests.e2e.conftest import env, gpu, repo, warm  # noqa: F401  # fixtures
