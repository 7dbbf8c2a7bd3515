"""Chain: what the prefill workers of a chain do and wait for, and what flows between them."""

from grafana import Query, dashboard, lines
from promql import mean, of, quantile, rate

COMPUTE = "runahead_prefill_compute_seconds"
WAIT = "runahead_prefill_wait_seconds"

ABOUT = "Prefill: compute and waiting by position, links, partition, hand-off"

DASHBOARD = dashboard("runahead-chain", "Runahead: Chain", ABOUT, {
    "Positions": [
        lines("Mean compute by position", "s",
              "What a job computes on the worker at this position of its chain. A good partition makes these alike, "
              "with the later positions a little lower.",
              Query(mean(COMPUTE, by="position"), "position {{position}}")),
        lines("Mean waiting by position", "s",
              "What a job waits for KV of the workers before it: the chain's bubble. The head, position 0, waits "
              "for nobody.",
              Query(mean(WAIT, by="position"), "position {{position}}")),
        lines("Bubble", "percentunit",
              "Share of a job's time in which it waited for KV, over five minutes.",
              Query(of("position:runahead_prefill_wait_seconds:share_rate5m"), "position {{position}}"),
              Query(of("job:runahead_prefill_wait_seconds:share_rate5m"), "all of {{job}}"), maximum=1),
        lines("Imbalance", "none",
              "The longest mean compute of a position over the mean of all: 1 is even. Chains of different width "
              "mix here. By worker: time with waiting for KV over time without, of its last part of a chain.",
              Query(f"max by (job) ({mean(COMPUTE, by='job, position')})"
                    f" / avg by (job) ({mean(COMPUTE, by='job, position')})", "{{job}}"),
              Query(of("runahead_prefill_imbalance_ratio"), "{{instance}}: last part")),
        lines("Workers at work", "percentunit",
              "Share of the time in which a worker computed for a prompt; interleaved prompts count twice. Near 1 "
              "the pool is full.",
              Query(rate(f"{COMPUTE}_sum", by="instance"), "{{instance}}")),
        lines("Prompt tokens computed", "short",
              "Prompt tokens a second by worker.",
              Query(rate("runahead_prefill_tokens_total", by="instance"), "{{instance}}")),
    ],
    "Links between neighbours": [
        lines("KV on the links", "Bps",
              "Bytes a second between chain neighbours, as each end counts them.",
              Query(rate("runahead_link_bytes_total", by="instance, peer, direction"),
                    "{{instance}}: {{direction}}, {{peer}}")),
        lines("Mean time of a frame", "s",
              "received: on the wire. sent: until its bytes may be reused, so also while it waits for the neighbour "
              "to ask for it.",
              Query(mean("runahead_link_seconds", by="instance, peer, direction"),
                    "{{instance}}: {{direction}}, {{peer}}")),
        lines("Transfer hidden behind compute", "percentunit",
              "Of the time in which KV was on the wire, the share that fell into compute. What is not hidden is "
              "waited for.",
              Query(of("job:runahead_prefill_transfer_hidden_seconds:share_rate5m"), "{{job}}"), maximum=1),
        lines("Waiting for a layer buffer", "s",
              "How long a job stood still in the mean because no layer buffer was free. More prefill_memory helps.",
              Query(mean("runahead_prefill_ring_stall_seconds", by="instance"), "{{instance}}")),
        lines("Layer buffers", "bytes",
              "Memory that the KV of prompts in prefill holds.",
              Query(of("runahead_prefill_buffer_bytes"), "{{instance}}")),
        lines("Prompts in a pass", "none",
              "How many prompts a worker computes in one pass, in the mean: short ones that wait go together. 1: none "
              "waited.",
              Query(mean("runahead_prefill_pass_size", by="instance"), "{{instance}}")),
        lines("Interleaved prompts", "reqps",
              "Short prompts that ran while a longer one was half done.",
              Query(rate("runahead_prefill_interleaved_total", by="instance"), "{{instance}}")),
    ],
    "Partition": [
        lines("How parts were found", "reqps",
              "searched and interpolated: the table serves these prompts. extrapolated and clamped: prompts lie "
              "outside it. even: there is no table.",
              Query(rate("runahead_partition_lookups_total", by="result"), "{{result}}"), stacked=True),
        lines("Reloads of the table", "none",
              "Changes of the partition table's file since the router started. After an error the old table stays; "
              "the log says what is wrong.",
              Query(of("runahead_table_reloads_total"), "{{instance}}: {{result}}")),
    ],
    "Hand-off to decode": [
        lines("Time of a slice", "s",
              "From a slice of KV or X being ready to the decode worker's acknowledgement.",
              Query(quantile(0.5, "runahead_handoff_seconds", by="instance"), "{{instance}} p50"),
              Query(quantile(0.99, "runahead_handoff_seconds", by="instance"), "{{instance}} p99")),
        lines("Lag behind prefill", "none",
              "How many times as long as the prefill itself hand-off takes after it. RunaheadHandoffSlow fires "
              "above 1.",
              Query(of("instance:runahead_handoff_seconds:lag_rate5m"), "{{instance}}")),
        lines("Bytes handed off", "Bps",
              "kv: keys and values. x: activations, for decode workers that recompute.",
              Query(rate("runahead_handoff_bytes_total", by="kind"), "{{kind}}"), stacked=True),
        lines("Slices and frames sent again", "ops",
              "KV that arrived corrupt, at a decode worker (slices) or at the next worker of a chain (frames), and was "
              "sent again. Anything but 0 is a fault of network or memory.",
              Query(rate("runahead_handoff_retries_total", by="instance, cause"), "{{instance}}: slices, {{cause}}"),
              Query(rate("runahead_link_retries_total", by="instance, cause"), "{{instance}}: frames, {{cause}}")),
    ],
})
