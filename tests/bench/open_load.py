"""Open arrivals: a schedule of requests that come whether or not those before them were answered, and what clients saw
of them in figures."""

import math
import random
from dataclasses import dataclass

from service import fresh_ids


@dataclass
class Lengths:
    """Log-normal, as lengths of prompts and answers are: half are shorter than the median, `spread` is the standard
    deviation of the logarithm. Cut at `least` and `most`."""
    median: float
    spread: float
    least: int
    most: int

    def draw(self, source):
        drawn = round(self.median * math.exp(source.gauss(0, self.spread)))
        return min(max(drawn, self.least), self.most)


@dataclass
class Arrival:
    at_s: float
    new_tokens: int
    ids: list


@dataclass
class Objectives:
    """A request is good that has its first token after at most `ttft_s`, and 99 of 100 gaps of at most `gap_s`."""
    ttft_s: float
    gap_s: float


def schedule(seed, rate, requests, prompts, answers):
    """Poisson arrivals, `rate` a second. The same lengths at each rate, so that rates compare."""
    times, lengths, words = (random.Random(f"{what} {seed}") for what in ("times", "lengths", f"words {rate}"))
    arrivals, at = [], 0.0
    for _ in range(requests):
        arrivals.append(Arrival(at, answers.draw(lengths), fresh_ids(words, prompts.draw(lengths))))
        at += times.expovariate(1) / rate
    return arrivals


def quantile(figures, share):
    """The least figure that `share` of them do not exceed; NaN of none."""
    ordered = sorted(figures)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass
class Figures:
    requests: int
    refused: int  # ended with another code than OK
    ttft_p50_s: float
    ttft_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    good: int  # requests within the objectives
    tokens: int
    seconds: float  # from the first arrival to the last token

    @property
    def good_share(self):
        return self.good / self.requests

    @property
    def goodput(self):
        """Good requests a second."""
        return self.good / self.seconds


def figures(arrivals, seen, objectives):
    """`seen`: of each arrival what build/bench/arrivals says."""
    answered = [one for one in seen if one["code"] == "OK"]
    gaps = [gap for one in answered for gap in one["gaps_s"]]
    ttfts = [one["ttft_s"] for one in answered]
    ends = [arrival.at_s + (one["ttft_s"] or 0) + sum(one["gaps_s"]) for arrival, one in zip(arrivals, seen)]

    def good(one):
        return one["ttft_s"] <= objectives.ttft_s and not quantile(one["gaps_s"], 0.99) > objectives.gap_s

    return Figures(len(seen), len(seen) - len(answered), quantile(ttfts, 0.5), quantile(ttfts, 0.99), quantile(gaps, 0.5),
                   quantile(gaps, 0.99), max(gaps, default=math.nan), sum(map(good, answered)),
                   sum(len(one["gaps_s"]) + 1 for one in answered), max(ends))


def capacity(by_rate, share=0.95):
    """The highest rate up to which, at each of them, `share` of the requests were good; 0 where none was.
    `by_rate`: pairs of a rate and its Figures."""
    reached = 0
    for rate, of_rate in sorted(by_rate, key=lambda pair: pair[0]):
        if of_rate.good_share < share:
            break
        reached = rate
    return reached
