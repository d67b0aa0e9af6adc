"""`python -m train PROFILE`: train in this single process, without a launcher (launch/plain.py).

This is the only module of `train` that imports `launch`: it is a command line, and no rank imports
it.
"""

import signal

if __name__ == "__main__":
    # Until there is something to clean up, Ctrl-C just ends the program, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    try:
        from launch.plain import command
    except ModuleNotFoundError:
        from launch.setup.typed_module import leave_if_incomplete

        leave_if_incomplete("train")
        raise

    command(prog_name="python -m train")
