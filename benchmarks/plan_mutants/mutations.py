"""The mutations: each makes a valid plan wrong, and its docstring says why it is wrong for sure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.plan_mutants.mutant import Mutant, Record
from runtime.frontends.cli.verify import Step, parse, stage_of

# -- programs ------------------------------------------------------------------------------------

NEEDED = ("run", "free", "S", "R", "C")  # each of these is there for a reason, once


def drop_instruction(m: Mutant) -> str:
    """Each run, free, send, receive and collective is needed."""
    rank, at, _ = m.instruction(NEEDED)
    return f"rank {rank} without {m.programs[rank].pop(at)}"


def drop_update(m: Mutant) -> str:
    """The others are updated, and this stage has gradients."""
    stage = m.some("gradient")["stage"]
    m.programs[m.ranks[stage]].remove(f"U{stage}")
    return f"without U{stage}"


def twice(m: Mutant) -> str:
    """Each instruction is there once; the ranks' collectives are the same."""
    rank, _, step = m.instruction((*NEEDED, "U"))
    m.programs[rank].insert(m.rng.randrange(len(m.programs[rank]) + 1), step.text)
    return f"rank {rank} has {step.text} twice"


def other_rank(m: Mutant) -> str:
    """It is missing where it was."""
    rank, at, step = m.instruction(NEEDED)
    other = m.rng.choice([r for r in range(len(m.programs)) if r != rank])
    m.programs[rank].pop(at)
    m.programs[other].insert(m.rng.randrange(len(m.programs[other]) + 1), step.text)
    return f"{step.text} of rank {rank} is on rank {other}"


def before_its_need(m: Mutant) -> str:
    """An instruction comes before one that it needs."""
    rank, i, j = m.rng.choice(m.pairs())
    later, earlier = m.programs[rank].pop(j), m.programs[rank][i]
    m.programs[rank].insert(m.rng.randrange(i + 1), later)
    return f"rank {rank}: {later} before {earlier}"


def after_its_use(m: Mutant) -> str:
    """An instruction comes after one that needs it."""
    rank, i, j = m.rng.choice(m.pairs())
    earlier, later = m.programs[rank].pop(i), m.programs[rank][j - 1]
    m.programs[rank].insert(m.rng.randrange(j, len(m.programs[rank]) + 1), earlier)
    return f"rank {rank}: {earlier} after {later}"


def other_tag(m: Mutant) -> str:
    """The message that it was for lacks it."""
    rank, at, step = m.instruction(("S", "R"))
    tags = [r["tag"] for r in m.messages if str(r["tag"]) != step.of] + [len(m.messages) + 99]
    m.programs[rank][at] = f"{step.kind}{m.rng.choice(tags)}.{step.mb}"
    return f"rank {rank}: {step.text} becomes {m.programs[rank][at]}"


def other_micro_batch(m: Mutant) -> str:
    """The micro-batch that it was for lacks it."""
    rank, at, step = m.instruction(("run", "free", "S", "R"))
    count = len(m.head["micro_batches"])
    new = m.rng.choice([mb for mb in range(count + 1) if mb != step.mb])
    m.programs[rank][at] = renamed(step, new)
    return f"rank {rank}: {step.text} becomes {m.programs[rank][at]}"


def renamed(step: Step, mb: int) -> str:
    """Write an instruction for another micro-batch."""
    if step.kind in ("S", "R"):
        return f"{step.kind}{step.of}.{mb}"
    body, dot, segment = step.of.partition(".")
    return f"{'D' if step.kind == 'free' else ''}{body}{mb}{dot}{segment}"


def exchange_micro_batches(m: Mutant) -> str:
    """Two runs of a body change places, over something that needs the first."""
    found = [
        (rank, i, j, k)
        for rank, i, j in m.pairs()
        for k in range(j + 1, len(m.programs[rank]))
        for a, b in [(parse(m.programs[rank][i]), parse(m.programs[rank][k]))]
        if a.kind == b.kind and a.of == b.of and a.mb != b.mb
    ]
    rank, i, j, k = m.rng.choice(found)
    program = m.programs[rank]
    program[i], program[k] = program[k], program[i]
    return f"rank {rank}: {program[k]} and {program[i]} exchanged, over {program[j]}"


def reorder_channel(m: Mutant) -> str:
    """Two messages of one channel are sent, or received, in the other order at one end."""
    kind = m.rng.choice("SR")
    found = [
        (rank, i, j)
        for rank, program in enumerate(m.programs)
        for j in range(len(program))
        for i in range(j)
        if program[i][0] == program[j][0] == kind
        for a, b in [(m.tagged(parse(program[i])), m.tagged(parse(program[j])))]
        if all(a[key] == b[key] for key in ("from", "to", "exchange"))
    ]
    rank, i, j = m.rng.choice(found)
    program = m.programs[rank]
    program[i], program[j] = program[j], program[i]
    return f"rank {rank}: {program[j]} and {program[i]} exchanged"


def crossing(m: Mutant) -> Iterator[tuple[Record, Record, int]]:
    """Yield pairs of plain messages between two ranks, one each way, and a micro-batch."""
    for a in m.messages:
        for b in m.messages:
            if (a["from"], a["to"]) == (b["to"], b["from"]) and not a["exchange"] + b["exchange"]:
                for mb in range(len(m.head["micro_batches"])):
                    yield a, b, mb


def hang(m: Mutant) -> str:
    """A rank waits for the answer before it asks: a receive before the send that leads to it."""
    found = []
    for a, b, mb in crossing(m):
        here, there = m.programs[a["from"]], m.programs[a["to"]]
        send, answer = here.index(f"S{a['tag']}.{mb}"), here.index(f"R{b['tag']}.{mb}")
        asked = there.index(f"R{a['tag']}.{mb}") < there.index(f"S{b['tag']}.{mb}")
        if send < answer and asked:
            found.append((here, send, answer))
    program, send, answer = m.rng.choice(found)
    program.insert(m.rng.randrange(send + 1), program.pop(answer))
    return f"a receive comes before {program[send + 1]}, which it waits for"


def hang_without_room(m: Mutant) -> str:
    """Two ranks free what they sent each other before either receives it."""
    found = []
    for a, b, mb in crossing(m):
        ends = []
        for out, into in ((a, b), (b, a)):
            program = m.programs[out["from"]]
            sent = [
                program.index(f"S{x['tag']}.{mb}")
                for x in m.messages
                if x["made_by"] == out["made_by"]
            ]
            free = program.index(renamed(Step("free", out["made_by"], 0, ""), mb))
            ends.append((program, max(sent), program.index(f"R{into['tag']}.{mb}"), free))
        if all(sent < receive for _, sent, receive, _ in ends):
            found.append(ends)
    for program, _, receive, free in m.rng.choice(found):
        if free > receive:
            program.insert(receive, program.pop(free))
    return "two ranks free before they receive"


def update_early(m: Mutant) -> str:
    """Norms are added up before the last gradient that they are of is there."""
    last = {m.home[g["value"]] for g in m.of["gradient"]}
    found = [
        (rank, at)
        for rank, program in enumerate(m.programs)
        for at, step in enumerate(map(parse, program))
        if step.kind == "run" and step.of in last
    ]
    rank, at = m.rng.choice(found)
    program = m.programs[rank]
    program.remove("C")
    program.insert(m.rng.randrange(at + 1), "C")
    return f"rank {rank}: C before {program[at + 1]}"


# -- the graph and its messages ------------------------------------------------------------------


def node_elsewhere(m: Mutant) -> str:
    """The body of another rank has neither a place for its value nor its inputs."""
    node = m.some("node")
    others = [n for n in m.of["node"] if n["rank"] != node["rank"]]
    if m.rng.random() < 0.5:
        node["rank"] = m.rng.choice(others)["rank"]
        return f"node {node['name']} says rank {node['rank']}"
    there = m.rng.choice(others)
    node.update({key: there[key] for key in ("body", "rank", "device")})
    return f"node {node['name']} is in body {node['body']}"


def drop_node(m: Mutant) -> str:
    """Somebody reads it."""
    node = m.some("node")
    m.drop(node)
    return f"without node {node['name']}"


def node_twice(m: Mutant) -> str:
    """It is computed twice."""
    node = m.some("node")
    m.records.insert(m.records.index(node), dict(node))
    return f"node {node['name']} twice"


def node_too_early(m: Mutant) -> str:
    """It comes before an input that the same body makes."""
    found = [
        (node, other)
        for node in m.of["node"]
        for other in m.of["node"]
        if (other["samples"], other["body"]) == (node["samples"], node["body"])
        and other["name"] in node["inputs"]
    ]
    node, other = m.rng.choice(found)
    m.drop(node)
    m.records.insert(next(i for i, r in enumerate(m.records) if r is other), node)
    return f"node {node['name']} before {other['name']}"


def drop_term(m: Mutant) -> str:
    """A sum of gradients lacks a term."""
    node = m.some("node", operator="elemwise_add")
    return f"sum {node['name']} without {node['inputs'].pop(m.rng.randrange(2))}"


def bypass_sum(m: Mutant) -> str:
    """What reads a sum of gradients reads one of its terms instead."""
    nodes = [n for n in m.of["node"] if n["operator"] == "elemwise_add" and n["origin"]]
    node = m.rng.choice(nodes)
    term = m.rng.choice(node["inputs"])
    for record in m.records:
        if record["is"] == "node":
            record["inputs"] = [term if v == node["name"] else v for v in record["inputs"]]
        elif record.get("value") == node["name"]:
            record["value"] = term
    return f"{term} in place of the sum {node['name']}"


def double_term(m: Mutant) -> str:
    """A sum of gradients has one of two different terms twice, and not the other."""
    nodes = [n for n in m.of["node"] if n["operator"] == "elemwise_add" and n["origin"]]
    node = m.rng.choice([n for n in nodes if len({*n["inputs"]}) == 2])
    at = m.rng.randrange(2)
    node["inputs"][at] = node["inputs"][1 - at]
    return f"sum {node['name']} of {node['inputs']}"


def unknown_input(m: Mutant) -> str:
    """Nobody makes it."""
    node = m.rng.choice([n for n in m.of["node"] if n["inputs"]])
    node["inputs"][m.rng.randrange(len(node["inputs"]))] = "nobody"
    return f"node {node['name']} reads {node['inputs']}"


def false_alias(m: Mutant) -> str:
    """A node that computes says that its output is there already."""
    node = m.rng.choice(
        [n for n in m.of["node"] if n["inputs"] and not n["alias"] and not n["over"]]
    )
    node["alias"] = "view"
    return f"{node['operator']} {node['name']} says that it is a view"


def message_changed(m: Mutant) -> str:
    """Its bytes, type, ends or value are not those of what it carries."""
    message = m.some("message")
    key = m.rng.choice(("bytes", "type", "ends", "made_by", "taken_by", "value"))
    others = [b for b in {n["body"] for n in m.of["node"]}]
    if key == "bytes":
        message["bytes"] += m.rng.choice((-4, 4, 64))
    elif key == "type":
        message["type"] = message["type"].replace("[", "[2,")
    elif key == "ends":
        message["from"], message["to"] = message["to"], message["from"]
    elif key == "made_by":
        message[key] = m.rng.choice(sorted(b for b in others if b != message[key]))
    elif key == "taken_by":
        stage = stage_of(message[key])
        wrong = [b for b in others if m.ranks[stage_of(b)] != m.ranks[stage]]
        message[key] = m.rng.choice(sorted(wrong))
    else:
        nodes = [n["name"] for n in m.of["node"] if n["body"] != message["made_by"]]
        message[key] = m.rng.choice(nodes)
    return f"message {message['tag']}: {key} changed"


def drop_message(m: Mutant) -> str:
    """Instructions refer to it."""
    message = m.some("message")
    m.drop(message)
    return f"without message {message['tag']}"


def stage_moved(m: Mutant) -> str:
    """Its nodes say another rank, and its instructions stand there."""
    stage = m.rng.choice(sorted({stage_of(n["body"]) for n in m.of["node"]}))
    new = m.rng.choice([r for r in range(len(m.programs)) if r != m.ranks[stage]])
    m.ranks[stage] = new
    return f"stage {stage} on rank {new}"


def micro_batches_changed(m: Mutant) -> str:
    """There is one more, or one less, than the programs run."""
    sizes = m.head["micro_batches"]
    sizes[:] = sizes[:-1] if m.rng.random() < 0.5 else [*sizes, sizes[-1]]
    return f"micro-batches {sizes}"


# -- memory and sums -----------------------------------------------------------------------------


def overlap(m: Mutant) -> str:
    """Two blocks that are held at the same time share bytes."""
    rank = m.rng.randrange(len(m.programs))
    blocks = [b for b in m.of["block"] if b["rank"] == rank and b["bytes"]]
    found = [
        (a, b)
        for i, a in enumerate(blocks)
        for b in blocks[:i]
        if a["first"] <= b["last"] and b["first"] <= a["last"]
    ]
    a, b = m.rng.choice(found)
    a["offset"] = b["offset"] + m.rng.choice((0, b["bytes"] - 1))
    return f"rank {rank}: a block at {a['offset']}, where another is"


def outside(m: Mutant) -> str:
    """A block reaches beyond the arena."""
    block = m.rng.choice([b for b in m.of["block"] if b["bytes"]])
    arena = next(x["arena"] for x in m.of["memory"] if x["rank"] == block["rank"])
    block["offset"] = m.rng.choice((arena - block["bytes"] + 1, -1, arena))
    return f"a block at {block['offset']} of {arena}"


def shorter_life(m: Mutant) -> str:
    """A block is touched outside its life, which is no longer than it must be."""
    block = m.rng.choice([b for b in m.of["block"] if b["first"] < b["last"]])
    key = m.rng.choice(("first", "last"))
    low, high = block["first"] + (key == "first"), block["last"] - (key == "last")
    block[key] = m.rng.randint(low, high)
    return f"the {key} use of a block at {block[key]}: {block}"


def drop_block(m: Mutant) -> str:
    """Something has no place."""
    block = m.rng.choice([b for b in m.of["block"] if b["bytes"]])
    m.drop(block)
    return f"without block {block}"


def root_changed(m: Mutant) -> str:
    """A value lies outside its root, or nowhere."""
    root = m.rng.choice([r for r in m.of["root"] if r["values"] and not r["own"]])
    value = m.rng.choice(list(root["values"]))
    if m.rng.random() < 0.5:
        del root["values"][value]
    else:
        root["values"][value] = m.rng.choice((root["bytes"], -8))
    return f"{value} in {root['root']} of rank {root['rank']} moved or gone"


def figures_changed(m: Mutant) -> str:
    """The bytes do not add up, or are more than the limit."""
    about = m.some("memory")
    key = m.rng.choice(("parameters", "optimizer", "scratch", "arena", "peak", "limit"))
    about[key] = about["peak"] - 1 if key == "limit" else about[key] + m.rng.choice((-8, 8))
    return f"rank {about['rank']}: {key} of {about[key]}"


def drop_addend(m: Mutant) -> str:
    """A micro-batch's gradient is not added."""
    adding = m.some("adding")
    m.drop(adding)
    return f"{adding['run']} does not {adding['do']} for {adding['variable']}"


def addend_twice(m: Mutant) -> str:
    """A micro-batch's gradient is added twice, or an ended sum again."""
    adding = m.some("adding")
    if adding["do"].startswith("keep"):
        adding = m.rng.choice([a for a in m.of["adding"] if "add" in a["do"]])
    m.records.insert(m.records.index(adding), dict(adding))
    return f"{adding['run']}: {adding['do']} twice for {adding['variable']}"


def addend_changed(m: Mutant) -> str:
    """It goes to another sum, or comes from another run's micro-batch."""
    adding = m.some("adding")
    if m.rng.random() < 0.5:
        others = [a for a in m.of["adding"] if a["rank"] == adding["rank"]]
        mine = parse(adding["run"]).mb
        adding["run"] = m.rng.choice([a["run"] for a in others if parse(a["run"]).mb != mine])
    else:
        *words, number = adding["do"].split()
        adding["do"] = " ".join([*words, str(int(number) + m.rng.choice((1, 7)))])
    return f"{adding['variable']}: {adding['do']} after {adding['run']}"


def gradient_dropped(m: Mutant) -> str:
    """A gradient is computed and used for nothing."""
    gradient = m.some("gradient")
    m.drop(gradient)
    return f"without the gradient of {gradient['variable']}"


def total_changed(m: Mutant) -> str:
    """A gradient is not the sum over all micro-batches."""
    total = m.some("total")
    total["sum"] += m.rng.choice((1, 2))
    return f"the gradient of {total['variable']} is partial sum {total['sum']}"


MUTATIONS: tuple[Callable[[Mutant], str], ...] = (
    drop_instruction,
    drop_update,
    twice,
    other_rank,
    before_its_need,
    after_its_use,
    other_tag,
    other_micro_batch,
    exchange_micro_batches,
    reorder_channel,
    hang,
    hang_without_room,
    update_early,
    node_elsewhere,
    drop_node,
    node_twice,
    node_too_early,
    drop_term,
    bypass_sum,
    double_term,
    unknown_input,
    false_alias,
    message_changed,
    drop_message,
    stage_moved,
    micro_batches_changed,
    overlap,
    outside,
    shorter_life,
    drop_block,
    root_changed,
    figures_changed,
    drop_addend,
    addend_twice,
    addend_changed,
    gradient_dropped,
    total_changed,
)
