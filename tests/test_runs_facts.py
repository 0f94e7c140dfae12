"""What is noted with every result: the command, the commit, the versions and the hardware."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from squareloss.lab.runs import facts


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        (["/opt/bin/squareloss", "compare", "my data"], "squareloss compare 'my data'"),
        (["/opt/squareloss/__main__.py", "report"], "squareloss report"),
        (["work/script.py"], "script.py"),
        (["", "x"], "python x"),
        ([], "python"),
    ],
)
def test_the_command_as_it_was_given(monkeypatch, given, noted):
    monkeypatch.setattr(sys, "argv", given)
    assert facts.command() == noted


def git(folder, *words):
    who = ["-c", "user.name=me", "-c", "user.email=me@here", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", folder, *who, *words], capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_is_that_of_the_package_alone(tmp_path, monkeypatch):
    source = tmp_path / "package" / "facts.py"
    source.parent.mkdir()
    source.write_text("first")
    monkeypatch.setattr(facts, "__file__", str(source))
    commit = facts.commit.__wrapped__
    assert commit() is None, "no checkout"
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "none")
    assert commit() is None, "installed within that of something else"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    first = git(tmp_path, "rev-parse", "HEAD")
    assert len(first) == 40 and commit() == first
    source.write_text("second")
    assert commit() == f"{first}-dirty"
    monkeypatch.setenv("PATH", "")
    assert commit() is None, "no git"


def test_a_git_that_hangs_is_not_waited_for(monkeypatch):
    def run(words, timeout, **options):
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert facts.commit.__wrapped__() is None


def test_a_gpu_is_named_where_it_is_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the GPU {device}")
    used, unused = (facts.machine.__wrapped__(device)["hardware"] for device in ("cuda:1", "cpu"))
    assert used == {**unused, "gpu": "the GPU cuda:1"} and unused["gpu"] is None and unused["system"] == sys.platform


def test_versions_of_what_is_installed(monkeypatch):
    def version(package):
        if package == "scikit-learn":
            raise PackageNotFoundError(package)
        return f"version of {package}"

    monkeypatch.setattr(facts, "version", version)
    others = {package: f"version of {package}" for package in ("squareloss", "torch", "numpy")}
    assert facts.machine.__wrapped__()["versions"] == {"python": platform.python_version(), **others}


def missing(*_, **__):
    raise FileNotFoundError


def test_the_processor_and_the_cores_that_may_be_used(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: "processor : 0\nmodel name\t: Fast: 2 GHz\nmodel name\t: Slow\n")
        patch.setattr(os, "sched_getaffinity", lambda pid: {0: {1, 5, 7}}[pid], raising=False)
        assert facts._processor() == "Fast: 2 GHz" and facts.cores() == 3
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: "processor : 0\n")
        assert facts._processor() == platform.machine()
        patch.setattr(Path, "read_text", missing)
        patch.delattr(os, "sched_getaffinity", raising=False)
        for count in (6, None):
            patch.setattr(os, "cpu_count", lambda count=count: count)
            assert facts._processor() == platform.machine() and facts.cores() == (count or 1)
