"""Wide ResNets (Zagoruyko and Komodakis 2016): pre-activation blocks, depth 6 n + 4, widths 16 k, 32 k, 64 k, no dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from squareloss.models.resnet import BatchNorm, conv3x3


class WideBlock(nn.Module):
    """Batch norm and ReLU before each of two 3 x 3 convolutions; where the shape changes, the shortcut starts after them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = BatchNorm(inputs), conv3x3(inputs, outputs, stride)
        self.bn2, self.conv2 = BatchNorm(outputs), conv3x3(outputs, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        active = torch.relu(self.bn1(x))
        out = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-depth-widen for 32 x 32 images; the paper's is WRN-16-10.

    Arguments:
        outputs: number of outputs.
        depth: 6 n + 4 for n blocks a stage.
        widen: the factor k of the widths.
        channels: of the images.
    """

    def __init__(self, outputs: int, *, depth: int = 16, widen: int = 10, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"expected depth = 6 n + 4 with n >= 1 (10, 16, 22, 28, ...), got {depth}")
        self.spec: dict[str, Any] = {
            "name": "wide_resnet", "outputs": outputs, "depth": depth, "widen": widen, "channels": channels,
        }  # fmt: skip
        self.conv1 = conv3x3(channels, 16)
        blocks, inputs = [], 16
        for stage in range(3):
            for i in range((depth - 4) // 6):
                width = 16 * widen * 2**stage
                blocks.append(WideBlock(inputs, width, stride=2 if stage > 0 and i == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.bn = BatchNorm(inputs)
        self.linear = nn.Linear(inputs, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features (N, 64 widen) of images (N, channels, H, W)."""
        out = self.blocks(self.conv1(x.contiguous(memory_format=torch.channels_last)))
        return torch.relu(self.bn(out)).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N, outputs) of images (N, channels, H, W)."""
        return self.linear(self.features(x))  # type: ignore[no-any-return]
