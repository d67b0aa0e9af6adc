"""`python -P -m launch`: the command-line entry point; see launch/commands/cli.py."""

import signal

if __name__ == "__main__":
    # Until there is something to clean up, Ctrl-C ends the program without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    try:
        from launch.commands.cli import airlock
    except ModuleNotFoundError:
        from setup.typed_module import leave_if_incomplete

        leave_if_incomplete("launch")
        raise

    airlock(prog_name="airlock")
