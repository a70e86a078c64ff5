"""The ways a model can be laid out, and a small subset that covers all pairs."""
import heapq
import itertools

OPTIMIZERS = ["sgd", "adamw"]
MESHES = ["none", "dp=2", "tp=2", "pp=2", "dp=2,tp=2", "pp=2,dp=2,tp=2"]
MICROBATCHES = ["whole", "half", "one"]
SCHEDULES = ["gpipe", "1f1b"]
# Every schedule there is.
ALL_SCHEDULES = SCHEDULES + ["early", "eager", "last", "scp", "zb", "auto",
                             "interleaved"]
RECOMPUTE = ["none", "full", "0.7"]
GLOBAL_BATCH = 8


def degrees(mesh):
    """{'pp': 2, 'dp': 1, 'tp': 2} of "pp=2,tp=2"."""
    sizes = {"pp": 1, "dp": 1, "tp": 1}
    if mesh != "none":
        for part in mesh.split(","):
            axis, size = part.split("=")
            sizes[axis] = int(size)
    return sizes


def samples(mesh, microbatch):
    """Samples of a microbatch of one replica."""
    replica = GLOBAL_BATCH // degrees(mesh)["dp"]
    return {"whole": replica, "half": replica // 2,
            "quarter": replica // 4, "one": 1}[microbatch]


def defined(mesh, microbatch, schedule):
    """Whether a schedule exists for so many stages and microbatches."""
    sizes = degrees(mesh)
    count = GLOBAL_BATCH // sizes["dp"] // samples(mesh, microbatch)
    return schedule != "interleaved" or count % sizes["pp"] == 0


def compile_options(mesh, microbatch, schedule, recompute="none"):
    """merakc's options for one layout; all three degrees are pinned."""
    sizes = degrees(mesh)
    count = sizes["pp"] * sizes["dp"] * sizes["tp"]
    return [f"--devices={count}",
            "--mesh=" + ",".join(f"{a}={n}" for a, n in sizes.items()),
            f"--global-batch={GLOBAL_BATCH}",
            f"--microbatch={samples(mesh, microbatch)}",
            f"--schedule={schedule}", f"--recompute={recompute}"]


def pairwise(cases):
    """A subset of tuples that holds every pair of values that the whole list
    holds; greedy, the same every time."""
    def pairs(case):
        return {(i, case[i], j, case[j])
                for i, j in itertools.combinations(range(len(case)), 2)}

    of = [pairs(case) for case in cases]
    open_pairs = set().union(*of)
    # What a case adds only becomes less: the first whose number is still right
    # is the best one, and of equals the first of the list.
    heap = [(-len(each), index) for index, each in enumerate(of)]
    heapq.heapify(heap)
    chosen = []
    while open_pairs:
        known, index = heapq.heappop(heap)
        now = -len(of[index] & open_pairs)
        if now != known:
            heapq.heappush(heap, (now, index))
            continue
        chosen.append(cases[index])
        open_pairs -= of[index]
    return chosen
