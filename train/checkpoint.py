"""Checkpoints: whole or not there. A folder step_XXXXXXXX holds the trained weights and all state.

The folder is made under another name, brought to disk and renamed; its marker, written last, says
that it is whole. What is without a marker is never loaded.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rundir.atomic import new_folder
from rundir.checkpoints import MARKER, checkpoint_name, complete_checkpoints
from rundir.errors import UserError
from rundir.space import require_space
from train.ranks import Ranks


def save(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer,
    ranks: Ranks, *, keep: int,
) -> Path:  # fmt: skip
    """Save after `step` steps and remove all but the last `keep`; called by all ranks.

    Only trained weights are saved: of a LoRA run the adapters. Raises OSError on rank 0 (a full
    disk); the checkpoints that were there stay.
    """
    random_states = ranks.gather(_random_state(ranks.device))
    path = folder / checkpoint_name(step)
    if ranks.is_first:
        require_space(folder, _size_bytes(model, optimizer), f"the checkpoint after step {step}")
        with new_folder(path) as temporary:
            save_file(_trained(model), temporary / "model.safetensors")
            torch.save(optimizer.state_dict(), temporary / "optimizer.pt")
            torch.save(random_states, temporary / "random.pt")
            about = {"step": step, "world_size": ranks.world_size}
            (temporary / "state.json").write_text(json.dumps(about), encoding="utf-8")
            (temporary / MARKER).touch()
        for old in complete_checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    ranks.wait()
    return path


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> int:
    """Load the checkpoint in `path` on every rank; returns the steps it has behind it.

    Raises UserError when it does not belong to this model.
    """
    weights = load_file(path / "model.safetensors", device=str(ranks.device))
    trained = _trained(model)
    saved_shapes = {key: tuple(weight.shape) for key, weight in weights.items()}
    shapes = {key: tuple(parameter.shape) for key, parameter in trained.items()}
    if saved_shapes != shapes:
        odd = min(key for key, _ in saved_shapes.items() ^ shapes.items())
        raise UserError(
            f"{path} does not fit this model: {odd} is {saved_shapes.get(odd, 'not')} in it, "
            f"{shapes.get(odd, 'not')} in the model",
            do="resume with the model, train.method and adapters that the run was started with",
        )
    with torch.no_grad():
        for key, parameter in trained.items():
            parameter.copy_(weights[key])
    optimizer.load_state_dict(
        torch.load(path / "optimizer.pt", map_location=ranks.device, weights_only=True)
    )
    random_states = torch.load(path / "random.pt", weights_only=True)
    if len(random_states) == ranks.world_size:  # else there is no state that would be this rank's
        _set_random_state(random_states[ranks.rank], ranks.device)
    return int(json.loads((path / "state.json").read_text(encoding="utf-8"))["step"])


def _trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: p.data for key, p in model.named_parameters() if p.requires_grad}


def _size_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """What a checkpoint takes on disk: trained weights, and the optimizer's state of each."""
    states = (value for state in optimizer.state.values() for value in state.values())
    tensors = [*_trained(model).values(), *(one for one in states if torch.is_tensor(one))]
    return sum(one.nbytes for one in tensors)


def _random_state(device: torch.device) -> dict[str, Any]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
