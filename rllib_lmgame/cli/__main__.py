"""``python -m rllib_lmgame.cli``."""

import sys

from rllib_lmgame.cli.main import main

sys.exit(main())
