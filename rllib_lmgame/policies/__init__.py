"""Chat formats, models and players. ``policies`` at the top of the repository is a link to this package."""

if __name__ != "rllib_lmgame.policies":
    from rllib_lmgame.base.gym_registration import stand_for

    stand_for("rllib_lmgame.policies", __name__)
