"""A process's end is seen at once by a descriptor, where the system has them, and where it has none nothing breaks."""

import os
import select
import subprocess
import sys

import pytest

from lbbsp.service.parent import open_end_of, orphaned

HAS = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no such descriptors")


@HAS
def test_the_descriptor_becomes_readable_when_the_process_ends_and_not_before():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end = open_end_of(child.pid)
    assert not select.select([end], [], [], 0.1)[0]
    child.communicate(b"\n", timeout=20)
    assert select.select([end], [], [], 20)[0]
    os.close(end)
    assert open_end_of(child.pid) is None, "it has ended already"


def test_without_a_parent_or_such_descriptors_there_is_none(monkeypatch):
    assert open_end_of(None) is None
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert open_end_of(os.getppid()) is None


def test_only_another_parent_than_the_first_means_that_it_has_ended():
    assert not orphaned(os.getppid())
    assert orphaned(os.getpid())
