"""Error messages for failed fetches: the reason in a line, and what to do next."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rundir.errors import ExitCode, UserError
from rundir.units import size_text

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
_REFUSED, _FORBIDDEN, _TOO_MANY = 401, 403, 429
ELSEWHERE = "HF_HOME=/a/larger/disk, or free space (`hf cache ls` shows what is kept)"


def explain(error: Exception, model_id: str, revision: str, cache: Path) -> UserError:
    """Return the error to show for one raised by huggingface_hub or the disk below `cache`."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, errors.HfHubHTTPError):
        what, do = _of_answer(error, model_id, revision)
    elif isinstance(error, errors.HFValidationError):
        what, do = f"{model_id!r} is not a valid model name", "--set model.path=OWNER/NAME"
    elif is_network_error(error):
        what, do = _of_network(error, model_id)
    elif isinstance(error, OSError) and error.errno in _FULL:
        free = size_text(shutil.disk_usage(cache).free)
        what = f"{model_id}: {cache} is full ({error.strerror}; {free} are free)"
        do = f"{ELSEWHERE}; what was fetched is kept, and only the rest will be"
    elif isinstance(error, OSError) and error.errno in _NOT_OURS:
        what, do = f"cannot keep {model_id}: {error}", "HF_HOME=/a/folder/of/yours"
    else:
        what = f"cannot fetch {model_id}: {first_line(error)}"
        do = f"curl -sI {_endpoint()}   # is that a Hub? else unset HF_ENDPOINT"
    return UserError(what, do=do, code=ExitCode.PREFLIGHT)


def is_network_error(error: Exception) -> bool:
    """Return whether the Hub could not be reached, or the connection broke off."""
    from huggingface_hub import errors

    kinds = (errors.HTTPError, errors.LocalEntryNotFoundError, TimeoutError, ConnectionError)  # type: ignore[attr-defined]  # the client's own
    return isinstance(error, kinds) and not isinstance(error, errors.HfHubHTTPError)


def _of_answer(error: Exception, model_id: str, revision: str) -> tuple[str, str]:
    """Return the meaning of the Hub's response, and what to do."""
    from huggingface_hub import errors

    page, token = f"{_endpoint()}/{model_id}", token_source()
    status = getattr(getattr(error, "response", None), "status_code", 0)
    new_token = f"HF_TOKEN=hf_… with a token from {_endpoint()}/settings/tokens"
    if isinstance(error, errors.GatedRepoError):
        seen, then = "there is no HF_TOKEN", new_token
        if token is not None:
            seen, then = f"the account of {token} has not been let in", "start again"
        return f"{model_id} is gated, and {seen}", f"ask for access at {page}, then {then}"
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{model_id} has no revision {revision!r}",
            f"--set model.revision=NAME, one of {page}/tree/main",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        what = "" if model_id.startswith("datasets/") else "model "
        seen = "there is no HF_TOKEN" if token is None else f"the account of {token} may not see it"
        return (
            f"there is no {what}{model_id} at {_endpoint()}, or it is private and {seen}",
            f"check the name at {page}, or {new_token}",
        )
    if status == _REFUSED and token is not None:
        return f"the Hub does not accept {token} (401)", f"{new_token}, or go without: unset it"
    if status == _FORBIDDEN:
        return (
            f"{token or 'without HF_TOKEN one'} may not read {model_id} (403)",
            f"{new_token} that may read it",
        )
    later = "wait a while, then start again: what was fetched is kept"
    why = "too many requests" if status == _TOO_MANY else first_line(error)
    return f"the Hub answers {status} for {model_id}: {why}", later


def _of_network(error: Exception, model_id: str) -> tuple[str, str]:
    # Only the name of a proxy's variable is shown: its URL may contain a password.
    proxies = [
        name
        for name in (
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "ALL_PROXY",
            "https_proxy",
            "http_proxy",
            "all_proxy",
        )
        if os.environ.get(name)
    ]
    cause = list(_causes(error))[-1]
    through = f" through the proxy of {proxies[0]}" if proxies else ""
    why = f"{type(cause).__name__}: {first_line(cause)}"
    dataset = model_id.removeprefix("datasets/")
    copied = f"`hf download {model_id}` elsewhere, and --set model.path=FOLDER with the copy"
    if dataset != model_id:
        copied = f"`hf download {dataset} --repo-type dataset` elsewhere, and --data FOLDER"
    do = (
        f"curl -sI {_endpoint()}   # if it answers, start again: what was fetched is kept; without "
        f"a network: {copied}"
    )
    return f"cannot fetch {model_id} from {_endpoint()}{through}: {why}", do


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the chain of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def token_source() -> str | None:
    """Return the source of the token that was sent; None if there is no token."""
    from huggingface_hub import constants, get_token

    if get_token() is None:
        return None
    named = next((n for n in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(n)), None)
    return named or f"the token in {constants.HF_TOKEN_PATH}"


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says something."""
    if isinstance(error, json.JSONDecodeError):
        return f"{_endpoint()} does not answer as the Hub does (no JSON)"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
