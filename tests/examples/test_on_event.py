"""The examples for --on-event reach a real webhook and a real mail server."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import shutil
import socketserver
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from rundir.paths import ROOT

_FACTS = {
    "event": "bad-loss",
    "run": "20261120-221500-tiny-3f2a",
    "what": "step 7: the loss is nan; its samples: “a”.jsonl:3",
    "step": 7,
    "total_steps": None,
    "loss": "nan",
}


def tell(name: str, facts: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an example as --on-event does."""
    return subprocess.run(
        ["/bin/sh", "-c", shlex.quote(str(ROOT / "examples" / name))],
        env=os.environ | {"AIRLOCK_EVENT": facts["event"], **variables},
        input=json.dumps(facts) + "\n",
        text=True,
        capture_output=True,
        check=False,
    )


@contextmanager
def webhook(status: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of a real HTTP server, and what is posted to it."""
    posted: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append({"type": self.headers["Content-Type"], **json.loads(body)})
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", posted
        server.shutdown()
        thread.join()


@contextmanager
def mail_server() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a mail server that speaks SMTP, and the mails that it gets."""
    mails: list[bytes] = []

    class Mail(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                if line.upper().startswith(b"DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    mails.append(b"".join(takewhile(lambda one: one != b".\r\n", self.rfile)))
                is_last = line.upper().startswith(b"QUIT")
                self.wfile.write(b"221 bye\r\n" if is_last else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], mails
        server.shutdown()
        thread.join()


# What a machine with a mail server of its own has as `sendmail -t`.
_SENDMAIL = """#!/usr/bin/env python3
import email, smtplib, sys
assert sys.argv[1:] == ["-t"]
mail = email.message_from_bytes(sys.stdin.buffer.read())
with smtplib.SMTP("127.0.0.1", {port}) as server:
    server.sendmail("airlock@example.org", [mail["To"]], mail.as_bytes())
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_webhook_gets_the_event_in_one_line_of_text() -> None:
    with webhook(200) as (url, posted):
        done = tell("on_event_webhook.sh", _FACTS, WEBHOOK_URL=url)
    assert (done.returncode, done.stderr) == (0, "")
    (one,) = posted
    assert one["type"] == "application/json"
    assert one["text"] == one["content"]
    assert one["text"] == (
        "20261120-221500-tiny-3f2a: bad-loss: step 7: the loss is nan; its samples: “a”.jsonl:3 "
        "(step 7 of ?)"
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_webhook_that_refuses_is_an_error_with_its_answer() -> None:
    with webhook(403) as (url, _):
        done = tell("on_event_webhook.sh", _FACTS, WEBHOOK_URL=url)
    assert done.returncode != 0
    assert "403" in done.stderr


def test_a_mail_is_sent_with_the_facts(tmp_path: Path) -> None:
    with mail_server() as (port, mails):
        sendmail = tmp_path / "sendmail"
        sendmail.write_text(_SENDMAIL.format(port=port))
        sendmail.chmod(sendmail.stat().st_mode | stat.S_IXUSR)
        done = tell("on_event_mail.sh", _FACTS, MAIL_TO="me@example.org", SENDMAIL=str(sendmail))
    assert (done.returncode, done.stderr) == (0, "")
    mail = message_from_bytes(mails[0])
    assert mail["To"] == "me@example.org"
    assert mail["Subject"] == "airlock: bad-loss: 20261120-221500-tiny-3f2a"
    body = mail.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert "step: 7\n" in body
    assert "“a”.jsonl:3" in body


@pytest.mark.parametrize(
    ("name", "variable"),
    [("on_event_webhook.sh", "WEBHOOK_URL"), ("on_event_mail.sh", "MAIL_TO")],
)
def test_an_example_without_an_address_says_which_variable_it_needs(
    name: str, variable: str
) -> None:
    done = tell(name, _FACTS, **{variable: ""})
    assert done.returncode != 0
    assert f"{variable}: is not set" in done.stderr
