"""The command line `python -m runtime`: schedules and plans, without any network."""

import sys

from runtime.frontends.cli.schedule_commands import main

if __name__ == "__main__":
    sys.exit(main())
