"""Secrets are masked wherever they occur, and other text is left as it is."""

from __future__ import annotations

import json

import pytest

from rundir.masking import MASK, Mask

SECRET = "s3cr3t-value-0123"  # noqa: S105 - nobody's


@pytest.mark.parametrize(
    "text",
    [
        "token hf_0123456789abcdefSECRET in a line",
        "sk-proj-0123456789abcdefSECRET",
        "remote: https://ghp_0123456789abcdefSECRET@github.com/x",
        "postgres://someone:SECRETpassword@db/x",
        "GET /x?access_token=SECRET0123&page=2",
        "Authorization: Bearer SECRET0123456",
        "curl -H 'authorization: basic SECRET0123456'",
        "WANDB_API_KEY=SECRET0123456789",
        '{"api_key": "SECRET0123456", "steps": 12}',
        "my_password: SECRET0123",
        "--hub-token SECRET0123456 --steps 12",
        "AWS AKIASECRET0123456789 and aws_secret_access_key = SECRET/0123456",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nSECRET\nSECRET\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str) -> None:
    masked = Mask([]).text(text)
    assert "SECRET" not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens_per_s": 123456.78, "num_tokens": 1234567, "eos_token_id": 151643}',
        "tokenizer: Qwen2TokenizerFast, max_new_tokens=256, pad_token_id=151643",
        "KeyError: 'model.embed_tokens.weight'",
        "unexpected keyword argument 'tokenizer', sorted(key=lambda one: one)",
        "https://huggingface.co/Qwen/Qwen3-14B and user@host:/data/train.jsonl",
        "a token generated in 12 s, the password of no one",
        '  File "/home/u/keys.py", line 12 in get_token',
    ],
)
def test_what_is_none_is_left(text: str) -> None:
    assert Mask([]).text(text) == text


def test_the_value_of_a_variable_is_found_wherever_it_stands() -> None:
    mask = Mask([{"MY_SECRET": SECRET, "ODD_KEY": 'with "quotes" and ä', "SHORT_TOKEN": "1"}])
    assert mask.text(f"print({SECRET}) 1 1") == f"print({MASK}) 1 1"
    assert "quotes" not in mask.text(json.dumps({"x": 'with "quotes" and ä'}))


def test_of_variables_it_is_the_name_that_tells() -> None:
    mask = Mask([])
    assert mask.variable("HF_TOKEN", "abc") == MASK
    assert mask.variable("SOMEAPIKEY", "abc") == MASK
    assert mask.variable("DB_PASSWORD", "abc") == MASK
    assert mask.variable("TOKENIZERS_PARALLELISM", "false") == "false"
    assert mask.variable("HTTP_PROXY", "http://u:p@proxy:80") == f"http://{MASK}@proxy:80"


def test_a_long_text_is_masked_in_no_time_that_would_be_felt() -> None:
    text = "[rank0] step 12 loss=2.345 tokens_per_s: 1234.5 " * 20_000 + "x" * 500_000
    assert Mask([{"A_TOKEN": SECRET}]).text(text) == text
