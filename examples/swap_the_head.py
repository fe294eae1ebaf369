"""From a checkpoint to a swapped-in circuit: draft eagerly, swap, draft again."""

import torch

from drafts import DraftProposer, DraftRunner

proposer = DraftProposer.from_checkpoint("examples/demo_model/model", dtype=torch.float32, max_seq_len=256)
prompt, hiddens = torch.arange(10, 42), torch.ones(32, proposer.config.hidden_size)  # a target's tokens and hiddens

for runner in (None, DraftRunner(proposer.circuit_draft())):  # the eager head, then the circuit
    proposer.set_circuit_draft(runner)
    state = proposer.alloc_state()
    proposer.prefill_drafter(prompt, hiddens, state)
    print(proposer.path.name, proposer.propose(7, hiddens[31], position=31, num_drafts=3, state=state))
    proposer.free_state(state)
