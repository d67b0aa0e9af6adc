"""`python -m monitor.report RUN -o FILE.html`: the process that `./airlock report` becomes."""

import signal

if __name__ == "__main__":
    # The file is written in one step: Ctrl-C ends the program without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from monitor.report.report_command import main

    main()
