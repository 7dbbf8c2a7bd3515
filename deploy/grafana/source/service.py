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
              "By a failure of ours. A request whose worker is lost after its first token fails, and can be sent "
              "again.",
              Query(rate(ENDED, MODEL, 'outcome="failed"', by="model"), "{{model}}")),
        lines("Retry budget", "none",
              "How many requests that lost their worker may go on with others now. At 0 they fail.",
              Query(of("runahead_retry_budget"), "{{instance}}")),
        lines("Failovers", "reqps",
              "Requests that lost a worker or a path before their first token and went on with others, by cause.",
              Query(rate("runahead_failovers_total", by="cause"), "{{cause}}")),
        lines("From cancel to free", "s",
              "After a cancelled prefill, until the last worker of its chain has free buffers again, in the mean.",
              Query(mean("runahead_cancel_to_free_seconds", by="job"), "{{job}}")),
    ],
    "Queue": [
        lines("Requests here now", "none",
              "running: those whose client does not have all of its answer, without those that wait. waiting: for "
              "admission.",
              Query(of("runahead_requests_in_flight") + " - ignoring (priority) " + of("runahead_queue_depth"),
                    "{{instance}}: running"),
              Query(of("runahead_queue_depth"), "{{instance}}: waiting"), stacked=True),
        lines("Requests not admitted", "reqps",
              "queue_full: more than queue_size waited. never_fits: larger than any worker's memory. no_workers: "
              "nobody to send it to. draining: the router stops.",
              Query(rate("runahead_admission_rejections_total", by="reason"), "{{reason}}")),
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
        lines("Age", "s", "Since the process started. A drop to 0 is a restart.",
              Query(f"time() - {of('process_start_time_seconds')}", "{{instance}}")),
    ],
})
