"""Lightning: Trainer with callbacks, torchmetrics on the device, validation, a checkpoint, a second
fit that goes on from it, and predict()."""

import warnings

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from outcome import DEVICE, FOLDER, finish
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*num_workers.*")


class Classifier(L.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3),
        )  # fmt: skip
        metrics = torchmetrics.MetricCollection(
            {
                "accuracy": torchmetrics.classification.MulticlassAccuracy(3),
                "f1": torchmetrics.classification.MulticlassF1Score(3),
                "auroc": torchmetrics.classification.MulticlassAUROC(3, thresholds=None),
                "confusion": torchmetrics.classification.MulticlassConfusionMatrix(3),
            }
        )
        self.metrics = metrics
        self.losses, self.scores = [], []

    def forward(self, x):
        return self.net(x)

    def on_train_batch_start(self, batch, batch_idx):
        torch.manual_seed(1000 * self.current_epoch + batch_idx)  # for the dropout

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.metrics.update(logits.softmax(-1), y)
        self.log("val_loss", nn.functional.cross_entropy(logits, y), on_epoch=True)

    def on_validation_epoch_end(self):
        scores = self.metrics.compute()
        self.metrics.reset()
        assert all(value.device == self.device for value in scores.values())
        self.scores.append({name: value.tolist() for name, value in scores.items()})
        self.log("accuracy", scores["accuracy"])

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).argmax(-1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def trainer(epochs):
    return L.Trainer(
        accelerator="cpu" if DEVICE == "cpu" else "gpu",
        devices=1,
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        num_sanity_val_steps=1,
        default_root_dir=str(FOLDER),
        callbacks=[
            ModelCheckpoint(dirpath=FOLDER / "kept", monitor="val_loss", save_last=True),
            EarlyStopping("val_loss", patience=5),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=True,
        deterministic=True,
    )


def main():
    L.seed_everything(5)
    x = torch.randn(48, 1, 8, 8)
    y = x.sum((1, 2, 3)).div(4).long() % 3
    train = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=4, num_workers=2)
    held = DataLoader(TensorDataset(x[32:], y[32:]), batch_size=8)
    first = Classifier()
    trainer(epochs=2).fit(first, train, held)
    second = Classifier.load_from_checkpoint(FOLDER / "kept" / "last.ckpt")
    runner = trainer(epochs=4)
    runner.fit(second, train, held, ckpt_path=FOLDER / "kept" / "last.ckpt")
    where = runner.strategy.root_device.type
    predicted = runner.predict(second, held)
    finish(
        where=where,
        losses=first.losses + second.losses,
        scores=first.scores + second.scores,
        best=float(runner.checkpoint_callback.best_model_score),
        predicted=[p.tolist() for p in predicted],
        weights=second.state_dict(),
    )


if __name__ == "__main__":
    main()
