"""The lock of an inbox: one daemon at a time, and who only looks is not in its way."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from inbox.daemon_state import held, is_held
from inbox.layout import Layout
from rundir.errors import UserError


def test_a_daemon_begins_although_somebody_is_looking_at_its_lock(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    reader = os.open(layout.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(reader, fcntl.LOCK_SH)  # as is_held does, for a moment

    def end() -> None:
        time.sleep(0.05)
        os.close(reader)

    looking = threading.Thread(target=end)
    looking.start()
    with held(layout):
        assert is_held(layout)
        with pytest.raises(UserError, match="another inbox has"), held(layout):
            pass
    looking.join()
    assert not is_held(layout)
