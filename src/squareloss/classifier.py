"""A trained network with everything needed to read it: preprocessing, link, class names; saved, loaded and exported."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from squareloss import _checkpoint, models, simplex
from squareloss._checks import choose
from squareloss.codings import Link, OneHot, Simplex, Softmax

LINKS: dict[str, type[Simplex] | type[OneHot] | type[Softmax]] = {"simplex": Simplex, "onehot": OneHot, "softmax": Softmax}


class Standardize(nn.Module):
    """(x - mean) / std along axis 1: the channels of images (N, C, H, W), the features of tables (N, F).

    Arguments:
        mean, std: one number per channel or feature, (C,); or one number for all of them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor | Sequence[float] | float, std: Tensor | Sequence[float] | float) -> None:
        super().__init__()
        dtype = torch.get_default_dtype()  # NumPy's float64 would promote the inputs
        mean, std = torch.as_tensor(mean, dtype=dtype), torch.as_tensor(std, dtype=dtype)
        if mean.shape != std.shape or mean.ndim > 1:
            raise ValueError(f"expected mean and std of one shape, () or (C,), got {tuple(mean.shape)} and {tuple(std.shape)}")
        bad = (~(mean.isfinite() & std.isfinite())).flatten().nonzero()
        if len(bad):
            raise ValueError(
                f"expected finite mean and std, got NaN or infinity at feature {int(bad[0])}; fill or drop such values"
            )
        if not bool((std > 0).all()):
            raise ValueError(f"expected std > 0, got {float(std.min())}; set it to 1 where a feature is constant")
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def from_data(cls, x: Tensor) -> Standardize:
        """With the mean and standard deviation of x (N, C, ...) along axis 1; constant features keep a std of 1."""
        if not isinstance(x, Tensor):
            raise TypeError(f"expected the data as a tensor, got {type(x).__name__}; use torch.as_tensor(x)")
        if x.ndim < 2 or not x.numel():
            raise ValueError(f"expected data of shape (N, C, ...) with N >= 1, got {tuple(x.shape)}")
        rest = [axis for axis in range(x.ndim) if axis != 1]
        x = x.double()
        mean, std = x.mean(rest), x.std(rest, correction=0)
        varies = x.amax(rest) > x.amin(rest)  # rounding leaves a constant feature of float64 a std of some 1e-17
        return cls(mean, torch.where(varies, std, torch.ones_like(std)))

    def forward(self, x: Tensor) -> Tensor:
        """Standardised x, of the same shape."""
        if self.mean.ndim and (x.ndim < 2 or x.shape[1] != len(self.mean)):
            raise ValueError(
                f"expected inputs (N, {len(self.mean)}, ...), got {tuple(x.shape)}; the statistics are those of axis 1"
            )
        shape = self.mean.shape + (1,) * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.std.view(shape) if self.mean.ndim else (x - self.mean) / self.std


class Classifier(nn.Module):
    """A network, the link that reads its outputs, and its preprocessing: x in, K scores out.

    As a module it gives link.scores(network(preprocess(x))), which is what attacks take; `probabilities` and `predict` read
    the same outputs. Call `eval()` first, as for any module; `load` has done so.

    Arguments:
        network: gives outputs (N, width) or (N, width, d1, ...).
        link: how they are read: `Simplex(...)`, `OneHot(...)`, `Softmax()`; the `.link` of the loss it was trained with.
        preprocess: a module applied to x first, for example `Standardize(mean, std)`.
        classes: the names of the K classes, strings or numbers, in the order of their indices.

    Example: `Classifier(network, criterion.link, Standardize.from_data(x)).save("mynet")`, then
    `Classifier.load("mynet", network=network).probabilities(x)` with a network of the same architecture; those of
    `squareloss.models` need not be given.
    """

    def __init__(
        self,
        network: nn.Module,
        link: Link,
        preprocess: nn.Module | None = None,
        classes: Sequence[str | int | float] | None = None,
    ) -> None:
        super().__init__()
        preprocess = nn.Identity() if preprocess is None else preprocess
        _check_parts(network, link, preprocess)
        self.network = network
        self.link = link
        self.preprocess = preprocess
        self.classes = None if classes is None else tuple(_plain(name) for name in classes)

    def forward(self, x: Tensor) -> Tensor:
        """The scores (N, K) of inputs (N, ...): their argmax is the class."""
        return self._checked(self.link.scores(self._outputs(x)))

    def probabilities(self, x: Tensor) -> Tensor:
        """The class probabilities (N, K) of inputs (N, ...), differentiable."""
        return self._checked(self.link.probabilities(self._outputs(x)))

    def predict(self, x: Tensor) -> Tensor:
        """The class indices (N,) of inputs (N, ...); `classes[i]` is the name of class i."""
        with torch.no_grad():
            return self.forward(x).argmax(1)

    def _outputs(self, x: Tensor) -> Tensor:
        _check_inputs(x)
        outputs = self.network(self.preprocess(x))
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"expected the network to return a tensor of outputs, got {type(outputs).__name__}; "
                "wrap it in a module that returns its logits"
            )
        return outputs

    def _checked(self, scores: Tensor) -> Tensor:
        width = scores.shape[simplex.class_dim(scores)]
        if self.classes is not None and width != len(self.classes):
            raise ValueError(f"expected {len(self.classes)} scores, one for each name in classes, got {width}")
        return scores

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write classifier.json and weights.safetensors into `directory`, made if need be; nothing is pickled.

        Tensors keep their dtypes; tied ones are written once. Wrappers of torch.compile and of data-parallel training
        are taken off the network. A save interrupted while writing leaves the classifier that was there before.
        """
        import squareloss

        parts = {"network": _unwrap(self.network), "preprocess": _unwrap(self.preprocess)}
        config = {
            "link": _describe_link(self.link),
            "network": _describe_network(parts["network"]),
            "preprocess": _describe_preprocess(parts["preprocess"]),
            "classes": None if self.classes is None else list(self.classes),
            "versions": {"squareloss": squareloss.__version__, "torch": str(torch.__version__)},
        }
        _checkpoint.write(Path(directory), config, nn.ModuleDict(parts).state_dict())

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], *, network: nn.Module | None = None, preprocess: nn.Module | None = None
    ) -> Classifier:
        """The classifier saved in `directory`, on the CPU, in eval mode.

        A file can't run code: it names a link, a built-in network and a preprocessing out of fixed lists, and holds tensors.

        Arguments:
            network: the architecture, on the CPU, to fill with the saved tensors; needed unless it is one of
                `squareloss.models`.
            preprocess: the same for the preprocessing; needed unless it is `Standardize` or none.
        """
        folder = Path(directory)
        config = _checkpoint.read_config(folder)
        link = _build_link(_checkpoint.section(config, "link", (dict,), folder))
        classes = _checkpoint.section(config, "classes", (list, type(None)), folder)
        saved_network = _checkpoint.section(config, "network", (dict,), folder)
        saved_preprocess = _checkpoint.section(config, "preprocess", (dict, type(None)), folder)
        if not all(isinstance(name, (str, int, float)) for name in classes or ()):
            raise ValueError(f"expected class names that are strings or numbers in {folder}, got {classes}")
        tensors = _checkpoint.read_tensors(folder, config)
        network = _build_network(saved_network, tensors, str(folder)) if network is None else network
        preprocess = _build_preprocess(saved_preprocess, tensors, str(folder)) if preprocess is None else preprocess
        classifier = cls(network, link, preprocess, classes)
        parts = nn.ModuleDict({"network": _unwrap(network), "preprocess": _unwrap(classifier.preprocess)})
        _checkpoint.restore(parts, tensors, str(folder))
        return classifier.eval()

    def export(self, example: Tensor) -> torch.export.ExportedProgram:
        """The program of `probabilities` in eval mode, by `torch.export`, for batches of any size.

        Arguments:
            example: inputs (N, ...) of the shape and dtype to come; only N may differ later.
        """
        _check_inputs(example)
        batch = torch.cat([example, example]) if len(example) == 1 else example  # torch.export would fix a size of 1
        with _evaluating(self):
            return torch.export.export(Probabilities(self), (batch,), dynamic_shapes=_any_batch(), strict=False)

    def export_onnx(self, path: str | os.PathLike[str], example: Tensor) -> None:
        """Write `probabilities` as an ONNX model with input "x" and output "probabilities", for batches of any size.

        Needs the packages of `squareloss[onnx]`. `example` is as in `export`.
        """
        missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"export_onnx needs {' and '.join(missing)}; install with: pip install 'squareloss[onnx]'")
        program = self.export(example)
        with warnings.catch_warnings():
            # raised by torch's exporter against torch itself
            warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
            torch.onnx.export(
                program,
                f=os.fspath(path),
                input_names=["x"],
                output_names=["probabilities"],
                dynamic_shapes=_any_batch(),
                dynamo=True,
                external_data=False,
                verbose=False,
            )

    def extra_repr(self) -> str:
        """The link and the class names."""
        return f"link={self.link}" + ("" if self.classes is None else f", classes={self.classes}")


class Probabilities(nn.Module):
    """A module whose output is `classifier.probabilities(x)`, for tools that take modules: `torch.export`, `torch.compile`."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """The class probabilities (N, K) of inputs (N, ...)."""
        return self.classifier.probabilities(x)


def _check_parts(network: nn.Module, link: Link, preprocess: nn.Module) -> None:
    for name, module in {"network": network, "preprocess": preprocess}.items():
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected {name} to be an nn.Module, got {type(module).__name__}; wrap it in one")
    if isinstance(link, type) or not isinstance(link, Link):
        known = ", ".join(f"{kind.__name__}()" for kind in LINKS.values())
        hint = "criterion.link" if hasattr(link, "link") else f"one of {known}"
        raise TypeError(f"expected a link, got {link!r}; pass {hint}")


def _check_inputs(x: Any) -> None:
    if isinstance(x, np.ndarray):
        raise TypeError("expected inputs as a tensor, got a NumPy array; use torch.as_tensor(x)")


def _plain(name: Any) -> str | int | float:
    """A class name as JSON knows it: NumPy's and torch's numbers become Python's."""
    value = name.item() if hasattr(name, "item") else name
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"expected class names to be strings or numbers, got {name!r}; use str(...)")
    return value


def _unwrap(module: nn.Module) -> nn.Module:
    while True:
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):  # torch.compile
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module


def _describe_link(link: Link) -> dict[str, Any]:
    for name, kind in LINKS.items():
        if type(link) is kind:
            return {"name": name, **asdict(link)}
    raise TypeError(f"expected a link that can be saved, one of {', '.join(c.__name__ for c in LINKS.values())}, got {link!r}")


def _build_link(saved: dict[str, Any]) -> Link:
    arguments = dict(saved)
    name = choose("link", arguments.pop("name", None), LINKS)
    try:
        return LINKS[name](**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected arguments of {LINKS[name].__name__}, got {arguments} ({error})") from error


def _describe_network(network: nn.Module) -> dict[str, Any]:
    spec = getattr(network, "spec", None)
    # a subclass from elsewhere inherits a spec, yet is not what the spec would build
    built_in = type(network).__module__.startswith(f"{models.__name__}.")
    return {"class": _class_name(network), "spec": spec if built_in else None}


def _build_network(saved: dict[str, Any], tensors: dict[str, Tensor], origin: str) -> nn.Module:
    """The built-in network of a spec: first without memory, so that one larger than the file's tensors is never made."""
    spec = saved.get("spec")
    if not isinstance(spec, dict):
        name = saved.get("class")
        raise ValueError(
            f"expected a network: the saved one, {name}, is not built in; pass Classifier.load(directory, network=...) "
            "with one of the same architecture"
        )
    try:
        with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten: leave the global generator alone
            with torch.device("meta"):
                planned = models.build(spec).state_dict(prefix="network.")
            _compare_part("network.", planned, tensors, origin)
            return models.build(spec)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"expected the arguments of a built-in network, got {spec} ({error})") from error


def _compare_part(prefix: str, planned: dict[str, Tensor], tensors: dict[str, Tensor], origin: str) -> None:
    _checkpoint.compare(planned, {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}, origin)


def _describe_preprocess(module: nn.Module) -> dict[str, Any] | None:
    if type(module) is nn.Identity:
        return None
    shape = list(module.mean.shape) if type(module) is Standardize else None
    return {"class": _class_name(module), "standardize": shape}


def _build_preprocess(saved: dict[str, Any] | None, tensors: dict[str, Tensor], origin: str) -> nn.Module | None:
    if saved is None:
        return None
    shape = saved.get("standardize")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise ValueError(
            f"expected a preprocessing: the saved one, {saved.get('class')}, is not built in; pass "
            "Classifier.load(directory, preprocess=...) with one of the same kind"
        )
    try:
        planned = {f"preprocess.{part}": torch.empty(shape, device="meta") for part in ("mean", "std")}
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"expected the shape of a Standardize, got {shape} ({error})") from error
    _compare_part("preprocess.", planned, tensors, origin)
    return Standardize(torch.zeros(shape), torch.ones(shape))


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _any_batch() -> dict[str, dict[int, Any]]:
    return {"x": {0: torch.export.Dim("batch")}}


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode for a while; each submodule gets its own mode back."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
