"""Airlock and TRL's SFTTrainer make the same tokens and labels of a file, or a reason is named."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.conftest import ROOT
from tests.train.beside_trl import templates
from tests.train.beside_trl.models import template_names, write_folder
from tests.train.beside_trl.prepare import differences, of_airlock, of_trl
from tests.train.beside_trl.shape import Shape, listed

pytestmark = [
    pytest.mark.skipif(
        not template_names(), reason="TRL is not installed: pip install -r requirements-dev.txt"
    ),
    pytest.mark.filterwarnings(
        "ignore:`gradient_checkpointing` is deprecated:FutureWarning",  # TRL's own default
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",  # by what TRL imports
    ),
]

ALL = [*listed(), *templates.of_marked_templates(), *templates.of_own_templates()]


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep TRL from reporting its use, and take back what importing it sets in the environment."""
    import datasets

    before = dict(os.environ)
    datasets.disable_progress_bars()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
        # Each tokenizer is asked once: how it differs from its file is kept in the cache.
        patch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        # Nothing is made twice, and to name what is cached takes longer than to make it.
        patch.setattr(
            "datasets.fingerprint.Hasher.hash", staticmethod(lambda _: secrets.token_hex(8))
        )
        yield
    datasets.enable_progress_bars()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.runs
@pytest.mark.parametrize("shape", ALL, ids=str)
def test_tokens_and_labels_are_those_of_trl_or_differ_for_a_named_reason(
    shape: Shape, tmp_path: Path
) -> None:
    model = write_folder(tmp_path / "model", shape.tokenizer, shape.template)
    ours, theirs = of_airlock(shape, model, tmp_path), of_trl(shape, model, tmp_path)
    for made, words in ((ours, shape.airlock_refuses), (theirs, shape.trl_refuses)):
        refusal = made if isinstance(made, str) else ""
        assert bool(refusal) == bool(words), refusal or "it refuses no more"
        assert words in refusal
    if isinstance(ours, str) or isinstance(theirs, str):
        both = isinstance(ours, str) and isinstance(theirs, str)
        assert bool(shape.why) != both, "a reason why only one of them refuses"
        return
    if shape.sft.get("packing_strategy", "").startswith("bfd"):
        ours, theirs = sorted(ours), sorted(theirs)  # the longest come first
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert differences(ours, theirs, tokenizer) == shape.parts
    assert bool(shape.why) == bool(shape.parts), "every difference has a reason"


def test_each_reason_is_in_the_documentation_and_is_needed() -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    section = page.partition("## Compared with TRL")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| ([^|]+) \|", section, re.M)
    named = {why for shape in ALL for why in shape.why.split(", ") if why}
    assert named == {*documented[1:]}  # below the header
