"""scikit-learn and skorch: a network in a pipeline, cross-validated and searched; saved, pickled
and loaded; a metric on its predictions."""

import pickle

import numpy as np
import skorch
import torch
from outcome import DEVICE, FOLDER, finish
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, GradientNormClipping
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, hidden), nn.ReLU(), nn.LayerNorm(hidden), nn.Linear(hidden, 2)
        )

    def forward(self, x):
        return self.layers(x)


def net(**settings):
    torch.manual_seed(6)
    return skorch.NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.02,
        max_epochs=3,
        batch_size=16,
        iterator_train__shuffle=True,
        device=DEVICE,
        verbose=0,
        **settings,
    )


def main():
    x, y = make_classification(160, 12, n_informative=6, random_state=2)
    x, y = x.astype(np.float32), y.astype(np.int64)
    chosen = [
        Checkpoint(dirname=FOLDER / "kept"),
        EarlyStopping(patience=3),
        GradientNormClipping(1.0),
        EpochScoring("roc_auc", lower_is_better=False, name="auc"),
    ]
    one = net(callbacks=chosen, compile=False).fit(x, y)
    one.partial_fit(x, y)
    one.save_params(f_params=FOLDER / "params.pt", f_optimizer=FOLDER / "optimizer.pt")
    other = net().initialize()
    other.load_params(f_params=FOLDER / "params.pt", f_optimizer=FOLDER / "optimizer.pt")
    copied = pickle.loads(pickle.dumps(one))
    probabilities = one.predict_proba(x)
    for same in (other, copied):
        assert next(same.module_.parameters()).device.type == DEVICE
        assert (same.predict_proba(x) == probabilities).all()

    pipe = make_pipeline(StandardScaler(), net())
    torch.manual_seed(7)
    scores = cross_val_score(pipe, x, y, cv=3, scoring="accuracy")
    torch.manual_seed(7)
    search = GridSearchCV(
        pipe,
        {"neuralnetclassifier__module__hidden": [8, 16], "neuralnetclassifier__lr": [0.01, 0.05]},
        cv=2,
        scoring="roc_auc",
    ).fit(x, y)
    history = [
        {k: row[k] for k in ("train_loss", "valid_loss", "valid_acc", "auc")} for row in one.history
    ]
    finish(
        where=next(one.module_.parameters()).device.type,
        history=history,
        auc=float(roc_auc_score(y, probabilities[:, 1])),
        scores=scores.tolist(),
        best=[search.best_params_, float(search.best_score_)],
        grid=search.cv_results_["mean_test_score"].tolist(),
        weights=search.best_estimator_[-1].module_.state_dict(),
    )


if __name__ == "__main__":
    main()
