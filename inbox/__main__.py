"""`python -P -m inbox`: the command-line entry point; see inbox/command.py."""

import sys

if __name__ == "__main__":
    from inbox.command import main

    main(sys.argv[1:])
