"""The environment of a side: only named variables pass.

Base and head get the same, but for paths below their own folders, whose names must have equal length: the size of the
environment shifts the stack, which is measurable (Mytkowicz et al., ASPLOS 2009).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_ALWAYS = re.compile(
    r"""
    PATH | USER | LOGNAME | SHELL | LANG | LANGUAGE | LC_.* | TZ | TERM
    | LD_LIBRARY_PATH | PYTHONPATH | PYTHONNOUSERSITE | VIRTUAL_ENV | CONDA_PREFIX
    | CC | CXX | NVCC | NVCC_.* | CPPFLAGS | CFLAGS | CXXFLAGS | LDFLAGS | CMAKE_.* | CUDAHOSTCXX
    | CPATH | C_INCLUDE_PATH | CPLUS_INCLUDE_PATH | LIBRARY_PATH | PKG_CONFIG_PATH
    | CUDA_.* | NVIDIA_.* | NCCL_.* | OMP_.* | MKL_.* | KMP_.* | OPENBLAS_.*
    | TORCH_.* | TRITON_.* | HF_.* | MAX_JOBS
    """,
    re.VERBOSE,
)
_BUILD = re.compile(
    r"""
    PIP_.* | UV_.* | SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE
    | (?i:https?_proxy | no_proxy | all_proxy)
    """,
    re.VERBOSE,
)
# Folders that base and head would share, and with them compiled kernels and what tuners chose.
_CACHE = re.compile(r".*CACHE.* | TRITON_HOME | TORCH_EXTENSIONS_DIR", re.VERBOSE)
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR(_|$))|COOKIE|PRIVATE|SIGNATURE|(API|ACCESS|ENCRYPTION|SSH)_?KEY"
    r"|(^|_)(KEY|PAT|PWD_?HASH)$",
    re.IGNORECASE,
)
# Tokens that tell what they are by how they begin, and addresses with a password.
_TOKEN = re.compile(
    r"((?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"
    r"(gh[a-z]_[A-Za-z0-9]{16}|github_pat_\w{20}|glpat-[\w-]{16}|hf_[A-Za-z0-9]{20}|xox[a-z]-[\w-]{8}"
    r"|sk-(ant|proj|svcacct)-[\w-]{16}|sk-[\w-]{0,40}[A-Za-z0-9]{16}|AKIA[0-9A-Z]{12}|eyJ[\w-]{8,}\.[\w-]{8,}\.)"
    r"|-----BEGIN|://[^/@\s:]*:[^/@\s]+@"
)
# Without these a private package index cannot be reached; they go to builds only.
_INDEX = re.compile(r"(PIP|UV)_.*INDEX.*")

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
TEMPORARY = "tmp"
FOLDERS = {
    "XDG_CACHE_HOME": "xdg",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "CUPY_CACHE_DIR": "cupy",
    "NUMBA_CACHE_DIR": "numba",
    "PIP_CACHE_DIR": "pip",
    "UV_CACHE_DIR": "uv",
    "HOME": "home",
    "TMPDIR": TEMPORARY,
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
}
"""Of each side, for all its workers: what one compiled or tuned into them the next one finds."""
DOWNLOADS = ("pip", "uv")
"""Folders of a side's caches with packages as an index serves them."""
HOMES = ("home", TEMPORARY, "config", "data", "state")
# Weights and data, which each side would fetch anew. Code may lie there, too, and a build needs none of it.
_DATA = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}
_TOOLS = {"CARGO_HOME": (".cargo",), "RUSTUP_HOME": (".rustup",), "CCACHE_DIR": (".ccache", ".cache/ccache")}
"""Variable of a tool → folders of a user's home that its builds fill."""
OF_HOME = (
    ".config/pip/pip.conf", ".pip/pip.conf", ".config/uv/uv.toml", ".netrc", ".gitconfig", ".config/git/config",
    ".git-credentials", ".npmrc", ".condarc", ".cargo/config.toml", ".cargo/credentials.toml", ".rustup",
)  # fmt: skip
"""Files of a user's home that builds need to find and fetch packages."""


def side_environment(
    side_dir: Path,
    *,
    caller: Mapping[str, str],
    policy_env: Mapping[str, str],
    pass_env: Iterable[str],
    threads: int,
    build: bool,
    kept: bool = False,
) -> dict[str, str]:
    """Return the whole environment for builds (`build`) or workers of the side in `side_dir`.

    Later ones win: the allow-listed part of `caller`; perfci's settings; `pass_env`, secrets too; `policy_env`;
    `PERFCI_SITE`, the side's home and caches. `kept`: later runs use the build, so it takes nothing from the caller's
    home that code under test may have left.
    """
    env = {name: value for name, value in caller.items() if passes(name, build)}
    env |= dict.fromkeys(_THREADS, str(threads))
    env |= {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
    home, cache = Path(caller.get("HOME", "/nonexistent")), caller.get("XDG_CACHE_HOME")
    for name, folder in _DATA.items():
        env.setdefault(name, str((Path(cache) if cache else home / ".cache") / folder))
    base = Path(caller.get("PYTHONUSERBASE") or home / ".local")
    if not kept and any(base.glob("lib/python*/site-packages/torch")):
        env["PYTHONUSERBASE"] = str(base)
    else:
        env["PYTHONNOUSERSITE"] = "1"
    for name, folders in _TOOLS.items() if build and not kept else ():
        if there := [str(home / folder) for folder in folders if (home / folder).is_dir()]:
            env.setdefault(name, there[0])
    env |= {name: caller[name] for name in pass_env if name in caller}
    env |= policy_env
    env["PERFCI_SITE"] = str(side_dir / "site")
    env |= {name: str(side_dir / "cache" / folder) for name, folder in FOLDERS.items()}
    if kept and build:
        env = {name: value for name, value in env.items() if name not in _DATA}
    return env


def passes(name: str, build: bool) -> bool:
    """Tell whether the caller's `name` reaches builds (`build`) or workers without the policy's naming it."""
    if build and _INDEX.fullmatch(name):
        return True
    if is_secret(name) or _CACHE.fullmatch(name):
        return False
    return bool(_ALWAYS.fullmatch(name) or (build and _BUILD.fullmatch(name)))


def is_own(name: str) -> bool:
    """Tell whether perfci sets a variable, or withholds it."""
    ours = name in _THREADS or name in FOLDERS or name in ("OMP_WAIT_POLICY", "PYTHONUNBUFFERED", "TRITON_HOME")
    return ours or name.startswith("PERFCI_")


def is_secret(name: str = "", value: str = "") -> bool:
    """Tell whether a name or value suggests a secret."""
    return bool(_SECRET.search(name) or _TOKEN.search(value))
