"""Service: requests and their outcomes, the queue, workers, processes."""

from grafana import Query, dashboard, lines, number
from promql import MODEL, mean, of, quantile, rate

DURATION = "runahead_request_duration_seconds"
ENDED = DURATION + "_count"

DASHBOARD = dashboard("runahead-service", "Runahead: Service", "Requests, queue, workers and processes", {
    "Requests": [
        lines("Requests by code", "reqps",
              "Requests that ended, by gRPC code.",
              Query(rate("runahead_requests_total", MODEL, by="code") + " > 0", "{{code}}"), stacked=True),
        lines("Outcomes", "percentunit",
              "failed is ours; refused, cancelled and deadline are the request's or the client's.",
              Query(f"{rate(ENDED, MODEL, by='outcome')}"
                    f" / on () group_left () (sum({rate(ENDED, MODEL, by='job')}) > 0)",
                    "{{outcome}}"),
              stacked=True, maximum=1),
        lines("Tokens", "short",
              "Tokens a second: prompt tokens of accepted requests, and tokens generated.",
              Query(rate("runahead_prompt_tokens_total", by="job"), "{{job}}: prompt"),
              Query(rate("runahead_generated_tokens_total", by="job"), "{{job}}: generated")),
        lines("Whole requests, p90", "s",
              "From arrival until the answer is complete, by outcome.",
              Query(quantile(0.9, DURATION, MODEL, by="outcome"), "{{outcome}}")),
        lines("Requests that failed", "reqps",
              "By a failure of ours: a request that lost its workers and could not go on with others. It can be sent "
              "again, and with output_ids goes on where it was.",
              Query(rate(ENDED, MODEL, 'outcome="failed"', by="model"), "{{model}}")),
        lines("Retry budget", "none",
              "How many requests that lost their worker may go on with others now without a token since they last did. "
              "At 0 those fail.",
              Query(of("runahead_retry_budget"), "{{instance}}")),
        lines("Failovers", "reqps",
              "Requests that lost a worker or a path and went on with others, by cause, and by stage: before their first "
              "token (prefill), or behind it (decode).",
              Query(rate("runahead_failovers_total", by="cause, stage"), "{{cause}}, {{stage}}")),
        lines("Moves", "reqps",
              "Sequences of decode workers that drain, by what came of asking for their move to another one. no_room: they "
              "go on where they are, and ask again each second.",
              Query(rate("runahead_moves_total", by="result"), "{{result}}")),
        lines("Moved KV", "Bps",
              "Of sequences that moved, and of those that did not in the end, what other decode workers have taken.",
              Query(rate("runahead_moved_bytes_total", by="result"), "{{result}}")),
        lines("From cancel to free", "s",
              "After a cancelled prefill, until the last worker of its chain has free buffers again, in the mean.",
              Query(mean("runahead_cancel_to_free_seconds", by="job"), "{{job}}")),
    ],
    "Queue": [
        lines("Requests here now", "none",
              "running: those whose client does not have all of its answer, without those that wait. waiting: for "
              "admission.",
              Query(of("runahead_requests_in_flight") + f" - sum without (priority) ({of('runahead_queue_depth')})",
                    "{{instance}}: running"),
              Query(of("runahead_queue_depth"), "{{instance}}: waiting, {{priority}}"), stacked=True),
        lines("What requests wait for", "none",
              "session: max_sessions or max_streams. place: prefill workers. slot, memory: of a decode worker. worker: "
              "one that was lost and may come back.",
              Query(of("runahead_queue_requests"), "{{cause}}"), stacked=True),
        lines("Waits that ended", "reqps",
              "How often requests had waited for it, whatever came of them.",
              Query(rate("runahead_queue_waits_total", by="cause"), "{{cause}}")),
        lines("Time waited", "none",
              "Seconds of waiting a second, of requests that wait no more, by what for.",
              Query(rate("runahead_queue_seconds_total", by="cause"), "{{cause}}")),
        lines("Overtaken requests", "reqps",
              "How often a prompt was computed before a longer one whose turn was earlier.",
              Query(rate("runahead_overtaken_requests_total", by="instance"), "{{instance}}")),
        lines("Requests not admitted", "reqps",
              "queue_full: more than queue_size waited. never_fits: larger than any worker's memory. no_workers: "
              "nobody to send it to. draining: the router stops. deadline: its first token was expected behind it.",
              Query(rate("runahead_admission_rejections_total", by="reason"), "{{reason}}")),
    ],
    "API keys": [
        lines("Calls by API key", "reqps",
              "Of all methods. Empty where the router has no API keys.",
              Query(rate("runahead_key_requests_total", by="key"), "{{key}}"), stacked=True),
        lines("Tokens by API key", "short",
              "A second, of requests that have ended: what tokens_per_minute is settled by.",
              Query(rate("runahead_key_tokens_total", by="key, kind"), "{{key}}: {{kind}}"), stacked=True),
        lines("Refused by API key", "reqps",
              "By the limit: requests and tokens of a minute, requests at once, or what the key may never have.",
              Query(rate("runahead_key_refusals_total", by="key, limit"), "{{key}}: {{limit}}")),
        lines("Calls without a good API key", "reqps",
              "missing: clients that were not told. unknown: a key that was taken away, or somebody who guesses, in "
              "vain.",
              Query(rate("runahead_unauthenticated_calls_total", by="reason"), "{{reason}}")),
        lines("Reloads of the API keys", "none",
              "Changes of their file since the router started. After an error the keys from before stay; the log says "
              "what is wrong.",
              Query(of("runahead_api_key_reloads_total"), "{{instance}}: {{result}}")),
    ],
    "Workers": [
        lines("Workers", "none",
              "As the router sees them. refused: they do not agree with the pool. connecting: not yet reached.",
              Query(of("runahead_workers"), "{{role}} {{state}}")),
        lines("Ejected workers", "none",
              "Ready workers that get no work for a time, because they fail again and again by their own fault.",
              Query(of("runahead_workers_ejected"), "{{role}}")),
        lines("Suspected workers", "none",
              "Workers that answer and get nothing done: they get no work until they do, or are started anew.",
              Query(of("runahead_workers_suspected"), "{{role}}")),
        lines("Edges of the line", "none",
              "Between ready prefill workers that are neighbours. opening: not both ends are there yet. broken: to be "
              "made anew.",
              Query(of("runahead_edges"), "{{state}}"), stacked=True),
        lines("Broken paths", "none",
              "Between living workers. edge: no chain crosses it. handoff: from a prefill to a decode worker.",
              Query(of("runahead_broken_paths"), "{{kind}}")),
    ],
    "Processes": [
        number("Versions", "none", "What runs: version, and the device that computes (none in a router).",
               Query(of("runahead_build_info"), "{{instance}} {{version}} {{device}}")),
        lines("Up", "none", "1: Prometheus reaches the process.", Query(of("up"), "{{instance}}"), maximum=1),
        lines("CPU", "none", "Cores in use, user and system.",
              Query(rate("process_cpu_seconds_total", by="instance"), "{{instance}}")),
        lines("Resident memory", "bytes", "With the weights. Workers of one host that share weights count them each.",
              Query(of("process_resident_memory_bytes"), "{{instance}}")),
        lines("Open files", "none", "File descriptors: connections, mostly.",
              Query(of("process_open_fds"), "{{instance}}")),
        lines("Certificates run out in", "s",
              "tls: what clients see. cluster_tls: among router and workers. 0: there is none, or it has run out.",
              Query(f"clamp_min({of('runahead_tls_certificate_expiry_timestamp_seconds')} - time(), 0)",
                    "{{instance}} {{certificate}}")),
        lines("Changed certificates", "none",
              "In five minutes, as the process noticed. error: no good, so the one from before stays in use.",
              Query(f"sum by (instance, certificate, result) (increase({of('runahead_tls_reloads_total')}[5m]))",
                    "{{instance}} {{certificate}} {{result}}")),
        lines("Age", "s", "Since the process started. A drop to 0 is a restart.",
              Query(f"time() - {of('process_start_time_seconds')}", "{{instance}}")),
    ],
})
