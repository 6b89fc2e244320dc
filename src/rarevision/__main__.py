"""`python -m rarevision`: the same as the command `rarevision`."""

import sys

from rarevision.run.command import main

sys.exit(main())
