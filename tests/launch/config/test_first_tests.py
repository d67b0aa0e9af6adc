"""RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST: what is on, what is off, and what is neither."""

from __future__ import annotations

import pytest

from launch.config.first_tests import FIRST_TESTS, check_first_tests
from rundir.errors import UserError

TEST = FIRST_TESTS[0]


@pytest.mark.parametrize("text", ["1", "true", "Yes", " on "])
def test_what_says_yes_turns_a_test_on(text: str) -> None:
    assert TEST.is_asked({TEST.variable: text})
    assert f"({TEST.variable}={text.strip()})" in TEST.line({TEST.variable: text})


@pytest.mark.parametrize("text", ["0", "false", "No", "OFF "])
def test_what_says_no_turns_a_test_off_even_where_it_is_on_by_default(text: str) -> None:
    assert not TEST.is_asked({TEST.variable: text}, by_default=True)
    assert f"off ({TEST.variable}={text.strip()}" in TEST.line({TEST.variable: text})


@pytest.mark.parametrize("environ", [{}, {TEST.variable: ""}, {TEST.variable: " "}])
def test_what_is_not_set_is_as_by_default(environ: dict[str, str]) -> None:
    assert not TEST.is_asked(environ)
    assert TEST.is_asked(environ, by_default=True)
    assert f"off (not asked for; {TEST.variable}=1" in TEST.line(environ)


@pytest.mark.parametrize("test", FIRST_TESTS)
@pytest.mark.parametrize("text", ["banana", "2", "-1", "tru"])
def test_anything_else_is_an_error_that_names_the_values(test: object, text: str) -> None:
    variable = test.variable  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"{variable}='{text}'") as raised:
        check_first_tests({variable: text})
    assert "on (1, true, yes, on) nor off (0, false, no, off)" in str(raised.value)
    assert raised.value.do.startswith(f"{variable}=1")
