#!/bin/sh
# Mails what happens in a run, by the sendmail of this machine.
#
#   export MAIL_TO=me@example.org
#   ./start.sh 32b --data my.jsonl --on-event examples/on_event_mail.sh
#
# The facts come as one JSON object on standard input; AIRLOCK_EVENT is its "event".
set -eu
: "${MAIL_TO:?is not set: the address to mail to}"
case ${AIRLOCK_EVENT:-} in
    failure) exit 0 ;; # not worth a mail of its own: "end" follows, or a restart
esac
python3 -c '
import json, os, sys
from email.message import EmailMessage
facts = json.load(sys.stdin)
mail = EmailMessage()
mail["To"] = os.environ["MAIL_TO"]
mail["Subject"] = "airlock: {event}: {run}".format(**facts)
mail.set_content("\n".join(f"{name}: {value}" for name, value in facts.items()))
sys.stdout.buffer.write(mail.as_bytes())
' | "${SENDMAIL:-sendmail}" -t
