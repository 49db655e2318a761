"""What is free: of the machine, and of every control group around us, read from trees of files like the system's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.executor.available import available_bytes

GIB = 2**30
CPU = torch.device("cpu")


class System:
    """Files of a pretended system below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def machine(self, gib: float) -> None:
        self._write("proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable:   {int(gib * 2**20)} kB\nSwapFree: 0 kB\n")

    def member(self, *lines: str) -> None:
        self._write("proc/self/cgroup", "\n".join(lines) + "\n")

    def group(self, path: str, limit: str | float, used: float, *, high: str | float = "max", **stat: float) -> None:
        """One of version 2; numbers are GiB."""
        folder = f"sys/fs/cgroup/{path}"
        self._write(f"{folder}/memory.max", _bytes(limit))
        self._write(f"{folder}/memory.high", _bytes(high))
        self._write(f"{folder}/memory.current", _bytes(used))
        self._write(f"{folder}/memory.stat", "".join(f"{name} {_bytes(gib)}\n" for name, gib in stat.items()))

    def old_group(self, path: str, limit: float | None, used: float, **stat: float) -> None:
        """One of version 1, where no limit is a large number."""
        folder = f"sys/fs/cgroup/memory/{path}"
        self._write(f"{folder}/memory.limit_in_bytes", "9223372036854771712" if limit is None else _bytes(limit))
        self._write(f"{folder}/memory.usage_in_bytes", _bytes(used))
        self._write(f"{folder}/memory.stat", "".join(f"{name} {_bytes(gib)}\n" for name, gib in stat.items()))

    def free(self) -> float | None:
        """GiB."""
        found = available_bytes(CPU, self.root)
        return None if found is None else found / GIB

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _bytes(gib: str | float) -> str:
    return gib if isinstance(gib, str) else str(int(gib * GIB))


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_a_system_that_tells_nothing_is_not_guessed_at(system: System) -> None:
    assert system.free() is None


def test_a_machine_without_groups_tells_what_is_available(system: System) -> None:
    system.machine(5)

    assert system.free() == 5


def test_a_container_of_4_gib_on_a_host_of_64(system: System) -> None:
    system.machine(60)
    system.member("0::/")  # a container sees its own group as the top
    system.group("", limit=4, used=1)

    assert system.free() == 3


@pytest.mark.parametrize(("outer", "inner", "expected"), [(8, 4, 3), (8, "max", 6), ("max", 4, 3), (3, 4, 1)])
def test_the_tightest_group_on_the_way_up_counts(
    system: System, outer: str | float, inner: str | float, expected: float
) -> None:
    system.machine(60)
    system.member("0::/work.slice/server.service")
    system.group("work.slice", limit=outer, used=2)
    system.group("work.slice/server.service", limit=inner, used=1)
    system.group("work.slice/other.service", limit=1, used=1)

    assert system.free() == expected


def test_a_group_is_throttled_at_its_high_mark_so_that_counts_too(system: System) -> None:
    system.machine(60)
    system.member("0::/a")
    system.group("a", limit=8, used=1, high=5)

    assert system.free() == 4


def test_cached_files_count_as_free_unless_they_are_mapped(system: System) -> None:
    system.machine(60)
    system.member("0::/a")
    system.group("a", limit=8, used=7, active_file=2, inactive_file=3, file_mapped=1, anon=2)

    assert system.free() == 5


def test_a_group_beyond_its_limit_has_nothing_left(system: System) -> None:
    system.machine(60)
    system.member("0::/a")
    system.group("a", limit=2, used=3, file_mapped=1)

    assert system.free() == 0


def test_groups_of_version_1(system: System) -> None:
    system.machine(60)
    system.member("5:cpu,cpuacct:/elsewhere", "4:memory:/outer/inner", "0::/")
    system.old_group("", limit=None, used=30)
    system.old_group("outer", limit=4, used=2, total_active_file=0.5, total_inactive_file=1, total_mapped_file=0.25)
    system.old_group("outer/inner", limit=None, used=1)
    system.old_group("elsewhere", limit=1, used=1)

    assert system.free() == 3.25


@pytest.mark.parametrize("line", ["4:memory:/docker/8fa3c2", "0::/../../docker/8fa3c2", "0::/"])
def test_groups_that_a_container_cannot_see_leave_those_it_can(system: System, line: str) -> None:
    """The path is the host's, but only the container's own group is mounted, at the top."""
    system.machine(60)
    system.member(line)
    if line.startswith("4"):
        system.old_group("", limit=4, used=1)
    else:
        system.group("", limit=4, used=1)

    assert system.free() == 3


def test_the_machine_counts_if_it_has_less_than_the_group_allows(system: System) -> None:
    system.machine(2)
    system.member("0::/a")
    system.group("a", limit=8, used=1)

    assert system.free() == 2


def test_files_that_make_no_sense_are_passed_over(system: System) -> None:
    system.machine(2)
    system.member("0::/a")
    system.group("a", limit="?", used=1)
    (system.root / "sys/fs/cgroup/a/memory.stat").write_text("anon\n\nfile x\n")

    assert system.free() == 2


def test_this_machine_tells_something() -> None:
    found = available_bytes(CPU)

    assert found is None or found > 2**20
