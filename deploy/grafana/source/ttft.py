"""TTFT: how long clients wait for their first token, and for what."""

from grafana import Query, dashboard, heatmap, lines
from promql import MODEL, mean, of, quantile, rate

TTFT = "runahead_time_to_first_token_seconds"
STAGE = "runahead_ttft_stage_seconds"

DASHBOARD = dashboard("runahead-ttft", "Runahead: TTFT", "Time to first token: percentiles, and where it goes", {
    "Time to first token": [
        lines("TTFT by model", "s",
              "From a request's arrival at the router to its first token. Half of all requests wait no longer than "
              "p50, one in a hundred longer than p99.",
              Query(quantile(0.5, TTFT, MODEL, by="model"), "{{model}} p50"),
              Query(quantile(0.9, TTFT, MODEL, by="model"), "{{model}} p90"),
              Query(quantile(0.99, TTFT, MODEL, by="model"), "{{model}} p99")),
        heatmap("TTFT of all requests", "s",
                "Requests a second by their TTFT. Two bands are two kinds of request: look at prompt class and "
                "chain width.",
                rate(f"{TTFT}_bucket", MODEL, by="le")),
        lines("Later than the objective", "percentunit",
              "Share of first tokens that came later than 2.5 s. The objective allows 5%; RunaheadTtftBurnsFast and "
              "RunaheadTtftBurnsSlowly look at these.",
              Query(of("model:runahead_time_to_first_token_seconds:slow_rate5m", MODEL), "{{model}}, 5 minutes"),
              Query(of("model:runahead_time_to_first_token_seconds:slow_rate1h", MODEL), "{{model}}, an hour"),
              maximum=1),
    ],
    "By kind of request": [
        lines("TTFT p90 by prompt class", "s",
              "Nine of ten requests wait no longer. le4k: prompts of 1,025 to 4,096 tokens.",
              Query(quantile(0.9, TTFT, MODEL, by="prompt_class"), "{{prompt_class}}")),
        lines("TTFT p90 by chain width", "s",
              "By how many workers shared the prompt. Wide chains get the long prompts, so wider is not shorter "
              "here: compare within a prompt class. 0: a decode worker knew the prompt's beginning and computed the "
              "rest.",
              Query(quantile(0.9, TTFT, MODEL, by="chain_width"), "{{chain_width}} workers")),
        lines("Prompt tokens, and known ones", "short",
              "A second. Known: a decode worker had KV of them from an earlier request, so nobody computed them.",
              Query(rate("runahead_prompt_tokens_total", by="job"), "{{job}}: of prompts"),
              Query(rate("runahead_known_prompt_tokens_total", by="job, rest"), "{{job}}: known, rest by {{rest}}")),
        lines("Requests by prompt class", "reqps",
              "First tokens a second: how much each line of the other panels stands for.",
              Query(rate(f"{TTFT}_count", MODEL, by="prompt_class"), "{{prompt_class}}")),
    ],
    "Where it goes": [
        lines("Mean TTFT by stage", "s",
              "Stages follow each other on the router's clock, so their means add up to the mean TTFT (percentiles "
              "would not). worker_queue: waiting inside workers; queue: for admission.",
              Query(mean(STAGE, by="stage"), "{{stage}}"), stacked=True),
        lines("Mean prefill stage by chain width", "s",
              "From the start on the workers to the last one's first token, without the queue inside workers.",
              Query(mean(STAGE, 'stage="prefill"', by="chain_width"), "{{chain_width}} workers")),
        lines("Mean queues by chain width", "s",
              "Waiting for admission and inside workers. It is added to every prompt's TTFT: if it grows, add "
              "prefill workers.",
              Query(mean(STAGE, 'stage="queue"', by="chain_width"), "admission, {{chain_width}} workers"),
              Query(mean(STAGE, 'stage="worker_queue"', by="chain_width"), "in workers, {{chain_width}} workers")),
    ],
})
