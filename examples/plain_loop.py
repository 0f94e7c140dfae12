"""Square loss in a loop of your own: one line changes, the learning rate stays.

Run: python examples/plain_loop.py (seconds on a laptop's CPU)
"""

import tempfile

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from squareloss import Classifier, SquareLoss, Standardize
from squareloss.calibrators import Temperature
from squareloss.models import MLP


def main(epochs: int = 30) -> tuple[float, float]:
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x_train, x_test, y_train, y_test = train_test_split(x.float(), y, test_size=0.3, random_state=0)
    x_held, y_held, x_test, y_test = x_test[:270], y_test[:270], x_test[270:], y_test[270:]  # held out, for a temperature

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
        p = classifier.probabilities(x_test)  # (270, 10)
        temperature = Temperature().fit(classifier(x_held), y_held)
        warm = temperature.transform(classifier(x_test))  # softmax(scores / T), the same classes
    accuracy = (p.argmax(1) == y_test).float().mean().item()
    # below 0: less sure than it is right, as square loss is on data this easy; one number fitted on held-out scores mends it
    gap, mended = (q.amax(1).mean().item() - accuracy for q in (p, warm))
    print(f"accuracy {accuracy:.3f}, mean confidence minus accuracy {gap:+.3f}, with a temperature {mended:+.3f}")
    return accuracy, mended


if __name__ == "__main__":
    main()
