"""Speed of a drafter's chain, eager, by torch.compile and as a compiled circuit, side by side in one process."""
