"""Progress: told by one process, shown by another."""

import io

from rich.console import Console
from rich.progress import Progress

from pgmodels.progress import ProgressBoard, progress_bar, progress_board, progress_told


def shown(progress):
    return [(task.description, task.completed, task.total) for task in progress.tasks if task.visible]


def test_bars_that_are_told_of_are_rows_of_a_board():
    progress = Progress(console=Console(file=io.StringIO()))
    board = ProgressBoard(["one", "other"], progress)
    assert shown(progress) == [("one", 0, None), ("other", 0, None)]
    with progress_told(lambda *told: board.hear(1, *told)):
        for title, length in (("fit", 5), ("gibbs", 7)):
            with progress_bar(title, length, True) as bar:
                assert bar.visible
                bar.advance(2, "a note")
                bar.advance()
                assert shown(progress) == [("one", 0, None), (f"other: {title}", 3, length)]
            assert shown(progress) == [("one", 0, None), ("other", 0, None)]
        with progress_bar("silent", 5, False) as bar:
            assert not bar.visible
    with board.closing(1):
        assert shown(progress) == [("one", 0, None)]


def test_a_board_that_nobody_sees_is_silent(capsys):
    with progress_board(["one"], False) as board:
        board.hear(0, "fit", 5, 0, "")
        with board.closing(0):
            print("said")
    assert capsys.readouterr() == ("said\n", "")
