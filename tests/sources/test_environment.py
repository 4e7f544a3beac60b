"""The environment of a side: no secret reaches code under test, and the sides share nothing that could hide a change."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.sources.environment import is_secret, passes, side_environment

CANARY = "canary-9f3a"
_SECRETS = """
    GITHUB_TOKEN ACTIONS_RUNTIME_TOKEN ACTIONS_ID_TOKEN_REQUEST_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID HF_TOKEN
    WANDB_API_KEY DB_PASSWORD SSH_AUTH_SOCK TORCH_HUB_TOKEN NVIDIA_API_KEY CUDA_LICENSE_PRIVATE_KEY CMAKE_CREDENTIALS
    NCCL_SECRET UV_PUBLISH_TOKEN UV_PUBLISH_PASSWORD OPENAI_KEY
"""
SECRETS = _SECRETS.split()
_CACHES = """
    XDG_CACHE_HOME TORCH_EXTENSIONS_DIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH CUPY_CACHE_DIR
    NUMBA_CACHE_DIR PIP_CACHE_DIR UV_CACHE_DIR HOME TMPDIR XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME
"""
CACHES = _CACHES.split()


def make(folder: str = "/s/base", **fields) -> dict[str, str]:
    plain = {"caller": {}, "policy_env": {}, "pass_env": (), "threads": 1, "build": False, "kept": False}
    return side_environment(Path(folder), **plain | fields)


@pytest.mark.parametrize("build", [False, True])
def test_no_secret_of_the_caller_reaches_a_build_or_a_worker(build: bool):
    caller = dict.fromkeys([*SECRETS, "MY_VARIABLE"], CANARY) | {"PATH": "/bin"}
    env = make(caller=caller, build=build)
    assert CANARY not in env.values()
    assert env["PATH"] == "/bin"


def test_a_private_index_is_for_builds_only_and_its_password_with_it():
    names = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_CORP_PASSWORD", "UV_DEFAULT_INDEX"]
    names += ["SSL_CERT_FILE", "https_proxy", "HTTPS_PROXY", "no_proxy", "PIP_NO_BUILD_ISOLATION"]
    caller = dict.fromkeys(names, CANARY)
    assert set(names) <= make(caller=caller, build=True).keys()
    assert CANARY not in make(caller=caller, build=False).values()


def test_what_kernels_need_passes():
    names = "PATH USER LANG LC_ALL TZ LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX CC CXX CFLAGS CUDAHOSTCXX "
    names += "CMAKE_PREFIX_PATH CUDA_HOME CUDA_VISIBLE_DEVICES CUDA_MODULE_LOADING NVIDIA_TF32_OVERRIDE NCCL_DEBUG "
    names += "OMP_PROC_BIND KMP_AFFINITY MKL_ENABLE_INSTRUCTIONS TORCH_CUDA_ARCH_LIST TRITON_PTXAS_PATH MAX_JOBS"
    caller = dict.fromkeys(names.split(), "x")
    assert caller.items() <= make(caller=caller).items()


def test_caches_and_preloads_of_the_caller_stay_behind():
    names = [*CACHES, "LD_PRELOAD", "CCACHE_DIR", "CCACHE_REMOTE_STORAGE", "TRITON_HOME", "TRITON_DUMP_CACHE"]
    names += ["PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PERFCI_SITE", "GIT_DIR", "PYTHONHASHSEED"]
    assert "/callers" not in make(caller=dict.fromkeys(names, "/callers")).values()


def test_every_cache_is_the_sides_own_and_the_sides_differ_in_nothing_else():
    caller = dict(os.environ)
    base, head = make("/scratch/base", caller=caller), make("/scratch/head", caller=caller)
    for name in [*CACHES, "PERFCI_SITE"]:
        assert base[name].startswith("/scratch/base/")
        assert head[name].startswith("/scratch/head/")
    assert {k: v.replace("/scratch/base", "/scratch/head") for k, v in base.items()} == head
    assert {k: len(v) for k, v in base.items()} == {k: len(v) for k, v in head.items()}
    assert len({base[name] for name in CACHES}) == len(CACHES)


def test_of_the_callers_home_remain_weights_and_for_builds_what_they_fill(tmp_path: Path):
    for folder in (".cargo", ".cache/ccache"):
        (tmp_path / folder).mkdir(parents=True)
    caller = {"HOME": str(tmp_path)}
    assert make(caller=caller)["HF_HOME"] == f"{tmp_path}/.cache/huggingface"
    assert make(caller=caller)["TORCH_HOME"] == f"{tmp_path}/.cache/torch"
    build = make(caller=caller, build=True)
    assert (build["CARGO_HOME"], build["CCACHE_DIR"]) == (f"{tmp_path}/.cargo", f"{tmp_path}/.cache/ccache")
    assert "RUSTUP_HOME" not in build and "CARGO_HOME" not in make(caller=caller)
    assert str(tmp_path) not in "".join(make(caller=caller, build=True, kept=True).values())
    assert make(caller={"HOME": "/h", "XDG_RUNTIME_DIR": "/run"}).keys().isdisjoint({"XDG_RUNTIME_DIR"})


def test_the_users_site_is_on_where_torch_lies_in_it_alone(tmp_path: Path):
    caller = {"HOME": str(tmp_path)}
    assert make(caller=caller)["PYTHONNOUSERSITE"] == "1"
    (tmp_path / ".local/lib/python3.11/site-packages/torch").mkdir(parents=True)
    env = make(caller=caller)
    assert env["PYTHONUSERBASE"] == f"{tmp_path}/.local" and "PYTHONNOUSERSITE" not in env
    assert make(caller=caller, kept=True)["PYTHONNOUSERSITE"] == "1"


def test_threads_are_set_for_every_library_and_the_policy_has_the_last_word_but_on_caches():
    env = make(caller={"OMP_NUM_THREADS": "64"}, threads=3)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        assert env[name] == "3"
    assert (env["OMP_WAIT_POLICY"], env["PYTHONUNBUFFERED"]) == ("PASSIVE", "1")
    policy = {"OMP_NUM_THREADS": "7", "PATH": "/p", "TRITON_CACHE_DIR": "/shared", "PERFCI_SITE": "/x", "NEW": "n"}
    env = make(caller={"PATH": "/c"}, policy_env=policy, threads=3)
    assert (env["OMP_NUM_THREADS"], env["PATH"], env["NEW"]) == ("7", "/p", "n")
    assert (env["TRITON_CACHE_DIR"], env["PERFCI_SITE"]) == ("/s/base/cache/triton", "/s/base/site")


def test_what_the_policy_names_is_passed_even_if_it_looks_like_a_secret():
    caller = {"HF_TOKEN": "t", "LD_PRELOAD": "/l.so", "OTHER_TOKEN": "o"}
    env = make(caller=caller, pass_env=["HF_TOKEN", "LD_PRELOAD", "ABSENT"])
    assert (env["HF_TOKEN"], env["LD_PRELOAD"]) == ("t", "/l.so")
    assert not {"ABSENT", "OTHER_TOKEN"} & env.keys()
    assert make(caller=caller, pass_env=["HF_TOKEN"], policy_env={"HF_TOKEN": "p"})["HF_TOKEN"] == "p"


@given(
    before=st.sampled_from(["", "CUDA_", "TORCH_", "CMAKE_", "NVIDIA_", "PIP_", "UV_", "LC_"]),
    word=st.sampled_from(
        ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY"]
    ),
    after=st.text("ABCDEFGHJKLMOPQRSTUVWYZ_", max_size=6),
    lower=st.booleans(),
)
def test_no_name_that_looks_like_a_secret_ever_passes(before: str, word: str, after: str, lower: bool):
    name = before + (word.lower() if lower else word) + after
    assert not passes(name, build=False)
    assert not passes(name, build=True)


NAMES = [*SECRETS, "GH_PAT", "SIGNING_KEY", "SESSION_COOKIE", "HTTP_AUTHORIZATION", "gpg_passphrase"]
VALUES = [
    "ghp_c2VjcmV0c2VjcmV0",
    "x github_pat_11ABCDEFG0abcdefghij",
    "glpat-abcdefghij-klmno_p",
    "hf_AbCdEfGhIjKlMnOpQrSt",
    "sk-proj-abc_defABCDEFGHIJ0123456789",
    "xoxb-123456789012",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.x",
    "-----BEGIN PRIVATE KEY-----",
    "https://me:pass@host/",
    "http://:p@h",
]


@pytest.mark.parametrize(("name", "value"), [*((name, "") for name in NAMES), *(("X", value) for value in VALUES)])
def test_secrets_are_told_by_their_name_or_the_look_of_their_value(name, value):
    assert is_secret(name, value)


_OTHERS = """
    https://host/a@b refs/heads/hf_transformers_upgrade_test https://git.example/o/sk-accelerated-kernels
    ssh://git@host/o/r desk-ABCDEFGHIJ0123456789
"""
OTHERS = _OTHERS.split()
PLAIN = {"GIT_AUTHOR_NAME": "A. Author", "KEYBOARD": "us", "PATH": "/usr/bin:/opt/sk-tools/bin"}


@pytest.mark.parametrize(("name", "value"), [*PLAIN.items(), *(("X", value) for value in OTHERS)])
def test_other_names_and_values_are_none(name, value):
    assert not is_secret(name, value)
