"""The text of programs and PyTorch's CSV files: both ways, and words for what cannot be read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.schedule.program import Program, Schedule
from runtime.schedule.text import dump_csv, load_csv, load_schedule_file, parse, rank_of, text
from symgraph.core.errors import ConfigError, ScheduleError

EVERY = {
    "2F0": Run(2, "F", 0),
    "2F0.3": Run(2, "F", 0, 3),
    "12B34": Run(12, "B", 34),
    "2I1": Run(2, "I", 1),
    "2W1.1": Run(2, "W", 1, 1),
    "S3.0": Send(3, 0),
    "R3.17": Recv(3, 17),
    "D2F0.3": Free(2, "F", 0, 3),
    "D0W5": Free(0, "W", 5),
    "C": Collective(),
    "C1": Collective(1),
    "U2": Update(2),
}

# -- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "instruction"), EVERY.items())
def test_every_instruction_both_ways(token, instruction):
    assert list(parse([token]).programs[0]) == [instruction]
    assert text([instruction]) == token


def test_schedules_both_ways():
    """Pipelines 3, with random programs of all kinds; ranks may be empty."""
    rng = random.Random(0)

    def draw() -> Instruction:
        a, b, c = rng.randrange(3), rng.randrange(300), rng.choice([0, 0, 1, 12])
        kinds = [
            Run(a, rng.choice("FBIW"), b, c),
            Free(a, rng.choice("FBIW"), b, c),
            Send(a, b),
            Recv(b, a),
            Collective(a),
            Update(b),
        ]
        return rng.choice(kinds)

    for _ in range(50):
        schedule = Schedule.of(
            [draw() for _ in range(rng.randrange(30))] for _ in range(rng.randrange(1, 6))
        )
        assert parse(str(schedule).splitlines()) == schedule
        assert parse(str(schedule)) == schedule
        for program in schedule.programs:
            assert parse([f"rank 0: {text(program)}"]).programs == (program,)


def test_comments_blank_lines_and_ranks_in_any_order():
    lines = ["# two ranks", "", "rank 1: 1F0  # the last", "   ", "Rank 0 : 0F0 S0.0", "2F0 # 1?"]
    with pytest.raises(
        ScheduleError, match="line 6, rank 1: an earlier line is this rank's program"
    ):
        parse(lines)
    assert parse(lines[:-1]) == parse(["0F0 S0.0", "1F0"])


def test_a_rank_may_have_nothing_to_do():
    assert [len(p) for p in parse(["rank 0:", "0F0", "rank 2:"]).programs] == [0, 1, 0]


def test_a_rank_without_a_line():
    with pytest.raises(ScheduleError, match=r"s\.txt: rank 1 has no program, but rank 2 has"):
        parse(["rank 0: 0F0", "rank 2: 1F0"], file="s.txt")


@pytest.mark.parametrize(
    ("token", "form"),
    [
        ("2f0", "2F0"),
        ("2F", "2F0"),
        ("2F0,", "2F0"),
        ("F2.0", "2F0"),
        ("2-F-1.3", "2F1.3"),
        ("2BW0", "2B0"),
        ("S3", "S3.0"),
        ("r3_1", "R3.1"),
        ("d2f0", "D2F0"),
        ("u", "U0"),
        ("c", "C"),
        ("٢F0", "0F0"),
        ("2F0.3.1", "2F0.3"),
    ],
)
def test_unknown_instructions_name_token_line_rank_and_what_may_be_meant(token, form):
    with pytest.raises(ScheduleError) as error:
        parse(["# a comment", "0F0 0B0", "", f"1F0 {token} 1B0"], file="a/s.txt")
    said = f"a/s.txt, line 4, rank 1: unknown instruction {token!r}; did you mean {form!r}? "
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("token", ["2X0", "2.0", "D2", "->", "9999999999F0"])
def test_unknown_instructions_without_a_guess(token):
    with pytest.raises(ScheduleError) as error:
        parse([token])
    message = str(error.value)
    assert message.startswith(f"line 1, rank 0: unknown instruction {token!r}; runs look like 2F0")


# -- PyTorch's CSV -------------------------------------------------------------------------------

OVERLAPPED = """\
0F0,0F1,,3F0,(0F2;3B0)OVERLAP_F_B,3I1,3W1,0B0
1F0,2F0,,,(1F1; 2B0)OVERLAP_F_B,1B0
"""


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_compute_only_files(tmp_path):
    """As pytorch's dualpipev_4rank_10mb.csv: rows are ranks, cells may hold two actions."""
    found = load_csv(written(tmp_path / "dualpipev.csv", OVERLAPPED))
    assert [text(p) for p in found] == [
        "0F0 0F1 3F0 0F2 3B0 3I1 3W1 0B0",
        "1F0 2F0 1F1 2B0 1B0",
    ]
    assert rank_of(found) == (0, 1, 1, 0)


def test_cells_of_pytorchs_lowering_are_passed_over(tmp_path):
    row = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0SEND_B0,0W0,0REDUCE_GRAD,0RESHARD\r\n"
    assert [text(p) for p in load_csv(written(tmp_path / "a.csv", row))] == ["0F0 0I0 0W0"]


def test_older_files_write_b_for_the_gradients_of_inputs(tmp_path):
    """Its zb1p_2rank_2stagep files said 0B0,0W0 and 2BW0 before the phases were renamed."""
    one = load_csv(written(tmp_path / "one.csv", "0F0,0F1,0BW0,0BW1\n1F0,1B0,1W0,1F1,1B1,1W1\n"))
    assert [text(p) for p in one] == ["0F0 0F1 0B0 0B1", "1F0 1I0 1W0 1F1 1I1 1W1"]
    two = load_csv(written(tmp_path / "two.csv", "0F0,0B0,0W0\n"))
    assert text(two[0]) == "0F0 0I0 0W0"


def test_csv_both_ways(tmp_path):
    rng = random.Random(1)
    for case in range(20):
        lists = [
            [Run(r, rng.choice("FBI"), mb, rng.choice([0, 0, 2])) for mb in range(rng.randrange(9))]
            for r in range(rng.randrange(1, 5))
        ]
        lists.append([Run(9, "F", 0)] * (case % 2))  # an idle last rank stays one
        lists[0].append(Run(0, "F", 99))
        path = tmp_path / f"{case}.csv"
        dump_csv(lists, path)
        assert load_csv(path) == lists
    dump_csv([Program.of([Run(0, "F", 0), Run(0, "B", 0)]), [Run(1, "F", 0)]], path)
    assert path.read_bytes() == b"0F0,0B0\r\n1F0\r\n"  # PyTorch's very bytes


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            "0F0\n\n1F0,,1b0\n",
            "line 3, column 3, rank 1: unknown instruction '1b0'; did you mean '1B0'?",
        ),
        ("(0F0;0G0)OVERLAP_F_B\n", "line 1, column 1, rank 0: unknown instruction '0G0'; runs"),
        ("(0F0;0B0)OVERLAP_B_F\n", "unknown instruction '(0F0;0B0)OVERLAP_B_F'"),
        ("0F0,S0.0\n", "line 1, column 2, rank 0: 'S0.0' is not a run"),
        ("\n,,\n", "holds no runs"),
        ("", "holds no runs"),
    ],
)
def test_csv_files_that_cannot_be_read(tmp_path, content, why):
    with pytest.raises(ScheduleError) as error:
        load_csv(written(tmp_path / "bad.csv", content))
    assert str(error.value).startswith(str(tmp_path / "bad.csv"))
    assert why in str(error.value)


def test_csv_files_hold_runs_only(tmp_path):
    with pytest.raises(ScheduleError, match=r"rank 1 has S0\.0, but a CSV file holds only runs"):
        dump_csv([[Run(0, "F", 0)], [Send(0, 0)]], tmp_path / "a.csv")


# -- schedule files ------------------------------------------------------------------------------


def test_schedule_files(tmp_path):
    lists = load_schedule_file(written(tmp_path / "a.CSV", "0F0,0B0\n1F0,1B0\n"))
    assert lists == load_schedule_file(written(tmp_path / "a.txt", "# two\n0F0 0B0\n1F0 1B0\n"))
    assert lists == [[Run(s, "F", 0), Run(s, "B", 0)] for s in (0, 1)]
    whole = "rank 0: 0F0 S0.0 D0F0\nrank 1: R0.0 1F0 D1F0\n"
    assert load_schedule_file(written(tmp_path / "b.txt", whole)) == parse(whole)


def test_files_that_are_not_there_or_not_text(tmp_path):
    for name in ("none.csv", "none.txt"):
        with pytest.raises(ConfigError, match=rf"{name}: no such schedule file"):
            load_schedule_file(tmp_path / name)
    for name in ("binary.csv", "binary.txt"):
        with pytest.raises(ScheduleError, match=rf"{name}:1: not a schedule file: not UTF-8"):
            load_schedule_file(written(tmp_path / name, b"\xff\xfe\x80"))
    with pytest.raises(ConfigError, match=r"cannot write '.*': No such file"):
        dump_csv([[]], tmp_path / "no" / "a.csv")
    with pytest.raises(ScheduleError, match=r"empty\.txt holds no instructions"):
        load_schedule_file(written(tmp_path / "empty.txt", "# nothing\n"))
    with pytest.raises(ScheduleError, match=r"bad\.txt, line 2, rank 0: unknown instruction '0f0'"):
        load_schedule_file(written(tmp_path / "bad.txt", "\n0f0\n"))


# -- stage -> rank -------------------------------------------------------------------------------


def test_ranks_of_stages():
    assert rank_of([[Run(0, "F", 0), Run(3, "B", 1)], [Run(2, "I", 0)], [Run(1, "W", 0)]]) == (
        0,
        2,
        1,
        0,
    )
    assert rank_of(parse(["0F0 S7.0 C D0F0 U0", "R7.0 1F0"]).programs) == (0, 1)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["0F0 1F0", "2F0", "1B0"], "stage 1 runs on rank 0 and on rank 2"),
        (["0F0", "2F0"], "stage 1 runs on no rank, but stage 2 does"),
        (["rank 0:"], "stage 0 runs on no rank"),
    ],
)
def test_stages_that_are_nowhere_or_on_two_ranks(lines, why):
    with pytest.raises(ScheduleError, match=why):
        rank_of(parse(lines).programs)
