"""`python -m monitor serve|monitor [OPTIONS]`: the process that `./airlock serve` becomes."""

import signal
import sys

if __name__ == "__main__":
    # Until there is something to clean up, Ctrl-C ends the program without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from monitor.serve_command import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1:])
