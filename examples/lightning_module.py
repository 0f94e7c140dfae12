"""Square loss in a LightningModule: the criterion in `__init__`, the link in `predict_step`.

Run: python examples/lightning_module.py (seconds on a laptop's CPU; needs squareloss[lightning])
"""

import lightning
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from squareloss import SquareLoss
from squareloss.models import MLP


class Digits(lightning.LightningModule):
    """A network, its loss, and probabilities from `predict_step`."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.network = MLP(64, (128,), 10, generator=torch.Generator().manual_seed(0))
        self.criterion = SquareLoss()  # was: torch.nn.CrossEntropyLoss(); adds nothing to the checkpoint

    def training_step(self, batch, batch_index):
        """The loss of a batch."""
        x, y = batch
        return self.criterion(self.network(x), y)

    def validation_step(self, batch, batch_index):
        """Loss and accuracy of a batch."""
        x, y = batch
        outputs = self.network(x)
        self.log("val_loss", self.criterion(outputs, y))
        self.log("val_accuracy", (outputs.argmax(1) == y).float().mean())  # the class is the argmax, as ever

    def predict_step(self, batch, batch_index):
        """Class probabilities of a batch (N, 10)."""
        return self.criterion.probabilities(self.network(batch[0]))  # not softmax

    def configure_optimizers(self):
        """Cross-entropy's optimiser and learning rate."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main(epochs: int = 10) -> tuple[float, float]:
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x_train, x_test, y_train, y_test = train_test_split(x.float() / 16, y, test_size=0.3, random_state=0)
    train = DataLoader(TensorDataset(x_train, y_train), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(0))
    test = DataLoader(TensorDataset(x_test, y_test), batch_size=256)

    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(model, train, test)

    p = torch.cat(trainer.predict(model, test))  # (540, 10)
    confidence, predicted = p.max(1)
    accuracy = (predicted == y_test).float().mean().item()
    gap = confidence.mean().item() - accuracy
    print(f"accuracy {accuracy:.3f}, mean confidence minus accuracy {gap:+.3f}")
    return accuracy, gap


if __name__ == "__main__":
    main()
