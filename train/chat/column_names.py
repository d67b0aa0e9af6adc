"""The usual names of columns in data files: by them it is known what a row is trained on."""

from __future__ import annotations

# In this order: columns whose meaning is more certain come first.
MESSAGES = ("messages", "conversations", "conversation", "dialogue", "dialog", "contents")
PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("instruction", "completion"),
    ("instruction", "answer"),
    ("question", "answer"),
    ("question", "response"),
    ("question", "solution"),
    ("problem", "solution"),
    ("query", "response"),
    ("query", "answer"),
    ("input", "output"),
    ("inputs", "targets"),
    ("input", "target"),
    ("source", "target"),
    ("user", "assistant"),
    ("human", "assistant"),
    ("prompt", "answer"),
    ("article", "summary"),
)
TEXTS = ("text", "content")
SEGMENTS = "segments"
MORE = ("input", "context", "question")  # context that an instruction or a question may refer to
ABOUT = ("instruction", "question", "query", "prompt")
SYSTEM = ("system", "system_prompt", "systeminstruction")  # in lower case, like all below
TOOLS = ("tools", "functions")
HISTORY = "history"
CHOSEN = ("chosen", "chosen_response", "preferred_output")
REJECTED = ("rejected", "rejected_response", "rejected_messages", "non_preferred_output")
LABELS = ("label", "kto_tag")  # mark answers as good or bad
# Of a row's columns, in lower case. `source` is not among them: it may be a note about all rows.
ROW_NAMES = {
    *MESSAGES,
    *(name for pair in PAIRS for name in pair),
    *TEXTS,
    SEGMENTS,
    *SYSTEM,
    *TOOLS,
    HISTORY,
    *CHOSEN,
    *REJECTED,
} - {"source"}
