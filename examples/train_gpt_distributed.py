"""Trains a small GPT-2, byte by byte, on the text of Python's own help topics."""

import autopart.smp as smp
import torch
from gpt_text import Log, arguments, batches, build_model

args = arguments()
smp.init({"pipeline_parallel_degree": 2, "microbatches": 4, "plan": args.plan})
torch.manual_seed(0)
model = smp.DistributedModel(build_model(args.dropout))
optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=3e-4))


@smp.step
def train_step(model, ids, labels):
    loss = model(input_ids=ids, labels=labels).loss
    model.backward(loss)
    return loss


log = Log(args)
for ids, labels in batches(args.steps, args.batch):
    optimizer.zero_grad()
    loss = train_step(model, ids, labels)
    optimizer.step()
    log.step(loss.reduce_mean().item())
log.write(model.state_dict())
