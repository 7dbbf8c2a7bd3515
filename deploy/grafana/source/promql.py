"""PromQL that many panels share. All of it keeps to the clusters that are chosen ($job), and where nothing was observed
there is no series: `> 0` and `>= 0` leave out what is not a number."""

MODEL = 'model=~"$model"'


def of(metric, *matchers):
    return metric + "{" + ", ".join(('job=~"$job"', *matchers)) + "}"


def rate(counter, *matchers, by):
    return f"sum by ({by}) (rate({of(counter, *matchers)}[$__rate_interval]))"


def mean(histogram, *matchers, by):
    return f"{rate(histogram + '_sum', *matchers, by=by)} / ({rate(histogram + '_count', *matchers, by=by)} > 0)"


def quantile(which, histogram, *matchers, by):
    return f"histogram_quantile({which}, {rate(histogram + '_bucket', *matchers, by=f'{by}, le')}) >= 0"
