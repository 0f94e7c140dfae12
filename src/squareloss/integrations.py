"""Small pieces for Hugging Face transformers, where the obvious code would be silently wrong. Imports nothing of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from squareloss.codings import Link
from squareloss.losses import Loss


def trainer_loss(criterion: Loss) -> Callable[..., Tensor]:
    """`criterion` as the `compute_loss_func` of `transformers.Trainer`, right under gradient accumulation.

    The trainer counts the labels in all the batches of one update and leaves the division to this function:

        loss = sum of the losses of this batch / num_items_in_batch,

    so an update is the same whether its samples came in one batch or in several, equal in size or not. The mean over
    each batch, which is what the criterion alone returns, would make the update larger by the number of batches.

    Logits are read at `outputs["logits"]`, with the class axis last: (N, K), or (N, T, K) for one label per token. Labels
    are class indices (N,) or (N, T), -100 where there is none, or soft targets, one probability per class. Language models,
    whose labels are shifted by one token, are not covered. With class weights, the sum is divided by the number of labels,
    not by the sum of their weights.

    Example: `Trainer(model, args, compute_loss_func=trainer_loss(SquareLoss()), ...)`.
    """
    if not isinstance(criterion, nn.Module):
        raise TypeError(f"expected a loss such as SquareLoss(), got {criterion!r}")
    if criterion.ignore_index != -100:
        raise ValueError(f"expected ignore_index=-100, by which the trainer counts labels, got {criterion.ignore_index}")
    mean, total = _reduced(criterion, "mean"), _reduced(criterion, "sum")

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        soft = labels.is_floating_point()
        logits = outputs["logits"].flatten(0, -2)  # (N T, K)
        target = labels.flatten(0, -2) if soft else labels.flatten()
        if num_items_in_batch is None:
            return mean(logits, target)  # type: ignore[no-any-return]
        labels_each = labels.shape[-1] if soft else 1  # the trainer counts every entry of a soft target
        return total(logits, target) * labels_each / num_items_in_batch  # type: ignore[no-any-return]

    return compute_loss


def serve_log_probabilities(model: nn.Module, link: Link) -> RemovableHandle:
    """Make a trained transformers model return log p as its logits, so that whatever softmaxes them shows p.

    The classification pipelines for text, tokens, images and audio all take the softmax of the logits. Of a model trained with
    square loss that is no probability; but softmax(log p) = p. Training is refused until `remove()` is called on
    the returned handle; calling this again replaces the link. It is not saved with the model: call it after loading.

    Arguments:
        model: returns outputs with "logits" of shape (N, K) or (N, T, K).
        link: how they are read, `Simplex()` for the default loss.

    Example: `serve_log_probabilities(model, Simplex())`, then `pipeline("text-classification", model=model, ...)`.
    """
    if isinstance(link, type) or not isinstance(link, Link):
        hint = "criterion.link" if hasattr(link, "link") else "Simplex(), or the link of the loss"
        raise TypeError(f"expected a link, got {link!r}; pass {hint}")
    if getattr(link, "reduced", False):
        raise ValueError(f"expected a link with one output per class, since pipelines name classes by output, got {link}")
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem not in (None, "single_label_classification"):
        raise ValueError(
            f'expected config.problem_type "single_label_classification", where pipelines softmax, got {problem!r}'
        )
    previous = getattr(model, "_log_probabilities_handle", None)
    if isinstance(previous, RemovableHandle):
        previous.remove()
    handle = model.register_forward_hook(partial(_replace_logits, link))
    model._log_probabilities_handle = handle  # type: ignore[assignment]
    return handle


def _replace_logits(link: Link, model: nn.Module, inputs: Any, outputs: Any) -> Any:
    if model.training:
        raise RuntimeError("this model serves log-probabilities as logits; call remove() on the handle before training it")
    logits: Tensor = outputs["logits"].float()
    p = link.probabilities(logits.flatten(0, -2)).view_as(logits)
    # kept finite, since not every consumer takes -inf: exp(log tiny) is 1e-38
    outputs["logits"] = p.clamp_min(torch.finfo(p.dtype).tiny).log()
    return outputs


def _reduced(criterion: Loss, reduction: str) -> Loss:
    other = copy.copy(criterion)
    other.reduction = reduction
    return other
