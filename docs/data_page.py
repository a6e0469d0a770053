"""The page about published data sets: its table is that of ``rllib_lmgame.data_sets``."""

from __future__ import annotations

from tables import table

from rllib_lmgame.base.text import size_text
from rllib_lmgame.data_sets.table import SETS

MANY = 5
"""Parts that are named in the table, at most."""

HEAD = """# Data sets

```console
$ rllib data list                       # which there are, and which are here
$ rllib data list agentgym-traj         # its parts
$ rllib data fetch gsm8k wiki18:corpus  # bring sets, or parts of them, to this machine
$ rllib data path gsm8k:test            # where the file is
$ rllib data verify gsm8k               # read all files and compare their hashes
```

Where a configuration could name a file, it may say `data:NAME` or `data:NAME:PART`:

```yaml
# below `config`
env: lmgame/GSM8K-v0
env_config: {data: data:gsm8k, split: train}
```

Nothing is fetched on the way. A run that names a set which is not here ends before Ray starts, with the command that
brings it. On a cluster every node needs it: let `RLLIB_LMGAME_DATA` lead to a folder that all see.

## Fetching

- Sets lie in `$RLLIB_LMGAME_DATA`, by default `~/.cache/rllib_lmgame/data` or `$RLLIB_LMGAME_CACHE/data`, each in a
  folder of its name.
  Its `SOURCE.json` says where each file came from, its commit and its SHA-256.
- A command that was interrupted goes on where it was. A file has its name when it is whole.
  Hashes are compared with the table's and the hub's.
- `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` mean what they mean to Hugging Face's own tools.
- `--from DIR` takes the files from a folder and asks nobody: what you downloaded, or the folder that another machine
  fetched. Hashes that the table knows are compared, whatever the folder says of itself. Files without one are named;
  where several sets have files of such a name (`test.jsonl`), those of a set must lie in `DIR/NAME`.
- WebShop's search index is made when its catalogue is first played, before Ray starts, and lies beside the sets.
  60,000 products took two minutes on one busy core.

## Splits

Some sets have splits of their publisher: parts called `train`, `validation` and `test`. A game's option `split` chooses
among them. Where there is no `validation`, a tenth of the training levels is it, by hash. A set without `train` is not
for training: `split` has to be `test` or `all`. Files of your own are split by hash. Supervised learning reads the part
`train` of a set that has one, and all of it otherwise; `rllib data path NAME` prints the files of all parts.

A game for one player deals the levels of a file, or of a set, each once before any comes again. In training the order
follows from the run's seed, in evaluations it is always the same. So an evaluation with as many episodes as a set has
levels plays all of it. What an expert plays for a warm start is drawn at random, and so are WebShop's products where
the set has no wishes of people.

`stop: {data_epochs: 3}` ends a run of PPO or GRPO after the iteration in which every level has been dealt three times.
A group counts as one deal of its level, and so do groups that `data_selection` begins and drops.

## The table

"""


def data_page() -> str:
    """The page."""
    rows = [
        [f"`{name}`", each.about, _parts(tuple(each.parts)), size_text(each.size), each.licence]
        for name, each in SETS.items()
    ]
    return HEAD + table(("name", "what it is", "parts", "on the disk", "licence"), rows) + "\n"


def _parts(parts: tuple[str, ...]) -> str:
    named = ", ".join(f"`{part}`" for part in parts[:MANY])
    return named if len(parts) <= MANY else f"{named} and {len(parts) - MANY} more"
