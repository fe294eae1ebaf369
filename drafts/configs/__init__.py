"""config.json files of released checkpoints, so that a plan needs no download."""
