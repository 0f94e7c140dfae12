"""Square loss with Accelerate and gradient accumulation: the loop is the one you have.

Run: python examples/accelerate_loop.py (seconds on a laptop's CPU; needs squareloss[transformers])
On several processes: accelerate launch examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from squareloss import SquareLoss
from squareloss.models import MLP


def main(epochs: int = 30) -> tuple[float, float]:
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x_train, x_test, y_train, y_test = train_test_split(x.float() / 16, y, test_size=0.3, random_state=0)
    generator = torch.Generator().manual_seed(0)
    train = DataLoader(
        TensorDataset(x_train, y_train), batch_size=16, shuffle=True, drop_last=True, generator=generator
    )  # equal batches: the mean of their means is the mean over all
    test = DataLoader(TensorDataset(x_test, y_test), batch_size=256)

    # 4 batches of 16 make one step of 64; leave out cpu=True to train on a GPU
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    network = MLP(64, (128,), 10, generator=generator)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network, optimizer, train, test = accelerator.prepare(network, optimizer, train, test)
    criterion = SquareLoss()  # was: torch.nn.CrossEntropyLoss(); nothing to prepare, it has no parameters

    for _ in range(epochs):
        for inputs, labels in train:
            with accelerator.accumulate(network):
                accelerator.backward(criterion(network(inputs), labels))  # divides by 4
                optimizer.step()
                optimizer.zero_grad()

    network.eval()
    with torch.no_grad():
        pairs = [accelerator.gather_for_metrics((criterion.probabilities(network(a)), b)) for a, b in test]
    p, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))  # (540, 10), (540,)
    confidence, predicted = p.max(1)
    accuracy = (predicted == labels).float().mean().item()
    gap = confidence.mean().item() - accuracy
    accelerator.print(f"accuracy {accuracy:.3f}, mean confidence minus accuracy {gap:+.3f}")
    return accuracy, gap


if __name__ == "__main__":
    main()
