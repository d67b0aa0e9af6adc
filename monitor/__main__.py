"""`python -m monitor serve|monitor [OPTIONS]`: the process that `./airlock serve` becomes."""

import sys

from monitor.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
