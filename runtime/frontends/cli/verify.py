"""The verifier: tells from the text of a plan alone whether it computes everything and ends.

    python -m runtime verify FILE          FILE is what `--plan --dump FILE` wrote
    python verify.py FILE                  the same, without the packages

It shares no code with what made the plan: this file imports only Python's standard library. It
walks each rank's program over a shadow of the rank's memory, in which every byte knows the values
that it belongs to. A value that is not computed or received yet, was freed or written over, or
belongs to another micro-batch is not there when it is read.
"""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

FORMAT = 1
TOKEN = re.compile(r"(D?)(\d+[FBIW])(\d+)((?:\.\d+)?)|([SR])(\d+)\.(\d+)|C(\d*)|U(\d+)")
TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
ITEM = {"bool": 1, "int8": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, StopIteration)
SUM = "elemwise_add"  # the operator that adds up gradients
Record = dict[str, Any]


class Step(NamedTuple):
    """An instruction."""

    #: run, free, S, R, C or U.
    kind: str
    #: The body, tag or stage.
    of: str
    mb: int
    text: str


def parse(text: str) -> Step:
    """Read an instruction."""
    match = TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(f"unknown instruction {text!r}")
    free, body, mb, segment, kind, tag, message, collective, stage = match.groups()
    if body:
        return Step("free" if free else "run", body + segment, int(mb), text)
    if kind:
        return Step(kind, tag, int(message), text)
    return Step("C", collective, 0, text) if stage is None else Step("U", stage, 0, text)


def stage_of(body: str) -> int:
    """Return the stage of a body such as 2F or 2F.3."""
    return int(re.split("[FBIW]", body)[0])


def bytes_of(type_: str, piece: int = 0, pieces: int = 1) -> int:
    """Count the bytes of a type such as float32[4,8], or those of one of its pieces."""
    dtype, shape = re.fullmatch(TYPE, type_).groups()  # type: ignore[union-attr]
    size = math.prod(int(n) for n in shape.split(",") if n)
    return ITEM.get(dtype, 8) * (size * (piece + 1) // pieces - size * piece // pieces)


class Plan:
    """The records of a dump, with the look-ups that several rules need."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.all: dict[str, list[Record]] = defaultdict(list)
        for record in map(json.loads, lines):
            self.all[record["is"]].append(record)
        (head,) = self.all["plan"]
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']}, but this verifier reads format {FORMAT}")
        self.sizes: list[int] = head["micro_batches"]
        self.ranks: list[int] = head["stages"]
        self.devices: list[str] = head["devices"]
        if [p["rank"] for p in self.all["program"]] != list(range(len(self.devices))):
            raise ValueError("there is not one program for each rank, in order")
        self.programs = [[parse(t) for t in p["instructions"].split()] for p in self.all["program"]]
        self.nodes: dict[tuple[int, str], list[Record]] = defaultdict(list)  # samples, body
        self.made: dict[tuple[int, str], tuple[Record, str]] = {}  # samples, value: node and type
        for node in self.all["node"]:
            self.nodes[node["samples"], node["body"]].append(node)
            for value, type_ in zip(values_of(node), node["outputs"], strict=True):
                self.made[node["samples"], value] = node, type_
        self.gradient = {g["variable"]: g for g in self.all["gradient"]}
        self.message = {(m["samples"], str(m["tag"])): m for m in self.all["message"]}
        self.tags = {m["tag"]: m for m in self.all["message"] if m["samples"] == self.sizes[0]}
        self.mbs = range(len(self.sizes))
        kinds = ["output", "state", "aux", "gradient"]
        self.wanted = dict.fromkeys(r["value"] for kind in kinds for r in self.all[kind])
        kinds = kinds if len(self.mbs) == 1 else kinds[:-1]  # else added up once they are made
        self.last = dict.fromkeys(r["value"] for kind in kinds for r in self.all[kind])
        copies = [c for c in self.all["copies"] if c["shared"]]
        self.shared = {
            v: (i, len(c["variables"])) for c in copies for i, v in enumerate(c["variables"])
        }

    def of(self, step: Step) -> Record:
        """Return the message of a send or receive."""
        return self.message[self.sizes[step.mb], step.of]

    def bodies(self) -> list[str]:
        """List the bodies, and so what each stage has to run."""
        return list(dict.fromkeys(body for _, body in self.nodes))


def values_of(node: Record) -> list[str]:
    """List the values that a node makes."""
    return [f"{node['name']}[{i}]" if i else node["name"] for i in range(len(node["outputs"]))]


# -- what there is -------------------------------------------------------------------------------


def graph(plan: Plan) -> Iterator[str]:
    """Each node stands once, on its stage's device, after its inputs; and its values are read."""
    # With one sample, gradients need no sum over samples: some nodes are not there, or others.
    sizes = {size for size in plan.sizes if size > 1} or {1}
    there = [node for node in plan.all["node"] if node["samples"] in sizes]
    alike = Counter((n["name"], n["body"], n["operator"], *n["inputs"]) for n in there)
    for (name, *_), count in alike.items():
        if count != len(sizes):
            yield f"node {name!r} stands {count} times for {len(sizes)} sizes of micro-batches"
    each = Counter((n["name"], n["body"], n["samples"]) for n in plan.all["node"])
    for (name, *_, size), count in each.items():
        if count > 1:
            yield f"node {name!r} stands {count} times for micro-batches of {size}"
    read = {(node["samples"], value) for node in plan.all["node"] for value in node["inputs"]}
    seen: set[tuple[int, str]] = set()
    for node in plan.all["node"]:
        size, name, rank = node["samples"], node["name"], plan.ranks[stage_of(node["body"])]
        if (node["rank"], node["device"]) != (rank, plan.devices[rank]):
            yield f"node {name!r} of body {node['body']} is not on the device of rank {rank}"
        for value in node["inputs"]:
            if (size, value) not in plan.made:
                yield f"node {name!r} reads {value!r}, which no node makes"
            elif plan.made[size, value][0]["body"] == node["body"] and (size, value) not in seen:
                yield f"node {name!r} reads {value!r}, which its body makes later"
        if node["operator"] == SUM and len(node["inputs"]) != 2:
            yield f"sum {name!r} adds up {', '.join(node['inputs'])}: not two terms"
        mine = {(size, value) for value in values_of(node)}
        if not node["variable"] and not mine & read and not {v for _, v in mine} & {*plan.wanted}:
            yield f"node {name!r} is computed for nobody"
        seen |= mine


def messages(plan: Plan) -> Iterator[str]:
    """Each message is what a body makes, goes to another rank, and belongs to its exchange."""
    for (size, tag), m in plan.message.items():
        node, type_ = plan.made[size, m["value"]]
        ends = plan.ranks[stage_of(m["made_by"])], plan.ranks[stage_of(m["taken_by"])]
        if (node["body"], *ends) != (m["made_by"], m["from"], m["to"]) or ends[0] == ends[1]:
            yield f"message {tag}: {m['value']} is not made by {m['made_by']} for rank {m['to']}"
        if (type_, bytes_of(type_)) != (m["type"], m["bytes"]):
            yield f"message {tag}: {m['type']} of {m['bytes']} bytes, but the value is {type_}"
        first = plan.tags[m["tag"]]
        if any(m[k] != first[k] for k in m if k not in ("samples", "type", "bytes")):
            yield f"message {tag} is not the same for all sizes of micro-batches"


def instructions(plan: Plan) -> Iterator[str]:
    """Every rank runs and frees each body once, and sends and receives each message once."""
    wanted: list[Counter[tuple[str, str, int]]] = [Counter() for _ in plan.programs]
    for mb in plan.mbs:
        for body in plan.bodies():
            wanted[plan.ranks[stage_of(body)]] += Counter([("run", body, mb), ("free", body, mb)])
        for tag, m in plan.tags.items():
            wanted[m["from"]]["S", str(tag), mb] += 1
            wanted[m["to"]]["R", str(tag), mb] += 1
    for rank, program in enumerate(plan.programs):
        found = Counter(step[:3] for step in program if step.kind not in "CU")
        for kind, of, mb in wanted[rank] - found:
            yield f"rank {rank} lacks {kind} {of} of micro-batch {mb}"
        for kind, of, mb in found - wanted[rank]:
            yield f"rank {rank} has {kind} {of} of micro-batch {mb} too often, or at all"
    collectives = [[s.of for s in program if s.kind == "C"] for program in plan.programs]
    if any(own != collectives[0] for own in collectives):
        yield f"the ranks' collectives differ: {collectives}"


def order(plan: Plan) -> Iterator[str]:
    """Messages of a channel are received as they are sent; exchanges start in one order."""
    lanes: dict[str, dict[object, list[str]]] = {"S": defaultdict(list), "R": defaultdict(list)}
    for step in (step for program in plan.programs for step in program if step.kind in "SR"):
        m = plan.of(step)
        lanes[step.kind][m["from"], m["to"], m["exchange"]].append(step.text[1:])
    for lane, sent in lanes["S"].items():
        if sent != lanes["R"][lane]:
            yield f"channel {lane}: sent {' '.join(sent)}, received {' '.join(lanes['R'][lane])}"
    queues = [(e["name"], e["mb"], e["ranks"]) for e in plan.all["exchange"]]
    named = {m["exchange"] for m in plan.tags.values()} - {""}
    if sorted(q[:2] for q in queues) != sorted((name, mb) for name in named for mb in plan.mbs):
        yield "the exchanges are not those of the messages"
    for name, mb, ranks in queues:
        ends = {
            m[end] for m in plan.tags.values() if m["exchange"] == name for end in ("from", "to")
        }
        if ranks != sorted(ends):
            yield f"{name} of {mb} is one of ranks {sorted(ends)}, not of {ranks}"
    for rank, program in enumerate(plan.programs):
        gives: dict[object, int] = {}
        takes: dict[object, int] = {}
        for at, step in enumerate(program):
            if step.kind in "SR" and plan.of(step)["exchange"]:
                key = plan.of(step)["exchange"], step.mb
                if step.kind == "S":
                    gives[key] = at
                else:
                    takes.setdefault(key, at)
        for place, (name, mb, ranks) in enumerate(queues):
            for before in (q[:2] for q in queues[:place] if q[2] == ranks):
                if gives.get(before, -1) > takes.get((name, mb), len(program)):
                    yield f"rank {rank} needs {name} of {mb} before it has given for {before}"


def progress(plan: Plan, capacity: int | None) -> str:
    """Let all ranks go as far as they can; say where they stand if that is not the end.

    capacity: 0 if a free waits until its body's messages are received; None if it does not wait.
    """
    at = [0] * len(plan.programs)
    sent: set[tuple[str, int]] = set()
    taken: set[tuple[str, int]] = set()
    parts: dict[str, list[str]] = defaultdict(list)  # exchange -> tags
    after: dict[str, list[str]] = defaultdict(list)  # body -> the tags whose receipt a free awaits
    for tag, m in plan.tags.items():
        (parts[m["exchange"]] if m["exchange"] else after[m["made_by"]]).append(str(tag))

    def waits(step: Step) -> bool:
        if step.kind == "R":
            exchange = plan.of(step)["exchange"]
            awaited = parts[exchange] if exchange else [step.of]
            return any((tag, step.mb) not in sent for tag in awaited)
        if step.kind == "free" and capacity == 0:
            return any((tag, step.mb) not in taken for tag in after[step.of])
        return step.kind == "C"

    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(plan.programs):
            while at[rank] < len(program) and not waits(step := program[at[rank]]):
                if step.kind in "SR":
                    (sent if step.kind == "S" else taken).add((step.of, step.mb))
                at[rank], moved = at[rank] + 1, True
        heads = [p[i].text if i < len(p) else "" for p, i in zip(plan.programs, at, strict=True)]
        if not moved and heads[0].startswith("C") and len(set(heads)) == 1:
            at, moved = [i + 1 for i in at], True
    where = ", ".join(f"rank {r} at {text}" for r, text in enumerate(heads) if text)
    held = "no message" if capacity == 0 else "any number of messages"
    return where and f"with channels that hold {held}, these wait for ever: {where}"


def hang(plan: Plan) -> Iterator[str]:
    """No rank waits for ever, whether channels hold nothing or everything."""
    yield from filter(None, (progress(plan, capacity) for capacity in (0, None)))


# -- what is where -------------------------------------------------------------------------------


def blocks(plan: Plan) -> Iterator[str]:
    """Blocks that live at the same time lie apart, inside the arena; the bytes add up."""
    for about in plan.all["memory"]:
        rank = about["rank"]
        own = [b for b in plan.all["block"] if b["rank"] == rank and b["bytes"]]
        for b in own:
            if not 0 <= b["offset"] <= b["offset"] + b["bytes"] <= about["arena"]:
                yield f"rank {rank}: {name_of(b)} lies beyond the arena of {about['arena']} bytes"
        live: list[Record] = []
        for b in sorted(own, key=lambda b: b["first"]):
            live = [other for other in live if other["last"] >= b["first"]]
            for c in live:
                low, high = sorted([b, c], key=lambda block: int(block["offset"]))
                if high["offset"] < low["offset"] + low["bytes"]:
                    yield f"rank {rank}: {name_of(b)} and {name_of(c)} overlap in space and time"
            live.append(b)
        held = [n for n in plan.all["node"] if (n["rank"], n["samples"]) == (rank, plan.sizes[0])]
        own = [n for n in held if n["variable"] == "parameter"]
        parameters = sum(
            bytes_of(n["outputs"][0], *plan.shared.get(n["name"], (0, 1))) for n in own
        )
        total = sum(about[part] for part in ("parameters", "optimizer", "scratch", "arena"))
        if parameters != about["parameters"]:
            yield f"rank {rank}: parameters of {parameters} bytes, not {about['parameters']}"
        if total != about["peak"] or total > (about["limit"] or total):
            yield f"rank {rank}: {total} bytes; peak {about['peak']}, limit {about['limit']}"


def name_of(block: Record) -> str:
    """Name a block."""
    if "root" in block:
        return f"{block['root']} of micro-batch {block['mb']}"
    return f"partial sum {block['sum']} of {block['variable']}"


class Shadow:
    """The values that each byte of a memory belongs to: pieces, by where they begin."""

    def __init__(self) -> None:
        self.begins: list[int] = [0]
        self.values: list[frozenset[object]] = [frozenset()]

    def pieces(self, begin: int, end: int) -> slice:
        """Find the pieces of [begin, end), which begin and end there."""
        for at in (begin, end):
            i = bisect_left(self.begins, at)
            if self.begins[i : i + 1] != [at]:
                self.begins.insert(i, at)
                self.values.insert(i, self.values[i - 1])
        return slice(bisect_left(self.begins, begin), bisect_left(self.begins, end))

    def write(self, begin: int, end: int, value: object) -> None:
        """Let these bytes belong to this value alone."""
        if begin < end:
            at = self.pieces(begin, end)
            self.begins[at], self.values[at] = [begin], [frozenset([value])]

    def share(self, begin: int, end: int, value: object) -> None:
        """Let these bytes belong to this value too."""
        at = self.pieces(begin, end)
        self.values[at] = [values | {value} for values in self.values[at]]

    def holds(self, begin: int, end: int, *values: object) -> bool:
        """Tell whether each of these bytes belongs to one of the values."""
        return all(found & {*values} for found in self.values[self.pieces(begin, end)])


Place = tuple[Shadow, int, int, str]  # memory, begin, end, and whose array it is


class Rank:
    """One rank's walk over its program; `faults` collects what is wrong."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank, self.at, self.faults = plan, rank, 0, list[str]()
        self.arena, self.own = Shadow(), defaultdict[str, Shadow](Shadow)
        self.roots: dict[tuple[int, str], tuple[Record, int]] = {}  # samples, stage:value
        for root in (r for r in plan.all["root"] if r["rank"] == rank):
            for key, offset in root["values"].items():
                self.roots[root["samples"], key] = root, offset
        self.blocks = {b_key(b): b for b in plan.all["block"] if b["rank"] == rank}
        self.adding: dict[str, list[Record]] = defaultdict(list)
        for adding in (a for a in plan.all["adding"] if a["rank"] == rank):
            self.adding[adding["run"]].append(adding)
        self.terms: dict[tuple[str, int], frozenset[int]] = {}
        self.totals = {t["variable"]: t["sum"] for t in plan.all["total"] if t["rank"] == rank}

    def fault(self, text: str) -> None:
        program = self.plan.programs[self.rank]
        now = program[self.at].text if self.at < len(program) else "the end"
        self.faults.append(f"rank {self.rank}, step {self.at}, {now}: {text}")

    def place(self, stage: int, value: str, mb: int) -> Place:
        """Find where a value of a micro-batch lies, and that the block is in use now."""
        size = self.plan.sizes[mb]
        root, offset = self.roots[size, f"{stage}:{value}"]
        end = offset + bytes_of(self.plan.made[size, value][1])
        if not 0 <= offset <= end <= root["bytes"]:
            self.fault(f"{value} lies beyond {root['root']}")
        if root["own"]:
            return self.own[root["own"]], offset, end, root["own"]
        base = self.block(root["root"], mb)
        return self.arena, base["offset"] + offset, base["offset"] + end, ""

    def block(self, *key: object) -> Record:
        block = self.blocks[key]
        if not block["first"] <= self.at <= block["last"]:
            self.fault(f"{name_of(block)} is kept from {block['first']} to {block['last']} only")
        return block

    def read(self, stage: int, value: str, mb: int) -> None:
        memory, begin, end, own = self.place(stage, value, mb)
        if own != value and not memory.holds(begin, end, (value, mb)):
            self.fault(f"{value} of micro-batch {mb} is not there")

    def write(self, stage: int, value: str, mb: int) -> None:
        memory, begin, end, own = self.place(stage, value, mb)
        if own:
            self.fault(f"{value} is written into {own}")
        memory.write(begin, end, (value, mb))

    def run(self, step: Step) -> None:
        stage, adding = stage_of(step.of), self.adding.pop(step.text, [])
        on_cpu = self.plan.devices[self.rank].startswith("cpu")  # where gradients are added at once
        for node in self.plan.nodes[self.plan.sizes[step.mb], step.of]:
            for value in node["inputs"]:
                self.read(stage, value, step.mb)
            self.make(node, stage, step.mb)
            for record in adding if on_cpu else ():
                if self.plan.gradient[record["variable"]]["value"] in values_of(node):
                    self.add(step.mb, record["variable"], record["do"].split())
        for node in self.plan.nodes[self.plan.sizes[step.mb], step.of]:
            for value in values_of(node):
                if value in self.plan.last:
                    self.read(stage, value, step.mb)
        for record in () if on_cpu else adding:
            self.add(step.mb, record["variable"], record["do"].split())

    def make(self, node: Record, stage: int, mb: int) -> None:
        """Write what a node makes."""
        if node["alias"]:
            self.alias(node, stage, mb)
            return
        self.in_place(node, stage, mb)
        for value in values_of(node):
            if not node["variable"] or not self.place(stage, value, mb)[3]:
                self.write(stage, value, mb)

    def alias(self, node: Record, stage: int, mb: int) -> None:
        """Check that outputs which nothing writes lie in the inputs' memory."""
        sources = node["inputs"][: 1 if node["alias"] == "view" else None]
        places = [self.place(stage, value, mb) for value in sources]
        for value in values_of(node):
            memory, begin, end, own = self.place(stage, value, mb)
            inside = own in sources or memory.holds(begin, end, *((v, mb) for v in sources))
            side_by_side = [begin, *(p[2] for p in places)] == [*(p[1] for p in places), end]
            if not inside or (len(places) > 1 and not side_by_side):
                self.fault(f"{value} is not in the memory of {', '.join(sources)}")
            memory.share(begin, end, (value, mb))

    def in_place(self, node: Record, stage: int, mb: int) -> None:
        """Check that outputs lie over inputs only if the operator can write them there."""
        for out, value in enumerate(values_of(node)):
            memory, begin, end, _ = self.place(stage, value, mb)
            for index, source in enumerate(node["inputs"]):
                other, first, last, _ = self.place(stage, source, mb)
                if other is memory and begin < last and first < end:
                    same = (begin, end) == (first, last)
                    others = {v for o, i in node["over"] if o == out for v in [node["inputs"][i]]}
                    if not (same and source in others):
                        self.fault(f"{value} is written over {source} (input {index})")

    def add(self, mb: int, name: str, do: Sequence[str]) -> None:
        """Copy a gradient to a partial sum ("keep 2") or add it ("add term to 0", "add 1 to 0")."""
        gradient = self.plan.gradient[name]
        node, _ = self.plan.made[self.plan.sizes[mb], gradient["value"]]
        into, kept = int(do[-1]), do[0] == "keep"
        if kept or do[1] == "term":
            self.read(stage_of(node["body"]), gradient["value"], mb)
            terms = frozenset([mb])
        else:
            self.partial(name, int(do[1]))
            terms = self.terms.pop((name, int(do[1])))
        if not kept:
            self.partial(name, into)
            if not siblings(self.terms[name, into], terms, len(self.plan.sizes)):
                self.fault(f"'{' '.join(do)}' of {name}: not in the order of the tree of sums")
            terms |= self.terms[name, into]
        self.terms[name, into] = terms
        begin = self.block(name, into)["offset"]
        self.arena.write(begin, begin + gradient["bytes"], (name, into, "sum"))

    def partial(self, name: str, number: int) -> None:
        """Read a partial sum."""
        block = self.block(name, number)
        end = block["offset"] + block["bytes"]
        if not self.arena.holds(block["offset"], end, (name, number, "sum")):
            self.fault(f"partial sum {number} of the gradient of {name} is not there")

    def gradients(self, stage: str | None = None) -> None:
        """Check that the gradients of this rank, or of one stage, are complete."""
        for g in self.plan.all["gradient"]:
            if self.plan.ranks[g["stage"]] != self.rank or stage not in (None, str(g["stage"])):
                continue
            name, (node, _) = g["variable"], self.plan.made[self.plan.sizes[0], g["value"]]
            if len(self.plan.sizes) == 1:
                self.read(stage_of(node["body"]), g["value"], 0)
                continue
            self.partial(name, self.totals[name])
            terms = self.terms.get((name, self.totals[name]), frozenset())
            if terms != {*self.plan.mbs}:
                missing = sorted({*self.plan.mbs} - terms)
                self.fault(f"the gradient of {name} lacks micro-batches {missing}")

    def walk(self) -> list[str]:
        """Walk the program; return what is wrong."""
        plan = self.plan
        sends: dict[str, list[Record]] = defaultdict(list)
        for m in plan.tags.values():
            sends[m["made_by"]].append(m)
        sent: set[tuple[str, int]] = set()
        for at, step in enumerate(plan.programs[self.rank]):
            self.at = at
            if step.kind == "run":
                self.run(step)
            elif step.kind == "S":
                self.read(stage_of(plan.of(step)["made_by"]), plan.of(step)["value"], step.mb)
                sent.add(step[1:3])
            elif step.kind == "R":
                self.write(stage_of(plan.of(step)["taken_by"]), plan.of(step)["value"], step.mb)
            elif step.kind == "free":
                for m in sends[step.of]:
                    if (str(m["tag"]), step.mb) not in sent:
                        self.fault(f"message {m['tag']} is not sent yet")
                    elif not m["exchange"]:
                        self.read(stage_of(step.of), m["value"], step.mb)
            else:
                self.gradients(step.of if step.kind == "U" else None)
        self.at = len(plan.programs[self.rank])
        self.gradients()
        if self.adding:
            self.fault(f"sums of runs that are not there: {', '.join(self.adding)}")
        return self.faults


def siblings(a: frozenset[int], b: frozenset[int], count: int) -> bool:
    """Tell whether two sums are neighbours in the one tree by which `count` terms are added up.

    ((0 + 1) + (2 + 3)) + 4
    """
    low, high = sorted((a, b), key=min)
    first, width = min(low), len(low)
    return (
        width & (width - 1) == 0
        and first % (2 * width) == 0
        and low == {*range(first, first + width)}
        and high == {*range(first + width, min(first + 2 * width, count))}
    )


def b_key(block: Record) -> tuple[object, ...]:
    """Return what a block is looked up by."""
    if "root" in block:
        return block["root"], block["mb"]
    return block["variable"], block["sum"]


def memory(plan: Plan) -> Iterator[str]:
    """Whatever is read is there."""
    for rank in range(len(plan.programs)):
        yield from Rank(plan, rank).walk()


def updates(plan: Plan) -> Iterator[str]:
    """A step updates all stages with gradients or none, once, between collectives."""
    stages = {g["stage"] for g in plan.all["gradient"]}
    updated = [int(s.of) for program in plan.programs for s in program if s.kind == "U"]
    if updated and (len(updated) != len({*updated}) or not stages <= {*updated}):
        yield f"stages {sorted(updated)} are updated, but {sorted(stages)} have gradients"
    wanted = ["1", ""] if plan.all["copies"] else [""]
    after = ["2"] if any(copies["sharded"] for copies in plan.all["copies"]) else []
    for rank, program in enumerate(plan.programs):
        ends = [s.of for s in program if s.kind in "CU"]
        own = [s.of for s in program if s.kind == "U"]
        if (updated or ends) and ends != wanted + own + after:
            yield f"rank {rank} ends with {' '.join(s.text for s in program if s.kind in 'CU')}"
        for stage in own:
            if plan.ranks[int(stage)] != rank:
                yield f"rank {rank} updates stage {stage} of rank {plan.ranks[int(stage)]}"


RULES = (graph, messages, instructions, order, hang, blocks, memory, updates)


def verify(lines: Iterable[str]) -> list[str]:
    """Return what is wrong with a plan, a line each; nothing if it is right.

    Raises:
        ValueError: The lines are not a plan.
    """
    try:
        plan = Plan(lines)
    except MALFORMED as error:
        raise ValueError(f"not a plan as `symgraph plan --dump` writes it ({error})") from error
    faults: list[str] = []
    for rule in RULES:
        try:
            faults += rule(plan)
        except (*MALFORMED, RuntimeError) as error:
            faults.append(f"{rule.__name__}: something refers to {error}, which is not in the plan")
    return faults


def main(path: str) -> int:
    """Verify a file; print what is wrong, or what was verified; return the exit status."""
    try:
        with open(path, encoding="utf-8") as file:
            faults = verify(file)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"symgraph: error: cannot verify {path}: {error}\n")
        return 2
    print("\n".join(faults) or "verified: everything is computed once, nothing waits for ever")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
