"""The runner on the driver of the rollouts' tests."""

from tests.rollouts.conftest import make_runner, model_dir  # noqa: F401
