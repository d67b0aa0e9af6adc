"""`python -P -m launch`: the command-line entry point; see launch/cli.py."""

import signal

if __name__ == "__main__":
    # Until there is something to clean up, Ctrl-C ends the program without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from launch.cli import airlock

    airlock(prog_name="airlock")
