# The second tier. What needs real processes, floods or minutes has the label `soak` and runs with `tests/run --all` only:
# how two cores are shared decides more there than the code does. Each entry stands beside its twins, the entries of the
# gate that make its statement without processes; some leave one short case in the gate, too (runahead_short_case).
# That the twins are entries of the gate is checked when the build is configured (CMakeLists.txt).
#   runahead_soak(ENTRY TWIN...)
macro(runahead_soak entry)
  if(${ARGC} LESS 2)
    message(FATAL_ERROR "tests/tiers.cmake names no twin of ${entry}")
  endif()
  list(APPEND RUNAHEAD_SOAK ${entry})
  foreach(twin ${ARGN})
    list(APPEND RUNAHEAD_TWINS ${entry}=${twin})
  endforeach()
endmacro()

runahead_soak(client/up/up_command_test client/up/restart_policy_test client/up/supervisor_test
  client/up/ready_line_test)
runahead_soak(deploy/dashboards_test deploy/grafana_test deploy/prometheus_test deploy/metrics_test)
runahead_soak(front_door/aiperf_test front_door/http_test client/bench/bench_command_test)
runahead_soak(front_door/litellm_test front_door/http_test front_door/structure_test)
runahead_soak(integration/api_keys_test server/router/api_keys_test server/router/key_door_test
  server/router/key_ring_test server/router/key_account_test)
runahead_soak(integration/clock_test server/base/clock_test server/router/clock_offset_test)
runahead_soak(integration/conversations_at_once_test server/router/alike_test server/router/known_test
  worker/decode/engine_known_test)
runahead_soak(integration/conversations_endure_test server/router/known_test server/router/failover_test
  worker/kv/store_known_random_test)
runahead_soak(integration/conversations_test server/router/known_test server/router/behind_known_test
  worker/decode/known_streams_test)
runahead_soak(integration/crowd_test worker/link/tcp/tcp_crowd_test worker/link/tcp/tcp_strangers_test
  server/base/accepter_test)
runahead_soak(integration/cut_stages_test worker/handoff/message_handoff_test server/router/worker_faults_test)
runahead_soak(integration/cut_test worker/link/edge_contract_test server/router/worker_connection_test)
runahead_soak(integration/decode_slots_test server/router/slots_test server/router/fleet_decode_test
  scheduler/placement/decode_queue_test)
runahead_soak(integration/fault_stages_test server/router/worker_faults_test server/router/failover_test
  server/router/rebuild_test)
runahead_soak(integration/faults_test server/router/request_faults_test worker/prefill/stage_failure_test)
runahead_soak(integration/flipped_bits_test worker/link/message/damaged_frame_test
  worker/link/message/damaged_header_test)
runahead_soak(integration/handed_x_cluster_test worker/prefill/handed_x_test worker/x_demand_test)
runahead_soak(integration/hostile_text_test server/rpc/arrivals_test server/router/large_text_turns_test)
runahead_soak(integration/hung_links_test worker/link/edge_contract_test server/router/hung_worker_test)
runahead_soak(integration/hung_test server/router/hung_worker_test scheduler/placement/progress_test)
runahead_soak(integration/kvpr_table_test worker/decode/kvpr/kvpr_loop_test worker/decode/kvpr/kvpr_link_test
  worker/decode/kvpr/kvpr_rows_test)
runahead_soak(integration/lent_prefix_test worker/prefill/lease_prefix_test worker/handoff/prefix_test)
runahead_soak(integration/log_test server/base/log_writer_test server/router/session_report_test)
runahead_soak(integration/long_prompt_test scheduler/placement/progress_test server/base/progress_meter_test)
runahead_soak(integration/move_process_test server/router/move_test worker/decode/engine_moves_test)
runahead_soak(integration/otlp_test server/router/otlp_exporter_test server/router/otlp_json_test
  server/router/tracer_test)
runahead_soak(integration/pause_test server/base/silence_test server/router/worker_connection_test)
runahead_soak(integration/plan_search_test client/plan/search_plan_test client/plan/table_search_test
  server/router/live_table_test)
runahead_soak(integration/profile_test client/profile/line_profile_test client/profile/line_timing_test
  client/profile/line_probe_test)
runahead_soak(integration/prompt_logprobs_process_test server/router/prompt_logprobs_test
  worker/prefill/stage_scoring_test)
runahead_soak(integration/rebuild_process_test server/router/rebuild_test worker/decode/continued_streams_test)
runahead_soak(integration/refused_threads_test server/router/worker_registry_test server/router/service_watch_test)
runahead_soak(integration/request_memory_test server/base/byte_budget_test server/rpc/message_call_test
  server/rpc/arrivals_test)
runahead_soak(integration/shared_weights_test worker/weight_sharing_test)
runahead_soak(integration/slow_client_test server/router/slow_client_test server/router/answer_test)
runahead_soak(integration/starved_test server/base/core_waits_test server/base/silence_test
  scheduler/placement/progress_test)
runahead_soak(integration/stop_stages_test server/router/worker_connection_test worker/service/control_service_test)
runahead_soak(integration/tls_test server/rpc/tls_credentials_test worker/link/tcp/tls_stream_test)
runahead_soak(integration/trace_test server/router/request_trace_test server/router/tracer_test
  worker/prefill/job_trace_test)
runahead_soak(server/rpc/keep_alive_test server/rpc/stalled_network_test server/router/router_process_test
  worker/service/control_service_test)

# What measures, counts by time, or keeps all cores busy runs with nothing beside it.
set(RUNAHEAD_ALONE
  kernels/base/thread_pool_test
  server/base/core_waits_test
  server/base/memory_return_test
  server/base/metrics_server_test
  server/router/resume_test
  worker/decode/kvpr/host_profile_test
  worker/decode/kvpr/kvpr_measured_test
  worker/decode/kvpr/profile_test
  worker/decode/neighbour_test
  worker/kv/resident_memory_test
  worker/lane_profiler_test
  worker/service/control_service_test
)

# What the sanitizers run of entries that compute for long (a gtest filter): what they look for, a read beside a buffer
# or a race, shows in a few steps of the same code; the release build runs all of it.
set(RUNAHEAD_SANITIZED_CASES
  "client/plan/plan_simulate_test=-*Papers*:*Thorough*"  # what_if_test, simulated_search_test
  "client/plan/what_if_test=-*AThoroughSearch*"
  "kernels/cpu/attention_pieces_test=*Windows*:*OnAnyThreads*:*PagesOfAnySize*:*Bf16*:*KeepTheirOwnCuts*/*_f32:*Hidden*:*Piece*Mean*"
  "scheduler/partition/simulated_search_test=-*SlowBus*:*SlowBus*/0"
  "server/tokenizer/jinja/limits_test=-Limits.Steps"
  "worker/decode/int8_decode_test@AVX2=-*Bitwise*"
  "worker/decode/int8_decode_test@AVX512_CORE=-*Bitwise*"
)
