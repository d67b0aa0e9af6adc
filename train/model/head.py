"""The head of a model, which turns its last hidden states into logits, for some tokens at a time.

Most heads are one matrix (`matrix`). Others scale or cap its output, or do more: their own code is
then run on hidden states that exist already (`own`). A model that is not built as layers with a
head after them computes all its logits at once (`whole`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F
from transformers.utils.generic import ModelOutput

from train.model.build import plain_model, vocabulary_of

Head = Literal["matrix", "own", "whole"]

_LOGITS_BYTES = 256 * 1024 * 1024  # of one chunk, in float32
_OWN_COPIES = 4  # of a chunk's logits that capping and cross-entropy keep for backward


class MatrixHead:
    """A head that is just a matrix: its gradients are computed together with the logits."""

    def __init__(self, model: Any) -> None:
        head = plain_model(model).get_output_embeddings()
        self.weights: list[torch.Tensor | None] = [head.weight, head.bias]
        self.num_at_once = max(1, _LOGITS_BYTES // (4 * head.weight.shape[0]))

    def loss_and_gradients(
        self, rows: torch.Tensor, targets: torch.Tensor, gradients: list[torch.Tensor | None]
    ) -> torch.Tensor:
        """Return the summed cross-entropy of `rows`, (labels, width); its gradients are added.

        `gradients` are those of rows, weight and bias, None if not needed. The gradient of the
        logits is softmax minus one-hot, so the logits are turned into it in place.
        """
        weight, bias = self.weights
        of_rows, of_weight, of_bias = gradients
        assert weight is not None
        wanted = targets[:, None]
        logits = F.linear(rows, weight, bias).to(exact(rows.dtype))
        # All of it in place: torch's own logsumexp briefly takes as much memory again.
        logits.sub_(logits.amax(-1, keepdim=True))
        of_target = logits.gather(-1, wanted)
        sums = logits.exp_().sum(-1, keepdim=True)
        loss = (sums.log() - of_target).sum()
        if all(grad is None for grad in gradients):
            return loss
        logits.div_(sums).scatter_add_(-1, wanted, -torch.ones_like(sums))
        gradient = logits.to(rows.dtype)
        if of_rows is not None:
            torch.mm(gradient, weight, out=of_rows)
        if of_weight is not None:
            of_weight.addmm_(gradient.T, rows)
        if of_bias is not None:
            of_bias += gradient.sum(0)
        return loss


class OwnHead:
    """A model's own code after its layers, whatever it does to each token by itself."""

    def __init__(self, model: Any, output: ModelOutput) -> None:
        """Prepare the head; `output` is what the layers returned."""
        self._plain, self._output = plain_model(model), output
        self.num_at_once = max(1, _LOGITS_BYTES // (4 * _OWN_COPIES * vocabulary_of(model)))
        self.weights: list[torch.Tensor | None] = list(_weights_behind(self._plain))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits, (rows, tokens, vocabulary), of hidden states, (rows, tokens, width)."""
        output = copy.copy(self._output)
        output[next(iter(output))] = hidden
        ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        with _layers_give(self._plain, output):
            logits: torch.Tensor = self._plain(input_ids=ids, use_cache=False).logits
        return logits

    def loss_and_gradients(
        self, rows: torch.Tensor, targets: torch.Tensor, gradients: list[torch.Tensor | None]
    ) -> torch.Tensor:
        """Do the same as a `MatrixHead`; `gradients` are those of rows and of `weights`."""
        needs_any = any(grad is not None for grad in gradients)
        with torch.set_grad_enabled(needs_any):
            hidden = rows.detach().requires_grad_(needs_any)
            logits = self.logits(hidden[None])[0]
            loss = F.cross_entropy(logits.to(exact(logits.dtype)), targets, reduction="sum")
        if needs_any:
            pairs = zip((hidden, *self.weights), gradients, strict=True)
            wanted = [(grad, into) for grad, into in pairs if grad is not None and into is not None]
            gradients_ = torch.autograd.grad(loss, [grad for grad, _ in wanted], allow_unused=True)
            for (_, into), gradient in zip(wanted, gradients_, strict=True):
                if gradient is not None:
                    into.add_(gradient)
        return loss.detach()


def layers_of(plain: Any) -> Any:
    """Return the part of a Hugging Face model that computes hidden states; None if not a module."""
    return plain._modules.get(_layers_name(plain))


def head_of(model: Any, input_ids: torch.Tensor) -> Head:
    """Return the kind of a model's head, found by one forward of `input_ids`, (rows, tokens).

    For `matrix` no values are compared: the logits must be the very memory that the matrix wrote,
    unchanged since, from hidden states that are the layers' own. So this also works on the meta
    device. Raises whatever the model's own code raises.
    """
    plain = plain_model(model)
    layers, head = layers_of(plain), plain.get_output_embeddings()
    if layers is None or head is None:
        return "whole"
    seen: dict[str, Any] = {}

    def note(_: Any, inputs: Any, output: torch.Tensor) -> None:
        seen.update(hidden=inputs[0], made=output, version=output._version)

    hooks = [
        layers.register_forward_hook(lambda *its: seen.update(output=its[2])),
        head.register_forward_hook(note),
    ]
    try:
        with torch.no_grad():
            logits = plain(input_ids=input_ids, use_cache=False).logits
            if "output" not in seen:  # some models only call a part of their layers
                layers(input_ids=input_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    output = seen.get("output")
    if not isinstance(output, ModelOutput):
        return "whole"
    if (
        type(head) is nn.Linear
        and "made" in seen
        and _is_of(seen["hidden"], output[0])
        and _shares_memory(seen["made"], logits)
        and logits._version == seen["version"]
    ):
        return "matrix"
    return "own" if _is_apart(model, output, logits) else "whole"


def exact(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums over the vocabulary."""
    return torch.promote_types(dtype, torch.float32)


def _shares_memory(first: torch.Tensor, other: torch.Tensor) -> bool:
    storages = (first.untyped_storage()._cdata, other.untyped_storage()._cdata)
    return first.shape == other.shape and storages[0] == storages[1]


def _is_of(hidden: torch.Tensor, made: torch.Tensor) -> bool:
    """Return whether the hidden states that a head received are those that the layers returned."""
    if _shares_memory(hidden, made):
        return hidden._version == made._version
    return hidden.device.type != "meta" and torch.equal(hidden, made)


def _is_apart(model: Any, output: ModelOutput, logits: torch.Tensor) -> bool:
    """Return whether the code after the layers can be run by itself, and gives the same logits."""
    try:
        with torch.no_grad():
            again = OwnHead(model, output).logits(output[0])
    except Exception:  # noqa: BLE001 - any model's code runs here, in a way it was not made for
        return False
    if logits.device.type == "meta":
        return again.shape == logits.shape
    tolerance = 8 * torch.finfo(logits.dtype).eps
    return bool((again - logits).abs().max() <= tolerance * logits.abs().max())


def _weights_behind(plain: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weights of a model outside its layers, including a head tied to the embedding."""
    head = plain.get_output_embeddings()  # type: ignore[operator]
    weights = {id(parameter): parameter for parameter in head.parameters()}
    for name, module in plain.named_children():
        if name != _layers_name(plain):
            weights |= {id(parameter): parameter for parameter in module.parameters()}
    weights |= {id(parameter): parameter for parameter in plain.parameters(recurse=False)}
    yield from weights.values()


def _layers_name(plain: Any) -> str:
    prefix: str = plain.base_model_prefix
    return prefix if prefix in plain._modules else "model"


class _Given(nn.Module):
    """A stand-in for a model's layers that returns what they returned before."""

    def __init__(self, layers: nn.Module, output: ModelOutput) -> None:
        super().__init__()
        self.__dict__.update(layers=layers, output=output)  # not registered as a submodule

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that a head reads from the layers: a scale, a table."""
        return getattr(self.__dict__["layers"], name)

    def forward(self, *_: Any, **__: Any) -> ModelOutput:
        """Return the stored output, whatever the arguments."""
        output: ModelOutput = self.__dict__["output"]
        return output


@contextmanager
def _layers_give(plain: Any, output: ModelOutput) -> Iterator[None]:
    name = _layers_name(plain)
    layers = plain._modules[name]
    plain._modules[name] = _Given(layers, output)
    try:
        yield
    finally:
        plain._modules[name] = layers
