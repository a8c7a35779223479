"""Trains a small GPT-2, byte by byte, on the text of Python's own help topics."""

import torch
from gpt_text import Log, arguments, batches, build_model

args = arguments()
torch.manual_seed(0)
model = build_model(args.dropout)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)


def train_step(model, ids, labels):
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    return loss


log = Log(args)
for ids, labels in batches(args.steps, args.batch):
    optimizer.zero_grad()
    loss = train_step(model, ids, labels)
    optimizer.step()
    log.step(loss.item())
log.write(model.state_dict())
