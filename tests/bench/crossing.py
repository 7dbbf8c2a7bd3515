"""Where the best width of a chain changes with the prompt's length and with the links: what `tests/bench/chain --crossing`
does. For each link a table is searched over it; then, at lengths that the table does not have, all links and widths run
turn about, and each link's router says which width it takes."""

import json
import os
import random
import statistics
import subprocess
import tempfile

from service import BINARY, Cluster, cpu, fresh_ids, ratio, spread, summary, turns


def standard_error(values):
    """Of their median, not moved by outliers: as plan search reckons it."""
    centre = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - centre) for value in values)
    return 1.2533 * deviation / len(values) ** 0.5


class Pair:
    """A length over a link: what each width takes, turn by turn, and which one the router took."""

    def __init__(self, taken, figures):
        self.taken, self.figures = taken, figures
        own = figures[taken - 1]
        others = [width for width in range(1, len(figures) + 1) if width != taken]
        self.rival = min(others, key=lambda width: ratio(figures[width - 1], own))
        self.to_rival = ratio(figures[self.rival - 1], own)  # how much longer the best of the others takes
        self.error = standard_error([a / b for a, b in zip(figures[self.rival - 1], own)])

    def fastest(self):
        """The width that was fastest, and whether that is more than twice the error."""
        return (self.taken if self.to_rival >= 1 else self.rival), abs(self.to_rival - 1) > 2 * self.error

    def verdict(self):
        if self.to_rival >= 1:
            return "fastest"
        return "within noise" if self.to_rival + 2 * self.error >= 1 else "slower"


def search(cluster, widths, args, table):
    command = [BINARY, "plan", "search", "--router", cluster.router, "--tokens", args.table_tokens, "--widths",
               ",".join(map(str, widths)), "--budget", args.search_budget, "-o", table]
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


def simulated_width(args, widths, tokens, link):
    """The width that is best by the cost file over such links."""

    def seconds(width):
        command = [BINARY, "plan", "simulate", "--model-cost", args.model_cost, "--tokens", tokens, "--width", width,
                   "--link-gbps", link, "--json"]
        done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)["ttft_s"]

    return min(widths, key=seconds)


def measure(clusters, widths, tokens, repeats):
    """The Pairs of one length, by link. All links and widths run turn about: a machine that gets slower meanwhile does so
    for all of them."""

    def side(cluster, width):
        return lambda ids: 1e3 * cluster.generate(ids, 1, "--width", width)["timing"]["ttft_s"]

    ids = fresh_ids(random.Random(0), tokens)
    taken = {link: len(cluster.generate(ids, 1)["plan"]["parts"]) for link, cluster in clusters.items()}
    figures = iter(turns([side(cluster, width) for cluster in clusters.values() for width in widths], tokens, repeats))
    return {link: Pair(taken[link], [next(figures) for _ in widths]) for link in clusters}


def conclude(pairs, links, args):
    verdicts = [pair.verdict() for pair in pairs.values()]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("fastest", "within noise", "slower"))
    print(f"\nthe router's width, of {len(pairs)} pairs: {counts}")
    print("fastest width as measured (~: by no more than twice the error of the ratio)")
    print(f"{'tokens':>7}" + "".join(f"{link + ' Gbit/s':>15}" for link in links))
    for tokens in args.tokens:
        cells = []
        for link in links:
            width, clear = pairs[link, tokens].fastest()
            cells.append(f"{'' if clear else '~'}{width}")
        print(f"{tokens:>7}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


def print_pair(link, tokens, pair, by_file):
    cells = "".join(f"{spread(summary(ms)):>26}" for ms in pair.figures)
    to_rival = f"{pair.to_rival:.2f} +- {pair.error:.2f}"
    print(f"{link:>8}{tokens:>7}{cells}{pair.taken:>7}{by_file}{to_rival:>18}  {pair.verdict()}", flush=True)


def run(model, up, args):
    """`up`: arguments of every cluster."""
    widths = range(1, args.width + 1)
    links = args.chain_link_gbps.split(",")
    pairs, clusters = {}, {}
    with tempfile.TemporaryDirectory(prefix="runahead-crossing-") as folder:
        table_of = lambda link: os.path.join(folder, f"{link}.yaml")
        for link in links:
            cluster = Cluster(model, *up, "--chain-link-gbps", link)
            try:
                search(cluster, widths, args, table_of(link))
            finally:
                cluster.stop()
        try:
            for link in links:
                clusters[link] = Cluster(model, *up, "--chain-link-gbps", link, "--table", table_of(link))
            print(f"device   {cpu()}\nservice  {clusters[links[0]].about}\nmedian of {args.repeats} turns (smallest to largest)\n")
            heads = "".join(f"{f'width {w}, ms':>26}" for w in widths)
            simulated = f"{'simulated':>10}" if args.model_cost else ""
            print(f"{'Gbit/s':>8}{'tokens':>7}{heads}{'taken':>7}{simulated}{'rival to taken':>18}  verdict", flush=True)
            for tokens in args.tokens:
                for link, pair in measure(clusters, widths, tokens, args.repeats).items():
                    pairs[link, tokens] = pair
                    by_file = f"{simulated_width(args, widths, tokens, link):>10}" if args.model_cost else ""
                    print_pair(link, tokens, pair, by_file)
        finally:
            for cluster in clusters.values():
                cluster.stop()
    conclude(pairs, links, args)
