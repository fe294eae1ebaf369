"""How each region becomes launches, one file a rule; importing them registers them. Nothing here imports triton."""
