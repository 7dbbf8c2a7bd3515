"""Decode and KVPR: steps, how KV in host memory is split between recomputation, link and host, and the cache."""

from grafana import Query, dashboard, lines
from promql import MODEL, mean, of, quantile, rate

STEP = "runahead_decode_step_seconds"
TPOT = "runahead_time_per_output_token_seconds"

ABOUT = "Decode: steps, recomputation and transfer, KV memory"

DASHBOARD = dashboard("runahead-decode", "Runahead: Decode and KVPR", ABOUT, {
    "Tokens": [
        lines("Time per output token", "s",
              "A request's mean time per token after the first.",
              Query(quantile(0.5, TPOT, MODEL, by="model"), "{{model}} p50"),
              Query(quantile(0.9, TPOT, MODEL, by="model"), "{{model}} p90"),
              Query(quantile(0.99, TPOT, MODEL, by="model"), "{{model}} p99")),
        lines("Time between two tokens", "s",
              "What a reader sees: a p99 far above p50 are pauses within an answer.",
              Query(quantile(0.5, "runahead_inter_token_latency_seconds", MODEL, by="model"), "{{model}} p50"),
              Query(quantile(0.99, "runahead_inter_token_latency_seconds", MODEL, by="model"), "{{model}} p99")),
        lines("Step of the whole batch", "s",
              "One step gives each sequence of the batch a token.",
              Query(quantile(0.5, STEP, by="instance"), "{{instance}} p50"),
              Query(quantile(0.99, STEP, by="instance"), "{{instance}} p99")),
        lines("Sequences in a step", "none",
              "The mean batch. At max_batch requests wait in the router.",
              Query(mean("runahead_decode_batch_size", by="instance"), "{{instance}}")),
        lines("Slots", "none",
              "Of each decode worker's max_batch. promised: leases whose KV is on its way, or whose slot is still "
              "taken. parked: sequences that wait for memory.",
              Query(of("runahead_decode_slots"), "{{worker}}: {{state}}"), stacked=True),
        lines("Parked sequences", "none",
              "Their memory went to others, and their streams wait. Should be 0 most of the time: else too little is "
              "expected of answers, or kv_memory is small.",
              Query(of("runahead_decode_parked_requests"), "{{instance}}")),
        lines("Tokens computed again", "short",
              "A second, of sequences that were parked and came back: what parking costs.",
              Query(rate("runahead_decode_rebuilt_tokens_total", by="instance"), "{{instance}}")),
        lines("Prompt tokens in decode steps", "short",
              "A second, computed by decode workers themselves behind KV that they have, not by the chain.",
              Query(rate("runahead_decode_prompt_tokens_total", by="instance"), "{{instance}}")),
        lines("Expected and real output", "short",
              "Output tokens a second: expected of requests when they had their first token, and generated. Expected "
              "far above: memory is kept for answers that end sooner. Far below: sequences may be parked.",
              Query(rate("runahead_expected_output_tokens_total", by="job"), "{{job}}: expected"),
              Query(rate("runahead_generated_tokens_total", by="job"), "{{job}}: generated")),
        lines("From the first token to the second", "s",
              "A stream that has begun waits for its KV, and for its slot where that was promised too soon.",
              Query(quantile(0.5, "runahead_first_gap_seconds", MODEL, by="model"), "{{model}} p50"),
              Query(quantile(0.99, "runahead_first_gap_seconds", MODEL, by="model"), "{{model}} p99")),
    ],
    "KVPR: KV over the link": [
        lines("Positions recomputed", "none",
              "Of a sequence in a step, in the mean: the l of the split. No line where KV is not brought over a link.",
              Query(mean("runahead_kvpr_split_tokens", by="instance"), "{{instance}}")),
        lines("Recomputation and transfer", "s",
              "Busy time of a step in the mean. Where the split fits, both take about as long.",
              Query(mean("runahead_kvpr_recompute_seconds", by="instance"), "{{instance}}: recompute"),
              Query(mean("runahead_kvpr_transfer_seconds", by="instance"), "{{instance}}: transfer")),
        lines("Overlap", "percentunit",
              "1: of recomputation and transfer the shorter one is hidden behind the other. 0: they took turns, or "
              "one had nothing to do.",
              Query(of("instance:runahead_kvpr_overlap_ratio:mean_rate5m"), "{{instance}}"), maximum=1),
        lines("Positions by lane", "short",
              "Positions a second that steps attended over: recomputed on the device, streamed to it, attended by "
              "the host, or resident on the device.",
              Query(rate("runahead_kvpr_lane_tokens_total", by="lane"), "{{lane}}"), stacked=True),
        lines("Lanes at work", "percentunit",
              "Share of the time in which a lane was busy. The fullest one is what steps wait for.",
              Query(rate("runahead_kvpr_lane_seconds_total", by="instance, lane"), "{{instance}}: {{lane}}")),
        lines("Bytes from host memory", "Bps",
              "What each lane reads there, with the bandwidth of copies to the device as measured beside it.",
              Query(rate("runahead_kvpr_lane_bytes_total", by="lane"), "{{lane}}"),
              Query(of("runahead_link_bandwidth_bytes_per_second"), "{{instance}}: bandwidth of the link")),
    ],
    "KVPR: what the lanes are planned by": [
        lines("Copies by size", "Bps",
              "Copies between host and device of one size, one at a time, as measured when the worker started. A link "
              "that is good for large blocks alone wants larger ones.",
              Query(of("runahead_link_copy_bytes_per_second", 'direction="to_device"') + " > 0",
                    "{{instance}}: to the device, {{block_bytes}} bytes"),
              Query(of("runahead_link_copy_bytes_per_second", 'direction="to_host"') + " > 0",
                    "{{instance}}: to the host, {{block_bytes}} bytes")),
        lines("Work of a layer", "s",
              "project: projections and MLP, with a share of embedding and head. signal: the way of the host lane's q "
              "and results. copy: a few bytes to the device, at start.",
              Query(of("runahead_kvpr_layer_seconds"), "{{instance}}: {{work}}"),
              Query(of("runahead_link_copy_latency_seconds"), "{{instance}}: copy")),
        lines("Work of a position", "s",
              "What recomputation of a position, and the device's attention over it, take in a layer, by the steps so "
              "far.",
              Query(of("runahead_kvpr_position_seconds"), "{{instance}}: {{work}}")),
        lines("Host memory", "Bps",
              "KV that the host lane attends over alone (beside nothing), and all that is read of host memory while "
              "copies run beside it.",
              Query(of("runahead_kvpr_host_bytes_per_second"), "{{instance}}: beside {{beside}}")),
    ],
    "Hand-off": [
        lines("Expected and received", "Bps",
              "KV and X that leases wait for, and what came of it. The lines lie on each other, but for cancelled "
              "prompts; RunaheadHandoffMissing fires where less than half comes.",
              Query(rate("runahead_handoff_expected_bytes_total", by="instance, kind"),
                    "{{instance}}: {{kind}} expected"),
              Query(rate("runahead_handoff_received_bytes_total", by="instance, kind"),
                    "{{instance}}: {{kind}} received")),
        lines("Slices by verdict", "ops",
              "accepted, corrupt (sent again), no_lease (its request has ended), bad_range (it does not fit: workers "
              "that do not agree).",
              Query(rate("runahead_handoff_slices_total", by="instance, verdict"), "{{instance}}: {{verdict}}")),
    ],
    "KV memory": [
        lines("In use by tier", "bytes",
              "KV cache memory in use, on the device and in host memory.",
              Query(of("runahead_kv_bytes"), "{{instance}}: {{tier}}")),
        lines("In use and promised", "bytes",
              "KV cache memory in use, and what leases that grow are expected to take beside it. Near the "
              "capacity new requests wait in the router's queue.",
              Query(of("runahead_kv_promised_bytes"), "{{instance}}: {{tier}}")),
        lines("Share in use", "percentunit",
              "Of the KV cache memory of a tier. What is promised to leases that grow is not in use yet.",
              Query(of("instance_tier:runahead_kv_bytes:share"), "{{instance}}: {{tier}}"), maximum=1),
        lines("Leases", "none",
              "Requests that hold KV memory: reserved before prefill begins, given back at the end.",
              Query(of("runahead_kv_leases"), "{{instance}}")),
        lines("Leases that ran out", "none",
              "In an hour. Each one is KV memory that nobody gave back in time.",
              Query(f"increase({of('runahead_kv_leases_expired_total')}[1h])", "{{instance}}")),
        lines("Slices that arrived corrupt", "none",
              "In an hour. They are sent again; anything but 0 is a fault of network or memory.",
              Query(f"increase({of('runahead_handoff_checksum_failures_total')}[1h])", "{{instance}}")),
        lines("Capacity", "bytes",
              "KV cache memory in all.",
              Query(of("runahead_kv_capacity_bytes"), "{{instance}}: {{tier}}")),
    ],
    "Known beginnings": [
        lines("Kept for prompts that begin alike", "bytes",
              "KV of sequences that ended, in memory that nobody needs now.",
              Query(of("runahead_kv_kept_bytes"), "{{instance}}: {{tier}}")),
        lines("Kept KV that went", "Bps",
              "To sequences that needed the memory. Where much goes, more kv_memory keeps more conversations.",
              Query(rate("runahead_kv_kept_evicted_bytes_total", by="instance"), "{{instance}}")),
        lines("Known beginnings asked for", "reqps",
              "taken: the decode worker went on from it. gone: it had less by then. refused: it had no slot or no "
              "memory. slower: without X, which its steps recompute from, they would cost more than the beginning "
              "saves. A chain computed all but the first. awaited: requests that waited for one that begins alike.",
              Query(rate("runahead_continuations_total", by="result"), "{{result}}"),
              Query(rate("runahead_beginnings_awaited_total", by="job"), "{{job}}: awaited")),
        lines("Known share of prompt tokens", "percentunit",
              "Of all prompt tokens, those that nobody computed, for a decode worker had KV of them from an earlier "
              "request; by who computed the rest.",
              Query(f"{rate('runahead_known_prompt_tokens_total', by='job, rest')}"
                    f" / on (job) group_left () ({rate('runahead_prompt_tokens_total', by='job')} > 0)",
                    "{{job}}: rest by {{rest}}"),
              stacked=True, maximum=1),
        lines("Time saved", "none",
              "Seconds a second by which first tokens came sooner than a chain that computes all was expected to give "
              "them: as predicted when the way was chosen, and as measured. lost: those that came later.",
              Query(rate("runahead_known_seconds_saved_total", by="job, as"), "{{job}}: {{as}}"),
              Query(rate("runahead_known_seconds_lost_total", by="job"), "{{job}}: lost")),
        lines("What the router remembers", "bytes",
              "Memory of its index of what decode workers may have, 64 MiB at most.",
              Query(of("runahead_known_index_bytes"), "{{instance}}")),
        lines("Tokens that the router believes kept", "none",
              "Of all decode workers. Some may have gone since: then a request asks in vain (gone).",
              Query(of("runahead_known_index_tokens"), "{{instance}}")),
    ],
})
