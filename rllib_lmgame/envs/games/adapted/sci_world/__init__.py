"""SciWorld: school experiments in the ScienceWorld simulator."""
