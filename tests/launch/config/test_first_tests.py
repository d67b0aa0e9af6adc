"""RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST: what is on, what is off, and what is neither."""

from __future__ import annotations

import pytest

from launch.config.first_tests import FIRST_TESTS, check_first_tests
from rundir.errors import UserError

TEST = FIRST_TESTS[0]


@pytest.mark.parametrize("text", ["1", "true", "Yes", " on ", "0", "false", "No", "OFF "])
def test_what_says_yes_or_no_decides_whatever_is_the_default(text: str) -> None:
    is_on = text in ("1", "true", "Yes", " on ")
    assert TEST.is_asked({TEST.variable: text}, by_default=not is_on) == is_on
    off = "" if is_on else "off "
    assert f"{off}({TEST.variable}={text.strip()}" in TEST.line({TEST.variable: text})


@pytest.mark.parametrize("environ", [{}, {TEST.variable: ""}, {TEST.variable: " "}])
def test_what_is_not_set_is_as_by_default(environ: dict[str, str]) -> None:
    assert not TEST.is_asked(environ)
    assert TEST.is_asked(environ, by_default=True)
    assert f"off (not asked for; {TEST.variable}=1" in TEST.line(environ)


@pytest.mark.parametrize("variable", [test.variable for test in FIRST_TESTS])
def test_anything_else_is_an_error_that_names_the_values(variable: str) -> None:
    for text in ("banana", "2", "-1", "tru"):
        with pytest.raises(UserError, match=f"{variable}='{text}'") as raised:
            check_first_tests({variable: text})
        assert "on (1, true, yes, on) nor off (0, false, no, off)" in str(raised.value)
        assert raised.value.do.startswith(f"{variable}=1")
