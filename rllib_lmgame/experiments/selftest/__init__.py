"""What only GPUs can show, tried by ``rllib doctor --gpu``. Without one each check runs in its CPU form.

A check is a function of a :class:`~.measured.Setting` that returns what it measured. It starts the engines, learners
and runs that training starts, and nothing else. ``checks`` lists them, ``running`` gives each a process of its own.
"""
