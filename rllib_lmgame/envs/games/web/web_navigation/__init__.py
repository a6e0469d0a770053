"""WebNavigation: tasks on a web site shown as accessibility-tree text."""
