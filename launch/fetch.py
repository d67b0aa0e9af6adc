"""`python -P -m launch.fetch ID LINK [without-weights]`: have a model of the Hub on this machine.

Leaves LINK pointing at its folder. Files that are here already are not asked for again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rundir.exit_codes import ExitCode

_WANTED = ["*.json", "*.model", "*.txt", "*.jinja", "*.py"]
_WEIGHTS = ["*.safetensors"]


def fetch(model_id: str, *, weights: bool) -> Path:
    """The local folder of `model_id`, downloaded if need be, with progress bars."""
    from huggingface_hub import snapshot_download

    # Asks the Hub which files there are; without a network it takes what is here, if all is.
    wanted = _WANTED + (_WEIGHTS if weights else [])
    return Path(snapshot_download(model_id, allow_patterns=wanted))


def main() -> None:
    """Fetch, link, or say in a line why not."""
    model_id, link = sys.argv[1], Path(sys.argv[2])
    from huggingface_hub import errors

    try:
        link.symlink_to(fetch(model_id, weights="without-weights" not in sys.argv))
        return
    except errors.GatedRepoError:
        why = f"{model_id} is gated", "accept its terms on its page, then set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        why = f"there is no model {model_id}, or it is private", "check the name, or set HF_TOKEN"
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # the client's
        first = str(error).strip().splitlines()[0]
        why = (
            f"cannot fetch {model_id}: {first}",
            "check the network, or --set model.path=FOLDER with a copy of it",
        )
    print(f"airlock: {why[0]}\n  → {why[1]}", file=sys.stderr)  # noqa: T201
    sys.exit(int(ExitCode.PREFLIGHT))


if __name__ == "__main__":
    main()
