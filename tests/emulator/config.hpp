// Everything about the emulated platform that can be set, at start (--set NAME=VALUE) or while it
// runs (POST /_control/config).
//
// One struct, described by one table: the table is what reads, writes, checks and explains it. A
// setting says what happens to calls made after it was changed; time limits of sandboxes are
// recomputed at once.
#pragma once

#include <boost/json/object.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace emulator {

struct config {
    // Life of a sandbox
    std::int64_t boot_ms = 100;
    std::int64_t start_ms = 100;
    std::int64_t stop_ms = 50;
    std::string boot_outcome = "ok";
    std::string start_outcome = "ok";
    std::string stop_outcome = "ok";
    bool boot_via_starting = false;
    std::int64_t max_active = 5;
    bool idle_check = true;
    double default_idle_s = 3600;
    double running_cap_s = 86400;
    double stopped_keep_s = 604800;
    double deleted_keep_s = 3600;
    double time_scale = 1;
    bool get_counts_as_call = false;
    bool list_deleted = false;
    std::string stop_when_stopped = "409";
    std::string start_when_running = "409";
    std::string stop_when_booting = "409";
    std::string delete_when_deleted = "404";
    std::string deleted_call_status = "404";
    std::string unknown_plan = "400";
    std::string id_style = "plain";
    std::string pagination = "none";
    std::int64_t page_size = 20;
    std::int64_t scratch_mb = 1024;

    // Commands
    double default_timeout_s = 60;
    double command_cap_s = 1800;
    std::string timeout_over_cap = "clamp";
    std::string timeout_outcome = "error";
    std::string timeout_kill = "group";
    std::string cap_outcome = "error";
    std::string cap_kill = "group";
    std::string stop_outcome_of_streams = "error";
    std::string on_disconnect = "keep";
    std::string on_disconnect_output = "drain";
    bool waits_for_children = false;
    std::string leftover_output = "close";
    std::string missing_argv0 = "127";
    std::string not_executable_argv0 = "126";
    std::string too_long_argv = "error";
    std::string signal_returncode = "shell";
    std::string split_characters = "replace";
    std::string replacement = "subpart";
    std::int64_t chunk_bytes = 32768;
    std::int64_t output_limit_bytes = 0;
    std::string output_limit_kill = "group";
    std::int64_t heartbeat_ms = 15000;
    std::string default_cwd = "/root";

    // Files
    std::int64_t file_limit_bytes = 100 * 1024 * 1024;
    std::string put_mode = "0644";
    std::string put_replace = "truncate";
    std::string fs_when_not_running = "409";

    // The wire
    std::int64_t latency_ms = 0;
    std::int64_t connect_latency_ms = 0;
    std::string error_shape = "detail";
    std::string retry_after;
    bool send_date = true;
    std::int64_t date_offset_s = 0;
    std::int64_t validation_status = 400;
    std::string accept_mode = "normal";
    std::int64_t keep_alive_requests = 0;
    std::int64_t keep_alive_idle_ms = 0;
    std::string more_keys;
    std::string other_accounts;

    // The emulator itself
    std::int64_t record_requests = 1000;
    std::int64_t record_body_bytes = 1024;
};

// Sets what `values` names. Throws std::invalid_argument naming the setting that is unknown, of the
// wrong type or not among its choices; then nothing has been changed.
void merge(config& into, const boost::json::object& values);
// One setting given as text, as on the command line. Throws the same.
void merge_text(config& into, std::string_view name, std::string_view value);
boost::json::object to_json(const config& from);
// One line a setting: name, choices, default, meaning.
std::string describe_config();

} // namespace emulator
