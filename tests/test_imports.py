"""Importing squareloss is quick, loads torch when a loss is asked for and no more; and inside it, imports point one way."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import squareloss

ROOT = Path(squareloss.__file__).parent

# a module may import from its own layer and from those after it, never from those before
LAYERS = [
    {"cli", "__main__"},
    {"lab"},
    {"estimators", "classifier", "probe", "ntk", "attacks", "metrics", "calibrators", "integrations"},
    {"losses", "ridge", "models"},
    {"functional"},
    {"_hard_square", "_triton_square"},
    {"codings"},
    {"simplex"},
    {"_checks", "_precision"},
]
RANK = {name: i for i, names in enumerate(LAYERS) for name in names}
FORBIDDEN = [("squareloss.attacks", "squareloss.classifier"), ("squareloss.lab.report", "squareloss.lab.training")]
TORCH_ONLY = (
    "_checks",
    "_precision",
    "simplex",
    "codings",
    "_hard_square",
    "_triton_square",
    "functional",
    "losses",
    "attacks",
    "models",
)


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_import_takes_less_than_a_third_of_a_second_beyond_torch():
    code = "import torch, time; t = time.process_time(); from squareloss import SquareLoss; print(time.process_time() - t)"
    assert any(run(code) < 0.3 for _ in range(3))  # of the processor: the machine may be busy


def test_import_loads_nothing_but_torch_and_itself():
    code = """
import json, sys, torch
before = set(sys.modules)
from squareloss import SquareLoss, Simplex, functional, probabilities
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""
    loaded = set(run(code)) - set(sys.stdlib_module_names)
    assert loaded <= {"squareloss", "typing_extensions"}, f"import squareloss also loads {loaded}"


def test_the_command_line_answers_before_torch_is_loaded():
    code = """
import json, sys
from squareloss import cli
for arguments in (["--version"], ["--help"], ["compare", "--help"], ["frobnicate"]):
    sys.argv[1:] = arguments
    try:
        cli.main()
    except SystemExit:
        pass
print(json.dumps(sorted({"torch", "numpy", "sklearn"} & set(sys.modules))))
"""
    assert run(code) == []


def test_every_name_of_the_package_is_there_and_stays():
    code = """
import json, squareloss
found = [getattr(squareloss, name) for name in squareloss.__all__]
assert all(vars(squareloss)[name] is value for name, value in zip(squareloss.__all__, found))
print(json.dumps([value.__name__.removeprefix("squareloss.") for value in found]))
"""
    assert run(code) == squareloss.__all__ and set(squareloss.__all__) <= set(dir(squareloss))


def test_compiled_code_may_be_the_first_to_ask_for_a_name():
    code = """
import json, torch, squareloss
step = lambda f, y: (squareloss.functional.square_loss(f, y), squareloss.probabilities(f))
f, y = torch.randn(4, 3), torch.arange(4) % 3
torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="eager")(f, y), step(f, y))
print(json.dumps(True))
"""
    assert run(code)


def test_parts_are_there_after_import():
    parts = ["attacks", "calibrators", "integrations", "linear", "metrics", "models", "ntk", "probe"]
    code = f"import json, squareloss; print(json.dumps([getattr(squareloss, name).__name__ for name in {parts}]))"
    assert run(code) == [f"squareloss.{name}" for name in parts]
    assert set(parts) <= set(dir(squareloss))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = squareloss.nothing


def modules():
    """Every module of the package by its dotted name, and its file."""
    return {
        ".".join(["squareloss", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in sorted(ROOT.rglob("*.py"))
    }


def imports(name, path):
    """The dotted names a module imports, whether at its top or inside a function, but not for type checkers alone."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def walk(node):
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children = node.orelse
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield child
        yield from walk(child)


def edges():
    """(importer, imported), both modules of the package: `from a import b` names a.b if that is a module, else a."""
    known = modules()
    for name, path in known.items():
        for target in imports(name, path):
            if target.split(".")[0] != "squareloss":
                continue
            resolved = target if target in known else target.rpartition(".")[0]
            if resolved in known and resolved != name:
                yield name, resolved


def part(name):
    """The part of the package a module belongs to: lab of squareloss.lab.runs.store."""
    return name.split(".")[1] if "." in name else ""


def test_imports_point_one_way():
    wrong = []
    for importer, imported in edges():
        a, b = part(importer), part(imported)
        known_order = a in RANK and b in RANK and RANK[a] > RANK[b]
        library_to_lab = b in ("lab", "cli") and a not in ("lab", "cli", "__main__")
        special = any(importer.startswith(x) and imported.startswith(y) for x, y in FORBIDDEN)
        if importer != "squareloss" and (known_order or library_to_lab or special):
            wrong.append(f"{importer} imports {imported}")
    assert not wrong


def test_there_is_no_circle():
    """Between the parts, and between the modules of the package, whatever their layer."""
    graph: dict[str, set[str]] = {}
    for importer, imported in edges():
        if importer != "squareloss" and imported != "squareloss":
            graph.setdefault(importer, set()).add(imported)
    done: set[str] = set()

    def visit(name, trail):
        assert name not in trail, "circle: " + " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for after in sorted(graph.get(name, ())):
                visit(after, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])


@pytest.mark.parametrize("name", TORCH_ONLY)
def test_the_core_needs_torch_only(name):
    allowed = {"torch", "squareloss", "typing_extensions", "triton"} | set(sys.stdlib_module_names)
    allowed |= {"safetensors"} if name == "attacks" else set()  # an evaluation on disk
    for module, path in modules().items():
        if part(module) == name:
            foreign = {target.split(".")[0] for target in imports(module, path)} - allowed
            assert not foreign, f"{module} imports {foreign}"


def test_the_rules_can_fail(tmp_path):
    """The parser sees plain, relative, nested and lazy imports, and skips those for type checkers."""
    file = tmp_path / "one.py"
    file.write_text(
        "import numpy.linalg\nfrom . import two\nfrom ..three import four\n"
        "def f():\n    from squareloss.lab import runs\n"
        "if TYPE_CHECKING:\n    import sklearn\nelse:\n    import five\n"
    )
    expected = {"numpy.linalg", "squareloss.part.two", "squareloss.three.four", "squareloss.lab.runs", "five"}
    assert imports("squareloss.part.one", file) == expected
