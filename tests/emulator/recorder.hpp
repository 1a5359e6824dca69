// What was asked of the emulator and what it really did, for tests to assert on.
//
// Counters are for ever (until reset); of requests and commands the last config.record_requests are
// kept. Control requests are not recorded. The value of an Authorization header is never kept, only
// whether it was right.
#pragma once

#include "config.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace emulator {

struct request_record {
    std::uint64_t number = 0;
    std::uint64_t connection = 0;
    std::string method, target, route, sandbox_id;
    std::vector<std::pair<std::string, std::string>>
        headers; // lower-case names, without authorization
    bool authorized = false;
    std::string body_prefix;
    std::uint64_t body_bytes = 0;
    int status = 0;               // 0: no status line was sent
    std::string outcome = "open"; // open, done, client_gone, fault
    double at = 0, ended = 0;     // unix seconds
};

struct command_record {
    std::uint32_t number = 0;
    std::string sandbox_id;
    std::vector<std::string> argv; // each element's first 256 bytes
    double timeout_s = 0;
    int pid = 0; // inside the sandbox
    std::optional<int> returncode;
    std::string ended = "starting"; // starting, running, exited, timed_out, capped, output_limit,
                                    // stopped, refused; detached_ in front: nobody listened
    std::uint64_t stdout_bytes = 0, stderr_bytes = 0;
    double at = 0, ended_at = 0;
};

double unix_now();

class recorder {
public:
    explicit recorder(const config& settings) : config_(settings) {}

    std::shared_ptr<request_record> begin_request(std::uint64_t connection);
    // Once method, route and sandbox are known.
    void count(const request_record& request);
    void end_request(request_record& request, const std::string& outcome);
    std::shared_ptr<command_record> begin_command();
    void reset();

    boost::json::array requests(std::size_t last) const;
    boost::json::array commands(const std::string& sandbox_id) const;
    // Adds its members to `out`.
    void stats(boost::json::object& out) const;

    std::uint64_t connections_accepted = 0;
    std::uint64_t connections_open = 0;
    std::uint64_t sandboxes_created = 0;
    std::uint64_t boots = 0;

private:
    const config& config_;
    std::uint64_t next_request_ = 1;
    std::uint64_t total_ = 0;
    std::uint64_t commands_started_ = 0;
    std::map<std::string, std::uint64_t> by_route_, by_status_;
    std::map<std::string, std::map<std::string, std::uint64_t>> by_sandbox_;
    std::deque<std::shared_ptr<request_record>> requests_;
    std::deque<std::shared_ptr<command_record>> commands_;
};

} // namespace emulator
