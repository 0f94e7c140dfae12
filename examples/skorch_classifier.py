"""Square loss with skorch: a network as a scikit-learn classifier, whose `predict_proba` is right.

skorch knows which function turns outputs into probabilities for torch's own losses only. For any other loss it applies
none, so say it: `predict_nonlinearity`.

Run: python examples/skorch_classifier.py (seconds on a laptop's CPU; needs squareloss[skorch])
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from skorch import NeuralNetClassifier

import squareloss
from squareloss import SquareLoss
from squareloss.models import MLP


def make(epochs: int = 20) -> NeuralNetClassifier:
    return NeuralNetClassifier(
        MLP(64, (128,), 10, generator=torch.Generator().manual_seed(0)),
        criterion=SquareLoss,  # was: torch.nn.CrossEntropyLoss; arguments as criterion__weight, criterion__coding
        predict_nonlinearity=squareloss.probabilities,  # of the default loss; else the link's, OneHot(k=5, M=15).probabilities
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        lr=0.1,
        batch_size=64,
        max_epochs=epochs,
        train_split=None,
        iterator_train__shuffle=True,
        iterator_train__generator=torch.Generator().manual_seed(0),
        verbose=0,
    )


def main() -> tuple[float, float]:
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x.astype(np.float32), y, test_size=0.3, random_state=0)
    model = make_pipeline(MinMaxScaler(), make())
    model.fit(x_train, y_train)
    accuracy = model.score(x_test, y_test)
    gap = model.predict_proba(x_test).max(1).mean() - accuracy
    print(f"accuracy {accuracy:.3f}, mean confidence minus accuracy {gap:+.3f}")
    return accuracy, gap


if __name__ == "__main__":
    main()
