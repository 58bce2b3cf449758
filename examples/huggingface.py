"""Watch a Hugging Face model made from a configuration, with dict outputs and shared weights."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import layerscope as ls

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=256, n_positions=64, bos_token_id=0, eos_token_id=0)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with ls.watch(model, optimizer, to="runs/gpt2", every=2, sites=["transformer.h.*", "lm_head"]) as run:
    for _ in range(10):
        tokens = torch.randint(256, (4, 32))
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)

print(ls.open("runs/gpt2").stats("transformer.h.*.attn", kind="output", stat=["rms", "abs_max"]))
