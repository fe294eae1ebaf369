"""The bodies of the console script's commands, one a module, each imported when its command runs."""
