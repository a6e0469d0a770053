"""Published data sets by name: which there are, where they lie, and how they get there.

A configuration says ``data:NAME`` or ``data:NAME:PART`` where it could name a file; :func:`.places.path_of` makes the
file's path of it. Nothing is fetched on the way: that is what ``rllib data fetch`` does.
"""
