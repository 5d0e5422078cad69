"""Runs what dct.sh measures and checks it against the bounds.

arXiv 2010.08899, data parallelism: of a gradient what passes a threshold is sent, the rest is added to the next.

codec   gigabytes of a gradient that a core codes in a second, and scatters
frappe  log loss and AUC by the share of elements that are sent, beside the same run with all of them, and bytes
split   a trainer's hidden layers on two ranks: log loss and AUC by the share of activations that are sent, and bytes
links   time of steps over slow links, with and without
full    what it costs where no link is slow, and whether it turns itself off there
pooled  bytes of rows against those of vectors that are pooled where the rows are, whole and of what passes

Not of those that run without PHASES:

others  frappe and split for other shares, most of them with the first seed
clicks  as frappe, on synthetic clicks: $CLICKS of them, a million without
vectors log loss and AUC by the share of pooled vectors that is sent, on Frappe
reach   time to the same log loss over a link of 1 Gbit/s
virtual bytes and times of 64 and 256 trainers, simulated

Python's standard library only.
"""

import functools
import json
import os
import random
import subprocess
from statistics import mean, median, stdev

from runs import DATA, UMBRA, Runs, mpirun, settings
from show import Show, phases, summary

SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "1,2,3,4,5").split(",")]
RELEASE = os.path.dirname(UMBRA)
# 4.6 million dense parameters on ten fields of 64 values.
LARGE = {"model.embedding_dim": 64, "model.top": "[2048, 1280, 512]"}
# Frappe's, without compression: chosen on validation rows of the seed 1 among Adagrad at .02, .01 and .005 and Adam at .0003,
# .0001 and .00005, rows at .05, .1 and .2, dropout 0 and .2, global batches of 1024 and 256, and two or three epochs.
TUNED = {"optim.dense.kind": "adam", "optim.dense.lr": 0.00005, "optim.sparse.lr": 0.1, "train.batch_size": 128,
         "train.worker_threads": 1, "train.epochs": 2}
# Of the elements of a gradient; 1 stands for a run without compression.
# What the ratios are claimed at, and what else there is a table of.
CLAIMED, OTHERS = 0.02, [0.1, 0.0075]
# Of synthetic clicks; not chosen among others.
CLICKS_TUNED = {"optim.dense.kind": "adam", "optim.dense.lr": 0.0003, "optim.sparse.lr": 0.02, "train.batch_size": 256}
# Of activations between layers that are split, and what their values are sent as: what is claimed to do no harm, what takes few
# bytes, and what else there is a table of.
SPLIT_NO_LOSS, SPLIT_FEWEST, SPLIT_OTHERS = (0.25, "bf16"), (0.11, "f8"), [(0.06, "bf16"), (0.25, "f8")]
# Of these all seeds tell: where a loss begins to show.
SPLIT_SEEDED = [SPLIT_NO_LOSS, (0.25, "f8")]
RANKS, TURNS = 2, 2
show, runs = Show("dct", SEEDS), Runs("dct")


def kept(keep):
    return {} if keep == 1 else {"compress.dp_keep": keep}


def ratios(figures):
    """Elements and bytes of the coded tensors over those that were sent."""
    wire = figures["wire"]
    return (wire["dense_elements_total"] / wire["dense_elements_kept"], wire["dense_bytes_uncoded"] / wire["dense_bytes_coded"])


def codec():
    print("== codec", flush=True)
    found = [json.loads(subprocess.check_output([f"{RELEASE}/examples/codec_rate"])) for _ in range(3)]
    for lines in zip(*found):
        figures = {name: median(line[name] for line in lines) for name in lines[0]}
        show.row(what="codec, bfloat16", keep=figures["keep"], encode=figures["encode_gb_per_s"],
                 decode=figures["decode_gb_per_s"], bytes_ratio=figures["byte_ratio"], refresh_us=figures["refresh_us"])
        if figures["keep"] == 0.01:
            show.at_least("encode_gb_per_s", figures["encode_gb_per_s"], 2)
            show.at_least("decode_gb_per_s", figures["decode_gb_per_s"], 4)
            # Of a threshold that holds for a thousand steps.
            coding = 4 * (1 << 22) / 1e9 / figures["encode_gb_per_s"]
            show.measured("refresh_over_coding", figures["refresh_us"] / 1e6 / 1000 / coding)


def frappe_sets():
    """Settings of the quality runs on Frappe; `None` where it is not."""
    files = runs.frappe_files()
    return files and LARGE | TUNED | {"data.train": files["train"], "data.test": files["test"], "sync.method": "bsp"}


@functools.cache
def frappe_run(keep, seed, values="bf16"):
    coded = {} if keep == 1 else kept(keep) | {"compress.values": values}
    name = f"frappe-{keep}-{values}-{seed}"
    return runs.train(name, "hpc/show/shadow-frappe.toml", frappe_sets() | coded | {"seed": seed}, mpirun(RANKS))


def logloss(figures):
    return figures["test"]["logloss"]


def more_of(found, plain):
    """How much more log loss than without, and its uncertainty."""
    more = [own - each for own, each in zip(found, plain)]
    return mean(more), stdev(more) / len(more) ** 0.5 if len(more) > 1 else float("nan")


def shares(what, run, keeps, claimed):
    """Log loss and AUC by the share of elements that are sent; of shares that nothing is claimed at the first seed tells."""
    found = {keep: [run(keep, seed) for seed in (SEEDS if claimed and keep in (1, claimed) else SEEDS[:1])] for keep in keeps}
    for keep, own in found.items():
        more, error = more_of(map(logloss, own), map(logloss, found[1]))
        elements, of_bytes = (mean(each) for each in zip(*map(ratios, own))) if keep != 1 else (1, 1)
        show.row(what=f"{what}, {len(own)} seeds", keep=keep, logloss=mean(map(logloss, own)), auc=mean(each["test"]["auc"] for each in own),
                 logloss_more=more, uncertainty=error, elements=elements, bytes=of_bytes, dense_mb=own[0]["wire"]["dense_bytes"] / 1e6,
                 coding_share=own[0]["wire"].get("seconds_coding", 0) / own[0]["seconds"])
    return found


def frappe():
    print("== frappe", flush=True)
    if frappe_sets() is None:
        return
    found = shares("frappe", frappe_run, [1, CLAIMED], CLAIMED)
    elements, of_bytes = (mean(each) for each in zip(*map(ratios, found[CLAIMED])))
    show.at_least("dp_byte_ratio", of_bytes, 100)
    show.measured("dp_element_ratio", elements)
    more, error = more_of(map(logloss, found[CLAIMED]), map(logloss, found[1]))
    show.at_most("logloss_loss_over_se", more / error, 2)


def clicks():
    """The same on synthetic clicks, one pass."""
    print("== clicks", flush=True)
    count = int(os.environ.get("CLICKS", "1000000"))
    common = LARGE | CLICKS_TUNED | {"data.train": runs.synth("dct_train", count), "sync.method": "bsp", "train.worker_threads": 1,
                                     "data.test": runs.synth("shadow_test", 400_000, 8_000_000)}

    def run(keep, seed):
        return runs.train(f"clicks-{keep}-{seed}", "hpc/show/shadow-synthetic.toml", common | kept(keep) | {"seed": seed}, mpirun(RANKS))

    found = shares(f"{count} clicks", run, [1, CLAIMED], CLAIMED)
    more, error = more_of(map(logloss, found[CLAIMED]), map(logloss, found[1]))
    show.measured("dp_byte_ratio_clicks", mean(ratios(own)[1] for own in found[CLAIMED]))
    show.at_most("logloss_loss_over_se_clicks", more / error, 2)


def split():
    """A trainer's hidden layers on two ranks: bytes of activations and their gradients, and what a threshold on them does beside
    the same global batches on whole replicas."""
    print("== split", flush=True)
    if frappe_sets() is None:
        return
    split_shares([SPLIT_NO_LOSS, SPLIT_FEWEST])


def others():
    """Figures of other shares: the first seed's, unless they are among `SPLIT_SEEDED`."""
    print("== others", flush=True)
    if frappe_sets() is None:
        return
    shares("frappe", frappe_run, [1, *OTHERS], None)
    shares("frappe, f8", lambda keep, seed: frappe_run(keep, seed) if keep == 1 else frappe_run(keep, seed, "f8"), [1, CLAIMED], None)
    split_shares(SPLIT_OTHERS)


def split_shares(those):
    plain = [logloss(frappe_run(1, seed)) for seed in (SEEDS if any(each in SPLIT_SEEDED for each in those) else SEEDS[:1])]
    for keep, values in those:
        seeds = SEEDS if (keep, values) in SPLIT_SEEDED else SEEDS[:1]
        sets = frappe_sets() | {"roles.dense_partitions": 2, "train.batch_size": 256, "compress.mp_keep": keep, "compress.values": values}
        found = [runs.train(f"split-{keep}-{values}-{seed}", "hpc/show/shadow-frappe.toml", sets | {"seed": seed}, mpirun(2))
                 for seed in seeds]
        ratio = mean(own["wire"]["activation_bytes_uncoded"] / own["wire"]["activation_bytes_coded"] for own in found)
        masked = [own["test_masked"]["logloss"] for own in found]
        more, error = more_of(masked, plain)
        show.row(what=f"two parts, {len(found)} seeds, {values}", keep=keep, masked_logloss=mean(masked), logloss_more=more, uncertainty=error,
                 masked_auc=mean(own["test_masked"]["auc"] for own in found), logloss=mean(map(logloss, found)),
                 auc=mean(own["test"]["auc"] for own in found), bytes=ratio,
                 elements=mean(own["wire"]["activation_elements_total"] / own["wire"]["activation_elements_kept"] for own in found),
                 crossing_share=found[0]["wire"]["seconds_crossing"] / found[0]["seconds"])
        if (keep, values) == SPLIT_FEWEST:
            show.at_least("mp_byte_ratio", ratio, 20)
            show.measured("mp_logloss_more", more)
        if (keep, values) == SPLIT_NO_LOSS:
            show.measured("mp_byte_ratio_no_loss", ratio)
            show.at_most("mp_logloss_loss_over_se", more / error, 2)


def vectors():
    """Pooled vectors of fields of one value each, of which what matters is sent."""
    print("== vectors", flush=True)
    if frappe_sets() is None:
        return
    whole = frappe_run(1, SEEDS[0])
    for keep in (1, 0.5, 0.25, 0.1):
        how = {"embedding.pool_at": "ps"} if keep == 1 else {"compress.mp_keep": keep}
        own = runs.train(f"vectors-{keep}", "hpc/show/shadow-frappe.toml", frappe_sets() | how | {"seed": SEEDS[0]}, mpirun(RANKS))
        masked = own["test_masked" if keep < 1 else "test"]
        show.row(what="frappe, pooled vectors", keep=keep, masked_logloss=masked["logloss"], masked_auc=masked["auc"],
                 logloss=logloss(own), auc=own["test"]["auc"], more_than_rows=logloss(own) - logloss(whole),
                 fewer_than_rows=whole["wire"]["embedding_bytes"] / own["wire"]["embedding_bytes"],
                 fewer_than_vectors=own["wire"]["embedding_bytes_uncoded"] / own["wire"]["embedding_bytes_coded"])


def reach():
    """Time to the log loss on validation rows that the run without comes to after a part of an epoch."""
    print("== reach", flush=True)
    files = runs.frappe_files()
    if files is None:
        return
    os.environ["UMBRA_CLUSTER_MTU"] = "60000"
    subprocess.run(["hpc/cluster/up.sh", "4"], check=True, stdout=subprocess.DEVNULL)
    for method in ("bsp", "gba"):
        curves = {}
        # With compression more steps, where it takes more to come as far.
        for keep, steps in ((1, 600), (CLAIMED, 1000)):
            sets = LARGE | TUNED | kept(keep) | {
                "data.train": files["train"], "data.valid": files["valid"], "sync.method": method, "train.batch_size": 64,
                "train.epochs": 2, "train.max_examples": 4 * 64 * steps, "train.eval_every": 100}
            launch = ["hpc/cluster/run", "-n", "4", "--rate", "1gbit", "--"]
            runs.train(f"reach-{method}-{keep}", "hpc/show/shadow-frappe.toml", sets, launch)
            lines = (runs.out / f"reach-{method}-{keep}" / "metrics.jsonl").read_text().splitlines()
            curves[keep] = [(line["seconds"], line["valid"]["logloss"]) for line in map(json.loads, lines) if "valid" in line]
        goal = curves[1][-1][1]
        seconds = {keep: next((at for at, reached in curve if reached <= goal), float("nan")) for keep, curve in curves.items()}
        show.row(what=f"{method}, 4 ranks at 1gbit, to {goal:.4f}", keep=CLAIMED, seconds=seconds[CLAIMED], without=seconds[1],
                 saved=1 - seconds[CLAIMED] / seconds[1], last=curves[CLAIMED][-1][1])
        show.measured({"bsp": "time_to_logloss_saved_share", "gba": "time_to_logloss_saved_share_gba"}[method],
                      1 - seconds[CLAIMED] / seconds[1])
    subprocess.run(["hpc/cluster/down.sh", "--quiet"], check=True)


def links():
    print("== links", flush=True)
    clicks = {"data.train": runs.synth("shadow_speed", 400_000)}
    os.environ["UMBRA_CLUSTER_MTU"] = "60000"
    subprocess.run(["hpc/cluster/up.sh", "4"], check=True, stdout=subprocess.DEVNULL)
    for method in ("bsp", "gba"):
        for rate, steps in (("100mbit", 10), ("1gbit", 40)):
            times = {keep: [] for keep in (1, CLAIMED)}
            for turn in range(TURNS):
                for keep in times:
                    sets = clicks | LARGE | kept(keep) | {"sync.method": method, "train.batch_size": 64, "train.worker_threads": 1,
                                                          "train.max_examples": 4 * 64 * steps}
                    launch = ["hpc/cluster/run", "-n", "4", "--rate", rate, "--"]
                    name = f"links-{method}-{rate}-{keep}-{turn}"
                    times[keep].append(runs.train(name, "hpc/show/shadow-synthetic.toml", sets, launch))
            seconds = {keep: median(own["seconds"] / own["steps"] for own in each) for keep, each in times.items()}
            saved = 1 - seconds[CLAIMED] / seconds[1]
            show.row(what=f"{method}, 4 ranks at {rate}", keep=CLAIMED, seconds_of_a_step=seconds[CLAIMED], without=seconds[1],
                     saved=saved, bytes=ratios(times[CLAIMED][0])[1])
            name = {"bsp": "time_saved_share", "gba": "time_saved_share_gba"}[method]
            if rate == "100mbit":
                show.at_least(name, saved, 0.37)
            else:
                show.measured(f"{name}_1gbit", saved)
    subprocess.run(["hpc/cluster/down.sh", "--quiet"], check=True)


def full():
    """Where no link is slow it is to turn itself off; what it would cost is told beside."""
    print("== full", flush=True)
    common = {"data.train": runs.synth("shadow_speed", 400_000)} | LARGE | {
        "sync.method": "bsp", "train.batch_size": 64, "train.worker_threads": 1, "train.max_examples": RANKS * 64 * 120}
    ways = {"without": {}, "auto": kept(CLAIMED) | {"compress.auto": "true"}, "on": kept(CLAIMED)}
    found = {way: [] for way in ways}
    for turn in range(5):
        for way, sets in ways.items():
            found[way].append(runs.train(f"full-{way}-{turn}", "hpc/show/shadow-synthetic.toml", common | sets, mpirun(RANKS)))
    for way in ("auto", "on"):
        costs = [own["seconds"] / plain["seconds"] - 1 for own, plain in zip(found[way], found["without"])]
        error = stdev(costs) / len(costs) ** 0.5
        wire = found[way][-1]["wire"]
        show.row(what=f"full speed, {way}", cost=median(costs), uncertainty=error, compressed="dense_bytes_coded" in wire,
                 trial_plain=wire.get("seconds_trial_plain"), trial_coded=wire.get("seconds_trial_coded"))
        if way == "auto":
            show.at_most("full_speed_cost_share", median(costs), 0.03)
        else:
            show.measured("full_speed_cost_share_on", median(costs))


CLUSTER = """trainers = %s
cores = 2
steps = 20
[link]
bytes_per_s = %s
latency_us = 50
[compute]
example_us = 700
jitter = "none"
"""


def virtual():
    """Bytes and times of jobs that are larger than this machine."""
    print("== virtual", flush=True)
    clicks = {"data.train": runs.synth("shadow_speed", 400_000)}
    for method in ("bsp", "gba"):
        for rate, bytes_per_s in (("100mbit", 12.5e6), ("1gbit", 125e6), ("10gbit", 1.25e9)):
            for trainers in (4, 64, 256):
                cluster = runs.out / f"cluster-{rate}-{trainers}.toml"
                cluster.write_text(CLUSTER % (trainers, bytes_per_s))
                found = {}
                for keep in (1, CLAIMED):
                    name = f"virtual-{method}-{rate}-{trainers}-{keep}"
                    sets = clicks | LARGE | kept(keep) | {
                        "sync.method": method, "train.batch_size": 64, "train.worker_threads": 1,
                        # Every node serves a slice.
                        **({"roles.sync_ps": trainers} if method == "gba" else {}),
                        # A lane for each trainer, or several.
                        "data.lanes": max(8, trainers), "run.dir": str((runs.out / name).resolve()), "run.overwrite": "true"}
                    runs.call(name, [UMBRA, "simulate", "-c", "hpc/show/shadow-synthetic.toml", "--cluster", str(cluster), *settings(sets)])
                    found[keep] = summary(runs.out / name)
                seconds = {keep: own["seconds"] / own["steps"] for keep, own in found.items()}
                sent = {keep: own["wire"]["dense_bytes"] / own["steps"] / trainers for keep, own in found.items()}
                show.row(what=f"virtual {method}, {trainers} trainers at {rate}", keep=CLAIMED, seconds_of_a_step=seconds[CLAIMED],
                         without=seconds[1], saved=1 - seconds[CLAIMED] / seconds[1], mb=sent[CLAIMED] / 1e6, mb_without=sent[1] / 1e6)


POOLED = """seed = 1
[model]
kind = "dlrm"
embedding_dim = 16
bottom = [32, 16]
top = [64, 32]
[optim.dense]
kind = "adagrad"
lr = 0.02
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
[checkpoint]
save = "none"
[run]
tensorboard = false
overwrite = true
"""
SCHEMA = """label = "click"
dense = ["hour"]
sparse = [%s]
"""
BAGS = 6
# Bags of 1 to so many of so many keys; a key is that of a uniform number to this power.
LONG, SHORT = (39, 200_000, 2), (9, 2000, 3)


def many_hot(most, keys, power):
    """16 384 clicks with six bags each."""
    name = f"dct_{most}_{keys}"
    path = DATA / f"{name}.h5"
    if not path.exists():
        words, columns = random.Random(1), [f"bag{number}" for number in range(BAGS)]
        with (DATA / f"{name}.csv").open("w") as out:
            print("click", "hour", *columns, sep=",", file=out)
            for _ in range(16384):
                bags = [[int(keys * words.random() ** power) for _ in range(words.randint(1, most))] for _ in columns]
                print(words.randrange(2), words.randrange(24), *("|".join(map(str, bag)) for bag in bags), sep=",", file=out)
        (DATA / f"{name}.toml").write_text(SCHEMA % ", ".join(f'{{ column = "{column}", separator = "|" }}' for column in columns))
        runs.call(f"prepare-{name}", [UMBRA, "prepare", "--format", "csv", "--schema", f"{DATA}/{name}.toml",
                                      "--input", f"{DATA}/{name}.csv", "--output", str(path)])
    return str(path.resolve())


def pooled():
    """Bytes alone: clicks are chance. One pass in global batches of 1024."""
    print("== pooled", flush=True)
    job = runs.out / "pooled.toml"
    job.write_text(POOLED)
    for bags in (LONG, SHORT):
        for ranks in (2, 4):
            sets = {"data.train": many_hot(*bags), "train.batch_size": 1024 // ranks, "train.worker_threads": 1, "sync.method": "bsp"}
            rows = runs.train(f"pooled-{bags[0]}-rows-{ranks}", job, sets, mpirun(ranks))
            for keep in (1, 0.25, 0.1, 0.05):
                how = {"embedding.pool_at": "ps"} if keep == 1 else {"compress.mp_keep": keep}
                own = runs.train(f"pooled-{bags[0]}-{keep}-{ranks}", job, sets | how, mpirun(ranks))
                wire = own["wire"]
                # Of two runs, with all that is sent for rows.
                ratio = rows["wire"]["embedding_bytes"] / wire["embedding_bytes"]
                show.row(what=f"bags of 1 to {bags[0]} of {bags[1]} keys, {ranks} ranks", keep=keep,
                         kept=wire["embedding_elements_kept"] / wire["embedding_elements_total"], mb=wire["embedding_bytes"] / 1e6,
                         fewer_than_rows=ratio, fewer_than_vectors=wire["embedding_bytes_uncoded"] / wire["embedding_bytes_coded"],
                         coding_share=wire["seconds_coding"] / own["seconds"])
                # Whole vectors are f32, others bfloat16.
                if (bags, ranks, keep) == (LONG, 2, 1):
                    show.measured("pooled_byte_ratio", ratio)
                if (bags, ranks, keep) == (LONG, 2, 0.1):
                    show.measured("embedding_byte_ratio", ratio)


for phase in phases(codec, frappe, split, links, full, pooled, more=(others, clicks, vectors, reach, virtual)):
    phase()
show.finish()
