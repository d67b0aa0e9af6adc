"""`python -P -m launch.files.push FOLDER OWNER/NAME AGAIN [public] [replace]`: upload a model.

AGAIN is the command as typed, for the errors. The repository is made if it is not there, private
unless `public`; one with other files is left as it is unless `replace`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from launch.files.fetch_errors import first_line, is_network_error, token_source
from launch.files.model_folder import is_offline
from rundir.errors import ExitCode, UserError
from rundir.units import size_text

_REFUSED, _NO_RIGHT = 401, 403
_OF_THE_HUB = ".gitattributes"  # in every repository
_NUM_NAMED = 3


def push(folder: Path, repo: str, again: str, *, is_public: bool, replaces: bool) -> str:
    """Upload the files of `folder`; return the address of the model's page. Raises UserError."""
    from huggingface_hub import HfApi, constants, errors, get_token

    page = f"{constants.ENDPOINT}/{repo}"
    if is_offline(os.environ):
        raise _error(
            "HF_HUB_OFFLINE is set, so nothing is uploaded", f"env -u HF_HUB_OFFLINE {again}"
        )
    if get_token() is None:
        raise _error(
            f"there is no token to upload to {repo} with",
            f"HF_TOKEN=hf_… {again}   # one that may write, from {constants.ENDPOINT}"
            "/settings/tokens",
        )
    api = HfApi()
    try:
        there = _files_there(api, repo)
        is_new = there is None
        if _is_checked(folder, there or [], repo, again, replaces=replaces):
            return f"{page} has these files already"
        if is_new:
            api.create_repo(repo, private=not is_public, exist_ok=True)
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = size_text(sum(path.stat().st_size for path in files))
        kind = ("a new public one" if is_public else "a new private one") if is_new else "as it is"
        click.echo(f"push: {len(files)} files, {size}, to {page} ({kind})")
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message="Upload of a model trained with Airlock",
            delete_patterns="*" if replaces else None,
        )
    except errors.HFValidationError as error:
        raise _error(
            f"{repo!r} is not a valid name for a model", f"{_without(again, repo)} OWNER/NAME"
        ) from error
    except Exception as error:  # the client's network library has errors of its own
        if not (isinstance(error, (errors.HfHubHTTPError, OSError)) or is_network_error(error)):
            raise
        raise explained(error, repo, again) from error
    return f"{page} has the model"


def _files_there(api: Any, repo: str) -> list[Any] | None:
    """Return what the repository holds; None if there is none that this account sees."""
    from huggingface_hub import errors

    try:
        info = api.model_info(repo, files_metadata=True)
    except errors.RepositoryNotFoundError:
        return None
    return [sibling for sibling in info.siblings or [] if sibling.rfilename != _OF_THE_HUB]


def _is_checked(folder: Path, there: list[Any], repo: str, again: str, *, replaces: bool) -> bool:
    """Return whether all files are there already. Raises UserError if others are."""
    other = [file.rfilename for file in there if not is_same(folder / file.rfilename, file)]
    if other and not replaces:
        named = ", ".join(sorted(other)[:_NUM_NAMED])
        more = f" and {len(other) - _NUM_NAMED} more" if len(other) > _NUM_NAMED else ""
        raise _error(
            f"{repo} holds other files than this model's: {named}{more}",
            f"{_without(again, repo)} {repo}-2   # or as before, ending with --replace: those "
            "files then stay in its history alone",
        )
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return not other and {file.rfilename for file in there} >= names


def is_same(path: Path, there: Any) -> bool:
    """Return whether a local file has the content of one in a repository."""
    if not path.is_file() or path.stat().st_size != there.size:
        return False
    if there.lfs is not None:
        with path.open("rb") as file:
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == there.lfs.sha256)
    data = path.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's own
    return bool(digest == there.blob_id)


def explained(error: Exception, repo: str, again: str) -> UserError:
    """Return the error to show for one of huggingface_hub's, with the command to type next."""
    from huggingface_hub import constants

    status = getattr(getattr(error, "response", None), "status_code", 0)
    tokens = f"{constants.ENDPOINT}/settings/tokens"
    token, owner = token_source() or "no token", repo.partition("/")[0]
    why = first_line(error)
    if status == _REFUSED:
        what = f"the Hub does not accept {token} (401)"
        return _error(what, f"HF_TOKEN=hf_… {again}   # with a token from {tokens}")
    if status == _NO_RIGHT:
        what = f"{token} has no right to write to {repo} (403)"
        return _error(
            what,
            f"HF_TOKEN=hf_… {again}   # with one from {tokens} that may write to {owner}; or "
            f"{_without(again, repo)} YOUR_NAME/{repo.partition('/')[2]}",
        )
    if status:
        later = f"{again}   # once more, later: what was uploaded is not sent again"
        return _error(f"the Hub answers {status} for {repo}: {why}", later)
    if isinstance(error, OSError) and not is_network_error(error):
        return _error(f"cannot read the model: {error}", again)
    return _error(
        f"cannot reach {constants.ENDPOINT}: {type(error).__name__}: {why}",
        f"curl -sI {constants.ENDPOINT}   # if it answers: {again}",
    )


def _without(again: str, repo: str) -> str:
    """Return the command up to the name of the repository."""
    return again.partition(f" {repo}")[0]


def _error(what: str, do: str) -> UserError:
    return UserError(what, do=do, code=ExitCode.PREFLIGHT)


def main() -> None:
    """Upload. Raises UserError if that fails."""
    folder, repo, again, *options = sys.argv[1:]
    message = push(
        Path(folder), repo, again, is_public="public" in options, replaces="replace" in options
    )
    click.echo(message)


if __name__ == "__main__":
    main()
