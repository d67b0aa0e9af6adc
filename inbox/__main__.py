"""`python -P -m inbox`: the command-line entry point; see inbox/inbox_command.py."""

import signal
import sys

if __name__ == "__main__":
    # Until the daemon listens for it, Ctrl-C ends the program without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from inbox.inbox_command import main

    main(sys.argv[1:])
