"""bfloat16 by the switch of each library."""

import lightning as L
import torch
from accelerate import Accelerator
from outcome import DEVICE, FOLDER, finish
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
X = torch.randn(64, 16)
Y = (X[:, :4].sum(1) > 0).long()
TARGETS = DataLoader(TensorDataset(X, Y), batch_size=16)


def is_bfloat16(module, inputs, output):
    """A forward hook: what the switch has to do."""
    assert output.dtype == torch.bfloat16, output.dtype
    assert output.device.type == DEVICE


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2))


def with_accelerate():
    accelerator = Accelerator(cpu=DEVICE == "cpu", mixed_precision="bf16")
    net = network()
    net[0].register_forward_hook(is_bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net, optimizer, batches = accelerator.prepare(net, optimizer, TARGETS)
    losses = []
    for _ in range(4):
        for x, y in batches:
            loss = nn.functional.cross_entropy(net(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert next(net.parameters()).device.type == DEVICE
    return losses


def with_transformers():
    torch.manual_seed(2)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=32,
        )
    )  # fmt: skip
    model.model.layers[1].mlp.down_proj.register_forward_hook(is_bfloat16)
    rows = [{"input_ids": torch.arange(12) % 5 + i % 3, "labels": torch.arange(12) % 5 + i % 3}
            for i in range(32)]  # fmt: skip
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(FOLDER / "run"), use_cpu=DEVICE == "cpu", bf16=True, max_steps=8,
            per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1, report_to="none",
            save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=rows,
    )  # fmt: skip
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = network(), []

    def training_step(self, batch, _):
        x, y = batch
        logits = self.net(x)
        is_bfloat16(self, batch, logits)
        loss = nn.functional.cross_entropy(logits, y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def with_lightning():
    module = Module()
    L.Trainer(
        accelerator="cpu" if DEVICE == "cpu" else "gpu", devices=1, max_epochs=4,
        precision="bf16-mixed", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, TARGETS)  # fmt: skip
    return module.losses


def main():
    finish(
        where=DEVICE,
        accelerate=with_accelerate(),
        transformers=with_transformers(),
        lightning=with_lightning(),
    )


if __name__ == "__main__":
    main()
