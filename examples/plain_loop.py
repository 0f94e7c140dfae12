"""Square loss in a loop of your own: one line changes, the learning rate stays.

Run: python examples/plain_loop.py (about a second on a laptop's CPU)
"""

import tempfile

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from squareloss import Classifier, SquareLoss
from squareloss.classifier import Standardize
from squareloss.models import MLP


def main(epochs: int = 30) -> tuple[float, float]:
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x_train, x_test, y_train, y_test = train_test_split(x.float(), y, test_size=0.3, random_state=0)

    generator = torch.Generator().manual_seed(0)
    network = MLP(64, (128,), 10, generator=generator)  # any nn.Module with 10 outputs
    scale = Standardize.from_data(x_train)
    criterion = SquareLoss()  # was: torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    for _ in range(epochs):
        for rows in torch.randperm(len(x_train), generator=generator).split(64):
            optimizer.zero_grad()
            criterion(network(scale(x_train[rows])), y_train[rows]).backward()
            optimizer.step()

    # what you ship: pixels in, probabilities out. Not softmax: the link of the loss reads the outputs
    with tempfile.TemporaryDirectory() as folder:
        Classifier(network, criterion.link, scale).save(folder)
        classifier = Classifier.load(folder)  # eval mode; for a network of your own: load(folder, network=MyNetwork())
    with torch.no_grad():
        p = classifier.probabilities(x_test)  # (540, 10)
    confidence, predicted = p.max(1)
    accuracy = (predicted == y_test).float().mean().item()
    gap = confidence.mean().item() - accuracy  # below 0: less sure than it is right, as here
    print(f"accuracy {accuracy:.3f}, mean confidence minus accuracy {gap:+.3f}")
    return accuracy, gap


if __name__ == "__main__":
    main()
