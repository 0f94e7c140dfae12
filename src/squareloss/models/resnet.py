"""ResNets for 32 x 32 images: a 3 x 3 stem, no pooling before the blocks (He et al. 2016, as everyone runs them on CIFAR)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm2d):
    """Batch norm without the counter of batches: nothing reads it, and it costs a kernel per layer and step."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, state_dict: Any, prefix: Any, local_metadata: Any, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, {**local_metadata, "version": 2}, *rest)  # 1 would add a counter


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps the size at stride 1."""
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, width, stride), BatchNorm(width)
        self.conv2, self.bn2 = conv3x3(width, width), BatchNorm(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, width, H / stride, W / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1 x 1, a 3 x 3 and a 1 x 1 convolution, the last four times as wide, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), BatchNorm(width)
        self.conv2, self.bn2 = conv3x3(width, width, stride), BatchNorm(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), BatchNorm(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, 4 width, H / stride, W / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        return torch.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))


BLOCKS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    "resnet8": (BasicBlock, (1, 1, 1, 1)),  # a small one, for tests and laptops
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A ResNet of four stages with widths `width` x (1, 2, 4, 8), global average pooling and one linear layer.

    Arguments:
        name: "resnet8" (a small one, for tests and laptops), "resnet18" or "resnet50".
        outputs: number of outputs.
        width: channels of the first stage; 64 in the paper.
        channels: of the images.
    """

    def __init__(self, name: str, outputs: int, *, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        self.spec: dict[str, Any] = {"name": name, "outputs": outputs, "width": width, "channels": channels}
        block, depths = BLOCKS[name]
        self.conv1, self.bn1 = conv3x3(channels, width), BatchNorm(width)
        stages, inputs = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                stages.append(block(inputs, width * 2**stage, stride))
                inputs = width * 2**stage * block.expansion
        self.blocks = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features (N, 8 width expansion) of images (N, channels, H, W)."""
        out = torch.relu(self.bn1(self.conv1(x.contiguous(memory_format=torch.channels_last))))
        return self.blocks(out).mean((2, 3))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N, outputs) of images (N, channels, H, W)."""
        return self.linear(self.features(x))  # type: ignore[no-any-return]
