// One API request while it is being served, and the parts of the emulator that serve it.
#pragma once

#include "cloud/platform.hpp"
#include "faults.hpp"
#include "http/connection.hpp"
#include "http/responder.hpp"
#include "recorder.hpp"

#include <boost/json/value.hpp>

#include <map>
#include <set>

namespace emulator::api {

// Everything there is; owned by main, outlives every call.
struct world {
    boost::asio::any_io_executor executor;
    config settings;
    fault_list faults;
    recorder records{settings};
    std::map<std::string, int> accounts; // API key -> account number
    cloud::platform* platform = nullptr;
    std::set<http::connection*> connections;

    // --api-key plus config.other_accounts; an account keeps its number.
    void read_accounts();
};

// Which handler a request is for.
enum class route {
    create,
    list,
    catalog,
    get,
    remove,
    stop,
    start,
    exec,
    put_file,
    get_file,
    control,
    unknown,     // no such path
    wrong_method // a path, but not with this method
};
struct target {
    route to = route::unknown;
    std::string pattern;               // "/v1/sandboxes/{id}/exec"; for unknown paths "?"
    std::string sandbox_id;            // decoded
    std::vector<std::string> segments; // decoded
    std::map<std::string, std::string> query;
};
target resolve(std::string_view method, std::string_view raw);

struct call {
    world& all;
    http::connection& connection;
    http::responder& answer;
    request_record& record;
    const target& where;
    int account;

    // The whole request body. Throws api_error 413 over `limit` bytes.
    task<std::string> read_body(std::size_t limit);
    // ... as a JSON object. Throws api_error with config.validation_status.
    task<boost::json::object> read_json();
    task<void> reply_json(const boost::json::value& body, int status = 200);
    [[noreturn]] void refuse(const std::string& why) const; // a malformed request
};

// Keeps the idle clock of a sandbox right whatever way a call ends.
class call_in_flight {
public:
    call_in_flight(cloud::platform& platform, cloud::sandbox_ptr which)
        : platform_(platform), which_(std::move(which)) {
        platform_.call_begins(which_);
    }
    ~call_in_flight() { platform_.call_ends(which_); }
    call_in_flight(const call_in_flight&) = delete;
    call_in_flight& operator=(const call_in_flight&) = delete;

private:
    cloud::platform& platform_;
    cloud::sandbox_ptr which_;
};

// Body and type of an error in the configured shape.
struct error_body {
    std::string content_type, text;
};
error_body shape_error(const config& settings, int status, const std::string& message);

// The handlers. They throw api_error, connection_lost and answer_lost.
task<void> serve_sandboxes(call& c);
task<void> serve_exec(call& c);
task<void> serve_put_file(call& c);
task<void> serve_get_file(call& c);
task<void> serve_control(call& c);

} // namespace emulator::api
