import io

from demo_rows import run
from rich.console import Console

from lbbsp.demo.display import Board, display
from lbbsp.demo.records import EQUAL, FIXED, LBBSP

TIMES_S = {EQUAL: 0.12, LBBSP: 0.08, FIXED: 0.075}


def test_without_a_terminal_each_block_is_one_line_however_rows_come():
    ranks = run(TIMES_S, blocks=2)
    file = io.StringIO()
    with display(Console(file=file, width=40)) as shown:
        for start in range(0, len(ranks[0]), 7):
            shown.add([ranks[0][start : start + 7], []])
            shown.add([[], ranks[1][start : start + 7]])
    lines = file.getvalue().splitlines()
    assert len(lines) == 6
    assert all("rank 0" in line and "rank 1" in line and "wait" in line for line in lines)
    assert "\x1b" not in file.getvalue()


def test_in_a_terminal_a_table_shows_every_way_and_rank():
    shown = []

    class Live:
        def update(self, table):
            shown.append(table)

    Board(Live()).add(run(TIMES_S))
    console = Console(file=io.StringIO(), width=120)
    console.print(shown[-1])
    text = console.file.getvalue()
    for word in ("equal sizes", "LB-BSP", "fixed split", "160", "96", "█"):
        assert word in text
