from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.commands.line_input import Line, LineSplitter, read_lines

LIMIT = 8


def oracle(data: bytes) -> list[Line]:
    parts = data.split(b"\n")
    if not parts[-1]:
        parts.pop()
    return [Line(i, part if len(part) <= LIMIT else None) for i, part in enumerate(parts, 1)]


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"a\n\n", b"\r\n", b"123456789\n"])))
def test_lines_do_not_depend_on_the_chunks_they_came_in(chunks: list[bytes]) -> None:
    splitter = LineSplitter(LIMIT)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    assert lines + splitter.finish() == oracle(b"".join(chunks))


def test_an_endless_line_is_not_kept() -> None:
    splitter = LineSplitter(LIMIT)
    for _ in range(1000):
        assert splitter.feed(b"x" * 100) == []
        assert len(splitter._begun) <= LIMIT
    assert splitter.feed(b"\nok\n") == [Line(1, None), Line(2, b"ok")]


async def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"".join(b"%d\n" % i for i in range(50_000)))
    with path.open("rb") as file:
        numbers = [int(line.data or b"") async for line in read_lines(file.fileno(), LIMIT)]
    assert numbers == list(range(50_000))


async def test_a_line_comes_before_the_pipe_is_closed() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"first\nsec")
        lines = read_lines(reading, LIMIT)
        assert await anext(lines) == Line(1, b"first")
        os.write(writing, b"ond\n")
        assert await anext(lines) == Line(2, b"second")
    finally:
        os.close(writing)
    assert [line async for line in lines] == []
    os.close(reading)


async def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        await anext(read_lines(folder, LIMIT))
    os.close(folder)


async def test_a_slow_consumer_holds_the_reader_back() -> None:
    reading, writing = os.pipe()
    written = 0

    def write() -> None:
        nonlocal written
        while written < 4_000_000:
            written += os.write(writing, b"x" * 4095 + b"\n")
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    lines = read_lines(reading, 1 << 16)
    await anext(lines)
    writer.join(timeout=0.3)
    assert writer.is_alive()
    assert written < 1_000_000
    assert 900 < len([line async for line in lines]) < 1100
    writer.join()
    os.close(reading)
