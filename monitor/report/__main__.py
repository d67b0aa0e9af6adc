"""`python -m monitor.report RUN -o FILE.html`: the process that `./airlock report` becomes."""

from monitor.report.command import main

if __name__ == "__main__":
    main()
