"""Options of on-policy distillation. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from rllib_lmgame.base.group import REQUIRED, Group, Scheduled, option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.endpoints.address import ENDPOINT

KEY = "config.teacher.model"


class TeacherOptions(Group):
    """The ``teacher`` section: a model that judges each token the policy has sampled."""

    model: str = option(
        REQUIRED,
        "The teacher, of the policy's own vocabulary: a checkpoint, directory or hub id, which each learner holds, or "
        "`openai:MODEL@URL`, a server that gives log-probabilities.",
        path=True,
        stranger=is_name,
    )
    coefficient: Scheduled[float] = option(
        1.0,
        "What a token's advantage loses for each nat that its log-probability under the policy is above that under the "
        "teacher.",
        gt=0,
    )
    game: bool = option(True, "The advantages of the game's rewards count beside it; else the teacher alone does.")
    trust_remote_code: bool = option(False, "Run the code that the teacher's directory brings along.", stranger=False)

    @property
    def is_asked(self) -> bool:
        """Whether it is behind an endpoint, which is asked, and learners hold none."""
        return self.model.startswith(ENDPOINT)
