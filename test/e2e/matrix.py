"""The ways a model can be laid out, and a small subset that covers all pairs."""
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

    open_pairs = set().union(*map(pairs, cases)) if cases else set()
    chosen = []
    while open_pairs:
        best = max(cases, key=lambda case: len(pairs(case) & open_pairs))
        chosen.append(best)
        open_pairs -= pairs(best)
    return chosen
