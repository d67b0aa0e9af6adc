"""A run's trained model, and the base it came from, answering prompts token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared
from train.chat.messages import Message
from train.chat.template import Template
from train.model.build import end_token_ids, inference, load_model, plain_model
from train.model.hidden_packages import without_cuda_at_import
from train.model.new_tokens import grow
from train.model.varlen import masked

Say = Callable[[str], None]
# What a terminal would obey instead of show; new lines and tabs are kept.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How answers are generated; `temperature` 0 takes the likeliest token each time."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    system: str = ""
    is_raw: bool = False  # prompts are texts to continue, not messages


@dataclass(slots=True, kw_only=True)
class Speaker:
    """A model in a conversation of its own: what it was asked and what it has answered."""

    label: str
    model: Any
    end_ids: list[int]
    as_itself: Callable[[], AbstractContextManager[Any]] = nullcontext  # adapters off, for a base
    messages: list[Message] = field(default_factory=list)

    def ids_of(self, prompt: str, way: Way, tools: tuple[Any, Template]) -> list[int]:
        """Return the tokens of `prompt`, after the conversation unless it is a text to continue.

        Raises UserError if they are more than the model can take.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": prompt}]
        tokenizer, template = tools
        text = prompt if way.is_raw else template.before_answer(messages)  # as in training
        leading = template.leading_ids(tokenizer, of_text=way.is_raw)
        ids = [*leading, *tokenizer.encode(text, add_special_tokens=False).ids]
        if len(ids) >= _most_tokens(self.model):
            raise UserError(
                f"{len(ids):,} tokens are more than the model takes, {_most_tokens(self.model):,}",
                do="/new begins a new conversation; a shorter prompt",
            )
        return ids

    def answer(self, prompt: str, ids: list[int], way: Way, tokenizer: Any, say: Say) -> None:
        """Answer `prompt`, whose `ids` are those of `ids_of`, passing text to `say` as it comes.

        Ctrl-C ends the answer, not the conversation.
        """
        room = _most_tokens(self.model) - len(ids)
        streamer = _Streamer(tokenizer, say)
        device = plain_model(self.model).get_input_embeddings().weight.device
        given = torch.tensor([ids], device=device)
        try:
            with self.as_itself(), inference(self.model), masked(plain_model(self.model)):
                self.model.generate(
                    input_ids=given,
                    attention_mask=torch.ones_like(given),
                    max_new_tokens=min(way.max_new_tokens, room),
                    eos_token_id=self.end_ids,
                    pad_token_id=self.end_ids[0],
                    streamer=streamer,
                    use_cache=True,
                    **_sampling(way),
                )
        except KeyboardInterrupt:
            say(" …")
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error) from error
        if not way.is_raw:
            self.messages = [
                *self.messages,
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": streamer.text},
            ]


class _Streamer(BaseStreamer):
    """Passes on text as soon as its tokens are whole characters; the prompt comes first."""

    def __init__(self, tokenizer: Any, say: Say) -> None:
        self._tokenizer, self._say = tokenizer, say
        self._ids: list[int] | None = None
        self._num_said, self.text = 0, ""

    def put(self, value: torch.Tensor) -> None:
        """Take the next tokens."""
        if self._ids is None:
            self._ids = []
            return
        self._ids += value.flatten().tolist()
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # a character of which bytes are still to come
            self._pass_on(text)

    def end(self) -> None:
        """Pass on what is left, if it is half a character."""
        self._pass_on(self._tokenizer.decode(self._ids or [], skip_special_tokens=True))

    def _pass_on(self, text: str) -> None:
        self.text = text
        self._say(text[self._num_said :].translate(_CONTROLS))
        self._num_said = len(text)


def _most_tokens(model: Any) -> int:
    text = plain_model(model).config.get_text_config()
    return int(getattr(text, "max_position_embeddings", None) or 1 << 30)


def _sampling(sampling: Way) -> dict[str, Any]:
    if not sampling.temperature:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {"do_sample": True, "temperature": sampling.temperature}


def out_of_memory(error: Exception) -> UserError:
    """Return the error for a device that the model does not fit on."""
    return UserError(
        f"the model does not fit on this device: {str(error).splitlines()[0]}",
        do="end with --device cpu, which is slow; CUDA_VISIBLE_DEVICES=1 before it takes another "
        "GPU; or go without --beside-base",
        code=ExitCode.OUT_OF_MEMORY,
    )


def speakers(
    config: RunConfig, run: RunDir, prepared: Prepared, device: torch.device, *, beside_base: bool
) -> Iterator[Speaker]:
    """Yield the base, if it is asked for, and the trained model, loaded onto `device`.

    Adapters and their base are one model in memory. Raises UserError, OSError, and
    torch.OutOfMemoryError.
    """
    plain = replace(
        config,
        model=replace(config.model, gradient_checkpointing=False, attention="auto"),
        train=replace(config.train, method="full"),
    )
    base_folder, end_id = Path(prepared.model_path), prepared.train.end_token_id
    has_adapter = (run.adapter / "adapter_config.json").is_file()
    if has_adapter and (beside_base or not run.model.is_dir()):
        model = _with_adapter(replace(plain, train=config.train), base_folder, run.adapter, device)
        ends = end_token_ids(plain_model(model), end_id)
        if beside_base:
            yield Speaker(label="base", model=model, end_ids=ends, as_itself=model.disable_adapter)
        yield Speaker(label="trained", model=model, end_ids=ends)
        return
    if beside_base:
        base = grow(load_model(plain, base_folder, device), base_folder)
        yield Speaker(label="base", model=base, end_ids=end_token_ids(base, end_id))
    trained = load_model(plain, run.model, device)
    yield Speaker(label="trained", model=trained, end_ids=end_token_ids(trained, end_id))


def _with_adapter(config: RunConfig, base: Path, adapter: Path, device: torch.device) -> Any:
    """Return the base with the adapters on it, in four bits if they were trained so."""
    model = grow(load_model(config, base, device), base)
    with without_cuda_at_import(but="bitsandbytes" if config.train.method == "qlora" else ""):
        from peft import PeftModel

        return PeftModel.from_pretrained(model, adapter)
