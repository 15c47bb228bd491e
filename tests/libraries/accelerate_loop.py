"""accelerate: a training loop with accumulation, clipping, a scheduler, saved and loaded state, and
gathered predictions; safetensors of the trained weights; einops in the model."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from einops import rearrange
from einops.layers.torch import Rearrange
from outcome import DEVICE, FOLDER, finish
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        self.embed = nn.Linear(48, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, images):
        x = self.layer(self.embed(self.cut(images)))
        x = rearrange(x, "b (h w) d -> b h w d", h=4)
        return self.head(x.mean((1, 2)))


def main():
    set_seed(4)
    images = torch.randn(40, 3, 16, 16)
    labels = (images.mean((1, 2, 3)) * 40).long() % 5
    loader = DataLoader(
        TensorDataset(images, labels), batch_size=4, shuffle=True, pin_memory=DEVICE == "cuda"
    )
    held = DataLoader(TensorDataset(images[:10], labels[:10]), batch_size=4)
    net = Patches()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    accelerator = Accelerator(cpu=DEVICE == "cpu", gradient_accumulation_steps=2)
    net, optimizer, loader, held, schedule = accelerator.prepare(
        net, optimizer, loader, held, schedule
    )
    losses, norms = [], []
    for epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = nn.functional.cross_entropy(net(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(net.parameters(), 1.0).item())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            accelerator.save_state(str(FOLDER / "state"))
            with torch.no_grad():
                for p in net.parameters():
                    p.add_(1.0)
            accelerator.load_state(str(FOLDER / "state"))
    net.eval()
    predictions = []
    with torch.no_grad():
        for x, y in held:
            predictions.append(accelerator.gather_for_metrics((net(x).argmax(-1), y)))

    model = accelerator.unwrap_model(net)
    save_file(model.state_dict(), FOLDER / "model.safetensors")
    loaded = load_file(FOLDER / "model.safetensors", device=DEVICE)
    assert all(t.device.type == DEVICE for t in loaded.values())
    again = Patches().to(DEVICE)
    again.load_state_dict(loaded)
    with safe_open(FOLDER / "model.safetensors", "pt", device=DEVICE) as file:
        part = file.get_slice("embed.weight")[2:5]
    assert torch.equal(part, model.embed.weight[2:5])
    accelerator.save_model(model, str(FOLDER / "saved"))
    finish(
        where=accelerator.device.type,
        losses=losses,
        norms=norms,
        predictions=[[p.tolist(), y.tolist()] for p, y in predictions],
        weights=again.state_dict(),
        moments=[s["exp_avg_sq"] for s in optimizer.state_dict()["state"].values()],
    )


if __name__ == "__main__":
    main()
