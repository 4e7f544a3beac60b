"""GitHub's API: bounded patience, and one-line errors."""

import random
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from github import Auth, Github, GithubException
from github.Repository import Repository

from perfci.model.base import MachineError

PATIENCE = 300.0
"""Seconds that all calls of a publication wait."""
TRIES = 6
TIMEOUT = 20
"""Seconds for an answer."""
SECONDARY = 60.0
"""Seconds at a secondary rate limit that names none (docs.github.com, "Best practices for using the REST API")."""
_LONGEST_BACKOFF = 30.0
_PASSING = frozenset({500, 502, 503, 504})
_CHUNK = 1 << 20

T = TypeVar("T")


class ApiError(MachineError):
    """GitHub did not do what it was asked for."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        """HTTP status; 0 where there was no answer."""


class Forbidden(ApiError):
    """The token may not: expected for a pull request from a fork."""


class NotFound(ApiError):
    """It does not exist, or the token must not know of it."""


class Api:
    """A repository as a token sees it."""

    def __init__(
        self,
        token: str,
        repository: str,
        url: str = "https://api.github.com",
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        timeout: int = TIMEOUT,
    ) -> None:
        self._token, self._url, self._timeout = token, url.rstrip("/"), timeout
        self._sleep, self._clock = sleep, clock
        self._until = clock() + PATIENCE
        self._waited = 0.0
        self.name = repository
        """`owner/name`."""
        self._github = Github(
            auth=Auth.Token(token),
            base_url=self._url,
            timeout=timeout,
            retry=None,  # `call` does it: whole steps that may be repeated, and not one request of them
            per_page=100,
            lazy=True,
            seconds_between_requests=None,
            seconds_between_writes=None,
            user_agent="perfci",
        )
        self.repository: Repository = self._github.get_repo(repository)

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._sleep(seconds)

    def call(self, what: str, step: Callable[[], T]) -> T:
        """Do `step`, which may be repeated, again while GitHub says that this may help.

        Waits as long as GitHub asks, else twice as long each time with jitter, and at most PATIENCE in all. Raises
        Forbidden, ApiError.
        """
        for tried in range(1, TRIES + 1):
            try:
                return step()
            except GithubException as error:
                headers = {name.lower(): value for name, value in (error.headers or {}).items()}
                wait = _asked_wait(error.status, headers, _message(error))
                reason = f"HTTP {error.status}: {_message(error)}"
                if wait is None:
                    raise _refusal(what, error.status, reason) from None
                status = error.status
            except requests.RequestException as error:
                # Its text may hold a signed address: only its kind is told.
                wait, reason, status = 0.0, f"no answer ({type(error).__name__})", 0
            wait = wait or min(_LONGEST_BACKOFF, 2.0**tried) * random.uniform(0.5, 1)
            if tried == TRIES:
                raise ApiError(f"{what}: {reason}, {TRIES} times: run the job again later", status)
            self._waited += wait
            if self._waited > PATIENCE or self._clock() + wait > self._until:
                raise ApiError(f"{what}: {reason}: not within {PATIENCE:g} s: run the job again later", status)
            self._sleep(wait)
        raise AssertionError("every try returns, raises or waits")

    def get(self, path: str, parameters: dict[str, Any] | None = None) -> Any:
        """Return the JSON at `path`, for what PyGithub lacks."""
        return self._github.requester.requestJsonAndCheck("GET", path, parameters)[1]

    @cached_property
    def app(self) -> str:
        """Slug of the token's app, such as `github-actions`."""
        return self.viewer().removesuffix("[bot]")

    def viewer(self) -> str:
        """The token's login, such as `github-actions[bot]`: REST does not tell a workflow token's."""
        _, answer = self._github.requester.graphql_query("query { viewer { login } }", {})
        return str(answer["data"]["viewer"]["login"])

    def download(self, artifact: int, limit: int) -> bytes:
        """Return an artifact's archive, which lies elsewhere and is not sent the token.

        Raises ApiError for more than `limit` bytes, an unsafe address, and an artifact that is gone.
        """
        return self.call(f"artifact {artifact}", lambda: self._download(artifact, limit))

    def _authorise(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _download(self, artifact: int, limit: int) -> bytes:
        what = f"artifact {artifact}"
        with requests.Session() as session:
            answer = session.get(
                f"{self._url}/repos/{self.name}/actions/artifacts/{artifact}/zip",
                headers={"Accept": "application/vnd.github+json"},
                auth=self._authorise,
                allow_redirects=False,
                timeout=self._timeout,
            )
            if answer.status_code != 302:
                raise GithubException(answer.status_code, _json(answer), dict(answer.headers))
            address = answer.headers.get("Location", "")
            if urlsplit(address).scheme not in {"https", urlsplit(self._url).scheme}:
                raise ApiError(f"{what}: GitHub sends on to an address without https")
            with session.get(address, auth=_nobody, allow_redirects=False, timeout=self._timeout, stream=True) as blob:
                if blob.status_code in {403, 404}:  # a signature lasts a minute: ask for a new one
                    raise GithubException(503, {"message": f"its storage answers {blob.status_code}"}, {})
                if blob.status_code != 200:
                    raise GithubException(blob.status_code, {"message": "its storage refuses"}, dict(blob.headers))
                content = bytearray()
                for chunk in blob.iter_content(_CHUNK):
                    content += chunk
                    if len(content) > limit:
                        raise ApiError(f"{what}: is larger than {limit >> 20} MiB")
                return bytes(content)


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep ~/.netrc out."""
    request.headers.pop("Authorization", None)
    return request


def _json(answer: requests.Response) -> Any:
    try:
        return answer.json()
    except requests.JSONDecodeError:
        return None


def _message(error: GithubException) -> str:
    data = error.data if isinstance(error.data, dict) else {}
    errors = data.get("errors") if "data" in data else None  # of GraphQL, which answers 200
    text = errors[0].get("message") if errors else data.get("message") or error.message
    return " ".join(str(text or "").split())[:200] or "no reason given"


def _asked_wait(status: int, headers: Mapping[str, str], message: str) -> float | None:
    """Seconds; 0 where it names none; None where a retry is of no use."""
    if status in _PASSING:
        return _seconds(headers.get("retry-after")) or 0.0
    if status not in {400, 403, 429}:  # 400: what PyGithub makes of an error of GraphQL
        return None
    if (named := _seconds(headers.get("retry-after"))) is not None:
        return max(1.0, named)
    if headers.get("x-ratelimit-remaining") == "0" and (reset := _seconds(headers.get("x-ratelimit-reset"))):
        return max(1.0, reset - time.time() + 1)  # somewhen within that second
    return SECONDARY if status == 429 or "rate limit" in message.lower() else None


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _refusal(what: str, status: int, reason: str) -> ApiError:
    if status in {401, 403}:
        return Forbidden(f"{what}: the token may not ({reason})", status)
    if status in {404, 410}:
        return NotFound(f"{what}: {reason}", status)
    return ApiError(f"{what}: {reason}", status)
