#!/bin/sh
# Posts what happens in a run to a webhook (Slack, Mattermost, Discord: a JSON object with "text").
#
#   export WEBHOOK_URL=https://hooks.example.org/…      # in the environment: no command shows it
#   ./start.sh 32b --data my.jsonl --on-event examples/on_event_webhook.sh
#
# The facts come as one JSON object on standard input; AIRLOCK_EVENT is its "event".
set -eu
: "${WEBHOOK_URL:?is not set: the address to post to}"
python3 -c '
import json, sys
facts = json.load(sys.stdin)
what = facts.get("what") or facts.get("title") or facts.get("meaning") or ""
step, total = facts["step"], facts["total_steps"]
text = "{run}: {event}: {what} (step {step} of {total})".format(
    run=facts["run"], event=facts["event"], what=what, step=step, total=total or "?"
)
json.dump({"text": text, "content": text}, sys.stdout)
' | curl --silent --show-error --fail --max-time 20 \
    --header 'Content-Type: application/json' --data @- --output /dev/null "$WEBHOOK_URL"
